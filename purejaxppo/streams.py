"""Named random streams, in addition to the keys from `jax.random.split`.

`jax.random.split(key, n)[i]` equals `jax.random.fold_in(key, i)`. Folding a small number into a key
that is also split would give a key that is already in use. The numbers of streams are therefore
much larger.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.aliases import Key

CURIOSITY = 0x63757269
"""Intrinsic reward in an update, from the state's key."""
CURIOUS_NETWORKS = 0x63757230
"""Initial networks of an intrinsic reward, from the agent's first key."""
NEW_EPISODES = 0x6E657765
"""New episodes at the start of a rollout, from the rollout's key."""
POPULATION = 0x706274
"""Selection in a population, from its first agent's key."""
ENVIRONMENTS = 0x656E7673
"""Environments in a step of a rollout, from the step's key."""
BEGIN_ROLLOUT = 0x62656769
"""Environments before a rollout, from the rollout's key."""
EVALUATIONS = 0x6576616C
"""Evaluations during a run, from its key."""
EVALUATE = 0x65706973
"""`evaluate`, from the key of its seed. A run uses the same key."""
LEARNER = 0x6C656172
"""Initial state of a custom update, from the agent's first key; after a warm start, from the key of
the first shard's state."""
AUXILIARY_LOSSES = 0x7465726D
"""Initial parameters of auxiliary losses, from the network's first key."""
VARIATION = 0x76617279
"""Parameters of a randomised episode, from its reset's key. The reset itself uses the same
random numbers as without them."""
CUSTOM_VARIATION = 0x76617230
"""Parameters that a task's custom function samples for an episode, from its reset's key."""

STUDENT = 0x73747564
"""Actions of a student in a step of a rollout, from the step's key, which the teacher uses."""
STAGGER = 0x73746167
"""Elapsed part of the time limit at the start of first episodes, from the first states' key."""


def stream(key: Key, name: int) -> Key:
    """Return the key of a named stream, of one key or of each of several keys [G]."""
    typed = jnp.issubdtype(
        key.dtype, jax.dtypes.prng_key
    )  # untyped keys have an axis of uint32 numbers
    fold_in = jax.random.fold_in
    return jax.vmap(fold_in, (0, None))(key, name) if typed and key.ndim else fold_in(key, name)


class Keys(NamedTuple):
    """Keys of one update."""

    next: Key
    """Key of the state after the update."""
    act: Key
    """Key of actions, and of new episodes at the start of a rollout."""
    update: Key
    """Key of minibatches."""
    bonus: Key
    """Key of an intrinsic reward."""


def split_keys(key: Key) -> Keys:
    """Split the key of the state before an update."""
    return Keys._make([*jax.random.split(key, 3), stream(key, CURIOSITY)])
