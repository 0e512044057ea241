"""Scores of a sweep's settings, from the metrics of their agents."""

import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.config.schema import Config
from purejaxppo.runs.episodes import MOST_DIVERGED
from purejaxppo.runs.rows import Row, read_csv
from purejaxppo.sweep.packing import PLAN, Group
from purejaxppo.sweep.search_space import Values, structure


class Result(NamedTuple):
    """Scores and runs of a setting."""

    setting: Values
    config: Config
    scores: tuple[float, ...]
    """Score of each seed; NaN if no episode ended."""
    places: tuple[tuple[str, int], ...]
    """For each seed, the run folder and the index in it."""

    @property
    def score(self) -> float:
        """Return the mean over seeds."""
        return float(np.mean(self.scores))


def score(
    groups: Sequence[Group], settings: Sequence[Values], configs: Sequence[Config], objective: str
) -> list[Result]:
    """Return the results of settings whose agents were trained in `groups`."""
    scores_and_places: dict[Any, tuple[float, tuple[str, int]]] = {}
    for group in groups:
        sizes = json.loads((Path(group.folder) / PLAN).read_text(encoding="utf-8"))
        places = [
            (str(Path(group.folder) / f"batch-{batch:03d}"), index)
            for batch, size in enumerate(sizes)
            for index in range(size)
        ]
        for member, (folder, index) in zip(group.members, places, strict=False):
            member_score = value(read_members(folder).get(index, []), objective)
            scores_and_places[identity(member)] = (member_score, (folder, index))
    results = []
    for setting, config in zip(settings, configs, strict=True):
        seeds = [dataclasses.replace(config, seed=config.seed + i) for i in range(config.num_seeds)]
        pairs = (scores_and_places[identity(seed)] for seed in seeds)
        scores, places_of_seeds = zip(*pairs, strict=True)
        results.append(Result(dict(setting), config, scores, places_of_seeds))
    return results


def identity(config: Config) -> Any:
    """Return a key that identifies an agent of a sweep."""
    config = dataclasses.replace(config, num_seeds=1, num_shards=1)
    return structure(config), config.ppo, config.seed


def read_members(folder: str) -> dict[int, list[Row]]:
    """Return the rows of a run with several agents, by agent."""
    path = Path(folder) / "metrics.csv"
    stat = path.stat() if path.is_file() else None
    return _read_members(path, stat and (stat.st_mtime_ns, stat.st_size))


@functools.lru_cache(maxsize=1)
def _read_members(path: Path, version: tuple[int, int] | None) -> dict[int, list[Row]]:
    """Read metrics.csv by agent.

    The cache reads it again if `version`, the time of modification and the size, changes.
    """
    del version
    rows: dict[int, list[Row]] = {}
    for row in read_csv(path):
        rows.setdefault(int(row["member"]), []).append(row)
    return rows


def value(rows: Sequence[Row], objective: str) -> float:
    """Score an agent by its evaluations, or by its training returns if none exist.

    The score is NaN if the last row has charts/finite = 0, or if it depends on a return that is
    NaN: of an evaluation in which all episodes diverged, or of a training row in which the share of
    diverged episodes exceeds `MOST_DIVERGED`. The best evaluation ignores both.
    """
    is_broken = bool(rows) and rows[-1].get("charts/finite", 1.0) == 0
    trained = [training_return(row) for row in rows if "charts/episodic_return" in row]
    evaluated = [row["eval/return_mean"] for row in rows if "eval/return_mean" in row]
    for returns in (evaluated, trained):
        if returns:
            if objective == "best" and returns is evaluated:
                return max((x for x in returns if not math.isnan(x)), default=math.nan)
            mean = float(np.mean(returns))
            best = math.nan if math.isnan(mean) else max(returns)  # max ignores some NaNs
            result = {"last": returns[-1], "best": best, "mean": mean}[objective]
            return math.nan if is_broken else result
    return math.nan


def training_return(row: Row) -> float:
    """Return the mean return of a row's episodes; NaN if too many of them diverged."""
    ended, diverged = row.get("charts/episodes", 0.0), row.get("charts/diverged", 0.0)
    has_few_diverged = diverged <= MOST_DIVERGED * (ended + diverged)
    return row["charts/episodic_return"] if has_few_diverged else math.nan
