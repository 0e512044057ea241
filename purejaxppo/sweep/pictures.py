"""Figures of a sweep: scores by setting, and curves of a population."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from purejaxppo.config.hints import format_number
from purejaxppo.runs.curves import confidence, new_figure, save_figure
from purejaxppo.runs.population import Rules
from purejaxppo.runs.rows import Row
from purejaxppo.sweep.scores import Result
from purejaxppo.sweep.search_space import show


def figure_of(results: Sequence[Result], keys: Sequence[str], title: str) -> Any:
    """Plot a line for one key, a heat map for a full grid of two, otherwise parallel axes."""
    keys = [key for key in keys if len({show(r.setting[key]) for r in results}) > 1] or keys[:1]
    levels = [list(dict.fromkeys(show(r.setting[key]) for r in results)) for key in keys]
    cells = {tuple(show(r.setting[key]) for key in keys) for r in results}
    is_full_grid = math.prod(map(len, levels)) == len(results) == len(cells)
    width = max(7, 1.5 * len(keys)) if len(keys) > 2 else 7
    figure = new_figure(width, 4.8)
    axes = figure.add_subplot()
    if len(keys) == 1:
        line(axes, results, keys[0])
    elif len(keys) == 2 and is_full_grid:
        heat_map(figure, axes, results, keys, levels)
    else:
        parallel_axes(figure, axes, results, keys)
    axes.set_title(title)
    return figure


def plot(path: Path, results: Sequence[Result], keys: Sequence[str], title: str) -> None:
    """Write the figure of a sweep to a PNG file."""
    save_figure(figure_of(results, keys, title), path)


def line(axes, results: Sequence[Result], key: str) -> None:
    """Plot the score over one setting, with the confidence interval of the mean."""
    values = [r.setting[key] for r in results]
    numeric = all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)
    order = np.argsort(values) if numeric else np.arange(len(values))
    x = np.array(values)[order] if numeric else np.arange(len(values))
    means = np.array([results[i].score for i in order])
    half = np.array([float(confidence(np.array(results[i].scores))) for i in order])
    axes.errorbar(x, means, yerr=np.nan_to_num(half), marker="o", capsize=3)
    if numeric and is_log(x):
        axes.set_xscale("log")
    elif not numeric:
        axes.set_xticks(x, [show(setting) for setting in values])
    axes.set_xlabel(key)
    if np.isfinite(means).any():
        best = int(np.nanargmax(means))
        axes.plot(x[best], means[best], "o", color="C1", markersize=9, zorder=3, label="best")
    axes.set_ylabel("return, mean ± 95 % confidence over seeds")
    axes.grid(alpha=0.3)


def heat_map(figure, axes, results, keys: Sequence[str], levels: Sequence[list[str]]) -> None:
    """Plot the score over two settings as a heat map, with the best cell framed."""
    from matplotlib.patches import Rectangle

    table = np.full((len(levels[0]), len(levels[1])), np.nan)
    half = table.copy()
    for r in results:
        row, column = (
            level.index(show(r.setting[k])) for k, level in zip(keys, levels, strict=True)
        )
        table[row, column] = r.score
        half[row, column] = float(confidence(np.array(r.scores)))
    image = axes.imshow(table, aspect="auto", origin="lower", cmap="viridis")
    axes.set_yticks(range(len(levels[0])), levels[0])
    axes.set_xticks(range(len(levels[1])), levels[1])
    axes.set_ylabel(keys[0])
    axes.set_xlabel(keys[1])
    middle = (np.nanmin(table) + np.nanmax(table)) / 2 if np.isfinite(table).any() else 0.0
    for (row, column), mean in np.ndenumerate(table):
        color = "white" if mean < middle else "black"
        text = cell_text(mean, float(half[row, column]))
        axes.text(column, row, text, ha="center", va="center", color=color)
    if np.isfinite(table).any():
        row, column = divmod(int(np.nanargmax(table)), table.shape[1])
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="C1", lw=4, clip_on=False))
    label = "return, mean ± 95 % confidence over seeds; best framed"
    figure.colorbar(image, ax=axes, label=label)


def cell_text(mean: float, half: float) -> str:
    """Format a score with half its confidence interval, if it has several seeds."""
    text = "no score" if math.isnan(mean) else format_number(mean)
    return text if math.isnan(half) else f"{text}\n± {format_number(half, mean)}"


def parallel_axes(figure, axes, results: Sequence[Result], keys: Sequence[str]) -> None:
    """Plot a line per setting over all varying keys, coloured by score, with the best on top."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scores = np.array([r.score for r in results])
    finite = scores[np.isfinite(scores)]
    norm = Normalize(*((finite.min(), finite.max()) if finite.size else (0, 1)))
    colors = ScalarMappable(norm, "viridis")
    columns = [heights([r.setting[key] for r in results]) for key in keys]
    for i in np.argsort(np.nan_to_num(scores, nan=-np.inf)):
        best = i == int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))
        axes.plot(
            range(len(keys)),
            [column[0][i] for column in columns],
            color=colors.to_rgba(scores[i]) if np.isfinite(scores[i]) else "0.8",
            lw=3 if best else 1,
            alpha=1 if best else 0.6,
        )
    if finite.size:
        best_scores = results[int(np.nanargmax(scores))].scores
        half = float(confidence(np.array(best_scores)))
        text = cell_text(float(finite.max()), half).replace("\n", " ")
        axes.set_xlabel(f"best setting (thick): {text} (95 % confidence over seeds)")
    for x, (_, marks) in enumerate(columns):
        axes.axvline(x, color="0.3", lw=0.8)
        for height, text in marks:
            axes.text(x, height, f" {text}", fontsize=8, va="center")
    axes.set_xticks(range(len(keys)), keys, rotation=15, ha="right")
    axes.set_yticks([])
    axes.set_xlim(-0.1, len(keys) - 0.6)
    figure.colorbar(colors, ax=axes, label="return, mean over seeds")


