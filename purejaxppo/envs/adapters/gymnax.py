"""`gymnax/`: classic control, MinAtar, bsuite and more, https://github.com/RobertTLange/gymnax."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.config import extensions, tracing
from purejaxppo.config.plain import MOST_STEPS, plain, time_limit, whole
from purejaxppo.config.references import CodeRef, is_reference, without_family
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask, ParameterValues
from purejaxppo.envs.adapters.late_imports import lazy_imports
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.families import Family
from purejaxppo.envs.host.workers.gym_spaces import convert
from purejaxppo.envs.options import Option, checked
from purejaxppo.envs.vectorize import check_dtypes
from purejaxppo.spaces import Box, example

FRAME_RATES = {"MountainCar-v0": 30.0, "MountainCarContinuous-v0": 30.0}
NEEDS_DOWNLOAD = frozenset({"MNISTBandit-bsuite"})
EXTRA_STEPS = 10_000
"""Steps added to the time limit to find terminations. The number is small, because the limit is the
size of arrays in some environments."""


DRAWING_MODULES = ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "seaborn")
"""Modules that gymnax imports only for drawing. They make its import several times slower."""


def _gymnax() -> Any:
    with lazy_imports(*DRAWING_MODULES):
        import gymnax

    return gymnax


def task_names() -> list[str]:
    """Return the names of the tasks that need no download."""
    return [name for name in _gymnax().registered_envs if name not in NEEDS_DOWNLOAD]


def load_custom(value: str | CodeRef) -> tuple[Any, Any]:
    """Return (environment, parameters) of a reference in env.name.

    Raises:
        ValueError: it cannot be loaded or created, or does not have the gymnax interface.
    """
    custom, where = extensions.make(extensions.GYMNAX, without_family(value)), f"env.name = {value}"
    env, params = (
        custom if isinstance(custom, tuple) else (custom, getattr(custom, "default_params", None))
    )
    extensions.check(extensions.GYMNAX, env, f"{where} is")
    if not hasattr(params, "max_steps_in_episode"):
        raise ValueError(f"{where}: EnvParams has no field max_steps_in_episode. Add it.")
    return env, params


def make(name: str, config: EnvConfig) -> BaseTask:
    """Create the gymnax task `name`; `config.options` set fields of its parameters.

    Raises:
        ValueError: an unknown option; or see `load_custom`.
    """
    env, params = load_custom(config.name) if is_reference(name) else _gymnax().make(name)
    defaults = {key: plain(value) for key, value in vars(params).items()}
    declared = {
        key: Option(defaults[key], "", parse=partial(_parameter, type(defaults[key])))
        for key in sorted(defaults)
    }
    options = checked(f"gymnax/{name}", config.options, declared)
    task_limit = options.get("max_steps_in_episode", defaults["max_steps_in_episode"])
    limit = time_limit(task_limit, "env.options.max_steps_in_episode", unlimited="")
    limit = config.max_episode_steps or limit or MOST_STEPS
    kind = type(defaults["max_steps_in_episode"])  # a float in some tasks
    params = params.replace(**{**options, "max_steps_in_episode": kind(limit)})
    task = GymnaxTask(env, params, limit, limit_ends=is_reference(name))
    if is_reference(name):
        check(task, f"env.name = {config.name}")
    return task


def _parameter(kind: type, name: str, value: Any) -> Any:
    """Return the value of a numeric parameter, a whole number as an int if `kind` is int.

    Raises:
        ValueError: the value is a string.
    """
    if isinstance(value, str):
        raise ValueError(f"{name} = {value!r}: must be a number")
    number = whole(value) if kind is int else None
    return value if number is None else number


def _scalar(value: Any, name: str) -> Any:
    """Return a scalar, or the only element of an array.

    Raises:
        ValueError: the array does not have exactly one element.
    """
    if jnp.size(value) != 1:
        raise ValueError(
            f"env.name: step_env returns {name} of shape {jnp.shape(value)}. Return a scalar."
        )
    return value if jnp.shape(value) == () else jnp.reshape(value, ())


def _base() -> Any:
    """Return the base class of gymnax's environments."""
    return _gymnax().environments.environment.Environment


def _has_new_form(env: Any) -> bool:
    """Return True for the interface of gymnax 1.0, where `step_env` ignores the time limit."""
    kind, base = type(env), _base()
    return (
        isinstance(env, base)
        and kind.is_terminated is not base.is_terminated
        and kind.is_terminal is base.is_terminal
    )


