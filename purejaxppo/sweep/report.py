"""Report of a sweep: a table, a figure, and the best setting as a config."""

import csv
import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from purejaxppo.config.files import to_yaml, write_whole
from purejaxppo.config.hints import format_number, short_path
from purejaxppo.config.schema import Config
from purejaxppo.interrupts import atomic_write
from purejaxppo.runs.command_line import command_line
from purejaxppo.runs.curves import confidence
from purejaxppo.runs.population import Rules, final_numbers, since_last_copy
from purejaxppo.sweep.pictures import plot, plot_population
from purejaxppo.sweep.scores import Result, read_members, value
from purejaxppo.sweep.search_space import apply, exact, show

TABLE = "results.csv"
MAX_PRINTED = 20
"""Number of settings in the printed table."""


def report(folder: Path, results: Sequence[Result], config: Config, objective: str) -> None:
    """Write results.csv, sweep.png and best.yaml, and print the best settings."""
    ranked = rank(results)
    keys = list(dict.fromkeys(key for result in results for key in result.setting))
    write_table(folder / TABLE, ranked, keys)
    title = f"{config.env.name}: {objective} return, mean of {config.num_seeds} seeds"
    plot(folder / "sweep.png", results, keys, title)
    setting = ", ".join(f"{key} = {ranked[0].setting[key]}" for key in keys)
    comment = f"Best of {len(results)} settings of {config.env.name}: {setting}"
    print_table(ranked, keys, title)
    finish(folder, ranked[0], comment, objective)


def report_population(
    folder: Path, members: Sequence[Config], rules: Rules, objective: str
) -> None:
    """Report a population as `report` does, with the final values of its tunable numbers.

    A score uses the evaluations since the member last became a copy of another agent.
    """
    run = str(folder / "population")
    curves = read_members(run)
    results = []
    for index, member in enumerate(members):
        numbers = final_numbers(curves[index], rules)
        config = apply(member, numbers)
        score = value(since_last_copy(curves[index]), objective)
        results.append(Result(numbers, config, (score,), ((run, index),)))
    ranked = rank(results)
    keys = list(results[0].setting)
    title = f"{members[0].env.name}: a population of {len(members)}, {objective} return"
    write_table(folder / TABLE, ranked, keys)
    _, best = ranked[0].places[0]
    plot_population(folder / "sweep.png", curves, best, rules, title)
    print_table(ranked, keys, title)
    # The best checkpoint of a member may be older than its last copy.
    finish(folder, ranked[0], f"Best of {title}; final values", "last")


def rank(results: Sequence[Result]) -> list[Result]:
    """Sort results: the best first, those without a score last."""
    return sorted(results, key=lambda r: math.inf if math.isnan(r.score) else -r.score)


def finish(folder: Path, best: Result, comment: str, objective: str) -> None:
    """Write the best setting, if any has a score, and print the paths of all files."""
    shown = short_path(folder)
    print(f"table: {shown / TABLE}, figure: {shown / 'sweep.png'}")
    if math.isnan(best.score):
        print("no best.yaml: no setting has a score, because agents diverged or no episode ended")
        return
    write_best(folder / "best.yaml", best, comment)
    print_commands(shown, best, objective)


def write_best(path: Path, best: Result, comment: str) -> None:
    """Write a result's config as a YAML file for `train`."""
    config = dataclasses.replace(best.config, run_dir="", num_seeds=1, num_shards=0)
    write_whole(path, f"# {comment}\n" + to_yaml(config))


def print_commands(folder: Path, best: Result, objective: str) -> None:
    """Print commands that train the best setting with another seed and evaluate its best seed."""
    config, run_dir = folder / "best.yaml", folder.with_name(f"{folder.name}-best")
    seed = best.config.seed + len(best.scores)
    train = command_line("train", "--config", config, "--run_dir", run_dir, "--seed", seed)
    print(f"train the best setting with another seed: {train}")
    run, index = best.places[int(np.nanargmax(np.nan_to_num(best.scores, nan=-np.inf)))]
    words = ("--run", short_path(Path(run)), "--member", index)
    checkpoint = ("--checkpoint", "last") if objective == "last" else ()
    print(f"evaluate its best seed: {command_line('evaluate', *words, *checkpoint)}")


def write_table(path: Path, ranked: Sequence[Result], keys: Sequence[str]) -> None:
    """Write a row per setting, the best first, with each seed's score and run folder.

    Run folders are relative to the folder of the table, which may be moved.
    """
    with (
        atomic_write(path) as partial,
        partial.open("w", newline="", encoding="utf-8") as file,
    ):
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
                + [" ".join(os.path.relpath(run, path.parent) for run, _ in result.places)]
                + [" ".join(str(index) for _, index in result.places)]
            )


def table_of(ranked: Sequence[Result], keys: Sequence[str], title: str) -> Any:
    """Return a table of the best settings for rich."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("rank", justify="right")
    for key in keys:
        table.add_column(key, justify="right", overflow="fold")
    table.add_column("return", justify="right")
    table.add_column("± 95 %", justify="right")
    for rank, result in enumerate(ranked[:MAX_PRINTED], 1):
        half = float(confidence(np.array(result.scores)))
        cells = [show(result.setting[key]) for key in keys]
        table.add_row(
            str(rank),
            *cells,
            format_number(result.score),
            "" if math.isnan(half) else format_number(half, result.score),
        )
    if len(ranked) > MAX_PRINTED:
        table.caption, table.caption_justify = f"and {len(ranked) - MAX_PRINTED} more", "left"
    return table


def print_table(ranked: Sequence[Result], keys: Sequence[str], title: str) -> None:
    """Print the best settings."""
    from rich.console import Console

    Console(force_jupyter=False).print(table_of(ranked, keys, title))
