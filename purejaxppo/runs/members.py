"""Agents that train side by side in one program: seeds, hyperparameters, or both.

Every array of a run's state has a leading axis of members, one agent alone included, every tunable
number is one per member, and `Shards` spreads members over devices. Structural settings are the
same for all.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.config.schema import Config


def seeds_of(config: Config) -> list[Config]:
    """The members of a run of `config.num_seeds` seeds: `seed`, `seed` + 1 and so on."""
    return [
        dataclasses.replace(config, seed=config.seed + i, num_seeds=1)
        for i in range(config.num_seeds)
    ]


def check_vmappable(config: Config) -> None:
    """Raises ValueError for the setting that only an agent that trains alone supports."""
    if config.asynchronous:
        raise ValueError(
            "asynchronous = true does not support several agents in one program. Use asynchronous "
            "= false, or train seeds in separate runs."
        )


def keep_better(better, best: Any, new: Any) -> Any:
    """Selects `new` where `better` (bool [M]), else `best`; trees of arrays [M, ...]."""

    def choose(old, new):
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, best, new)


def stack(trees: Sequence[Any]) -> Any:
    """Stacks trees of numbers into one tree of arrays with a leading axis, compiling nothing."""
    return jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *trees))
