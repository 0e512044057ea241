"""Searches of a sweep: choose the next settings by the scores so far."""

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from purejaxppo.config.schema import TUNABLE
from purejaxppo.runs.population import Rules
from purejaxppo.sweep.search_space import (
    Choice,
    LogUniform,
    SearchRange,
    Setting,
    Uniform,
    entry_of,
)

MOST_INVALID = 100
"""Invalid settings in succession after which a search fails."""

Scored = Sequence[tuple[Setting, float]]


class Search(Protocol):
    """Chooses settings, round after round."""

    def next(self, scored: Scored, known: Sequence[Setting] | None) -> list[Setting]:
        """Chooses the next settings to train side by side; none when the search is over.

        Args:
            scored: every setting tried so far and its score (NaN: no evaluation).
            known: the settings of this round in the sweep that this one continues.
        """
        ...


class Fixed:
    """Settings that are known beforehand: one round."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        """Takes all settings."""
        self._settings = list(settings)

    def next(self, scored: Scored, known: Sequence[Setting] | None) -> list[Setting]:
        """Returns all settings, then none."""
        del known
        return [] if scored else self._settings


class Optuna:
    """Optuna's tree-structured Parzen estimator (Akiba et al. 2019), a batch of trials at a time.

    Args:
        ranges: to choose from.
        count: settings in all.
        batch: settings at a time.
        seed: of the sampler.
        check: raises ValueError for an invalid setting; another is chosen then.
    """

    def __init__(
        self,
        ranges: Mapping[str, SearchRange],
        count: int,
        batch: int,
        seed: int,
        check: Callable[[Setting], None] = lambda setting: None,
    ) -> None:
        """Starts a study.

        Raises:
            ValueError: Optuna is not installed.
        """
        if importlib.util.find_spec("optuna") is None:
            raise ValueError("optuna is not installed: pip install 'purejaxppo[optuna]'")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(direction="maximize")
        self._ranges, self._count, self._batch = dict(ranges), count, batch
        self._seed, self._check = seed, check
        self._asked: list[Any] = []
        self._failed = optuna.trial.TrialState.FAIL

    def next(self, scored: Scored, known: Sequence[Setting] | None) -> list[Setting]:
        """Chooses a batch of settings, or as many as are left."""
        for trial, (_, score) in zip(self._asked, scored[-len(self._asked) :], strict=True):
            if math.isnan(score):
                self._study.tell(trial, state=self._failed)
            else:
                self._study.tell(trial, score)
        left = min(self._batch, self._count - len(scored))
        # A sampler of its own for each round: what it draws does not depend on resuming.
        self._study.sampler = self._sampler(self._seed + len(scored))
        for setting in known or ():
            self._study.enqueue_trial(self._numbered(setting))
        self._asked = [self._ask() for _ in range(left)]
        return [self._setting(trial.params) for trial in self._asked]

    def _sampler(self, seed: int) -> Any:
        from optuna.samplers import TPESampler

        startup = max(10, self._batch)
        return TPESampler(seed=seed, constant_liar=True, n_startup_trials=startup)

    def _ask(self) -> Any:
        """Asks for the next valid trial; raises ValueError if none of many is valid."""
        for _ in range(MOST_INVALID):
            trial = self._study.ask(self._distributions())
            try:
                self._check(self._setting(trial.params))
            except ValueError as error:
                self._study.tell(trial, state=self._failed)
                wrong = error
            else:
                return trial
        raise wrong

    def _distributions(self) -> dict[str, Any]:
        import optuna.distributions as kinds

        def of(values: SearchRange) -> Any:
            if isinstance(values, Choice):  # by number: Optuna takes no lists of layer widths
                return kinds.CategoricalDistribution(tuple(range(len(values.values))))
            assert isinstance(values, Uniform | LogUniform)
            log = isinstance(values, LogUniform)
            if values.whole:
                return kinds.IntDistribution(int(values.low), int(values.high), log=log)
            return kinds.FloatDistribution(values.low, values.high, log=log)

        return {key: of(values) for key, values in self._ranges.items()}

    def _setting(self, params: Mapping[str, Any]) -> Setting:
        return {
            key: values.values[params[key]] if isinstance(values, Choice) else params[key]
            for key, values in self._ranges.items()
        }

    def _numbered(self, setting: Setting) -> dict[str, Any]:
        """Undoes `_setting`; lists that were tuples before JSON are found, too."""

        def number(values: SearchRange, given: Any) -> Any:
            if not isinstance(values, Choice):
                return given
            plain = [list(v) if isinstance(v, tuple) else v for v in values.values]
            return plain.index(list(given) if isinstance(given, tuple) else given)

        return {key: number(values, setting[key]) for key, values in self._ranges.items()}


def rules_of(
    ranges: Mapping[str, SearchRange], interval: int, share: float, factor: float
) -> Rules:
    """Builds the rules of a population from ranges of tunable numbers.

    Raises:
        ValueError: a range is of something that a compiled program cannot change.
    """
    bounds = []
    for key, values in ranges.items():
        if key not in TUNABLE and entry_of(key) is None:
            raise ValueError(
                f"a population changes numbers inside one program, and {key} is part of its "
                f"structure; what may vary is {', '.join(sorted(TUNABLE))}"
            )
        if not isinstance(values, Uniform | LogUniform):
            raise ValueError(f"a population perturbs {key}: give it a uniform or log_uniform range")
        bounds.append((key.removeprefix("ppo."), values.low, values.high))
    return Rules(tuple(bounds), interval, share, factor)
