"""Shared code of the Brax and Playground adapters, which use MuJoCo MJX."""

import copy
import os
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.domain_randomization import ModelOverride
from purejaxppo.spaces import Box

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


class Robot(BaseTask):
    """One Brax or Playground environment as a task.

    It does not use these libraries' wrappers for batches, resets and time limits.
    """

    cheap_reset = False

    def __init__(self, env: Any) -> None:
        """Wrap a raw environment."""
        self._use(env)
        self.action = Box((int(env.action_size),), -1.0, 1.0)
        # The simulator's own sizes would trace or run `reset` again.
        self.start = jax.eval_shape(self._reset, jax.random.PRNGKey(0))
        self.metrics = {
            name: "mean" if name.endswith("per_step") else "sum"  # as Brax's evaluator does
            for name, x in self.start.metrics.items()
            if x.shape == ()
        }

    def _use(self, env: Any) -> None:
        """Set the environment; jit traces its functions once for all programs of a run."""
        self.env = env
        self._reset = jax.jit(env.reset, inline=True)
        self._step = jax.jit(env.step, inline=True)

    def with_model(self, attribute: str, model: Any) -> Any:
        """Return a copy whose environment has another model in `attribute`."""
        task = copy.copy(self)
        task._use(ModelOverride(self.env, attribute, model))
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
