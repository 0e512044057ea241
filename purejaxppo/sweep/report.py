"""Results of a sweep: a score per setting, a table, a picture, and the best as a config."""

import csv
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.config.files import apply_overrides, from_dict, to_yaml, write_whole
from purejaxppo.config.schema import Config
from purejaxppo.runs.curves import confidence, new_figure, save_figure
from purejaxppo.runs.population import Rules, final_numbers
from purejaxppo.runs.rows import MOST_DIVERGED, Row, read_csv
from purejaxppo.sweep.packing import PLAN, Group
from purejaxppo.sweep.search_space import Setting, structure

SHOWN = 20
"""Settings in the table on the terminal."""


class Result(NamedTuple):
    """Scores and runs of a setting."""

    setting: Setting
    config: Config
    scores: tuple[float, ...]
    """Score of each seed; NaN where no episode was evaluated."""
    places: tuple[tuple[str, int], ...]
    """The run folder and the index in it, of each seed."""

    @property
    def score(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.scores))


def score(
    groups: Sequence[Group], tried: Sequence[Setting], configs: Sequence[Config], objective: str
) -> list[Result]:
    """The results of settings whose agents were trained in `groups`."""
    found: dict[Any, tuple[float, tuple[str, int]]] = {}
    for group in groups:
        sizes = json.loads((Path(group.folder) / PLAN).read_text(encoding="utf-8"))
        places = [
            (str(Path(group.folder) / f"batch-{batch:03d}"), index)
            for batch, size in enumerate(sizes)
            for index in range(size)
        ]
        curves = {folder: read_members(folder) for folder, _ in places}
        for member, (folder, index) in zip(group.members, places, strict=False):
            worth = value(curves[folder].get(index, []), objective)
            found[identity(member)] = (worth, (folder, index))
    results = []
    for setting, config in zip(tried, configs, strict=True):
        seeds = [dataclasses.replace(config, seed=config.seed + i) for i in range(config.num_seeds)]
        scores, where = zip(*(found[identity(seed)] for seed in seeds), strict=True)
        results.append(Result(dict(setting), config, scores, where))
    return results


def identity(config: Config) -> Any:
    """A key that identifies an agent of a sweep."""
    config = dataclasses.replace(config, num_seeds=1, num_shards=1)
    return structure(config), config.ppo, config.seed


def read_members(folder: str) -> dict[int, list[Row]]:
    """The rows of a run of many agents, by agent."""
    rows: dict[int, list[Row]] = {}
    for row in read_csv(Path(folder) / "metrics.csv"):
        rows.setdefault(int(row["member"]), []).append(row)
    return rows


def value(rows: Sequence[Row], objective: str) -> float:
    """Scores an agent by the evaluations in its rows or, without these, by its training returns.

    The score is NaN for an agent that is not finite at its end or whose evaluation diverged; the
    best of its evaluations, of which there is a save, still counts. A row of training returns is
    NaN, too, if more than `MOST_DIVERGED` of its episodes diverged and have no return.
    """
    broken = bool(rows) and rows[-1].get("charts/finite", 1.0) == 0
    trained = [training_return(row) for row in rows if "charts/episodic_return" in row]
    evaluated = [row["eval/return_mean"] for row in rows if "eval/return_mean" in row]
    for returns in (evaluated, trained):
        if returns:
            if objective == "best" and returns is evaluated:
                return max((x for x in returns if not math.isnan(x)), default=math.nan)
            mean = float(np.mean(returns))
            known = {"last": returns[-1], "best": max(returns), "mean": mean}[objective]
            return math.nan if broken else known
    return math.nan


def training_return(row: Row) -> float:
    """The mean return of a row's episodes; NaN where too many of them diverged to be counted."""
    ended, diverged = row.get("charts/episodes", 0.0), row.get("charts/diverged", 0.0)
    few = diverged <= MOST_DIVERGED * (ended + diverged)
    return row["charts/episodic_return"] if few else math.nan


def report(folder: Path, results: Sequence[Result], config: Config, objective: str) -> None:
    """Writes results.csv, sweep.png and best.yaml, and prints the best settings."""
    ranked = rank(results)
    keys = list(dict.fromkeys(key for result in results for key in result.setting))
    write_table(folder / "results.csv", ranked, keys)
    what = f"{config.env.name}: {objective} return, mean of {config.num_seeds} seeds"
    plot(folder / "sweep.png", results, keys, what)
    named = ", ".join(f"{key} = {ranked[0].setting[key]}" for key in keys)
    about = f"the best of {len(results)} settings of {config.env.name}: {named}"
    print_table(ranked, keys, what)
    finish(folder, ranked[0], about)


