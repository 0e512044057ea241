"""What an environment observes and accepts: frozen, hashable descriptions without behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


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
    """Of a sliding window along the first axis: how many values each step drops at its front and
    appends at its end, 1 or more. A rollout then keeps the series instead of the windows. 0: any
    other observation."""

    @property
    def bounded(self) -> bool:
        """Whether every element has finite bounds on both sides."""
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
