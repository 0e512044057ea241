"""Training as in a run, but with a learning rate of 0 and without a run folder."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from purejaxppo.config.schema import Config, LoggingConfig
from purejaxppo.runs.intervals import Intervals
from purejaxppo.runs.loggers import CsvLogger, Loggers, Opening, open_loggers
from purejaxppo.runs.programs import Programs, without_hang
from purejaxppo.runs.rows import COLUMNS, MEMBER_COLUMNS, env_columns, metrics_row
from purejaxppo.setup import divide, resolve

FOREVER = 1e9
"""Number of updates after which schedules end: so many that they stay at their start."""


class Trainer:
    """Trains with constant parameters, and writes rows of metrics to a temporary folder.

    Args:
        config: config of the run.
        devices: devices to train on.
        folder: folder of the metrics.

    Raises:
        ValueError: see `resolve`, `divide` and `Programs`.
    """

    def __init__(self, config: Config, devices: Sequence[jax.Device], folder: Path) -> None:
        """Compile the programs and start the simulators."""
        started = time.perf_counter()
        self.config = config
        setup = divide(resolve(config), devices)
        self.programs = without_hang(Programs(setup))
        hp = self.programs.hp
        self.hp = hp._replace(
            learning_rate=jax.numpy.zeros_like(hp.learning_rate),
            total_updates=jax.numpy.full_like(hp.total_updates, FOREVER),
        )
        self.every = Intervals(config, sparse=self.programs.spec.absent)
        self.loggers = Loggers()
        try:
            self._state = self.programs.init()
            self.programs.compile(self._state)
            folder.mkdir()
            of_env = env_columns(self.programs.spec.metrics)
            columns = (*MEMBER_COLUMNS, *COLUMNS, *of_env, *self.programs.parts.metric_names)
            self.loggers.loggers.append(CsvLogger(folder / "metrics.csv", 0, columns))
            steps = [0] * len(setup.members)
            open_loggers(self.loggers, Opening(config, folder, setup.members, steps, lambda: None))
        except BaseException:
            self.close()
            raise
        self.compile_seconds = time.perf_counter() - started
        self._update = 0
        self._metrics: Any = None

    @property
    def steps_per_update(self) -> int:
        """Environment steps of an update of all agents."""
        return self.programs.steps_per_update

    @property
    def updates_per_row(self) -> int:
        """Number of updates between two rows of metrics; unknown if agents may be absent."""
        return self.every.log if not self.every.sparse else 1

    def work(self, count: int) -> None:
        """Run a number of updates and write rows of metrics, as `runs.loop` does."""
        while count > 0:
            due = self.updates_per_row - self._update % self.updates_per_row
            chunk = 1 if self.every.one_by_one else min(count, due)
            state, metrics = self.programs.train_chunk(self._state, self.hp, np.int32(chunk))
            self._metrics, self._state = jax.device_get(metrics), state
            self._update += chunk
            count -= chunk
            if self._update % self.updates_per_row == 0:
                self.log(1)
        self.programs.wait()

    def log(self, count: int) -> None:
        """Write rows of the last metrics `count` times."""
        steps = self._update * self.steps_per_update
        for _ in range(count):
            rows = []
            for i, member in enumerate(self.programs.setup.members):
                metrics = jax.tree.map(lambda x, i=i: x[i], self._metrics)
                named = {"member": i, "seed": member.seed, "update": self._update}
                row = metrics_row(metrics, self.programs.spec.metrics)
                rows.append({**named, "global_step": steps, **row})
            self.loggers.write(rows)

    def close(self) -> None:
        """Close simulators and loggers."""
        self.programs.close()
        self.loggers.close()


def measured_config(config: Config) -> Config:
    """Return a config without evaluations, videos, W&B and custom loggers, which are slow."""
    logging = LoggingConfig(config.logging.interval, tensorboard=config.logging.tensorboard)
    return replace(config, eval=replace(config.eval, num_episodes=0), logging=logging)
