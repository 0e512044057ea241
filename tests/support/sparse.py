"""A scripted simulator whose agents are absent between decisions.

It does not depend on actions, and the script can therefore also be described per decision, for
comparison.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.envs.host.bridge import HostEnv
from purejaxppo.envs.step import EnvStep
from purejaxppo.spaces import Box, Discrete

SIZE = 3
GARBAGE = 500.0
"""The value of stale observations, which must not appear in any result."""


@dataclass
class Decision:
    """A decision, and the rewards and end until the next observation of the agent."""

    row: int
    obs: np.ndarray
    reward: float = 0.0
    closed: int = -1  # row of the step with the next observation; -1: not yet
    next_obs: Any = None
    terminated: bool = False
    truncated: bool = False
    lost: bool = False  # the simulator diverged


@dataclass
class Script:
    """Rows of the outputs of N slots, and the episodes of each slot."""

    rows: list[EnvStep]
    first: tuple[np.ndarray, np.ndarray]  # obs [N, ...], empty [N]
    episodes: list[list[list[Decision]]] = field(default_factory=list)  # by slot

    @property
    def stacked(self) -> EnvStep:
        """Return the rows as arrays [T, N, ...]."""
        return jax.tree.map(lambda *xs: np.stack(xs), *self.rows)


class Slot:
    """A slot: an agent that decides, is absent, ends or diverges, or no agent."""

    def __init__(self, rng, period, end, diverges, empty):
        self.rng, self.period, self.end, self.diverges = rng, period, end, diverges
        self.late = empty
        self.episodes, self.state = [], "empty"
        self.time = 0
        self.obs = self.arrive()

    def new_obs(self):
        return self.rng.normal(size=SIZE).astype(np.float32)

    def arrive(self):
        """Return the first observation of an agent, or of an empty slot."""
        if self.rng.random() < self.late:
            self.state = "empty"
            return np.full(SIZE, GARBAGE, np.float32)
        self.state = "asks"
        obs = self.new_obs()
        self.episodes.append([Decision(self.time, obs)])
        return obs

    def step(self):
        """Return the row (obs, reward, terminated, truncated, absent), and advance."""
        self.time += 1
        stale, t = np.full(SIZE, GARBAGE, np.float32), self.time - 1
        if self.state in ("empty", "ended"):
            obs = self.arrive()
            return obs, 0.0, False, False, self.state == "empty"
        if self.state == "lost":
            self.state = "ended"
            return stale, 7.0, True, False, False
        last = self.episodes[-1][-1]
        if self.rng.random() < self.diverges:
            self.state, last.lost, last.closed = "lost", True, t
            return np.full(SIZE, np.nan, np.float32), 0.0, False, False, False
        reward = round(float(self.rng.normal()), 2)
        last.reward += reward
        ends = self.rng.random() < self.end
        if ends or self.rng.random() < 1 / self.period:
            last.closed, last.next_obs = t, self.new_obs()
        if ends:
            self.state = "ended"
            last.terminated = bool(self.rng.random() < 0.5)
            last.truncated = not last.terminated
            return last.next_obs, reward, last.terminated, last.truncated, False
        if last.closed < 0:
            self.state = "waits"
            return stale, reward, False, False, True
        self.state = "asks"
        self.episodes[-1].append(Decision(self.time, last.next_obs))
        return last.next_obs, reward, False, False, False


def write(length, num_envs, *, seed=0, period=3.0, end=0.1, diverges=0.03, empty=0.4) -> Script:
    """Return a random script of `length` rows."""
    rng = np.random.default_rng(seed)
    slots = [Slot(rng, period, end, diverges, empty) for _ in range(num_envs)]
    first = np.stack([s.obs for s in slots]), np.array([s.state == "empty" for s in slots])
    kinds = (np.float32, np.float32, bool, bool, bool)
    rows = []
    for _ in range(length):
        columns = zip(*(slot.step() for slot in slots), strict=True)
        obs, reward, terminated, truncated, absent = (
            np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)
        )
        rows.append(EnvStep(obs, reward, terminated, truncated, absent=absent))
    return Script(rows, first, [slot.episodes for slot in slots])


class ScriptPool:
    """Plays a script, and restarts after its last row."""

    failure = None

    def __init__(self, script):
        self.script, self.stacked = script, script.stacked
        self.length = len(script.rows)

    def reset(self, key):
        del key
        return jnp.int32(1), jax.tree.map(jnp.asarray, self.script.first)

    def step(self, token, action):
        del action
        out = jax.tree.map(lambda x: jnp.asarray(x)[(token - 1) % self.length], self.stacked)
        return token + 1, out

    def render_frame(self):
        return None

    def close(self):
        pass


def script_env(script) -> HostEnv:
    """Return environments that play a script."""
    num_envs = len(script.episodes)
    return HostEnv(
        lambda num_envs, update: ScriptPool(script),
        Box((SIZE,)),
        Discrete(2),
        num_envs=num_envs,
        max_episode_steps=0,
        absent=True,
    )
