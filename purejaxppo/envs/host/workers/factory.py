"""Picklable descriptions of Gymnasium environments, and functions that create them.

This module does not import JAX, because worker processes import it.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from purejaxppo.config.hints import nearest
from purejaxppo.config.plain import time_limit as time_limit_of
from purejaxppo.config.references import absolute, import_named, in_file
from purejaxppo.envs.host.workers.errors import MakeError

Gymnasium = Any
"""A `gymnasium.Env`. The package is imported where it is used."""

Options = dict[str, Any]
"""Arguments of a simulator by name."""


NORMALISING_WRAPPERS = {
    "NormalizeReward": "ppo.normalize_reward = true",
    "NormalizeObservation": "ppo.normalize_obs = true",
}
"""Gymnasium's wrappers with running statistics, and the settings that replace them."""


class Maker(Protocol):
    """Creates one environment. It can be pickled without the module `__main__`."""

    def __call__(self, render_mode: str | None = None) -> Gymnasium:
        """Create a `gymnasium.Env`.

        Raises:
            ValueError: an unknown name or option, or a missing package.
        """


class HashableMaker(Maker, Protocol):
    """A hashable maker with a flag for action masks from infos."""

    @property
    def mask(self) -> bool:
        """True if observations include the `action_mask` of infos."""

    def __hash__(self) -> int:
        """Return equal hashes for equal descriptions."""


@dataclass(frozen=True)
class GymnasiumSpec:
    """A Gymnasium environment by name; see `make_spec`."""

    name: str
    wrappers: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    max_episode_steps: int = 0
    pixels: int = 0
    frame_stack: int = 1
    mask: bool = False

    def __call__(self, render_mode: str | None = None) -> Gymnasium:
        """Create the environment with its wrappers."""
        if self.pixels:
            from purejaxppo.envs.host.workers.pixels import Pixels, without_display

            without_display()
            render_mode = "rgb_array"
        options = dict(self.options) | ({"render_mode": render_mode} if render_mode else {})
        file, _, class_name = self.name.rpartition(":")
        if file.endswith(".py"):
            env = _from_file(file, class_name, options, self.max_episode_steps)
        elif self.name.endswith(".py"):
            raise MakeError(
                f"env.name = gymnasium/{self.name}: the class is missing. Use "
                f"gymnasium/{self.name}:ClassName."
            )
        else:
            env = _registered(self.name, options, self.max_episode_steps)
        for name in self.wrappers:
            env = _wrapped(name, with_copies(env))
        for wrapper in _wrappers_of(env):
            _check_wrapper(type(wrapper), f"env.name = gymnasium/{self.name}")
        env = with_time_limit(env)
        if self.pixels:
            env = Pixels(env, self.pixels, self.frame_stack)
        if self.mask:
            from purejaxppo.envs.host.workers.masks import Masked

            env = Masked(env, f"gymnasium/{self.name}")
        return env


def make_spec(
    name: str,
    wrappers: tuple[str, ...] = (),
    options: Mapping[str, Any] | None = None,
    max_episode_steps: int = 0,
    *,
    pixels: int = 0,
    frame_stack: int = 1,
    mask: bool = False,
) -> GymnasiumSpec:
    """Describe a Gymnasium environment without importing or creating it.

    Args:
        name: a registered id (`Hopper-v5`), an id with the package to import first
            (`package:Id-v0`), or a class in a file (`path/to/file.py:ClassName`).
        wrappers: applied in order, each with the environment as its only argument: a class of
            gymnasium.wrappers, `module:ClassName` or `path/to/file.py:ClassName`.
        options: keyword arguments of the environment.
        max_episode_steps: replaces the time limit; 0 keeps the environment's. A class in a file may
            declare a limit in its attribute `max_episode_steps`.
        pixels: height and width of observed images; 0: the environment's observations.
        frame_stack: number of latest images in an observation.
        mask: add the `action_mask` of infos to observations.
    """
    pairs = tuple(sorted((options or {}).items()))
    paths = tuple(map(absolute, wrappers))
    return GymnasiumSpec(absolute(name), paths, pairs, max_episode_steps, pixels, frame_stack, mask)


def time_limit(env: Gymnasium) -> int:
    """Return the steps after which an environment truncates an episode; 0 without a limit.

    The limit is that of its `TimeLimit`, or else its attribute `max_episode_steps`.
    """
    return _wrapper_limit(env) or _declared_limit(env)


def with_time_limit(env: Gymnasium) -> Gymnasium:
    """Add a `TimeLimit` if the environment only declares a limit in an attribute."""
    from gymnasium.wrappers import TimeLimit

    limit = _declared_limit(env)
    return TimeLimit(env, limit) if limit and not _wrapper_limit(env) else env


def with_copies(env: Gymnasium) -> Gymnasium:
    """Make an environment's `reset` and `step` return copies of observations, and return it.

    Wrappers such as frame stacks store observations, and some environments write all observations
    to one array. The environment gets a derived class, because another wrapper would hide its
    attributes.
    """
    env_class = type(env)

    def reset(self: Any, **options: Any) -> Any:
        return _copied(env_class.reset(self, **options))

    def step(self: Any, action: Any) -> Any:
        return _copied(env_class.step(self, action))

    methods = {"__module__": env_class.__module__, "reset": reset, "step": step}
    metaclass: Any = type(env_class)
    env.__class__ = metaclass(env_class.__name__, (env_class,), methods)
    return env


