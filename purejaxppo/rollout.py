"""Rollouts: steps of a policy in vectorised environments."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.agents import decisions
from purejaxppo.agents.obs_storage import FullObs, ObsStorage
from purejaxppo.aliases import Action, Array, EnvState, InitialCarry, Key, Obs, ObsBuffer, StoredObs
from purejaxppo.envs import metrics
from purejaxppo.envs.base import Env, EnvSpec, EnvStep
from purejaxppo.envs.metrics import EpisodeMetrics
from purejaxppo.spaces import example
from purejaxppo.streams import ENVIRONMENTS, stream
from purejaxppo.types import (
    Act,
    Episodes,
    MetricSums,
    OpenDecision,
    PolicyStep,
    Rollout,
    RolloutState,
    Transition,
)

FULL_OBS = FullObs()

Collect = Callable[[Env, Act, RolloutState, Key, int, ObsStorage], Rollout]
"""A function with the arguments and the result of `collect`."""


class StepRow(NamedTuple):
    """One step of N environments: the policy's actions, their outcome, and the episodes so far."""

    choice: PolicyStep
    out: EnvStep
    episode_return: Array  # [N] sum of `EnvStep.scores` since the episode started, with this step
    episode_length: Array  # [N] int32 valid steps since then, with this step
    episode_metrics: EpisodeMetrics | None = None  # [N, K] since then, with this step
    ticks: Array | None = None  # [N] game time of this step; None: not counted

    @property
    def finished(self) -> Array:
        """True where an episode ended or diverged, bool [N]."""
        return self.out.ends | self.out.diverged


def begin_episodes(
    env: Env, first: tuple[EnvState, Obs], initial_carry: InitialCarry
) -> RolloutState:
    """Return the state of N environments before their first step.

    Args:
        env: the environments.
        first: result of their `reset`, (state, obs [N, ...]).
        initial_carry: batch shape -> recurrent carry.
    """
    n = env.spec.num_envs
    env_state, obs = first
    return RolloutState(
        env=env_state,
        obs=obs,
        start=jnp.ones(n, bool),
        carry=initial_carry((n,)),
        episode_return=jnp.zeros(n),
        episode_length=jnp.zeros(n, jnp.int32),
        discounted_return=jnp.zeros(n),
        absent=jnp.zeros(n, bool) if env.spec.absent else None,
        episode_metrics=EpisodeMetrics.start(env.spec.metrics, (n,)),
    )


def init_rollout(
    env: Env,
    initial_carry: InitialCarry,
    key: Key,
    *,
    count_ticks: bool = False,
    action: Action | None = None,
) -> RolloutState:
    """Return the state of N environments before the first rollout of a training run.

    Args:
        env: the environments.
        initial_carry: batch shape -> recurrent carry.
        key: random key; the caller must not use it again.
        count_ticks: store the game time of decisions, for `ppo.discount` = tick.
        action: arrays or shapes of actions [N, ...] as the policy stores them; None: as the
            environment takes them.
    """
    state = begin_episodes(env, env.reset(key), initial_carry)
    if count_ticks:
        state = state.replace(ticks=jnp.zeros(env.spec.num_envs))
    if not env.spec.absent:
        return state
    like = example(env.spec.action, (env.spec.num_envs,)) if action is None else action
    return state.replace(open=no_decision(state, like))


def no_decision(state: RolloutState, like: Action) -> OpenDecision:
    """Return an invalid open decision, for agents before their first decision.

    Args:
        state: rollout state before the first step.
        like: actions [N, ...]; only shapes and types are used.
    """
    n = state.start.size
    zero, false = jnp.zeros(n), jnp.zeros(n, bool)
    action = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    obs = jax.tree.map(jnp.copy, state.obs)
    return OpenDecision(obs, action, zero, zero, false, false, state.carry)


