"""Gymnasium and PettingZoo environments with random spaces, which depend on the exact action."""

from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

STEPS = 6


def random_space(rng, depth, *, is_action):
    """Return a random space, nested to `depth`, with random starts, bounds, shapes and dtypes."""
    if depth:
        parts = [random_space(rng, depth - 1 - i, is_action=is_action) for i in range(depth)]
        if rng.random() < 0.5:
            return spaces.Tuple(parts)
        return spaces.Dict({name: part for name, part in zip("zab", parts, strict=False)})
    start = int(rng.integers(-5, 9))
    shape = [(), (2,), (2, 2)][rng.integers(3)]
    kind = rng.integers(5)
    if kind == 0:
        return spaces.Discrete(int(rng.integers(2, 5)), start=start)
    if kind == 1:
        counts = rng.integers(2, 5, (2, 2) if rng.random() < 0.5 else 3)
        return spaces.MultiDiscrete(counts, start=rng.integers(-4, 9, counts.shape))
    if kind == 2:
        return spaces.MultiBinary((2, 2) if rng.random() < 0.5 else 3)
    if kind == 3 and not is_action:
        return spaces.Box(-3, 9, shape, [np.int64, np.int8, np.int32][rng.integers(3)])
    dtype = np.float64 if rng.random() < 0.5 else np.float32
    low = rng.uniform(-2, 0, shape).astype(dtype)
    high = low + rng.uniform(0.1, 1, shape).astype(dtype)
    return spaces.Box(low, high, shape, dtype)


def element(space, wave):
    """Return an element of a space with ints, lists and arrays; `wave()` is in 0 to 1."""
    if isinstance(space, spaces.Dict):
        return {name: element(part, wave) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(element(part, wave) for part in space)
    unit = np.reshape([wave() for _ in range(int(np.prod(space.shape)))], space.shape)
    if isinstance(space, spaces.Discrete):
        return int(space.start + np.floor(unit * space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return space.start + np.floor(unit * space.nvec).astype(int)
    if isinstance(space, spaces.MultiBinary):
        return unit > 0.5
    if np.issubdtype(space.dtype, np.integer):
        return np.floor(space.low + unit * (1.0 + space.high - space.low)).astype(space.dtype)
    return (space.low + unit * (space.high - space.low)).tolist()


def numbers(space, action):
    """Return the numbers of an action, after checks of its types, dtypes and shapes."""
    if isinstance(space, spaces.Dict):
        assert type(action) is dict and set(action) == set(space)
        return [x for name, part in space.items() for x in numbers(part, action[name])]
    if isinstance(space, spaces.Tuple):
        assert type(action) is tuple and len(action) == len(space)
        return [x for part, a in zip(space, action, strict=True) for x in numbers(part, a)]
    assert np.asarray(action).dtype == space.dtype and space.contains(np.asarray(action)), action
    return np.ravel(action).astype(float).tolist()


class Body:
    """A state that actions change, with observations and rewards of it."""

    def __init__(self, observation_space, action_space, seed):
        self.spaces = observation_space, action_space
        self.x, self.time = (seed or 0) % 97 / 10, 0

    def obs(self):
        phase = iter(range(100))
        return element(
            self.spaces[0], lambda: 0.5 + 0.499 * np.sin(self.x + self.time + next(phase))
        )

    def step(self, action):
        values = numbers(self.spaces[1], action)
        reward = 0.1 * self.x + float(sum(x * np.cos(i) for i, x in enumerate(values)))
        self.x += 0.1 * reward
        self.time += 1
        return reward


class Nested(gymnasium.Env):
    """Has random spaces by `number`, and appends the seed of every episode to the file `log`."""

    max_episode_steps = STEPS

    def __init__(self, number=0, log=""):
        rng = np.random.default_rng(number)
        self.observation_space = random_space(rng, 2, is_action=False)
        self.action_space = random_space(rng, 1 + number % 2, is_action=True)
        self.log = log

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.log and seed is not None:
            with Path(self.log).open("a") as file:
                print(seed, file=file)
        self.body = Body(self.observation_space, self.action_space, seed)
        return self.body.obs(), {}

    def step(self, action):
        reward = self.body.step(action)
        return self.body.obs(), reward, False, False, {}


class Pair(ParallelEnv):
    """Two agents with different starts and bounds, of which `b` ends early. Discrete or Box."""

    metadata: ClassVar = {"name": "pair"}
    possible_agents = ("a", "b")
    max_cycles = STEPS

    def __init__(self, boxes=False, log="", alike=False):
        self.observations = {
            "a": spaces.Tuple((spaces.Discrete(3, start=4), spaces.Box(0, 1, (2,), np.float64))),
            "b": spaces.Tuple((spaces.Discrete(3, start=-9), spaces.Box(0, 1, (2,), np.float64))),
        }
        self.actions = {
            "a": spaces.Discrete(3, start=5),
            "b": spaces.Discrete(2, start=-2),
        }
        if boxes:
            self.actions = {
                "a": spaces.Box(2.0, 3.0, (2,), np.float64),
                "b": spaces.Box(-7.0, 0.0, (1,), np.float32),
            }
        if alike:
            self.observations["b"], self.actions["b"] = self.observations["a"], self.actions["a"]
        self.log = log

    def observation_space(self, agent):
        return self.observations[agent]

    def action_space(self, agent):
        return self.actions[agent]

    def reset(self, seed=None, options=None):
        if self.log and seed is not None:
            with Path(self.log).open("a") as file:
                print(seed, file=file)
        self.agents = list(self.possible_agents)
        self.bodies = {
            agent: Body(self.observations[agent], self.actions[agent], (seed or 0) + i)
            for i, agent in enumerate(self.agents)
        }
        return {agent: self.bodies[agent].obs() for agent in self.agents}, {a: {} for a in "ab"}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        lived = self.agents
        rewards = {agent: self.bodies[agent].step(actions[agent]) for agent in lived}
        time = self.bodies["a"].time
        ended = {a: (time == 3 and a == "b") or time == STEPS for a in lived}
        self.agents = [agent for agent in lived if not ended[agent]]
        obs = {agent: self.bodies[agent].obs() for agent in lived}
        return obs, rewards, ended, dict.fromkeys(lived, False), {agent: {} for agent in lived}
