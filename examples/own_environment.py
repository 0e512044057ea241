"""An environment of your own: land softly, with an engine that is on or off.

A task is two pure functions of its state. Resets, the time limit, and many copies side by side are
added to it, and it trains as fast as a built-in one.

In Python, in this folder; an object with other fields, `env=Lander(gravity=1.5)`, does as well:

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

from purejaxppo.envs.base import TaskStep
from purejaxppo.spaces import Box, Discrete

DT = 0.1
"""Seconds per step."""


@dataclass(frozen=True)
class Lander:
    """Falls from a random height. Fuel costs a little, and touching down at speed v costs v²."""

    gravity: float = 1.0
    thrust: float = 2.5
    observation = Box((2,))  # height, velocity
    action = Discrete(2)  # 1: the engine is on
    max_episode_steps = 200  # truncated there, which is not a landing
    cheap_reset = True  # a reset costs about as little as a step

    def reset(self, key):
        """A random key -> (state, obs). The state is any arrays, here the observation itself."""
        state = jnp.stack([jax.random.uniform(key, minval=3.0, maxval=8.0), 0.0])
        return state, state

    def step(self, key, state, action):
        """(key, state, action) -> (state, TaskStep), with a gust of wind."""
        height, velocity = state
        gust = 0.1 * jax.random.normal(key)
        velocity = velocity + DT * (self.thrust * action - self.gravity + gust)
        height = height + DT * velocity
        state = jnp.stack([height, velocity])
        landed = height <= 0.0
        reward = jnp.where(landed, 10.0 - jnp.square(velocity), -0.02 * action)
        return state, TaskStep(state, reward, terminated=landed, truncated=jnp.array(False))
