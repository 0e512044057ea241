"""Create environments by name, `family/task`, and check the names in a config."""

import contextlib
import difflib
import importlib.util
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from purejaxppo.config.copies import imported_names
from purejaxppo.config.plain import user_path
from purejaxppo.config.references import (
    OBJECT,
    files_in,
    is_reference,
    located,
    modules_in,
    refs_in,
    with_located,
    without_family,
)
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import curriculum, custom, domain_randomization, families, metrics
from purejaxppo.envs.adapted import BaseTask, as_base_task
from purejaxppo.envs.base import EnvSpec
from purejaxppo.envs.curriculum import CurriculumEnv
from purejaxppo.envs.engines.process import EDITOR
from purejaxppo.envs.families import Family
from purejaxppo.envs.host.bridge import HostEnv
from purejaxppo.envs.native import arrays_in, form_of
from purejaxppo.envs.teams import GLOBAL_STATE
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.envs.worlds import JointTask, MultiAgentEnv, count_worlds
from purejaxppo.envs.wrappers import (
    CastToSpace,
    PartialObservation,
    TimeLimit,
    UnitActions,
    limit_of,
)
from purejaxppo.spaces import Box


def task_names(name: str) -> list[str]:
    """Return the full names, family/task, of all tasks of a family.

    Raises:
        ValueError: unknown family, or its simulator is not installed.
    """
    family = families.load(name)
    families.check_installed(name, family)
    return [f"{name}/{task}" for task in family.tasks()]


def family_of(config: EnvConfig) -> Family | None:
    """Return the family of env.name; None if it is unknown (`resolve` raises the error)."""
    name = str(config.name).partition("/")[0]
    return families.load(name) if name in families.declared() else None


def free_options(config: EnvConfig) -> Collection[str]:
    """Return the names of options that do not affect results, which may change on resume."""
    family = family_of(config)
    names = () if family is None else (*family.free_options, family.workers_option)
    return [name for name in names if name]


def on_host(config: EnvConfig) -> bool:
    """Return True for a host simulator: one shard, and its state is not restored on resume."""
    family = family_of(config)
    return family is not None and family.on_host


class ExternalCode(NamedTuple):
    """The modules that an environment imports and the programs that it starts."""

    modules: list[str]
    programs: list[str]


def external_code(config: EnvConfig) -> ExternalCode:
    """Return the modules and programs named in env.name and env.options, without imports."""
    family, name = family_of(config), str(config.name).partition("/")[2]
    if family is None:
        return ExternalCode([], [])
    references = _references(family, config)
    texts = references["code"]
    texts += [name] * (family.names in ("reference", "id", "module"))
    modules = [module for text in texts for module in modules_in(text)]
    if family.names == "module" and not {":", "/"} & set(name):
        modules.append(name)
    programs = references["program"]
    if family.names == "program" and not is_editor(config):
        path = user_path(name).absolute()
        programs.append(f"{path} {config.options.get('arguments', '')}".rstrip())
    return ExternalCode(modules, programs)


def paths(config: EnvConfig) -> list[str]:
    """Return the paths in env.name and env.options, without Python files."""
    family, name = family_of(config), str(config.name).partition("/")[2]
    if family is None:
        return []
    references = _references(family, config)
    return [name] * (family.names == "program") + references["program"] + references["path"]


def _references(family: Family, config: EnvConfig) -> dict[str, list[str]]:
    """Return the values of env.options that name code, programs and paths, by `Option.refers`."""
    kinds = {name: option.refers for name, option in family.options.items()}
    refs = [(name, ref) for name, value in config.options.items() for ref in refs_in(value)]
    return {
        kind: [ref.text for name, ref in refs if ref.text and kinds.get(name) == kind]
        for kind in ("code", "program", "path")
    }


def is_editor(config: EnvConfig) -> bool:
    """Return True for a game in the editor of an engine: one copy, started by the user."""
    family = family_of(config)
    task = str(config.name).partition("/")[2]
    return family is not None and family.names == "program" and task == EDITOR


def calls_lapack(config: EnvConfig) -> bool:
    """Return True if the simulator calls LAPACK in batches; see `parallel.lapack`.

    This includes custom tasks in a file that imports MuJoCo, probably for MJX.
    """
    family = family_of(config)
    if family is custom.FAMILY:
        files = map(Path, files_in(located(without_family(config.name))))
        return any("mujoco" in imported_names(file) for file in files if file.is_file())
    return family is not None and config.backend in family.lapack


def resolve(config: EnvConfig) -> tuple[Family, str]:
    """Return the family of a config, and the name of its task without the family.

    Raises:
        ValueError: unknown name (with a suggestion), missing package, or unknown back end.
    """
    family_name, name = str(config.name).partition("/")[0], located(without_family(config.name))
    if not config.name:
        raise ValueError("env.name is missing. Set a task, such as gymnax/CartPole-v1.")
    if not name or family_name not in families.declared():
        _check_family(str(config.name))
    family = families.load(family_name)
    families.check_installed(family_name, family)
    if not family.has_task(name):
        raise ValueError(
            f"env.name: unknown task {config.name!r}. {_suggest(str(config.name), family_name)}"
        )
    backends = family.backends
    if config.backend and config.backend not in backends:
        text = (
            f"{family_name} has the back ends {', '.join(backends)}. Use one of them."
            if backends
            else f"{family_name} has no back ends. Remove env.backend."
        )
        raise ValueError(f"env.backend = {config.backend!r}: {text}")
    return family, name


