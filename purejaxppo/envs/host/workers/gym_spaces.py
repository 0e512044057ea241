"""Conversion of Gymnasium-like spaces and their elements to and from `purejaxppo.spaces`.

This module does not import JAX, because worker processes import it.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.envs.host.workers.errors import MakeError
from purejaxppo.envs.host.workers.resolution import Range
from purejaxppo.envs.native import (
    NativeArray,
    NativeComposite,
    NativeSpace,
    NativeSpaces,
    arrays_in,
    first_outside,
    space_of,
)
from purejaxppo.envs.native import decoder as decoder_of
from purejaxppo.spaces import (
    MASK,
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Space,
    element_name,
    leaves,
    tree_of,
)

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
NARROWED_DTYPES = ("float64", "int64", "int16", "uint32", "uint64")
"""Dtypes that JAX, or code that reads observations, would convert to narrower ones."""


def observation_space(space: Any) -> Space:
    """Convert a Gymnasium observation space to a `Space`. A Tuple becomes a Dict with keys "0", ...

    Raises:
        MakeError: the elements of a space are not arrays of one shape.
    """
    return space_of(native_form(space))


def action_space(space: Any) -> Space:
    """Convert a Gymnasium action space to a `Space`. A Tuple becomes a Dict with keys "0", ...

    Raises:
        MakeError: a part is neither a Box with a float dtype nor discrete.
    """
    form = native_form(space, role="action")
    for _, array in arrays_in(form):
        if isinstance(array.space, Box) and np.dtype(array.dtype).kind != "f":
            raise MakeError(
                f"the action space contains a Box with dtype {array.dtype}, which is not "
                f"supported. Use a Box with a float dtype, Discrete or MultiDiscrete."
            )
    return space_of(form)


def _plain_space(space: Any, role: str) -> Space:
    """Convert a space that is neither a Dict nor a Tuple."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        if 0 in space.shape:
            raise MakeError(f"the {role} space contains an empty Box of shape {space.shape}.")
        low, high = space.low.astype(float), space.high.astype(float)
        return Box.between(low, high, stored_dtype(space.dtype, low, high))
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.flat))
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * math.prod(space.shape))
    raise MakeError(f"the {role} space {type(space).__name__} is not supported. Use {SUPPORTED}.")


def convert(space: Any) -> Space:
    """Convert a space of gymnax or EnvPool, whose classes have the names of Gymnasium's.

    Raises:
        ValueError: an unsupported space.
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
            raise ValueError(f"a Box of shape {space.shape} has no elements")
        dtype = str(np.dtype(space.dtype))
        return Box.between(
            low, high, stored_dtype(dtype, low, high) if dtype in NARROWED_DTYPES else dtype
        )
    raise ValueError(
        f"the space {kind} is not supported. Supported: Box, Discrete, MultiDiscrete, MultiBinary, "
        f"Dict."
    )


def stored_dtype(dtype: Any, low: np.ndarray, high: np.ndarray) -> str:
    """Return the dtype for numbers between bounds: uint8, int32 or float32.

    Integers beyond the range of int32 are stored as float32, which rounds but does not wrap around.
    """
    if np.dtype(dtype) == np.uint8:
        return "uint8"
    limits = np.iinfo(np.int32)
    fits = np.all(low >= limits.min) and np.all(high <= limits.max)
    is_integer = not np.issubdtype(dtype, np.floating)
    return "int32" if is_integer and fits else "float32"


def native_form(space: Any, *, role: str = "observation", is_mask: bool = False) -> NativeSpace:
    """Return the form of a Gymnasium space's elements.

    Args:
        space: a space of Gymnasium.
        role: "observation" or "action", for messages.
        is_mask: True for a part named `action_mask`, which has zeros and ones on one axis.

    Raises:
        MakeError: the elements of a space are not arrays of one shape.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple | spaces.Dict) and not len(space):
        kind = type(space).__name__
        raise MakeError(f"the {role} space contains an empty {kind}.")
    if isinstance(space, spaces.Tuple):
        tuple_parts = ((i, native_form(part, role=role)) for i, part in enumerate(space))
        return NativeComposite(tuple(tuple_parts), is_tuple=True)
    if isinstance(space, spaces.Dict):
        return NativeComposite(
            tuple(
                (key, native_form(part, role=role, is_mask=is_mask or key == MASK))
                for key, part in space.items()
            )
        )
    if is_mask and isinstance(space, spaces.Box | spaces.MultiBinary):
        stored_space: Any = Box((math.prod(space.shape),), 0.0, 1.0, "uint8")
    else:
        stored_space = _plain_space(space, role)
    start = np.asarray(getattr(space, "start", 0))
    return NativeArray(stored_space, tuple(space.shape), str(space.dtype), _nested(start.tolist()))


