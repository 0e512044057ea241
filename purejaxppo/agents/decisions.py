"""Agents that need a decision only at some steps.

On the other rows an agent is `absent`: its observation is stale and its action is ignored. Each
decision is one step of learning. The discount is per decision, for any number of rows in between:

    δₖ = Rₖ + γ(1 - terminatedₖ) v(oₖ₊₁) - v(oₖ)        Rₖ = sum of the rewards until oₖ₊₁

With `ppo.discount` = tick, the discount is that of a semi-Markov decision process (Sutton et al.
1999, https://doi.org/10.1016/S0004-3702(99)00052-1, section 3): γ^τₖ, where τₖ is the number of
game ticks until oₖ₊₁, and rewards are discounted from oₖ on. Games report only the sum of these
rewards, which is spread evenly over the ticks (`spread_rewards`). λ and the discount of intrinsic
returns apply once per decision in both cases.

The row of each decision gets the rewards and the end of the absent rows after it (`join`). Values
and traces skip absent rows (`next_entries`, `advantages.gae`). A recurrent carry does not change on
them (`hold`). A decision that is still open after the last row of a rollout does not belong to this
rollout, since there is no observation to bootstrap from. It becomes the first row of the next
rollout, with the rewards so far.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.aliases import Array, Scalar, T
from purejaxppo.types import OpenDecision, PolicyStep, Rollout, RolloutState, Transition


def expand(mask: Array, x: Array) -> Array:
    """Append axes of length 1 to `mask` until it has as many axes as `x`."""
    return mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))


def hold(absent: Array | None, old: T, new: T) -> T:
    """Return `old` where an agent was absent, `new` elsewhere.

    Args:
        absent: bool [N], true where no agent acts at this step; None: no agent is absent.
        old: arrays [N, ...].
        new: arrays [N, ...].
    """
    if absent is None:
        return new
    return jax.tree.map(lambda x, y: jnp.where(expand(absent, x), x, y), old, new)


def starts_episode(
    valid: Array, diverged: Array, absent: Array | None, at_once: Array | None = None
) -> Array:
    """Return True where an observation is the first of an episode, bool [N].

    Args:
        valid: `EnvStep.valid` of the step that returned the observation, bool [N].
        diverged: `EnvStep.diverged` of that step, bool [N].
        absent: the agent was absent before that step, bool [N]; None: no agent is absent.
        at_once: bool [N], true where that step ended an episode and started the next one; None:
            never.
    """
    first = ~valid if absent is None else ~(valid | (absent & ~diverged))
    return first if at_once is None else first | at_once


def next_entries(rows: T, last: T, absent: Array | None) -> T:
    """Return the entry of the next row in which the agent is present, for each row [T, N, ...].

    Args:
        rows: arrays [T, N, ...], one entry per row.
        last: arrays [N, ...], the entry after the last row.
        absent: bool [T, N]; None: no agent is absent.
    """
    after = jax.tree.map(lambda x, y: jnp.concatenate([x[1:], y[None]]), rows, last)
    if absent is None:
        return after
    length = len(absent)
    has_decision = jnp.concatenate([~absent[1:], jnp.ones_like(absent[:1])])
    row = jnp.where(has_decision, jnp.arange(length)[:, None], length - 1)
    row = jax.lax.cummin(row, reverse=True)
    return jax.tree.map(lambda x: jnp.take_along_axis(x, expand(row, x), axis=0), after)


def has_next_obs(rows: Transition) -> Array:
    """Return True for valid rows with a next observation of the same episode, bool [T, N].

    Where `at_once` is True, the next observation is the first one of the next episode.

    Args:
        rows: rows of a rollout, [T, N].
    """
    return rows.valid if rows.at_once is None else rows.valid & ~rows.at_once


def latest_decision(
    state: RolloutState, choice: PolicyStep, valid: Array, reward: Array
) -> OpenDecision | None:
    """Return the latest decision of each agent after a step; None if no agent is ever absent.

    Args:
        state: rollout state before the step.
        choice: actions of the policy.
        valid: `EnvStep.valid` of the step, bool [N].
        reward: rewards of the step, float [N].
    """
    if state.open is None:
        return None
    zero = jnp.zeros_like(reward)
    new = OpenDecision(
        state.obs, choice.action, choice.log_prob, zero, valid, state.start, state.carry
    )
    last = hold(state.absent, state.open, new)
    return last._replace(reward=last.reward + reward)


def ticks_since_decision(state: RolloutState, ticks: Array | None) -> Array | None:
    """Return the game time from each agent's latest decision to the end of a step, float [N].

    Args:
        state: rollout state before the step.
        ticks: game time of the step, float [N]; None: not counted.
    """
    if state.ticks is None or ticks is None:
        return None
    return ticks if state.absent is None else ticks + jnp.where(state.absent, state.ticks, 0.0)


def discount(gamma: Scalar, ticks: Array | None) -> Array | Scalar:
    """Return the discount of each decision, γ^ticks [T, N]; γ if ticks are not counted."""
    return gamma if ticks is None else gamma**ticks


def spread_rewards(rows: Transition, gamma: Scalar) -> Transition:
    """Discount the rewards of decisions per tick, as if each tick paid an equal part.

    A reward R over τ ticks becomes R/τ Σⱼ γʲ = R (1 - γ^τ) / (τ (1 - γ)), with j from 0 to τ - 1.

    Args:
        rows: rows of a rollout, [T, N].
        gamma: discount per tick.
    """
    if rows.ticks is None:
        return rows
    log, ticks = jnp.log(gamma), jnp.maximum(rows.ticks, 1.0)
    mean = jnp.expm1(ticks * log) / (ticks * jnp.expm1(log))
    return rows._replace(reward=rows.reward * jnp.where(gamma == 1, 1.0, mean))


def join(before: RolloutState, rollout: Rollout) -> Rollout:
    """Assign the rewards and ends of absent rows to the decisions before them.

    A valid open decision of the previous rollout replaces row 0. (The open decision that a
    population member copies from another is not valid.) A decision is not valid if it is open at
    the end of the rollout, or if the simulator diverged after it.

    Args:
        before: state before the rollout.
        rollout: the rollout, one row per step.

    Returns:
        The rollout, in which only rows with a decision and a known outcome are valid.
    """
    rows, end = rollout.transitions, rollout.end
    absent, carry = rows.absent, rollout.carry
    if absent is None or end.absent is None:
        return rollout
    later_start = jnp.concatenate([rows.start[1:], end.start[None]])
    lost = absent & later_start
    outcome = _Outcome(rows.reward, rows.terminated, rows.truncated, lost, rows.ticks)
    if before.open is not None:
        resumed = absent[0] & before.open.valid
        so_far = before.open.reward, before.ticks
        reward, ticks = jax.tree.map(
            lambda x, y: x.at[0].add(jnp.where(resumed, y, 0.0)), (rows.reward, rows.ticks), so_far
        )
        outcome = outcome._replace(reward=reward, ticks=ticks)
        carry = hold(resumed, before.open.carry, carry)
        rows = _resume(before.open, rows, resumed)
        absent = absent.at[0].set(absent[0] & ~resumed)
    after = jax.tree.map(lambda x: jnp.zeros_like(x[0]), outcome)._replace(lost=end.absent)
    total = _add_up(outcome, after, absent)
    rows = rows._replace(
        reward=jnp.where(total.lost, 0.0, total.reward),
        terminated=total.terminated,
        truncated=total.truncated,
        valid=rows.valid & ~total.lost,
        absent=absent,
        ticks=total.ticks,
    )
    return rollout._replace(transitions=rows, carry=carry)


class _Outcome(NamedTuple):
    """Outcome of a step, or of all steps until the next decision."""

    reward: Array  # [(T,) N]
    terminated: Array  # [(T,) N] bool
    truncated: Array  # [(T,) N] bool
    lost: Array  # [(T,) N] bool: no observation to bootstrap from
    ticks: Array | None  # [(T,) N] game time; None: not counted


def _resume(decision: OpenDecision, rows: Transition, resumed: Array) -> Transition:
    """Return rows [T, N] whose first row is an open decision where `resumed`, bool [N]."""

    def put(x: Array, y: Array) -> Array:
        return x.at[0].set(jnp.where(expand(resumed, y), y, x[0]).astype(x.dtype))

    return rows._replace(
        obs=jax.tree.map(put, rows.obs, decision.obs),
        action=jax.tree.map(put, rows.action, decision.action),
        log_prob=put(rows.log_prob, decision.log_prob),
        valid=put(rows.valid, decision.valid),
        start=put(rows.start, decision.start),
    )


def _add_up(outcome: _Outcome, after: _Outcome, absent: Array) -> _Outcome:
    """Add the outcomes of absent rows to their decisions' rows, [T, N]; absent rows get zeros."""

    def backwards(later: _Outcome, row: tuple[_Outcome, Array]) -> tuple[_Outcome, _Outcome]:
        current, absent = row
        total = jax.tree.map(jnp.add, current, later)  # the logical or of flags
        zeros = jax.tree.map(jnp.zeros_like, total)
        return hold(absent, total, zeros), hold(absent, zeros, total)

    _, outcomes = jax.lax.scan(backwards, after, (outcome, absent), reverse=True)
    return outcomes
