"""Running statistics of observations and returns, and normalisation with them."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from purejaxppo.agents import recurrences
from purejaxppo.agents.decisions import expand
from purejaxppo.aliases import Array, Reduce, Scalar, Tree
from purejaxppo.types import RunningStats, Transition, ValueStats

EPSILON = 1e-8
"""Constant added to variances."""
WARM_UP = 10_000
"""Number of rows after which values are clipped before they enter the statistics."""
MAX_DEVIATION = 100.0
"""Distance from the mean, in standard deviations, to which these values are clipped."""


RowMap = Callable[[Tree], Tree]
"""A function of each row: pytree of arrays [*B, ...] -> pytree of arrays [*B, ...]."""


def init_stats(example: Tree) -> RunningStats:
    """Return empty statistics: count 0, mean 0.

    Args:
        example: pytree of arrays, one sample.
    """
    zeros = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), example)
    return RunningStats(jnp.zeros(()), zeros, jax.tree.map(jnp.copy, zeros))


def init_value_stats() -> ValueStats:
    """Return empty statistics of value targets: mean 0, standard deviation 1, an empty range."""
    infinity = jnp.full((), jnp.inf, jnp.float32)
    return ValueStats(init_stats(jnp.zeros(())), infinity, -infinity)


def update_stats(stats: RunningStats, batch: Tree, valid: Array, psum: Reduce) -> RunningStats:
    """Merge the valid rows of a batch into the statistics.

    With batch count n_b, mean μ_b and sum of squared deviations M_b, and δ = μ_b - μ:

        n' = n + n_b        μ' = μ + δ n_b / n'        M' = M + M_b + δ² n n_b / n'

    The result does not depend on how the data are split into batches, unless values are clipped
    (see `merge_stats`).

    Args:
        stats: statistics so far.
        batch: pytree of arrays [*B, ...].
        valid: bool [*B].
        psum: sum over shards.

    Reference: Chan, Golub & LeVeque 1983, eq. 2.1.
    """
    return merge_stats(
        stats, lambda function: sum_rows(function(batch), valid), jnp.sum(valid), psum
    )


def sum_rows(batch: Tree, valid: Array) -> Tree:
    """Return the sums over valid rows of a pytree of arrays, float32.

    Args:
        batch: pytree of arrays [*B, ...].
        valid: bool [*B].
    """
    chex.assert_type(valid, bool)
    chex.assert_tree_shape_prefix(batch, valid.shape)
    axes = tuple(range(valid.ndim))
    return jax.tree.map(
        lambda x: jnp.sum(x, axes, where=expand(valid, x), dtype=jnp.float32), batch
    )


def merge_stats(
    stats: RunningStats, total: Callable[[RowMap], Tree], count: Array, psum: Reduce
) -> RunningStats:
    """Merge a batch into the statistics, as `update_stats`, without the batch in memory.

    After WARM_UP rows, values are clipped to MAX_DEVIATION standard deviations from the mean. Then
    a single huge value cannot scale all others to almost 0. The statistics still follow a feature
    that has grown, within a few batches.

    Args:
        stats: statistics so far.
        total: function of rows -> its sum over the valid rows of the batch.
        count: number of these rows.
        psum: sum over shards.
    """
    reach = jax.tree.map(lambda var: MAX_DEVIATION * jnp.sqrt(var + EPSILON), variance(stats))
    reach = jax.tree.map(lambda x: jnp.where(stats.count < WARM_UP, jnp.inf, x), reach)

    def limited(rows: Tree) -> Tree:
        return jax.tree.map(
            lambda x, mean, reach: jnp.clip(x, mean - reach, mean + reach), rows, stats.mean, reach
        )

    count, sums = psum((jnp.float32(count), total(limited)))
    batch_mean = jax.tree.map(lambda x: x / jnp.maximum(count, 1.0), sums)
    batch_m2 = psum(
        total(lambda rows: jax.tree.map(lambda x, m: jnp.square(x - m), limited(rows), batch_mean))
    )
    all_rows = stats.count + count
    delta = jax.tree.map(jnp.subtract, batch_mean, stats.mean)
    weight = count / jnp.maximum(all_rows, 1.0)
    return RunningStats(
        all_rows,
        jax.tree.map(lambda mean, d: mean + d * weight, stats.mean, delta),
        jax.tree.map(
            lambda m2, b, d: m2 + b + d * d * stats.count * weight, stats.m2, batch_m2, delta
        ),
    )


def variance(stats: RunningStats) -> Tree:
    """Return the population variance; 1 for fewer than two rows."""
    return jax.tree.map(
        lambda m2: jnp.where(stats.count > 1, m2 / jnp.maximum(stats.count, 1.0), 1.0), stats.m2
    )


def normalize(stats: RunningStats, x: Tree, clip: float) -> Tree:
    """Return (x - mean) / sqrt(variance + EPSILON), clipped to ±clip.

    Args:
        stats: statistics of the rows.
        x: pytree of arrays [*B, ...].
        clip: largest magnitude of a normalised value.
    """
    jax.tree.map(lambda x, mean: chex.assert_shape(x, (..., *mean.shape)), x, stats.mean)
    return jax.tree.map(
        lambda x, mean, var: jnp.clip((x - mean) * jax.lax.rsqrt(var + EPSILON), -clip, clip),
        x,
        stats.mean,
        variance(stats),
    )


def discounted_returns(
    reward: Array,
    done: Array,
    valid: Array,
    start: Array,
    gamma: Scalar,
    is_first: Array | None = None,
) -> tuple[Array, Array]:
    """Compute the running discounted return of each environment, Rₜ = γ Rₜ₋₁ + rₜ.

    It is reset at the start of each episode.

    Args:
        reward: float [T, N].
        done: bool [T, N].
        valid: bool [T, N]. An episode starts after an invalid row.
        start: return after the previous rollout, float [N].
        gamma: discount, a scalar or float [T, N].
        is_first: bool [T, N], the rows that start an episode, if agents may be absent
            (`decisions`). None: the rows after invalid ones.

    Returns:
        Rₜ for every row, float [T, N], and the return to carry over to the next rollout, float [N].

    Source: VecNormalize of OpenAI baselines, which divides rewards by the standard deviation of Rₜ.
    """
    chex.assert_rank(reward, 2)
    chex.assert_equal_shape([reward, done, valid])
    chex.assert_shape(start, reward.shape[1:])
    chex.assert_type([reward, done, valid, start], [float, bool, bool, float])
    ended, factor = done | ~valid, gamma
    if is_first is not None:
        ended, factor = done, jnp.where(valid, gamma, 1.0)
    resets = ended if is_first is None else ended | is_first
    after = recurrences.forwards(
        jnp.where(valid & ~ended, reward, 0.0), jnp.where(resets, 0.0, factor), start
    )
    before = jnp.concatenate([start[None], after[:-1]])
    if is_first is not None:
        before = jnp.where(is_first, 0.0, before)
    return jnp.where(valid, gamma * before + reward, before), after[-1]


class Rewards(NamedTuple):
    """Rewards of a rollout to learn from, and the state to carry over to the next rollout."""

    reward: Array  # [T, N]
    stats: RunningStats  # statistics of discounted returns, including this rollout
    discounted_return: Array  # [N] after the rollout


def scale_rewards(
    stats: RunningStats,
    carried: Array,
    rows: Transition,
    gamma: Scalar,
    clip: float,
    *,
    psum: Reduce,
) -> Rewards:
    """Divide rewards by the running standard deviation of the discounted return; clip to ±`clip`.

    Where a rollout starts with the first step of an episode, the carried return is 0, because the
    previous episode may be unfinished (`ppo.reset_each_rollout`).

    Args:
        stats: statistics of discounted returns so far.
        carried: discounted return before the rollout, float [N].
        rows: rows of the rollout, [T, N].
        gamma: discount, a scalar or float [T, N].
        clip: largest magnitude of a scaled reward.
        psum: sum over shards.

    Returns:
        Scaled rewards [T, N], the statistics with this rollout, and the carried return [N].
    """
    returns, carried = discounted_returns(
        rows.reward,
        rows.terminated | rows.truncated,
        rows.valid,
        jnp.where(rows.start[0], 0.0, carried),
        gamma,
        None if rows.absent is None else rows.start,
    )
    stats = update_stats(stats, returns, rows.valid, psum)
    scale = jax.lax.rsqrt(variance(stats) + EPSILON)
    return Rewards(jnp.clip(rows.reward * scale, -clip, clip), stats, carried)


def normalize_advantages(advantage: Array, valid: Array, psum: Reduce, axis: int | None) -> Array:
    """Normalise advantages over valid rows to mean 0 and sample standard deviation 1.

    Mean and standard deviation are those of all shards. The advantage of a single valid row is not
    changed. Otherwise it would be 0, and the row would have no gradient.

    Args:
        advantage: float [M, B, (L)].
        valid: bool [M, B, (L)].
        psum: sum over shards.
        axis: 1 normalises each minibatch, None the whole batch.

    Returns:
        Float [M, B, (L)].
    """
    chex.assert_rank(advantage, {2, 3})
    chex.assert_equal_shape([advantage, valid])
    chex.assert_type([advantage, valid], [float, bool])
    axes = None if axis is None else tuple(range(axis, advantage.ndim))

    def total(x: Array) -> Array:
        return jnp.sum(x, axes, where=valid, keepdims=True)

    count, summed = psum((total(jnp.ones_like(advantage)), total(advantage)))
    mean = summed / jnp.maximum(count, 1.0)
    centred = advantage - mean
    std = jnp.sqrt(psum(total(jnp.square(centred))) / jnp.maximum(count - 1.0, 1.0))
    return jnp.where(count == 1, advantage, centred / (std + 1e-8))


NORMALIZATIONS: dict[str, Callable[[Reduce], Callable[[Array, Array], Array]]] = {
    "minibatch": lambda psum: partial(normalize_advantages, psum=psum, axis=1),
    "batch": lambda psum: partial(normalize_advantages, psum=psum, axis=None),
    "none": lambda psum: lambda advantage, valid: advantage,
}
"""psum -> (advantage, valid) [M, B, (L)] -> advantage, by `ppo.advantage_normalization`."""
