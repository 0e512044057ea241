"""Store the observations of a rollout: in full, or as the time series behind sliding windows.

Consecutive windows of H values share all but the last few, `slide`. A series takes H + T x slide
numbers per environment, windows take T x H. `read` assembles the requested windows, with
bit-identical values.

Both storages have the same methods. They store observations as the environment returned them; the
policy normalises them after reading.
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
"""Number of windows that `WindowedObs.map_rows` assembles at a time: on CPUs; on GPUs and TPUs."""
IMAGES, IMAGES_ACCELERATED = 512, 16_384
"""Number of images that `FullObs.map_rows` passes to its function at a time. Convolutions need many
times their memory."""


class FullObs:
    """Store every observation. A stored row is the observation itself; the buffer is empty."""

    def init(self, obs: Obs, length: int, env_state: EnvState) -> ObsBuffer:
        """Return the buffer before a rollout.

        Args:
            obs: first observations [N, ...].
            length: number of steps of the rollout, T.
            env_state: state of the environments.
        """
        del obs, length, env_state
        return ()

    def append(
        self, buffer: ObsBuffer, obs: Obs, start: Array, env_state: EnvState
    ) -> tuple[ObsBuffer, StoredObs]:
        """Store one row.

        Args:
            buffer: buffer with the rows so far.
            obs: observations [N, ...].
            start: True where an observation is the first of an episode, bool [N].
            env_state: state of the environments that returned the observations.

        Returns:
            (buffer, stored row [N]).
        """
        del start, env_state
        return buffer, obs

    def read(self, buffer: ObsBuffer, rows: StoredObs) -> Obs:
        """Return the observations [*B, ...] of stored rows [*B]."""
        del buffer
        return rows

    def map_rows(
        self, function: Callable[..., T], buffer: ObsBuffer, rows: StoredObs, *others: Array
    ) -> T:
        """Apply a function to all rows. Images are passed to it in parts, to save memory.

        Args:
            function: (observations [t, N, ...], *others [t, N, ...]) -> arrays [t, N, ...].
            buffer: buffer with the rows.
            rows: stored rows [T, N].
            others: arrays [T, N, ...].

        Returns:
            Arrays [T, N, ...].
        """
        del buffer
        if max(x.ndim for x in jax.tree.leaves(rows)) < 5:
            return function(rows, *others)
        length, num_envs = others[0].shape
        max_images = IMAGES_ACCELERATED if platforms.is_accelerated() else IMAGES
        candidates = range(1, max(1, max_images // num_envs) + 1)
        steps = max(n for n in candidates if length % n == 0)
        parts = jax.tree.map(lambda x: x.reshape((-1, steps, *x.shape[1:])), (rows, *others))
        out = jax.lax.map(lambda part: function(*part), parts)
        return jax.tree.map(lambda x: x.reshape((length, *x.shape[2:])), out)

    def sum_rows(
        self, function: Callable[..., T], buffer: ObsBuffer, rows: StoredObs, *others: Array
    ) -> T:
        """Sum over all rows.

        Args:
            function: (observations [*B, ...], *others [*B, ...]) -> sums over its rows.
            buffer: buffer with the rows.
            rows: stored rows [T, N].
            others: arrays [T, N, ...].
        """
        del buffer
        return function(rows, *others)


class Series(NamedTuple):
    """Time series behind the windows of a rollout."""

    values: Array  # [N, H + T * slide, ...] first window, then the new values of each row
    starts: Array  # [M, H, ...] windows with which episodes start
    age: Array  # [N] int32 values since the last start, at most H; H before the first start
    time: Array  # [] int32 number of rows so far


class WindowPosition(NamedTuple):
    """Position of a window in a `Series`."""

    env: Array  # [N] int32
    first: Array  # [N] int32: index of its first value in `Series.values`
    origin: Array  # [N] int32: index in `Series.starts` of its episode's first window
    age: Array  # [N] int32: all but the last `age` values are from that first window


StartsOf = Callable[[EnvState], tuple[Array, Array]]
"""Environment state -> (windows [M, H, ...] with which episodes of this rollout start, index of the
window with which each environment's present episode started, int32 [N])."""


class WindowedObs:
    """Store the time series behind observations that are its last H values.

    The result is exact if two conditions hold. Each row's window is the previous one, shifted by
    `slide` values, or the first one of an episode. And the first windows are known before the
    rollout. Row 0 may be any window.

    Args:
        window: number of values in a window, H.
        slide: number of new values per row.
        starts: windows with which episodes of this rollout start.
    """

    def __init__(self, window: int, slide: int, starts: StartsOf) -> None:
        """Store the sizes, and the function that returns the first windows of episodes."""
        self.window, self.slide, self.starts = window, slide, starts

    def init(self, obs: Array, length: int, env_state: EnvState) -> Series:
        """Return a buffer with the first windows, and memory for `length` rows after them."""
        num_envs, *shape = obs.shape[:1] + obs.shape[2:]
        zeros = jnp.zeros((num_envs, length * self.slide, *shape), obs.dtype)
        return Series(
            values=jnp.concatenate([obs, zeros], axis=1),
            starts=self.starts(env_state)[0],
            age=jnp.full(num_envs, self.window, jnp.int32),
            time=jnp.zeros((), jnp.int32),
        )

    def append(
        self, buffer: Series, obs: Array, start: Array, env_state: EnvState
    ) -> tuple[Series, WindowPosition]:
        """Store one row, see `FullObs.append`; the stored row is the position of the window."""
        num_envs = len(obs)
        first = buffer.time * self.slide
        new = obs[:, -self.slide :]
        restarts = start & (buffer.time > 0)
        next_age = jnp.minimum(buffer.age + self.slide, self.window)
        age = jnp.where(restarts, 0, next_age)
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
        """Return observations, see `FullObs.read`; as fast as reading stored windows."""
        values = _slices(buffer.values, rows.env, rows.first, self.window)
        padded = jnp.concatenate([buffer.starts, jnp.zeros_like(buffer.starts)], axis=1)
        start = _slices(padded, rows.origin, rows.age, self.window)
        old = jnp.arange(self.window) + rows.age[..., None] < self.window
        return jnp.where(expand(old, values), start, values)

    def map_rows(
        self, function: Callable[..., T], buffer: Series, rows: WindowPosition, *others: Array
    ) -> T:
        """Apply a function to all rows, see `FullObs.map_rows`; few windows exist at a time."""
        num_envs = rows.env.shape[1]
        max_windows = ROWS_ACCELERATED if platforms.is_accelerated() else ROWS
        return jax.lax.map(
            lambda part: function(self.read(buffer, part[0]), *part[1:]),
            (rows, *others),
            batch_size=max(1, max_windows // num_envs),
        )

    def sum_rows(
        self, function: Callable[..., T], buffer: Series, rows: WindowPosition, *others: Array
    ) -> T:
        """Sum over all rows, see `FullObs.sum_rows`."""
        parts = self.map_rows(function, buffer, rows, *others)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), parts)


