"""Picklable descriptions of Gymnasium environments, and functions that create them.

This module does not import JAX, because worker processes import it.
"""

import copy
import inspect
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from purejaxppo.config.env_objects import family_of, spec_of
from purejaxppo.config.hints import nearest
from purejaxppo.config.plain import time_limit as time_limit_of
from purejaxppo.config.references import OBJECT, absolute, described, import_named, in_file
from purejaxppo.envs.host.workers.errors import MakeError

Gymnasium = Any
"""A `gymnasium.Env`. The package is imported where it is used."""

Options = dict[str, Any]
"""Arguments of a simulator by name."""


ARGUMENTS_OF_MAKE = frozenset({"id", "max_episode_steps", "disable_env_checker"})
"""Arguments of `gymnasium.make` that this module sets."""
NORMALISING_WRAPPERS = {
    "NormalizeReward": "ppo.normalize_reward = true",
    "NormalizeObservation": "ppo.normalize_obs = true",
}
"""Gymnasium's wrappers with running statistics, and the settings that replace them."""


class WrapperCall(NamedTuple):
    """A wrapper by name, and its arguments after the environment."""

    name: str
    arguments: Options


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
    """A Gymnasium environment by name or as a pickled object.

    Args:
        name: a registered id (`Hopper-v5`), an id with the package to import first
            (`package:Id-v0`), or a class or function (`path/to/file.py:Name`,
            `package.module:Name`). A class in a file may declare `max_episode_steps`.
        wrappers: applied in order.
        options: keyword arguments of the environment.
        max_episode_steps: replaces the time limit; 0 keeps the environment's.
        pixels: height and width of observed images; 0: the environment's observations.
        frame_stack: number of latest images in an observation.
        mask: add the `action_mask` of infos to observations.
        pickled: the environment, an `EnvSpec`, a class or a function, if `name` cannot be loaded.
    """

    name: str
    wrappers: tuple[WrapperCall, ...] = ()
    options: Options = field(default_factory=dict)
    max_episode_steps: int = 0
    pixels: int = 0
    frame_stack: int = 1
    mask: bool = False
    pickled: bytes = b""

    def __hash__(self) -> int:
        """Return the hash of the fields that are not mappings."""
        return hash((self.name, self.max_episode_steps, self.pixels, self.pickled))

    def __call__(self, render_mode: str | None = None) -> Gymnasium:
        """Create the environment with its wrappers."""
        if self.pixels:
            from purejaxppo.envs.host.workers.pixels import Pixels, without_display

            without_display()
            render_mode = "rgb_array"
        # A copy, because the environment may change lists and mappings in its arguments.
        options = copy.deepcopy(self.options)
        env = self._unwrapped(options | ({"render_mode": render_mode} if render_mode else {}))
        if self.max_episode_steps:
            env = _limited(env, self.max_episode_steps)
        for i, wrapper in enumerate(self.wrappers):
            env = _wrapped(wrapper, with_copies(env))
            if i == 0:  # after other wrappers, a limit may count other steps
                self._check_limits(env)
        for wrapper in _wrappers_of(env):
            _check_wrapper(type(wrapper), f"env.name = gymnasium/{self.name}")
        env = with_time_limit(env)
        if self.pixels:
            env = Pixels(env, self.pixels, self.frame_stack)
        if self.mask:
            from purejaxppo.envs.host.workers.masks import Masked

            env = Masked(env, f"gymnasium/{self.name}")
        return env

    def _check_limits(self, env: Gymnasium) -> None:
        """Raise `MakeError` if a `TimeLimit` has a different limit from the config."""
        for limit in _wrapper_limits(env):
            if self.max_episode_steps not in (0, limit):
                raise MakeError(
                    f"env.options.wrappers: TimeLimit has max_episode_steps = {limit}, but "
                    f"env.max_episode_steps = {self.max_episode_steps}. Remove one of them."
                )

    def _unwrapped(self, options: Options) -> Gymnasium:
        """Create the environment without the wrappers of the config."""
        limit = self.max_episode_steps
        place, _, attribute = self.name.rpartition(":")
        if self.pickled:
            target = unpickled(self.pickled, f"gymnasium/{self.name}")
            if hasattr(target, "entry_point"):
                return _registered(target, self.name, options, limit)
            return _created(target, self.name, options)
        if place.endswith(".py"):
            target = in_file(place, attribute, "env.name", callables=True)
            return _created(target, self.name, options)
        if self.name.endswith(".py"):
            raise MakeError(
                f"env.name = gymnasium/{self.name}: the class is missing. Use "
                f"gymnasium/{self.name}:ClassName."
            )
        module = import_named(place, f"env.name: gymnasium/{self.name}") if place else None
        if callable(target := getattr(module, attribute, None)):
            return _created(target, self.name, options)
        return _registered(attribute, self.name, options, limit)


