"""A task with the interface of Playground's, and next to no physics."""

from typing import Any

import jax.numpy as jnp
from flax import struct


class State(struct.PyTreeNode):
    """As Playground's."""

    obs: Any
    reward: Any
    done: Any
    info: dict


class Model(struct.PyTreeNode):
    """The part of MJX's that is looked at here."""

    mass: Any
    geom_friction: Any

    def tree_replace(self, arrays):
        """As MJX's, for names without dots."""
        return self.replace(**arrays)


class Rail:
    """Moves by its action at every control step, pays where it is, and ends beyond 5."""

    observation_size, action_size, dt = 1, 1, 0.1

    def __init__(self):
        self._mjx_model = Model(jnp.ones(()), jnp.ones(2))

    @property
    def mjx_model(self):
        """The model that a step moves by."""
        return self._mjx_model

    def reset(self, key):
        """At 0."""
        return State(jnp.zeros(1), jnp.zeros(()), jnp.zeros(()), {"steps": jnp.zeros(())})

    def step(self, state, action):
        """Writes into the state it is given, as Playground's tasks do."""
        state.info["steps"] += 1
        obs = state.obs + action * self.mjx_model.geom_friction[0]
        return state.replace(obs=obs, reward=obs[0], done=(obs[0] > 5).astype(float))
