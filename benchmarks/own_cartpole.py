"""CartPole as a user would write it: Barto, Sutton and Anderson 1983, with Gymnasium's numbers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.envs.base import TaskStep
from purejaxppo.spaces import Box, Discrete

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, DT = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
FARTHEST, STEEPEST = 2.4, 12 * 2 * jnp.pi / 360


class State(NamedTuple):
    """Of the cart and the pole; numbers apart, since slices of one array take XLA longer."""

    x: jax.Array
    speed: jax.Array
    angle: jax.Array
    turning: jax.Array


class CartPole:
    """A pole on a cart that is pushed left or right."""

    observation = Box((4,))
    action = Discrete(2)
    max_episode_steps = 500
    cheap_reset = True

    def reset(self, key):
        """A start near the middle."""
        state = State(*jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05))
        return state, jnp.stack(state)

    def step(self, key, state, action):
        """One step of Euler's method."""
        x, speed, angle, turning = state
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        push = FORCE * (2 * action - 1) + POLE * HALF_LENGTH * turning**2 * sin
        push = push / (CART + POLE)
        bend = (GRAVITY * sin - cos * push) / (
            HALF_LENGTH * (4 / 3 - POLE * cos**2 / (CART + POLE))
        )
        pull = push - POLE * HALF_LENGTH * bend * cos / (CART + POLE)
        state = State(x + DT * speed, speed + DT * pull, angle + DT * turning, turning + DT * bend)
        fallen = (jnp.abs(state.x) > FARTHEST) | (jnp.abs(state.angle) > STEEPEST)
        return state, TaskStep(jnp.stack(state), jnp.float32(1), fallen, jnp.array(False))