def _copied(result: Any) -> Any:
    """Return the result of `reset` or `step` with a copy of the observation."""
    return (copy.deepcopy(result[0]), *result[1:]) if isinstance(result, tuple) else result


def _wrapper_limit(env: Gymnasium) -> int:
    """Return the smallest limit of the `TimeLimit` wrappers; 0 without any."""
    from gymnasium.wrappers import TimeLimit

    limits = [x._max_episode_steps for x in _wrappers_of(env) if isinstance(x, TimeLimit)]
    return min(limits, default=0)


def _wrappers_of(env: Gymnasium) -> Iterator[Any]:
    """Yield the wrappers around an environment, outermost first."""
    from gymnasium import Wrapper

    while isinstance(env, Wrapper):
        yield env
        env = env.env


def _declared_limit(env: Gymnasium) -> int:
    """Return `max_episode_steps` of the innermost environment; 0 without it.

    Raises:
        MakeError: the value is not a time limit.
    """
    inner = env.unwrapped
    name = f"{type(inner).__name__}.max_episode_steps"
    return checked_limit(getattr(inner, "max_episode_steps", None), name)


def checked_limit(value: Any, name: str) -> int:
    """Return a time limit of an environment as an int; 0 for None.

    Raises:
        MakeError: the value is not a whole number of at least 1.
    """
    try:
        return time_limit_of(value, name)
    except ValueError as error:
        raise MakeError(str(error)) from None


def _registered(name: str, options: Options, max_episode_steps: int) -> Gymnasium:
    """Create an environment of Gymnasium's registry, without its checker: workers check values."""
    import gymnasium

    package, _, task = name.rpartition(":")
    if package:
        import_named(package, f"env.name: gymnasium/{name}")
    try:
        if not max_episode_steps and gymnasium.spec(task).max_episode_steps is not None:
            limit = gymnasium.spec(task).max_episode_steps
            max_episode_steps = checked_limit(limit, f"max_episode_steps of {task}")
        return gymnasium.make(task, max_episode_steps or None, disable_env_checker=True, **options)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        close = nearest(task, gymnasium.registry)
        hint = f"Did you mean {close!r}?" if close else "For an id of a package, use package:Id-v0."
        if isinstance(error, gymnasium.error.DeprecatedEnv):
            hint = one_line(error)
        raise MakeError(f"env.name: unknown task 'gymnasium/{name}'. {hint}") from error
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise MakeError(f"gymnasium/{name} needs a missing package: {one_line(error)}") from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        reason = one_line(error).partition(" was raised from")[0]
        raise MakeError(f"env.options: gymnasium/{name}: {reason}") from error
    except gymnasium.error.Error as error:
        if task in gymnasium.registry:
            raise
        raise MakeError(f"env.name: gymnasium/{name}: {one_line(error)}") from error


def _from_file(file: str, name: str, options: Options, max_episode_steps: int) -> Gymnasium:
    """Create an instance of a class in a file, with a `TimeLimit` if a limit is set."""
    import gymnasium

    env_class = in_file(file, name, "env.name", inspect.isclass, "class")
    if not issubclass(env_class, gymnasium.Env):
        raise MakeError(f"env.name: {file}:{name} is not a subclass of gymnasium.Env.")
    try:
        inspect.signature(env_class).bind(**options)
    except TypeError as error:
        raise MakeError(f"env.options: {file}:{name}: {one_line(error)}") from error
    env = env_class(**options)
    return gymnasium.wrappers.TimeLimit(env, max_episode_steps) if max_episode_steps else env


def _wrapper(name: str) -> Any:
    """Return the class of a wrapper."""
    import gymnasium

    field = f"env.options.wrappers: {name}"
    module_name, _, class_name = name.rpartition(":")
    if module_name.endswith(".py"):
        return in_file(module_name, class_name, "env.options.wrappers", inspect.isclass, "class")
    module = import_named(module_name, field) if module_name else gymnasium.wrappers
    try:
        return getattr(module, class_name)
    except AttributeError:
        close = nearest(class_name, dir(module))
        hint = f". Did you mean {close!r}?" if close else ""
        raise MakeError(
            f"{field}: {module.__name__} does not define {class_name!r}{hint}"
        ) from None


def _check_wrapper(wrapper_class: type, field: str) -> None:
    """Check that a wrapper does not normalise with running statistics.

    The statistics would not be saved with the agent, and would change in evaluations.

    Raises:
        MakeError: the wrapper is Gymnasium's `NormalizeReward` or `NormalizeObservation`, also for
            vector environments, or a subclass.
    """
    for base in wrapper_class.__mro__:
        if base.__name__ in NORMALISING_WRAPPERS and base.__module__.startswith("gymnasium."):
            derived = f" (a {base.__name__})" if wrapper_class is not base else ""
            raise MakeError(
                f"{field}: the wrapper {wrapper_class.__name__}{derived} normalises with running "
                f"statistics that are not saved with the agent. Remove it and set "
                f"{NORMALISING_WRAPPERS[base.__name__]}."
            )


def _wrapped(name: str, env: Gymnasium) -> Gymnasium:
    """Apply the wrapper `name` to an environment."""
    wrapper = _wrapper(name)
    if inspect.isclass(wrapper):
        _check_wrapper(wrapper, "env.options.wrappers")
    try:
        return wrapper(env)
    except TypeError as error:
        raise MakeError(
            f"env.options.wrappers: {name} failed with the environment as its only argument: "
            f"{one_line(error)}. Give its other arguments defaults."
        ) from error


def one_line(error: BaseException) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split()).rstrip(".")
