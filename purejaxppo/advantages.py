"""Advantages with exact time limits: generalised estimates, and V-trace for older policies."""

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


def vtrace(reward, value, next_value, terminated, done, valid, *, log_ratio, gamma, gae_lambda):
    """V-trace for rows of an older policy: advantages, and what its value targets add to v.

    With δₜ as in `gae` and ρₜ = min(1, π(aₜ|oₜ) / μ(aₜ|oₜ)), of the current policy π and the
    acting one μ,

        Âₜ = δₜ + γλ(1 - doneₜ) eₜ₊₁        eₜ = ρₜ Âₜ

    The value's target is vₜ + eₜ. The advantage is not yet weighed: PPO's surrogate has the ratio.
    Where all ratios are 1, both are `gae`.

    Args:
        reward: float [T, N], as in `gae`, like the next five.
        value: v(oₜ).
        next_value: v(oₜ₊₁).
        terminated: bool.
        done: bool.
        valid: bool.
        log_ratio: log π(aₜ|oₜ) - log μ(aₜ|oₜ), float [T, N].
        gamma: discount.
        gae_lambda: λ, trace decay.

    Returns:
        (Â, e), each float [T, N]; rows that are not valid get 0.

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, eq. 1 with both limits 1 and λ as in
    their remark 2; the advantage bootstraps from as much of the next row's correction as e does.
    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * gae_lambda * (1.0 - done)
    rho = jnp.exp(jnp.minimum(log_ratio, 0.0))

    def backwards(later, row):
        delta, decay, rho, valid = row
        advantage = jnp.where(valid, delta + decay * later, 0.0)
        correction = jnp.where(valid, rho * advantage, 0.0)
        return correction, (advantage, correction)

    _, out = jax.lax.scan(
        backwards, jnp.zeros_like(delta[0]), (delta, decay, rho, valid), reverse=True
    )
    return out
