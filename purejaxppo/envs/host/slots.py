"""Gymnasium environments that step one after another into shared arrays, with next-step reset.

Nothing here imports JAX, since worker processes import it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.envs.host.errors import MakeError
from purejaxppo.spaces import LARGEST, MASK, Box, Dict, Discrete, MultiDiscrete, Space, narrow

ALIGNMENT = 64  # bytes: a cache line
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple"
TRIES = 3  # resets before one that returns NaN is an error


class Buffers(NamedTuple):
    """Arrays in shared memory between a batch of N environments and its owner."""

    action: tuple[np.ndarray, ...]  # [N, ...] each: the action's parts in order of their paths
    obs: tuple[np.ndarray, ...]  # [N, ...] each: the observation's parts in order of their paths
    reward: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    valid: np.ndarray  # [N] bool
    diverged: np.ndarray  # [N] bool

    def rows(self, start: int, stop: int) -> "Buffers":
        """Views of some environments' rows."""
        action, obs = (tuple(part[start:stop] for part in parts) for parts in self[:2])
        return Buffers(action, obs, *(part[start:stop] for part in self[2:]))


class Leaf(NamedTuple):
    """One array of a space."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str


def leaves(space: Space, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """The arrays that an element of a space consists of, in order."""
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
    """A copy of an element's arrays, in the order of the space's leaves, as its pytree."""
    rest = iter(parts)

    def build(space: Space) -> Any:
        if isinstance(space, Dict):
            return {name: build(part) for name, part in space.spaces}
        return next(rest).copy()

    return build(space)


def arrays_of(space: Space, tree: Any) -> Iterator[np.ndarray]:
    """The arrays of a pytree, in the order of the space's leaves."""
    if isinstance(space, Dict):
        for name, part in space.spaces:
            yield from arrays_of(part, tree[name])
    else:
        yield np.asarray(tree)


def size_of(observation: Space, action: Space, num_envs: int) -> int:
    """The bytes that the buffers of N environments take."""
    return _places(observation, action, num_envs)[1]


def buffers(memory: Any, observation: Space, action: Space, num_envs: int) -> Buffers:
    """The buffers of N environments in `memory`, which has `size_of` bytes."""
    places, _ = _places(observation, action, num_envs)
    arrays = [np.ndarray(shape, dtype, memory, offset) for shape, dtype, offset in places]
    acts = len(list(leaves(action)))
    return Buffers(tuple(arrays[:acts]), tuple(arrays[acts:-5]), *arrays[-5:])


def _places(observation: Space, action: Space, num_envs: int):
    """(shape, dtype, offset) of each array, and the bytes of all."""
    places, end = [], 0
    rest = [Leaf((), (), "float32"), *[Leaf((), (), "bool")] * 4]
    for leaf in [*leaves(action), *leaves(observation), *rest]:
        shape = (num_envs, *leaf.shape)
        places.append((shape, leaf.dtype, end))
        size = math.prod(shape) * np.dtype(leaf.dtype).itemsize
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return places, end


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


