"""Convert between the observations and actions of a simulator and the arrays of a policy.

A policy uses the arrays of a `Space`: integers from 0, dicts, vectors with one axis. A simulator
may use integers from a `start`, tuples, other shapes and other dtypes. `NativeSpace` describes its
spaces. Worker processes import this module, so it avoids JAX: `xp` is `numpy` or `jax.numpy`.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.spaces import (
    LARGEST,
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Space,
    diverged_value,
    element_name,
    leaves,
    short_number,
    tree_of,
)


@dataclass(frozen=True)
class NativeArray:
    """One array of a simulator.

    Args:
        space: space for the policy.
        shape: shape in the simulator.
        dtype: dtype in the simulator.
        start: smallest integers, a number or nested tuples; 0 for a Box.
    """

    space: Box | Discrete | MultiDiscrete
    shape: tuple[int, ...]
    dtype: str
    start: Any = 0


@dataclass(frozen=True)
class NativeComposite:
    """A dict or tuple of native spaces. The policy uses the keys as strings."""

    parts: tuple[tuple[Any, "NativeSpace"], ...]
    is_tuple: bool = False


NativeSpace = NativeArray | NativeComposite


class NativeSpaces(NamedTuple):
    """Observation and action space of a simulator."""

    observation: NativeSpace
    action: NativeSpace | None
    """None if the simulator takes the policy's actions unchanged."""


def form_of(space: Space) -> NativeSpace:
    """Return the native space of a simulator whose arrays need no conversion from `space`."""
    if isinstance(space, Dict):
        return NativeComposite(tuple((name, form_of(part)) for name, part in space.spaces))
    (leaf,) = leaves(space)
    return NativeArray(space, leaf.shape, leaf.dtype)


def space_of(form: NativeSpace) -> Space:
    """Return the space that the policy uses for a simulator's native space."""
    if isinstance(form, NativeArray):
        return form.space
    return Dict.of({str(key): space_of(part) for key, part in form.parts})


def arrays_in(
    form: NativeSpace, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], NativeArray]]:
    """Yield the arrays of a native space with their paths, ordered as `leaves(space_of(form))`."""
    if isinstance(form, NativeArray):
        yield path, form
        return
    for key, part in sorted(form.parts, key=lambda pair: str(pair[0])):
        yield from arrays_in(part, (*path, str(key)))


def example(form: NativeSpace, batch: int) -> Any:
    """Return zeros [batch, ...] of a native space, with dtypes of the policy and string keys."""
    if isinstance(form, NativeArray):
        (leaf,) = leaves(form.space)
        return np.zeros((batch, *form.shape), leaf.dtype)
    if form.is_tuple:
        return tuple(example(part, batch) for _, part in form.parts)
    return {str(key): example(part, batch) for key, part in form.parts}


def decoder(form: NativeSpace, xp: Any = np) -> Callable[[Any], Any]:
    """Return a function that converts arrays of a policy to those of the simulator.

    Arrays may have leading axes. Floats are clipped to their bounds. With `jax.numpy`, dtypes do
    not change.
    """
    if isinstance(form, NativeArray):
        return _array_decoder(form, xp)
    decoders = [(key, decoder(part, xp)) for key, part in form.parts]
    if form.is_tuple:
        return lambda tree: tuple(decode(tree[str(key)]) for key, decode in decoders)
    return lambda tree: {key: decode(tree[str(key)]) for key, decode in decoders}


def _array_decoder(form: NativeArray, xp: Any) -> Callable[[Any], Any]:
    space, shape = form.space, form.shape
    (leaf,) = leaves(space)
    dtype, axes = np.dtype(form.dtype if xp is np else leaf.dtype), len(leaf.shape)

    def shaped(x: Any) -> Any:
        x = xp.asarray(x)
        return x.reshape((*x.shape[: x.ndim - axes], *shape)).astype(dtype)

    if not isinstance(space, Box):
        start = np.asarray(form.start, dtype)
        return lambda x: shaped(x) + start
    if dtype.kind != "f":
        return shaped
    low, high = within(space, dtype)
    return lambda x: xp.minimum(xp.maximum(shaped(x), low), high)


