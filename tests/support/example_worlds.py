"""Small correct and faulty PettingZoo environments, which tests name by this file."""

from types import MappingProxyType

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils.wrappers import BaseParallelWrapper


class Hand(ParallelEnv):
    """Three agents with different spaces: b ends after 2 steps, a and c after 4.

    The reward of agent i with action x is 10 i + t + 100 x at step t. Action 2 ends a at once. At
    step `nan_at` c observes NaN, if it has not ended.
    """

    metadata = MappingProxyType({"name": "hand", "render_fps": 5})
    possible_agents = ("a", "b", "c")
    last = MappingProxyType({"a": 4, "b": 2, "c": 4})
    sizes = MappingProxyType({"a": 2, "b": 1, "c": 3})
    choices = MappingProxyType({"a": 3, "b": 2, "c": 3})

    def __init__(self, nan_at=0, max_cycles=10, render_mode=None):
        self.nan_at, self.max_cycles, self.render_mode = nan_at, max_cycles, render_mode

    def observation_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (self.sizes[agent],), np.float64)

    def action_space(self, agent):
        return spaces.Discrete(self.choices[agent])

    def observe(self, agent, action=0):
        t = float(self.time)
        bad = agent == "c" and self.time == self.nan_at > 0
        whole = {"a": [t, -t], "b": [t], "c": [np.nan if bad else t, t, action]}
        return np.array(whole[agent])

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.time = 0
        return {agent: self.observe(agent) for agent in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents)
        assert all(0 <= action < self.choices[agent] for agent, action in actions.items())
        self.time += 1
        obs = {agent: self.observe(agent, actions[agent]) for agent in self.agents}
        places = {agent: self.possible_agents.index(agent) for agent in self.agents}
        rewards = {a: 10.0 * i + self.time + 100.0 * actions[a] for a, i in places.items()}
        over = {a: self.time == self.last[a] or (a == "a" and actions[a] == 2) for a in self.agents}
        late = {agent: 0 < (self.max_cycles or 0) <= self.time for agent in self.agents}
        infos = {agent: {"own": 10.0 * i + self.time} for agent, i in places.items()}
        self.agents = [a for a in self.agents if not (over[a] or late[a])]
        return obs, rewards, over, late, infos

    def render(self):
        return np.full((4, 6, 3), 40 * self.time, np.uint8)


class WithState(Hand):
    """Its state is its clock and the number of remaining agents."""

    def state(self):
        return np.array([self.time, len(self.agents)], np.int64)


class ShrinkingState(Hand):
    """Its state has a number per remaining agent."""

    def state(self):
        return np.zeros(len(self.agents))


class Clocks(Hand):
    """All agents observe the time in Unix seconds."""

    def observe(self, agent, action=0):
        return np.full(self.sizes[agent], 1.7e9 + self.time)


class Beyond(Hand):
    """b observes 3 in a space of 0 and 1 after its first step."""

    def observation_space(self, agent):
        return spaces.Dict({"side": spaces.Discrete(2)})

    def observe(self, agent, action=0):
        return {"side": 3 if agent == "b" and self.time else 0}


class Endless(Hand):
    """Has no time limit."""

    def __init__(self):
        super().__init__()
        self.max_cycles = None


class Cycles(Hand):
    """Has a time limit of a given type."""

    def __init__(self, cycles):
        super().__init__()
        self.max_cycles = cycles


class Masked(Hand):
    """Has action masks by its clock and the agent's index, in observations or in infos."""

    def __init__(self, where="obs", empty=False):
        super().__init__()
        self.where, self.empty = where, empty

    def observation_space(self, agent):
        space = super().observation_space(agent)
        if self.where != "obs":
            return space
        mask = spaces.Box(0, 1, (self.choices[agent],), np.int8)
        return spaces.Dict({"observation": space, "action_mask": mask})

    def mask(self, agent):
        mask = np.zeros(self.choices[agent], np.int8)
        mask[self.time % self.choices[agent]] = not self.empty
        return mask

    def observe(self, agent, action=0):
        obs = super().observe(agent, action)
        if self.where != "obs":
            return obs
        return {"observation": obs, "action_mask": self.mask(agent)}

    def reset(self, seed=None, options=None):
        obs, infos = super().reset(seed, options)
        return obs, self.fill(infos)

    def step(self, actions):
        *rest, infos = super().step(actions)
        return *rest, self.fill(infos)

    def fill(self, infos):
        if self.where == "None":
            return None
        if self.where == "info":
            return {agent: {"action_mask": self.mask(agent)} for agent in infos}
        return infos


