"""Random streams by name, beside those that a key is split into.

`jax.random.split(key, n)[i]` is `jax.random.fold_in(key, i)`: a small number folded into a key that
is also split gives a key that is in use already. A stream's number is far above any split's.
"""

from typing import Any, NamedTuple

import jax

CURIOSITY = 0x63757269
"""What an intrinsic reward draws in an update, of the state's key."""
CURIOUS_NETWORKS = 0x63757230
"""The networks of an intrinsic reward, of the agent's first key."""
NEW_EPISODES = 0x6E657765
"""The episodes of a rollout that begins with new ones, of the key that it acts by."""
POPULATION = 0x706274
"""Selections of a population, of its first member's key."""
EVALUATIONS = 0x6576616C
"""A run's evaluations, of its key."""
EVALUATE = 0x65706973
"""What `evaluate` draws, of the key of its seed, from which a run draws, too."""
VARIATION = 0x76617279
"""What a randomized episode draws, of the key of its reset, so that the start stays the same."""


def stream(key, name: int):
    """The key of a stream, of those named here."""
    return jax.random.fold_in(key, name)


class Keys(NamedTuple):
    """The keys of one update."""

    next: Any
    """The state's key after it."""
    act: Any
    """Actions, and the environments' first states where these are drawn anew."""
    update: Any
    """Minibatches."""
    bonus: Any
    """An intrinsic reward."""


def split_keys(key) -> Keys:
    """The keys of an update, of the state's key before it."""
    return Keys._make([*jax.random.split(key, 3), stream(key, CURIOSITY)])
