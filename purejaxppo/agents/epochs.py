"""Epochs of an update: all, or until the policy has moved too far from the one that acted."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from purejaxppo.config.schema import PPOConfig


def every_epoch(epoch: Callable, state, keys):
    """(state, parts [E, ...]) of all epochs."""
    return jax.lax.scan(epoch, state, keys)


def until_kl(limit: float) -> Callable:
    """Epochs until the mean KL of one of them is more than `limit`.

    As in Spinning Up (Achiam 2018) and Stable-Baselines3, per epoch. Skipped epochs take no time.
    """

    def run(epoch: Callable, state, keys):
        def body(carried, key):
            state, going = carried

            def skip(state):
                nothing = jax.eval_shape(epoch, state, key)[1]
                return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), nothing)

            state, parts = jax.lax.cond(going, lambda state: epoch(state, key), skip, state)
            below = jnp.mean(parts.approx_kl) <= limit
            return (state, going & below), parts

        (state, _), parts = jax.lax.scan(body, (state, jnp.ones((), bool)), keys)
        return state, parts

    return run


def make(config: PPOConfig) -> Callable:
    """(epoch, state, keys) -> (state, losses [E, ...]) of the epochs that a config names."""
    return until_kl(config.target_kl) if config.kl_stop else every_epoch
