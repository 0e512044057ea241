"""Scores of a sweep's settings, from the curves of the agents that were trained with them."""

import dataclasses
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
from purejaxppo.sweep.search_space import Setting, structure


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

    The score is NaN for an agent that is not finite at its end or whose evaluation has no mean; the
    best of its evaluations still counts. A row of training returns is
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
            most = math.nan if math.isnan(mean) else max(returns)  # a NaN may stand anywhere
            known = {"last": returns[-1], "best": most, "mean": mean}[objective]
            return math.nan if broken else known
    return math.nan


def training_return(row: Row) -> float:
    """The mean return of a row's episodes; NaN where too many of them diverged to be counted."""
    ended, diverged = row.get("charts/episodes", 0.0), row.get("charts/diverged", 0.0)
    few = diverged <= MOST_DIVERGED * (ended + diverged)
    return row["charts/episodic_return"] if few else math.nan
