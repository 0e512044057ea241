"""Observation storage: every observation, or only the time series behind sliding windows.

Consecutive windows of a series share all but a few values. Storing the values instead of the
windows takes T + H numbers per environment instead of T x H, and `read` assembles the windows
that are requested. The numbers are the same, bit for bit.

Both kinds have the same functions, so that rollout and learner work with either one.
Observations are stored as the environment returned them; the policy normalises what it reads.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.agents.decisions import expand, next_entries
from purejaxppo.aliases import Array, EnvState, Obs, ObsBuffer, StoredObs, T
from purejaxppo.parallel import platforms
from purejaxppo.spaces import Box, Space
from purejaxppo.types import Rollout

ROWS, ROWS_ACCELERATED = 4096, 65_536
"""Windows that `WindowedObs.map_rows` assembles at a time, on a CPU and on accelerators."""
IMAGES, IMAGES_ACCELERATED = 512, 16_384
"""Images that `FullObs.map_rows` passes on at a time: convolutions need many times the bytes."""


class FullObs:
    """Stores every observation: rows are the observations themselves, without further storage."""

    def init(self, obs: Obs, length: int, env_state: EnvState) -> ObsBuffer:
        """Storage besides rows, before a rollout of `length` steps from `obs` [N, ...]."""
        del obs, length, env_state
        return ()

    def append(
        self, buffer: ObsBuffer, obs: Obs, start: Array, env_state: EnvState
    ) -> tuple[ObsBuffer, StoredObs]:
        """Stores one row.

        Args:
            buffer: of the rows so far.
            obs: [N, ...].
            start: True if it is an episode's first, bool [N].
            env_state: of the environments after they have returned it.

        Returns:
            (buffer, row [N]).
        """
        del start, env_state
        return buffer, obs

    def read(self, buffer: ObsBuffer, rows: StoredObs) -> Obs:
        """The observations [*B, ...] of rows [*B]."""
        del buffer
        return rows

    def map_rows(
        self, function: Callable[..., T], buffer: ObsBuffer, rows: StoredObs, *others: Array
    ) -> T:
        """Applies `function`(observations [T, N, ...], *others) to all rows; images in parts."""
        del buffer
        if max(x.ndim for x in jax.tree.leaves(rows)) < 5:
            return function(rows, *others)
        length, num_envs = others[0].shape
        most = IMAGES_ACCELERATED if platforms.is_accelerated() else IMAGES
        fitting = range(1, max(1, most // num_envs) + 1)
        steps = max(n for n in fitting if length % n == 0)
        parts = jax.tree.map(lambda x: x.reshape((-1, steps, *x.shape[1:])), (rows, *others))
        out = jax.lax.map(lambda part: function(*part), parts)
        return jax.tree.map(lambda x: x.reshape((length, *x.shape[2:])), out)

    def sum_rows(
        self, function: Callable[..., T], buffer: ObsBuffer, rows: StoredObs, *others: Array
    ) -> T:
        """Applies `function`, which sums over the rows that it receives, to all rows [T, N]."""
        del buffer
        return function(rows, *others)


class Series(NamedTuple):
    """The values behind the windows of a rollout."""

    values: Array  # [N, H + T * slide, ...] the first window, then each row's new values
    starts: Array  # [M, H, ...] the windows that episodes begin with
    age: Array  # [N] int32 values since the last start, at most H; H while there was none
    time: Array  # [] int32 rows so far


class WindowPosition(NamedTuple):
    """The position of a window in a `Series`."""

    env: Array  # [N] int32
    first: Array  # [N] int32: the index of its first value in `Series.values`
    origin: Array  # [N] int32: which of `Series.starts` its episode began with
    age: Array  # [N] int32: all but the last `age` values are of that start


StartsOf = Callable[[EnvState], tuple[Array, Array]]
"""State of the environments -> (windows [M, H, ...] that episodes of this rollout begin with, which
of them each environment's present one began with, int32 [N])."""


class WindowedObs:
    """Stores the series behind observations that are the last H values of it.

    Exact if every row's window is the one before, `slide` values later, or a new episode's first;
    and if those first windows are among some that are known before the rollout.
    Row 0 may be anything.

    Args:
        window: H.
        slide: new values per row.
        starts: the windows that episodes of this rollout begin with.
    """

    def __init__(self, window: int, slide: int, starts: StartsOf) -> None:
        """Stores the sizes and the function that returns the starts."""
        self.window, self.slide, self.starts = window, slide, starts

    def init(self, obs: Array, length: int, env_state: EnvState) -> Series:
        """The first windows, and memory for `length` rows after them."""
        num_envs, *shape = obs.shape[:1] + obs.shape[2:]
        room = jnp.zeros((num_envs, length * self.slide, *shape), obs.dtype)
        return Series(
            values=jnp.concatenate([obs, room], axis=1),
            starts=self.starts(env_state)[0],
            age=jnp.full(num_envs, self.window, jnp.int32),
            time=jnp.zeros((), jnp.int32),
        )

    def append(
        self, buffer: Series, obs: Array, start: Array, env_state: EnvState
    ) -> tuple[Series, WindowPosition]:
        """See `FullObs.append`; the row is its window's position."""
        num_envs = len(obs)
        first = buffer.time * self.slide
        new = obs[:, -self.slide :]
        begins = start & (buffer.time > 0)
        older = jnp.minimum(buffer.age + self.slide, self.window)
        age = jnp.where(begins, 0, older)
        buffer = buffer._replace(
            values=jax.lax.dynamic_update_slice_in_dim(
                buffer.values, new, first + self.window - self.slide, axis=1
            ),
            age=age,
            time=buffer.time + 1,
        )
        row = WindowPosition(
            env=jnp.arange(num_envs, dtype=jnp.int32),
            first=jnp.broadcast_to(first, num_envs),
            origin=self.starts(env_state)[1],
            age=age,
        )
        return buffer, row

    def read(self, buffer: Series, rows: WindowPosition) -> Array:
        """See `FullObs.read`; it takes as long as reading stored windows."""
        values = _stretches(buffer.values, rows.env, rows.first, self.window)
        padded = jnp.concatenate([buffer.starts, jnp.zeros_like(buffer.starts)], axis=1)
        start = _stretches(padded, rows.origin, rows.age, self.window)
        old = jnp.arange(self.window) + rows.age[..., None] < self.window
        return jnp.where(expand(old, values), start, values)

    def map_rows(
        self, function: Callable[..., T], buffer: Series, rows: WindowPosition, *others: Array
    ) -> T:
        """See `FullObs.map_rows`; some rows of time at once, so that few windows exist."""
        num_envs = rows.env.shape[1]
        most = ROWS_ACCELERATED if platforms.is_accelerated() else ROWS
        return jax.lax.map(
            lambda part: function(self.read(buffer, part[0]), *part[1:]),
            (rows, *others),
            batch_size=max(1, most // num_envs),
        )

    def sum_rows(
        self, function: Callable[..., T], buffer: Series, rows: WindowPosition, *others: Array
    ) -> T:
        """See `FullObs.sum_rows`."""
        parts = self.map_rows(function, buffer, rows, *others)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), parts)


