"""Spaces of observations and actions: frozen, hashable descriptions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

LARGEST = 1e10
"""The largest magnitude of a float in observations and rewards: beyond it a simulator has diverged,
as with NaN. Squares and their sums over a rollout stay far within float32."""


@dataclass(frozen=True)
class Box:
    """Arrays of a fixed shape and dtype, between `low` and `high` (scalars or one per element).

    Bounds are nested tuples or floats, so that the space can be hashed.
    """

    shape: tuple[int, ...]
    low: float | tuple = -np.inf
    high: float | tuple = np.inf
    dtype: str = "float32"
    slide: int = 0
    """Values that each step drops at the front and appends at the end of a sliding window along the
    first axis, 1 or more. A rollout then stores the series instead of the windows. 0: any other
    observation."""

    @classmethod
    def between(cls, low: np.ndarray, high: np.ndarray, dtype: str) -> "Box":
        """A `Box` from arrays of bounds [shape]; bounds that are all equal become one."""
        return cls(low.shape, _hashable(low), _hashable(high), dtype)

    @property
    def bounded(self) -> bool:
        """True if every element has finite bounds on both sides."""
        return bool(np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high)))


@dataclass(frozen=True)
class Discrete:
    """One integer in 0..n-1."""

    n: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Several integers, the i-th in 0..nvec[i]-1, as one int32 array [len(nvec)]."""

    nvec: tuple[int, ...]


@dataclass(frozen=True)
class Dict:
    """Named parts, in a fixed order."""

    spaces: tuple[tuple[str, "Space"], ...]

    @classmethod
    def of(cls, spaces: Mapping[str, "Space"]) -> "Dict":
        """A `Dict` from a mapping, with keys sorted as JAX sorts the keys of a dict pytree."""
        return cls(tuple(sorted(spaces.items())))

    def __getitem__(self, name: str) -> "Space":
        """The part called `name`; KeyError if there is none."""
        return dict(self.spaces)[name]


Space = Box | Discrete | MultiDiscrete | Dict

MASK = "action_mask"
"""The part of a `Dict` observation that is the mask of allowed discrete actions: no encoder reads
it, and forbidden actions are never chosen."""


def example(space: Space) -> Any:
    """A value of zeros, without a batch axis, as numpy arrays."""
    match space:
        case Dict(parts):
            return {name: example(part) for name, part in parts}
        case Box(shape, dtype=dtype):
            return np.zeros(shape, dtype)
        case MultiDiscrete(nvec):
            return np.zeros(len(nvec), np.int32)
    return np.zeros((), np.int32)


WIDE = ("float64", "int64", "int16", "uint32", "uint64")
"""Dtypes that JAX, or the code that reads observations, would narrow."""


def narrow(dtype: Any, low: np.ndarray, high: np.ndarray) -> str:
    """The dtype for numbers between bounds: uint8, int32 or float32.

    Integers beyond the range of int32 become floats, which rounds them instead of wrapping around.
    """
    if np.dtype(dtype) == np.uint8:
        return "uint8"
    limits = np.iinfo(np.int32)
    fits = np.all(low >= limits.min) and np.all(high <= limits.max)
    whole = not np.issubdtype(dtype, np.floating)
    return "int32" if whole and fits else "float32"


def convert(space: Any) -> Space:
    """Converts a space of Gymnasium (or of gymnax or EnvPool, which are alike).

    Raises:
        ValueError: a kind that policies cannot read or write.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return Discrete(int(space.n))
    if kind == "MultiDiscrete" and np.ndim(space.nvec) == 1:
        return MultiDiscrete(tuple(int(n) for n in space.nvec))
    if kind == "MultiBinary":
        return Box(tuple(np.atleast_1d(space.shape).tolist()), 0.0, 1.0)
    if kind == "Dict":
        return Dict.of({name: convert(part) for name, part in space.spaces.items()})
    if kind == "Box":
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float64), space.shape)
            for bound in (space.low, space.high)
        )
        if 0 in space.shape:
            raise ValueError(f"a Box of shape {space.shape} holds nothing")
        dtype = str(np.dtype(space.dtype))
        return Box.between(low, high, narrow(dtype, low, high) if dtype in WIDE else dtype)
    raise ValueError(
        f"a space of kind {kind} is not supported; Box, Discrete, MultiDiscrete, MultiBinary and "
        f"Dict are"
    )


def _hashable(bound: np.ndarray) -> float | tuple:
    """One float if all are equal, else nested tuples."""
    if bound.size and np.all(bound == bound.flat[0]):
        return float(bound.flat[0])
    return _nest(bound)


def _nest(bound: np.ndarray) -> Any:
    return tuple(_nest(row) for row in bound) if bound.ndim else float(bound)
