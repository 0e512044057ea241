"""Policy objectives of PPO, by `ppo.objective`; each negated, to be minimised."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from purejaxppo.agents.losses import approx_kl, clipped_surrogate
from purejaxppo.types import Hyperparams


def unclipped_surrogate(log_ratio, advantage):
    """-r A: the objective of conservative policy iteration. Arrays [B] -> [B].

    Schulman et al. 2017, eq. 6.
    """
    return -jnp.exp(log_ratio) * advantage


def dual_clipped_surrogate(log_ratio, advantage, clip_eps, limit):
    """The clipped surrogate, bounded where A < 0: -max(min(r A, clip(r) A), limit A).

    Otherwise a large ratio on a bad action would outweigh all other rows. Arrays
    [B] -> [B]; limit > 1. Ye et al. 2020, https://arxiv.org/abs/1912.09729, eq. 5.
    """
    loss = clipped_surrogate(log_ratio, advantage, clip_eps)
    return jnp.where(advantage < 0, jnp.minimum(loss, -limit * advantage), loss)


def simple_policy_optimization(log_ratio, advantage, clip_eps):
    """-(r A - |A| (r - 1)² / (2ε)): its gradient returns a ratio that has left the range.

    Its best ratio is 1 ± ε, with the sign of A. Arrays [B] -> [B]. Xie et al. 2024,
    https://arxiv.org/abs/2401.16025, eq. 11.
    """
    away = jnp.expm1(log_ratio)
    penalty = jnp.abs(advantage) * jnp.square(away) / (2.0 * clip_eps)
    return -(jnp.exp(log_ratio) * advantage - penalty)


Objective = Callable[[Any, Any, Hyperparams], Any]
"""(log_ratio [B], advantage [B], hp) -> the loss to minimise [B]."""
OBJECTIVES: dict[str, Objective] = {
    "clip": lambda log_ratio, advantage, hp: clipped_surrogate(log_ratio, advantage, hp.clip_eps),
    "dual_clip": lambda ratio, advantage, hp: dual_clipped_surrogate(
        ratio, advantage, hp.clip_eps, hp.dual_clip
    ),
    "spo": lambda ratio, advantage, hp: simple_policy_optimization(ratio, advantage, hp.clip_eps),
    "kl": lambda ratio, advantage, hp: (
        unclipped_surrogate(ratio, advantage) + hp.kl_coef * approx_kl(ratio)
    ),
    "clip_kl": lambda ratio, advantage, hp: (
        clipped_surrogate(ratio, advantage, hp.clip_eps) + hp.kl_coef * approx_kl(ratio)
    ),
    "imitate": lambda ratio, advantage, hp: -ratio,
}
"""By `ppo.objective`."""
