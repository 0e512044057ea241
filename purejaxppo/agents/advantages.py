"""Compute advantages and value targets: GAE with exact time limits, and V-trace."""

from collections.abc import Callable

import chex
import jax.numpy as jnp

from purejaxppo.agents import decisions, recurrences
from purejaxppo.agents.networks.distributions import Distribution
from purejaxppo.aliases import Array, Scalar
from purejaxppo.types import Estimates, Hyperparams, Predictions, Transition

Advantages = Callable[[Transition, Array, Predictions, Hyperparams], Estimates]
"""(rows of a rollout, rewards [T, N], predictions of the network, hp) -> advantages and targets."""


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    done: Array,
    valid: Array,
    *,
    gamma: Scalar,
    gae_lambda: Scalar,
    rho: Scalar = 1.0,
    absent: Array | None = None,
) -> Estimates:
    """Compute generalised advantage estimates and value targets.

    With δₜ = rₜ + γ(1 - terminatedₜ) vₜ₊₁ - vₜ,

        Âₜ = δₜ + γλ(1 - doneₜ) ρₜ₊₁ Âₜ₊₁        targetₜ = vₜ + ρₜ Âₜ

    Truncated steps bootstrap, terminated steps do not; both cut the trace. Invalid rows get an
    advantage of 0.

    With ρ = 1 this is GAE. With ρₜ = min(1, π(aₜ|oₜ) / μ(aₜ|oₜ)), for the current policy π and the
    behaviour policy μ, it is V-trace. The advantage is not multiplied by ρₜ, because PPO's
    surrogate contains the ratio.

    Args:
        reward: float [T, N].
        value: v(oₜ), float [T, N].
        next_value: v(oₜ₊₁), float [T, N]. On the last row of an episode, oₜ₊₁ is its last
            observation.
        terminated: bool [T, N].
        done: terminated | truncated, bool [T, N].
        valid: bool [T, N].
        gamma: discount, a scalar or float [T, N].
        gae_lambda: trace decay, once per decision.
        rho: importance weights, float [T, N], or 1.
        absent: bool [T, N], True on rows without a decision. The trace skips these rows. The row of
            each decision contains the rewards and flags of the absent rows after it, and
            `next_value` of the next decision (see `decisions`). None: no agent is ever absent.

    Returns:
        Advantages and value targets, float [T, N] each.

    Reference: Schulman et al. 2016, https://arxiv.org/abs/1506.02438, eq. 16. Time limits: Pardo et
    al. 2018, https://arxiv.org/abs/1712.00378. V-trace: Espeholt et al. 2018,
    https://arxiv.org/abs/1802.01561, eq. 1 with both clipping thresholds 1 and λ as in remark 2.
    The advantage bootstraps from vₜ₊₁ + λ(targetₜ₊₁ - vₜ₊₁), that of the paper from targetₜ₊₁.
    """
    numbers, flags = [reward, value, next_value], [terminated, done, valid]
    chex.assert_rank(reward, 2)
    chex.assert_equal_shape([*numbers, *flags])
    chex.assert_type([*numbers, *flags], [float] * 3 + [bool] * 3)
    rho = jnp.where(valid, rho, 1.0)
    next_rho = jnp.concatenate([rho[1:], jnp.ones_like(rho[:1])])
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * gae_lambda * (1.0 - done) * next_rho
    if absent is not None:
        decay = jnp.where(absent, next_rho, decay)
    passes = valid if absent is None else valid | absent
    delta, decay = jnp.where(valid, delta, 0.0), jnp.where(passes, decay, 0.0)
    advantage = recurrences.backwards(delta, decay)
    if absent is not None:
        advantage = jnp.where(absent, 0.0, advantage)
    return Estimates(advantage, value + rho * advantage)


def of_rollout(
    rows: Transition, reward: Array, out: Predictions, hp: Hyperparams, rho: Scalar = 1.0
) -> Estimates:
    """Compute `gae` for the rows of a rollout.

    Args:
        rows: rows of the rollout, [T, N].
        reward: float [T, N], scaled and with intrinsic rewards.
        out: values of the rows and after them.
        hp: hyperparameters.
        rho: importance weights, float [T, N], or 1 for the policy that acted.

    Returns:
        Advantages and value targets, float [T, N] each.
    """
    return gae(
        reward,
        out.value,
        out.next_value,
        rows.terminated,
        rows.terminated | rows.truncated,
        rows.valid,
        gamma=decisions.discount(hp.gamma, rows.ticks),
        gae_lambda=hp.gae_lambda,
        rho=rho,
        absent=rows.absent,
    )


def off_policy(distribution: Distribution) -> Advantages:
    """Return an estimator of V-trace under the policy that made the predictions; see `gae`.

    Args:
        distribution: distribution of the policy's actions.
    """

    def advantages(rows: Transition, reward: Array, out: Predictions, hp: Hyperparams) -> Estimates:
        log_ratio = distribution.log_prob(out.dist_params, rows.action) - rows.log_prob
        rho = jnp.exp(jnp.minimum(log_ratio, 0.0))
        return of_rollout(rows, reward, out, hp, rho)

    return advantages