ObsStorage = FullObs | WindowedObs


def make(space: Space, starts: StartsOf | None) -> ObsStorage:
    """The storage for observations of `space`; windows with unknown starts are stored in full.

    Args:
        space: of an observation.
        starts: as of `WindowedObs`; None if starts are not known before a rollout.
    """
    if isinstance(space, Box) and space.slide and starts is not None:
        return WindowedObs(space.shape[0], space.slide, starts)
    return FullObs()


def before_and_after(storage: ObsStorage, rollout: Rollout) -> tuple[Obs, Obs]:
    """Observations [T, N, ...] before and after each decision, the true last ones of episodes."""
    obs = storage.read(rollout.obs_buffer, rollout.transitions.obs)
    return obs, next_entries(obs, rollout.end.obs, rollout.transitions.absent)


def _stretches(x: Array, env: Array, first: Array, length: int) -> Array:
    """`x[env, first : first + length]` for every pair of numbers in env and first [*B]."""

    def stretch(env: Array, first: Array) -> Array:
        corner: list[Array | int] = [env, first, *[0] * (x.ndim - 2)]
        return jax.lax.dynamic_slice(x, corner, (1, length, *x.shape[2:]))[0]

    for _ in range(env.ndim):
        stretch = jax.vmap(stretch)
    return stretch(env, first)
