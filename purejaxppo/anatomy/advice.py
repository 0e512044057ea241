"""Settings that may be faster, each compared with the present ones in training itself."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from purejaxppo.anatomy.timing import WORTHWHILE, Budget, Gain, compare
from purejaxppo.anatomy.trainer import Trainer
from purejaxppo.config.schema import Config

MOST_DOUBLINGS = 3
SHORTEST_ROLLOUT = 8
"""Shortest rollout with which more environments are tried."""
COMPARISON_SECONDS = 10.0
"""Seconds of a comparison, without compilation."""
NO_TIME = "not measured: no time left. Increase seconds."


@dataclass(frozen=True)
class Advice:
    """A setting that was compared with the settings before it."""

    setting: dict[str, Any]
    """New values of config fields, by dotted name."""
    gain: Gain | None = None
    """Speed of training; None if it was not measured."""
    note: str = ""
    """Reason why it was not measured."""

    @property
    def recommended(self) -> bool:
        """Whether the setting is clearly faster."""
        return self.gain is not None and self.gain.is_clear

    @property
    def verdict(self) -> str:
        """Return the result in words."""
        if self.gain is None:
            return self.note
        if self.recommended:
            return f"recommended: {self.gain}"
        slower = max(self.gain.ratios) < 1 / WORTHWHILE
        return f"{'slower' if slower else 'no clear winner'}: {self.gain}"


@dataclass
class Search:
    """Compares settings one after another. A faster one is kept.

    Args:
        trainer: training with the present settings.
        devices: devices to train on.
        folder: folder of temporary files.
        budget: time for the search.
    """

    trainer: Trainer
    devices: list[jax.Device]
    folder: Path
    budget: Budget
    results: list[Advice] = field(default_factory=list)

    @property
    def config(self) -> Config:
        """Config with the recommended settings so far."""
        return self.trainer.config

    def close(self) -> None:
        """Close the simulators."""
        self.trainer.close()

    def skip(self, setting: dict[str, Any], note: str) -> None:
        """Add a setting that is not measured."""
        self.results.append(Advice(setting, note=note))

    def compare(self, setting: dict[str, Any]) -> bool:
        """Compare a setting with the present ones; return True if it is recommended."""
        if self.budget.interrupted:
            return False
        if self.budget.left < 1.5 * self.trainer.compile_seconds:
            self.skip(setting, NO_TIME)
            return False
        try:
            config = self.config.replace(**setting)
            number = len(self.results)
            candidate = Trainer(config, self.devices, self.folder / f"setting-{number}")
        except ValueError as error:
            self.skip(setting, f"not possible: {error}")
            return False
        share = min(COMPARISON_SECONDS, self.budget.left)
        try:
            gain = compare(self.trainer.work, candidate.work, self.budget, share)
        except BaseException as error:
            candidate.close()
            if isinstance(error, KeyboardInterrupt):
                return False
            raise
        result = Advice(setting, gain)
        self.results.append(result)
        worse = candidate
        if result.recommended:
            worse, self.trainer = self.trainer, candidate
        worse.close()
        return result.recommended


def more_environments(config: Config) -> Iterator[dict[str, Any]]:
    """Yield settings with two, four and eight times as many environments and shorter rollouts.

    The steps of an update stay the same.
    """
    length, num_envs = config.ppo.rollout_length, config.env.num_envs
    for _ in range(MOST_DOUBLINGS):
        if length % 2 or length // 2 < SHORTEST_ROLLOUT:
            return
        length, num_envs = length // 2, num_envs * 2
        yield {"env.num_envs": num_envs, "ppo.rollout_length": length}
