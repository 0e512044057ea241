"""Search methods of a sweep, which choose the next settings from the scores so far."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from purejaxppo.config.files import as_text
from purejaxppo.config.installation import require
from purejaxppo.config.schema import TUNABLE
from purejaxppo.runs.population import Rules
from purejaxppo.sweep.search_space import (
    Choice,
    LogUniform,
    SearchRange,
    Uniform,
    Values,
    entry_of,
)

MAX_INVALID = 100
"""Number of consecutive invalid settings after which a search fails."""

Scored = Sequence[tuple[Values, float]]


NextRound = Callable[[Scored, Sequence[Values] | None], list[Values]]
"""(scored, known) -> settings of the next round; [] when the search is over.

scored: all settings so far with their scores; NaN without evaluation.
known: saved settings of this round if the sweep is resumed; None otherwise."""


class Optuna:
    """Optuna's tree-structured Parzen estimator (Akiba et al. 2019), with batches of trials.

    Args:
        ranges: the search space.
        count: total number of settings.
        batch: number of settings per round.
        seed: seed of the sampler.
        check: raises ValueError for an invalid setting, which is replaced by another.
    """

    def __init__(
        self,
        ranges: Mapping[str, SearchRange],
        count: int,
        batch: int,
        seed: int,
        check: Callable[[Values], None] = lambda setting: None,
    ) -> None:
        """Create a study.

        Raises:
            ValueError: Optuna is not installed.
        """
        require("optuna", extra="optuna")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(direction="maximize")
        self._ranges, self._count, self._batch = dict(ranges), count, batch
        self._seed, self._check = seed, check
        self._trials: list[Any] = []
        self._failed = optuna.trial.TrialState.FAIL

    def next(self, scored: Scored, known: Sequence[Values] | None) -> list[Values]:
        """Return the next batch of settings; the last one may be smaller."""
        for trial, (_, score) in zip(self._trials, scored[-len(self._trials) :], strict=True):
            if math.isnan(score):
                self._study.tell(trial, state=self._failed)
            else:
                self._study.tell(trial, score)
        size = min(self._batch, self._count - len(scored))
        # A new sampler for each round, so samples are the same after resuming.
        self._study.sampler = self._sampler(self._seed + len(scored))
        for setting in known or ():
            self._study.enqueue_trial(self._indexed(setting))
        self._trials = [self._ask() for _ in range(size)]
        return [self._setting(trial.params) for trial in self._trials]

    def _sampler(self, seed: int) -> Any:
        from optuna.samplers import TPESampler

        startup = max(10, self._batch)
        return TPESampler(seed=seed, constant_liar=True, n_startup_trials=startup)

    def _ask(self) -> Any:
        """Return the next valid trial; raise ValueError after `MAX_INVALID` invalid ones."""
        for _ in range(MAX_INVALID):
            trial = self._study.ask(self._distributions())
            try:
                self._check(self._setting(trial.params))
            except ValueError as error:
                self._study.tell(trial, state=self._failed)
                last_error = error
            else:
                return trial
        raise last_error

    def _distributions(self) -> dict[str, Any]:
        import optuna.distributions as kinds

        def distribution(values: SearchRange) -> Any:
            if isinstance(
                values, Choice
            ):  # by index, because Optuna does not support lists as choices
                return kinds.CategoricalDistribution(tuple(range(len(values.values))))
            log = isinstance(values, LogUniform)
            if values.whole:
                return kinds.IntDistribution(int(values.low), int(values.high), log=log)
            return kinds.FloatDistribution(values.low, values.high, log=log)

        return {key: distribution(values) for key, values in self._ranges.items()}

    def _setting(self, params: Mapping[str, Any]) -> Values:
        return {
            key: values.values[params[key]] if isinstance(values, Choice) else params[key]
            for key, values in self._ranges.items()
        }

    def _indexed(self, setting: Values) -> dict[str, Any]:
        """Invert `_setting`. Tuples and lists are equal, because JSON has only lists."""

        def index(values: SearchRange, value: Any) -> Any:
            if not isinstance(values, Choice):
                return value
            return [as_text(v) for v in values.values].index(as_text(value))

        return {key: index(values, setting[key]) for key, values in self._ranges.items()}


def rules_of(
    ranges: Mapping[str, SearchRange], interval: int, share: float, factor: float
) -> Rules:
    """Return the rules of a population.

    Args:
        ranges: ranges of tunable numbers.
        interval: updates between selections.
        share: fraction of the population that a selection replaces.
        factor: factor that perturbs numbers of copies.

    Raises:
        ValueError: a field is not tunable, or a range is a choice.
    """
    bounds = []
    for key, values in ranges.items():
        if key not in TUNABLE and entry_of(key) is None:
            raise ValueError(
                f"{key}: --search population supports only tunable numbers: "
                f"{', '.join(sorted(TUNABLE))}."
            )
        if not isinstance(values, Uniform):
            raise ValueError(f"{key}: --search population requires a uniform or log_uniform range.")
        bounds.append((key.removeprefix("ppo."), values.low, values.high))
    return Rules(tuple(bounds), interval, share, factor)
