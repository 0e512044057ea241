"""Loss functions of PPO. They take arrays, never networks."""

import chex
import jax.numpy as jnp

from purejaxppo.agents import recurrences
from purejaxppo.aliases import Array, Reduce, Scalar


def clipped_surrogate(log_ratio: Array, advantage: Array, clip_eps: Scalar) -> Array:
    """Compute PPO's clipped surrogate loss, -min(r A, clip(r, 1 - ε, 1 + ε) A).

    Args:
        log_ratio: log r = log π(a|o) - log π_old(a|o), float [B].
        advantage: A, float [B].
        clip_eps: clipping range ε.

    Returns:
        Loss per row, float [B].

    Reference: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, eq. 7.
    """
    chex.assert_equal_shape([log_ratio, advantage])
    chex.assert_type([log_ratio, advantage], float)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def squared_error(value: Array, target: Array) -> Array:
    """Compute half the squared error, (v - target)² / 2.

    Args:
        value: v, float [B].
        target: float [B].

    Returns:
        Loss per row, float [B].
    """
    chex.assert_equal_shape([value, target])
    chex.assert_type([value, target], float)
    return 0.5 * jnp.square(value - target)


def clipped_squared_error(value: Array, old_value: Array, target: Array, clip_eps: Scalar) -> Array:
    """Compute the clipped value loss, max((v - target)², (v_clip - target)²) / 2.

    v_clip = v_old + clip(v - v_old, -ε, ε).

    Args:
        value: v, float [B].
        old_value: v_old, the prediction before the update, float [B].
        target: float [B].
        clip_eps: clipping range ε.

    Returns:
        Loss per row, float [B].

    Source: OpenAI baselines (ppo2). See Engstrom et al. 2020, https://arxiv.org/abs/2005.12729,
    section 3.
    """
    chex.assert_equal_shape([value, old_value, target])
    chex.assert_type([value, old_value, target], float)
    clipped = old_value + jnp.clip(value - old_value, -clip_eps, clip_eps)
    return jnp.maximum(squared_error(value, target), squared_error(clipped, target))


def approx_kl(log_ratio: Array) -> Array:
    """Estimate KL(old || new) per row as (r - 1) - log r, with low variance.

    Its expected gradient under the old policy is the gradient of the KL divergence.

    Args:
        log_ratio: log r = log π(a|o) - log π_old(a|o), float [B].

    Returns:
        Estimate per row, float [B], at least 0.

    Reference: Schulman 2020, http://joschu.net/blog/kl-approx.html, k3.
    """
    chex.assert_type(log_ratio, float)
    return jnp.expm1(log_ratio) - log_ratio


def episode_kl(log_ratio: Array, start: Array, valid: Array, psum: Reduce) -> Array:
    """Estimate the KL of episodes, the mean of (R - 1) - log R with log R = Σₜ log rₜ.

    Args:
        log_ratio: log r = log π(a|o) - log π_old(a|o), float [T, N].
        start: True where an episode starts, bool [T, N]. An episode that the rollout cuts counts by
            its part in the rollout.
        valid: bool [T, N]. Episodes without valid rows do not count.
        psum: sum over shards.

    Returns:
        Estimate, a scalar.

    Source: Bouftini & Benzaouia 2026, "PPO Suffices for On-Policy RL", as published in
    https://github.com/rbouftini/adappo/blob/main/algo/adappo.py.
    """
    chex.assert_equal_shape([log_ratio, start, valid])
    keep = jnp.where(start, 0.0, 1.0)[..., None]
    steps = jnp.stack([jnp.where(valid, log_ratio, 0.0), jnp.where(valid, 1.0, 0.0)], axis=-1)
    totals = recurrences.forwards(steps, jnp.broadcast_to(keep, steps.shape), steps[0] * 0.0)
    last = jnp.concatenate([start[1:], jnp.ones_like(start[:1])])
    counted = last & (totals[..., 1] > 0)
    kl = jnp.sum(approx_kl(totals[..., 0]), where=counted)
    total, count = psum(jnp.stack([kl, jnp.sum(counted, dtype=kl.dtype)]))
    return total / jnp.maximum(count, 1.0)


def clipfrac(log_ratio: Array, clip_eps: Scalar) -> Array:
    """Return 1 where the probability ratio is outside of [1 - ε, 1 + ε], else 0.

    Args:
        log_ratio: log r, float [B].
        clip_eps: clipping range ε.

    Returns:
        Float [B]; its mean is the clip fraction.
    """
    chex.assert_type(log_ratio, float)
    return (jnp.abs(jnp.expm1(log_ratio)) > clip_eps).astype(log_ratio.dtype)
