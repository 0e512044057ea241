"""Population-based training: agents that do badly go on from those that do well.

Every so many updates, each agent of the worst share takes over parameters, optimiser, statistics
and tunable numbers of a random one of the best share, and its numbers are then perturbed.
Environments and keys stay each agent's own. All of it happens inside the compiled program.

Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846, with truncation selection.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo import reporting
from purejaxppo.config import TUNABLE, Config
from purejaxppo.learner import STATE_AXES
from purejaxppo.members import MemberPrograms, MembersRun
from purejaxppo.settings import LogUniform, Range, Uniform
from purejaxppo.types import Hyperparams, Metrics, TrainState

STREAM = 0x706274
"""Folded into the first member's key for what the population draws."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """How a population evolves."""

    bounds: tuple[tuple[str, float, float], ...]
    """Names of Hyperparams that vary, and the range each stays in."""
    interval: int
    """Updates between two selections."""
    share: float = 0.25
    """Of the population that is replaced, and that replaces it."""
    factor: float = 1.25
    """A copied number is multiplied by this, divided by it, or kept, each as likely."""


class Population(NamedTuple):
    """What a population knows of its M members."""

    hp: Hyperparams  # [M] each
    return_sum: jax.Array  # [M] of the episodes since the last selection
    episodes: jax.Array  # [M] int32
    parent: jax.Array  # [M] int32: whom a member was last copied from; itself at first


class PopulationState(TrainState):
    """The state of M agents and of the population that they are."""

    population: Population


def rules_of(ranges: Mapping[str, Range], interval: int, share: float, factor: float) -> Rules:
    """Rules for ranges of tunable numbers.

    Raises:
        ValueError: a range is of something that a compiled program cannot change.
    """
    bounds = []
    for key, values in ranges.items():
        if key not in TUNABLE:
            raise ValueError(
                f"--population changes numbers inside one program, and {key} is part of its "
                f"structure; what may vary is {', '.join(sorted(TUNABLE))}"
            )
        if not isinstance(values, Uniform | LogUniform):
            raise ValueError(f"--population perturbs {key}: give it a uniform or log_uniform range")
        bounds.append((key.removeprefix("ppo."), values.low, values.high))
    return Rules(tuple(bounds), interval, share, factor)


