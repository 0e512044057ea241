"""Population-based training: the worst agents are replaced by perturbed copies of the best.

At every interval, each agent of the worst share copies what a random one of the best share has
learned (parameters, optimiser, statistics) and its tunable numbers, which are then perturbed.
Environments and keys stay each agent's own. All of it happens inside the compiled program. A
selection waits until every agent has finished an episode since the last one.

Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846, with truncation selection.
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
from purejaxppo.runs.training import Training
from purejaxppo.setup import Setup
from purejaxppo.types import Hyperparams, Metrics, TrainState, state_axes, state_field

COPIED = "population/copied"
"""Column of metrics.csv: share of a row's updates after which the agent became a copy."""
COMPLEMENTS = ("gamma", "gae_lambda")
"""Numbers near 1, of which 1 - x is perturbed: a horizon of 1 / (1 - x) steps grows by a factor."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules of selection and perturbation in a population."""

    bounds: tuple[tuple[str, float, float], ...]
    """Names of Hyperparams that vary, and the range of each."""
    interval: int
    """Updates between two selections."""
    share: float = 0.25
    """Share of the population that is replaced, and share that replaces it."""
    factor: float = 1.25
    """Factor that a copied number is multiplied by, divided by, or neither, each as likely; for
    gamma and gae_lambda, it applies to the distance to 1."""


class Population(NamedTuple):
    """Numbers of a population's M members."""

    hp: Hyperparams  # [M] each
    return_sum: jax.Array  # [M] of the episodes since the last selection
    episodes: jax.Array  # [M] int32
    diverged: jax.Array  # [M] int32: episodes since then that diverged, and have no return
    parent: jax.Array  # [M] int32: the member that it was last copied from; itself at first


class PopulationState(TrainState):
    """The state of M agents and of their population."""

    population: Population = state_field(not_inherited="what is known of all members")


