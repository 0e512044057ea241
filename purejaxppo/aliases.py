"""Names of arrays and pytrees in annotations.

Python's types cannot express the structure of a pytree; an alias names its content. Shapes are in
the docstrings of functions and next to the fields of records.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Array = jax.Array
"""An array of numbers or booleans."""

Scalar = jax.Array | float
"""A number, or an array that broadcasts like one."""

Key = jax.Array
"""A typed PRNG key, or an array of K keys, [K]. Do not use a key again after a function got it."""

Tree = Any
"""Any pytree of arrays."""

Obs = Any
"""Observations: an array [..., *shape], or a dict of them for `Dict` spaces."""

Action = Any
"""Actions as the policy stores them: an array [..., *shape], or a dict of them for composite
spaces."""

EnvAction = Any
"""Actions as the environment receives them, with the structure of `Action`."""

EnvState = Any
"""State of an environment, a pytree that only the environment reads."""

Carry = Any
"""A recurrent carry: a pytree of arrays [N, ...], () for feed-forward networks."""

Params = Any
"""Parameters of a network: a dict of dicts of float32 arrays."""

OptState = Any
"""State of an optax optimiser over the parameters as one flat vector [P]."""

ObsBuffer = Any
"""Data of an `ObsStorage` behind the rows of a rollout; () if rows are the observations."""

StoredObs = Any
"""Rows of an `ObsStorage` [..., N]: observations, or the positions of their windows."""

MetricDict = dict[str, jax.Array]
"""Scalar metrics by name."""

InitialCarry = Callable[[tuple[int, ...]], Carry]
"""Batch shape, such as (N,) -> carry at the start of an episode."""


class Reduce(Protocol):
    """Type of a function that reduces a pytree over all shards, such as `Shards.psum`.

    Every shard gets the same result.
    """

    def __call__(self, tree: T, /) -> T:
        """Reduce each leaf of a tree; shapes stay the same."""
        ...