def select(key, score, share: float):
    """For each of M members whom it goes on from, int32 [M]: itself, or one of the best.

    The `share` with the lowest scores (NaN lowest) each draw one of the `share` with the highest.
    """
    size = score.shape[0]
    count = min(max(round(size * share), 1), size // 2)
    order = jnp.argsort(jnp.where(jnp.isnan(score), -jnp.inf, score))
    drawn = jax.random.choice(key, order[size - count :], (count,))
    return jnp.arange(size).at[order[:count]].set(drawn)


def perturb(key, hp: Hyperparams, copied, rules: Rules) -> Hyperparams:
    """Numbers of the members that were `copied` (bool [M]), perturbed within their bounds."""
    fields = {}
    for i, (name, low, high) in enumerate(rules.bounds):
        old = getattr(hp, name)
        steps = jax.random.randint(jax.random.fold_in(key, i), old.shape, -1, 2)
        new = jnp.clip(old * rules.factor ** steps.astype(old.dtype), low, high)
        fields[name] = jnp.where(copied, new, old)
    return hp._replace(**fields)


def evolve(
    key, state: TrainState, population: Population, rules: Rules
) -> tuple[TrainState, Population]:
    """One selection: (state, population) after it."""
    select_key, perturb_key = jax.random.split(key)
    score = population.return_sum / population.episodes  # NaN without episodes
    source = select(select_key, score, rules.share)
    own = jnp.arange(len(source))

    def copy(tree):
        return jax.tree.map(lambda x: x[source], tree)

    state = state.replace(
        agent=copy(state.agent),
        opt_state=copy(state.opt_state),
        reward_stats=copy(state.reward_stats),
    )
    nothing = jnp.zeros_like(population.return_sum)
    hp = perturb(perturb_key, copy(population.hp), source != own, rules)
    parent = jnp.where(source != own, source, population.parent).astype(jnp.int32)
    return state, Population(hp, nothing, nothing.astype(jnp.int32), parent)


class PopulationPrograms(MemberPrograms):
    """The compiled functions of a population; its selections happen inside `train_chunk`."""

    def __init__(
        self,
        config: Config,
        devices: list[jax.Device],
        members: Sequence[Config],
        rules: Rules,
    ) -> None:
        """Builds the learner; nothing is compiled yet."""
        super().__init__(config, devices, members)
        self.rules = rules

    def init(self) -> PopulationState:
        """The state before the first update."""
        state = super().init()
        size = len(self.members)
        population = Population(
            hp=self.hp,
            return_sum=jnp.zeros(size),
            episodes=jnp.zeros(size, jnp.int32),
            parent=jnp.arange(size, dtype=jnp.int32),
        )
        population = jax.device_put(population, self.shards.shardings(None))
        fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(TrainState)}
        return PopulationState(**fields, population=population)

    def compile_training(self, state: TrainState) -> None:
        """Compiles chunks of updates with selections between them."""
        axes = {f.name: getattr(STATE_AXES, f.name) for f in dataclasses.fields(TrainState)}
        axes["population"] = None
        out = self.shards.shardings((PopulationState(**axes), None))
        donate = (0,) if self.learner.env.spec.restorable else ()
        train = jax.jit(self.train_population, donate_argnums=donate, out_shardings=out)
        self.train_chunk = train.lower(state, self.hp, np.int32(1)).compile()

    def train_population(
        self, state: PopulationState, hp: Hyperparams, num_updates
    ) -> tuple[PopulationState, Metrics]:
        """`num_updates` updates of all members; `hp` is that of the start and not read."""
        del hp
        fields = [f.name for f in dataclasses.fields(TrainState)]
        size = len(self.members)
        zeros = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (size, *x.shape)), self.learner.zero_metrics()
        )
        key = jax.random.fold_in(self.key[0], STREAM)

        def body(_, carried):
            state, population, total = carried
            state, metrics = self.learner.train_chunk(state, population.hp, 1)
            population = population._replace(
                return_sum=population.return_sum
                + jnp.where(metrics.finite > 0, metrics.episodes.return_sum, jnp.nan),
                episodes=population.episodes + metrics.episodes.count,
            )
            update = state.update[0]
            state, population = jax.lax.cond(
                (update % self.rules.interval == 0) & (update < self.config.num_updates),
                lambda pair: evolve(jax.random.fold_in(key, update), pair[0], pair[1], self.rules),
                lambda pair: pair,
                (state, population),
            )
            return state, population, jax.tree.map(jnp.add, total, metrics)

        trained = TrainState(**{name: getattr(state, name) for name in fields})
        carried = trained, state.population, zeros
        trained, population, total = jax.lax.fori_loop(0, num_updates, body, carried)
        whole = {name: getattr(trained, name) for name in fields}
        return PopulationState(**whole, population=population), total


class PopulationRun(MembersRun):
    """A run of a population: rows also say each member's numbers and whom it was copied from."""

    programs: PopulationPrograms

    def _after_chunk(self, state: TrainState, metrics: Metrics, speed: float) -> None:
        assert isinstance(state, PopulationState)
        self._population = jax.device_get(state.population)
        super()._after_chunk(state, metrics, speed)

    def _rows(self, metrics: Metrics) -> list[reporting.Row]:
        population, names = self._population, self._varying()
        scheduled = self._learning_rate(self.config) / self.config.ppo.learning_rate
        rates = population.hp.learning_rate * scheduled
        return [
            row
            | {"charts/learning_rate": float(rates[i])}
            | {f"population/{name}": float(getattr(population.hp, name)[i]) for name in names}
            | {"population/parent": int(population.parent[i])}
            for i, row in enumerate(super()._rows(metrics))
        ]

    def _varying(self) -> list[str]:
        return [name for name, _, _ in self.programs.rules.bounds]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of metrics.csv."""
        names = [*self._varying(), "parent"]
        return (*super().columns, *(f"population/{name}" for name in names))


def final_numbers(rows: Sequence[reporting.Row], rules: Rules) -> dict[str, Any]:
    """A member's tunable numbers at its last row, by the names of config fields."""
    return {f"ppo.{name}": rows[-1][f"population/{name}"] for name, _, _ in rules.bounds}