def check(task: "GymnaxTask", where: str) -> None:
    """Trace a reset and a step of a custom environment.

    A step with a larger time limit separates terminations from truncations. If it fails with the
    interface of gymnax 1.0, all episode ends count as terminations.

    Raises:
        ValueError: reset or step fails, an observation does not fit the dtype of its space, or the
            step of an older interface fails with a larger time limit.
    """
    key, action = jax.random.key(0), example(task.action)
    state, _ = tracing.check(task.reset, f"{where}: reset_env", "(key, params)", key)
    first, _ = jax.eval_shape(lambda key: task.env.reset_env(key, task.params), key)
    later, *_ = tracing.check(
        lambda *args: task.env.step_env(*args, task.params),
        f"{where}: step_env",
        "(key, state, action, params)",
        *(key, state, action),
    )
    for obs in (first, later):  # before they are cast
        check_dtypes(obs, task.observation, where)
    plain_task = copy.copy(task)
    plain_task.limit_ends = False
    jax.eval_shape(plain_task.step, key, state, action)
    try:
        jax.eval_shape(task.step, key, state, action)
    except Exception as error:
        if _has_new_form(task.env):
            task.limit_ends = False
            return
        raise ValueError(
            f"{where}: step_env fails when max_steps_in_episode is larger "
            f"({tracing.reason(error)}). purejaxppo increases it to separate terminations from "
            f"truncations, so no array shape may depend on it."
        ) from error


class GymnaxTask(BaseTask):
    """One gymnax environment, without its auto-reset.

    Args:
        env, params: the environment and its parameters.
        max_episode_steps: time limit in the parameters.
        limit_ends: True if `step_env` may also return done at the time limit, as before gymnax 1.0.
    """

    cheap_reset = True

    def __init__(
        self, env: Any, params: Any, max_episode_steps: int, *, limit_ends: bool = False
    ) -> None:
        """Wrap an environment with its parameters."""
        self.env = env
        self.params = params
        self.limit_ends = limit_ends
        self.max_episode_steps = max_episode_steps
        self.observation = convert(env.observation_space(params))
        self.action = convert(env.action_space(params))

    @cached_property
    def parameters(self) -> Mapping[str, float]:
        """The numeric parameters without the time limit."""
        fixed = {k: x for k, x in vars(self.params).items() if not isinstance(x, jax.core.Tracer)}
        return {
            name: value
            for name, value in plain(fixed).items()
            if type(value) in (int, float) and name != "max_steps_in_episode"
        }

    def adjusted(self, values: ParameterValues) -> Self:
        """Return the task with other parameters, integers rounded; see `domain_randomization`."""
        nominal = self.parameters
        task = copy.copy(self)
        task.params = self.params.replace(
            **{
                name: jnp.round(value).astype(jnp.int32) if type(nominal[name]) is int else value
                for name, value in values.items()
            }
        )
        return task

    def _obs(self, obs: Any) -> Any:
        if isinstance(self.observation, Box):
            return jnp.asarray(obs).astype(self.observation.dtype)
        return obs

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Start an episode; return (gymnax state, obs)."""
        obs, state = self.env.reset_env(key, self.params)
        return state, self._obs(obs)

    def _truncated(self, state: Any) -> Any:
        """Return True at the time limit according to the simulator."""
        base = _base().is_truncated
        method = getattr(self.env, "is_truncated", base)
        if getattr(method, "__func__", method) is not base:
            return method(state, self.params)
        return state.time >= self.params.max_steps_in_episode if hasattr(state, "time") else False

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Take a step; the time limit is `params.max_steps_in_episode`.

        With `limit_ends`, the step is computed again with a larger limit. An episode end that
        remains is a termination. XLA computes the common part once.
        """
        before = state
        obs, state, reward, terminated, _ = self.env.step_env(key, before, action, self.params)
        reward, terminated = _scalar(reward, "a reward"), _scalar(terminated, "a done flag")
        truncated = self._truncated(state)
        if self.limit_ends:
            later = self.params.replace(max_steps_in_episode=self.max_episode_steps + EXTRA_STEPS)
            ended, terminated = terminated, self.env.step_env(key, before, action, later)[3]
            terminated = _scalar(terminated, "a done flag")
            truncated |= jnp.logical_and(ended, jnp.logical_not(terminated))
        reward = jnp.asarray(reward, jnp.float32)
        return state, TaskStep(self._obs(obs), reward, jnp.asarray(terminated), truncated)

    @cached_property
    def frame_rate(self) -> float:
        """Steps per second, from the time step of the simulator if it has one."""
        dt = getattr(self.params, "tau", None) or getattr(self.params, "dt", None)
        return 1.0 / float(dt) if dt else FRAME_RATES.get(self.env.name, 10.0)

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames: the scene for classic control, observations as images otherwise."""
        from purejaxppo.video import charts, classic

        name = self.env.name
        if name in classic.DRAWINGS:
            return classic.frames(name, states, self.params, height=height, width=width)
        key = jax.random.key(0)  # only for observation noise
        observe = jax.jit(lambda state: self.env.get_obs(state, params=self.params, key=key))
        observations = [jax.device_get(observe(state)) for state in states]
        return charts.frames(observations, height=height, width=width)


FAMILY = Family(
    about="classic control, MinAtar, bsuite",
    tasks=task_names,
    make_task=make,
    requires="gymnax",
    names="reference",
    more_options="numeric parameters of the task",
)
