"""Intervals between rows of metrics, evaluations and saves."""

import time

from purejaxppo.config.schema import CheckpointConfig, Config

SECONDS_BETWEEN_SAVES = 10.0
"""A save that a config does not ask for waits until the last one, or the start, is as old as this:
a run of seconds would spend a quarter of them on saves."""


class Intervals:
    """Intervals, in updates, of logging, evaluation and saves."""

    def __init__(self, config: Config) -> None:
        """Converts steps to whole updates; 0 selects a share of the run."""
        self.total = config.num_updates
        self.log = self._updates(config, config.logging.interval, 100)
        self.eval = self._updates(config, config.eval.interval, 20)
        self.save = self._updates(config, config.checkpoint.interval, 10)
        if not config.eval.num_episodes:
            self.eval = 0
        asked = config.checkpoint.interval or config.checkpoint.keep > CheckpointConfig.keep
        self.min_seconds = 0.0 if asked else SECONDS_BETWEEN_SAVES
        self.max_seconds = config.checkpoint.max_seconds
        self.begin(0)

    @staticmethod
    def _updates(config: Config, steps: int, share: int) -> int:
        if steps:
            return max(1, round(steps / config.steps_per_update))
        return max(1, round(config.num_updates / share))

    def due(self, every: int, update: int) -> bool:
        """True if something done `every` updates is due after `update` of them."""
        return bool(every) and (update % every == 0 or update == self.total)

    def begin(self, update: int) -> None:
        """Counts from here to the next save: from a save, or the start of training."""
        self._saved, self._saved_at = update, time.perf_counter()

    def age(self) -> float:
        """Seconds since `begin`."""
        return time.perf_counter() - self._saved_at

    def save_due(self, update: int, age: float) -> bool:
        """True if a save is due after `update` updates, `age` seconds after `begin`."""
        passed = update // self.save > self._saved // self.save
        return (passed and age >= self.min_seconds) or age > self.max_seconds

    def until_next(self, update: int) -> int:
        """Number of updates until anything is due."""
        return min(
            [every - update % every for every in (self.log, self.eval, self.save) if every]
            + [self.total - update]
        )