def heights(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return the positions of values on an axis from 0 to 1, and its tick labels."""
    if all(isinstance(x, int | float) and not isinstance(x, bool) for x in values):
        x = np.asarray(values, float)
        scaled = np.log(x) if is_log(x) else x
        low, span = scaled.min(), max(np.ptp(scaled), 1e-12)
        ends = [(0.0, show(float(x.min()))), (1.0, show(float(x.max())))]
        return list((scaled - low) / span), ends
    levels = list(dict.fromkeys(map(show, values)))
    places = {level: i / max(len(levels) - 1, 1) for i, level in enumerate(levels)}
    return [places[show(x)] for x in values], [(y, level) for level, y in places.items()]


def is_log(x: np.ndarray) -> bool:
    """Return True if the axis of these numbers should be logarithmic.

    All must be positive, and the largest over 20 times the smallest.
    """
    return bool(np.min(x) > 0 and np.max(x) / np.min(x) > 20)


def plot_population(
    path: Path, curves: Mapping[int, Sequence[Row]], best: int, rules: Rules, title: str
) -> None:
    """Plot the agents' returns and numbers over environment steps, with agent `best` on top."""
    keys = ["eval/return_mean", *(f"population/{name}" for name, _, _ in rules.bounds)]
    if not any(keys[0] in row for rows in curves.values() for row in rows):
        keys[0] = "charts/episodic_return"
    figure = new_figure(7, 2.4 * len(keys))
    panels = np.atleast_1d(figure.subplots(len(keys), sharex=True))
    for axes, key in zip(panels, keys, strict=True):
        for index, rows in curves.items():
            points = [(row["global_step"], row[key]) for row in rows if key in row]
            style = {"color": "C1", "lw": 2, "zorder": 3} if index == best else {"color": "0.6"}
            axes.plot(*np.array(points).reshape(-1, 2).T, **{"lw": 0.8, **style})
        low = min((row[key] for rows in curves.values() for row in rows if key in row), default=0)
        if key.startswith("population/") and low > 0:
            axes.set_yscale("log")
        axes.set_ylabel("return" if key == keys[0] else key.removeprefix("population/"))
        axes.grid(alpha=0.3)
    panels[0].set_title(title)
    panels[-1].set_xlabel("environment steps of each agent")
    save_figure(figure, path)
