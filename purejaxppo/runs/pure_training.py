"""Training as one pure function of a key, for `jax.jit` and `jax.vmap`."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.aliases import Array, Key
from purejaxppo.config.checks import without_effect
from purejaxppo.config.plain import whole
from purejaxppo.config.schema import TUNABLE, Config
from purejaxppo.envs import registry
from purejaxppo.learner import Parts
from purejaxppo.parallel.settings import PURE, check_settings
from purejaxppo.parts import (
    from_new_agent,
    init_program,
    make_parts,
    shard_ids,
    train_program,
    with_env,
)
from purejaxppo.runs import pretraining, warm_start
from purejaxppo.runs.agent import Agent, HasBest, agent_of
from purejaxppo.runs.rows import COLUMNS, COUNTS, check_names, env_columns
from purejaxppo.setup import resolve
from purejaxppo.types import (
    Hyperparams,
    LearnedState,
    Losses,
    Metrics,
    Trained,
    TrainState,
    named_leaves,
)

log = logging.getLogger("purejaxppo")

MOST_STEPS = 2**30
"""Largest number of environment steps of a chunk, whose sum must fit into int32."""


class Curves(NamedTuple):
    """Learning curves of a run, at P points; `vmap` adds a leading axis of seeds to each array."""

    env_steps: Array  # [P] float32: environment steps so far
    episodic_return: Array  # [P] mean over the episodes that ended; NaN if none ended
    episodic_length: Array  # [P] mean over the episodes that ended; NaN if none ended
    explained_variance: Array  # [P] NaN if the value targets did not vary
    losses: Losses  # [P] each
    extras: dict[str, Array]
    """[P] each, by column of metrics.csv: auxiliary losses, metrics of the environment, ..."""


class TrainResult(NamedTuple):
    """Result of training. `Agent(config, result.seed(i).agent)` is the agent of seed i.

    It acts, can be saved to a file, and is evaluated, exported and drawn like that of a run.
    """

    agent: LearnedState
    curves: Curves

    def __repr__(self) -> str:
        """Return the shape of the curves; all arrays would fill the screen."""
        return f"<TrainResult: curves {list(np.shape(self.curves.env_steps))}>"

    def seed(self, index: int) -> "TrainResult":
        """Return one seed of a vmapped result, or an entry of its first axis.

        Raises:
            ValueError: the result is not vmapped, or the index is out of range.
        """
        shape = np.shape(self.curves.env_steps)[:-1]
        if not shape:
            raise ValueError(f"seed({index!r}): the result has only one seed. Use its agent.")
        if (number := whole(index)) is None or not 0 <= number < shape[0]:
            raise ValueError(f"seed({index!r}): unknown index. Use 0 to {shape[0] - 1}.")
        return jax.tree.map(lambda x: x[number], self)


def check_config(config: Any) -> None:
    """Raise ValueError unless `config` is a Config."""
    if not isinstance(config, Config):
        raise ValueError(f"config = {config!r}: must be a Config. Use load_config(...).")


def hyperparams(config: Config, **changes: Any) -> Hyperparams:
    """Return the config's tunable numbers as arrays, for the function of `make_train`.

        hyperparams(config, learning_rate=jnp.array([1e-4, 1e-3]))

    Args:
        config: config of the training.
        changes: other values, arrays [S], by the names of ppo's fields. All numbers then get a
            leading axis of S, to `vmap` over. `term_coefs` is a list of arrays, one for each entry
            of ppo.terms.

    Raises:
        ValueError: `config` is not a Config, a field is not tunable, or the arrays have different
            shapes.
    """
    check_config(config)
    hp = make_hyperparams(config)
    unknown = [name for name in changes if f"ppo.{name}" not in TUNABLE]
    if unknown:
        known = ", ".join(sorted(key.removeprefix("ppo.") for key in TUNABLE))
        raise ValueError(f"{unknown[0]} is not a tunable number. Tunable: {known}")
    coefs = changes.get("term_coefs", hp.term_coefs)
    if not hasattr(coefs, "__len__") or len(coefs) != len(hp.term_coefs):
        raise ValueError(
            f"term_coefs must have {len(hp.term_coefs)} arrays, one for each entry of ppo.terms"
        )
    arrays: dict[str, Any] = {
        name: tuple(jnp.asarray(x, jnp.float32) for x in value)
        if name == "term_coefs"
        else jnp.asarray(value, jnp.float32)
        for name, value in changes.items()
    }
    shapes = {name: array.shape for name, array in named_leaves(arrays).items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"all arrays to vmap over must have the same shape. Shapes: {shapes}")
    shape = next(iter(shapes.values()), ())
    everywhere = jax.tree.map(lambda x: jnp.broadcast_to(x, shape), hp)
    return everywhere._replace(**arrays)


class Train(Protocol):
    """A training as one function; see `make_train`."""

    close: Callable[[], None]
    """Closes host simulators."""

    def __call__(self, key: Key, hyperparams: Hyperparams = ..., /) -> TrainResult:
        """Train with a key, and with the config's hyperparameters or others."""
        ...