def _nested(numbers: Any) -> Any:
    """Convert nested lists of numbers to nested tuples."""
    return tuple(map(_nested, numbers)) if isinstance(numbers, list) else numbers


def native(observation: Any, action: Any) -> NativeSpaces:
    """Return the forms of a Gymnasium environment's observations and actions."""
    return NativeSpaces(native_form(observation), native_form(action))


def decoder(space: Any) -> Callable[[Any], Any]:
    """Return a function from a policy's action (an array or a dict) to a Gymnasium action."""
    return decoder_of(native_form(space))


class Source(NamedTuple):
    """The part of a Gymnasium observation that becomes one array."""

    name: str  # name in messages
    keys: tuple[Any, ...]  # path of keys in Gymnasium's observation
    shape: tuple[int, ...]  # shape in Gymnasium's observation
    start: Any  # smallest integer of a discrete space; None for a Box
    kind: str  # description of the space in messages
    limits: tuple[Any, Any] | None  # smallest and largest stored integer; None for floats
    exact: frozenset[np.dtype]  # dtypes with values that can all be stored
    range: Range | None  # range of the first values of a Box


BOOL = np.dtype(bool)
INTEGERS = frozenset(np.dtype(code) for code in np.typecodes["AllInteger"])
FLOATS = frozenset(np.dtype(code) for code in np.typecodes["Float"])


