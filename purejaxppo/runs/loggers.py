"""Loggers of metrics: CSV, TensorBoard, W&B. Each imports its library in the constructor."""

import contextlib
import csv
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from purejaxppo.config.files import as_text, flatten
from purejaxppo.config.schema import Config
from purejaxppo.interrupts import atomic_write
from purejaxppo.runs.folder import named_write_errors
from purejaxppo.runs.rows import COLUMNS, MEMBER_COLUMNS, Row, csv_cells, mean_row, read_csv

MOST_WRITERS = 64
"""Largest number of agents with separate TensorBoard runs."""


class Logger(Protocol):
    """A destination of metrics."""

    def write(self, row: Row) -> None:
        """Write one row of metrics."""
        ...

    def close(self) -> None:
        """Close the logger."""
        ...


Sink = Logger
"""Its name before version 0.3, kept until 0.4."""


class CsvLogger:
    """Writes `metrics.csv`. When a run is resumed, rows after the checkpoint are dropped."""

    def __init__(self, path: Path, resumed_at: int, columns: Sequence[str] = COLUMNS) -> None:
        """Open the file, and keep its rows up to update `resumed_at`."""
        self._path = path
        self._columns = list(columns)
        rows = [row for row in read_csv(path) if row["update"] <= resumed_at]
        self._columns += dict.fromkeys(k for row in rows for k in row if k not in columns)
        self._start(rows)

    def _start(self, rows: Sequence[Row]) -> None:
        """Replace the file by a file with these rows."""
        with (
            named_write_errors(self._path),
            atomic_write(self._path) as partial,
            partial.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(csv_cells(row) for row in rows)
        self._file = self._path.open("a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, self._columns)

    def write(self, row: Row) -> None:
        """Append a row. New columns are added to the file."""
        if new := [key for key in row if key not in self._columns]:
            self._file.close()
            self._columns += new
            self._start(read_csv(self._path))
        with named_write_errors(self._path):
            self._writer.writerow(csv_cells(row))
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with named_write_errors(self._path):
            self._file.close()


class TensorBoardLogger:
    """Writes TensorBoard events."""

    def __init__(self, folder: Path, resumed_at: int) -> None:
        """Open an event file, and purge entries of older files after step `resumed_at`."""
        from purejaxppo.runs.tensorboard import Writer

        self._folder = folder
        with named_write_errors(folder):
            self.writer = Writer(str(folder), purge_step=resumed_at + 1)

    def write(self, row: Row) -> None:
        """Write each metric of a row at its step."""
        step = int(row["global_step"])
        with named_write_errors(self._folder):
            for key, value in row.items():
                if "/" in key and math.isfinite(value):  # tensorboardX warns about others
                    self.writer.add_scalar(key, value, step)

    def close(self) -> None:
        """Flush and close the file."""
        with named_write_errors(self._folder):
            self.writer.close()


class WandbLogger:
    """Writes to Weights & Biases."""

    def __init__(self, project: str, run_dir: Path, config: dict[str, Any]) -> None:
        """Start a W&B run, or continue the one whose id is in the run folder.

        Raises:
            ValueError: W&B rejects the run, for example without a login.
        """
        import wandb

        id_file = run_dir / "wandb_id"
        if not id_file.is_file():
            id_file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
        try:
            self._run = wandb.init(
                project=project,
                dir=str(run_dir),
                name=run_dir.name,
                id=id_file.read_text(encoding="utf-8"),
                config=config,
                resume="allow",
            )
        except wandb.Error as error:
            raise ValueError(f"logging.wandb_project = {project}: {error}") from error

    def write(self, row: Row) -> None:
        """Log a row."""
        self._run.log(row, step=int(row["global_step"]))

    def close(self) -> None:
        """End the W&B run."""
        self._run.finish()


class DelayedLogger:
    """Delays rows for a logger that cannot delete them until a checkpoint covers their steps.

    A killed run resumes from its last checkpoint and repeats the steps after it. W&B's steps can
    only increase, so it would keep the rows of the lost steps and drop the repeated rows.
    """

    def __init__(self, logger: Logger, saved: Callable[[], int | None]) -> None:
        """Wrap a logger. `saved` returns the environment steps of the last complete checkpoint."""
        self._logger, self._saved = logger, saved
        self._rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Store a row, and write the rows that a checkpoint covers now."""
        self._rows.append(row)
        self._pass_on()

    def close(self) -> None:
        """Write the rows that a checkpoint covers, drop the others, and close the logger."""
        self._pass_on()
        self._logger.close()

    def _pass_on(self) -> None:
        saved = self._saved() or 0
        while self._rows and int(self._rows[0]["global_step"]) <= saved:
            self._logger.write(self._rows.pop(0))


class PerAgentLogger:
    """Writes each agent's rows to a separate logger."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        """Take one logger per agent, in the order of the agents."""
        self._loggers = loggers

    def write(self, row: Row) -> None:
        """Write a row to its agent's logger."""
        self._loggers[int(row["member"])].write(row)

    def close(self) -> None:
        """Close all loggers."""
        for logger in self._loggers:
            logger.close()


class MeanLogger:
    """Writes the mean over all agents to a logger."""

    def __init__(self, logger: Logger, num_members: int) -> None:
        """Wrap a logger for the mean over `num_members` agents."""
        self._logger, self._num_members = logger, num_members
        self._rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Collect a row. After the row of the last agent, write the mean."""
        self._rows.append(row)
        if len(self._rows) == self._num_members:
            mean = mean_row(self._rows)
            self._logger.write({k: x for k, x in mean.items() if k not in MEMBER_COLUMNS})
            self._rows = []

    def close(self) -> None:
        """Close the logger."""
        self._logger.close()


@dataclass
class Loggers:
    """All loggers of a run."""

    loggers: list[Logger] = field(default_factory=list)
    tensorboard: Any = None
    """The SummaryWriter of the first agent or of the mean; None without TensorBoard."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows, one per agent, to each logger."""
        for row in rows:
            for logger in self.loggers:
                logger.write(row)

    def close(self) -> None:
        """Close each logger once, even if others fail."""
        with contextlib.ExitStack() as closing:  # in reverse order
            while self.loggers:
                closing.callback(self.loggers.pop().close)


def open_loggers(
    opened: Loggers,
    config: Config,
    run_dir: Path,
    members: Sequence[Config],
    steps: Sequence[int],
    saved: Callable[[], int | None],
) -> None:
    """Open the loggers of a config. The writer of metrics.csv is opened elsewhere.

    Args:
        opened: each logger is added as soon as it is open. The caller can close them if the next
            one fails to open.
        config: config of the run.
        run_dir: the run folder.
        members: config of each agent.
        steps: environment steps of each agent so far.
        saved: function that returns the environment steps of the last complete checkpoint.
    """
    if config.logging.tensorboard:
        boards = _tensorboard(run_dir / "tensorboard", members, steps)
        opened.tensorboard = boards[0].writer
        opened.loggers.append(_combined(boards, len(members)))
    if config.logging.wandb_project:
        wandb = WandbLogger(config.logging.wandb_project, run_dir, as_text(flatten(config)))
        opened.loggers.append(MeanLogger(DelayedLogger(wandb, saved), len(members)))


def _tensorboard(
    folder: Path, members: Sequence[Config], steps: Sequence[int]
) -> list[TensorBoardLogger]:
    """Open a TensorBoard run per agent; for many agents, which would open many files, one run."""
    if len(members) == 1:
        return [TensorBoardLogger(folder, steps[0])]
    if len(members) > MOST_WRITERS:
        return [TensorBoardLogger(folder / "mean", sum(steps) // len(steps))]
    names = [f"member_{i}_seed_{member.seed}" for i, member in enumerate(members)]
    return [TensorBoardLogger(folder / name, at) for name, at in zip(names, steps, strict=True)]


def _combined(loggers: Sequence[Logger], num_members: int) -> Logger:
    """Combine loggers, one per agent or one for the mean, into one for the rows of all agents."""
    if num_members == 1:
        return loggers[0]
    return (
        PerAgentLogger(loggers)
        if len(loggers) == num_members
        else MeanLogger(loggers[0], num_members)
    )
