"""Gymnasium environments that step one after another into shared arrays, with next-step reset.

Nothing here imports JAX, since worker processes import it.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.envs.host.gym_spaces import action_space, decoder, observation_space, read, sources
from purejaxppo.envs.host.resolution import Range, lost_digits
from purejaxppo.envs.host.returned import flag, number, pair
from purejaxppo.spaces import (
    LARGEST,
    MASK,
    Leaf,
    Space,
    arrays_of,
    diverged_value,
    leaves,
    plain,
    tree_of,
)

__all__ = ["Buffers", "EnvGroup", "arrays_of", "buffers", "size_of", "tree_of"]

ALIGNMENT = 64  # bytes: a cache line
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


own_errors = np.errstate(all="ignore")
"""Decorator for code that must not depend on `np.seterr`, which environments may call. Infinity and
NaN are handled afterwards."""


def _ranges_of(env: Any) -> list[Range]:
    """Return the ranges of an environment that converts observations itself, such as a world."""
    ranges = getattr(env, "observation_ranges", None)
    return ranges if isinstance(ranges, list) else []


class EnvGroup:
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
        self._ranges = [
            [part.range for part in own if part.range] + _ranges_of(env)
            for env, own in zip(envs, self._sources, strict=True)
        ]
        self._over = np.zeros(len(envs), bool)
        for lane, env in enumerate(envs):
            self.at = lane
            observation = observation_space(env.observation_space)
            if (observation, action_space(env.action_space)) != (self.observation, self.action):
                raise ValueError("its spaces are not those of the environments before it")

    def bind(self, shared: Buffers) -> None:
        """Sets the arrays [len(envs), ...] to read actions from and to write results to."""
        self._buffers = shared

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts every environment's episode, from the seeds of the whole batch."""
        self._buffers.reward[:] = 0
        for lane in range(len(self.envs)):
            self.at = lane
            self._first(lane, seeds[self.start + lane])
        self._over = np.zeros(len(self.envs), bool)

    def step(self) -> str:
        """Steps each environment by its action; one whose episode is over resets instead.

        Returns:
            The first value that diverged, as `diverged_value` names it; "" if none did.
        """
        results = []
        for lane in range(len(self.envs)):
            self.at = lane
            obs, *rest = self._advance(lane)
            self._write(lane, obs)  # before another environment writes to the same buffer
            results.append(rest)
        return self._finish(*zip(*results, strict=True))

    @own_errors
    def _finish(self, rewards: Any, terminated: Any, truncated: Any) -> str:
        """Write the rewards and ends [len(envs)] of a step; return the value that diverged."""
        out = self._buffers
        out.reward[:] = rewards
        out.terminated[:] = terminated
        out.truncated[:] = truncated
        out.valid[:] = ~self._over
        out.diverged[:] = out.valid & ~self._bounded()
        value = self._contain() if out.diverged.any() else ""
        out.truncated[out.terminated] = False
        self._over = out.terminated | out.truncated
        return value

    def lost_digits(self) -> str:
        """Return a warning about first observations that float32 cannot distinguish, or ""."""
        return lost_digits(self._ranges)

    def close(self) -> None:
        """Closes every environment."""
        for env in self.envs:
            env.close()

    def _advance(self, lane: int) -> tuple[Any, float, bool, bool]:
        if self._over[lane]:
            return self._first(lane, None), 0.0, False, False
        obs, reward, terminated, truncated, _ = self.envs[lane].step(self._action(lane))
        ends = flag(terminated, "terminated"), flag(truncated, "truncated")
        return obs, number(reward, "reward"), *ends

    @own_errors
    def _action(self, lane: int) -> Any:
        """Return the action of an environment, in its own form."""
        parts = [part[lane] for part in self._buffers.action]
        return self._decode[lane](tree_of(self.action, parts))

    def _first(self, lane: int, seed: int | None) -> Any:
        """An episode's first observation; one with NaN or beyond ±LARGEST is drawn again."""
        for _ in range(TRIES):
            obs, _ = pair(self.envs[lane].reset(seed=seed))
            self._write(lane, obs)
            if self._fits(lane):
                return obs
            seed = None
        raise FloatingPointError(
            f"reset returned {self._value(lane)} in {TRIES} tries; observations must be finite and "
            f"within ±{plain(LARGEST)}"
        )

    @own_errors
    def _fits(self, lane: int) -> bool:
        """Return True if an observation is not NaN and within ±LARGEST everywhere."""
        return all((np.abs(part[lane]) <= LARGEST).all() for part in self._buffers.obs)

    @own_errors
    def _write(self, lane: int, obs: Any) -> None:
        """Writes an observation to its row."""
        for target, source in zip(self._buffers.obs, self._sources[lane], strict=True):
            target[lane] = read(source, obs).reshape(target.shape[1:])

    def _bounded(self) -> np.ndarray:
        """True where observation and reward are not NaN or beyond ±LARGEST, bool [len(envs)]."""
        ok = np.abs(self._buffers.reward) <= LARGEST
        for part in self._buffers.obs:
            if part.dtype == np.float32:
                ok &= (np.abs(part) <= LARGEST).all(axis=tuple(range(1, part.ndim)))
        return ok

    def _value(self, lane: int) -> str:
        """The first value of an environment that diverged."""
        paths = [leaf.path for leaf in leaves(self.observation)]
        obs = zip(paths, (part[lane] for part in self._buffers.obs), strict=True)
        return diverged_value(self._buffers.reward[lane], obs)

    def _contain(self) -> str:
        """Ends the episodes of environments that diverged; returns the first one's value."""
        bad = self._buffers.diverged
        value = self._value(int(bad.argmax()))
        for part, leaf in zip(self._buffers.obs, leaves(self.observation), strict=True):
            part[bad] = MASK in leaf.path  # a mask must allow something
        self._buffers.reward[bad] = 0
        self._buffers.terminated[bad] = True
        return value
