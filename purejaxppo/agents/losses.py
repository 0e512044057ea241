"""PPO's loss terms. Losses see arrays, never networks."""

import chex
import jax.numpy as jnp

from purejaxppo.aliases import Array, Scalar


def clipped_surrogate(log_ratio: Array, advantage: Array, clip_eps: Scalar) -> Array:
    """PPO's pessimistic objective, negated (Schulman et al. 2017, eq. 7). Arrays [B] -> [B]."""
    chex.assert_equal_shape([log_ratio, advantage])
    chex.assert_type([log_ratio, advantage], float)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def squared_error(value: Array, target: Array) -> Array:
    """Half the squared error, (v - target)² / 2. Arrays [B] -> [B]."""
    chex.assert_equal_shape([value, target])
    chex.assert_type([value, target], float)
    return 0.5 * jnp.square(value - target)


def clipped_squared_error(value: Array, old_value: Array, target: Array, clip_eps: Scalar) -> Array:
    """Half the larger squared error of v and of v clipped around its old prediction.

    Arrays [B] -> [B]. From OpenAI's baselines (ppo2); see Engstrom et al. 2020,
    https://arxiv.org/abs/2005.12729, section 3.
    """
    chex.assert_equal_shape([value, old_value, target])
    chex.assert_type([value, old_value, target], float)
    clipped = old_value + jnp.clip(value - old_value, -clip_eps, clip_eps)
    return jnp.maximum(squared_error(value, target), squared_error(clipped, target))


def approx_kl(log_ratio: Array) -> Array:
    """Low-variance estimate of KL(old || new), (r - 1) - log r. Arrays [B] -> [B].

    Its gradient is, in expectation over the old policy, that of the divergence itself. Schulman
    2020, http://joschu.net/blog/kl-approx.html, k3.
    """
    chex.assert_type(log_ratio, float)
    return jnp.expm1(log_ratio) - log_ratio


def clipfrac(log_ratio: Array, clip_eps: Scalar) -> Array:
    """1 where the probability ratio has left the clip range. Arrays [B] -> float [B]."""
    chex.assert_type(log_ratio, float)
    return (jnp.abs(jnp.expm1(log_ratio)) > clip_eps).astype(log_ratio.dtype)
