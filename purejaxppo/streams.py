"""Random streams by name, beside those that a key is split into.

`jax.random.split(key, n)[i]` is `jax.random.fold_in(key, i)`: a small number folded into a key that
is also split gives a key that is in use already. A stream's number is far above any split's.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.aliases import Key

CURIOSITY = 0x63757269
"""Draws of an intrinsic reward in an update, from the state's key."""
CURIOUS_NETWORKS = 0x63757230
"""Initial networks of an intrinsic reward, from the agent's first key."""
NEW_EPISODES = 0x6E657765
"""Episodes of a rollout that begins with new ones, from the rollout's key."""
POPULATION = 0x706274
"""Selections of a population, from its first member's key."""
ENVIRONMENTS = 0x656E7673
"""Draws of environments in a step of a rollout, from the step's key."""
BEGIN_ROLLOUT = 0x62656769
"""Draws of environments before a rollout, from the rollout's key."""
EVALUATIONS = 0x6576616C
"""Evaluations of a run, from its key."""
EVALUATE = 0x65706973
"""Draws of `evaluate`, from its seed's key, from which a run draws, too."""
AUXILIARY_LOSSES = 0x7465726D
"""Initial parameters of auxiliary losses, from the network's first key."""
VARIATION = 0x76617279
"""Parameters of a randomized episode, from its reset's key, so that the start stays the same."""
CUSTOM_VARIATION = 0x76617230
"""Draws of a simulator's own function for an episode, from its reset's key."""

STAGGER = 0x73746167
"""Parts of the time limit that first episodes begin with, from the first states' key."""


def stream(key: Key, name: int) -> Key:
    """The key of one of the streams named here; of keys [G], that of each."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)  # other keys have an axis of their own
    fold_in = jax.random.fold_in
    return jax.vmap(fold_in, (0, None))(key, name) if typed and key.ndim else fold_in(key, name)


class Keys(NamedTuple):
    """The keys of one update."""

    next: Key
    """The state's key after the update."""
    act: Key
    """Key of actions, and of the environments' first states where these are drawn anew."""
    update: Key
    """Key of minibatches."""
    bonus: Key
    """Key of an intrinsic reward."""


def split_keys(key: Key) -> Keys:
    """The keys of an update, from the state's key before it."""
    return Keys._make([*jax.random.split(key, 3), stream(key, CURIOSITY)])
