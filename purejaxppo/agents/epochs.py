"""How many epochs an update makes: all, or as many as keep the policy near the one that acted."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from purejaxppo.config.schema import PPOConfig


def every_epoch(epoch: Callable, state, keys):
    """(state, parts [E, ...]) of all epochs."""
    return jax.lax.scan(epoch, state, keys)


def until_kl(limit: float) -> Callable:
    """Epochs until one of them has moved the policy by more than `limit`, by its mean KL.

    As in Spinning Up (Achiam 2018) and Stable-Baselines3, per epoch. Later epochs take no time.
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
    """(epoch, state, keys) -> (state, losses [E, ...]) of the epochs that a config asks for."""
    return until_kl(config.target_kl) if config.kl_stop else every_epoch
