"""The result of a batched environment step. Worker processes import this module without JAX."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from purejaxppo import spaces
from purejaxppo.spaces import LARGEST, MASK

Leaf = Any
"""An array [N, ...]: of JAX, or of NumPy for host simulators."""


class EnvStep(NamedTuple):
    """Result of one step of N environments.

    An `Env` sets `obs`, `reward`, `terminated`, `truncated`, `valid` and `diverged`. The other
    fields are optional. Host simulators leave unsupported fields at None.
    """

    obs: Leaf  # [N, ...] after the step; the true last observation if the episode ended
    reward: Leaf  # [N] float32
    terminated: Leaf  # [N] bool: the task ended; never together with truncated
    truncated: Leaf  # [N] bool: stopped by a time limit
    valid: Leaf = None  # [N] bool: False if the step only returned the first obs of a new episode
    diverged: Leaf = None  # [N] bool: the output was not finite or too large; the row is not valid
    score: Leaf = None  # [N] added to reported returns instead of the reward: the true game score
    over: Leaf = None  # [N] bool: end of the reported episode instead of the flags: of a game
    absent: Leaf = None  # [N] bool: the agent takes no action now; set if `EnvSpec.absent`
    at_once: Leaf = None
    """[N] bool: the episode ended, and `obs` is the first of the next; the next row is valid."""
    ticks: Leaf = None  # [N] float32: game time of the step; None: 1, or the metric `ticks`
    metrics: Leaf = None
    """[N, K] float32: values of `EnvSpec.metrics`; NaN without a value, and on rows of no episode.
    None without metrics."""

    @property
    def scores(self) -> Leaf:
        """Values that the reported returns sum, [N]."""
        return self.reward if self.score is None else self.score

    @property
    def ends(self) -> Leaf:
        """True where a reported episode ends, bool [N]."""
        return self.terminated | self.truncated if self.over is None else self.over


def zeros(obs: tuple[np.ndarray, ...], count: int) -> EnvStep:
    """Return zeros as buffers for the steps of N environments; `obs` are the observation arrays."""
    terminated, truncated, diverged = np.zeros((3, count), bool)
    return EnvStep(obs, np.zeros(count, np.float32), terminated, truncated, diverged=diverged)


def rows_of(step: EnvStep, start: int, stop: int) -> EnvStep:
    """Return views of the rows start to stop; `step.obs` are the observation arrays."""
    obs = tuple(part[start:stop] for part in step.obs)
    return EnvStep(obs, *(None if x is None else x[start:stop] for x in step[1:]))


def copied(step: EnvStep, obs: Leaf) -> EnvStep:
    """Return a step with `obs` and copies of its other arrays."""
    return EnvStep(obs, *(None if x is None else x.copy() for x in step[1:]))


def bounded(step: EnvStep) -> np.ndarray:
    """Return True for rows whose values are finite and within ±LARGEST, bool [N]."""
    ok: np.ndarray = np.abs(step.reward) <= LARGEST
    for part in step.obs:
        if part.dtype == np.float32:
            ok &= (np.abs(part) <= LARGEST).reshape(len(part), -1).all(axis=1)
    return ok


def diverged_value(step: EnvStep, leaves: Sequence[spaces.Leaf], row: Any) -> str:
    """Return the first value of a row that diverged; `leaves` are those of the observation."""
    obs = ((leaf.path, part[row]) for leaf, part in zip(leaves, step.obs, strict=True))
    return spaces.diverged_value(step.reward[row], obs)


def end_diverged(step: EnvStep, leaves: Sequence[spaces.Leaf]) -> None:
    """End the episodes of `diverged` rows, with zeros and a mask that allows all actions."""
    bad = step.diverged
    for part, leaf in zip(step.obs, leaves, strict=True):
        part[bad] = MASK in leaf.path
    step.reward[bad] = 0
    step.terminated[bad] = True
