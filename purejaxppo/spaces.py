"""Spaces of observations and actions: frozen, hashable descriptions."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

LARGEST = 1e10
"""Largest magnitude of a float in observations and rewards. Beyond it, a simulator has diverged, as
with NaN. Squares and their sums over a rollout still fit into float32."""

FLOAT32_MAX = float(np.finfo(np.float32).max)
"""Largest float32."""


@dataclass(frozen=True)
class Box:
    """Arrays of a fixed shape and dtype, between `low` and `high` (a number or one per element).

    Bounds are floats or nested tuples. The space is therefore hashable.
    """

    shape: tuple[int, ...]
    low: float | tuple = -np.inf
    high: float | tuple = np.inf
    dtype: str = "float32"
    slide: int = 0
    """For sliding windows along the first axis: number of values that each step appends at the end
    and drops at the front, 1 or more. A rollout then stores the series instead of the windows. 0:
    other observations."""

    @classmethod
    def between(cls, low: np.ndarray, high: np.ndarray, dtype: str) -> "Box":
        """Return a `Box` from arrays of bounds [shape].

        Equal bounds become one number. Bounds of at least the largest float32 become infinite.
        """
        low, high = (
            np.where(np.abs(bound) < FLOAT32_MAX, bound, np.copysign(np.inf, bound))
            for bound in (low, high)
        )
        return cls(low.shape, _hashable(low), _hashable(high), dtype)

    @property
    def bounded(self) -> bool:
        """True if the range of every element is below the largest float32.

        Simulators write ±np.finfo(dtype).max for "no bound". Then high - low would overflow.
        """
        low, high = np.asarray(self.low), np.asarray(self.high)
        finite = np.all(np.abs(low) < FLOAT32_MAX) and np.all(np.abs(high) < FLOAT32_MAX)
        return bool(finite and np.all(high - low < FLOAT32_MAX))

    @property
    def is_vector(self) -> bool:
        """True for up to two axes. `ppo.normalize_obs` normalises such observations."""
        return len(self.shape) < 3

    @property
    def is_bytes(self) -> bool:
        """True for uint8 with the full range from 0 to 255. Networks divide such values by 255."""
        low, high = np.asarray(self.low), np.asarray(self.high)
        return self.dtype == "uint8" and bool(np.all(low <= 0) and np.all(high >= 255))


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
    """A space of named subspaces: `Dict({"position": Box((2,)), "fuel": Box((1,))})`."""

    spaces: tuple[tuple[str, "Space"], ...]
    """Pairs in a fixed order. A mapping becomes pairs with sorted names, as in a dict pytree."""

    def __init__(self, spaces: Mapping[str, Any] | Iterable[tuple[str, "Space"]]) -> None:
        """Store pairs; nested mappings become a `Dict` each."""
        if isinstance(spaces, Mapping):
            spaces = sorted(spaces.items())
        pairs = ((name, Dict(x) if isinstance(x, Mapping) else x) for name, x in spaces)
        object.__setattr__(self, "spaces", tuple(pairs))

    @classmethod
    def of(cls, spaces: Mapping[str, "Space"]) -> "Dict":
        """Return `Dict(spaces)`."""
        return cls(spaces)

    def __getitem__(self, name: str) -> "Space":
        """Return the subspace with this name; raise KeyError if it does not exist."""
        return dict(self.spaces)[name]


Space = Box | Discrete | MultiDiscrete | Dict

MASK = "action_mask"
"""Name of the part of a `Dict` observation that is the mask of allowed discrete actions. Encoders
ignore it. Forbidden actions have probability 0."""


def example(space: Space, batch: tuple[int, ...] = ()) -> Any:
    """Return zeros of a space, numpy arrays [*batch, ...]."""
    return tree_of(space, (np.zeros((*batch, *leaf.shape), leaf.dtype) for leaf in leaves(space)))


def network_input(space: Space, *, normalize_obs: bool = True, by_dtype: bool = False) -> Space:
    """Return the space of the observations that networks get. It defines the preprocessing.

    With `normalize_obs`, Boxes that are vectors are normalised and become float32. Other Boxes are
    cast to float32, and divided by 255 if they are `is_bytes`. Discrete parts become one-hot
    vectors. The action mask is not changed.

    Args:
        space: space of the environment's observations.
        normalize_obs: `ppo.normalize_obs`.
        by_dtype: use the rule of version 0.2: only floats are normalised, and all uint8 are bytes.
    """
    if isinstance(space, Dict):
        of = functools.partial(network_input, normalize_obs=normalize_obs, by_dtype=by_dtype)
        parts = ((name, part if name == MASK else of(part)) for name, part in space.spaces)
        return Dict(tuple(parts))
    if not isinstance(space, Box) or np.dtype(space.dtype).kind not in "biu":
        return space
    if by_dtype:
        return replace(space, low=0.0, high=255.0) if space.dtype == "uint8" else space
    return Box(space.shape, slide=space.slide) if space.is_vector and normalize_obs else space


def without_bounds(space: Space) -> Space:
    """Return a space without the bounds of its Boxes, except of bytes, which are divided by 255.

    Two spaces without bounds are equal if a network for one fits the other.
    """
    if isinstance(space, Dict):
        return Dict(tuple((name, without_bounds(part)) for name, part in space.spaces))
    if not isinstance(space, Box) or space.is_bytes:
        return space
    return replace(space, low=-np.inf, high=np.inf, slide=0)


class Leaf(NamedTuple):
    """One array of a space."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str


