"""Families of environments: how an adapter declares one, and how it is found by its name.

A family is a simulator, or a collection of tasks, whose tasks have names `family/task`. Its adapter
ends with a declaration, `FAMILY = Family(...)`, and is listed in `ADAPTERS`. Another package adds a
family by an entry point of the group `purejaxppo.envs`, which names such a declaration:

    [project.entry-points."purejaxppo.envs"]
    maze = "my_package.maze:FAMILY"

Modules with declarations import their simulators inside of functions, so that all families can be
listed without them.
"""

import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.metadata import EntryPoint
from typing import Any, Literal, Protocol

from purejaxppo.config.hints import did_you_mean
from purejaxppo.config.references import is_reference
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import MultiTask, Task
from purejaxppo.envs.options import Options, checked, of_task, split

GROUP = "purejaxppo.envs"
"""The group of entry points that declare families."""
ADAPTERS = {
    "brax": "purejaxppo.envs.adapters.brax",
    "craftax": "purejaxppo.envs.adapters.craftax",
    "dummy": "purejaxppo.envs.adapters.dummy",
    "envpool": "purejaxppo.envs.host.envpool",
    "godot": "purejaxppo.envs.engines.godot.adapter",
    "gymnasium": "purejaxppo.envs.host.gymnasium",
    "gymnax": "purejaxppo.envs.adapters.gymnax",
    "jax": "purejaxppo.envs.custom",
    "jaxmarl": "purejaxppo.envs.adapters.jaxmarl",
    "jumanji": "purejaxppo.envs.adapters.jumanji",
    "oscillator": "purejaxppo.envs.adapters.oscillator.adapter",
    "particles": "purejaxppo.envs.adapters.particles",
    "pettingzoo": "purejaxppo.envs.host.pettingzoo",
    "pgx": "purejaxppo.envs.adapters.pgx",
    "playground": "purejaxppo.envs.adapters.playground",
    "unity": "purejaxppo.envs.engines.unity.adapter",
    "xminigrid": "purejaxppo.envs.adapters.xminigrid",
}
"""The library's families and the modules of their declarations."""


class MakeTask(Protocol):
    """Makes one environment in JAX."""

    def __call__(self, name: str, config: EnvConfig, /) -> BaseTask | Task | MultiTask:
        """(name of a task without its family, config) -> one environment.

        Raises:
            ValueError: a wrong option.
        """


class MakeBatch(Protocol):
    """Makes a batch of environments on the host."""

    def __call__(
        self,
        name: str,
        config: EnvConfig,
        num_envs: int,
        /,
        *,
        seed: int,
        evaluation: bool,
        render: bool,
        first: int,
    ) -> Any:
        """(name of a task without its family, config, N) -> N rows, an `Env`; see `registry.make`.

        Raises:
            ValueError: a wrong option, or N rows are not a whole number of worlds.
        """


@dataclass(frozen=True, kw_only=True)
class Family:
    """The declaration of a family: its tasks, how they are made, and what its names mean.

    It has `make_task` or, if the simulator runs on the host, `make_batch`.
    """

    about: str
    """A few words for `purejaxppo list envs`."""
    tasks: Callable[[], list[str]]
    """() -> names of tasks, without the family; may import the simulator."""
    make_task: MakeTask | None = None
    make_batch: MakeBatch | None = None
    requires: str = "jax"
    """The module to import for the simulator."""
    package: str = ""
    """The module's package on PyPI, if its name differs."""
    names: Literal["task", "reference", "id", "module", "program"] = "task"
    """The part of env.name after the family: a listed task; a listed task or a reference
    (`file.py:Name` or `module:Name`); a reference or any other name; a reference or a module; or
    the path of a program."""
    backends: tuple[str, ...] = ()
    """Values of env.backend; the first one is the default."""
    lapack: tuple[str, ...] = ()
    """Back ends that call LAPACK for many environments at once; "" is the default back end."""
    options: Options = field(default_factory=dict)
    """The options of its tasks; they are checked before a task is made."""
    more_options: str = ""
    """Where further options come from, such as "arguments of the task's class", which `make_task`
    or `make_batch` checks; "" without further options."""
    not_options: Mapping[str, str] = field(default_factory=dict)
    """Names that users may mistake for options -> the setting to use instead."""
    randomizes: bool = False
    """True if a simulator on the host supports env.randomize and env.curriculum; in JAX the tasks'
    `parameters` do."""
    report: Callable[[Any, Any, int, str], str] | None = None
    """(task, controller, seed, image file to write) -> text that `purejaxppo evaluate` prints."""

    @property
    def on_host(self) -> bool:
        """True if the simulator runs on the host: in one shard, and not restored on resuming."""
        return self.make_batch is not None

    def has_task(self, name: str) -> bool:
        """Return True if `name` may be a task; custom ones are checked when they are made."""
        match self.names:
            case "task":
                return name in self.tasks()
            case "reference":
                return is_reference(name) or name in self.tasks()
        return True


