"""Metrics of an update, reduced over its rows and over all shards."""

from collections.abc import Callable, Mapping, Sequence

import chex
import jax
import jax.numpy as jnp

from purejaxppo.aliases import Array, MetricDict, Reduce
from purejaxppo.spaces import LARGEST
from purejaxppo.types import (
    AgentState,
    Batch,
    Episodes,
    Losses,
    Metrics,
    MetricSums,
    Rollout,
)

ROUNDING = 1e-5
"""Value targets are constant if their standard deviation is below this fraction of their mean."""


def zero_metrics(names: Sequence[str], env_metrics: int = 0) -> Metrics:
    """Return metrics of zeros.

    Args:
        names: names of the extras.
        env_metrics: number of metrics of the environment, K.
    """
    i, f = jnp.zeros((), jnp.int32), jnp.zeros(())
    extras = dict.fromkeys(names, f)
    losses = Losses._make([f] * (len(Losses._fields) - 1) + [()])
    k = env_metrics
    sums = MetricSums(jnp.zeros(k), jnp.zeros(k, jnp.int32)) if k else None
    return Metrics(i, i, Episodes(i, f, i, i, sums), losses, i, f, i, i, i, extras)


def check_extras(metrics: Metrics, names: Sequence[str]) -> None:
    """Check that the extras of an update have these names.

    Raises:
        ValueError: an unknown name, or a missing one.
    """
    for name in sorted(metrics.extras.keys() - set(names)):
        raise ValueError(
            f"{name} is a metric of an update, but the learner's metric_names do not list it. Add "
            f"it there (for PPO: metrics_of_ppo, or the part that computes it)."
        )
    for name in sorted(set(names) - metrics.extras.keys()):
        raise ValueError(
            f"{name} is in the learner's metric_names, but no update computes it. Remove it there, "
            f"or add it to the extras of the update's metrics."
        )


def summarise(
    agent: AgentState, rollout: Rollout, batch: Batch, losses: Losses, psum: Reduce
) -> Metrics:
    """Return the metrics of one update, over all shards.

    Args:
        agent: the agent after the update.
        rollout: the rollout that the agent learned from.
        batch: the rollout's rows, with advantages and targets.
        losses: mean losses of the gradient steps.
        psum: sum over shards.
    """
    steps = jnp.sum(rollout.transitions.valid, dtype=jnp.int32)
    broken = sum(jnp.sum(~jnp.isfinite(x)) for x in (batch.value, batch.log_prob))
    rows = jnp.stack([batch.target, batch.target - batch.value])
    sums = jnp.sum(rows, axis=tuple(range(1, rows.ndim)), where=batch.valid)
    # One sum over shards for all floats (as one vector), and one for all integers.
    episodes = rollout.episodes
    counts = steps, episodes.count, episodes.length_sum, episodes.diverged
    floats = jnp.stack([episodes.return_sum, broken, *sums])
    totals = psum((counts, floats, episodes.metrics))
    (steps, count, length_sum, diverged), (return_sum, broken, *float_sums), metrics = totals
    mean = jnp.stack(float_sums) / jnp.maximum(steps, 1)
    explained, variance = explained_variance(rows, mean, batch.valid, steps, psum)
    learned = (losses.skipped == 0) | jnp.isfinite(losses.grad_norm)
    return Metrics(
        updates=jnp.ones((), jnp.int32),
        env_steps=steps,
        episodes=Episodes(count, return_sum, length_sum, diverged, metrics),
        losses=losses._replace(terms=()),
        explained=explained,
        explained_variance=variance,
        trained=(losses.epochs > 0).astype(jnp.int32),
        finite=(broken == 0).astype(jnp.int32) * is_finite(agent),
        learned=learned.astype(jnp.int32),
        extras={f"losses/{name}": mean for name, mean in dict(losses.terms).items()},
    )


def mean_of_targets(
    functions: Mapping[str, Callable[[Array], Array]], batch: Batch, psum: Reduce
) -> MetricDict:
    """Return the means over valid value targets of all shards, scalars by name.

    Args:
        functions: functions from targets [B] to numbers [B], by name.
        batch: rows with value targets.
        psum: sum over shards.
    """
    if not functions:
        return {}

    def total(x: Array) -> Array:
        return jnp.sum(x, where=batch.valid, dtype=jnp.float32)

    sums = {name: total(function(batch.target)) for name, function in functions.items()}
    sums, count = psum((sums, total(batch.valid)))
    return {name: x / jnp.maximum(count, 1.0) for name, x in sums.items()}


def explained_variance(
    rows: Array, mean: Array, valid: Array, count: Array, psum: Reduce
) -> tuple[Array, Array]:
    """Compute the explained variance of the value targets, 1 - Var[target - value] / Var[target].

    Args:
        rows: targets and errors, float [2, *B] of this shard.
        mean: means of targets and errors over all shards, float [2].
        valid: bool [*B].
        count: number of valid rows of all shards.
        psum: sum over shards.

    Returns:
        (int32 scalar, 1 if the targets vary, else 0; explained variance, 0 if they do not vary).
    """
    chex.assert_shape([rows, mean], [(2, *valid.shape), (2,)])
    centred = rows - mean.reshape(2, *[1] * valid.ndim)
    squares = jnp.sum(jnp.square(centred), axis=tuple(range(1, rows.ndim)), where=valid)
    target, error = psum(squares) / jnp.maximum(count, 1)
    varies = target > jnp.square(ROUNDING * mean[0])
    unexplained = error / jnp.where(varies, target, 1.0)
    return varies.astype(jnp.int32), jnp.where(varies, 1.0 - unexplained, 0.0)


def is_finite(agent: AgentState) -> Array:
    """Return True if an agent's numbers are finite and no parameter exceeds ±LARGEST, scalar."""
    params = [jnp.all(jnp.abs(x) <= LARGEST) for x in jax.tree.leaves(agent.params)]
    stats = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(agent.obs_stats)]
    return jnp.all(jnp.stack([jnp.ones((), bool), *params, *stats]))