def leaves(space: Space, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield the path, shape and dtype of each array in an element of `space`, in order."""
    if isinstance(space, Dict):
        for name, part in space.spaces:
            yield from leaves(part, (*path, name))
    elif isinstance(space, Box):
        yield Leaf(path, space.shape, space.dtype)
    elif isinstance(space, MultiDiscrete):
        yield Leaf(path, (len(space.nvec),), "int32")
    else:
        yield Leaf(path, (), "int32")


def tree_of(space: Space, parts: Iterable[np.ndarray]) -> Any:
    """Return a pytree of a space from its arrays, copied, in the order of its leaves."""
    arrays = iter(parts)

    def build(space: Space) -> Any:
        if isinstance(space, Dict):
            return {name: build(part) for name, part in space.spaces}
        return next(arrays).copy()

    return build(space)


def arrays_of(space: Space, tree: Any) -> Iterator[np.ndarray]:
    """Yield the arrays of a pytree in the order of the space's leaves."""
    if isinstance(space, Dict):
        for name, part in space.spaces:
            yield from arrays_of(part, tree[name])
    else:
        yield np.asarray(tree)


NamedArray = tuple[tuple[str, ...], np.ndarray]
"""Path of an array in an observation space, and its value in one environment."""


def diverged_value(reward: np.ndarray, obs: Iterable[NamedArray]) -> str:
    """Return the first diverged value of a step, such as observation[2] = 1.9e12; "" if none.

    Args:
        reward: reward of one environment, scalar.
        obs: parts of its observation.
    """
    for path, array in [(("reward",), reward), *obs]:
        if array.dtype.kind in "biu":
            continue
        values = np.asarray(array, np.float64)
        diverged = np.argwhere(~(np.abs(values) <= LARGEST))
        if len(diverged):
            index = tuple(diverged[0].tolist())
            return f"{element_name(_array_name(path), index)} = {short_number(values[index])}"
    return ""


def element_name(name: str, index: tuple[int, ...]) -> str:
    """Return the name of an array element, such as observation[0, 2]."""
    return f"{name}[{', '.join(map(str, index))}]" if index else name


def short_number(number: float) -> str:
    """Return a number with three digits, such as 1.9e12."""
    return f"{number:.3g}".replace("e+", "e")


def _array_name(path: tuple[str, ...]) -> str:
    """Return the name of an array.

    The observations of multi-agent environments include the rewards, with the path ("reward",).
    """
    return "reward" if path == ("reward",) else ".".join(("observation", *path))


def _hashable(bound: np.ndarray) -> float | tuple:
    """Return one float if all bounds are equal, else nested tuples."""
    if bound.size and np.all(bound == bound.flat[0]):
        return float(bound.flat[0])
    return _nest(bound)


def _nest(bound: np.ndarray) -> Any:
    return tuple(_nest(row) for row in bound) if bound.ndim else float(bound)
