"""Run the epochs of an update, with optional early stopping on KL."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from purejaxppo.aliases import Array, Tree
from purejaxppo.config.schema import PPOConfig
from purejaxppo.parallel import platforms
from purejaxppo.types import Losses

EpochState = Any
"""State that an epoch changes: `ppo.GradientState`. The functions here accept any pytree."""

Epoch = Callable[[EpochState, Tree], tuple[EpochState, Losses]]
"""(state, key or minibatches) -> (state, losses [M] of the gradient steps of the epoch)."""

Epochs = Callable[[Epoch, EpochState, Tree], tuple[EpochState, Losses]]
"""(epoch, state, keys or minibatches of all epochs [E, ...]) -> (state, losses [E, M])."""


def scan(
    step: Callable[[EpochState, Tree], tuple[EpochState, Losses]], state: EpochState, rows: Tree
) -> tuple[EpochState, Losses]:
    """Run `jax.lax.scan` over the steps of an epoch.

    On GPUs and TPUs, the losses of a step are packed into one vector, because each array costs a
    copy per step.

    Args:
        step: (state, row) -> (state, losses). Losses are floats of any shape.
        state: state before the first step.
        rows: rows of all steps.
    """
    if not platforms.is_accelerated():
        return jax.lax.scan(step, state, rows)
    unravel: list[Callable[[Array], Losses]] = []

    def packed(state: EpochState, row: Tree) -> tuple[EpochState, Array]:
        state, losses = step(state, row)
        vector, inverse = ravel_pytree(losses)
        unravel[:] = [inverse]
        return state, vector

    state, vectors = jax.lax.scan(packed, state, rows)
    return state, jax.vmap(unravel[0])(vectors)


EpochKL = Callable[[EpochState, Losses], Array]
"""(state after an epoch, losses [M] of its gradient steps) -> KL divergence, a scalar."""


def mean_kl(state: EpochState, losses: Losses) -> Array:
    """Return the mean KL of the steps of an epoch, each before its gradient step.

    Reference: Spinning Up (Achiam 2018), here with epochs of minibatches and without its factor
    of 1.5.
    """
    del state
    taken = losses.epochs > 0  # others had no valid rows, or a gradient that is not finite
    return jnp.sum(losses.approx_kl, where=taken) / jnp.maximum(jnp.sum(taken), 1)


def until_kl(limit: float, epoch_kl: EpochKL = mean_kl) -> Epochs:
    """Return a function that runs epochs until the KL of an epoch exceeds `limit`.

    A skipped epoch takes no gradient steps. It takes almost no time, except under vmap, where
    all epochs are computed.
    """

    def run(epoch: Epoch, state: EpochState, inputs: Tree) -> tuple[EpochState, Losses]:
        def body(
            carried: tuple[EpochState, Array], epoch_input: Tree
        ) -> tuple[tuple[EpochState, Array], Losses]:
            state, active = carried

            def take(state: EpochState) -> tuple[EpochState, Losses, Array]:
                state, losses = epoch(state, epoch_input)
                return state, losses, epoch_kl(state, losses) <= limit

            def skip(state: EpochState) -> tuple[EpochState, Losses, Array]:
                shapes = jax.eval_shape(epoch, state, epoch_input)[1]
                zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
                return state, zeros, jnp.zeros((), bool)

            state, losses, active = jax.lax.cond(active, take, skip, state)
            return (state, active), losses

        (state, _), losses = jax.lax.scan(body, (state, jnp.ones((), bool)), inputs)
        return state, losses

    return run


def make(config: PPOConfig, epoch_kl: EpochKL | None = None) -> Epochs:
    """Return the function that runs the epochs of an update: `until_kl` or `scan`."""
    return until_kl(config.target_kl, epoch_kl or mean_kl) if config.early_stop_kl else scan