class Pushes(Hand):
    """Continuous actions in different bounds: the reward of an agent is the sum of its action."""

    bounds = MappingProxyType({"a": (0.0, 4.0), "b": (-1.0, 3.0), "c": (-2.0, 2.0)})

    def action_space(self, agent):
        return spaces.Box(*self.bounds[agent], (self.sizes[agent],), np.float32)

    def step(self, actions):
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action)
        rewards = {agent: float(action.sum()) for agent, action in actions.items()}
        obs, _, *rest = super().step({agent: 0 for agent in actions})
        return obs, rewards, *rest


class Robots(ParallelEnv):
    """Two agents with images and hybrid actions, and rewards of 1000 (i + 1) + 10 pick + push."""

    metadata = MappingProxyType({"name": "robots"})
    possible_agents = ("left", "right")
    max_cycles = 3

    def observation_space(self, agent):
        return spaces.Box(0, 255, (2, 3, 1), np.uint8)

    def action_space(self, agent):
        push = spaces.Box(-4.0, 4.0, (1,), np.float32)
        return spaces.Dict({"pick": spaces.Discrete(5, start=1), "push": push})

    def observe(self):
        return {a: np.full((2, 3, 1), 100 * i + self.time) for i, a in enumerate(self.agents)}

    def reset(self, seed=None, options=None):
        self.agents, self.time = list(self.possible_agents), 0
        return {a: obs.astype(np.uint8) for a, obs in self.observe().items()}, {}

    def step(self, actions):
        self.time += 1
        obs = self.observe()
        paid = {
            agent: 1000 * (i + 1) + 10 * actions[agent]["pick"] + float(actions[agent]["push"][0])
            for i, agent in enumerate(self.agents)
        }
        over, late = ({a: flag for a in self.agents} for flag in (False, self.time == 3))
        self.agents = [] if self.time == 3 else self.agents
        return obs, paid, over, late, {}


class Mixed(Hand):
    """Has action spaces that cannot be combined."""

    def action_space(self, agent):
        return spaces.Discrete(2) if agent == "a" else spaces.Box(-1, 1, (2,), np.float32)


class JoinsLater(Hand):
    """Agent c joins later."""

    def reset(self, seed=None, options=None):
        obs, infos = super().reset(seed, options)
        self.agents.remove("c")
        return obs, infos


class Vanishes(Hand):
    """Agent b is missing from step 1 on, without an end."""

    def step(self, actions):
        out = super().step(actions)
        if "b" in self.agents:
            self.agents.remove("b")
        return out


class Breaks(Hand):
    """Raises an error at step 2."""

    def step(self, actions):
        if self.time == 1:
            raise RuntimeError("the wire is cut")
        return super().step(actions)


def make_hand(**options):
    """Return an environment."""
    return Hand(**options)


def make_nothing():
    """Return no environment."""
    return 3


class ComesBack(Hand):
    """Agent b returns to the list of agents at step 3, after its end at step 2.

    With `gone` = False it stays in the list between.
    """

    def __init__(self, gone=True):
        super().__init__()
        self.gone = gone

    def step(self, actions):
        obs, rewards, over, late, infos = super().step({a: actions.get(a, 0) for a in self.agents})
        if self.time == 2 and not self.gone:
            self.agents = ["a", "b", "c"]
        if self.time == 3:
            self.agents = ["a", "b", "c"]
            over = {**over, "b": False}
        return obs, rewards, over, late | {"b": False}, infos


class KeepsTheEnded(Hand):
    """Agents that have ended stay in the list of agents, and their end is repeated."""

    def step(self, actions):
        obs, rewards, over, late, infos = super().step({a: actions.get(a, 0) for a in self.agents})
        self.agents = list(self.possible_agents)
        over = {agent: end or self.time > self.last[agent] for agent, end in over.items()}
        return obs, rewards, over, late, infos


class Grows(Hand):
    """Agent d joins at step 1."""

    def step(self, actions):
        out = super().step(actions)
        self.agents = [*self.agents, "d"]
        return out


class PaysNothing(Hand):
    """The reward of b is missing or None."""

    def __init__(self, missing=True):
        super().__init__()
        self.missing = missing

    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        rewards.pop("b")
        rewards |= {} if self.missing else {"b": None}
        return obs, rewards, *rest


class PaysArrays(Hand):
    """Rewards and ends are arrays of one value."""

    def step(self, actions):
        obs, rewards, over, late, infos = super().step(actions)
        parts = ({a: np.array([x]) for a, x in part.items()} for part in (rewards, over, late))
        return obs, *parts, infos


class OldStep(Hand):
    """Returns four values, as PettingZoo did before 1.22."""

    def step(self, actions):
        obs, rewards, over, _, infos = super().step(actions)
        return obs, rewards, over, infos


class OldReset(Hand):
    """Returns only observations from `reset`."""

    def reset(self, seed=None, options=None):
        return super().reset(seed, options)[0]


class Constant(BaseParallelWrapper):
    """A wrapper; every reward is -1."""

    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        return obs, dict.fromkeys(rewards, -1.0), *rest
