"""An environment of your own: walk along a line to a goal, and do not fall off its ends.

A task is two pure functions of its state. Resets, the time limit, clipping of actions and many
copies side by side are added to it.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from purejaxppo.envs.base import TaskStep
from purejaxppo.spaces import Box


@dataclass(frozen=True)
class Walk:
    """Reward is nearness to the goal; the fields are options, as in --env.options length 3."""

    length: float = 2.0
    """The line's ends, where the walker falls, are at -length and length."""
    max_episode_steps: int = 100
    observation = Box((3,))  # position, velocity, goal
    action = Box((1,), -1.0, 1.0)  # a push; it arrives within these bounds
    cheap_reset = True  # a reset costs next to nothing

    def reset(self, key):
        """A random key -> (state, obs). The state is any arrays, here the observation itself."""
        goal = jax.random.uniform(key, (), minval=-1.0, maxval=1.0)
        state = jnp.stack([0.0, 0.0, goal])
        return state, state

    def step(self, key, state, action):
        """(key, state, action) -> (state, TaskStep)."""
        del key  # for what is random in a step
        position, velocity, goal = state
        velocity = 0.9 * velocity + 0.1 * action[0]
        position = position + velocity
        state = jnp.stack([position, velocity, goal])
        reward = 1.0 - jnp.abs(position - goal)
        # terminated: the task itself has ended, and nothing follows. Never report a time limit
        # here: after max_episode_steps the episode is truncated, which is another thing to PPO.
        terminated = jnp.abs(position) > self.length
        return state, TaskStep(state, reward, terminated, truncated=jnp.array(False))
