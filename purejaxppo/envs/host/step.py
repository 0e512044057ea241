"""The result of a step of simulators on the host. Nothing here imports JAX."""

from typing import Any, NamedTuple

import numpy as np


class HostStep(NamedTuple):
    """Result of one step of N environments, as arrays of NumPy or JAX; see `envs.base.EnvStep`.

    Simulators that never set a flag leave it out (None).
    """

    obs: Any  # [N, ...]
    reward: Any  # [N] float32
    terminated: Any  # [N] bool
    truncated: Any  # [N] bool
    score: Any = None  # [N] float32: summands of the reported return, if not `reward`
    over: Any = None  # [N] bool: the reported episode's end, if not the flags above
    diverged: Any = None  # [N] bool: the simulator found it diverged and ended it
    absent: Any = None  # [N] bool: no observation came, or no agent is there
    at_once: Any = None  # [N] bool: see `EnvStep.at_once`

    @classmethod
    def zeros(cls, obs: tuple[np.ndarray, ...], count: int) -> "HostStep":
        """Arrays of N environments to write steps to; `obs` are the parts of the observation."""
        terminated, truncated, diverged = np.zeros((3, count), bool)
        return cls(obs, np.zeros(count, np.float32), terminated, truncated, diverged=diverged)

    def rows(self, start: int, stop: int) -> "HostStep":
        """Views of some environments' rows; `obs` are the parts of the observation."""
        obs = tuple(part[start:stop] for part in self.obs)
        return HostStep(obs, *(None if x is None else x[start:stop] for x in self[1:]))

    def copied(self, obs: Any) -> "HostStep":
        """An observation with copies of the other arrays."""
        return HostStep(obs, *(None if x is None else x.copy() for x in self[1:]))
