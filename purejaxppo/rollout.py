"""Collecting experience: a scan of act and step, with episode statistics reduced on the device."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from purejaxppo.agents import decisions
from purejaxppo.agents.obs_storage import FullObs, ObsStorage
from purejaxppo.aliases import EnvState, InitialCarry, Key, ObsRows, Stored
from purejaxppo.envs.base import Env, EnvStep
from purejaxppo.spaces import example
from purejaxppo.streams import ENVIRONMENTS, stream
from purejaxppo.types import (
    Act,
    Episodes,
    OpenDecision,
    PolicyStep,
    Rollout,
    RolloutState,
    Row,
    SparseRolloutState,
    Transition,
)

FULL_OBS = FullObs()

Collect = Callable[[Env, Act, RolloutState, Key, int, ObsStorage], Rollout]
"""A function with the arguments and the result of `collect`."""


def init_rollout(env: Env, initial_carry: InitialCarry, key: Key) -> RolloutState:
    """N environments at their first observations."""
    env_state, obs = env.reset(key)
    n = env.spec.num_envs
    carry = initial_carry((n,))
    state = RolloutState(
        env=env_state,
        obs=obs,
        start=jnp.ones(n, bool),
        carry=carry,
        episode_return=jnp.zeros(n),
        episode_length=jnp.zeros(n, jnp.int32),
        discounted_return=jnp.zeros(n),
    )
    return with_nobody_absent(env, state) if env.spec.absent else state


def with_nobody_absent(env: Env, state: RolloutState) -> SparseRolloutState:
    """A state for agents that may be absent, where none is."""
    n = env.spec.num_envs
    zero, false = jnp.zeros(n), jnp.zeros(n, bool)
    action = jax.tree.map(jnp.asarray, example(env.spec.action, (n,)))
    obs = jax.tree.map(jnp.copy, state.obs)
    decision = OpenDecision(obs, action, zero, zero, false, false, state.carry)
    return SparseRolloutState(**vars(state), absent=false, open=decision)


def collect(
    env: Env, act: Act, state: RolloutState, key: Key, length: int, storage: ObsStorage = FULL_OBS
) -> Rollout:
    """Steps N environments `length` times.

    Args:
        env: the environments.
        act: the policy that acts.
        state: their state before the rollout.
        key: consumed.
        length: T.
        storage: of observations.
    """
    state = state.replace(env=env.refresh(state.env))

    def step(
        carried: tuple[RolloutState, Stored], key: Key
    ) -> tuple[tuple[RolloutState, Stored], Row]:
        state, stored = carried
        stored, obs = storage.append(stored, state.obs, state.start, state.env)
        choice = act(key, state.carry, state.obs, state.start)
        env_state = env.with_key(state.env, stream(key, ENVIRONMENTS))
        env_state, out = env.step(env_state, choice.env_action)
        state, row = record(state, obs, choice, env_state, out)
        return (state, stored), row

    first = state, storage.init(state.obs, length, state.env)
    keys = jax.random.split(key, length)
    (end, stored), (transitions, episodes) = jax.lax.scan(step, first, keys)
    episodes = jax.tree.map(lambda x: jnp.sum(x, axis=0), episodes)
    return decisions.join(state, Rollout(transitions, stored, state.carry, end, episodes))


def record(
    state: RolloutState, obs: ObsRows, choice: PolicyStep, env_state: EnvState, out: EnvStep
) -> tuple[RolloutState, Row]:
    """One step's results: (state after it, its row).

    Args:
        state: before the step.
        obs: observations before the step, as a row of the storage.
        choice: the policy's actions.
        env_state: the environments' own state after the step.
        out: the environments' result.
    """
    done = out.ends
    episode_return = state.episode_return + out.scores
    episode_length = state.episode_length + out.valid
    transition = Transition(
        obs=obs,
        action=choice.action,
        log_prob=choice.log_prob,
        reward=out.reward,
        terminated=out.terminated,
        truncated=out.truncated,
        valid=out.valid,
        start=state.start,
        absent=state.absent,
        at_once=out.at_once,
    )
    episodes = Episodes(
        count=jnp.sum(done, dtype=jnp.int32),
        return_sum=jnp.sum(episode_return, where=done),
        length_sum=jnp.sum(episode_length, where=done),
        diverged=jnp.sum(out.diverged, dtype=jnp.int32),
    )
    after = state.replace(
        env=env_state,
        obs=out.obs,
        start=decisions.begins(out.valid, out.diverged, state.absent, out.at_once),
        carry=decisions.hold(state.absent, state.carry, choice.carry),
        episode_return=jnp.where(done | out.diverged, 0.0, episode_return),
        episode_length=jnp.where(done | out.diverged, 0, episode_length),
    )
    if state.open is not None:
        last = decisions.latest(state, choice, out.valid, out.reward)
        after = after.replace(absent=out.absent, open=last)
    return after, (transition, episodes)
