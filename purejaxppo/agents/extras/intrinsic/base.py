"""Interface of intrinsic rewards: pure functions init, reward and update."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from purejaxppo.agents import normalize
from purejaxppo.aliases import Action, Array, Key, MetricDict, Obs, OptState, Params, Reduce, Tree
from purejaxppo.config.schema import IntrinsicConfig
from purejaxppo.parallel import platforms
from purejaxppo.types import RunningStats


class BonusRows(NamedTuple):
    """Arrays of a rollout that an intrinsic reward uses, with all T x N rows."""

    obs: Obs  # [T, N, ...] as the network gets it
    next_obs: Obs  # [T, N, ...] after the step; the true last one where an episode ends
    action: Action  # [T, N, ...]
    valid: Array  # [T, N] bool: also False where next_obs belongs to the next episode


class Intrinsic(NamedTuple):
    """An intrinsic reward for novelty."""

    init: Callable[[Key], Tree]
    """key -> state."""
    reward: Callable[[Tree, BonusRows], Array]
    """(state, rows) -> intrinsic rewards [T, N], 0 where not valid."""
    update: Callable[[Tree, BonusRows, Key, Reduce], tuple[Tree, MetricDict]]
    """(state, rows, key, sum over shards) -> (state, scalar metrics by name)."""
    metric_names: tuple[str, ...] = ()
    """Names of the metrics that `update` returns."""
    track: Callable[[Tree, Array, BonusRows, Reduce], tuple[Tree, Array]] | None = None
    """(state, intrinsic returns so far [N], rows, sum over shards) -> (state, intrinsic returns)
    after the rollout. Called before `reward`. None: the state does not use intrinsic returns."""


def none() -> Intrinsic:
    """Return an intrinsic reward of 0, without a state."""
    return Intrinsic(
        init=lambda key: (),
        reward=lambda state, rows: jnp.zeros(rows.valid.shape),
        update=lambda state, rows, key, psum: (state, {}),
    )


class ErrorBonusState(NamedTuple):
    """State of an intrinsic reward that is the prediction error of a model."""

    params: Params
    opt_state: OptState
    stats: RunningStats  # statistics of the discounted sums of errors


METRICS = ("intrinsic/reward", "intrinsic/loss")
DISCOUNT = 0.99
"""Discount γ of intrinsic returns, from Burda et al. 2018."""


def fit(
    loss: Callable[[Params, BonusRows], Array],
    unravel: Callable[[Array], Params],
    adam: optax.GradientTransformation,
    carried: tuple[Array, OptState],
    rows: BonusRows,
    key: Key,
    *,
    config: IntrinsicConfig,
    psum: Reduce,
) -> tuple[tuple[Array, OptState], Array]:
    """Train a model on rows [B], in epochs of shuffled minibatches.

    Args:
        loss: (tree of parameters, rows) -> sum over valid rows.
        unravel: flat parameters [P] -> tree of parameters.
        adam: optimiser, without its step size.
        carried: (parameters [P], optimiser state).
        rows: rows of a rollout.
        key: random key; the caller must not use it again.
        config: settings of the model's training.
        psum: sum over shards.

    Returns:
        ((parameters, optimiser state), mean loss of each minibatch).
    """

    def step(carried: tuple[Array, OptState], index: Array) -> tuple[tuple[Array, OptState], Array]:
        flat, opt_state = carried
        minibatch = jax.tree.map(lambda x: x[index], rows)
        total, gradients = jax.value_and_grad(loss)(unravel(flat), minibatch)
        summed = total, jnp.sum(minibatch.valid), gradients
        total, count, gradients = platforms.in_separate_kernels(summed)
        gradient, _ = ravel_pytree(gradients)
        sums = psum(jnp.concatenate([jnp.stack([total, count]), gradient]))
        mean = sums / jnp.maximum(sums[1], 1.0)
        updates, opt_state = adam.update(mean[2:], opt_state)
        return (flat - config.learning_rate * updates, opt_state), mean[0]

    def epoch(carried: tuple[Array, OptState], key: Key) -> tuple[tuple[Array, OptState], Array]:
        order = jax.random.permutation(key, rows.valid.size)
        return jax.lax.scan(step, carried, order.reshape(config.num_minibatches, -1))

    return jax.lax.scan(epoch, carried, jax.random.split(key, config.num_epochs))


def from_error(
    init: Callable[[Key], Params],
    errors: Callable[[Params, BonusRows], tuple[Array, Array]],
    config: IntrinsicConfig,
) -> Intrinsic:
    """Return an intrinsic reward eₜ / σ from the prediction error eₜ of a model.

    σ is the standard deviation of all intrinsic returns Rₜ = γ Rₜ₋₁ + eₜ so far. Rₜ continues
    across episodes and skips invalid rows.

    Args:
        init: key -> parameters.
        errors: (params, rows [B]) -> (errors [B], losses [B] to minimise).
        config: settings of the model's training.

    Reference: Burda et al. 2018, https://arxiv.org/abs/1810.12894, sections 2.3 and 2.4.
    """
    adam = optax.scale_by_adam()

    def start(key: Key) -> ErrorBonusState:
        params = init(key)
        flat, _ = ravel_pytree(params)
        return ErrorBonusState(params, adam.init(flat), normalize.init_stats(jnp.zeros(())))

    def track(
        state: ErrorBonusState, returns: Array, rows: BonusRows, psum: Reduce
    ) -> tuple[ErrorBonusState, Array]:
        false, error = jnp.zeros_like(rows.valid), errors(state.params, rows)[0]
        discounted, last = normalize.discounted_returns(
            error, false, rows.valid, returns, DISCOUNT, is_first=false
        )
        stats = normalize.update_stats(state.stats, discounted, rows.valid, psum)
        return state._replace(stats=stats), last

    def reward(state: ErrorBonusState, rows: BonusRows) -> Array:
        return scaled(errors(state.params, rows)[0], state.stats, rows.valid)

    def update(
        state: ErrorBonusState, rows: BonusRows, key: Key, psum: Reduce
    ) -> tuple[ErrorBonusState, MetricDict]:
        error = errors(state.params, rows)[0]
        total = jnp.sum(scaled(error, state.stats, rows.valid))
        bonus, count = psum((total, jnp.sum(rows.valid)))
        flat, unravel = ravel_pytree(state.params)
        flat_rows = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), rows)

        def loss(params: Params, rows: BonusRows) -> Array:
            return jnp.sum(errors(params, rows)[1], where=rows.valid)

        carried = flat, state.opt_state
        (flat, opt_state), losses = fit(
            loss, unravel, adam, carried, flat_rows, key, config=config, psum=psum
        )
        metrics = dict(zip(METRICS, (bonus / jnp.maximum(count, 1), jnp.mean(losses)), strict=True))
        return ErrorBonusState(unravel(flat), opt_state, state.stats), metrics

    return Intrinsic(start, reward, update, METRICS, track)


def scaled(error: Array, stats: RunningStats, valid: Array) -> Array:
    """Divide errors by the standard deviation of their returns; return 0 where not valid.

    Args:
        error: float, any shape.
        stats: statistics of the returns.
        valid: bool, shape of `error`.
    """
    chex.assert_equal_shape([error, valid])
    return jnp.where(valid, error * jax.lax.rsqrt(normalize.variance(stats) + 1e-8), 0.0)
