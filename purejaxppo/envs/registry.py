"""Environments by name, `family/task`. A new simulator is one adapter file and one line here."""

import difflib
import importlib
import importlib.util
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from purejaxppo.config.hints import did_you_mean
from purejaxppo.config.references import is_reference, located, modules_in, without_family
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import curriculum, domain_randomization, own
from purejaxppo.envs.curriculum import CurriculumEnv
from purejaxppo.envs.host.bridge import HostEnv
from purejaxppo.envs.host.engine import EDITOR
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.envs.worlds import World, WorldsEnv, count_worlds, wants_global_state
from purejaxppo.envs.wrappers import Declared, PartialObservation, TimeLimit, UnitActions, limit_of


class Family(NamedTuple):
    """A simulator's adapter, the package that it imports, and its description.

    The extra of the library that installs the package has the family's name.
    """

    module: str
    """In `purejaxppo.envs`."""
    about: str
    requires: str = "jax"
    host: bool = False
    """True if the adapter makes a whole `Env` on the host, and not a `Task` in JAX."""
    names: Literal["task", "reference", "module", "program"] = "task"
    """The part of env.name after the family: a listed task, a reference (`file.py:Name` or
    `module:Name`), a reference or a module alone, or the path of a program."""
    references: tuple[str, ...] = ()
    """Options that are lists of references."""
    programs: tuple[str, ...] = ()
    """Options that are paths of programs."""
    paths: tuple[str, ...] = ()
    """Other options that are paths."""
    package: str = ""
    """The name on PyPI of the package that it imports, if it is not `requires`."""
    lapack: tuple[str, ...] = ()
    """Back ends that call LAPACK for many environments at once; "" is the default back end."""


FAMILIES = {
    "brax": Family(
        "brax",
        "robots; --env.backend spring, positional, generalized or mjx",
        "brax",
        lapack=("generalized", "mjx"),
    ),
    "craftax": Family("craftax", "open worlds to survive in", "craftax"),
    "dummy": Family("dummy", "dummy environments for profiling"),
    "envpool": Family("host.envpool", "C++ on the host: Atari, MuJoCo, ...", "envpool", host=True),
    "godot": Family(
        "host.godot",
        "games made with Godot 4: an exported game, a project's folder, or editor",
        host=True,
        names="program",
        programs=("godot",),
    ),
    "gymnasium": Family(
        "host.gymnasium",
        "any id, package:Id or file.py:Class, in worker processes",
        "gymnasium",
        host=True,
        names="reference",
        references=("wrappers",),
    ),
    "gymnax": Family("gymnax", "classic control, MinAtar, bsuite", "gymnax", names="reference"),
    "jax": Family("own", "your own in JAX: file.py:Name", names="reference"),
    "jaxmarl": Family("jaxmarl", "several agents: MPE, SMAX, Overcooked, ...", "jaxmarl"),
    "jumanji": Family("jumanji", "puzzles, packing, routing; with masks", "jumanji"),
    "oscillator": Family("oscillator.adapter", "ensembles of neurons to desynchronise"),
    "particles": Family("particles", "multi-agent particle environments"),
    "pettingzoo": Family(
        "host.pettingzoo",
        "several agents: any module, package:Class or file.py:function, in worker processes",
        "pettingzoo",
        host=True,
        names="module",
    ),
    "pgx": Family(
        "pgx", "MinAtar, 2048, board games against oneself", "pgx", references=("opponent",)
    ),
    "playground": Family(
        "playground",
        "MuJoCo Playground on MJX",
        "mujoco_playground",
        paths=("menagerie",),
        lapack=("", "jax"),
    ),
    "unity": Family(
        "host.unity.adapter",
        "players with ML-Agents built in: path/to/Player, or editor",
        "grpc",
        host=True,
        names="program",
        references=("channels",),
        package="grpcio",
    ),
    "xminigrid": Family(
        "xminigrid", "grid worlds: MiniGrid, XLand", "xminigrid", paths=("benchmark",)
    ),
}