def warnings_of(config: EnvConfig, spec: EnvSpec) -> list[str]:
    """Return warnings about an option without effect, and missing limits of time or actions."""
    family, lines = family_of(config), []
    # Tasks of other families without a limit are games, which end by their rules.
    is_custom = family is not None and family.names in ("reference", "id", "module")
    if is_custom and not spec.max_episode_steps:
        lines.append(
            f"{config.name} has no time limit. If an episode may last forever, set "
            f"env.max_episode_steps."
        )
    actions = [array.space for _, array in arrays_in(form_of(spec.action))]
    if any(isinstance(space, Box) and not space.bounded for space in actions):
        lines.append(
            f"{config.name} has actions without bounds. They are neither clipped nor scaled, and "
            f"start with standard deviation network.init_std around 0. If bounds are known, "
            f"declare them in the action space."
        )
    if family is not None and family.on_host and config.reset != "auto":
        lines.append(f"env.reset = {config.reset} has no effect on host simulators.")
    has_stack = "frame_stack" in config.options and "pixels" not in config.options
    if has_stack and str(config.name).startswith("gymnasium/"):
        lines.append(
            f"env.options.frame_stack = {config.options['frame_stack']} has no effect without "
            f"env.options.pixels. To stack other observations, use env.options.wrappers = "
            f"[{{FrameStackObservation: {{stack_size: 4}}}}]."
        )
    return lines


def with_file_paths(config: EnvConfig) -> EnvConfig:
    """Return the config with code references in env.options as file paths."""
    return replace(config, options=with_located(config.options))


def make_task(config: EnvConfig) -> BaseTask:
    """Create one JAX environment with its wrappers.

    Order of wrappers: parameter variation, custom wrappers, `obs_indices`, time limit,
    `JointTask` for several agents, action scaling. A curriculum is set to its end values.

    Raises:
        ValueError: see `resolve`, or an invalid option.
    """
    return _wrap(_unwrapped(config), config, curriculum.schedule(config.curriculum)(1.0))


def _unwrapped(config: EnvConfig) -> BaseTask:
    """Create the task of the adapter, and check the parameters that the config varies."""
    family, name = resolve(config)
    assert family.make_task is not None
    config = families.with_checked_options(family, name, with_file_paths(config))
    options = dict(config.options)
    global_state = options.pop(GLOBAL_STATE, False)  # an option of `JointTask`
    task = as_base_task(family.make_task(name, replace(config, options=options)))
    if global_state and not task.agents:
        raise ValueError(
            f"env.options.{GLOBAL_STATE} = true: {config.name} has only one agent. Use false."
        )
    domain_randomization.check(task, config)
    return task


def check_code(config: EnvConfig) -> None:
    """Trace the custom task and the custom wrappers of a config.

    Raises:
        ValueError: see `custom.check`.
    """
    family = family_of(config)
    can_be_custom = family is not None and family.names == "reference"
    is_custom = can_be_custom and is_reference(without_family(config.name))
    if not (is_custom or config.wrappers) or on_host(config):
        return
    task = _unwrapped(config)
    if is_custom:
        custom.check(task, f"env.name = {config.name}")
    _wrap(task, config, curriculum.schedule(config.curriculum)(1.0), checked=True)


def _wrap(
    task: BaseTask, config: EnvConfig, values: curriculum.ParameterValues, *, checked: bool = False
) -> BaseTask:
    """Set the parameters of a task and apply its wrappers; see `custom.apply_wrappers`."""
    task = domain_randomization.vary(task, config.randomize, values)
    if config.wrappers and not task.agents:
        task = CastToSpace(task)
    task = custom.apply_wrappers(task, config, checked=checked)
    if config.obs_indices:
        task = PartialObservation(task, config.obs_indices, config.privileged_obs)
    limit = config.max_episode_steps or limit_of(task)
    task = TimeLimit(task, limit) if limit else task
    if task.agents:
        task = JointTask(task, global_state=bool(config.options.get(GLOBAL_STATE)))
    task = UnitActions(task)
    task.metrics = metrics.selected(task.metrics, config.metrics, str(config.name))
    return task


def _check_family(name: str) -> None:
    """Raise ValueError for a name without a family, with the families that have the task.

    The error for the first part of a name with a slash is raised by `families.load`, if no family
    has the task.
    """
    if is_reference(name) and not name.startswith(OBJECT):
        choices = (
            f"jax/{name} for a Task, gymnasium/{name} for an environment of Gymnasium, "
            f"pettingzoo/{name} of PettingZoo"
        )
        raise ValueError(f"env.name = {name!r}: the family is missing. Use {choices}.")
    full_names = _with_task(name)
    if full_names:
        *first, last = full_names
        choices = f"{', '.join(first)} or {last}" if first else last
        raise ValueError(f"env.name = {name!r}: the family is missing. Use {choices}.")
    if "/" not in name.rstrip("/"):
        raise ValueError(f"env.name = {name!r} is not of the form family/task. {_suggest(name)}")


