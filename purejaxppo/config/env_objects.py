"""Environments of other libraries, and tasks in JAX, that are passed from Python.

Classes of simulators are recognised by their names, so this module does not import simulators.
"""

import contextlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from purejaxppo.config.plain import plain
from purejaxppo.config.references import OBJECT, CodeRef, described, name_of

FAMILIES = {
    "brax.envs.base.Env": "brax",
    "gymnasium.core.Env": "gymnasium",
    "gymnasium.envs.registration.EnvSpec": "gymnasium",
    "mujoco_playground._src.mjx_env.MjxEnv": "playground",
    "pettingzoo.utils.env.ParallelEnv": "pettingzoo",
}
"""Classes of simulators, and the families of their instances and subclasses."""
SIMULATORS = {"brax", "gymnasium", "mujoco_playground", "pettingzoo"}
"""Their packages."""

ONE_ENV = "Pass one environment. env.num_envs sets the number of copies."
NOT_SUPPORTED = {
    "gymnasium.vector.vector_env.VectorEnv": ("a vector environment", ONE_ENV),
    "stable_baselines3.common.vec_env.base_vec_env.VecEnv": ("a vector environment", ONE_ENV),
    "gym.core.Env": (
        "an environment of the package gym",
        "Use its successor gymnasium, or convert the environment with the package shimmy.",
    ),
    "pettingzoo.utils.env.AECEnv": (
        "a turn-based environment",
        "Pass a parallel one, such as the result of parallel_env().",
    ),
}
"""Other classes: what they are, and what to do."""

POOL_OPTIONS = (
    *("wrappers", "workers", "num_workers", "timeout", "pixels", "frame_stack", "mask"),
    "global_state",
)
"""Options of the families `gymnasium` and `pettingzoo` that are not arguments of environments."""


def settings(value: Any, options: Mapping[str, Any], max_episode_steps: int) -> dict[str, Any]:
    """Return the fields of the section `env` for an environment.

    A Gymnasium environment with a registered id becomes the id with options. Others become a
    reference to the object. So do functions, because they may change the environment.

    Args:
        value: an environment, its class, an `EnvSpec`, gymnax's (env, params), or a function that
            makes one.
        options: env.options.
        max_episode_steps: env.max_episode_steps.

    Raises:
        ValueError: environments of this kind are not supported, or the function fails.
    """
    if isinstance(value, list):
        raise ValueError(f"env.name is a list. {ONE_ENV}")
    made, family = value, family_of(value)
    if family is None and callable(value) and not isinstance(value, type):
        made = _result(value, options)
        family = family_of(made)
    if family is None:
        like_gymnax = isinstance(made, tuple) or hasattr(made, "step_env")
        return {"name": CodeRef(("gymnax/" if like_gymnax else "jax/") + name_of(value), value)}
    text = name_of(value)
    is_instance = not isinstance(made, type)
    if made is not value and is_instance and hasattr(made, "close"):
        with contextlib.suppress(Exception):
            made.close()
    if is_instance and text.startswith(OBJECT):
        spec = spec_of(made)
        has_id = made is value and family == "gymnasium" and spec
        by_id = _by_id(spec, max_episode_steps) if has_id else {}
        if by_id:
            return by_id | {"options": _joined(by_id["options"], options)}
        known = made if hasattr(made, "entry_point") else getattr(made, "spec", spec)
        text = f"{OBJECT}{family}:{known.id}" if known else name_of(made.unwrapped)
    return {"name": CodeRef(f"{family}/{text}", value)}


def family_of(value: Any) -> str | None:
    """Return the family of a simulator's environment or class; None for other values.

    Raises:
        ValueError: environments of this kind are not supported.
    """
    kind = value if isinstance(value, type) else type(value)
    names = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    for name in names:
        if name in NOT_SUPPORTED:
            what, remedy = NOT_SUPPORTED[name]
            raise ValueError(f"env.name = {name_of(kind)}: this is {what}. {remedy}")
    return next((FAMILIES[name] for name in names if name in FAMILIES), None)


