"""Result of a step of simulators on the host. Nothing here imports JAX."""

from typing import Any, NamedTuple

import numpy as np


class PoolStep(NamedTuple):
    """Result of one step of N environments; see `envs.base.EnvStep`."""

    obs: Any  # [N, ...]
    reward: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    diverged: np.ndarray  # [N] bool
    valid: np.ndarray | None = None  # [N] bool; None: the bridge finds it from the ends
    absent: np.ndarray | None = None  # [N] bool; None: no agent ever is
    at_once: np.ndarray | None = None  # [N] bool; None: never

    @classmethod
    def copied(cls, obs: Any, flags: Any) -> "PoolStep":
        """Observations with copies of the buffers of the same names, of a record of buffers."""
        named = flags._asdict().items()
        return cls(obs, **{name: part.copy() for name, part in named if name in cls._fields[1:]})
