"""Loggers of metrics: CSV, TensorBoard, W&B. Each imports its library when it is made."""

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
"""Largest number of members that get TensorBoard runs of their own."""


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
    """`metrics.csv`: one row per log interval, flushed; resuming drops rows after the save."""

    def __init__(self, path: Path, resumed_at: int, columns: Sequence[str] = COLUMNS) -> None:
        """Open the file, keeping rows up to update `resumed_at`."""
        self._path = path
        self._columns = list(columns)
        rows = [row for row in read_csv(path) if row["update"] <= resumed_at]
        self._columns += dict.fromkeys(k for row in rows for k in row if k not in columns)
        self._start(rows)

    def _start(self, rows: Sequence[Row]) -> None:
        """Replace the file by one with these rows."""
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
        """Append a row; columns that are new to the file are added to it."""
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
    """TensorBoard events."""

    def __init__(self, folder: Path, resumed_at: int) -> None:
        """Open an event file; entries of older files after `resumed_at` are purged."""
        from purejaxppo.runs.tensorboard import Writer

        self._folder = folder
        with named_write_errors(folder):
            self.writer = Writer(str(folder), purge_step=resumed_at + 1)

    def write(self, row: Row) -> None:
        """Write each number at its step."""
        step = int(row["global_step"])
        with named_write_errors(self._folder):
            for key, value in row.items():
                if "/" in key and math.isfinite(value):  # tensorboardX warns about others
                    self.writer.add_scalar(key, value, step)

    def close(self) -> None:
        """Flush and close."""
        with named_write_errors(self._folder):
            self.writer.close()


class WandbLogger:
    """Weights & Biases."""

    def __init__(self, project: str, run_dir: Path, config: dict[str, Any]) -> None:
        """Start the W&B run, or continues the one whose id the run folder holds.

        Raises:
            ValueError: W&B rejects it, for example without a login.
        """
        import wandb

        kept = run_dir / "wandb_id"
        if not kept.is_file():
            kept.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
        try:
            self._run = wandb.init(
                project=project,
                dir=str(run_dir),
                name=run_dir.name,
                id=kept.read_text(encoding="utf-8"),
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


class HeldBack:
    """Passes rows to a logger that cannot delete them, once a save covers their steps.

    A killed run resumes from its last save and repeats the steps after it. W&B's steps only
    increase: it would drop the repeated rows and hold the lost ones.
    """

    def __init__(self, logger: Logger, saved: Callable[[], int | None]) -> None:
        """Wrap a logger; `saved` returns the environment steps of the last complete save."""
        self._logger, self._saved = logger, saved
        self._rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Store a row, and pass on the rows that a save covers by now."""
        self._rows.append(row)
        self._pass_on()

    def close(self) -> None:
        """Pass on rows that a save covers, drop the rest, which will be repeated, and close."""
        self._pass_on()
        self._logger.close()

    def _pass_on(self) -> None:
        saved = self._saved() or 0
        while self._rows and int(self._rows[0]["global_step"]) <= saved:
            self._logger.write(self._rows.pop(0))


class PerMember:
    """A logger for each member."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        """Take one logger per member, in the members' order."""
        self._loggers = loggers

    def write(self, row: Row) -> None:
        """Write a row to its member's logger."""
        self._loggers[int(row["member"])].write(row)

    def close(self) -> None:
        """Close them all."""
        for logger in self._loggers:
            logger.close()


class MeanOfMembers:
    """Gives a logger the mean over the members of each round of rows."""

    def __init__(self, logger: Logger, num_members: int) -> None:
        """Wrap a logger for rows of `num_members` members."""
        self._logger, self._num_members = logger, num_members
        self._rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Collect a row, and write the mean after the last member's."""
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
    """The tensorboardX SummaryWriter of the first agent or of the mean; None without one."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows, one per member, to each logger."""
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
    """Open the loggers of a config, without metrics.csv.

    Args:
        opened: takes the loggers, so that they can be closed if a later one fails.
        config: of the run.
        run_dir: its folder.
        members: each agent's config.
        steps: each agent's environment steps so far.
        saved: () -> environment steps of the last complete save.
    """
    if config.logging.tensorboard:
        boards = _tensorboard(run_dir / "tensorboard", members, steps)
        opened.tensorboard = boards[0].writer
        opened.loggers.append(_of_members(boards, len(members)))
    if config.logging.wandb_project:
        wandb = WandbLogger(config.logging.wandb_project, run_dir, as_text(flatten(config)))
        opened.loggers.append(MeanOfMembers(HeldBack(wandb, saved), len(members)))


def _tensorboard(
    folder: Path, members: Sequence[Config], steps: Sequence[int]
) -> list[TensorBoardLogger]:
    """A TensorBoard run per member; of many members the mean alone: each run opens a file."""
    if len(members) == 1:
        return [TensorBoardLogger(folder, steps[0])]
    if len(members) > MOST_WRITERS:
        return [TensorBoardLogger(folder / "mean", sum(steps) // len(steps))]
    names = [f"member_{i}_seed_{member.seed}" for i, member in enumerate(members)]
    return [TensorBoardLogger(folder / name, at) for name, at in zip(names, steps, strict=True)]


def _of_members(loggers: Sequence[Logger], num_members: int) -> Logger:
    """A logger for the rows of all members, from one for each or one for their mean."""
    if num_members == 1:
        return loggers[0]
    return (
        PerMember(loggers)
        if len(loggers) == num_members
        else MeanOfMembers(loggers[0], num_members)
    )
