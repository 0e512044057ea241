"""Generalised advantage estimation with exact time limits."""

import jax
import jax.numpy as jnp


def gae(reward, value, next_value, terminated, done, valid, *, gamma, gae_lambda):
    """Generalised advantage estimates, Âₜ = δₜ + γλ(1 - doneₜ) Âₜ₊₁.

    δₜ = rₜ + γ(1 - terminatedₜ) vₜ₊₁ - vₜ. A truncated step bootstraps, a terminated one does not;
    both cut the trace. Rows that are not valid get 0.

    Args:
        reward: float [T, N].
        value: v(oₜ), float [T, N].
        next_value: v(oₜ₊₁), float [T, N]; on a row that ends an episode oₜ₊₁ is its last
            observation.
        terminated: bool [T, N].
        done: terminated or truncated, bool [T, N].
        valid: bool [T, N].
        gamma: discount.
        gae_lambda: trace decay.

    Returns:
        Advantages, float [T, N]. Value targets are advantage + value.

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438, eq. 16; time limits as in Pardo et al.
    2018, https://arxiv.org/abs/1712.00378.
    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * gae_lambda * (1.0 - done)

    def backwards(later, row):
        delta, decay, valid = row
        advantage = jnp.where(valid, delta + decay * later, 0.0)
        return advantage, advantage

    _, advantage = jax.lax.scan(
        backwards, jnp.zeros_like(delta[0]), (delta, decay, valid), reverse=True
    )
    return advantage
