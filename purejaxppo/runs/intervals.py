"""Intervals between rows of metrics, evaluations and saves."""

from purejaxppo.config.schema import Config

SECONDS_BETWEEN_SAVES = 10.0
"""A save that no `checkpoint.interval` asks for is left out if the last one is younger: a run of
seconds would spend a third of them on its saves."""


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
        self.min_seconds = 0.0 if config.checkpoint.interval else SECONDS_BETWEEN_SAVES
        self.max_seconds = config.checkpoint.max_seconds

    @staticmethod
    def _updates(config: Config, steps: int, share: int) -> int:
        if steps:
            return max(1, round(steps / config.steps_per_update))
        return max(1, round(config.num_updates / share))

    def due(self, every: int, update: int) -> bool:
        """True if something done `every` updates is due after `update` of them."""
        return bool(every) and (update % every == 0 or update == self.total)

    def save_due(self, update: int, age: float) -> bool:
        """True if a save is due after `update` updates, `age` seconds after the last one."""
        due = self.due(self.save, update) and age >= self.min_seconds
        return due or age > self.max_seconds

    def until_next(self, update: int) -> int:
        """Number of updates until anything is due."""
        return min(
            [every - update % every for every in (self.log, self.eval, self.save) if every]
            + [self.total - update]
        )
