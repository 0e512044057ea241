"""Simulators that diverge: the first value that did, and messages about it."""

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import Array, Key, Scalar
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.learner import Parts, begin_rollout
from purejaxppo.rollout import step
from purejaxppo.runs.rows import Row
from purejaxppo.spaces import LARGEST, diverged_value, plain
from purejaxppo.streams import ENVIRONMENTS, split_keys, stream
from purejaxppo.types import AgentState, RolloutState, TrainState

REMEDY = (
    f"Observations and rewards must be finite and within ±{plain(LARGEST)}: scale them, "
    "or fix the simulator."
)


MOST_UPDATES = 5
"""Number of successive updates in which every step diverges, after which a run stops."""


def first_obs_value(state: TrainState) -> str:
    """Name the first value of the current observations that diverged; "" if none did."""
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


def replayed_value(
    parts: Parts, agent: AgentState, update: Array, state: RolloutState, key: Key
) -> str:
    """Name the first value that diverges in another rollout from a state; "" if none does.

    For environments in JAX. Healthy runs never trace this program.

    Args:
        parts: of the run.
        agent: one agent of the run.
        update: number of updates so far, [].
        state: of the environments of one shard.
        key: of this shard.
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
    """Steps as `rollout.collect` -> (any step diverged, one row of the first step that did)."""
    env = cast(VectorEnv, parts.env)
    key = split_keys(key).act
    state = begin_rollout(parts, state, key, progress)

    def body(before: RolloutState, key: Key) -> tuple[RolloutState, tuple[Array, TaskStep]]:
        after, row = step(env, partial(parts.act, agent), before, key)
        _, raw = env.raw_step(stream(key, ENVIRONMENTS), before.env, row.choice.env_action)
        groups = row.out.diverged.reshape(len(raw.reward), -1)  # a world's: of any agent
        bad = jnp.any(groups, axis=1)
        return after, (jnp.any(bad), jax.tree.map(lambda x: x[jnp.argmax(bad)], raw))

    keys = jax.random.split(key, parts.config.ppo.rollout_length)
    _, (diverged, steps) = jax.lax.scan(body, state, keys)
    first = jnp.argmax(diverged)
    return diverged[first], jax.tree.map(lambda x: x[first], steps)


def _names(path: Any) -> tuple[str, ...]:
    """The keys of a path in a pytree, as text."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def warning(row: Row, value: str) -> str:
    """The warning about a row of metrics with too many diverged episodes.

    Args:
        row: of one agent.
        value: one that diverged; "" if it is unknown.
    """
    diverged = int(row["charts/diverged"])
    episodes = f"{diverged:,} of {diverged + int(row['charts/episodes']):,} episodes"
    return f"{episodes} were cut: {_reason(value)}. {REMEDY}"


def all_diverged(value: str, updates: int, saved: int | None) -> str:
    """The error of a run in which every step diverges.

    Args:
        value: one that diverged; "" if it is unknown.
        updates: number of successive updates in which every step diverged.
        saved: environment steps of the last checkpoint; None without one.
    """
    kept = f"the checkpoint at {saved:,} steps is kept" if saved else "nothing was saved"
    return f"every step of {updates} updates diverged: {_reason(value)}; {kept}. {REMEDY}"


def _reason(value: str) -> str:
    return value or f"NaN, infinity or numbers beyond ±{plain(LARGEST)}, or a simulator that failed"
