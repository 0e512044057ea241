"""A task with the interface of Playground, and minimal physics."""

from typing import Any

import jax.numpy as jnp
from flax import struct


class State(struct.PyTreeNode):
    """The state, with the fields of Playground."""

    obs: Any
    reward: Any
    done: Any
    info: dict
    metrics: dict = struct.field(default_factory=dict)


class Model(struct.PyTreeNode):
    """The fields of the model of MJX that the task uses."""

    mass: Any
    geom_friction: Any

    def tree_replace(self, arrays):
        """Replace fields as the method of MJX, for names without dots."""
        return self.replace(**arrays)


class Rail:
    """Moves by its action at every control step; the reward is its position; it ends beyond 5."""

    observation_size, action_size, dt = 1, 1, 0.1

    def __init__(self):
        self._mjx_model = Model(jnp.ones(()), jnp.ones(2))

    @property
    def unwrapped(self):
        """Return the environment without wrappers."""
        return self

    @property
    def mjx_model(self):
        """Return the model of a step."""
        return self._mjx_model

    def reset(self, key):
        """Return the state at position 0."""
        return State(jnp.zeros(1), jnp.zeros(()), jnp.zeros(()), {"steps": jnp.zeros(())})

    def step(self, state, action):
        """Change the given state in place, as tasks of Playground do."""
        state.info["steps"] += 1
        obs = state.obs + action * self.mjx_model.geom_friction[0]
        return state.replace(obs=obs, reward=obs[0], done=(obs[0] > 5).astype(float))