def wrapper_calls(wrappers: str | Iterable[Any]) -> Iterator[WrapperCall]:
    """Yield the wrappers of env.options.wrappers, with absolute paths.

    Args:
        wrappers: names separated by commas, or a list of names and of {name: arguments}. A name is
            a class of gymnasium.wrappers, `module:Name` or `path/to/file.py:Name`.

    Raises:
        ValueError: an entry has another form.
    """
    for entry in wrappers.split(",") if isinstance(wrappers, str) else wrappers:
        pairs = list(entry.items()) if isinstance(entry, Mapping) else [(entry, {})]
        name, arguments = pairs[0] if len(pairs) == 1 else (None, None)
        if not isinstance(name, str) or not isinstance(arguments, Mapping | None):
            raise ValueError(
                f"env.options.wrappers: {entry!r} must be a name, or a mapping of a name to "
                f"arguments, as in {{FrameStackObservation: {{stack_size: 4}}}}."
            )
        if name.strip():
            yield WrapperCall(absolute(name.strip()), dict(arguments or {}))


def pickled(value: Any, name: str) -> bytes:
    """Pickle an environment, an `EnvSpec`, a class or a function for workers.

    Args:
        value: the object. Copies of an environment are made from its `EnvSpec`, if it has one.
        name: env.name, for messages. If it ends with `:Id`, as for a function that makes this id,
            workers register the id first, because this process may have registered it.

    Raises:
        ValueError: the object cannot be pickled.
    """
    import cloudpickle

    library = sys.modules.get("gymnasium")
    registered = library and library.registry.get(name.rpartition(":")[2])
    spec = spec_of(value)
    if spec is not None:
        spec = copy.deepcopy(spec)
        spec.kwargs.pop("render_mode", None)
    try:
        return cloudpickle.dumps((registered, value if spec is None else spec))
    except Exception as error:  # raised by any object in it
        raise ValueError(
            f"env.name = {name}: the environment cannot be copied to workers "
            f"({type(error).__name__}: {one_line(error)}). Pass its class, or a function that "
            f"makes it."
        ) from error


def unpickled(data: bytes, name: str) -> Any:
    """Return the object of `pickled`.

    Raises:
        MakeError: it cannot be restored.
    """
    try:
        registered, value = pickle.loads(data)
    except Exception as error:
        raise MakeError(
            f"env.name = {name}: a worker cannot restore the environment ({described(error)}). "
            f"Pass a class or function of a module or file."
        ) from error
    if registered is not None:
        import gymnasium

        # Workers may be threads. Keep an entry with a class there: the unpickled class is a
        # different object.
        if registered.id not in gymnasium.registry or isinstance(registered.entry_point, str):
            gymnasium.registry[registered.id] = registered
    return value


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
    return min(_wrapper_limits(env), default=0)


def _wrapper_limits(env: Gymnasium) -> list[int]:
    """Return the limits of the `TimeLimit` wrappers, outermost first."""
    from gymnasium.wrappers import TimeLimit

    return [x._max_episode_steps for x in _wrappers_of(env) if isinstance(x, TimeLimit)]


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


def _registered(target: Any, name: str, options: Options, max_episode_steps: int) -> Gymnasium:
    """Create an environment of Gymnasium's registry, without its checker: workers check values.

    Args:
        target: id of the environment, or its `EnvSpec`.
        name: name of the environment, for messages.
        options: keyword arguments.
        max_episode_steps: replaces the time limit; 0 keeps the environment's.
    """
    import gymnasium

    task = target if isinstance(target, str) else target.id
    for option in sorted(ARGUMENTS_OF_MAKE & options.keys()):
        hint = " Use env.max_episode_steps." if option == "max_episode_steps" else " Remove it."
        raise MakeError(f"env.options.{option}: not an option of gymnasium/{name}.{hint}")
    try:
        limit = (gymnasium.spec(task) if target is task else target).max_episode_steps
        if not max_episode_steps and limit is not None:
            max_episode_steps = checked_limit(limit, f"max_episode_steps of {task}")
        return gymnasium.make(
            target, max_episode_steps or None, disable_env_checker=True, **options
        )
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        close = nearest(task, gymnasium.registry)
        hint = (
            f"Did you mean {close!r}?"
            if close
            else "For an id of a package, use package:Id-v0. For a class, use package.module:Class."
        )
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


