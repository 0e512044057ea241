"""Policy losses of PPO, by `ppo.objective`."""

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
    """Compute the surrogate loss of conservative policy iteration, -r A.

    Args:
        log_ratio: log r = log π(a|o) - log π_old(a|o), float [B].
        advantage: A, float [B].

    Returns:
        Loss per row, float [B].

    Reference: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, eq. 6.
    """
    chex.assert_equal_shape([log_ratio, advantage])
    chex.assert_type([log_ratio, advantage], float)
    return -jnp.exp(log_ratio) * advantage


def dual_clipped_surrogate(
    log_ratio: Array, advantage: Array, clip_eps: Scalar, limit: Scalar
) -> Array:
    """Compute the dual-clip loss: the clipped surrogate loss, at most -c A where A < 0.

    -max(min(r A, clip(r, 1 - ε, 1 + ε) A), c A) where A < 0. Without the bound, a large ratio on a
    bad action would outweigh all other rows.

    Args:
        log_ratio: log r, float [B].
        advantage: A, float [B].
        clip_eps: clipping range ε.
        limit: c, above 1.

    Returns:
        Loss per row, float [B].

    Reference: Ye et al. 2020, https://arxiv.org/abs/1912.09729, eq. 5.
    """
    loss = clipped_surrogate(log_ratio, advantage, clip_eps)
    return jnp.where(advantage < 0, jnp.minimum(loss, -limit * advantage), loss)


def simple_policy_optimization(log_ratio: Array, advantage: Array, clip_eps: Scalar) -> Array:
    """Compute the loss of simple policy optimization (SPO), -(r A - |A| (r - 1)² / (2ε)).

    The optimal ratio is 1 ± ε, with the sign of A. Unlike clipping, the gradient moves a ratio
    outside of this range back.

    Args:
        log_ratio: log r, float [B].
        advantage: A, float [B].
        clip_eps: clipping range ε.

    Returns:
        Loss per row, float [B].

    Reference: Xie et al. 2024, https://arxiv.org/abs/2401.16025, eq. 11.
    """
    chex.assert_equal_shape([log_ratio, advantage])
    chex.assert_type([log_ratio, advantage], float)
    away = jnp.expm1(log_ratio)
    # A schedule can reduce ε to 0; 0 / 0 at the ratio 1 would be NaN.
    penalty = jnp.abs(advantage) * jnp.square(away) / jnp.maximum(2.0 * clip_eps, 1e-8)
    return -(jnp.exp(log_ratio) * advantage - penalty)


Objective = Callable[[Array, Array, Hyperparams], Array]
"""(log_ratio [B], advantage [B], hp) -> loss per row [B]."""
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
"""Policy losses by `ppo.objective`."""


def make(config: PPOConfig) -> Objective:
    """Return the policy loss of the config; a custom one is checked by tracing.

    Raises:
        ValueError: the loss cannot be loaded, or does not map rows [B] to losses [B].
    """
    if config.objective in OBJECTIVES:
        return OBJECTIVES[config.objective]
    log_ratio, advantage, hp = jnp.zeros(4), jnp.ones(4), hyperparams_of(config, 1)
    args = extensions.OBJECTIVE, config.objective, log_ratio, advantage, hp
    objective: Objective = extensions.load_function(*args, expected=log_ratio, finite=True)
    return objective
