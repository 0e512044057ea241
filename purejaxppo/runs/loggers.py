"""Loggers of metrics: CSV, TensorBoard, W&B and custom ones. Each imports its library at its start.

A `Logger` logs one agent, or the mean of several. A `RunLogger` takes the rows of all agents.
"""

import contextlib
import csv
import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from purejaxppo.config import extensions, references
from purejaxppo.config.checks import settings
from purejaxppo.config.files import as_text, flatten, to_yaml, write_whole
from purejaxppo.config.hints import show
from purejaxppo.config.schema import Config
from purejaxppo.interrupts import atomic_write
from purejaxppo.runs.folder import TENSORBOARD, WANDB_ID, named_write_errors
from purejaxppo.runs.rows import COLUMNS, MEMBER_COLUMNS, Row, csv_cells, mean_row, read_csv

log = logging.getLogger("purejaxppo")

MOST_WRITERS = 64
"""Largest number of agents with separate TensorBoard runs."""
MOST_RUNS = 256
"""Largest number of agents with separate W&B runs and custom loggers."""
VIDEO_TAG = "eval/video"
"""Name of videos in TensorBoard and W&B."""
HPARAM_METRICS = ("eval/return_mean", "charts/episodic_return")
"""Metrics of TensorBoard's table of hyperparameters."""


@dataclass(frozen=True)
class LoggerContext:
    """What a logger logs: a run or, if several agents train together, one of them."""

    name: str
    """Name of the run folder. With several agents, followed by the settings of this agent."""
    group: str
    """Name that the agents of a run or of a sweep share; "" for a run of one agent."""
    config: Mapping[str, Any]
    """Value of each setting by dotted name: numbers, strings, lists and mappings."""
    run_dir: Path
    env_steps: int
    """Environment steps so far. A run that resumes repeats the steps after its checkpoint."""


class Logger:
    """Base class of loggers. Override the methods that you need.

    With several agents, each agent gets a separate logger. An error in a method is printed once,
    and the run continues.
    """

    def start(self, context: LoggerContext) -> None:
        """Open the logger, also when a run is resumed."""

    def metrics(self, row: Mapping[str, float], step: int) -> None:
        """Log a row of metrics, by their column in metrics.csv, after `step` environment steps."""

    def video(self, path: Path, step: int) -> None:
        """Log a video, an mp4 file, of the agent after `step` environment steps."""

    def close(self) -> None:
        """Close the logger."""


Sink = Logger
"""Its name before version 0.3, kept until 0.4."""


class RunLogger(Protocol):
    """A destination of the rows of all agents of a run."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write one row per agent."""
        ...

    def video(self, path: Path, steps: Sequence[int]) -> None:
        """Write a video of the first agent, after `steps` environment steps of each agent."""
        ...

    def close(self) -> None:
        """Close the logger."""
        ...


