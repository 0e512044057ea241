"""A custom environment: walk along a line to a goal, without falling off its ends.

A task is two pure functions, `reset` and `step`. The library adds automatic resets, the time limit,
scaling of actions and parallel copies.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from purejaxppo import Box, TaskStep


@dataclass(frozen=True)
class Walk:
    """A point walks along a line to a goal. The reward is 1 minus the distance to the goal.

    The flag --env.options.length 3 sets the field `length`.
    """

    length: float = 2.0
    """The line ends at -length and length."""
    max_episode_steps: int = 100
    observation = Box((3,))  # position, velocity, goal
    action = Box((1,), -1.0, 1.0)  # a push; `step` gets it within these bounds
    cheap_reset = True  # a reset takes almost no time

    def reset(self, key):
        """Return the first state, any pytree of arrays, and its observation."""
        goal = jax.random.uniform(key, (), minval=-1.0, maxval=1.0)
        state = jnp.stack([0.0, 0.0, goal])
        return state, state

    def step(self, key, state, action):
        """Return the next state and a TaskStep."""
        del key  # use it for random transitions
        position, velocity, goal = state
        velocity = 0.9 * velocity + 0.1 * action[0]
        position = position + velocity
        state = jnp.stack([position, velocity, goal])
        reward = 1.0 - jnp.abs(position - goal)
        # terminated: the episode ended, and no reward follows. Do not report a time limit here:
        # after max_episode_steps the library truncates the episode, which PPO treats differently.
        terminated = jnp.abs(position) > self.length
        return state, TaskStep(state, reward, terminated, truncated=jnp.array(False))
