"""MuJoCo MJX, for the adapters whose simulators run on it: parameters, processes, warp's states."""

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
"""Paths of a model's numbers that can be multiplied, by parameter name. `mass` multiplies the mass
and the inertia of every body, as for denser bodies of the same shape."""


def import_mujoco() -> None:
    """Import MuJoCo.

    Raises:
        ValueError: the environment variable MUJOCO_GL names an OpenGL that does not load.
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
    """The module `jax` with the devices of this process only."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)

    def devices(self, backend: str | None = None) -> list[jax.Device]:
        """The local devices, in place of `jax.devices`."""
        return jax.local_devices(backend=backend)


def use_local_devices() -> None:
    """Make MJX use this process's devices, not the first of all, which may be another's."""
    if jax.process_count() > 1:
        from mujoco.mjx._src import io

        io.jax = _LocalDevices()


class Robot(BaseTask):
    """One environment of Brax or Playground, without its wrappers."""

    cheap_reset = False

    def __init__(self, env: Any) -> None:
        """Adapt a raw environment."""
        self._use(env)
        self.action = Box((int(env.action_size),), -1.0, 1.0)

    def _use(self, env: Any) -> None:
        """Take an environment. Its functions are traced once for all programs of a run."""
        self.env = env
        self._reset = jax.jit(env.reset, inline=True)
        self._step = jax.jit(env.step, inline=True)

    def with_model(self, attribute: str, model: Any) -> Any:
        """The same robot with another model in an attribute of its environment."""
        task = copy.copy(self)
        task._use(ModelOverride(self.env, attribute, model))
        return task

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """A key -> (the simulator's state, obs)."""
        state = self._reset(jax.random.key_data(key))
        return state, state.obs

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """One control step; `done` is the task's own end, never a time limit."""
        del key
        state = self._step(state, action)
        return state, TaskStep(state.obs, state.reward, state.done > 0.5, jnp.zeros((), bool))

    @cached_property
    def frame_rate(self) -> float:
        """Control steps per second."""
        return 1.0 / float(self.env.dt)


class PerEnvArrays:
    """A simulator on MJX's warp whose states hold the arrays of one environment alone.

    Warp's contacts are those of all environments, in arrays without an axis of environments: none
    of them can begin an episode of its own in these. Every step computes them anew, so that they
    are left out between steps, and a step begins with those of a state at rest.

    Args:
        env: a simulator of MuJoCo Playground.
    """

    def __init__(self, env: Any) -> None:
        """Reset once, for what the environments have in common."""
        from mujoco.mjx.warp import types

        self.env, self.impl = env, types.DataWarp
        example = jax.jit(env.reset)(jax.random.PRNGKey(0)).data._impl
        names = [field.name for field in types.DataWarp.fields()]
        self.common = {x: getattr(example, x) for x in names if x in types.DATA_NON_VMAP}
        self.names = [name for name in names if name not in self.common]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, key: Key) -> EnvState:
        """A key -> a state without what environments have in common."""
        return self._left_out(self.env.reset(key))

    def step(self, state: EnvState, action: EnvAction) -> EnvState:
        """(state, action) -> state, both without what environments have in common."""
        return self._left_out(self.env.step(self._whole(state), action))

    def _left_out(self, state: Any) -> Any:
        own = {name: getattr(state.data._impl, name) for name in self.names}
        return state.replace(data=state.data.replace(_impl=own))

    def _whole(self, state: Any) -> Any:
        common = {name: _constant(x) for name, x in self.common.items()}
        impl = self.impl(**state.data._impl, **common)
        return state.replace(data=state.data.replace(_impl=impl))


def _constant(x: Any) -> Any:
    """An array as a constant of a program: zeros are not written out."""
    if not isinstance(x, jax.Array):
        return x
    return jnp.asarray(x) if np.any(np.asarray(x)) else jnp.zeros(x.shape, x.dtype)
