"""Families of environments: their declarations, and how to load them by name.

A family is a simulator or a collection of tasks; its tasks have names `family/task`. Each adapter
declares `FAMILY = Family(...)` and is listed in `ADAPTERS`. Other packages add a family by an entry
point of the group `purejaxppo.envs`:

    [project.entry-points."purejaxppo.envs"]
    maze = "my_package.maze:FAMILY"

Modules with a declaration import the simulator inside functions only. All families can then be
listed without it.
"""

import functools
import importlib.util
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.metadata import EntryPoint
from typing import Any, Literal

from purejaxppo.config.hints import did_you_mean
from purejaxppo.config.installation import install, install_extra
from purejaxppo.config.references import is_reference
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import MultiTask, Task
from purejaxppo.envs.options import Options, checked, of_task, split

GROUP = "purejaxppo.envs"
"""Entry point group of families."""
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
"""Built-in families, and the modules of their declarations."""


MakeTask = Callable[[str, EnvConfig], BaseTask | Task | MultiTask]
"""(name without the family, config) -> one environment in JAX. Raises ValueError for an invalid
option."""
MakeBatch = Callable[..., Any]
"""(name without the family, config, num_envs, *, seed, evaluation, render, first) -> an `Env` of
`num_envs` rows in host simulators; see `registry.make`. Raises ValueError for an invalid option, or
if `num_envs` is not a multiple of the agents."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """The declaration of a family of environments.

    Set `make_task` for a simulator in JAX, `make_batch` for a host simulator.
    """

    about: str
    """Short description for `purejaxppo list envs`."""
    tasks: Callable[[], list[str]]
    """() -> names of the tasks without the family. It may import the simulator."""
    make_task: MakeTask | None = None
    make_batch: MakeBatch | None = None
    requires: str = "jax"
    """Module of the simulator."""
    package: str = ""
    """Package of that module on PyPI, if the name differs."""
    names: Literal["task", "reference", "id", "module", "program"] = "task"
    """Form of env.name after the family. "task": a listed task. "reference": a listed task or a
    reference (`file.py:Name`, `module:Name`). "id": a reference or any other name. "module": a
    reference or a module. "program": the path of a program."""
    backends: tuple[str, ...] = ()
    """Values of env.backend; the first is the default."""
    lapack: tuple[str, ...] = ()
    """Back ends that call LAPACK in batches; "" is the default back end."""
    options: Options = field(default_factory=dict)
    """Options of the tasks, checked before a task is created."""
    more_options: str = ""
    """Description of further options, such as "arguments of the task's class"; "" if none are
    allowed. `make_task` or `make_batch` checks them."""
    not_options: Mapping[str, str] = field(default_factory=dict)
    """Names that are not options -> a sentence with the setting to use instead."""
    randomizes: bool = False
    """True if a host simulator supports env.randomize and env.curriculum. In JAX, the `parameters`
    of the task define what can vary."""
    free_options: Collection[str] = ()
    """Options that do not affect results, and may change on resume; also `workers_option`."""
    workers_option: str = ""
    """Name of the option with the number of workers or threads that step the environments; "" if
    there is none."""
    report: Callable[[Any, Any, int, str], str] | None = None
    """(task, controller, seed, path of an image to write) -> text printed by `evaluate`."""

    @property
    def on_host(self) -> bool:
        """True for a host simulator: one shard, and its state is not restored on resume."""
        return self.make_batch is not None

    def has_task(self, name: str) -> bool:
        """Return True if `name` can be a task. Custom tasks are checked when they are created."""
        match self.names:
            case "task":
                return name in self.tasks()
            case "reference":
                return is_reference(name) or name in self.tasks()
        return True


def with_checked_options(family: Family, name: str, config: EnvConfig) -> EnvConfig:
    """Return the config with the declared options checked and cast to their types.

    Raises:
        ValueError: an unknown option or an invalid value.
    """
    for option, instead in family.not_options.items():
        if option in config.options:
            raise ValueError(f"env.options.{option}: {instead}")
    options = of_task(family.options, name)
    known, others = split(config.options, options) if family.more_options else (config.options, {})
    return replace(config, options={**checked(config.name, known, options), **others})


@functools.cache
def declared() -> dict[str, list[EntryPoint]]:
    """Return the entry points of all families by name, built-in and from other packages."""
    builtin = [EntryPoint(name, f"{module}:FAMILY", GROUP) for name, module in ADAPTERS.items()]
    by_name: dict[str, list[EntryPoint]] = {}
    for entry_point in (*builtin, *metadata.entry_points(group=GROUP)):
        by_name.setdefault(entry_point.name, []).append(entry_point)
    return dict(sorted(by_name.items()))


def load(name: str) -> Family:
    """Return the declaration of a family without importing the simulator.

    Raises:
        ValueError: the family is unknown, is declared more than once, or cannot be loaded.
    """
    entry_points = declared().get(name)
    if entry_points is None:
        hint = did_you_mean(name, declared(), f"Families: {', '.join(declared())}.")
        raise ValueError(f"env.name: unknown family {name!r}. {hint}")
    entry_point, *others = entry_points
    if others:
        owners = [_owner(point) for point in entry_points]
        raise ValueError(
            f"env.name: the family {name!r} is declared by {' and by '.join(owners)}. Uninstall "
            f"{owners[-1]}, or rename its entry point."
        )
    try:
        family = entry_point.load()
    except ModuleNotFoundError as error:
        if name in ADAPTERS:
            raise not_installed(name, error.name or "") from error
        raise _load_error(entry_point, f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise _load_error(entry_point, f"{type(error).__name__}: {error}") from error
    if not isinstance(family, Family):
        raise _load_error(entry_point, f"it is a {type(family).__name__}, not a Family")
    return family


def check_installed(name: str, family: Family) -> None:
    """Raise ValueError if the family's simulator is not installed."""
    if importlib.util.find_spec(family.requires) is None:
        raise not_installed(name, family.package or family.requires)


def not_installed(name: str, package: str) -> ValueError:
    """Return the error for a missing package."""
    command = install_extra(name) if name in ADAPTERS else install(package)
    return ValueError(f"{package} is not installed. Run: {command}")


def _owner(entry_point: EntryPoint) -> str:
    """Return the distribution and version of an entry point."""
    dist = entry_point.dist
    return "purejaxppo" if dist is None else f"{dist.name} {dist.version}"


def _load_error(entry_point: EntryPoint, problem: str) -> ValueError:
    """Return the error for an entry point that cannot be loaded."""
    owner = _owner(entry_point)
    return ValueError(
        f"env.name: the family {entry_point.name!r} of the package {owner} cannot be loaded from "
        f"{entry_point.value} ({problem}). Fix, update or uninstall {owner}."
    )
