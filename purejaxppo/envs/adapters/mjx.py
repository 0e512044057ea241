"""Shared code of the Brax and Playground adapters, which use MuJoCo MJX."""

import copy
import operator
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.config import extensions, tracing
from purejaxppo.config.references import is_reference, load
from purejaxppo.envs.adapted import BaseTask, ParameterValues
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.domain_randomization import ModelOverride, scaled
from purejaxppo.envs.options import Option
from purejaxppo.spaces import Box, Dict, Space

FIELDS: dict[str, tuple[str, ...]] = {
    "mass": ("body_mass", "body_inertia", "body_subtreemass"),
    "gear": ("actuator_gear",),
    "damping": ("dof_damping",),
    "armature": ("dof_armature",),
    "stiffness": ("jnt_stiffness",),
    "friction": ("geom_friction", "pair_friction"),
    "gravity": ("opt.gravity",),
}
"""Model arrays of each variable parameter. `mass` scales the mass and inertia of every body, as for
denser bodies of the same shape."""

ARRAY = "array "
"""Prefix of a sampled array whose path is also the name of a factor, such as Brax's `gravity`."""
RANDOMIZATION = "domain_randomization"
TRAINING_WRAPPERS = (
    *("AutoResetWrapper", "BraxAutoResetWrapper", "EpisodeWrapper", "EvalWrapper", "VmapWrapper"),
    *("BraxDomainRandomizationVmapWrapper", "DomainRandomizationVmapWrapper"),
)
"""Wrappers of Brax and Playground for batches, resets, time limits and randomised models."""

Draw = Callable[[jax.Array], dict[str, jax.Array]]
"""Key -> sampled arrays of a model, by dotted path."""


def _randomization(name: str, value: Any) -> Any:
    """Return a value of the option `domain_randomization`.

    Raises:
        ValueError: the value is neither a bool nor a reference.
    """
    if not isinstance(value, bool) and not is_reference(str(value)):
        raise ValueError(
            f"{name} = {value!r}: must be true, false, or a custom function "
            f"{extensions.RANDOMIZATION.signature} as file.py:name"
        )
    return value


def randomization_option(builtin: str) -> Option:
    """Return the option `domain_randomization`; `builtin` describes the value `true`."""
    text = (
        f"{builtin} file.py:name: with a custom function (model, keys [N, 2]) -> (models, axes), "
    )
    text += "as for Brax's `randomization_fn`."
    return Option(False, text, parse=_randomization, refers="code")


def import_mujoco() -> None:
    """Import MuJoCo.

    Raises:
        ValueError: the environment variable MUJOCO_GL names an OpenGL library that fails to load.
    """
    try:
        import mujoco  # noqa: F401
    except (AttributeError, ImportError, RuntimeError) as error:  # of PyOpenGL
        backend = os.environ.get("MUJOCO_GL")
        if not backend:
            raise
        raise ValueError(
            f"MUJOCO_GL = {backend}: MuJoCo cannot be imported with this value ({error}). Unset "
            f"the variable. Training does not need OpenGL; videos try EGL and OSMesa."
        ) from error


