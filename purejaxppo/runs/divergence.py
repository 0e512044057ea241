"""Diverging simulators: find the first value that diverged."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import Array, Key, Scalar
from purejaxppo.envs.base import Env, TaskStep
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.learner import Parts, begin_rollout
from purejaxppo.parallel import processes
from purejaxppo.rollout import step
from purejaxppo.spaces import LARGEST, diverged_value, short_number
from purejaxppo.streams import ENVIRONMENTS, split_keys, stream
from purejaxppo.types import AgentState, RolloutState, TrainState

log = logging.getLogger("purejaxppo")

REMEDY = (
    f"Observations and rewards must be finite and within ±{short_number(LARGEST)}. Scale them, "
    "or fix the simulator."
)


def first_obs_value(state: TrainState) -> str:
    """Describe the first value of the current observations that diverged; "" if none did."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.rollout.obs):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        for shard in leaf.addressable_shards:
            rows = np.asarray(shard.data, np.float32)  # [M, D, N, ...]
            rows = rows.reshape(-1, *rows.shape[3:])
            bad = ~(np.abs(rows.reshape(len(rows), -1)) <= LARGEST).all(axis=1)
            if bad.any():
                return diverged_value(np.zeros(()), [(_names(path), rows[bad.argmax()])])
    return ""


def find_value(parts: Parts, envs: Sequence[Env], state: TrainState, member: int) -> str:
    """Describe a value that diverged in the environments of an agent; "" if unknown.

    A host simulator stores it. For simulators in JAX, another rollout searches for it.

    Args:
        parts: functions and objects of the run.
        envs: environments of training and of evaluations.
        state: training state of the run.
        member: index of the agent.
    """
    if not parts.env.spec.restorable:
        return next((env.diverged_value for env in envs if env.diverged_value), "")
    if processes.is_distributed():  # each process has only a part of the state
        return ""
    try:
        arrays = jax.device_get((state.agent, state.update, state.rollout, state.key))
        agent, update, rollout, key = jax.tree.map(lambda x: x[member], arrays)
        rollout, key = jax.tree.map(lambda x: x[0], (rollout, key))  # of the first shard
        return replayed_value(parts, agent, update, rollout, key)
    except Exception:  # only a message depends on it
        log.debug("no value found that diverged", exc_info=True)
        return ""


def replayed_value(
    parts: Parts, agent: AgentState, update: Array, state: RolloutState, key: Key
) -> str:
    """Describe the first value that diverges in another rollout; "" if none does.

    Only for environments in JAX. Healthy runs never trace this program.

    Args:
        parts: functions and objects of the run.
        agent: one agent of the run.
        update: number of updates so far, scalar.
        state: rollout state of one shard's environments.
        key: key of this shard.
    """
    progress = update / parts.config.num_updates
    with jax.default_matmul_precision(parts.config.matmul_precision):
        search = jax.jit(partial(_search, parts))
        diverged, raw = jax.device_get(search(agent, state, key, progress))
    obs = jax.tree_util.tree_leaves_with_path(raw.obs)
    named = [(_names(path), x) for path, x in obs]
    return diverged_value(raw.reward, named) if diverged else ""


def _search(
    parts: Parts, agent: AgentState, state: RolloutState, key: Key, progress: Scalar
) -> tuple[Array, TaskStep]:
    """Collect a rollout; return whether a step diverged, and a row of the first such step."""
    env = cast(VectorEnv, parts.env)
    key = split_keys(key).act
    state = begin_rollout(parts, state, key, progress)

    def body(before: RolloutState, key: Key) -> tuple[RolloutState, tuple[Array, TaskStep]]:
        after, row = step(env, partial(parts.act, agent), before, key)
        _, raw = env.raw_step(stream(key, ENVIRONMENTS), before.env, row.choice.env_action)
        groups = row.out.diverged.reshape(
            len(raw.reward), -1
        )  # of any agent of a multi-agent environment
        bad = jnp.any(groups, axis=1)
        return after, (jnp.any(bad), jax.tree.map(lambda x: x[jnp.argmax(bad)], raw))

    keys = jax.random.split(key, parts.config.ppo.rollout_length)
    _, (diverged, steps) = jax.lax.scan(body, state, keys)
    first = jnp.argmax(diverged)
    return diverged[first], jax.tree.map(lambda x: x[first], steps)


def _names(path: Any) -> tuple[str, ...]:
    """Return the keys of a path in a pytree as text."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