def with_checked_options(family: Family, name: str, config: EnvConfig) -> EnvConfig:
    """Return the config of a task with the declared options in their types.

    Raises:
        ValueError: an unknown option, or a wrong value.
    """
    for option, instead in family.not_options.items():
        if option in config.options:
            raise ValueError(f"env.options.{option}: {instead}")
    options = of_task(family.options, name)
    ours, others = split(config.options, options) if family.more_options else (config.options, {})
    return replace(config, options={**checked(config.name, ours, options), **others})


@functools.cache
def declared() -> dict[str, list[EntryPoint]]:
    """Return the declarations of families by name: the library's and other packages'."""
    ours = [EntryPoint(name, f"{module}:FAMILY", GROUP) for name, module in ADAPTERS.items()]
    by_name: dict[str, list[EntryPoint]] = {}
    for entry_point in (*ours, *metadata.entry_points(group=GROUP)):
        by_name.setdefault(entry_point.name, []).append(entry_point)
    return dict(sorted(by_name.items()))


def load(name: str) -> Family:
    """Return the declaration of a family; the simulator is not imported.

    Raises:
        ValueError: unknown family, several declarations of it, or one that cannot be loaded.
    """
    entry_points = declared().get(name)
    if entry_points is None:
        hint = did_you_mean(name, declared(), f"Families: {', '.join(declared())}.")
        raise ValueError(f"env.name: unknown family {name!r}. {hint}")
    entry_point, *others = entry_points
    if others:
        owners = [_owner(one) for one in entry_points]
        raise ValueError(
            f"env.name: the family {name!r} is declared by {' and by '.join(owners)}. Uninstall "
            f"{owners[-1]}, or rename its entry point."
        )
    try:
        family = entry_point.load()
    except ModuleNotFoundError as error:
        if name in ADAPTERS:
            raise not_installed(name, error.name or "") from error
        raise _broken(entry_point, f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise _broken(entry_point, f"{type(error).__name__}: {error}") from error
    if not isinstance(family, Family):
        raise _broken(entry_point, f"it is a {type(family).__name__}, not a Family")
    return family


def check_installed(name: str, family: Family) -> None:
    """Raise ValueError if the family's simulator is not installed."""
    if importlib.util.find_spec(family.requires) is None:
        raise not_installed(name, family.package or family.requires)


def not_installed(name: str, package: str) -> ValueError:
    """Return the error of a family that lacks a package."""
    wanted = f"purejaxppo[{name}]" if name in ADAPTERS else package
    return ValueError(f"{package} is not installed. Run: pip install '{wanted}'")


def _owner(entry_point: EntryPoint) -> str:
    """Return the distribution of an entry point, with its version."""
    dist = entry_point.dist
    return "purejaxppo" if dist is None else f"{dist.name} {dist.version}"


def _broken(entry_point: EntryPoint, problem: str) -> ValueError:
    """Return the error of an entry point that cannot be used."""
    owner = _owner(entry_point)
    return ValueError(
        f"env.name: the family {entry_point.name!r} of {owner} cannot be loaded from "
        f"{entry_point.value} ({problem}). Update or uninstall {owner}."
    )