class _LocalDevices:
    """The module `jax`, but with the devices of this process only."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)

    def devices(self, backend: str | None = None) -> list[jax.Device]:
        """Return the local devices instead of all devices."""
        return jax.local_devices(backend=backend)


def use_local_devices() -> None:
    """Make MJX use the devices of this process; by default it uses those of the first process."""
    if jax.process_count() > 1:
        from mujoco.mjx._src import io

        io.jax = _LocalDevices()


def check_unwrapped(env: Any, where: str) -> None:
    """Raise ValueError if an environment has wrappers for batches, resets or time limits."""
    inner: Any = env
    while inner is not None:
        name = type(inner).__name__
        if name in TRAINING_WRAPPERS:
            raise ValueError(
                f"{where} has the wrapper {name}. Pass the environment without it, such as "
                f"env.unwrapped: purejaxppo adds batches, resets and the time limit "
                f"(env.max_episode_steps)."
            )
        inner = vars(inner).get("env") if hasattr(inner, "__dict__") else None


def sampler(randomize: Callable[..., Any], model: Any) -> Draw:
    """Return a function that samples the arrays of a model that `randomize` marks.

    Args:
        randomize: (model, keys [N, 2]) -> (models, axes), as for Brax's `randomization_fn`: arrays
            with axis 0 in `axes` have a leading axis of N samples.
        model: the nominal model.
    """

    def draw(key: jax.Array) -> dict[str, jax.Array]:
        models, axes = randomize(model, jax.random.key_data(key)[None])
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(axes)[0]]
        fields = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
        return {_sample_name(x): operator.attrgetter(x)(models)[0] for x in fields}

    return draw


def _sample_name(path: str) -> str:
    """Return the name of a sampled array, with a prefix if a factor has the same name."""
    return f"{ARRAY}{path}" if path in FIELDS else path


def custom_sampler(value: Any, model: Any) -> Draw:
    """Return the sampler of a custom function in `env.options.domain_randomization`.

    Raises:
        ValueError: it cannot be loaded or traced, or does not return models and axes.
    """
    field, signature = f"env.options.{RANDOMIZATION}", extensions.RANDOMIZATION.signature
    where, randomize = f"{field} = {value}", load(value, field)
    keys = jax.ShapeDtypeStruct((1, 2), jnp.uint32)
    result = tracing.check(randomize, where, signature, model, keys)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ValueError(f"{where} returns a {type(result).__name__} instead of (models, axes)")
    draw = sampler(randomize, model)
    try:
        samples = jax.eval_shape(draw, jax.random.key(0))
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError(
            f"{where}: axes must be a model with 0 for each array that has a leading axis of "
            f"samples, and None for all others ({error})"
        ) from error
    for name, array in samples.items():
        path = name.removeprefix(ARRAY)
        nominal = jnp.shape(operator.attrgetter(path)(model))
        if array.shape != nominal:
            raise ValueError(
                f"{where} returns {path} of shape {[1, *array.shape]} for one key instead of "
                f"{[1, *nominal]}"
            )
    return draw


def space_of(obs: Any) -> Space:
    """Return the space of an observation, given its shapes: an array or a mapping of arrays."""
    if isinstance(obs, Mapping):
        return Dict.of({name: space_of(part) for name, part in obs.items()})
    return Box(tuple(obs.shape), dtype=str(obs.dtype))


class Robot(BaseTask):
    """One Brax or Playground environment as a task.

    It does not use these libraries' wrappers for batches, resets and time limits.
    """

    cheap_reset = False
    model_attribute: str
    """Attribute of the environment that holds the physical model."""
    fields: Mapping[str, tuple[str, ...]] = FIELDS
    """Model arrays of each variable parameter."""

    def __init__(self, env: Any) -> None:
        """Wrap a raw environment."""
        self._use(env)
        self.action = Box((int(env.action_size),), -1.0, 1.0)
        # The simulator's own sizes would trace or run `reset` again.
        start = jax.eval_shape(self._reset, jax.random.PRNGKey(0))
        self.metrics = {
            name: "mean" if name.endswith("per_step") else "sum"  # as Brax's evaluator does
            for name, x in start.metrics.items()
            if x.shape == ()
        }
        self.observation = space_of(start.obs)

    def _use(self, env: Any) -> None:
        """Set the environment; jit traces its functions once for all programs of a run."""
        self.env = env
        self._reset = jax.jit(env.reset, inline=True)
        self._step = jax.jit(env.step, inline=True)

    @property
    def model(self) -> Any:
        """The physical model; None without physics."""
        return vars(self.env.unwrapped).get(self.model_attribute)

    @cached_property
    def parameters(self) -> Mapping[str, float]:
        """The factors that `adjusted` accepts; none without a physical model."""
        return {} if self.model is None else dict.fromkeys(self.fields, 1.0)

    def adjusted(self, values: ParameterValues) -> Any:
        """Return the task with a changed physical model; see `domain_randomization`.

        Args:
            values: factors by the names of `parameters`, and arrays by the paths in the model.
        """
        factors = {name: x for name, x in values.items() if name in self.fields}
        arrays = {k.removeprefix(ARRAY): x for k, x in values.items() if k not in self.fields}
        model = self.model.tree_replace(arrays) if arrays else self.model
        task = copy.copy(self)
        changed = scaled(model, self.fields, factors)
        task._use(ModelOverride(self.env, self.model_attribute, changed))
        return task

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Start an episode; return (simulator state, obs)."""
        state = self._reset(jax.random.key_data(key))
        return state, state.obs

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Take a control step; `done` is a termination, never the time limit."""
        del key
        state = self._step(state, action)
        over = state.done > 0.5, jnp.zeros((), bool)
        return state, TaskStep(state.obs, state.reward, *over, state.metrics)

    @cached_property
    def frame_rate(self) -> float:
        """Control steps per second."""
        return 1.0 / float(self.env.dt)


class PerEnvArrays:
    """A simulator on MJX warp with states that only hold per-environment arrays.

    Warp stores the contacts of all environments in shared arrays, which cannot be reset for one
    environment. Every step recomputes them. They are therefore removed from states between steps,
    and each step starts with those of an initial state.

    Args:
        env: an environment of MuJoCo Playground.
    """

    def __init__(self, env: Any) -> None:
        """Reset once to get the shared arrays."""
        from mujoco.mjx.warp import types

        self.env, self.impl = env, types.DataWarp
        example = jax.jit(env.reset)(jax.random.PRNGKey(0)).data._impl
        names = [field.name for field in types.DataWarp.fields()]
        self.shared = {x: getattr(example, x) for x in names if x in types.DATA_NON_VMAP}
        self.names = [name for name in names if name not in self.shared]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, key: Key) -> EnvState:
        """Start an episode; return a state without the shared arrays."""
        return self._without_shared(self.env.reset(key))

    def step(self, state: EnvState, action: EnvAction) -> EnvState:
        """Take a step from and to a state without the shared arrays."""
        return self._without_shared(self.env.step(self._with_shared(state), action))

    def _without_shared(self, state: Any) -> Any:
        arrays = {name: getattr(state.data._impl, name) for name in self.names}
        return state.replace(data=state.data.replace(_impl=arrays))

    def _with_shared(self, state: Any) -> Any:
        shared = {name: _constant(x) for name, x in self.shared.items()}
        impl = self.impl(**state.data._impl, **shared)
        return state.replace(data=state.data.replace(_impl=impl))


def _constant(x: Any) -> Any:
    """Return an array as a constant of a program; zeros need no storage."""
    if not isinstance(x, jax.Array):
        return x
    return jnp.asarray(x) if np.any(np.asarray(x)) else jnp.zeros(x.shape, x.dtype)
