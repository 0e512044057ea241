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

    Accelerators store the losses of a step as one vector: one copy per step instead of one per
    loss.

    Args:
        step: (state, row) -> (state, losses, floats of any shape).
        state: before the first step.
        rows: of all steps.
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


def until_kl(limit: float) -> Epochs:
    """Return epochs that stop after the first epoch whose mean KL exceeds `limit`.

    A skipped epoch takes no gradient steps, and almost no time.

    Reference: Spinning Up (Achiam 2018); per epoch, as in Stable-Baselines3.
    """

    def run(epoch: Epoch, state: EpochState, each: Tree) -> tuple[EpochState, Losses]:
        def body(
            carried: tuple[EpochState, Array], given: Tree
        ) -> tuple[tuple[EpochState, Array], Losses]:
            state, going = carried

            def skip(state: EpochState) -> tuple[EpochState, Losses]:
                nothing = jax.eval_shape(epoch, state, given)[1]
                return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), nothing)

            state, parts = jax.lax.cond(going, lambda state: epoch(state, given), skip, state)
            below = jnp.mean(parts.approx_kl) <= limit
            return (state, going & below), parts

        (state, _), parts = jax.lax.scan(body, (state, jnp.ones((), bool)), each)
        return state, parts

    return run


def make(config: PPOConfig) -> Epochs:
    """Return the epochs of the config."""
    return until_kl(config.target_kl) if config.early_stop_kl else scan
