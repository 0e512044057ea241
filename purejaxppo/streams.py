"""Random streams by name, beside those that a key is split into.

`jax.random.split(key, n)[i]` is `jax.random.fold_in(key, i)`: a small number folded into a key that
is also split gives a key that is in use already. A stream's number is far above any split's.
"""

import jax

CURIOSITY = 0x63757269
"""What an intrinsic reward draws in an update, of the state's key."""
CURIOUS_NETWORKS = 0x63757230
"""The networks of an intrinsic reward, of the agent's first key."""
NEW_EPISODES = 0x65706973
"""The episodes of a rollout that begins with new ones, of the key that it acts by."""
POPULATION = 0x706274
"""Selections of a population, of its first member's key."""


def stream(key, name: int):
    """The key of a stream, of those named here."""
    return jax.random.fold_in(key, name)
