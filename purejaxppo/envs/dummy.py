"""`dummy/`: environments at no simulation cost, to measure everything but the simulator.

Also the ground of exact tests: `dummy/constant` pays 1 per step and ends by time limit alone.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from purejaxppo.config import EnvConfig
from purejaxppo.envs.base import TaskStep
from purejaxppo.spaces import Box, Discrete

TASKS = {
    "vector": "17 numbers, 6 continuous actions, 1000 steps",
    "pixels": "84 x 84 x 4 uint8 images, 6 discrete actions, 1000 steps",
    "constant": "reward 1 at every step, ended by a time limit of 10 steps alone",
}


def task_names() -> list[str]:
    """The tasks of this family."""
    return list(TASKS)


def make(name: str, config: EnvConfig):
    """The task called `name`.

    Raises:
        ValueError: for any option; there are none.
    """
    for option in config.options:
        raise ValueError(f"env.options.{option}: dummy/{name} takes no options")
    return {"vector": Vector, "pixels": Pixels, "constant": Constant}[name]()


@dataclass(frozen=True)
class Vector:
    """A vector that rotates with the clock; the reward prefers small actions."""

    observation = Box((17,))
    action = Box((6,), -1.0, 1.0)
    max_episode_steps: int = 1000
    cheap_reset = True

    def reset(self, key):
        """A random vector."""
        obs = jax.random.normal(key, (17,))
        return obs, obs

    def step(self, key, state, action):
        """Rolls the vector by one and adds the actions to its head."""
        del key
        obs = jnp.roll(state, 1).at[:6].add(0.01 * action)
        obs = jnp.clip(obs, -3.0, 3.0)
        return obs, TaskStep(obs, -jnp.mean(jnp.square(action)), jnp.array(False), jnp.array(False))


@dataclass(frozen=True)
class Pixels:
    """An image of one shade per channel that the action moves."""

    observation = Box((84, 84, 4), 0, 255, "uint8")
    action = Discrete(6)
    max_episode_steps: int = 1000
    cheap_reset = True

    def reset(self, key):
        """Random shades."""
        shades = jax.random.randint(key, (4,), 0, 256, jnp.int32)
        return shades, self._draw(shades)

    def _draw(self, shades):
        return jnp.broadcast_to(shades.astype(jnp.uint8), (84, 84, 4))

    def step(self, key, state, action):
        """The first shade moves by the action; the reward is its brightness."""
        del key
        shades = jnp.roll(state, 1).at[0].set((state[-1] + action) % 256)
        reward = shades[0] / 255.0
        return shades, TaskStep(self._draw(shades), reward, jnp.array(False), jnp.array(False))


@dataclass(frozen=True)
class Constant:
    """Pays 1 at every step and never ends by itself."""

    observation = Box((2,))
    action = Discrete(2)
    max_episode_steps: int = 10
    cheap_reset = True

    def reset(self, key):
        """The same start with a little noise."""
        obs = 0.1 * jax.random.normal(key, (2,))
        return obs, obs

    def step(self, key, state, action):
        """Nothing happens."""
        del key, action
        return state, TaskStep(state, jnp.float32(1.0), jnp.array(False), jnp.array(False))
