"""Report of a sweep: a table, a picture, and the best as a config."""

import csv
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from purejaxppo.config.files import to_yaml, write_whole
from purejaxppo.config.hints import format_number
from purejaxppo.config.schema import Config
from purejaxppo.interrupts import atomic_write
from purejaxppo.runs.command_line import command_line
from purejaxppo.runs.curves import confidence
from purejaxppo.runs.population import Rules, final_numbers, since_last_copy
from purejaxppo.sweep.pictures import plot, plot_population
from purejaxppo.sweep.scores import Result, read_members, value
from purejaxppo.sweep.search_space import apply, exact, show

SHOWN = 20
"""Settings in the table on the terminal."""


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
    """Report a population, as `report` does, with its tunable numbers at the end.

    Scores count from the time at which a member last became a copy of another agent.
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
    print(f"best: {command_line('train', '--config', config, '--run_dir', again)}")
    run, index = best.places[int(np.nanargmax(np.nan_to_num(best.scores, nan=-np.inf)))]
    print(f"its best seed: {command_line('evaluate', '--run', run, '--member', index)}")


def write_table(path: Path, ranked: Sequence[Result], keys: Sequence[str]) -> None:
    """Writes a line per setting, the best first, with each seed's score and run folder."""
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
            str(rank),
            *cells,
            format_number(result.score),
            "" if math.isnan(half) else format_number(half, result.score),
        )
    console = Console()
    console.print(table)
    if len(ranked) > SHOWN:
        console.print(f"and {len(ranked) - SHOWN} more")
