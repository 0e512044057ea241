"""PPO's loss terms. Losses see arrays, never networks."""

import jax.numpy as jnp


def clipped_surrogate(log_ratio, advantage, clip_eps):
    """PPO's pessimistic objective, negated (Schulman et al. 2017, eq. 7). Arrays [B] -> [B]."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


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


def squared_error(value, target):
    """Half the squared error, (v - target)² / 2. Arrays [B] -> [B]."""
    return 0.5 * jnp.square(value - target)


def clipped_squared_error(value, old_value, target, clip_eps):
    """Half the larger squared error of v and of v clipped around its old prediction.

    Arrays [B] -> [B]. From OpenAI's baselines (ppo2); see Engstrom et al. 2020,
    https://arxiv.org/abs/2005.12729, section 3.
    """
    clipped = old_value + jnp.clip(value - old_value, -clip_eps, clip_eps)
    return jnp.maximum(squared_error(value, target), squared_error(clipped, target))


def approx_kl(log_ratio):
    """Low-variance estimate of KL(old || new), (r - 1) - log r. Arrays [B] -> [B].

    Its gradient is, in expectation over the old policy, that of the divergence itself. Schulman
    2020, http://joschu.net/blog/kl-approx.html, k3.
    """
    return jnp.expm1(log_ratio) - log_ratio


def clipfrac(log_ratio, clip_eps):
    """1 where the probability ratio has left the clip range. Arrays [B] -> float [B]."""
    return (jnp.abs(jnp.expm1(log_ratio)) > clip_eps).astype(log_ratio.dtype)
