"""Plots of learning curves."""

import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from purejaxppo.config.schema import Config
from purejaxppo.interrupts import atomic_write
from purejaxppo.runs.rows import Row, read_csv

log = logging.getLogger("purejaxppo")


def confidence(values: np.ndarray) -> np.ndarray:
    """Return half the width of the mean's 95 % confidence interval (Student's t) over axis 0."""
    count = len(values)
    if count < 2:
        return np.full(values.shape[1:], np.nan)
    from scipy import stats  # slow to import

    quantile = stats.t.ppf(0.975, count - 1)
    return quantile * values.std(axis=0, ddof=1) / math.sqrt(count)


def member_curves(rows: Iterable[Row], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (environment steps [P], values [agents, P]) of a column.

    P counts the updates for which all agents have a row with this column.
    """
    table: dict[float, dict[float, Row]] = {}
    for row in rows:
        if key in row:
            table.setdefault(row["update"], {})[row.get("member", 0)] = row
    size = max((len(members) for members in table.values()), default=0)
    points = [members for _, members in sorted(table.items()) if len(members) == size]
    steps = [np.mean([row["global_step"] for row in members.values()]) for members in points]
    values = [[members[i][key] for i in sorted(members)] for members in points]
    return np.array(steps), np.array(values).reshape(len(points), size).T


def has_returns(rows: Iterable[Row]) -> bool:
    """Return True if any row has a return."""
    keys = "charts/episodic_return", "eval/return_mean"
    return any(math.isfinite(row.get(key, math.nan)) for row in rows for key in keys)


def draw_curve(config: Config, members: Sequence[Config], run_dir: Path) -> str:
    """Plot the learning curve of a run; return the reason if that fails, otherwise ""."""
    alike = len({member.ppo for member in members}) == 1
    size, seed = len(members), config.seed
    several = f"{size} seeds from {seed}" if alike else f"{size} agents with different settings"
    title = f"{config.env.name}, {several if size > 1 else f'seed {seed}'}"
    path, evaluated = run_dir / "learning_curve.png", config.eval.policy
    try:
        rows = read_csv(run_dir / "metrics.csv")
        if not has_returns(rows):
            return "no episode has ended"
        plot_returns(rows, path, title, evaluated=evaluated, band=alike)
    except Exception as error:  # the run has ended, and its results are saved
        log.debug("no learning curve", exc_info=True)
        return f"{type(error).__name__}: {error}"
    return ""


def plot_returns(
    rows: Iterable[Row], path: Path, title: str, *, evaluated: str, band: bool = True
) -> None:
    """Plot the learning curve of a run: training and evaluation return over environment steps.

    With several agents, the plot shows each agent, the mean, and its confidence interval. With one
    agent, it shows the standard deviation over the episodes of each evaluation.

    Args:
        rows: rows of metrics.csv.
        path: path of the PNG file.
        title: title of the plot.
        evaluated: policy of the evaluations, "deterministic" or "stochastic".
        band: whether to plot the confidence interval of several agents.
    """
    rows = list(rows)
    figure, axes = figure_over_steps(title, "episodic return (sum of rewards)")
    for key, label, color in (
        ("charts/episodic_return", "training (stochastic policy)", "C0"),
        ("eval/return_mean", f"evaluation ({evaluated} policy)", "C1"),
    ):
        steps, values = member_curves(rows, key)
        if not values.size:
            continue
        mean, half, band_label = values.mean(axis=0), confidence(values), "95 % confidence band"
        if len(values) > 1:
            thin = max(0.08, 0.5 / len(values) ** 0.5)
            axes.plot(steps, values.T, color=color, lw=0.6, alpha=thin)
        elif key.startswith("eval"):
            (half,), band_label = member_curves(rows, "eval/return_std")[1], "± std over episodes"
        marker = "." if len(values) == 1 and key.startswith("eval") else ""
        legend = f"{label}: mean of {len(values)}" if len(values) > 1 else label
        axes.plot(steps, mean, color=color, lw=2, marker=marker, label=legend)
        if band and np.isfinite(half).any():
            style = {"color": color, "alpha": 0.25, "lw": 0, "label": band_label}
            axes.fill_between(steps, mean - half, mean + half, **style)
    save_figure(figure, path)


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
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure, path: Path) -> None:
    """Write a figure to a PNG file atomically, with a legend in each axes that has labels."""
    for axes in figure.axes:
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best")
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=130, format="png")