ObsStorage = FullObs | WindowedObs


def make(space: Space, starts: StartsOf | None) -> ObsStorage:
    """Return the storage for observations of `space`.

    Windows are stored in full if the first windows of episodes are not known before a rollout.

    Args:
        space: space of one observation.
        starts: see `WindowedObs`; None if the first windows are not known before a rollout.
    """
    if isinstance(space, Box) and space.slide and starts is not None:
        return WindowedObs(space.shape[0], space.slide, starts)
    return FullObs()


def before_and_after(storage: ObsStorage, rollout: Rollout) -> tuple[Obs, Obs]:
    """Return the observations before and after each decision, [T, N, ...].

    After the last step of an episode, this is the true last observation.
    """
    obs = storage.read(rollout.stored, rollout.transitions.obs)
    return obs, next_entries(obs, rollout.end.obs, rollout.transitions.absent)


def _slices(x: Array, env: Array, first: Array, length: int) -> Array:
    """Return `x[env, first : first + length]` for each pair of indices in env and first [*B]."""

    def slice_one(env: Array, first: Array) -> Array:
        corner: list[Array | int] = [env, first, *[0] * (x.ndim - 2)]
        return jax.lax.dynamic_slice(x, corner, (1, length, *x.shape[2:]))[0]

    for _ in range(env.ndim):
        slice_one = jax.vmap(slice_one)
    return slice_one(env, first)
