"""Custom environments with the interfaces of Brax and Playground, and minimal physics."""

from typing import Any

import jax
import jax.numpy as jnp
from brax.envs.base import Env, State, Wrapper
from flax import struct
from ml_collections import config_dict
from mujoco_playground._src import mjx_env


class Model(struct.PyTreeNode):
    """A physical model of one mass."""

    mass: Any

    def tree_replace(self, arrays):
        """Replace fields as the methods of Brax and MJX, for names without dots."""
        return self.replace(**arrays)


class Cart(Env):
    """Moves by its action divided by its mass. The reward is its position; it ends beyond 5."""

    action_size, observation_size, dt = 1, 1, 0.1

    def __init__(self, backend="none", gain=1.0):
        self.name, self.gain = backend, gain
        self.sys = Model(jnp.ones(2))

    @property
    def backend(self):
        """Return the name of the back end."""
        return self.name

    def reset(self, rng):
        """Start between -0.1 and 0.1."""
        position = jax.random.uniform(rng, (1,), minval=-0.1, maxval=0.1)
        return State(None, position, jnp.zeros(()), jnp.zeros(()), {"pushed": jnp.zeros(())})

    def step(self, state, action):
        """Push the cart."""
        obs = state.obs + self.gain * action / self.sys.mass[0]
        done = (obs[0] > 5).astype(jnp.float32)
        metrics = {"pushed": jnp.abs(action[0])}
        return state.replace(obs=obs, reward=obs[0], done=done, metrics=metrics)


class Parts(Wrapper):
    """Observations for the policy and for the critic."""

    def reset(self, rng):
        """Return a dict observation."""
        return self._parts(self.env.reset(rng))

    def step(self, state, action):
        """Step with the observation of the cart."""
        return self._parts(self.env.step(state.replace(obs=state.obs["state"]), action))

    def _parts(self, state):
        both = jnp.concatenate([state.obs, 2 * state.obs])
        return state.replace(obs={"state": state.obs, "privileged_state": both})


def make_parts():
    """Return a cart in a wrapper."""
    return Parts(Cart())


class Forgetful(Cart):
    """Its step returns a state without the metrics of its reset."""

    def step(self, state, action):
        """Drop the metrics."""
        return super().step(state, action).replace(metrics={})


def default_config():
    """Return a configuration with the fields that Playground reads."""
    return config_dict.create(
        ctrl_dt=0.02,
        sim_dt=0.01,
        episode_length=50,
        action_repeat=1,
        impl="warp",
        reward=config_dict.create(scale=1.0),
    )


CONFIG = default_config()


class Slide(mjx_env.MjxEnv):
    """Moves by its action divided by its mass. The scaled reward is its position."""

    action_size, xml_path, mj_model = 1, "", None

    def __init__(self, config=CONFIG, config_overrides=None):
        super().__init__(config, config_overrides)
        self._mjx_model = Model(jnp.ones(2))

    @property
    def mjx_model(self):
        """Return the model of a step."""
        return self._mjx_model

    def reset(self, rng):
        """Start at 0."""
        del rng
        return mjx_env.State({}, jnp.zeros(1), jnp.zeros(()), jnp.zeros(()), {}, {})

    def step(self, state, action):
        """Push the slide."""
        obs = state.obs + action / self.mjx_model.mass[0]
        return state.replace(obs=obs, reward=self._config.reward.scale * obs[0])


class Legged(Slide):
    """Needs the model of a robot of Menagerie."""

    def __init__(self, config=CONFIG, config_overrides=None):
        super().__init__(config, config_overrides)
        self.folder = mjx_env.MENAGERIE_PATH / "unitree_go1" / "assets"


def masses(model, rng):
    """Sample a mass between 2 and 4 for each environment."""

    @jax.vmap
    def draw(key):
        return model.mass * jax.random.uniform(key, minval=2.0, maxval=4.0)

    axes = jax.tree.map(lambda x: None, model).tree_replace({"mass": 0})
    return model.tree_replace({"mass": draw(rng)}), axes


def without_axes(model, rng):
    """Return only a model."""
    return model


def unbatched(model, rng):
    """Mark an array that has no axis of samples."""
    return model, jax.tree.map(lambda x: None, model).tree_replace({"mass": 0})
