"""Plots of learning curves."""

import io
import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from purejaxppo.config.hints import did_you_mean
from purejaxppo.config.schema import Config
from purejaxppo.interrupts import atomic_write
from purejaxppo.runs.rows import Row, read_csv

log = logging.getLogger("purejaxppo")

RETURN = "episodic return (sum of rewards)"
"""Label of an axis of returns."""
MOST_INSIDE = 4
"""Largest number of entries of a legend inside the axes."""


def confidence(values: np.ndarray) -> np.ndarray:
    """Return half the width of the mean's 95 % confidence interval (Student's t) over axis 0.

    Masked values do not count. The result is NaN for less than two values.
    """
    from scipy import stats  # slow to import

    masked = np.ma.asarray(values)
    count = masked.count(axis=0)
    free = np.maximum(count - 1, 1)
    squares = ((masked - masked.mean(axis=0)) ** 2).sum(axis=0)
    std_error = np.sqrt(np.ma.filled(squares, np.nan) / free / np.maximum(count, 1))
    return np.where(count > 1, stats.t.ppf(0.975, free) * std_error, np.nan)


def member_curves(rows: Iterable[Row], key: str) -> tuple[np.ndarray, np.ma.MaskedArray]:
    """Return (environment steps [P], values [agents, P]) of a column.

    P counts the updates for which any agent has a value, until the rows of one agent end. An agent
    without a value, because none of its episodes ended, keeps its last one. It is masked before the
    first.
    """
    table: dict[float, dict[float, Row]] = {}
    ends: dict[float, float] = {}
    for row in rows:
        agent = row.get("member", 0)
        ends[agent] = max(ends.get(agent, 0), row["update"])
        if key in row:
            table.setdefault(row["update"], {})[agent] = row
    end = min(ends.values(), default=0)
    points = [of_agents for update, of_agents in sorted(table.items()) if update <= end]
    steps = [np.mean([row["global_step"] for row in of_agents.values()]) for of_agents in points]
    values = np.ma.masked_all((len(ends), len(points)))
    for index, agent in enumerate(sorted(ends)):
        for point, of_agents in enumerate(points):
            if agent in of_agents:
                values[index, point:] = of_agents[agent][key]
    return np.array(steps), values


def metric_curves(rows: Sequence[Row], metric: str) -> tuple[np.ndarray, np.ma.MaskedArray]:
    """Return `member_curves` of a metric.

    Raises:
        ValueError: no row has the metric.
    """
    steps, values = member_curves(rows, metric)
    if not values.size:
        names = dict.fromkeys(name for row in rows for name in row)
        raise ValueError(f"{metric}: unknown metric. {did_you_mean(metric, names)}")
    return steps, values


def has_returns(rows: Iterable[Row]) -> bool:
    """Return True if any row has a return."""
    keys = "charts/episodic_return", "eval/return_mean"
    return any(math.isfinite(row.get(key, math.nan)) for row in rows for key in keys)


def are_seeds(members: Sequence[Config]) -> bool:
    """Return True if the agents of a run differ only in their seeds."""
    return len({member.ppo for member in members}) == 1


def title_of(config: Config, members: Sequence[Config]) -> str:
    """Return the title of a run's plots: task and seeds."""
    size, seed = len(members), config.seed
    alike = are_seeds(members)
    several = f"{size} seeds from {seed}" if alike else f"{size} agents with different settings"
    return f"{config.env.name}, {several if size > 1 else f'seed {seed}'}"


def draw_curve(config: Config, members: Sequence[Config], run_dir: Path) -> str:
    """Plot the learning curve of a run; return the reason if that fails, otherwise ""."""
    try:
        rows = read_csv(run_dir / "metrics.csv")
        if not has_returns(rows):
            return "no episode has ended"
        figure, axes = figure_over_steps(title_of(config, members), RETURN)
        draw_returns(axes, rows, evaluated=config.eval.policy, band=are_seeds(members))
        save_figure(figure, run_dir / "learning_curve.png")
    except Exception as error:  # the run has ended, and its results are saved
        log.debug("no learning curve", exc_info=True)
        return f"{type(error).__name__}: {error}"
    return ""


