"""A custom environment: land softly, with an engine that is on or off.

A task has two pure functions, `reset` and `step`. The library adds automatic resets, the time limit
and many parallel copies, and trains it as fast as a built-in task.

In Python, in this folder; an object with other fields, `env=Lander(gravity=1.5)`, also works:

    from own_environment import Lander
    from purejaxppo import train

    run = train(env=Lander, total_timesteps=1_000_000)
    print(run.metrics["eval/return_mean"], run.best.act([5.0, 0.0]))

On the command line, where the fields are options:

    purejaxppo train --env.name jax/own_environment.py:Lander --total_timesteps 1_000_000
    purejaxppo train --env.name jax/own_environment.py:Lander --env.options gravity 1.5
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from purejaxppo import Box, Discrete, TaskStep

DT = 0.1
"""Seconds per step."""


@dataclass(frozen=True)
class Lander:
    """A fall from a random height. The reward is minus the fuel used, and minus v² on landing."""

    gravity: float = 1.0
    thrust: float = 2.5
    observation = Box((2,))  # height, velocity
    action = Discrete(2)  # 1: the engine is on
    max_episode_steps = 200  # time limit: truncated, not terminated
    cheap_reset = True  # a reset costs about as much as a step

    def reset(self, key):
        """Return (state, obs) for a random key. The state is any pytree, here the observation."""
        state = jnp.stack([jax.random.uniform(key, minval=3.0, maxval=8.0), 0.0])
        return state, state

    def step(self, key, state, action):
        """Return (state, TaskStep) after an action, with random wind."""
        height, velocity = state
        gust = 0.1 * jax.random.normal(key)
        velocity = velocity + DT * (self.thrust * action - self.gravity + gust)
        height = height + DT * velocity
        state = jnp.stack([height, velocity])
        landed = height <= 0.0
        reward = jnp.where(landed, 10.0 - jnp.square(velocity), -0.02 * action)
        return state, TaskStep(state, reward, terminated=landed, truncated=jnp.array(False))
