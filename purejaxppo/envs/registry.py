"""Names to environments: `family/task`. A new simulator is one adapter file and one line here."""

import difflib
import importlib
import importlib.util
from typing import Any, NamedTuple

from purejaxppo.config import EnvConfig
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.envs.wrappers import TimeLimit, UnitActions


class Family(NamedTuple):
    """A simulator's adapter module, what it imports, and what is said of it."""

    module: str
    requires: str
    extra: str
    about: str


FAMILIES = {
    "brax": Family(
        "purejaxppo.envs.brax",
        "brax",
        "brax",
        "robots; --env.backend spring, positional, generalized or mjx",
    ),
    "dummy": Family("purejaxppo.envs.dummy", "jax", "", "no simulation, to measure the rest"),
    "gymnax": Family(
        "purejaxppo.envs.gymnax", "gymnax", "gymnax", "classic control, MinAtar, bsuite"
    ),
    "oscillator": Family(
        "purejaxppo.envs.oscillator", "jax", "", "ensembles of neurons to desynchronise"
    ),
    "playground": Family(
        "purejaxppo.envs.playground", "mujoco_playground", "playground", "MuJoCo Playground on MJX"
    ),
}


def adapter(family: str) -> Any:
    """The adapter module of a family.

    Raises:
        ValueError: no such family, or its package is not installed.
    """
    if family not in FAMILIES:
        close = difflib.get_close_matches(family, FAMILIES, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(FAMILIES)}"
        raise ValueError(f"env.name: unknown family {family!r}; {hint}")
    entry = FAMILIES[family]
    if importlib.util.find_spec(entry.requires) is None:
        raise ValueError(
            f"{entry.requires} is not installed: pip install 'purejaxppo[{entry.extra}]'"
        )
    return importlib.import_module(entry.module)


def task_names(family: str) -> list[str]:
    """Full names, family/task, of everything a family offers."""
    return [f"{family}/{name}" for name in adapter(family).task_names()]


def make_task(config: EnvConfig):
    """One environment, wrapped in the fixed order: adapter, time limit, action scaling.

    Raises:
        ValueError: unknown name (with the nearest known), missing package, or bad option.
    """
    family, _, name = config.name.partition("/")
    if not name:
        raise ValueError(
            f"env.name = {config.name!r} is not of the form family/task; {_suggest(config.name)}"
        )
    module = adapter(family)
    if name not in module.task_names():
        raise ValueError(f"env.name: unknown task {config.name!r}; {_suggest(config.name, family)}")
    backends = getattr(module, "BACKENDS", ())
    if config.backend and config.backend not in backends:
        there = f"{family} has {', '.join(backends)}" if backends else f"{family} has no back ends"
        raise ValueError(f"env.backend = {config.backend!r}: {there}")
    task = module.make(name, config)
    return UnitActions(TimeLimit(task, config.max_episode_steps or task.max_episode_steps))


def _suggest(name: str, *families: str) -> str:
    """Which known names are nearest to a wrong one."""
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
            return f"did you mean {' or '.join(repr(b) for b in best)}?"
    return "--list-envs prints what there is"


def make(config: EnvConfig, num_envs: int, *, fresh_every_step: bool | None = None) -> VectorEnv:
    """A batch of `num_envs` environments under the protocol of `envs.base`.

    Args:
        config: which environment.
        num_envs: how many.
        fresh_every_step: overrides `config.reset`; evaluation asks for every episode's own start.
    """
    task = make_task(config)
    if fresh_every_step is None:
        fresh_every_step = config.reset == "every_step" or (
            config.reset == "auto" and task.cheap_reset
        )
    return VectorEnv(task, num_envs, fresh_every_step=fresh_every_step)
