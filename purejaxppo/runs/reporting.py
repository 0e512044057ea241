"""Where a run's numbers go: rows from metrics, and the sinks that take them.

A row is a flat dict of names that dashboards know to numbers. Sinks import their library lazily.
"""

import contextlib
import csv
import math
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from purejaxppo.types import Metrics

COLUMNS = (
    "global_step",
    "update",
    "seconds",
    "charts/episodic_return",
    "charts/episodic_length",
    "charts/episodes",
    "charts/diverged",
    "charts/finite",
    "charts/SPS",
    "charts/learning_rate",
    "charts/lag",
    "losses/policy_loss",
    "losses/value_loss",
    "losses/entropy",
    "losses/approx_kl",
    "losses/clipfrac",
    "losses/explained_variance",
    "losses/grad_norm",
    "losses/epochs",
    "losses/skipped",
    "eval/return_mean",
    "eval/return_std",
    "eval/return_min",
    "eval/return_max",
    "eval/length_mean",
    "eval/diverged",
)

MEMBER_COLUMNS = ("member", "seed")
"""Which agent a row is of, where many train side by side."""

Row = dict[str, float]


MOST_DIVERGED = 0.01
"""Of an agent's episodes in training: beyond it the returns of the others are no score."""


class Stopped(RuntimeError):
    """What stands beside a run's training failed; the message is a sentence for its user."""


def metrics_row(metrics: Metrics) -> Row:
    """Means over the updates of a chunk; `metrics` holds sums, as numpy or device scalars."""
    updates = max(int(metrics.updates), 1)
    episodes = metrics.episodes
    row: Row = {
        "charts/episodes": int(episodes.count),
        "charts/diverged": int(episodes.diverged),
        "charts/finite": int(is_finite(metrics)),
    }
    if metrics.explained:
        row["losses/explained_variance"] = float(metrics.explained_variance) / int(
            metrics.explained
        )
    if episodes.count:
        row["charts/episodic_return"] = float(episodes.return_sum) / int(episodes.count)
        row["charts/episodic_length"] = int(episodes.length_sum) / int(episodes.count)
    for name, value in metrics.losses._asdict().items():
        row[f"losses/{name}"] = float(value) / updates
    for name, value in metrics.extras.items():
        row[name] = float(value) / updates
    return row


def is_finite(metrics: Metrics) -> bool:
    """Whether the agent was finite throughout: parameters, statistics, and what it answered."""
    return int(metrics.finite) == int(metrics.updates)


def eval_row(returns: np.ndarray, lengths: np.ndarray) -> Row:
    """Statistics of evaluation episodes, NaN where one diverged: its return is not known."""
    return {
        "eval/diverged": int(np.isnan(returns).sum()),
        "eval/return_mean": float(returns.mean()),
        "eval/return_std": float(returns.std()),
        "eval/return_min": float(returns.min()),
        "eval/return_max": float(returns.max()),
        "eval/length_mean": float(lengths.mean()),
    }


def mean_row(rows: Sequence[Row]) -> Row:
    """The mean over rows of each number, over those rows that have it."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: float(np.mean([row[key] for row in rows if key in row])) for key in keys}


class Sink(Protocol):
    """Takes rows."""

    def write(self, row: Row) -> None:
        """One row of metrics."""
        ...

    def close(self) -> None:
        """No more rows."""
        ...


class CsvSink:
    """`metrics.csv`: one row per log interval, flushed; resuming drops rows after the save."""

    def __init__(self, path: Path, resumed_at: int, columns: Sequence[str] = COLUMNS) -> None:
        """Opens the file, keeping rows up to update `resumed_at`."""
        kept = [row for row in read_csv(path) if row["update"] <= resumed_at]
        partial = path.with_name(f".{path.name}")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(_cells(row) for row in kept)
        partial.replace(path)
        self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, columns)

    def write(self, row: Row) -> None:
        """Appends a row."""
        self._writer.writerow(_cells(row))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _cells(row: Row) -> dict[str, str]:
    return {key: f"{value:.10g}" for key, value in row.items()}


def read_csv(path: Path) -> list[Row]:
    """The rows of a metrics.csv, without empty cells and cut lines; [] if there is no file."""
    rows = []
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                with contextlib.suppress(ValueError):  # a line that a full disk has cut
                    rows.append({key: float(value) for key, value in row.items() if key and value})
    return [row for row in rows if {"global_step", "update"} <= row.keys()]


class TensorBoardSink:
    """TensorBoard events."""

    def __init__(self, folder: Path, resumed_at: int) -> None:
        """Opens an event file; what older files say after `resumed_at` is purged."""
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=resumed_at + 1)

    def write(self, row: Row) -> None:
        """Writes each number at its step."""
        step = int(row["global_step"])
        for key, value in row.items():
            if "/" in key and math.isfinite(value):  # of others tensorboardX says what it found
                self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        """Flushes and closes."""
        self._writer.close()


class WandbSink:
    """Weights & Biases."""

    def __init__(self, project: str, run_dir: Path, config: dict[str, Any]) -> None:
        """Starts the W&B run, or continues the one whose id the run folder keeps.

        Raises:
            ValueError: W&B refuses, for want of a login say.
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
        """Logs a row."""
        self._run.log(row, step=int(row["global_step"]))

    def close(self) -> None:
        """Ends the W&B run."""
        self._run.finish()