def make_train(
    config: Config,
    *,
    env: Any = None,
    parts: Callable[[Parts], Parts] | None = None,
    init: Agent | HasBest | None = None,
    num_points: int = 100,
) -> Train:
    """Return a pure function (key, hyperparams) -> TrainResult that runs a whole training.

    `jax.jit(jax.vmap(make_train(config)))(keys)` trains one seed per key in one program.
    `jax.jit(jax.vmap(make_train(config)))(keys, hyperparams(config, gamma=gammas))` trains one
    setting per key. Without the second argument, the config's numbers are used.

    Metrics are reduced to `num_points` numbers each, so memory does not depend on total_timesteps.
    The number of updates is fixed. If agents may be absent, total_timesteps counts rows here, and
    decisions in runs.

    With a host simulator the function is not pure: EnvPool's random generators continue from the
    last call. The simulators exist until `train.close()`. Do not call compiled programs after that.

    Args:
        config: config of the training. `num_shards` = 0 means 1 here. `seed` and `num_seeds` do not
            apply: each key trains one agent. Settings of logging, evaluation and checkpoints do not
            apply either.
        env: an environment as for `train`, instead of the config's environment and its options.
        parts: a function from the parts that the config selects to the parts to train with, such as
            `lambda parts: parts._replace(advantages=...)`.
        init: agent that all trainings start from, or a run for its best agent, instead of a run
            folder (`init_from`).
        num_points: number of points of each curve, at most one per update.

    Raises:
        ValueError: the config or its environment is invalid, the config is asynchronous, or a
            setting of JAX is not supported.
    """
    check_settings(PURE)
    check_config(config)
    if (number := whole(num_points)) is None or number < 1:
        raise ValueError(f"num_points = {num_points!r}: must be a whole number of at least 1.")
    if config.asynchronous:
        raise ValueError(
            "asynchronous = true is not supported by make_train. Use asynchronous = false."
        )
    setup = resolve(
        with_env(config, env), change=parts, init=None if init is None else agent_of(init)
    )
    config, built = setup.config, make_parts(setup.config, change=setup.change)
    check_names((*COLUMNS, *env_columns(built.env.spec.metrics), *built.metric_names))
    unused = without_effect([warm_start.with_source(setup)]) if parts is None else []
    for line in (*unused, *registry.warnings_of(config.env, built.env.spec)):
        log.warning(line)
    source = warm_start.load(setup, built) if warm_start.is_set(setup) else None
    imitation = pretraining.load_imitation(built, parts) if config.pretrain.teacher else None
    init_state, train_chunk = init_program(built), train_program(built)
    default = make_hyperparams(config)
    updates = config.num_updates
    points = min(number, updates)
    bounds = np.linspace(0, updates, points + 1).astype(np.int32)
    chunks = split(np.diff(bounds), max(1, MOST_STEPS // config.steps_per_update))

    def train(key: Key, hyperparams: Hyperparams = default) -> TrainResult:
        def point(state: TrainState, num_updates: Array) -> Trained:
            return train_chunk(state, hyperparams, num_updates)

        state = init_state(key, shard_ids(built))
        if source is not None:
            state = warm_start.started(source, built, state, warm_start.on_device)
        if imitation is not None:
            learned = pretraining.pretrain(imitation, key, hyperparams).fields
            state = from_new_agent(built, state.replace(**learned))
        state, metrics = jax.lax.scan(point, state, jnp.asarray(chunks.ravel()))
        return TrainResult(state.learned, curves(merged(metrics, points), built.env.spec.metrics))

    def close() -> None:
        built.env.close()
        if imitation is not None:
            imitation.env.close()

    closable = cast(Train, train)
    closable.close = close
    return closable


def split(updates: np.ndarray, max_updates: int) -> np.ndarray:
    """Divide the updates [P] of each point into C chunks of at most `max_updates`, [P, C]."""
    count = -(-int(updates.max()) // max_updates)
    ends = updates.astype(np.int64)[:, None] * np.arange(count + 1) // count
    return np.diff(ends).astype(np.int32)


def merged(metrics: Metrics, points: int) -> Metrics:
    """Add up the metrics of P points' chunks [P * C]; in float32 if a point has several."""

    def add(x: Array) -> Array:
        if len(x) == points:
            return x
        return jnp.sum(x.reshape(points, -1, *x.shape[1:]).astype(jnp.float32), axis=1)

    return jax.tree.map(add, metrics)


def curves(metrics: Metrics, declared: Sequence[tuple[str, str]] = ()) -> Curves:
    """Compute the curves from the sums of P chunks; `declared` are `EnvSpec.metrics`."""
    episodes, updates = metrics.episodes, metrics.updates

    def mean(total: Array, count: Array) -> Array:
        return jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)

    extras = {name: x / updates for name, x in metrics.extras.items()}
    if episodes.metrics is not None:
        means = mean(*episodes.metrics)
        extras |= {f"env/{name}": means[:, i] for i, (name, _) in enumerate(declared)}

    counts = {name: getattr(metrics.losses, name) / updates for name in COUNTS}
    losses = jax.tree.map(lambda x: mean(x, metrics.trained), metrics.losses)._replace(**counts)
    return Curves(
        env_steps=jnp.cumsum(metrics.env_steps.astype(jnp.float32)),
        episodic_return=mean(episodes.return_sum, episodes.count),
        episodic_length=mean(episodes.length_sum, episodes.count),
        explained_variance=metrics.explained_variance / metrics.explained,
        losses=losses,
        extras=extras,
    )