def spec_of(value: Any) -> Any:
    """Return the `EnvSpec` from which copies of a Gymnasium environment can be made, or None.

    Returns None for an environment without an id, and for one with a wrapper that does not record
    its arguments or cannot be imported by other processes.
    """
    spec = value if hasattr(value, "entry_point") else getattr(value, "spec", None)
    recorded = spec is not None and all(
        x.kwargs is not None and _is_importable(x.entry_point) for x in spec.additional_wrappers
    )
    return spec if recorded else None


def _is_importable(entry_point: str) -> bool:
    """Return False for a class of the running script or of a function."""
    module, _, name = entry_point.partition(":")
    if module not in sys.modules:
        return True
    kind = getattr(sys.modules[module], name, None)
    return kind is not None and not name_of(kind).startswith(OBJECT)


def _result(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Return the result of a function that may make an environment of a simulator.

    Other functions are returned. They run later, after the start of JAX.
    """
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    if not SIMULATORS & {*sys.modules, *names}:
        return function
    arguments = {name: x for name, x in options.items() if name not in POOL_OPTIONS}
    try:
        inspect.signature(function).bind(**arguments)
    except (TypeError, ValueError):
        return function
    try:
        return function(**arguments)
    except Exception as error:
        raise ValueError(f"env.name = {name_of(function)}: {described(error)}.") from error


def _by_id(spec: Any, max_episode_steps: int) -> dict[str, Any]:
    """Return the fields of the section `env` for an `EnvSpec`; {} if they cannot describe it."""
    known = sys.modules["gymnasium"].registry.get(spec.id)
    if known is None or known.entry_point != spec.entry_point:
        return {}
    options = {
        name: value
        for name, value in spec.kwargs.items()
        if name != "render_mode"
        and not (name in known.kwargs and _equal(value, known.kwargs[name]))
    }
    wrappers_of_spec, wrappers_of_id = (
        [[wrapper.entry_point, wrapper.kwargs] for wrapper in x.additional_wrappers]
        for x in (spec, known)
    )
    num_registered = len(wrappers_of_id)
    if not _equal(wrappers_of_spec[:num_registered], wrappers_of_id):
        return {}
    wrappers = [_wrapper(wrapper) for wrapper in spec.additional_wrappers[num_registered:]]
    limit = spec.max_episode_steps
    same_limit = limit == known.max_episode_steps
    is_clear = not set(options) & set(POOL_OPTIONS) and None not in wrappers
    if not (is_clear and _is_plain(options) and _is_plain(wrappers) and (same_limit or limit)):
        return {}
    return {
        "name": f"gymnasium/{spec.id}",
        "options": options | ({"wrappers": wrappers} if wrappers else {}),
        "max_episode_steps": max_episode_steps or (0 if same_limit else limit),
    }


def _wrapper(spec: Any) -> Any:
    """Return a wrapper as in env.options.wrappers; None if it cannot be loaded from text."""
    module, _, name = spec.entry_point.partition(":")
    kind = getattr(sys.modules.get(module), name, None)
    known = getattr(sys.modules["gymnasium"].wrappers, name, None)
    text = name if known is kind else name_of(kind)
    if kind is None or text.startswith(OBJECT):
        return None
    return {text: spec.kwargs} if spec.kwargs else text


def _joined(own: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an environment and those of the config, which take precedence.

    Raises:
        ValueError: both have wrappers.
    """
    field = "wrappers"
    if field in own and options.get(field, own[field]) != own[field]:
        raise ValueError(
            f"env.options.{field}: the environment already has wrappers. Wrap the environment in "
            f"Python, or pass it without wrappers."
        )
    return {**own, **options}


def _equal(first: Any, second: Any) -> bool:
    return type(first) is type(second) and bool(plain(first) == plain(second))


def _is_plain(value: Any) -> bool:
    """Return True if YAML restores a value: no tuples, arrays or objects."""
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
