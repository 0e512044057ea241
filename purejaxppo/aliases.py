"""Names of arrays and pytrees in annotations.

Python's types do not know the structure of a pytree; an alias says what a tree is instead. Shapes
are in the docstrings of functions and beside the fields of records.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Array = jax.Array
"""An array of numbers or booleans."""

Scalar = jax.Array | float
"""One number, or an array that broadcasts as one does."""

Key = jax.Array
"""A typed PRNG key [], or several [K]; a function that takes one consumes it."""

Tree = Any
"""Any pytree of arrays."""

Obs = Any
"""Observations: one array [..., *shape], or a dict of them for `Dict` spaces."""

Action = Any
"""Actions as the policy stores them: one array [..., *shape], or a dict of them for products."""

EnvAction = Any
"""Actions as the environment receives them; structured as `Action`."""

EnvState = Any
"""An environment's own state, a pytree that only the environment reads."""

Carry = Any
"""A recurrent carry: a pytree of arrays [N, ...], () for feed-forward networks."""

Params = Any
"""A network's parameters: a dict of dicts of float32 arrays."""

OptState = Any
"""An optax state over the parameters as one flat vector [P]."""

ObsBuffer = Any
"""An `ObsStorage`'s data of a rollout besides its rows; () where the rows are the observations."""

StoredObs = Any
"""Rows of an `ObsStorage` [..., N]: observations, or the positions of their windows."""

MetricDict = dict[str, jax.Array]
"""Numbers [] by their names on the dashboard."""

InitialCarry = Callable[[tuple[int, ...]], Carry]
"""Shape of a batch, such as (N,) -> the carry at an episode's start."""


class Reduce(Protocol):
    """A reduction of a pytree over all shards, such as their sum; on each shard the same result."""

    def __call__(self, tree: T, /) -> T:
        """The tree, reduced leaf by leaf; shapes stay the same."""
        ...
