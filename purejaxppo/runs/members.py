"""Agents that train side by side in one program: seeds, hyperparameters, or both.

Every array of a run's state has a leading axis of members, one agent alone included, every tunable
number is one per member, and `Shards` spreads members over devices. Structural settings are the
same for all.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def keep_better(better, best: Any, new: Any) -> Any:
    """Selects `new` where `better` (bool [M]), else `best`; trees of arrays [M, ...]."""

    def choose(old, new):
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, best, new)


def stack(trees: Sequence[Any]) -> Any:
    """Stacks trees of numbers into one tree of arrays with a leading axis, compiling nothing."""
    return jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *trees))