class CsvLogger:
    """Writes `metrics.csv`. When a run is resumed, rows after the checkpoint are dropped."""

    def __init__(self, path: Path, resumed_at: int, columns: Sequence[str] = COLUMNS) -> None:
        """Open the file, and keep its rows up to update `resumed_at`."""
        self._path = path
        self._columns = list(columns)
        rows = [row for row in self._read_rows() if row["update"] <= resumed_at]
        self._columns += dict.fromkeys(k for row in rows for k in row if k not in columns)
        self._start(rows)

    def _read_rows(self) -> list[Row]:
        """Return the rows of the file, which is copied if some of them are corrupt."""
        with named_write_errors(self._path):
            return read_csv(self._path, copied=True)

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

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows. New columns are added to the file."""
        if new := dict.fromkeys(key for row in rows for key in row if key not in self._columns):
            self._file.close()
            self._columns += new
            self._start(self._read_rows())
        with named_write_errors(self._path):
            self._writer.writerows(csv_cells(row) for row in rows)
            self._file.flush()

    def video(self, path: Path, steps: Sequence[int]) -> None:
        """Ignore videos."""

    def close(self) -> None:
        """Close the file."""
        with named_write_errors(self._path):
            self._file.close()


class TensorBoardLogger(Logger):
    """Writes TensorBoard events."""

    def __init__(self, folder: Path, resumed_at: int, config: Config | None = None) -> None:
        """Open an event file, and purge entries of older files after step `resumed_at`.

        Args:
            folder: folder of the file.
            resumed_at: environment steps so far.
            config: config to write as text and as hyperparameters.
        """
        from purejaxppo.runs.tensorboard import Writer

        self._folder = folder
        with named_write_errors(folder):
            self.writer = Writer(str(folder), purge_step=resumed_at + 1)
            if config is not None:
                self.writer.add_text("config", f"```yaml\n{to_yaml(config)}```", resumed_at + 1)
                self.writer.add_hyperparameters(hyperparameters(config), HPARAM_METRICS)

    def metrics(self, row: Mapping[str, float], step: int) -> None:
        """Write each metric of a row at its step."""
        with named_write_errors(self._folder):
            for key, value in row.items():
                if "/" in key and math.isfinite(value):  # tensorboardX warns about others
                    self.writer.add_scalar(key, value, step)

    def video(self, path: Path, step: int) -> None:
        """Write a video as an animated image, the only video format that TensorBoard shows."""
        from purejaxppo.video.video import as_gif

        with named_write_errors(self._folder):
            self.writer.add_gif(VIDEO_TAG, as_gif(path), step)

    def close(self) -> None:
        """Flush and close the file."""
        with named_write_errors(self._folder):
            self.writer.close()


def hyperparameters(config: Config) -> dict[str, bool | int | float | str]:
    """Return the settings that affect learning, by dotted name; lists and mappings as text."""
    return {
        name: value if isinstance(value, bool | int | float) else show(value)
        for name, metadata, value in settings(config)
        if metadata["swept"] or name == "seed"
    }


class WandbLogger(Logger):
    """Writes to Weights & Biases."""

    def __init__(self, config: Config, run_id: str, *, several: bool = False) -> None:
        """Store the settings.

        Args:
            config: config of the agent.
            run_id: id of the W&B run, which is continued if it exists.
            several: True if this process has several W&B runs.
        """
        self._config, self._id, self._several = config.logging, run_id, several

    def start(self, context: LoggerContext) -> None:
        """Start or continue the W&B run.

        Raises:
            ValueError: W&B rejects the run, for example without a login.
        """
        import wandb

        config = self._config
        # Only a single run is `wandb.run`, which callbacks may use.
        several: dict[str, Any] = {"reinit": "create_new"} if self._several else {}
        try:
            self._run = wandb.init(
                project=config.wandb_project,
                dir=str(context.run_dir),
                name=context.name,
                group=context.group or None,
                tags=list(config.wandb_tags) or None,
                notes=config.wandb_notes or None,
                id=self._id,
                config=dict(context.config),
                resume="allow",
                **several,
            )
        except wandb.Error as error:
            raise ValueError(f"logging.wandb_project = {config.wandb_project}: {error}") from error

    def metrics(self, row: Mapping[str, float], step: int) -> None:
        """Log a row."""
        self._run.log(dict(row), step=step)

    def video(self, path: Path, step: int) -> None:
        """Upload a video."""
        import wandb

        self._run.log({VIDEO_TAG: wandb.Video(str(path), format="mp4")}, step=step)

    def close(self) -> None:
        """End the W&B run."""
        self._run.finish()


class GuardedLogger(Logger):
    """Calls a logger, and logs its first error as a warning."""

    def __init__(self, logger: Logger, name: str, warned: set[str]) -> None:
        """Wrap a logger.

        Args:
            logger: the logger.
            name: its config field and value.
            warned: names of loggers with an error. All agents share it.
        """
        self._name, self._warned = name, warned
        for method in ("start", "metrics", "video", "close"):
            setattr(self, method, partial(self._call, getattr(logger, method)))

    def _call(self, method: Callable[..., None], *args: Any) -> None:
        try:
            method(*args)
        except Exception as error:
            level = logging.DEBUG if self._name in self._warned else logging.WARNING
            reason = references.described(error)
            problem = f"{self._name}: {method.__name__}: {reason}"
            log.log(level, "%s. metrics.csv is complete, and the run continues.", problem)
            self._warned.add(self._name)


class AgentsLogger:
    """Writes the rows of each agent to a separate logger, or the mean of all agents to one logger.

    Copies that fill a batch of a sweep are not logged separately.
    """

    def __init__(self, loggers: Sequence[Logger], members: Sequence[Config]) -> None:
        """Take one logger per agent, or one for the mean of several agents."""
        self._mean = len(loggers) < len(members)
        self._loggers = {i: loggers[i] for i in ([0] if self._mean else distinct(members))}

    def start(self, contexts: Sequence[LoggerContext]) -> None:
        """Start the loggers, with the result of `contexts_of`."""
        for index, logger in self._loggers.items():
            logger.start(contexts[-1 if self._mean else index])

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows to their agents' loggers, or their mean."""
        for index, logger in self._loggers.items():
            columns = mean_row(rows) if self._mean else rows[index]
            row = {k: x for k, x in columns.items() if k not in MEMBER_COLUMNS}
            logger.metrics(row, int(row["global_step"]))

    def video(self, path: Path, steps: Sequence[int]) -> None:
        """Write a video to the first logger."""
        self._loggers[0].video(path, sum(steps) // len(steps) if self._mean else steps[0])

    def close(self) -> None:
        """Close all loggers, even if others fail."""
        with contextlib.ExitStack() as closing:
            for logger in self._loggers.values():
                closing.callback(logger.close)


class DelayedLogger:
    """Delays rows for a logger that cannot delete them until a checkpoint covers their steps.

    A killed run resumes from its last checkpoint and repeats the steps after it. W&B's steps can
    only increase, so it would keep the rows of the lost steps and drop the repeated rows.
    """

    def __init__(self, logger: RunLogger, saved: Callable[[], int | None]) -> None:
        """Wrap a logger. `saved` returns the environment steps of the last complete checkpoint."""
        self._logger, self._saved = logger, saved
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def write(self, rows: Sequence[Row]) -> None:
        """Store rows, and write those that a checkpoint covers now."""
        mean = sum(int(row["global_step"]) for row in rows) // len(rows)
        self._waiting.append((mean, partial(self._logger.write, rows)))
        self._pass_on()

    def video(self, path: Path, steps: Sequence[int]) -> None:
        """Store a video like a row."""
        mean = sum(steps) // len(steps)
        self._waiting.append((mean, partial(self._logger.video, path, steps)))
        self._pass_on()

    def close(self) -> None:
        """Write the rows that a checkpoint covers, drop the others, and close the logger."""
        self._pass_on()
        self._logger.close()

    def _pass_on(self) -> None:
        saved = self._saved() or 0
        while self._waiting and self._waiting[0][0] <= saved:
            self._waiting.pop(0)[1]()


@dataclass
class Loggers:
    """All loggers of a run."""

    loggers: list[RunLogger] = field(default_factory=list)
    tensorboard: Any = None
    """The SummaryWriter of the first agent or of the mean; None without TensorBoard."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows, one per agent, to each logger."""
        for logger in self.loggers:
            logger.write(rows)

    def video(self, path: Path, steps: Sequence[int]) -> None:
        """Write a video of the first agent to each logger."""
        for logger in self.loggers:
            logger.video(path, steps)

    def close(self) -> None:
        """Close each logger once, even if others fail."""
        with contextlib.ExitStack() as closing:  # in reverse order
            while self.loggers:
                closing.callback(self.loggers.pop().close)


class AgentLoggers(NamedTuple):
    """The custom loggers of one entry of logging.loggers."""

    name: str
    """Field and value of the config."""
    loggers: list[Logger]
    """One per agent, or one for their mean."""


def custom_loggers(config: Config, count: int) -> list[AgentLoggers]:
    """Make the custom loggers of a config, without opening them.

    A class or function is called for each of the `count` agents. An object logs their mean.

    Raises:
        ValueError: a logger cannot be loaded or made, or lacks a method.
    """
    made = []
    for value in config.logging.loggers:
        loaded = references.load(value, extensions.LOGGER.field)
        one = extensions.accepts(extensions.LOGGER, loaded) or count > MOST_RUNS
        loggers = [extensions.make(extensions.LOGGER, value) for _ in range(1 if one else count)]
        made.append(AgentLoggers(f"{extensions.LOGGER.field} = {value}", loggers))
    return made


@dataclass
class Opening:
    """The run whose loggers are opened."""

    config: Config
    run_dir: Path
    members: Sequence[Config]
    """Config of each agent."""
    steps: Sequence[int]
    """Environment steps of each agent so far."""
    saved: Callable[[], int | None]
    """Function that returns the environment steps of the last complete checkpoint."""


def open_loggers(opened: Loggers, run: Opening, custom: Sequence[AgentLoggers] = ()) -> None:
    """Open the loggers of a config. The writer of metrics.csv is opened elsewhere.

    Args:
        opened: each logger is added as soon as it is open. The caller can close them if the next
            one fails to open.
        run: the run.
        custom: result of `custom_loggers`.
    """
    settings, contexts, warned = run.config.logging, contexts_of(run), set[str]()
    if settings.tensorboard:
        boards = _tensorboard(run.run_dir / TENSORBOARD, run.members, run.steps)
        opened.tensorboard = boards[0].writer
        opened.loggers.append(AgentsLogger(boards, run.members))
    if settings.wandb_project:
        ids = wandb_ids(run.run_dir, len(run.members))
        agents = run.members if len(ids) == len(run.members) else [run.config]
        several = len(ids) > 1
        runs = [WandbLogger(x, y, several=several) for x, y in zip(agents, ids, strict=True)]
        AgentsLogger(runs, run.members).start(contexts)  # its errors end the run
        name = f"logging.wandb_project = {settings.wandb_project}"
        combined = AgentsLogger([GuardedLogger(x, name, warned) for x in runs], run.members)
        opened.loggers.append(DelayedLogger(combined, run.saved))
    for name, loggers in custom:
        guarded = [GuardedLogger(logger, name, warned) for logger in loggers]
        combined = AgentsLogger(guarded, run.members)
        combined.start(contexts)
        opened.loggers.append(combined)


def contexts_of(run: Opening) -> list[LoggerContext]:
    """Return the context of each agent and, as the last one, of the run."""
    config, run_dir, steps = run.config, run.run_dir, run.steps
    flat = [flatten(member) for member in run.members]
    differing = [key for key in flat[0] if any(other[key] != flat[0][key] for other in flat)]
    labels = [", ".join(f"{key} = {show(x[key])}" for key in differing) for x in flat]
    group = config.logging.wandb_group or (run_dir.name if len(flat) > 1 else "")
    return [
        LoggerContext(" ".join(filter(None, (run_dir.name, label))), group, settings, run_dir, at)
        for label, settings, at in zip(
            [*labels, ""],
            [as_text(x) for x in (*flat, flatten(config))],
            [*steps, sum(steps) // len(steps)],
            strict=True,
        )
    ]


def wandb_ids(run_dir: Path, count: int) -> list[str]:
    """Return the ids of the W&B runs of a run, one per agent or one for the mean.

    They are stored in the run folder. Runs of version 0.2 with several agents have one.
    """
    file = run_dir / WANDB_ID
    if not file.is_file():
        number = count if count <= MOST_RUNS else 1
        ids = [uuid.uuid4().hex[:12] for _ in range(number)]
        write_whole(file, "\n".join(ids))
    return file.read_text(encoding="utf-8").split()


def distinct(members: Sequence[Config]) -> list[int]:
    """Return the indices of the agents without the copies that fill a batch of a sweep."""
    return [i for i, member in enumerate(members) if i == 0 or member != members[i - 1]]


def _tensorboard(
    folder: Path, members: Sequence[Config], steps: Sequence[int]
) -> list[TensorBoardLogger]:
    """Open a TensorBoard run per agent; for many agents, which would open many files, one run."""
    if len(members) == 1:
        return [TensorBoardLogger(folder, steps[0], members[0])]
    if len(members) > MOST_WRITERS:
        return [TensorBoardLogger(folder / "mean", sum(steps) // len(steps), members[0])]
    boards: list[TensorBoardLogger] = []
    for i, (at, member) in enumerate(zip(steps, members, strict=True)):
        if i in distinct(members):
            name = f"member_{i}_seed_{member.seed}"
            boards.append(TensorBoardLogger(folder / name, at, member))
        else:  # a copy that fills a batch, which is not logged
            boards.append(boards[-1])
    return boards