def fields_of(state: TrainState) -> dict[str, Any]:
    """The fields of a TrainState by name, without those of a derived class."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(TrainState)}


def select(key, score, share: float):
    """Select the source of each of M members, int32 [M]: itself, or one of the best.

    Each of the `share` with the lowest scores draws one of the `share` with the highest, and copies
    it if its score is higher. Scores that are not finite are lower than all others.
    """
    size = score.shape[0]
    count = min(max(round(size * share), 1), size // 2)
    score = jnp.where(jnp.isfinite(score), score, -jnp.inf)
    order = jnp.argsort(score)
    worst, best = order[:count], order[size - count :]
    known = jnp.isfinite(score[best])  # draws are from these, if there are any
    drawn = jax.random.choice(key, best, (count,), p=jnp.where(jnp.any(known), known, 1.0))
    return jnp.arange(size).at[worst].set(jnp.where(score[drawn] > score[worst], drawn, worst))


def perturb(key, hp: Hyperparams, copied, rules: Rules) -> Hyperparams:
    """Perturb the numbers of members that were `copied` (bool [M]) within their bounds."""
    for i, (name, low, high) in enumerate(rules.bounds):
        old = number(hp, name)
        steps = jax.random.randint(jax.random.fold_in(key, i), old.shape, -1, 2)
        factors = rules.factor ** steps.astype(old.dtype)
        new = 1.0 - (1.0 - old) * factors if name in COMPLEMENTS else old * factors
        hp = with_number(hp, name, jnp.where(copied, jnp.clip(new, low, high), old))
    return hp


def number(hp: Hyperparams, name: str):
    """One of the hyperparameters by name; term_coefs.0 is the first coefficient."""
    field, _, place = name.partition(".")
    value = getattr(hp, field)
    return value[int(place)] if place else value


def with_number(hp: Hyperparams, name: str, value) -> Hyperparams:
    """The same with another value of one of them."""
    field, _, place = name.partition(".")
    if place:
        listed = list(getattr(hp, field))
        listed[int(place)] = value
        value = tuple(listed)
    return hp._replace(**{field: value})


def evolve(
    key, state: TrainState, population: Population, rules: Rules, initial_carry: Any
) -> tuple[TrainState, Population, jax.Array]:
    """Run one selection; return (state, population, copied) after it.

    `copied` is True for the members that became copies of others, bool [M].

    No member is selected before each one has ended an episode, or has numbers that are not finite
    (parameters, or returns of updates that were not): until then the episodes so far count for the
    next selection. Members with numbers that are not finite rank last, and so does a member of
    whose episodes more than `MOST_DIVERGED` diverged: the returns of the others are no score.

    Args:
        key: consumed.
        state: every array with a leading axis of M members.
        population: the numbers of these members.
        rules: of the selection.
        initial_carry: of the environments of one shard [N, ...], () without a memory.
    """
    select_key, perturb_key = jax.random.split(key)
    ended = population.episodes + population.diverged
    alive = finite(state.agent.params) & jnp.isfinite(population.return_sum)
    sound = alive & (population.diverged <= MOST_DIVERGED * ended)
    score = jnp.where(sound, population.return_sum / population.episodes, jnp.nan)
    ready = jnp.all((ended > 0) | ~alive)
    own = jnp.arange(len(score))
    source = jnp.where(ready, select(select_key, score, rules.share), own)
    copied = source != own

    def copy(tree):
        return jax.tree.map(lambda x: x[source], tree)

    old = state.rollout.carry
    fresh = jax.tree.map(lambda new, old: jnp.broadcast_to(new, old.shape), initial_carry, old)
    rollout = state.rollout.replace(carry=select_better(copied, old, fresh))
    if rollout.open is not None:  # the old network's decisions
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
    """Check that all parameters of each member are finite, bool [M]; trees of arrays [M, ...]."""
    each = [jnp.all(jnp.isfinite(x), axis=range(1, x.ndim)) for x in jax.tree.leaves(params)]
    return jnp.all(jnp.stack(each), axis=0)


def short_interval(rules: Rules, rollout_length: int, limit: int) -> str:
    """A warning if an episode of `limit` steps (0: any number) may outlast an interval, or ""."""
    steps = rules.interval * rollout_length
    if steps >= limit:
        return ""
    return (
        f"an episode may last {limit} steps, but a selection is due every {steps} steps of an "
        f"environment. Selections are skipped until every agent has finished an episode. "
        f"Multiply --population_interval by {-(-limit // steps)} to avoid this."
    )


def population_functions(rules: Rules) -> MakeTrainFunctions:
    """Return the functions of a population with these rules, for `Programs`."""

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
        init: of agents that train side by side.
        hp: of each member [M].
        keys: of each member [M].
        shard_ids: int32 [D].
    """
    size = len(keys)
    population = Population(
        hp=jax.tree.map(jnp.copy, hp),  # the state is donated, and `hp` is read again
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

    Of `hp`, only total_updates is read: the members' numbers are in the state. `key` is the first
    member's.
    """
    size = parts.shards.num_members
    zeros = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (size, *x.shape)),
        diagnostics.zero_metrics((*parts.metric_names, COPIED)),
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


class AddPopulation:
    """A hook that adds each member's present numbers to its row.

    Selections happen inside the compiled program, where a member also learns with the numbers that
    it copied.
    """

    def __init__(self, rules: Rules) -> None:
        """Take the rules of the population."""
        self._names = [name for name, _, _ in rules.bounds]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of metrics.csv that it adds."""
        return (*(f"population/{name}" for name in [*self._names, "parent"]), COPIED)

    def due(self, run: Training) -> bool:
        """After every chunk."""
        return True

    def act(self, run: Training) -> None:
        """Add the columns, and correct those that depend on a member's numbers."""
        assert isinstance(run.state, PopulationState)
        population, alive = jax.device_get((run.state.population, finite(run.state.agent.params)))
        for i, row in enumerate(run.rows):
            row |= {
                f"population/{name}": float(number(population.hp, name)[i]) for name in self._names
            }
            row["population/parent"] = int(population.parent[i])
            row["charts/finite"] = int(alive[i])  # now: it may be a copy
            rate = float(population.hp.learning_rate[i])
            row["charts/learning_rate"] = run.learning_rate(rate, row, i)


def final_numbers(rows: Sequence[Row], rules: Rules) -> dict[str, Any]:
    """A member's tunable numbers at its last row, by the names of config fields."""
    return {f"ppo.{name}": rows[-1][f"population/{name}"] for name, _, _ in rules.bounds}


def since_last_copy(rows: Sequence[Row]) -> list[Row]:
    """Return a member's rows since it last became a copy of another.

    The first row keeps its evaluation, which is of the copy. Its training return is left out,
    because it includes episodes before the copy.
    """
    first = max((i for i, row in enumerate(rows) if row.get(COPIED)), default=None)
    if first is None:
        return list(rows)
    evaluated = {k: x for k, x in rows[first].items() if k != "charts/episodic_return"}
    return [evaluated, *rows[first + 1 :]]