def within(space: Box, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of a Box in a float dtype, rounded towards the inside."""
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    with np.errstate(over="ignore"):
        least, most = low.astype(dtype), high.astype(dtype)
        least = np.where(least < low, np.nextafter(least, most), least)
        most = np.where(most > high, np.nextafter(most, least), most)
    return least, most


def encode(form: NativeSpace, obs: Any, xp: Any) -> Any:
    """Convert a simulator's observation to the policy's arrays, without checks of their values.

    Args:
        form: native observation space.
        obs: arrays [..., *shape] with any leading axes, in dicts and tuples.
        xp: `numpy` or `jax.numpy`.

    Raises:
        ValueError: a key is missing.
    """
    return _encoded(form, [xp.asarray(value) for value in values_in(form, obs)])


def read(form: NativeSpace, obs: Any) -> tuple[Any, bool]:
    """Check observations and convert them to the arrays of a policy.

    Args:
        form: native observation space.
        obs: one observation of the simulator, or a batch with a leading axis.

    Returns:
        Arrays [B, ...], and True if `obs` has no batch axis.

    Raises:
        ValueError: an observation is outside of its space or not finite.
    """
    paths, forms = zip(*arrays_in(form), strict=True)
    try:
        values = [np.asarray(value) for value in values_in(form, obs)]
    except ValueError as error:
        raise ValueError(f"{error}. Pass {_expected(form)}, or a batch of it.") from None
    single = all(value.shape == array.shape for value, array in zip(values, forms, strict=True))
    sizes = {value.shape[:1] for value in values}
    batch = len(sizes) == 1 and all(
        value.shape[:1] != () and value.shape[1:] == array.shape
        for value, array in zip(values, forms, strict=True)
    )
    numeric = all(value.dtype.kind in "biuf" for value in values)
    if not numeric or not (single or batch):
        shapes = {_name(path): value.shape for path, value in zip(paths, values, strict=True)}
        problem = "has shapes" if numeric else "has values that are not numbers, of shapes"
        raise ValueError(
            f"observation {problem} {shapes}. Pass {_expected(form)}, or a batch of it."
        )
    for path, value, array in zip(paths, values, forms, strict=True):
        _check(path, value, array)
    return _encoded(form, [value[None] if single else value for value in values]), single


def values_in(form: NativeSpace, obs: Any) -> list[Any]:
    """Return the arrays of an observation in the order of `arrays_in`.

    A dict may replace a tuple. Unknown keys are ignored, as in training.

    Raises:
        ValueError: a key is missing.
    """
    return [value for _, value in sorted(_values(form, obs, ()), key=operator.itemgetter(0))]


def _values(
    form: NativeSpace, obs: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(form, NativeArray):
        yield path, obs
        return
    if form.is_tuple and isinstance(obs, tuple | list):
        named = {str(i): value for i, value in enumerate(obs)}
    elif isinstance(obs, Mapping):
        named = {str(key): value for key, value in obs.items()}
    else:
        raise ValueError(f"{_name(path)} is a {type(obs).__name__}")
    names = [str(key) for key, _ in form.parts]
    if not named.keys() >= set(names):
        raise ValueError(f"{_name(path)} has the keys {[*named]} instead of {names}")
    for key, part in form.parts:
        yield from _values(part, named[str(key)], (*path, str(key)))


def _encoded(form: NativeSpace, values: list[Any]) -> Any:
    parts = []
    for value, (_, array) in zip(values, arrays_in(form), strict=True):
        (leaf,) = leaves(array.space)
        lead = value.shape[: value.ndim - len(array.shape)]
        shifted = value - np.asarray(array.start) if np.any(array.start) else value
        parts.append(shifted.reshape((*lead, *leaf.shape)).astype(leaf.dtype))
    return tree_of(space_of(form), parts)


def _check(path: tuple[str, ...], value: np.ndarray, array: NativeArray) -> None:
    """Raise ValueError if values are not finite, or integers are outside of their space."""
    diverged = diverged_value(np.zeros(()), [(path, value)])
    if diverged:
        raise ValueError(
            f"{diverged}: observations must be finite and within ±{short_number(LARGEST)}."
        )
    (leaf,) = leaves(array.space)
    if np.dtype(leaf.dtype).kind == "f":
        return
    wrong = first_outside(value, *whole_range(array))
    if wrong is not None:
        raise ValueError(
            f"{element_name(_name(path), wrong.at)} = {value[wrong.at]}: must be an integer from "
            f"{wrong.least} to {wrong.most}."
        )


class WrongValue(NamedTuple):
    """The first value that is not an integer in its range."""

    at: tuple[int, ...]  # index of the value
    least: Any  # smallest integer of its range
    most: Any  # largest integer of its range


def first_outside(value: np.ndarray, low: Any, high: Any) -> WrongValue | None:
    """Return the first value that is not an integer from `low` to `high`, or None.

    Args:
        value: numbers.
        low: smallest integers, broadcast to the shape of `value`.
        high: largest integers, broadcast likewise.
    """
    fits = (value >= low) & (value <= high) & (value == np.floor(value))
    if fits.all():
        return None
    index = tuple(np.argwhere(~fits)[0].tolist())
    least, most = (np.broadcast_to(limit, value.shape)[index] for limit in (low, high))
    return WrongValue(index, least, most)


def whole_range(array: NativeArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest integers of an array of the simulator, [shape] or scalar.

    For a Box, they are the limits of its dtype.
    """
    space = array.space
    if isinstance(space, Box):
        if space.dtype == "bool":
            return np.asarray(0), np.asarray(1)
        info = np.iinfo(space.dtype)
        return np.asarray(info.min), np.asarray(info.max)
    counts = space.n if isinstance(space, Discrete) else np.reshape(space.nvec, array.shape)
    low = np.broadcast_to(array.start, array.shape)
    return low, low + np.asarray(counts) - 1


def _name(path: tuple[str, ...]) -> str:
    return ".".join(("observation", *path))


def _expected(form: NativeSpace) -> str:
    """Describe the kind and shape of each array of a native space."""
    if isinstance(form, NativeArray):
        shape = f" of shape {form.shape}" if form.shape else ""
        return f"{type(form.space).__name__}{shape}"
    inner = [(str(key), _expected(part)) for key, part in form.parts]
    if form.is_tuple:
        return f"({', '.join(part for _, part in inner)})"
    return f"{{{', '.join(f'{key}: {part}' for key, part in inner)}}}"
