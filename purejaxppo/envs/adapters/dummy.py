"""`dummy/`: environments at no simulation cost, to measure everything but the simulator.

Exact tests use them, too: `dummy/constant` has reward 1 per step and ends by time limit alone.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.families import Family
from purejaxppo.envs.options import Option
from purejaxppo.spaces import Box, Dict, Discrete, MultiDiscrete, Space

TASKS = {
    "vector": "17 numbers, 6 continuous actions, 1000 steps",
    "pixels": "84 x 84 x 4 uint8 images, 6 discrete actions, 1000 steps",
    "constant": "reward 1 at every step; ends only by the time limit of 10 steps",
    "choices": "the observation shows the correct action (option kind), 10 steps",
}
KINDS = ("discrete", "multidiscrete", "box", "hybrid", "masked")
"""Kinds of actions of `dummy/choices`."""
OPTIONS = {"kind": Option("discrete", "Kind of action space.", choices=KINDS, tasks=("choices",))}


def task_names() -> list[str]:
    """The tasks of this family."""
    return list(TASKS)


def make(name: str, config: EnvConfig) -> BaseTask:
    """The task called `name`."""
    kinds = {"vector": Vector, "pixels": Pixels, "constant": Constant, "choices": Choices}
    return kinds[name](**config.options)


@dataclass(frozen=True)
class Vector(BaseTask):
    """A vector that rotates with the clock; the reward prefers small actions."""

    observation = Box((17,))
    action = Box((6,), -1.0, 1.0)
    max_episode_steps: int = 1000
    cheap_reset = True

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Draw a random vector."""
        obs = jax.random.normal(key, (17,))
        return obs, obs

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Roll the vector by one and adds the actions to its head."""
        del key
        obs = jnp.roll(state, 1).at[:6].add(0.01 * action)
        obs = jnp.clip(obs, -3.0, 3.0)
        return obs, TaskStep(obs, -jnp.mean(jnp.square(action)), jnp.array(False), jnp.array(False))


@dataclass(frozen=True)
class Pixels(BaseTask):
    """An image of one shade per channel that the action moves."""

    observation = Box((84, 84, 4), 0, 255, "uint8")
    action = Discrete(6)
    max_episode_steps: int = 1000
    cheap_reset = True

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Draw random shades."""
        shades = jax.random.randint(key, (4,), 0, 256, jnp.int32)
        return shades, self._draw(shades)

    def _draw(self, shades: jax.Array) -> jax.Array:
        return jnp.broadcast_to(shades.astype(jnp.uint8), (84, 84, 4))

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Move the first shade by the action; the reward is its brightness."""
        del key
        shades = jnp.roll(state, 1).at[0].set((state[-1] + action) % 256)
        reward = shades[0] / 255.0
        return shades, TaskStep(self._draw(shades), reward, jnp.array(False), jnp.array(False))


@dataclass(frozen=True)
class Constant(BaseTask):
    """Reward 1 at every step; never ends by itself."""

    observation = Box((2,))
    action = Discrete(2)
    max_episode_steps: int = 10
    cheap_reset = True

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Draw a vector near 0."""
        obs = 0.1 * jax.random.normal(key, (2,))
        return obs, obs

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Return the same observation and a reward of 1."""
        del key, action
        return state, TaskStep(state, jnp.float32(1.0), jnp.array(False), jnp.array(False))


ACTIONS: dict[str, Space] = {
    "discrete": Discrete(3),
    "multidiscrete": MultiDiscrete((2, 3)),
    "box": Box((2,), -1.0, 1.0),
    "hybrid": Dict.of({"button": Discrete(3), "lever": Box((2,), -1.0, 1.0)}),
    "masked": Discrete(3),
}


@dataclass(frozen=True)
class Choices(BaseTask):
    """The observation determines the right action; reward 1 for it, less for others.

    The observation is three numbers, drawn anew each time. The right discrete action is the index
    of the largest one; for MultiDiscrete((2, 3)), (1 if the first is positive else 0, that index);
    the right continuous action is the first two numbers. The reward of a continuous action is 1
    minus its mean squared error. Under the kind `masked` one of the three discrete actions is
    forbidden, and the right one is the index of the larger of the others; a forbidden one has
    reward -1.

    Args:
        kind: of actions, one of `KINDS`.
    """

    kind: str = "discrete"
    max_episode_steps: int = 10
    cheap_reset = True

    @cached_property
    def action(self) -> Space:
        """The action space of the kind."""
        return ACTIONS[self.kind]

    @cached_property
    def observation(self) -> Space:
        """The numbers and, where there is one, the mask."""
        numbers = Box((3,))
        if self.kind == "masked":
            return Dict.of({"action_mask": Box((3,), 0, 1, "uint8"), "obs": numbers})
        return numbers

    def _draw(self, key: Key) -> Obs:
        number_key, mask_key = jax.random.split(key)
        obs = jax.random.uniform(number_key, (3,), minval=-1.0)
        if self.kind != "masked":
            return obs
        forbidden = jax.random.randint(mask_key, (), 0, 3)
        return {"action_mask": (jnp.arange(3) != forbidden).astype(jnp.uint8), "obs": obs}

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Draw three numbers."""
        obs = self._draw(key)
        return obs, obs

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Compute the reward and draws the next numbers."""
        reward = jnp.asarray(self._reward(state, action), jnp.float32)
        obs = self._draw(key)
        return obs, TaskStep(obs, reward, jnp.array(False), jnp.array(False))

    def _reward(self, obs: Obs, action: EnvAction) -> jax.Array:
        def lever(action: jax.Array) -> jax.Array:
            return 1.0 - jnp.mean(jnp.square(action - obs[:2]))

        match self.kind:
            case "discrete":
                return action == jnp.argmax(obs)
            case "multidiscrete":
                right = jnp.stack([obs[0] > 0, jnp.argmax(obs)])
                return jnp.mean(action == right)
            case "box":
                return lever(action)
            case "hybrid":
                return 0.5 * (action["button"] == jnp.argmax(obs)) + 0.5 * lever(action["lever"])
        allowed = obs["action_mask"] > 0
        right = jnp.argmax(jnp.where(allowed, obs["obs"], -jnp.inf))
        return jnp.where(allowed[action], action == right, -1.0)


FAMILY = Family(
    about="dummy environments for profiling", tasks=task_names, make_task=make, options=OPTIONS
)