def adapter(family: str) -> Any:
    """The adapter module of a family.

    Raises:
        ValueError: no such family, or its package is not installed.
    """
    if family not in FAMILIES:
        hint = did_you_mean(family, FAMILIES, f"There are {', '.join(FAMILIES)}.")
        raise ValueError(f"env.name: unknown family {family!r}. {hint}")
    entry = FAMILIES[family]
    if importlib.util.find_spec(entry.requires) is None:
        package = entry.package or entry.requires
        raise ValueError(f"{package} is not installed. Run: pip install 'purejaxppo[{family}]'")
    try:
        return importlib.import_module(f"purejaxppo.envs.{entry.module}")
    except ModuleNotFoundError as error:  # of another package than the one above
        raise ValueError(
            f"{error.name} is not installed. Run: pip install 'purejaxppo[{family}]'"
        ) from error


def task_names(family: str) -> list[str]:
    """Full names, family/task, of everything a family offers."""
    return [f"{family}/{name}" for name in adapter(family).task_names()]


def on_host(config: EnvConfig) -> bool:
    """True if the simulator runs on the host: in one shard, and not restored on resuming."""
    family = FAMILIES.get(config.name.partition("/")[0])
    return family is not None and family.host


class Started(NamedTuple):
    """The modules that an environment imports by name, and the programs that it starts."""

    modules: list[str]
    programs: list[str]


def started(config: EnvConfig) -> Started:
    """The modules and programs that env.name and env.options name; nothing is imported."""
    family, _, name = config.name.partition("/")
    if family not in FAMILIES:
        return Started([], [])
    entry = FAMILIES[family]
    texts = [str(config.options[key]) for key in entry.references if key in config.options]
    texts += [name] * (entry.names in ("reference", "module"))
    modules = [module for text in texts for module in modules_in(text)]
    if entry.names == "module" and not {":", "/"} & set(name):
        modules.append(name)
    programs = [str(config.options[key]) for key in entry.programs if config.options.get(key)]
    if entry.names == "program" and name != EDITOR:
        path = Path(name).expanduser().absolute()
        programs.append(f"{path} {config.options.get('arguments', '')}".rstrip())
    return Started(modules, programs)


def paths(config: EnvConfig) -> list[str]:
    """Return the paths in env.name and env.options, without Python files."""
    family, _, name = config.name.partition("/")
    if family not in FAMILIES:
        return []
    entry = FAMILIES[family]
    options = [config.options.get(key) for key in (*entry.programs, *entry.paths)]
    return [name] * (entry.names == "program") + [x for x in options if isinstance(x, str)]


def calls_lapack(config: EnvConfig) -> bool:
    """True if the simulator calls LAPACK for many environments at once; see `parallel.lapack`."""
    family = FAMILIES.get(config.name.partition("/")[0])
    return family is not None and config.backend in family.lapack


def resolve(config: EnvConfig) -> tuple[Any, str]:
    """The adapter of a config and its task's name there.

    Raises:
        ValueError: unknown name (with the nearest known), missing package, unknown back end.
    """
    family, name = config.name.partition("/")[0], without_family(config.name)
    if not config.name:
        raise ValueError("env.name is missing: name a task, such as gymnax/CartPole-v1")
    if not name:
        raise ValueError(
            f"env.name = {config.name!r} is not of the form family/task. "
            + (
                f"Did you mean 'jax/{config.name}'?"
                if is_reference(config.name)
                else _suggest(config.name)
            )
        )
    module = adapter(family)
    known = getattr(module, "is_task", None) or module.task_names().__contains__
    if not known(name):
        raise ValueError(f"env.name: unknown task {config.name!r}. {_suggest(config.name, family)}")
    backends = getattr(module, "BACKENDS", ())
    if config.backend and config.backend not in backends:
        there = f"{family} has {', '.join(backends)}" if backends else f"{family} has no back ends"
        raise ValueError(f"env.backend = {config.backend!r}: {there}")
    return module, name


def make_task(config: EnvConfig) -> Any:
    """One JAX environment, wrapped in the fixed order: variation, own, time limit, action scaling.

    With a curriculum, the parameters are those of its end.

    A world of several agents becomes one environment between the last two wrappers.

    Raises:
        ValueError: as `resolve`, or a bad option.
    """
    return _wrap(_adapted(config), config, curriculum.schedule(config.curriculum)(1.0))


def _adapted(config: EnvConfig) -> Any:
    """The adapter's environment, with the config's variations checked."""
    module, name = resolve(config)
    task = module.make(name, config)
    domain_randomization.check(task, config)
    return task


