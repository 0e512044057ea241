"""`playground/`: MuJoCo Playground's tasks on MJX, https://playground.mujoco.org.

The DeepMind control suite runs offline. Locomotion and manipulation need the MuJoCo menagerie,
which Playground clones at first use.
"""

import contextlib
import copy
import io
from typing import Any

import jax
import jax.numpy as jnp

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import domain_randomization, mjx
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.wrappers import ActionRepeat
from purejaxppo.spaces import Box, Dict, Space

BACKENDS = ("jax", "warp")


def _registry():
    # playground and mjx print on stdout where warp has no CUDA device.
    with contextlib.redirect_stdout(io.StringIO()):
        from mujoco_playground import registry
    return registry


def task_names() -> list[str]:
    """The tasks of this family."""
    return sorted(_registry().ALL_ENVS)


def make(name: str, config: EnvConfig) -> "PlaygroundTask | ActionRepeat":
    """The Playground task called `name`.

    `config.backend` is the MJX implementation, jax (default) or warp; `config.options` override
    fields of the task's own configuration. Of these, `episode_length` counts control steps, of
    which one step of ours takes `action_repeat`, as in Playground's training wrapper.

    Raises:
        ValueError: an unknown option, an invalid value, or missing assets.
    """
    backend = config.backend or "jax"
    if backend == "warp" and (config.randomize or config.curriculum):
        raise ValueError(
            "env.randomize and env.curriculum exchange numbers of a model in JAX: leave "
            "env.backend = jax"
        )
    registry = _registry()
    defaults = registry.get_default_config(name)
    for option in config.options:
        if option not in defaults:
            raise ValueError(
                f"env.options.{option}: playground/{name} has no such option; it has "
                f"{', '.join(sorted(defaults))}"
            )
    used = {**defaults, **config.options}
    repeats = used["action_repeat"]
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise ValueError(
            f"env.options.action_repeat = {repeats!r}: how often each action is taken is a whole "
            f"number of at least 1"
        )
    if name not in registry.dm_control_suite.ALL_ENVS:
        _need_menagerie(name)
    mjx.use_own_devices()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            env = registry.load(name, config_overrides={"impl": backend, **config.options})
    except (TypeError, ValueError) as error:
        raise ValueError(f"env.options for playground/{name}: {error}") from error
    task: Any = PlaygroundTask(env, int(used["episode_length"]))
    return ActionRepeat(task, repeats) if repeats > 1 else task


def _need_menagerie(name: str) -> None:
    """Raises ValueError if a task's robot models are absent: runs download nothing."""
    from mujoco_playground._src import mjx_env

    if not mjx_env.MENAGERIE_PATH.exists():
        raise ValueError(
            f"playground/{name} needs the robots' models of mujoco_menagerie in "
            f"{mjx_env.MENAGERIE_PATH}; clone https://github.com/google-deepmind/mujoco_menagerie "
            f"there, or choose a task of the DeepMind control suite such as playground/CheetahRun"
        )


def _space(size: Any) -> Space:
    """Playground's observation size, an integer, a shape or a mapping, as a space."""
    if isinstance(size, int):
        return Box((size,))
    if hasattr(size, "items"):
        return Dict.of({name: _space(part) for name, part in size.items()})
    return Box(tuple(int(n) for n in size))


class PlaygroundTask:
    """One Playground environment, without its wrappers."""

    cheap_reset = False
    parameters = dict.fromkeys(mjx.FIELDS, 1.0)

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        """Adapts a raw Playground environment."""
        self.env = env
        self.max_episode_steps = max_episode_steps
        self.observation = _space(env.observation_size)
        self.action = Box((int(env.action_size),), -1.0, 1.0)

    def adjusted(self, values) -> "PlaygroundTask":
        """The same robot with parts of its model multiplied; see `domain_randomization`."""
        task = copy.copy(self)
        model = domain_randomization.scaled(self.env.mjx_model, mjx.FIELDS, values)
        task.env = domain_randomization.OtherModel(self.env, "_mjx_model", model)
        return task

    def reset(self, key):
        """A key -> (Playground state, obs)."""
        state = self.env.reset(jax.random.key_data(key))
        return state, state.obs

    def step(self, key, state, action):
        """One control step; `done` is the task's own end, never a time limit."""
        del key
        state = self.env.step(state, action)
        return state, TaskStep(state.obs, state.reward, state.done > 0.5, jnp.zeros((), bool))

    @property
    def frame_rate(self) -> float:
        """Control steps per second."""
        return 1.0 / float(self.env.dt)

    def draw(self, states, *, height, width):
        """Frames of the scene."""
        from purejaxppo.pictures import mujoco_scene

        data = [state.data for state in states]
        motion = mujoco_scene.poses(
            self.env.mj_model,
            [d.qpos for d in data],
            [d.mocap_pos for d in data],
            [d.mocap_quat for d in data],
        )
        return mujoco_scene.film(self.env.mj_model, motion, height=height, width=width)
