"""Intervals between rows of metrics, evaluations, videos and checkpoints."""

import time

from purejaxppo.config.schema import CheckpointConfig, Config
from purejaxppo.runs.progress import Progress

SECONDS_BETWEEN_SAVES = 10.0
"""Shortest time between two checkpoints if the config sets no interval. Otherwise, a run of a few
seconds would spend a quarter of its time on checkpoints."""

MOST_ROWS = 100
"""If agents may be absent, a run ends after this many rows per step of total_timesteps."""


class Intervals:
    """Intervals of logging, evaluation, videos and checkpoints, in updates.

    If agents may be absent (`sparse`), only rows with a decision are environment steps. All
    intervals are then in decisions, and each chunk is one update.
    """

    def __init__(self, config: Config, *, sparse: bool = False) -> None:
        """Convert steps to updates or decisions. 0 selects a fraction of the run."""
        self.sparse = sparse
        self.one_by_one = sparse or config.asynchronous
        self.unit = 1 if sparse else config.steps_per_update
        """Environment steps of an update or a decision."""
        self.total = -(-config.total_timesteps // self.unit)
        self.most_updates = config.num_updates * (MOST_ROWS if sparse else 1)
        self.log = self._units(config.logging.interval, 100)
        self.eval = self._units(config.eval.interval, 20)
        self.save = self._units(config.checkpoint.interval, 10)
        if not config.eval.num_episodes:
            self.eval = 0
        videos = config.logging.video_interval
        self.video = self._units(videos, 1) if videos else 0
        is_set = config.checkpoint.interval or config.checkpoint.keep > CheckpointConfig.keep
        self.min_seconds = 0.0 if is_set else SECONDS_BETWEEN_SAVES
        self.max_seconds = config.checkpoint.max_seconds
        self.begin(0)

    def _units(self, steps: int, share: int) -> int:
        return max(1, round(steps / self.unit if steps else self.total / share))

    def done(self, progress: Progress) -> int:
        """Return the updates or, if `sparse`, the decisions of the agent with the fewest."""
        return min(progress.member_steps) if self.sparse else progress.update

    def ended(self, progress: Progress) -> bool:
        """Return True at the end of a run."""
        return self.done(progress) >= self.total or (
            self.sparse and progress.update >= self.most_updates
        )

    def due(self, every: int, progress: Progress, before: int) -> bool:
        """Return True if a multiple of `every` has passed since `before`, or the run has ended."""
        if not every:
            return False
        return self.done(progress) // every > before // every or self.ended(progress)

    def begin(self, done: int) -> None:
        """Start to count towards the next checkpoint."""
        self._saved, self._saved_at = done, time.perf_counter()

    def age(self) -> float:
        """Return the seconds since `begin`."""
        return time.perf_counter() - self._saved_at

    def save_due(self, done: int, age: float) -> bool:
        """Return True if a checkpoint is due at `done`, `age` seconds after `begin`."""
        passed = done // self.save > self._saved // self.save
        return (passed and age >= self.min_seconds) or age > self.max_seconds

    def until_next(self, update: int) -> int:
        """Return the number of updates until anything is due; 1 if each chunk is one update."""
        if self.one_by_one:
            return 1
        return min(
            [
                every - update % every
                for every in (self.log, self.eval, self.video, self.save)
                if every
            ]
            + [self.total - update]
        )