class HeldBack:
    """Passes rows on once a save covers them, to a sink that cannot take them back.

    A run that is killed goes on from its last save, and makes what came after it anew. W&B's steps
    only increase: it would drop those rows, and keep the ones of what has been lost.
    """

    def __init__(self, sink: Sink, saved: Callable[[], int | None]) -> None:
        """`saved` says how many steps the last save that is complete has behind it."""
        self._sink, self._saved = sink, saved
        self._rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Keeps a row, and passes on what has been saved by now."""
        self._rows.append(row)
        self._pass_on()

    def close(self) -> None:
        """Passes on what has been saved, drops the rest, which will be made again, and closes."""
        self._pass_on()
        self._sink.close()

    def _pass_on(self) -> None:
        saved = self._saved() or 0
        while self._rows and int(self._rows[0]["global_step"]) <= saved:
            self._sink.write(self._rows.pop(0))


class PerMember:
    """A sink for each member."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        """In the members' order."""
        self._sinks = sinks

    def write(self, row: Row) -> None:
        """To the sink of the row's member."""
        self._sinks[int(row["member"])].write(row)

    def close(self) -> None:
        """Closes them all."""
        for sink in self._sinks:
            sink.close()


class MeanOfMembers:
    """Gives a sink the mean over the members of each round of rows."""

    def __init__(self, sink: Sink, num_members: int) -> None:
        """Of so many rows."""
        self._sink, self._num_members = sink, num_members
        self._rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Collects a row, and passes the mean on when it was the last one."""
        self._rows.append(row)
        if len(self._rows) == self._num_members:
            mean = mean_row(self._rows)
            self._sink.write({k: x for k, x in mean.items() if k not in MEMBER_COLUMNS})
            self._rows = []

    def close(self) -> None:
        """Closes the sink."""
        self._sink.close()


class Console:
    """The terminal: a live bar where there is one, a line now and then where there is not."""

    LINES = 20

    def __init__(self, total: int, *, quiet: bool = False, lines: bool = False) -> None:
        """A run of `total` steps; `quiet` shows nothing, `lines` no bar on a terminal either."""
        from rich.console import Console as RichConsole

        self._console = RichConsole(highlight=False, soft_wrap=True, quiet=quiet)
        self._live = self._console.is_terminal and not quiet and not lines
        self._total, self._next_line = total, 0.0
        self._return = math.nan
        self._bar = None
        if self._live:
            from rich import progress

            self._bar = progress.Progress(
                progress.BarColumn(bar_width=None),
                progress.TextColumn("{task.percentage:>3.0f}%"),
                progress.TextColumn("{task.fields[text]}"),
                progress.TimeRemainingColumn(compact=True),
                progress.TextColumn("left"),
                console=self._console,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task("train", total=total, text="")

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, markup=False)

    def start(self) -> None:
        """Shows the bar."""
        if self._bar:
            self._bar.start()

    def progress(self, done: int, env_steps: int, sps: float, row: Row) -> None:
        """How far the run is: `done` of its total, and a row that may hold a newer return."""
        self._return = row.get("charts/episodic_return", self._return)
        value = "-" if math.isnan(self._return) else f"{self._return:.1f}"
        text = f"{short(env_steps)} steps  {short(sps)} steps/s  return {value}"
        if self._bar:
            self._bar.update(self._task, completed=done, text=text)
        elif done >= self._next_line:
            self._next_line = done + self._total / self.LINES
            left = duration((self._total - done) / max(sps, 1e-9))
            self.say(f"{done / self._total:4.0%}  {text}  {left} left")

    def stop(self) -> None:
        """Takes the bar down, leaving its last state."""
        if self._bar:
            self._bar.stop()


def short(x: float) -> str:
    """1234567 -> '1.23M'."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= limit:
            return f"{x / limit:.3g}{suffix}"
    return f"{x:.3g}"