def _created(target: Any, name: str, options: Options) -> Gymnasium:
    """Create an environment from a class or function, or return a copy of an environment.

    Args:
        target: a class, a function, or the copy.
        name: name of the environment, for messages.
        options: keyword arguments.
    """
    import gymnasium

    name = name.removeprefix(OBJECT)
    if inspect.isclass(target) and not issubclass(target, gymnasium.Env):
        hint = _other_family(target, name)
        raise MakeError(f"env.name: {name} is not a subclass of gymnasium.Env.{hint}")
    takes_mode = inspect.isclass(target) or _takes_render_mode(target)
    render_mode = None if takes_mode else options.pop("render_mode", None)
    if isinstance(target, gymnasium.Env):
        env = target
        if options:
            raise MakeError(
                f"env.options: {name} is an environment, which takes no arguments. Remove "
                f"{', '.join(options)}, or pass its class."
            )
    else:
        try:
            inspect.signature(target).bind(**options)
        except TypeError as error:
            raise MakeError(f"env.options: {name}: {one_line(error)}") from error
        try:
            env = target(**options)
        except TypeError as error:
            if "unexpected keyword argument" in str(error):  # of a function with **kwargs
                raise MakeError(f"env.options: {name}: {described(error)}.") from error
            raise
    if not isinstance(env, gymnasium.Env):
        raise MakeError(
            f"env.name: {name} returns a {type(env).__name__} instead of a gymnasium.Env."
            f"{_other_family(env, name)}"
        )
    for space in ("observation_space", "action_space"):
        if getattr(env, space, None) is None:
            raise MakeError(
                f"env.name: {name} has no {space}. Set self.{space} in __init__, such as "
                f"gymnasium.spaces.Box(-1.0, 1.0, (3,))."
            )
    return _set_render_mode(env, render_mode)


def _takes_render_mode(target: Any) -> bool:
    """Return True if a function has the argument `render_mode`."""
    try:
        inspect.signature(target).bind_partial(render_mode=None)
    except (TypeError, ValueError):
        return False
    return True


def _other_family(value: Any, name: str) -> str:
    """Return a hint if an environment belongs to another family."""
    is_task = all(hasattr(value, part) for part in ("observation", "action", "reset", "step"))
    try:
        family = "jax" if is_task else family_of(value)
    except ValueError as error:  # such as a vector environment
        raise MakeError(str(error)) from None
    return f" Use {family}/{name}." if family else ""


def _set_render_mode(env: Gymnasium, render_mode: str | None) -> Gymnasium:
    """Make an environment that was created without a render mode render as `render_mode`."""
    inner = env.unwrapped
    if env.render_mode is None and render_mode in inner.metadata.get("render_modes", ()):
        inner.render_mode = render_mode
    return env


def _limited(env: Gymnasium, max_episode_steps: int) -> Gymnasium:
    """Replace the time limit of an environment."""
    from gymnasium.wrappers import TimeLimit

    limits = [wrapper for wrapper in _wrappers_of(env) if isinstance(wrapper, TimeLimit)]
    for wrapper in limits:
        wrapper._max_episode_steps = max_episode_steps
    return env if limits else TimeLimit(env, max_episode_steps)


def _wrapper(name: str) -> Any:
    """Return the class or function of a wrapper."""
    import gymnasium

    field = f"env.options.wrappers: {name}"
    module_name, _, class_name = name.rpartition(":")
    if module_name.endswith(".py"):
        where = "env.options.wrappers"
        return in_file(module_name, class_name, where, callables=True)
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


def _wrapped(call: WrapperCall, env: Gymnasium) -> Gymnasium:
    """Apply a wrapper to an environment."""
    wrapper = _wrapper(call.name)
    if inspect.isclass(wrapper):
        _check_wrapper(wrapper, "env.options.wrappers")
    try:
        return wrapper(env, **copy.deepcopy(call.arguments))
    except TypeError as error:
        given = f"the arguments {', '.join(call.arguments)}" if call.arguments else "no arguments"
        raise MakeError(
            f"env.options.wrappers: {call.name} failed with {given}: {one_line(error)}. Its "
            f"arguments are a mapping, as in {{FrameStackObservation: {{stack_size: 4}}}}."
        ) from error


def one_line(error: BaseException) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split()).rstrip(".")
