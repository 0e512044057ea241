"""The result of a step of a batch of environments. Workers import this module, so it avoids JAX."""

from typing import Any, NamedTuple

import numpy as np

Leaf = Any
"""An array [N, ...] of JAX or, of simulators on the host, of NumPy."""


class EnvStep(NamedTuple):
    """Result of one step of N environments.

    A host simulator leaves fields that it does not offer at None. An `Env` sets all fields up to
    `diverged`.
    """

    obs: Leaf  # [N, ...] after the step: the true last observation where an episode ended
    reward: Leaf  # [N] float32
    terminated: Leaf  # [N] bool: the task itself ended; never together with truncated
    truncated: Leaf  # [N] bool: cut by a time limit
    valid: Leaf = None  # [N] bool: False where this step only delivered a new episode's first obs
    diverged: Leaf = None  # [N] bool: the simulator's output was unusable; its row is not valid
    score: Leaf = None  # [N] added to reported returns instead of the reward: a game's true score
    over: Leaf = None  # [N] bool: end of the reported episode instead of the flags: the whole game
    absent: Leaf = None  # [N] bool: the agent needs no action now; set if `EnvSpec.absent`
    at_once: Leaf = None
    """[N] bool: the episode ended, and `obs` is the first of the next one, whose row is valid."""

    @property
    def scores(self) -> Leaf:
        """Summands of the reported episodes' returns, [N]."""
        return self.reward if self.score is None else self.score

    @property
    def ends(self) -> Leaf:
        """True where a reported episode ends, bool [N]."""
        return self.terminated | self.truncated if self.over is None else self.over

    @property
    def is_first(self) -> Leaf:
        """True where `obs` is an episode's first observation, bool [N]."""
        return ~self.valid if self.at_once is None else ~self.valid | self.at_once


def zeros(obs: tuple[np.ndarray, ...], count: int) -> EnvStep:
    """Return NumPy arrays of N environments to write steps to; `obs` are an observation's parts."""
    terminated, truncated, diverged = np.zeros((3, count), bool)
    return EnvStep(obs, np.zeros(count, np.float32), terminated, truncated, diverged=diverged)


def rows_of(step: EnvStep, start: int, stop: int) -> EnvStep:
    """Return views of some environments' rows; `step.obs` are the parts of the observation."""
    obs = tuple(part[start:stop] for part in step.obs)
    return EnvStep(obs, *(None if x is None else x[start:stop] for x in step[1:]))


def copied(step: EnvStep, obs: Leaf) -> EnvStep:
    """Return an observation with copies of the other arrays of a step."""
    return EnvStep(obs, *(None if x is None else x.copy() for x in step[1:]))
