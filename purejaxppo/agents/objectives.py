"""Policy objectives of PPO, by `ppo.objective`; each negated, to be minimised."""

from collections.abc import Callable

import chex
import jax.numpy as jnp

from purejaxppo.agents.losses import approx_kl, clipped_surrogate
from purejaxppo.agents.schedules import hyperparams_of
from purejaxppo.aliases import Array, Scalar
from purejaxppo.config import extensions
from purejaxppo.config.schema import PPOConfig
from purejaxppo.types import Hyperparams


def unclipped_surrogate(log_ratio: Array, advantage: Array) -> Array:
    """-r A: the objective of conservative policy iteration. Arrays [B] -> [B].

    Schulman et al. 2017, eq. 6.
    """
    chex.assert_equal_shape([log_ratio, advantage])
    chex.assert_type([log_ratio, advantage], float)
    return -jnp.exp(log_ratio) * advantage


def dual_clipped_surrogate(
    log_ratio: Array, advantage: Array, clip_eps: Scalar, limit: Scalar
) -> Array:
    """The clipped surrogate, bounded where A < 0: -max(min(r A, clip(r) A), limit A).

    Otherwise a large ratio on a bad action would outweigh all other rows. Arrays
    [B] -> [B]; limit > 1. Ye et al. 2020, https://arxiv.org/abs/1912.09729, eq. 5.
    """
    loss = clipped_surrogate(log_ratio, advantage, clip_eps)
    return jnp.where(advantage < 0, jnp.minimum(loss, -limit * advantage), loss)


def simple_policy_optimization(log_ratio: Array, advantage: Array, clip_eps: Scalar) -> Array:
    """-(r A - |A| (r - 1)² / (2ε)): its gradient returns a ratio that has left the range.

    Its best ratio is 1 ± ε, with the sign of A. Arrays [B] -> [B]. Xie et al. 2024,
    https://arxiv.org/abs/2401.16025, eq. 11.
    """
    chex.assert_equal_shape([log_ratio, advantage])
    chex.assert_type([log_ratio, advantage], float)
    away = jnp.expm1(log_ratio)
    penalty = jnp.abs(advantage) * jnp.square(away) / (2.0 * clip_eps)
    return -(jnp.exp(log_ratio) * advantage - penalty)


Objective = Callable[[Array, Array, Hyperparams], Array]
"""(log_ratio [B], advantage [B], hp) -> the loss to minimise [B]."""
OBJECTIVES: dict[str, Objective] = {
    "clip": lambda log_ratio, advantage, hp: clipped_surrogate(log_ratio, advantage, hp.clip_eps),
    "dual_clip": lambda log_ratio, advantage, hp: dual_clipped_surrogate(
        log_ratio, advantage, hp.clip_eps, hp.dual_clip
    ),
    "spo": lambda log_ratio, advantage, hp: simple_policy_optimization(
        log_ratio, advantage, hp.clip_eps
    ),
    "kl": lambda log_ratio, advantage, hp: (
        unclipped_surrogate(log_ratio, advantage) + hp.kl_coef * approx_kl(log_ratio)
    ),
    "clip_kl": lambda log_ratio, advantage, hp: (
        clipped_surrogate(log_ratio, advantage, hp.clip_eps) + hp.kl_coef * approx_kl(log_ratio)
    ),
    "imitate": lambda log_ratio, advantage, hp: -log_ratio,
}
"""By `ppo.objective`."""


def make(config: PPOConfig) -> Objective:
    """The objective that a config names, a user's own checked by tracing.

    Raises:
        ValueError: it cannot be loaded, or does not map rows [B] to losses [B].
    """
    if config.objective in OBJECTIVES:
        return OBJECTIVES[config.objective]
    log_ratio, advantage, hp = jnp.zeros(4), jnp.ones(4), hyperparams_of(config, 1)
    args = extensions.OBJECTIVE, config.objective, log_ratio, advantage, hp
    objective: Objective = extensions.function(*args, gives=log_ratio, finite=True)
    return objective
