"""Training as one pure function of a key, to be jitted and vmapped by the user."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.config import Config
from purejaxppo.learner import Learner
from purejaxppo.types import AgentState, Losses, Metrics


class Curves(NamedTuple):
    """How a run went, at P points; under `vmap` each array gains a leading axis of seeds."""

    env_steps: jax.Array  # [P] float32: environment steps so far
    episodic_return: jax.Array  # [P] mean over the episodes that ended; NaN where none did
    episodic_length: jax.Array  # [P] likewise
    explained_variance: jax.Array  # [P]
    losses: Losses  # [P] each


class TrainResult(NamedTuple):
    """What training returns; `Agent(config, result.seed(i).agent)` evaluates one of its seeds."""

    agent: AgentState
    curves: Curves

    def seed(self, index: int) -> "TrainResult":
        """One seed of a vmapped result."""
        return jax.tree.map(lambda x: x[index], self)


def make_train(config: Config, *, num_points: int = 100) -> Callable[[jax.Array], TrainResult]:
    """A pure function key -> TrainResult that trains for `config.total_timesteps`.

    `jax.jit(jax.vmap(make_train(config)))(keys)` trains a seed per key in one program. Its memory
    does not depend on total_timesteps: metrics are reduced to `num_points` numbers each.

    With a simulator on the host it is not pure: EnvPool's environments go on from where the last
    call left their generators. Its pools live until `train.close()`, after which no program that
    was compiled from it may run.

    Args:
        config: what to train; `num_shards` 0 means 1 here. Logging, evaluation and checkpoint
            settings do not apply.
        num_points: points of each curve, at most one per update.

    Raises:
        ValueError: as `registry.make` and the config's own checks; or the config is asynchronous.
    """
    if config.asynchronous:
        raise ValueError("asynchronous is for runs: one pure function cannot do two things at once")
    learner = Learner(config)
    hp = learner.hyperparams()
    updates = config.num_updates
    points = min(num_points, updates)
    bounds = np.linspace(0, updates, points + 1).astype(np.int32)

    def train(key) -> TrainResult:
        def point(state, num_updates):
            return learner.train_chunk(state, hp, num_updates)

        state, metrics = jax.lax.scan(
            point, learner.init(key, learner.shard_ids()), jnp.asarray(np.diff(bounds))
        )
        return TrainResult(state.agent, curves(metrics))

    train.close = learner.env.close  # type: ignore[attr-defined]
    return train


def curves(metrics: Metrics) -> Curves:
    """Means from the sums of P chunks."""
    episodes, updates = metrics.episodes, metrics.updates

    def per_episode(x):
        mean = x / jnp.maximum(episodes.count, 1)
        return jnp.where(episodes.count > 0, mean, jnp.nan)

    return Curves(
        env_steps=jnp.cumsum(metrics.env_steps.astype(jnp.float32)),
        episodic_return=per_episode(episodes.return_sum),
        episodic_length=per_episode(episodes.length_sum),
        explained_variance=metrics.explained_variance / updates,
        losses=jax.tree.map(lambda x: x / updates, metrics.losses),
    )