def _wrap(task: Any, config: EnvConfig, values: curriculum.Values) -> Any:
    """An adapter's task with its parameters set, in its wrappers."""
    task = domain_randomization.vary(task, config.randomize, values)
    if config.wrappers and not hasattr(task, "agents"):
        task = Declared(task)
    task = own.wrapped(task, config)
    if config.obs_indices:
        task = PartialObservation(task, config.obs_indices, config.privileged_obs)
    limit = config.max_episode_steps or limit_of(task)
    task = TimeLimit(task, limit) if limit else task
    if hasattr(task, "agents"):
        task = World(task, global_state=wants_global_state(config))
    return UnitActions(task)


def _suggest(name: str, *families: str) -> str:
    """A hint with the known names that are nearest to a wrong one."""
    known: list[str] = []
    for family in families or FAMILIES:
        try:
            known += task_names(family)
        except ValueError:
            continue
    by_task = {full.partition("/")[2].lower(): full for full in known}
    by_task |= {full.lower(): full for full in known}
    for wanted in (name.lower(), name.lower().rpartition("/")[2]):
        close = difflib.get_close_matches(wanted, by_task, 3, 0.5)
        if close:
            best = list(dict.fromkeys(by_task[c] for c in close))
            return f"Did you mean {' or '.join(repr(b) for b in best)}?"
    return "`purejaxppo list envs` prints all."


def make(
    config: EnvConfig,
    num_envs: int,
    *,
    seed: int = 0,
    first: int = 0,
    evaluation: bool = False,
    film: bool = False,
) -> VectorEnv | CurriculumEnv | HostEnv | WorldsEnv:
    """A batch of `num_envs` environments under the protocol of `envs.base`.

    Args:
        config: of the environment.
        num_envs: number of rows; each agent is one.
        seed: of simulators that do not take a key.
        first: the number of the first environment, where this batch is one of several equal ones.
        evaluation: whole episodes with their true scores; the first of each environment counts.
            It has at most as many simulators on the host as training.
            Rows of a task of several agents are rounded up to whole worlds.
        film: pictures of simulators on the host will be requested.

    Raises:
        ValueError: as `resolve`, a bad option, or no whole number of worlds.
    """
    if on_host(config):
        num_envs = min(num_envs, config.num_envs) if evaluation else num_envs
        return _make_on_host(
            config, num_envs, seed=seed, first=first, evaluation=evaluation, film=film
        )
    task = _adapted(config)
    if config.stagger and not (config.max_episode_steps or limit_of(task)):
        raise ValueError(
            f"env.stagger: {config.name} has no time limit: set env.max_episode_steps, or leave it "
            f"off"
        )
    stagger = config.stagger and not evaluation
    every_step = config.reset == "every_step" or (config.reset == "auto" and task.cheap_reset)

    batch = partial(VectorEnv, stagger=stagger, evaluation=evaluation)

    def build(values: curriculum.Values) -> Any:
        wrapped, every = _wrap(task, config, values), every_step and not evaluation
        team = getattr(wrapped, "team", None)
        if team is None:
            return batch(wrapped, num_envs, fresh_every_step=every)
        num_worlds = count_worlds(config, team.size, num_envs, evaluation=evaluation)
        worlds = batch(wrapped, num_worlds, fresh_every_step=every)
        return WorldsEnv(worlds, team)

    values = curriculum.schedule(config.curriculum)
    if config.curriculum and not evaluation:
        return CurriculumEnv(values, build)
    return build(values(1.0))


def _make_on_host(config: EnvConfig, num_envs: int, **settings: Any) -> HostEnv | WorldsEnv:
    """The environments of a host adapter."""
    texts = {key: located(x) if isinstance(x, str) else x for key, x in config.options.items()}
    module, name = resolve(config)
    config = replace(config, options=texts)
    gymnasium = "use one of Gymnasium's wrappers (env.options.wrappers)"
    remedies = {
        "wrappers": gymnasium,
        "stagger": "leave it off",
        "obs_indices": f"leave it empty, or {gymnasium}",
    }
    for field, remedy in remedies.items():
        if getattr(config, field):
            raise ValueError(
                f"env.{field} is for simulators in JAX, and {config.name} runs on the host: "
                f"{remedy}"
            )
    if getattr(module, "HAS_PARAMETERS", False):
        domain_randomization.check_spread(config)
    else:
        domain_randomization.check_host(config)
    return module.make(name, config, num_envs, **settings)
