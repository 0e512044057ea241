"""Population-based training (PBT): perturbed copies of the best agents replace the worst.

At each interval, a selection takes place: every population member among the worst copies the
parameters, the optimiser, the statistics and the tunable numbers of a random member among the best.
Its numbers are then perturbed. Environments and keys are not copied. Selections run inside the
compiled program. A selection waits until every member has finished an episode since the last one.

Reference: Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846, with truncation selection.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo import streams
from purejaxppo.agents import diagnostics
from purejaxppo.aliases import Array, Key
from purejaxppo.learner import Parts
from purejaxppo.parts import init_program, train_program
from purejaxppo.runs.episodes import MOST_DIVERGED
from purejaxppo.runs.programs import (
    MakeTrainFunctions,
    TrainFunctions,
    member_hyperparams,
    member_keys,
    select_better,
)
from purejaxppo.runs.rows import Row
from purejaxppo.runs.training import Hook, Training
from purejaxppo.setup import Setup
from purejaxppo.types import Hyperparams, Metrics, TrainState, state_axes, state_field

COPIED = "population/copied"
"""Column of metrics.csv: share of a row's updates after which the member became a copy."""
COMPLEMENTS = ("gamma", "gae_lambda")
"""Numbers x near 1. A perturbation multiplies 1 - x, the inverse of the horizon in steps."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules of selection and perturbation in a population."""

    bounds: tuple[tuple[str, float, float], ...]
    """Name and range of each number of Hyperparams that varies."""
    interval: int
    """Number of updates between two selections."""
    share: float = 0.25
    """Share of the population that is replaced, and share that is copied."""
    factor: float = 1.25
    """A copied number is multiplied by this factor, divided by it, or not changed, with equal
    probability. For gamma and gae_lambda, the factor applies to the distance to 1."""


class Population(NamedTuple):
    """Hyperparameters and results of the M members of a population."""

    hp: Hyperparams  # [M] each
    return_sum: jax.Array  # [M] sum of returns of episodes since the last selection
    episodes: jax.Array  # [M] int32: number of these episodes
    diverged: jax.Array  # [M] int32: further episodes that diverged, which have no return
    parent: jax.Array  # [M] int32: member that this one was last copied from; at first itself


class PopulationState(TrainState):
    """The state of M members and of their population."""

    population: Population = state_field(not_inherited="it describes all members")


