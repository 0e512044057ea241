"""Training as one pure function of a key, to be jitted and vmapped by the user."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import TUNABLE, Config
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
from purejaxppo.types import AgentState, Hyperparams, Losses, Metrics


class Curves(NamedTuple):
    """Learning curves of a run, at P points; `vmap` adds a leading axis of seeds to each array."""

    env_steps: jax.Array  # [P] float32: environment steps so far
    episodic_return: jax.Array  # [P] mean over the episodes that ended; NaN where none did
    episodic_length: jax.Array  # [P] likewise
    explained_variance: jax.Array  # [P] NaN where the value targets did not vary
    losses: Losses  # [P] each


class TrainResult(NamedTuple):
    """Result of training; `Agent(config, result.seed(i).agent)` is one of its seeds' agents."""

    agent: AgentState
    curves: Curves

    def seed(self, index: int) -> "TrainResult":
        """One seed of a vmapped result."""
        return jax.tree.map(lambda x: x[index], self)


def hyperparams(config: Config, **changes: Any) -> Hyperparams:
    """The config's tunable floats as arrays, an argument of the function from `make_train`.

    `changes` replace some of them by arrays [S], by the names of ppo's fields; then all have that
    leading axis, to be vmapped over: `hyperparams(config, learning_rate=jnp.array([1e-4, 1e-3]))`.

    Raises:
        ValueError: a name that is not a tunable float, or arrays of different lengths.
    """
    hp = make_hyperparams(config)
    unknown = [name for name in changes if f"ppo.{name}" not in TUNABLE]
    if unknown:
        known = ", ".join(sorted(key.removeprefix("ppo.") for key in TUNABLE))
        raise ValueError(f"{unknown[0]} is not a tunable float; these are: {known}")
    arrays = {name: jnp.asarray(value, jnp.float32) for name, value in changes.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"arrays to vmap over must have one shape, and these have {shapes}")
    shape = next(iter(shapes.values()), ())
    return jax.tree.map(lambda x: jnp.broadcast_to(x, shape), hp)._replace(**arrays)


def make_train(config: Config, *, num_points: int = 100) -> Callable[..., TrainResult]:
    """A pure function (key, hyperparams) -> TrainResult that trains for `config.total_timesteps`.

    `jax.jit(jax.vmap(make_train(config)))(keys)` trains a seed per key in one program, and
    `jax.jit(jax.vmap(make_train(config)))(keys, hyperparams(config, gamma=gammas))` a setting per
    key; without the second argument the config's own numbers are used. Its memory does not depend
    on total_timesteps: metrics are reduced to `num_points` numbers each.

    With a simulator on the host it is not pure: EnvPool's random generators continue from the last
    call. Its pools exist until `train.close()`, after which no program that was compiled from it
    may run.

    Args:
        config: of the run; `num_shards` 0 means 1 here. Logging, evaluation and checkpoint
            settings do not apply.
        num_points: points of each curve, at most one per update.

    Raises:
        ValueError: as `registry.make` and the config's own checks; or the config is asynchronous.
    """
    if config.asynchronous:
        raise ValueError("asynchronous is for runs: one pure function cannot do two things at once")
    parts = make_parts(config)
    init, train_chunk, own = init_program(parts), train_program(parts), make_hyperparams(config)
    updates = config.num_updates
    points = min(num_points, updates)
    bounds = np.linspace(0, updates, points + 1).astype(np.int32)

    def train(key, hyperparams: Hyperparams = own) -> TrainResult:
        def point(state, num_updates):
            return train_chunk(state, hyperparams, num_updates)

        state, metrics = jax.lax.scan(
            point, init(key, shard_ids(parts)), jnp.asarray(np.diff(bounds))
        )
        return TrainResult(state.agent, curves(metrics))

    train.close = parts.env.close  # type: ignore[attr-defined]
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
        explained_variance=metrics.explained_variance / metrics.explained,
        losses=jax.tree.map(lambda x: x / updates, metrics.losses),
    )