def report_population(
    folder: Path, members: Sequence[Config], rules: Rules, objective: str
) -> None:
    """Reports a population, as `report` does, with its tunable numbers at the end."""
    run = str(folder / "population")
    curves = read_members(run)
    results = []
    for index, member in enumerate(members):
        numbers = final_numbers(curves[index], rules)
        config = from_dict(apply_overrides(dataclasses.asdict(member), numbers), "population")
        results.append(Result(numbers, config, (value(curves[index], objective),), ((run, index),)))
    ranked = rank(results)
    keys = list(results[0].setting)
    title = f"{members[0].env.name}: a population of {len(members)}, {objective} return"
    write_table(folder / "results.csv", ranked, keys)
    plot_population(folder / "sweep.png", curves, rules, title)
    print_table(ranked, keys, title)
    finish(folder, ranked[0], f"the best of {title}; its numbers at the end")


def rank(results: Sequence[Result]) -> list[Result]:
    """Sorts results: the best first, those without a score last."""
    return sorted(results, key=lambda r: math.inf if math.isnan(r.score) else -r.score)


def finish(folder: Path, best: Result, about: str) -> None:
    """Writes the best setting, if any has a score, and prints the paths of all files."""
    print(f"table: {folder / 'results.csv'}, picture: {folder / 'sweep.png'}")
    if math.isnan(best.score):
        print("no best.yaml: no setting has a score, since its agents diverged or ended no episode")
        return
    write_best(folder / "best.yaml", best, about)
    print_where(folder, best)


def write_best(path: Path, best: Result, about: str) -> None:
    """Writes a result's config as YAML that `train` takes."""
    config = dataclasses.replace(best.config, run_dir="", num_seeds=1, num_shards=0)
    write_whole(path, f"# {about}\n" + to_yaml(config))


def print_where(folder: Path, best: Result) -> None:
    """Prints the commands for the best setting and its best seed."""
    again = folder.with_name(f"{folder.name}-best")
    config = folder / "best.yaml"
    print(f"best: python -m purejaxppo.train --config {config} --run_dir {again}")
    run, index = best.places[int(np.nanargmax(np.nan_to_num(best.scores, nan=-np.inf)))]
    print(f"its best seed: python -m purejaxppo.evaluate --run {run} --index {index}")


def plot_population(
    path: Path, curves: Mapping[int, Sequence[Row]], rules: Rules, title: str
) -> None:
    """Draws members' returns and numbers over environment steps; the best at the end on top."""
    keys = ["eval/return_mean", *(f"population/{name}" for name, _, _ in rules.bounds)]
    if not any(keys[0] in row for rows in curves.values() for row in rows):
        keys[0] = "charts/episodic_return"
    figure = new_figure(7, 2.4 * len(keys))
    panels = np.atleast_1d(figure.subplots(len(keys), sharex=True))
    best = max(curves, key=lambda i: np.nan_to_num(value(curves[i], "last"), nan=-np.inf))
    for axes, key in zip(panels, keys, strict=True):
        for index, rows in curves.items():
            shown = [(row["global_step"], row[key]) for row in rows if key in row]
            style = {"color": "C1", "lw": 2, "zorder": 3} if index == best else {"color": "0.6"}
            axes.plot(*np.array(shown).reshape(-1, 2).T, **{"lw": 0.8, **style})
        low = min((row[key] for rows in curves.values() for row in rows if key in row), default=0)
        if key.startswith("population/") and low > 0:
            axes.set_yscale("log")
        axes.set_ylabel("return" if key == keys[0] else key.removeprefix("population/"))
        axes.grid(alpha=0.3)
    panels[0].set_title(title)
    panels[-1].set_xlabel("environment steps of each agent")
    save_figure(figure, path)


def write_table(path: Path, ranked: Sequence[Result], keys: Sequence[str]) -> None:
    """Writes a line per setting, the best first, with each seed's score and run folder."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = ["return_mean", "return_std", "return_ci95", "seeds", "returns", "runs", "indices"]
        writer.writerow(["rank", *keys, *names])
        for rank, result in enumerate(ranked, 1):
            scores = np.array(result.scores)
            spread = float(scores.std(ddof=1)) if len(scores) > 1 else math.nan
            numbers = [result.score, spread, float(confidence(scores))]
            writer.writerow(
                [rank, *(exact(result.setting[key]) for key in keys)]
                + [f"{x:.6g}" for x in numbers]
                + [len(scores), " ".join(f"{x:.6g}" for x in scores)]
                + [" ".join(run for run, _ in result.places)]
                + [" ".join(str(index) for _, index in result.places)]
            )


def print_table(ranked: Sequence[Result], keys: Sequence[str], title: str) -> None:
    """Prints the best settings."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("rank", justify="right")
    for key in keys:
        table.add_column(key, justify="right", overflow="fold")
    table.add_column("return", justify="right")
    table.add_column("± 95 %", justify="right")
    for rank, result in enumerate(ranked[:SHOWN], 1):
        half = float(confidence(np.array(result.scores)))
        cells = [show(result.setting[key]) for key in keys]
        table.add_row(
            str(rank), *cells, f"{result.score:.1f}", "" if math.isnan(half) else f"{half:.1f}"
        )
    console = Console()
    console.print(table)
    if len(ranked) > SHOWN:
        console.print(f"and {len(ranked) - SHOWN} more")


