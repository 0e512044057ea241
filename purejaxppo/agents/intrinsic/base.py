"""Intrinsic rewards: triples of pure functions, init, reward, update, as optimisers are."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from purejaxppo.agents import normalize
from purejaxppo.config.schema import IntrinsicConfig
from purejaxppo.types import RunningStats


class Rows(NamedTuple):
    """The part of a rollout that an intrinsic reward uses."""

    obs: Any  # [T, N, ...] as the policy sees it
    next_obs: Any  # [T, N, ...] after the step: the true last one where an episode ends
    action: Any  # [T, N, ...]
    valid: jax.Array  # [T, N] bool


class Intrinsic(NamedTuple):
    """An intrinsic reward for novelty."""

    init: Callable[[Any], Any]
    """key -> state."""
    reward: Callable[[Any, Rows], Any]
    """(state, rows) -> bonus [T, N], 0 where not valid."""
    update: Callable[[Any, Rows, Any, Callable], tuple[Any, dict[str, Any]]]
    """(state, rows, key, sum over shards) -> (state, figures by dashboard name)."""
    figures: tuple[str, ...] = ()
    """The dashboard's names of the figures."""


def none() -> Intrinsic:
    """No bonus: zeros, without a state."""
    return Intrinsic(
        init=lambda key: (),
        reward=lambda state, rows: jnp.zeros(rows.valid.shape),
        update=lambda state, rows, key, psum: (state, {}),
    )


class Learned(NamedTuple):
    """State of a bonus that is a model's error."""

    params: Any
    opt_state: Any  # over the parameters as one flat vector
    stats: RunningStats  # of the errors


FIGURES = ("intrinsic/reward", "intrinsic/loss")


def from_error(
    init: Callable[[Any], Any],
    errors: Callable[[Any, Rows], tuple[Any, Any]],
    config: IntrinsicConfig,
) -> Intrinsic:
    """The bonus from a model's error: divided by the errors' standard deviation so far.

    Args:
        init: key -> parameters.
        errors: (params, rows [B]) -> (errors [B], losses [B] to be minimised).
        config: of the model's training.
    """
    adam = optax.scale_by_adam()

    def start(key) -> Learned:
        params = init(key)
        flat, _ = ravel_pytree(params)
        return Learned(params, adam.init(flat), normalize.init_stats(jnp.zeros(())))

    def reward(state: Learned, rows: Rows):
        return scaled(errors(state.params, rows)[0], state.stats, rows.valid)

    def update(state: Learned, rows: Rows, key, psum: Callable):
        error = errors(state.params, rows)[0]
        stats = normalize.update_stats(state.stats, error, rows.valid, psum)
        total = jnp.sum(scaled(error, state.stats, rows.valid))
        bonus, count = psum((total, jnp.sum(rows.valid)))
        flat, unravel = ravel_pytree(state.params)
        rows = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), rows)

        def loss(flat, rows: Rows):
            return jnp.sum(errors(unravel(flat), rows)[1], where=rows.valid)

        def step(carried, index):
            flat, opt_state = carried
            part = jax.tree.map(lambda x: x[index], rows)
            total, gradient = jax.value_and_grad(loss)(flat, part)
            sums = psum(jnp.concatenate([jnp.stack([total, jnp.sum(part.valid)]), gradient]))
            mean = sums / jnp.maximum(sums[1], 1.0)
            updates, opt_state = adam.update(mean[2:], opt_state)
            return (flat - config.learning_rate * updates, opt_state), mean[0]

        def epoch(carried, key):
            order = jax.random.permutation(key, rows.valid.size)
            return jax.lax.scan(step, carried, order.reshape(config.num_minibatches, -1))

        keys = jax.random.split(key, config.num_epochs)
        (flat, opt_state), losses = jax.lax.scan(epoch, (flat, state.opt_state), keys)
        figures = dict(zip(FIGURES, (bonus / jnp.maximum(count, 1), jnp.mean(losses)), strict=True))
        return Learned(unravel(flat), opt_state, stats), figures

    return Intrinsic(start, reward, update, FIGURES)


def scaled(error, stats: RunningStats, valid):
    """Errors over their standard deviation so far, 0 where not valid; any shape."""
    return jnp.where(valid, error * jax.lax.rsqrt(normalize.variance(stats) + 1e-8), 0.0)