def fields_of(state: TrainState) -> dict[str, Any]:
    """Return the fields of a TrainState by name, without those of a derived class."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(TrainState)}


def select(key, score, share: float):
    """Select the member that each of M members copies; most copy themselves.

    For each member of the `share` with the lowest scores, sample a member of the `share` with the
    highest scores. The first copies the second if its score is lower. Scores that are not finite
    rank lowest.

    Args:
        key: random key; must not be reused by the caller.
        score: score of each member, float [M].
        share: fraction of the members, between 0 and 0.5.

    Returns:
        Index of the source of each member, int32 [M].
    """
    size = score.shape[0]
    count = min(max(round(size * share), 1), size // 2)
    score = jnp.where(jnp.isfinite(score), score, -jnp.inf)
    order = jnp.argsort(score)
    worst, best = order[:count], order[size - count :]
    known = jnp.isfinite(score[best])  # sample only from these, unless none is finite
    sampled = jax.random.choice(key, best, (count,), p=jnp.where(jnp.any(known), known, 1.0))
    better = score[sampled] > score[worst]
    return jnp.arange(size).at[worst].set(jnp.where(better, sampled, worst))


def perturb(key, hp: Hyperparams, copied, rules: Rules) -> Hyperparams:
    """Perturb the numbers of the `copied` members, bool [M], within their bounds."""
    for i, (name, low, high) in enumerate(rules.bounds):
        old = number(hp, name)
        steps = jax.random.randint(jax.random.fold_in(key, i), old.shape, -1, 2)
        factors = rules.factor ** steps.astype(old.dtype)
        new = 1.0 - (1.0 - old) * factors if name in COMPLEMENTS else old * factors
        hp = with_number(hp, name, jnp.where(copied, jnp.clip(new, low, high), old))
    return hp


def number(hp: Hyperparams, name: str):
    """Return a hyperparameter by name. term_coefs.0 is the first coefficient."""
    field, _, place = name.partition(".")
    value = getattr(hp, field)
    return value[int(place)] if place else value


def with_number(hp: Hyperparams, name: str, value) -> Hyperparams:
    """Return the hyperparameters with another value of one of them."""
    field, _, place = name.partition(".")
    if place:
        listed = list(getattr(hp, field))
        listed[int(place)] = value
        value = tuple(listed)
    return hp._replace(**{field: value})


def evolve(
    key, state: TrainState, population: Population, rules: Rules, initial_carry: Any
) -> tuple[TrainState, Population, jax.Array]:
    """Run one selection.

    A selection takes place only if each member has finished an episode, or has values that are not
    finite (parameters or returns). Otherwise, the episodes so far count for the next selection.
    Members rank last if their values are not finite, or if more than `MOST_DIVERGED` of their
    episodes diverged.

    Args:
        key: random key; must not be reused by the caller.
        state: training state; every array has a leading axis of M members.
        population: hyperparameters and results of these members.
        rules: rules of the selection.
        initial_carry: carry at an episode's start, for the environments of one shard [N, ...]; ()
            without recurrence.

    Returns:
        (state, population, copied). `copied`, bool [M], is True for members that became copies.
    """
    select_key, perturb_key = jax.random.split(key)
    ended = population.episodes + population.diverged
    alive = finite(state.agent.params) & jnp.isfinite(population.return_sum)
    sound = alive & (population.diverged <= MOST_DIVERGED * ended)
    score = jnp.where(sound, population.return_sum / population.episodes, jnp.nan)
    ready = jnp.all((ended > 0) | ~alive)
    itself = jnp.arange(len(score))
    source = jnp.where(ready, select(select_key, score, rules.share), itself)
    copied = source != itself

    def copy(tree):
        return jax.tree.map(lambda x: x[source], tree)

    old = state.rollout.carry
    fresh = jax.tree.map(lambda new, old: jnp.broadcast_to(new, old.shape), initial_carry, old)
    rollout = state.rollout.replace(carry=select_better(copied, old, fresh))
    if rollout.open is not None:  # decisions of the old network
        valid = select_better(copied, rollout.open.valid, jnp.zeros_like(rollout.open.valid))
        rollout = rollout.replace(open=rollout.open._replace(valid=valid))
    inherited = [f.name for f in dataclasses.fields(TrainState) if not f.metadata["not_inherited"]]
    state = state.replace(
        rollout=rollout,
        **{name: copy(getattr(state, name)) for name in inherited},
    )
    population = Population(
        hp=perturb(perturb_key, copy(population.hp), copied, rules),
        return_sum=jnp.where(ready, 0.0, population.return_sum),
        episodes=jnp.where(ready, 0, population.episodes),
        diverged=jnp.where(ready, 0, population.diverged),
        parent=jnp.where(copied, source, population.parent).astype(jnp.int32),
    )
    return state, population, copied


def finite(params: Any):
    """Return whether all parameters of each member are finite, bool [M]."""
    leaves = [jnp.all(jnp.isfinite(x), axis=range(1, x.ndim)) for x in jax.tree.leaves(params)]
    return jnp.all(jnp.stack(leaves), axis=0)


def short_interval(rules: Rules, rollout_length: int, limit: int) -> str:
    """Return a warning if an episode of `limit` steps can exceed an interval; "" otherwise.

    `limit` is 0 without a time limit.
    """
    steps = rules.interval * rollout_length
    if steps >= limit:
        return ""
    return (
        f"agents are compared every {steps} steps per environment, but an episode can last "
        f"{limit} steps. No agent is replaced before all have finished an episode. Use a "
        f"--population_interval that is {-(-limit // steps)} times as large."
    )


def population_functions(rules: Rules) -> MakeTrainFunctions:
    """Return the train functions of a population with these rules, for `Programs`."""

    def make(setup: Setup, parts: Parts) -> TrainFunctions:
        return TrainFunctions(
            init=partial(init_population, init_program(parts), member_hyperparams(setup)),
            train=partial(train_population, parts, rules, member_keys(setup)[0]),
            axes=state_axes(PopulationState),
        )

    return make


def init_population(
    init: Callable[[Key, Array], TrainState], hp: Hyperparams, keys: Key, shard_ids: Array
) -> PopulationState:
    """Return the state before the first update; see `parts.init_program`.

    Args:
        init: function (keys [M], shard_ids) -> state of M agents.
        hp: hyperparameters of each member [M].
        keys: key of each member [M].
        shard_ids: index of each shard, int32 [D].
    """
    size = len(keys)
    population = Population(
        hp=jax.tree.map(jnp.copy, hp),  # the state is donated, but `hp` is used again
        return_sum=jnp.zeros(size),
        episodes=jnp.zeros(size, jnp.int32),
        diverged=jnp.zeros(size, jnp.int32),
        parent=jnp.arange(size, dtype=jnp.int32),
    )
    return PopulationState(**fields_of(init(keys, shard_ids)), population=population)


def train_population(
    parts: Parts,
    rules: Rules,
    key: Key,
    state: PopulationState,
    hp: Hyperparams,
    num_updates: Array | int,
) -> tuple[PopulationState, Metrics]:
    """Run `num_updates` updates of all members, with selections between them.

    Args:
        parts: functions and objects of the run.
        rules: rules of the selection.
        key: key of the first member.
        state: state of the population, which contains the members' hyperparameters.
        hp: hyperparameters, of which only total_updates is read.
        num_updates: number of updates.

    Returns:
        (state, metrics summed over the updates).
    """
    size = parts.shards.num_members
    zeros = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (size, *x.shape)),
        diagnostics.zero_metrics((*parts.metric_names, COPIED), len(parts.env.spec.metrics)),
    )
    key = streams.stream(key, streams.POPULATION)
    carry = parts.initial_carry((parts.env.spec.num_envs,))
    train_chunk = train_program(parts)

    def select_among(update, state, population):
        key_now = jax.random.fold_in(key, update)
        return evolve(key_now, state, population, rules, carry)

    def body(_, carried):
        state, population, total = carried
        member_hp = population.hp._replace(total_updates=hp.total_updates)
        state, metrics = train_chunk(state, member_hp, 1)
        population = population._replace(
            return_sum=population.return_sum
            + jnp.where(metrics.finite > 0, metrics.episodes.return_sum, jnp.nan),
            episodes=population.episodes + metrics.episodes.count,
            diverged=population.diverged + metrics.episodes.diverged,
        )
        update = state.update[0]
        state, population, copied = jax.lax.cond(
            (update % rules.interval == 0) & (update < last),
            lambda pair: select_among(update, *pair),
            lambda pair: (*pair, jnp.zeros(size, bool)),
            (state, population),
        )
        extras = metrics.extras | {COPIED: copied.astype(jnp.float32)}
        metrics = metrics._replace(extras=extras)
        return state, population, jax.tree.map(jnp.add, total, metrics)

    last = jnp.max(hp.total_updates) if parts.env.spec.absent else parts.config.num_updates
    trained = TrainState(**fields_of(state))
    carried = trained, state.population, zeros
    trained, population, total = jax.lax.fori_loop(0, num_updates, body, carried)
    return PopulationState(**fields_of(trained), population=population), total


class AddPopulation(Hook):
    """A hook that adds each member's current hyperparameters to its row.

    Selections change them inside the compiled program.
    """

    def __init__(self, rules: Rules) -> None:
        """Take the rules of the population."""
        self._names = [name for name, _, _ in rules.bounds]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of metrics.csv that this hook adds."""
        return (*(f"population/{name}" for name in [*self._names, "parent"]), COPIED)

    def act(self, run: Training) -> None:
        """Add the population's columns, and recompute metrics that depend on hyperparameters."""
        assert isinstance(run.state, PopulationState)
        population, alive = jax.device_get((run.state.population, finite(run.state.agent.params)))
        for i, row in enumerate(run.rows):
            row |= {
                f"population/{name}": float(number(population.hp, name)[i]) for name in self._names
            }
            row["population/parent"] = int(population.parent[i])
            row["charts/finite"] = int(alive[i])  # of the current parameters, which may be a copy
            rate = float(population.hp.learning_rate[i])
            row["charts/learning_rate"] = run.learning_rate(rate, row, i)


def final_numbers(rows: Sequence[Row], rules: Rules) -> dict[str, Any]:
    """Return a member's tunable numbers at its last row, by config field."""
    return {f"ppo.{name}": rows[-1][f"population/{name}"] for name, _, _ in rules.bounds}


def since_last_copy(rows: Sequence[Row]) -> list[Row]:
    """Return a member's rows since it last became a copy of another member.

    The first row keeps its evaluation, which is of the copy. Its training return is removed,
    because it includes episodes before the copy.
    """
    first = max((i for i, row in enumerate(rows) if row.get(COPIED)), default=None)
    if first is None:
        return list(rows)
    evaluated = {k: x for k, x in rows[first].items() if k != "charts/episodic_return"}
    return [evaluated, *rows[first + 1 :]]
