"""`dummy/`: environments with almost no simulation cost, for profiling and for exact tests."""

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
    "vector": "observation: 17 floats; action: 6 floats; 1000 steps",
    "pixels": "observation: uint8 [84, 84, 4]; action: 1 of 6; 1000 steps",
    "constant": "reward 1 at every step; ends only by the time limit of 10 steps",
    "choices": "the observation shows the correct action (option kind), 10 steps",
}
KINDS = ("discrete", "multidiscrete", "box", "hybrid", "masked")
"""Kinds of action spaces of `dummy/choices`."""
OPTIONS = {"kind": Option("discrete", "Kind of action space.", choices=KINDS, tasks=("choices",))}


def make(name: str, config: EnvConfig) -> BaseTask:
    """Create the task `name`."""
    kinds = {"vector": Vector, "pixels": Pixels, "constant": Constant, "choices": Choices}
    return kinds[name](**config.options)


@dataclass(frozen=True)
class Vector(BaseTask):
    """A vector that rotates at each step; the reward prefers small actions."""

    observation = Box((17,))
    action = Box((6,), -1.0, 1.0)
    max_episode_steps: int = 1000
    cheap_reset = True

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Return a random vector."""
        obs = jax.random.normal(key, (17,))
        return obs, obs

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Roll the vector by one and add the action to its first entries."""
        del key
        obs = jnp.roll(state, 1).at[:6].add(0.01 * action)
        obs = jnp.clip(obs, -3.0, 3.0)
        return obs, TaskStep(obs, -jnp.mean(jnp.square(action)), jnp.array(False), jnp.array(False))


@dataclass(frozen=True)
class Pixels(BaseTask):
    """An image with one grey level per channel; the action changes one level."""

    observation = Box((84, 84, 4), 0, 255, "uint8")
    action = Discrete(6)
    max_episode_steps: int = 1000
    cheap_reset = True

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Return an image of random grey levels."""
        levels = jax.random.randint(key, (4,), 0, 256, jnp.int32)
        return levels, self._draw(levels)

    def _draw(self, levels: jax.Array) -> jax.Array:
        return jnp.broadcast_to(levels.astype(jnp.uint8), (84, 84, 4))

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Shift the grey levels by one and add the action to the first, which is the reward."""
        del key
        levels = jnp.roll(state, 1).at[0].set((state[-1] + action) % 256)
        reward = levels[0] / 255.0
        return levels, TaskStep(self._draw(levels), reward, jnp.array(False), jnp.array(False))


@dataclass(frozen=True)
class Constant(BaseTask):
    """Reward 1 at every step; only the time limit ends an episode."""

    observation = Box((2,))
    action = Discrete(2)
    max_episode_steps: int = 10
    cheap_reset = True

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Return a random vector near 0."""
        obs = 0.1 * jax.random.normal(key, (2,))
        return obs, obs

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Return the same observation and reward 1."""
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
    """The observation, three random numbers x, determines the correct action; its reward is 1.

    discrete        argmax(x)
    multidiscrete   (x[0] > 0, argmax(x))
    box             x[:2]; the reward is 1 - mean squared error
    hybrid          button: argmax(x), lever: x[:2]; the mean of both rewards
    masked          argmax over the two allowed actions; the forbidden action has reward -1

    Args:
        kind: kind of action space, one of `KINDS`.
    """

    kind: str = "discrete"
    max_episode_steps: int = 10
    cheap_reset = True

    @cached_property
    def action(self) -> Space:
        """The action space."""
        return ACTIONS[self.kind]

    @cached_property
    def observation(self) -> Space:
        """The numbers and, for the kind `masked`, the action mask."""
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
        """Return three random numbers."""
        obs = self._draw(key)
        return obs, obs

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Compute the reward and sample the next numbers."""
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
    about="dummy environments for profiling",
    tasks=lambda: list(TASKS),
    make_task=make,
    options=OPTIONS,
)