def duration(seconds: float) -> str:
    """83.4 -> '1:23'."""
    if not math.isfinite(seconds):
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def plot_curve(rows: Iterable[Row], path: Path, title: str, *, evaluated: str) -> None:
    """Draws the learning curve of a run: training and evaluation return over environment steps.

    Args:
        rows: of metrics.csv.
        path: of the picture.
        title: above it.
        evaluated: the kind of policy in evaluations, deterministic or stochastic.
    """
    rows = list(rows)
    figure, axes = _returns_figure(title)
    for key, label, style in (
        ("charts/episodic_return", "training (stochastic policy)", {"lw": 1.2, "color": "C0"}),
        ("eval/return_mean", f"evaluation ({evaluated} policy)", {"color": "C1", "marker": "."}),
    ):
        points = [(row["global_step"], row) for row in rows if key in row]
        if not points:
            continue
        steps = [step for step, _ in points]
        values = [row[key] for _, row in points]
        axes.plot(steps, values, label=label, **style)
        if key.startswith("eval"):
            std = np.array([row["eval/return_std"] for _, row in points])
            axes.fill_between(
                steps, values - std, values + std, color="C1", alpha=0.2, lw=0, label="± std"
            )
    save_figure(figure, path)


def confidence(values: np.ndarray) -> np.ndarray:
    """Half the width of the 95 % confidence interval of the mean over axis 0, by Student's t."""
    from scipy import stats

    count = len(values)
    if count < 2:
        return np.full(values.shape[1:], np.nan)
    quantile = stats.t.ppf(0.975, count - 1)
    return quantile * values.std(axis=0, ddof=1) / math.sqrt(count)


def member_curves(rows: Iterable[Row], key: str) -> tuple[np.ndarray, np.ndarray]:
    """(environment steps [P], values [members, P]) of a number at the P updates that all have."""
    table: dict[float, dict[float, Row]] = {}
    for row in rows:
        if key in row:
            table.setdefault(row["update"], {})[row["member"]] = row
    size = max((len(members) for members in table.values()), default=0)
    points = [members for _, members in sorted(table.items()) if len(members) == size]
    steps = [np.mean([row["global_step"] for row in members.values()]) for members in points]
    values = [[members[i][key] for i in sorted(members)] for members in points]
    return np.array(steps), np.array(values).reshape(len(points), size).T


def plot_members(
    rows: Iterable[Row], path: Path, title: str, *, evaluated: str, band: bool = True
) -> None:
    """Draws the returns of a run of many agents: each, and of equal ones the mean and its band."""
    rows = list(rows)
    figure, axes = _returns_figure(title)
    for key, label, color in (
        ("charts/episodic_return", "training (stochastic policy)", "C0"),
        ("eval/return_mean", f"evaluation ({evaluated} policy)", "C1"),
    ):
        steps, values = member_curves(rows, key)
        if not values.size:
            continue
        mean, half = values.mean(axis=0), confidence(values)
        axes.plot(steps, values.T, color=color, lw=0.6, alpha=max(0.08, 0.5 / len(values) ** 0.5))
        axes.plot(steps, mean, color=color, lw=2, label=f"{label}: mean of {len(values)}")
        if band:
            style = {"color": color, "alpha": 0.3, "lw": 0, "label": "95 % confidence band"}
            axes.fill_between(steps, mean - half, mean + half, **style)
    save_figure(figure, path)


def _returns_figure(title: str):
    """A figure of returns over environment steps, and its axes."""
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episodic return (sum of rewards)")
    axes.set_title(title)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 0), useMathText=True)
    axes.grid(alpha=0.3)
    return figure, axes


def new_figure(width: float, height: float):
    """An empty figure of so many inches, without a display."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure, path: Path) -> None:
    """Writes a picture that is there whole or not at all; legends where something has a label."""
    for axes in figure.axes:
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best")
    partial = path.with_name(f".{path.name}")
    figure.savefig(partial, dpi=130, format="png")
    partial.replace(path)


def fail(message: object, code: int = 2) -> int:
    """Says what is wrong, in one sentence on stderr; returns the exit code."""
    print(f"error: {message}", file=sys.stderr)
    return code