def exact(value: Any) -> str:
    """Formats a setting's value in full, so that it can be given again."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def show(value: Any) -> str:
    """Formats a setting's value, shortened."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return exact(value)


def plot(path: Path, results: Sequence[Result], keys: Sequence[str], title: str) -> None:
    """Draws a line for one key, a heat map for a full grid of two, else parallel axes."""
    keys = [key for key in keys if len({show(r.setting[key]) for r in results}) > 1] or keys[:1]
    levels = [list(dict.fromkeys(show(r.setting[key]) for r in results)) for key in keys]
    full = math.prod(map(len, levels)) == len(results)
    wide = len(keys) > 2
    figure = new_figure(max(7, 1.5 * len(keys)) if wide else 7, 4.8)
    axes = figure.add_subplot()
    if len(keys) == 1:
        line(axes, results, keys[0])
    elif len(keys) == 2 and full:
        heat_map(figure, axes, results, keys, levels)
    else:
        parallel_axes(figure, axes, results, keys)
    axes.set_title(title)
    save_figure(figure, path)


def line(axes, results: Sequence[Result], key: str) -> None:
    """Draws the score over one setting, with the confidence interval of the mean."""
    given = [r.setting[key] for r in results]
    numeric = all(isinstance(x, int | float) and not isinstance(x, bool) for x in given)
    order = np.argsort(given) if numeric else np.arange(len(given))
    x = np.array(given)[order] if numeric else np.arange(len(given))
    means = np.array([results[i].score for i in order])
    half = np.array([float(confidence(np.array(results[i].scores))) for i in order])
    axes.errorbar(x, means, yerr=np.nan_to_num(half), marker="o", capsize=3)
    if numeric and is_log(x):
        axes.set_xscale("log")
    elif not numeric:
        axes.set_xticks(x, [show(value) for value in given])
    axes.set_xlabel(key)
    axes.set_ylabel("return (95 % confidence band)")
    axes.grid(alpha=0.3)


def heat_map(figure, axes, results, keys: Sequence[str], levels: Sequence[list[str]]) -> None:
    """Draws the score over two settings."""
    table = np.full((len(levels[0]), len(levels[1])), np.nan)
    for r in results:
        row, column = (
            level.index(show(r.setting[k])) for k, level in zip(keys, levels, strict=True)
        )
        table[row, column] = r.score
    image = axes.imshow(table, aspect="auto", origin="lower", cmap="viridis")
    axes.set_yticks(range(len(levels[0])), levels[0])
    axes.set_xticks(range(len(levels[1])), levels[1])
    axes.set_ylabel(keys[0])
    axes.set_xlabel(keys[1])
    middle = (np.nanmin(table) + np.nanmax(table)) / 2 if np.isfinite(table).any() else 0.0
    for (row, column), mean in np.ndenumerate(table):
        color = "white" if mean < middle else "black"
        axes.text(column, row, f"{mean:.4g}", ha="center", va="center", color=color)
    figure.colorbar(image, ax=axes, label="return")


def parallel_axes(figure, axes, results: Sequence[Result], keys: Sequence[str]) -> None:
    """Draws a line per setting over all keys that vary, coloured by score; the best on top."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scores = np.array([r.score for r in results])
    known = scores[np.isfinite(scores)]
    norm = Normalize(*((known.min(), known.max()) if known.size else (0, 1)))
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
    for x, (_, marks) in enumerate(columns):
        axes.axvline(x, color="0.3", lw=0.8)
        for height, text in marks:
            axes.text(x, height, f" {text}", fontsize=8, va="center")
    axes.set_xticks(range(len(keys)), keys, rotation=15, ha="right")
    axes.set_yticks([])
    axes.set_xlim(-0.1, len(keys) - 0.6)
    figure.colorbar(colors, ax=axes, label="return")


def heights(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Positions of values on an axis from 0 to 1, and its marks."""
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
    """True if positive numbers span so much that a logarithmic axis shows them better."""
    return bool(np.min(x) > 0 and np.max(x) / np.min(x) > 20)