def sources(space: Any, name: str = "observation", keys: tuple[Any, ...] = ()) -> Iterator[Source]:
    """Yield the parts of a Gymnasium observation, in the order of `leaves`.

    Args:
        space: space of the part at `keys` of an observation.
        name: name of this part, for messages.
        keys: path of keys in the observation.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        for key, part in sorted(parts, key=lambda pair: str(pair[0])):
            yield from sources(part, f"{name}.{key}", (*keys, key))
        return
    start: Any = None
    limits: tuple[Any, Any] | None = None
    if isinstance(space, spaces.Discrete):
        start, kind = np.int64(space.start), str(space)  # an int would take the observation's dtype
        limits = int(start), int(start) + int(space.n) - 1
    elif isinstance(space, spaces.MultiDiscrete):
        start, kind = space.start, "MultiDiscrete"
        limits = start, start + (space.nvec - 1)
    else:
        kind = MASK if MASK in keys else f"{type(space).__name__}, {space.dtype}"
        if MASK in keys or isinstance(space, spaces.MultiBinary) or space.dtype == BOOL:
            limits = 0, 1
        elif not np.issubdtype(space.dtype, np.floating):
            limits = _integer_range(space)
    value_range = Range(name) if isinstance(space, spaces.Box) else None
    yield Source(name, keys, space.shape, start, kind, limits, _exact_dtypes(limits), value_range)


def _integer_range(space: Any) -> tuple[int, int]:
    """Return the smallest and largest integers that a Box and its `Space` can both hold."""
    stored = stored_dtype(space.dtype, space.low.astype(float), space.high.astype(float))
    ranges = [np.iinfo(dtype) for dtype in (space.dtype, stored) if dtype != "float32"]
    return max(int(dtype.min) for dtype in ranges), min(int(dtype.max) for dtype in ranges)


def _exact_dtypes(limits: tuple[Any, Any] | None) -> frozenset[np.dtype]:
    """Return the dtypes whose values are all within `limits`; None: all numeric dtypes."""
    if limits is None:
        return INTEGERS | FLOATS | {BOOL}
    smallest, largest = np.max(limits[0]), np.min(limits[1])
    ranges = {dtype: np.iinfo(dtype) for dtype in INTEGERS}
    exact = {
        dtype for dtype, info in ranges.items() if smallest <= info.min and info.max <= largest
    }
    return frozenset(exact | ({BOOL} if smallest <= 0 and largest >= 1 else set()))


def read(source: Source, obs: Any) -> np.ndarray:
    """Read one array of a Gymnasium observation, in Gymnasium's shape.

    Raises:
        MakeError: the array is missing, has another shape than its space, or has a value that the
            space does not contain.
    """
    part = _array(source, obs)
    if part.shape != source.shape:
        raise MakeError(
            f"{source.name} has shape {part.shape}, but its space has shape {source.shape}. Return "
            f"an array of that shape in the environment or a wrapper, or change the space."
        )
    if part.dtype not in source.exact:
        _check_values(source, part)
    if source.range is not None and source.range.is_open:
        source.range.add(part)
    return part if source.start is None else part - source.start


def _array(source: Source, obs: Any) -> np.ndarray:
    """Return the part of an observation that `source` names, before other checks.

    Raises:
        MakeError: the part is missing, or cannot be converted to an array.
    """
    for key in source.keys:
        try:
            obs = obs[key]
        except (KeyError, IndexError, TypeError):
            raise MakeError(
                f"{source.name} is missing from {_describe_container(obs)}. Return every part of "
                f"the observation space, or change the space."
            ) from None
    if obs is not None:
        with contextlib.suppress(TypeError, ValueError):
            return np.asarray(obs)
    value = "None" if obs is None else f"a {type(obs).__name__} of arrays with different shapes"
    raise MakeError(
        f"{source.name} is {value}, but its space has shape {source.shape}. Return an array of "
        f"that shape in the environment or a wrapper, or change the space."
    )


def _describe_container(obs: Any) -> str:
    """Describe a value that lacks a part of an observation."""
    if isinstance(obs, Mapping):
        return f"a dict with the keys {', '.join(map(repr, obs)) or '(none)'}"
    if isinstance(obs, tuple | list):
        return f"a {type(obs).__name__} of length {len(obs)}"
    return "None" if obs is None else f"a value of type {type(obs).__name__}, which has no parts"


def _check_values(source: Source, part: np.ndarray) -> None:
    """Raise MakeError if a cast to the dtype of the space would change a value."""
    if part.dtype.kind not in "biufO":
        raise MakeError(_dtype_message(source, part))
    try:
        # Not float32, which would round limits such as 2**31 - 1.
        numbers = part if part.dtype.kind in "iu" else part.astype(np.float64)
    except (TypeError, ValueError):
        raise MakeError(_dtype_message(source, part)) from None
    if source.limits is None:
        return
    smallest, largest = source.limits
    if numbers is part and not part.ndim and smallest <= part.item() <= largest:
        return  # same result as below, much faster
    outside = first_outside(numbers, smallest, largest)
    if outside is None:
        return
    raise MakeError(
        f"{element_name(source.name, outside.at)} = {part[outside.at]!s}, but its space "
        f"({source.kind}) contains integers from {outside.least} to {outside.most}. Return "
        f"integers in this range, or change the space."
    )


def _dtype_message(source: Source, part: np.ndarray) -> str:
    """Return the error for values that are not numbers."""
    return (
        f"{source.name} has dtype {part.dtype}, but its space ({source.kind}) contains real "
        f"numbers. Return real numbers, or change the space."
    )


def encoder(space: Any, parts: Sequence[Source] = ()) -> Callable[[Any], Any]:
    """Return a function from a Gymnasium observation to an array or a dict of arrays.

    Args:
        space: space of the observation.
        parts: `sources` of the space; computed if empty.
    """
    stored_space, parts = observation_space(space), parts or tuple(sources(space))
    stored_leaves = tuple(leaves(stored_space))

    def encode(obs: Any) -> Any:
        arrays = (
            read(source, obs).reshape(leaf.shape).astype(leaf.dtype)
            for source, leaf in zip(parts, stored_leaves, strict=True)
        )
        return tree_of(stored_space, arrays)

    return encode
