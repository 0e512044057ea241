"""Collecting experience: a scan of act and step, with episode statistics reduced on the device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.envs.base import Env, EnvStep
from purejaxppo.memory import Whole, Windows
from purejaxppo.types import Episodes, RolloutState, Transition

WHOLE = Whole()


def init_rollout(env: Env, initial_carry: Callable, key) -> RolloutState:
    """N environments at their first observations."""
    state, obs = env.reset(key)
    n = env.spec.num_envs
    return RolloutState(
        env=state,
        obs=obs,
        start=jnp.ones(n, bool),
        carry=initial_carry((n,)),
        episode_return=jnp.zeros(n),
        episode_length=jnp.zeros(n, jnp.int32),
        discounted_return=jnp.zeros(n),
    )


def collect(
    env: Env,
    act: Callable[..., tuple[Any, Any, Any, Any]],
    state: RolloutState,
    key,
    length: int,
    *,
    memory: Whole | Windows = WHOLE,
) -> tuple[RolloutState, Transition, Episodes]:
    """Steps N environments `length` times.

    Args:
        env: the environments.
        act: (key, carry, obs, start) -> (carry, action, log_prob, env_action); the carry is to
            be reset where `start`.
        state: where they stand.
        key: consumed.
        length: T.
        memory: how observations are kept in the transitions.

    Returns:
        (state, transitions [T, N], episodes that ended).
    """
    state = state.replace(env=env.refresh(state.env))

    def step(carried, key):
        state, kept = carried
        kept, obs = memory.keep(kept, state.obs, state.start, state.env)
        carry, action, log_prob, env_action = act(key, state.carry, state.obs, state.start)
        env_state, out = env.step(state.env, env_action)
        state, row = record(state, obs, Choice(carry, action, log_prob), env_state, out)
        return (state, kept), row

    first, start_carry = (state, memory.begin(state.obs, length, state.env)), state.carry
    keys = jax.random.split(key, length)
    (state, kept), (transitions, episodes) = jax.lax.scan(step, first, keys)
    transitions = transitions._replace(memory=kept, carry=start_carry)
    return state, transitions, jax.tree.map(lambda x: jnp.sum(x, axis=0), episodes)


class Choice(NamedTuple):
    """What a policy chose for N environments."""

    carry: Any  # [N, ...]
    action: Any  # [N, ...]
    log_prob: jax.Array  # [N]


def record(
    state: RolloutState, obs, choice: Choice, env_state, out: EnvStep
) -> tuple[RolloutState, tuple[Transition, Episodes]]:
    """One step, taken: where the environments stand after it, and what is kept of it.

    Args:
        state: where they stood.
        obs: what they observed there, as the memory keeps it.
        choice: what was done.
        env_state: the environments' own state after it.
        out: what they answered.
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
    )
    episodes = Episodes(
        count=jnp.sum(done, dtype=jnp.int32),
        return_sum=jnp.sum(episode_return, where=done),
        length_sum=jnp.sum(episode_length, where=done),
        diverged=jnp.sum(out.diverged, dtype=jnp.int32),
    )
    state = state.replace(
        env=env_state,
        obs=out.obs,
        start=~out.valid,
        carry=choice.carry,
        episode_return=jnp.where(done | out.diverged, 0.0, episode_return),
        episode_length=jnp.where(done | out.diverged, 0, episode_length),
    )
    return state, (transition, episodes)