def decoder(space: Any) -> Callable[[Any], Any]:
    """A function from a policy's action (an array, or a dict) to one of a Gymnasium space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        named = {name: decoder(part) for name, part in space.items()}
        return lambda tree: {name: decode(tree[str(name)]) for name, decode in named.items()}
    if isinstance(space, spaces.Tuple):
        listed = [decoder(part) for part in space]
        return lambda tree: tuple(decode(tree[str(i)]) for i, decode in enumerate(listed))
    if isinstance(space, spaces.Box):
        # Bounds in float64 may lie inside their own float32 rounding.
        low, high, dtype = space.low, space.high, space.dtype
        return lambda row: np.minimum(np.maximum(row.astype(dtype), low), high)
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda row: np.int64(start + row)
    shape, dtype = space.shape, space.dtype
    start = getattr(space, "start", 0)
    return lambda row: row.astype(dtype).reshape(shape) + start


def read(source: "Source", obs: Any) -> np.ndarray:
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


class Lanes:
    """Some environments of a batch, stepped one after another.

    Args:
        envs: Gymnasium environments with the same spaces.
        start: the first one's index in the batch.
    """

    def __init__(self, envs: Sequence[Any], start: int) -> None:
        """Reads the spaces."""
        self.envs = envs
        self.start = start
        self.at = 0
        """Index in `envs` of the environment that is being stepped."""
        self.observation = observation_space(envs[0].observation_space)
        self.action = action_space(envs[0].action_space)
        self._decode = [decoder(env.action_space) for env in envs]
        self._sources = [tuple(sources(env.observation_space)) for env in envs]
        self._over = np.zeros(len(envs), bool)
        for lane, env in enumerate(envs):
            self.at = lane
            observation = observation_space(env.observation_space)
            if (observation, action_space(env.action_space)) != (self.observation, self.action):
                raise ValueError("its spaces are not those of the environments before it")

    def bind(self, shared: Buffers) -> None:
        """Sets the arrays [len(envs), ...] to read actions from and to write results to."""
        self._buffers = shared

    def reset(self, seed: int) -> None:
        """Starts every environment's episode; environment i of the batch is seeded seed + i."""
        self._buffers.reward[:] = 0
        for lane in range(len(self.envs)):
            self.at = lane
            self._first(lane, seed + self.start + lane)
        self._over = np.zeros(len(self.envs), bool)

    def step(self) -> None:
        """Steps each environment by its action; one whose episode is over resets instead."""
        out = self._buffers
        results = []
        for lane in range(len(self.envs)):
            self.at = lane
            results.append(self._advance(lane))
        for lane, (obs, *_) in enumerate(results):
            self.at = lane
            self._write(lane, obs)
        _, rewards, terminated, truncated = zip(*results, strict=True)
        with np.errstate(over="ignore"):  # an infinite reward is contained like another
            out.reward[:] = rewards
        out.terminated[:] = terminated
        out.truncated[:] = truncated
        out.valid[:] = ~self._over
        out.diverged[:] = out.valid & ~self._bounded()
        if out.diverged.any():
            self._contain()
        out.truncated[out.terminated] = False
        self._over = out.terminated | out.truncated

    def close(self) -> None:
        """Closes every environment."""
        for env in self.envs:
            env.close()

    def _advance(self, lane: int) -> tuple[Any, float, bool, bool]:
        if self._over[lane]:
            return self._first(lane, None), 0.0, False, False
        parts = [part[lane] for part in self._buffers.action]
        action = self._decode[lane](tree_of(self.action, parts))
        obs, reward, terminated, truncated, _ = self.envs[lane].step(action)
        return obs, float(reward), bool(terminated), bool(truncated)

    def _first(self, lane: int, seed: int | None) -> Any:
        """An episode's first observation; one with NaN or beyond ±LARGEST is drawn again."""
        for _ in range(TRIES):
            obs, _ = self.envs[lane].reset(seed=seed)
            self._write(lane, obs)
            if all((np.abs(part[lane]) <= LARGEST).all() for part in self._buffers.obs):
                return obs
            seed = None
        raise FloatingPointError(
            f"reset returned NaN, infinity or more than {LARGEST:g} {TRIES} times in a row"
        )

    def _write(self, lane: int, obs: Any) -> None:
        """Writes an observation to its row."""
        for target, source in zip(self._buffers.obs, self._sources[lane], strict=True):
            part = read(source, obs)
            with np.errstate(over="ignore", invalid="ignore"):  # infinity is contained like NaN
                target[lane] = part.reshape(target.shape[1:])

    def _bounded(self) -> np.ndarray:
        """True where observation and reward are not NaN or beyond ±LARGEST, bool [len(envs)]."""
        ok = np.abs(self._buffers.reward) <= LARGEST
        for part in self._buffers.obs:
            if part.dtype == np.float32:
                ok &= (np.abs(part) <= LARGEST).all(axis=tuple(range(1, part.ndim)))
        return ok

    def _contain(self) -> None:
        """Ends the episodes of environments that diverged."""
        bad = self._buffers.diverged
        for part, leaf in zip(self._buffers.obs, leaves(self.observation), strict=True):
            part[bad] = MASK in leaf.path  # a mask must allow something
        self._buffers.reward[bad] = 0
        self._buffers.terminated[bad] = True
