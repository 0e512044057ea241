"""What PPO's policy may maximise, by `ppo.objective`; each negated, to be minimised."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from purejaxppo.agents.losses import approx_kl, clipped_surrogate
from purejaxppo.types import Hyperparams


def unclipped_surrogate(log_ratio, advantage):
    """-r A: what conservative policy iteration improves. Arrays [B] -> [B].

    Schulman et al. 2017, eq. 6.
    """
    return -jnp.exp(log_ratio) * advantage


def dual_clipped_surrogate(log_ratio, advantage, clip_eps, limit):
    """The clipped surrogate, bounded where A < 0: -max(min(r A, clip(r) A), limit A).

    A ratio that has grown large on a bad action would else outweigh all the rest. Arrays
    [B] -> [B]; limit > 1. Ye et al. 2020, https://arxiv.org/abs/1912.09729, eq. 5.
    """
    loss = clipped_surrogate(log_ratio, advantage, clip_eps)
    return jnp.where(advantage < 0, jnp.minimum(loss, -limit * advantage), loss)


def simple_policy_optimization(log_ratio, advantage, clip_eps):
    """-(r A - |A| (r - 1)² / (2ε)): its gradient pulls a ratio back that has left the range.

    Its best ratio is 1 ± ε, by the sign of A. Arrays [B] -> [B]. Xie et al. 2024,
    https://arxiv.org/abs/2401.16025, eq. 11.
    """
    away = jnp.expm1(log_ratio)
    penalty = jnp.abs(advantage) * jnp.square(away) / (2.0 * clip_eps)
    return -(jnp.exp(log_ratio) * advantage - penalty)


Objective = Callable[[Any, Any, Hyperparams], Any]
"""(log_ratio [B], advantage [B], hp) -> what is minimised [B]."""
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
"""(log ratio [B], advantage [B], hp) -> what is minimised [B], by `ppo.objective`."""
