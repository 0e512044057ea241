"""Spaces of Gymnasium and of what is like it: their `Space`, and elements of either as the other's.

Nothing here imports JAX, since worker processes import it.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.envs.host.errors import MakeError
from purejaxppo.envs.native import Array, Form, Native, Parts
from purejaxppo.envs.native import decoder as decoder_of
from purejaxppo.spaces import MASK, Box, Dict, Discrete, MultiDiscrete, Space, leaves, tree_of

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple"
WIDE = ("float64", "int64", "int16", "uint32", "uint64")
"""Dtypes that JAX, or the code that reads observations, would narrow."""


def observation_space(space: Any) -> Space:
    """A Gymnasium observation space as a `Space`; a Tuple is a Dict with keys "0", "1", ...

    Raises:
        MakeError: a space whose elements are not arrays of one shape.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return Dict.of(
            {
                str(name): _mask(part) if name == MASK else observation_space(part)
                for name, part in space.items()
            }
        )
    if isinstance(space, spaces.Tuple):
        return Dict.of({str(i): observation_space(part) for i, part in enumerate(space)})
    return _plain_space(space, "observation", SUPPORTED)


def _mask(space: Any) -> Space:
    """Space of a part called `action_mask`, any space of zeros and ones: uint8 with one axis."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return Box((math.prod(space.shape),), 0.0, 1.0, "uint8")
    if isinstance(space, spaces.Dict):
        return Dict.of({str(name): _mask(part) for name, part in space.items()})
    return observation_space(space)


def action_space(space: Any) -> Space:
    """A Gymnasium action space as a `Space`; a Tuple is a Dict with keys "0", "1", ...

    Raises:
        MakeError: a part is neither a Box of floats nor discrete.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return Dict.of({str(name): action_space(part) for name, part in space.items()})
    if isinstance(space, spaces.Tuple):
        return Dict.of({str(i): action_space(part) for i, part in enumerate(space)})
    if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        raise MakeError(f"actions in a Box of {space.dtype} are not supported, only floats are")
    return _plain_space(space, "action", SUPPORTED)


def _plain_space(space: Any, role: str, supported: str) -> Space:
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        if 0 in space.shape:
            raise MakeError(f"the {role} space has a part of shape {space.shape}: nothing")
        low, high = space.low.astype(float), space.high.astype(float)
        return Box.between(low, high, narrow(space.dtype, low, high))
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.flat))
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * math.prod(space.shape))
    raise MakeError(f"the {role} space {type(space).__name__} is not supported; {supported} are")


def convert(space: Any) -> Space:
    """Converts a space of gymnax or EnvPool, whose kinds have the names of Gymnasium's.

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


def native_form(space: Any, *, is_mask: bool = False) -> Form:
    """The form of a Gymnasium space's elements, for observations and for actions.

    Args:
        space: of Gymnasium.
        is_mask: it is that of a part called `action_mask`.

    Raises:
        MakeError: as `observation_space`.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return Parts(tuple((i, native_form(part)) for i, part in enumerate(space)), is_tuple=True)
    if isinstance(space, spaces.Dict):
        parts = space.items()
        return Parts(
            tuple((key, native_form(part, is_mask=is_mask or key == MASK)) for key, part in parts)
        )
    ours: Any = _mask(space) if is_mask else _plain_space(space, "observation", SUPPORTED)
    start = np.asarray(getattr(space, "start", 0))
    return Array(ours, tuple(space.shape), str(space.dtype), _nested(start.tolist()))


def _nested(numbers: Any) -> Any:
    """Nested lists of numbers as nested tuples."""
    return tuple(map(_nested, numbers)) if isinstance(numbers, list) else numbers


def native(observation: Any, action: Any) -> Native:
    """The forms of a Gymnasium environment's observations and actions."""
    return Native(native_form(observation), native_form(action))


def decoder(space: Any) -> Callable[[Any], Any]:
    """A function from a policy's action (an array, or a dict) to one of a Gymnasium space."""
    return decoder_of(native_form(space))


class Source(NamedTuple):
    """The part of a Gymnasium observation that one array is read from."""

    keys: tuple[Any, ...]  # into Gymnasium's observation
    shape: tuple[int, ...]  # there
    start: Any  # the smallest of its integers; None for a Box


def sources(space: Any, keys: tuple[Any, ...] = ()) -> Iterator[Source]:
    """Parts of a Gymnasium observation, in the order of `leaves`."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        for key, part in sorted(parts, key=lambda pair: str(pair[0])):
            yield from sources(part, (*keys, key))
    else:
        plain = isinstance(space, spaces.Box | spaces.MultiBinary)
        yield Source(keys, space.shape, None if plain else space.start)


def read(source: Source, obs: Any) -> np.ndarray:
    """One array of a Gymnasium observation, in Gymnasium's shape.

    Raises:
        ValueError: its shape is not that of its space.
    """
    for key in source.keys:
        obs = obs[key]
    part = np.asarray(obs)
    if part.shape != source.shape:
        name = "".join(f"[{key!r}]" for key in source.keys)
        raise ValueError(
            f"the observation{name} has shape {part.shape}, "
            f"but observation_space says {source.shape}"
        )
    return part if source.start is None else part - source.start


def encoder(space: Any) -> Callable[[Any], Any]:
    """A function from a Gymnasium observation to an array or a dict of them."""
    ours, places = observation_space(space), tuple(sources(space))
    kinds = tuple(leaves(ours))

    def encode(obs: Any) -> Any:
        arrays = (
            read(source, obs).reshape(leaf.shape).astype(leaf.dtype)
            for source, leaf in zip(places, kinds, strict=True)
        )
        return tree_of(ours, arrays)

    return encode
