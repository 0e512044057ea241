"""Advantages with exact time limits: generalised estimates, and V-trace for older policies."""

from collections.abc import Callable

import chex
import jax.numpy as jnp

from purejaxppo.agents import recurrences
from purejaxppo.agents.networks.distributions import Distribution
from purejaxppo.aliases import Array, Scalar
from purejaxppo.types import Estimates, Hyperparams, Predictions, Transition

Advantages = Callable[[Transition, Array, Predictions, Hyperparams], Estimates]
"""(a rollout's rows, rewards [T, N], the network's predictions, hp) -> advantages and targets."""


def gae(  # noqa: PLR0913 - a row's columns, and two numbers
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
    """Generalised advantage estimates, and the value targets that go with them.

    With δₜ = rₜ + γ(1 - terminatedₜ) vₜ₊₁ - vₜ,

        Âₜ = δₜ + γλ(1 - doneₜ) ρₜ₊₁ Âₜ₊₁        target = vₜ + ρₜ Âₜ

    A truncated step bootstraps, a terminated one does not; both cut the trace. Rows that are not
    valid get an advantage of 0. With ρ = 1 this is GAE. With ρₜ = min(1, π(aₜ|oₜ) / μ(aₜ|oₜ)), of
    the current policy π and an older one μ that acted, it is V-trace; its advantage is not yet
    weighed, since PPO's surrogate has the ratio.

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
        rho: importance weights, float [T, N], or 1.
        absent: bool [T, N], True on rows without a decision, which the trace passes; the row of
            their decision has their rewards and flags, and the next decision's value (see
            `decisions`). None: there are none.

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438, eq. 16; time limits as in Pardo et al.
    2018, https://arxiv.org/abs/1712.00378. V-trace: Espeholt et al. 2018,
    https://arxiv.org/abs/1802.01561, eq. 1 with both limits 1 and λ as in their remark 2; the
    advantage bootstraps from as much of the next row's correction as the target does.
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
    """`gae` of a rollout's rows [T, N]; with `rho` 1, under the policy that acted."""
    return gae(
        reward,
        out.value,
        out.next_value,
        rows.terminated,
        rows.terminated | rows.truncated,
        rows.valid,
        gamma=hp.gamma,
        gae_lambda=hp.gae_lambda,
        rho=rho,
        absent=rows.absent,
    )


def off_policy(distribution: Distribution) -> Advantages:
    """V-trace under the policy that made the predictions."""

    def advantages(rows: Transition, reward: Array, out: Predictions, hp: Hyperparams) -> Estimates:
        log_ratio = distribution.log_prob(out.dist_params, rows.action) - rows.log_prob
        rho = jnp.exp(jnp.minimum(log_ratio, 0.0))
        return of_rollout(rows, reward, out, hp, rho)

    return advantages