def step(env: Env, act: Act, state: RolloutState, key: Key) -> tuple[RolloutState, StepRow]:
    """Act once in N environments.

    The return of an episode is the sum of `EnvStep.scores`, also over steps at which the agent is
    absent. A step that only resets an environment adds 0.

    Args:
        env: the environments.
        act: the policy.
        state: rollout state before the step.
        key: random key of the step; or one key per group, [G], if `act` and `env` divide the N
            rows into G groups.

    Returns:
        (state after the step, row of the step).
    """
    choice = act(key, state.carry, state.obs, state.start)
    env_state, out = env.step(stream(key, ENVIRONMENTS), state.env, choice.env_action)
    row = StepRow(
        choice=choice,
        out=out,
        episode_return=state.episode_return + out.scores,
        episode_length=state.episode_length + out.valid,
        episode_metrics=state.episode_metrics and state.episode_metrics.add(out.metrics),
        ticks=None if state.ticks is None else game_time(env.spec, out),
    )
    after = state.replace(
        env=env_state,
        obs=out.obs,
        start=decisions.starts_episode(out.valid, out.diverged, state.absent, out.at_once),
        carry=decisions.hold(state.absent, state.carry, choice.carry),
        episode_return=jnp.where(row.finished, 0.0, row.episode_return),
        episode_length=jnp.where(row.finished, 0, row.episode_length),
        absent=out.absent,
        open=decisions.latest_decision(state, choice, out.valid, out.reward),
        ticks=decisions.ticks_since_decision(state, row.ticks),
        episode_metrics=row.episode_metrics and row.episode_metrics.restarted(row.finished),
    )
    return after, row


def game_time(spec: EnvSpec, out: EnvStep) -> Array:
    """Return the game time of a step in ticks, float [N]; 1 where it is unknown.

    Args:
        spec: the environments' spec.
        out: result of the step.
    """
    ticks, reported = out.ticks, metrics.column(out.metrics, spec.metrics, metrics.TICKS)
    if ticks is None:
        ticks = jnp.ones_like(out.reward) if reported is None else reported
    return jnp.where(ticks >= 0, ticks, 1.0)


def collect(
    env: Env, act: Act, state: RolloutState, key: Key, length: int, storage: ObsStorage = FULL_OBS
) -> Rollout:
    """Collect a rollout: step N environments T times.

    Args:
        env: the environments.
        act: the policy.
        state: rollout state, with the environments' state from `Env.begin_rollout`.
        key: random key; the caller must not use it again.
        length: number of steps, T.
        storage: which observations are stored, and how.

    Returns:
        Transitions [T, N], the state after them, and sums over the episodes that ended.
    """

    def body(
        carried: tuple[RolloutState, ObsBuffer], key: Key
    ) -> tuple[tuple[RolloutState, ObsBuffer], tuple[Transition, Episodes]]:
        before, stored = carried
        stored, obs = storage.append(stored, before.obs, before.start, before.env)
        after, row = step(env, act, before, key)
        return (after, stored), (transition(before, obs, row), ended(row))

    first = state, storage.init(state.obs, length, state.env)
    keys = jax.random.split(key, length)
    (end, stored), (transitions, episodes) = jax.lax.scan(body, first, keys)
    episodes = jax.tree.map(lambda x: jnp.sum(x, axis=0), episodes)
    return decisions.join(state, Rollout(transitions, stored, state.carry, end, episodes))


def transition(before: RolloutState, obs: StoredObs, row: StepRow) -> Transition:
    """Return a step in the form that a rollout stores.

    Args:
        before: state before the step.
        obs: observations before the step, as the storage returned them.
        row: actions and their outcome.
    """
    choice, out = row.choice, row.out
    return Transition(
        obs=obs,
        action=choice.action,
        log_prob=choice.log_prob,
        reward=out.reward,
        terminated=out.terminated,
        truncated=out.truncated,
        valid=out.valid,
        start=before.start,
        absent=before.absent,
        at_once=out.at_once,
        ticks=row.ticks,
    )


def ended(row: StepRow) -> Episodes:
    """Return sums over the episodes that ended at this step."""
    done = row.out.ends
    of_episodes = row.episode_metrics
    return Episodes(
        count=jnp.sum(done, dtype=jnp.int32),
        return_sum=jnp.sum(row.episode_return, where=done),
        length_sum=jnp.sum(row.episode_length, where=done),
        diverged=jnp.sum(row.out.diverged, dtype=jnp.int32),
        metrics=None if of_episodes is None else metric_sums(of_episodes.reduced, done),
    )


def metric_sums(values: Array, done: Array) -> MetricSums:
    """Return the sums of metrics [N, K] over the episodes that ended, bool [N]."""
    counted = done[:, None] & ~jnp.isnan(values)
    return MetricSums(
        total=jnp.sum(values, axis=0, where=counted),
        count=jnp.sum(counted, axis=0, dtype=jnp.int32),
    )
