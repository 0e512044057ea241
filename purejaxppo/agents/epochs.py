"""Epochs of an update: all, or until the policy has moved too far from the one that acted."""

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
"""State that an epoch changes, `ppo.GradientState`; to the functions here any pytree."""

Epoch = Callable[[EpochState, Tree], tuple[EpochState, Losses]]
"""(state, key or minibatches) -> (state, losses [M] of the epoch's gradient steps)."""

Epochs = Callable[[Epoch, EpochState, Tree], tuple[EpochState, Losses]]
"""(epoch, state, keys or minibatches of all epochs [E, ...]) -> (state, losses [E, M])."""


def scan(
    step: Callable[[EpochState, Tree], tuple[EpochState, Losses]], state: EpochState, rows: Tree
) -> tuple[EpochState, Losses]:
    """`jax.lax.scan`; on accelerators the losses of a step are stored as one vector, in one copy.

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
    """Epochs until the mean KL of one of them is more than `limit`.

    As in Spinning Up (Achiam 2018) and Stable-Baselines3, per epoch. A skipped epoch makes no
    gradient steps, and takes no time for them.
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
    """The epochs that a config names."""
    return until_kl(config.target_kl) if config.early_stop_kl else scan