def draw_returns(axes: Any, rows: Sequence[Row], *, evaluated: str, band: bool = True) -> None:
    """Draw the learning curve of a run: training and evaluation return over environment steps.

    With several agents, draw each agent, the mean, and its confidence interval. With one agent,
    draw the standard deviation over the episodes of each evaluation.

    Args:
        axes: axes of matplotlib.
        rows: rows of metrics.csv.
        evaluated: policy of the evaluations, "deterministic" or "stochastic".
        band: whether to draw the confidence interval of several agents.
    """
    for key, label, color in (
        ("charts/episodic_return", "training (stochastic policy)", "C0"),
        ("eval/return_mean", f"evaluation ({evaluated} policy)", "C1"),
    ):
        steps, values = member_curves(rows, key)
        if not values.size:
            continue
        if len(values) == 1 and key.startswith("eval"):
            (half,) = member_curves(rows, "eval/return_std")[1]
            draw_band(axes, steps, values[0], half, color, "± std over episodes")
            axes.plot(steps, values[0], color=color, lw=2, marker=".", label=label)
        else:
            draw_agents(axes, steps, values, color=color, label=label, band=band)


def draw_agents(
    axes: Any,
    steps: np.ndarray,
    values: np.ndarray,
    *,
    color: str | None,
    label: str,
    band: bool = True,
    each: bool = True,
) -> None:
    """Draw the mean of a metric over agents and, of several, each agent and a confidence band.

    Args:
        axes: axes of matplotlib.
        steps: environment steps [P].
        values: values [agents, P].
        color: color of the lines; None: the next color of the axes.
        label: label of the mean.
        band: whether to draw the confidence band.
        each: whether to draw a thin line per agent.
    """
    mean, many = values.mean(axis=0), len(values) > 1
    text = f"{label}: mean of {len(values)}" if many and each else label
    (line,) = axes.plot(steps, mean, color=color, lw=2, zorder=3, label=text)
    color = line.get_color()
    if many and each:
        thin = max(0.08, 0.5 / len(values) ** 0.5)
        axes.plot(steps, values.T, color=color, lw=0.6, alpha=thin)
    if band:
        limits = axes.dataLim.frozen()  # the band of two seeds is much wider than their returns
        draw_band(axes, steps, mean, confidence(values), color, "95 % confidence over seeds")
        axes.dataLim.set(limits)


def draw_band(
    axes: Any, steps: np.ndarray, mean: np.ndarray, half: np.ndarray, color: str, label: str
) -> None:
    """Draw the band mean ± half, unless all of `half` is NaN. The legend names it once."""
    if np.isfinite(half).any():
        known = axes.get_legend_handles_labels()[1]
        style = {"color": color, "alpha": 0.25, "lw": 0, "label": "" if label in known else label}
        axes.fill_between(steps, mean - half, mean + half, **style)


def figure_over_steps(title: str, label: str):
    """Return an empty figure and its axes, for a quantity over environment steps."""
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    axes.set_xlabel("environment steps")
    axes.set_ylabel(label)
    axes.set_title(title)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 0), useMathText=True)
    axes.grid(alpha=0.3)
    return figure, axes


def new_figure(width: float, height: float):
    """Return an empty figure of `width` x `height` inches. It needs no display."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure that notebooks display without pyplot."""

        def _repr_png_(self) -> bytes:
            return png(self)

    return NotebookFigure(figsize=(width, height), layout="constrained")


def png(figure: Any) -> bytes:
    """Return a figure as a PNG file, with a legend in each axes that has labels."""
    file = io.BytesIO()
    with_legends(figure).savefig(file, dpi=130, format="png")
    return file.getvalue()


def with_legends(figure: Any) -> Any:
    """Add a legend to each axes of a figure that has labels, and return the figure.

    Lines come before bands. A long legend is below the axes, where it hides no curve, if the
    figure's layout makes room for it.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    makes_room = isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine)
    for axes in figure.axes:
        entries = sorted(
            zip(*axes.get_legend_handles_labels(), strict=True),
            key=lambda entry: not isinstance(entry[0], Line2D),
        )
        if len(entries) > MOST_INSIDE and makes_room:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2}
            axes.legend(*zip(*entries, strict=True), **below)
        elif entries:
            axes.legend(*zip(*entries, strict=True), loc="best")
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to a PNG file atomically, with a legend in each axes that has labels."""
    with atomic_write(path) as partial:
        partial.write_bytes(png(figure))