def _with_task(name: str) -> list[str]:
    """Return the full names of the tasks that are called `name` in any family."""
    full_names = _all_names(families.declared())
    found = [full for full in full_names if full.partition("/")[2].lower() == name.lower()]
    gymnasium = f"gymnasium/{name}"  # a list of tasks has only the newest version of each id
    if gymnasium not in found and importlib.util.find_spec("gymnasium"):
        import gymnasium as simulator

        found += [gymnasium] * (name in simulator.registry)
    return sorted(found)


def _all_names(names: Iterable[str]) -> list[str]:
    """Return the full names of the tasks of families, without those that are not installed."""
    full_names: list[str] = []
    for family in names:
        with contextlib.suppress(ValueError):
            full_names += task_names(family)
    return full_names


def _suggest(name: str, *names: str) -> str:
    """Return a hint with the known names that are nearest to `name`."""
    by_task: dict[str, list[str]] = {}
    for full in _all_names(names or families.declared()):
        for known in (full.lower(), full.partition("/")[2].lower()):
            by_task.setdefault(known, []).append(full)
    for query in (name.lower(), name.lower().rpartition("/")[2]):
        close = difflib.get_close_matches(query, by_task, 3, 0.5)
        if close:
            best = list(dict.fromkeys(full for known in close for full in by_task[known]))[:5]
            return f"Did you mean {' or '.join(repr(b) for b in best)}?"
    return "`purejaxppo list envs` lists all families."


def make(
    config: EnvConfig,
    num_envs: int,
    *,
    seed: int = 0,
    first: int = 0,
    evaluation: bool = False,
    render: bool = False,
) -> VectorEnv | CurriculumEnv | HostEnv | MultiAgentEnv:
    """Create a batch of `num_envs` environments.

    Args:
        config: section env of the config.
        num_envs: number of rows; each agent is one row.
        seed: seed of simulators that take no key.
        first: index of the first environment, if several equal batches are made.
        evaluation: True for evaluations: the first whole episode of each environment counts, with
            its true score. Custom code is not checked again. Host simulators are at most as many
            as in training. Rows of multi-agent tasks are rounded up to a multiple of the agents.
        render: frames of host simulators will be requested.

    Raises:
        ValueError: see `resolve`, an invalid option, or `num_envs` is not a multiple of the agents.
    """
    if on_host(config):
        num_envs = min(num_envs, config.num_envs) if evaluation else num_envs
        return _make_on_host(
            config, num_envs, seed=seed, first=first, evaluation=evaluation, render=render
        )
    if not evaluation:
        check_code(config)
    task, values = _unwrapped(config), curriculum.schedule(config.curriculum)
    final = _wrap(task, config, values(1.0))
    if config.stagger and not final.max_episode_steps:
        raise ValueError(
            f"env.stagger = true needs a time limit. Set env.max_episode_steps for {config.name}, "
            f"or use env.stagger = false."
        )
    stagger = config.stagger and not evaluation
    every_step = config.reset == "every_step" or (config.reset == "auto" and final.cheap_reset)

    batch = partial(VectorEnv, stagger=stagger, evaluation=evaluation)

    def build(wrapped: BaseTask) -> Any:
        every = every_step and not evaluation
        team = wrapped.team
        if team is None:
            return batch(wrapped, num_envs, fresh_every_step=every)
        num_worlds = count_worlds(config, team.size, num_envs, evaluation=evaluation)
        worlds = batch(wrapped, num_worlds, fresh_every_step=every)
        return MultiAgentEnv(worlds, team)

    if config.curriculum and not evaluation:
        return CurriculumEnv(values, lambda parameters: build(_wrap(task, config, parameters)))
    return build(final)


def _make_on_host(config: EnvConfig, num_envs: int, **settings: Any) -> HostEnv | MultiAgentEnv:
    """Create the environments of a host adapter."""
    family, name = resolve(config)
    assert family.make_batch is not None
    config = families.with_checked_options(family, name, with_file_paths(config))
    gymnasium = "one of Gymnasium's wrappers (env.options.wrappers)"
    remedies = (
        ("wrappers", config.wrappers, f"Use {gymnasium}."),
        ("stagger", config.stagger, "Use false."),
        ("obs_indices", config.obs_indices, f"Leave it empty, or use {gymnasium}."),
    )
    for field, value, remedy in remedies:
        if value:
            raise ValueError(
                f"env.{field} needs a simulator in JAX, but {config.name} runs on the host. "
                f"{remedy}"
            )
    if family.randomizes:
        domain_randomization.check_spread(config)
    else:
        domain_randomization.check_host(config)
    env = family.make_batch(name, config, num_envs, **settings)
    if config.metrics and not (env.spec.metrics or settings["render"]):
        raise ValueError(f"env.metrics: {config.name} reports no metrics. Remove env.metrics.")
    return env
