"""Running statistics of observations and returns, and normalisation by them."""

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
"""Rows after which the numbers that enter the statistics are clipped."""
LIMIT = 100.0
"""Standard deviations from the mean to which these numbers are clipped."""


RowMap = Callable[[Tree], Tree]
"""A function of each row: a pytree of arrays [*B, ...] -> one of arrays [*B, ...]."""


def init_stats(example: Tree) -> RunningStats:
    """Empty statistics: count 0, mean 0. `example` is a pytree of one sample's arrays."""
    zeros = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), example)
    return RunningStats(jnp.zeros(()), zeros, jax.tree.map(jnp.copy, zeros))


def init_value_stats() -> ValueStats:
    """Empty statistics of value targets: mean 0, standard deviation 1, any range."""
    infinity = jnp.full((), jnp.inf, jnp.float32)
    return ValueStats(init_stats(jnp.zeros(())), infinity, -infinity)


def update_stats(stats: RunningStats, batch: Tree, valid: Array, psum: Reduce) -> RunningStats:
    """Merges the valid rows of a batch into the statistics.

    Args:
        stats: so far.
        batch: pytree of arrays [*B, ...].
        valid: bool [*B].
        psum: sum over shards.

    Chan, Golub & LeVeque 1983, eq. 2.1: exact for any split of the data into batches.
    """
    return merge_stats(
        stats, lambda function: sum_rows(function(batch), valid), jnp.sum(valid), psum
    )


def sum_rows(batch: Tree, valid: Array) -> Tree:
    """Sums over the valid rows [*B] of a pytree of arrays [*B, ...]."""
    chex.assert_type(valid, bool)
    chex.assert_tree_shape_prefix(batch, valid.shape)
    axes = tuple(range(valid.ndim))
    return jax.tree.map(
        lambda x: jnp.sum(x, axes, where=expand(valid, x), dtype=jnp.float32), batch
    )


def merge_stats(
    stats: RunningStats, total: Callable[[RowMap], Tree], count: Array, psum: Reduce
) -> RunningStats:
    """`update_stats` for a batch that need not exist as a whole.

    After WARM_UP rows, a number is clipped to LIMIT standard deviations so far from the mean so
    far: one huge number cannot scale all others to nearly 0, while the statistics follow a feature
    that has truly grown within a few batches.

    Args:
        stats: so far.
        total: a function of rows -> its sum over the batch's valid rows.
        count: number of these rows.
        psum: sum over shards.
    """
    reach = jax.tree.map(lambda var: LIMIT * jnp.sqrt(var + EPSILON), variance(stats))
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
    """Population variance; 1 for empty statistics."""
    return jax.tree.map(
        lambda m2: jnp.where(stats.count > 1, m2 / jnp.maximum(stats.count, 1.0), 1.0), stats.m2
    )


def normalize(stats: RunningStats, x: Tree, clip: float) -> Tree:
    """(x - mean) / sqrt(variance + EPSILON), clipped to ±clip; x is a pytree [*B, ...]."""
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
    """Running discounted return of each environment, Rₜ = γRₜ₋₁ + rₜ, reset in each episode.

    OpenAI's VecNormalize divides rewards by its standard deviation.

    Args:
        reward: float [T, N].
        done: bool [T, N].
        valid: bool [T, N]; an episode begins after a row that is not.
        start: the return carried over from the rollout before, float [N].
        gamma: discount.
        is_first: bool [T, N], the rows that begin an episode, if not those after a row that is not
            valid: agents may be absent (`decisions`).

    Returns:
        Rₜ float [T, N] for every row, and the return to carry over, float [N].
    """
    chex.assert_rank(reward, 2)
    chex.assert_equal_shape([reward, done, valid])
    chex.assert_shape(start, reward.shape[1:])
    chex.assert_type([reward, done, valid, start], [float, bool, bool, float])
    ended, factor = done | ~valid, gamma
    if is_first is not None:
        ended, factor = done, jnp.where(valid, gamma, 1.0)
    forgets = ended if is_first is None else ended | is_first
    after = recurrences.forwards(
        jnp.where(valid & ~ended, reward, 0.0), jnp.where(forgets, 0.0, factor), start
    )
    before = jnp.concatenate([start[None], after[:-1]])
    if is_first is not None:
        before = jnp.where(is_first, 0.0, before)
    return jnp.where(valid, gamma * before + reward, before), after[-1]


class Rewards(NamedTuple):
    """A rollout's rewards as they are learned from, and what is carried over to the next one."""

    reward: Array  # [T, N]
    stats: RunningStats  # of discounted returns, with this rollout's
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
    """Rewards divided by the running standard deviation of the discounted return.

    Where a rollout begins with an episode's first step, the return carried into it is 0: the
    episode before may have been left unfinished (`ppo.reset_each_rollout`).

    Args:
        stats: of discounted returns so far.
        carried: the discounted return before the rollout, float [N].
        rows: of the rollout, [T, N].
        gamma: discount.
        clip: largest magnitude of a scaled reward.
        psum: sum over shards.
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
    """Mean 0 and (sample) standard deviation 1 over the valid rows of all shards.

    The advantage of a single valid row is not changed: minus its mean it would be 0, and the row
    would have no gradient.

    Args:
        advantage: [M, B, (L)].
        valid: bool [M, B, (L)].
        psum: sum over shards.
        axis: 1 for each minibatch by itself, None for the whole batch.
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
