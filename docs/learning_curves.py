"""Pictures and intervals of learning for docs/results.md, from benchmarks/results/learning.jsonl.

    python docs/learning_curves.py

writes docs/pictures/learning.png: a panel per config with every seed's evaluations, their mean, and
published returns as lines. `docs/make_results.py` takes the interquartile means from here.
"""

import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))

import make_results as results

PICTURE = results.ROOT / "docs" / "pictures" / "learning.png"
SUITES = {
    "MuJoCo v5": tuple(
        f"{name}_v5.yaml"
        for name in ("hopper", "walker2d", "halfcheetah", "reacher", "inverted_pendulum")
    )
}
"""Suites by name, and the configs of their tasks."""
RESAMPLES, COVERAGE = 2_000, 0.95
COLUMNS = 4


def iqm(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Interquartile mean: the mean without the lowest and the highest quarter."""
    return stats.trim_mean(values, 0.25, axis)


def interval(tasks: list[np.ndarray]) -> tuple[float, float, float]:
    """Return (IQM, lower, upper) over tasks of equal weight, with runs resampled within each task.

    Stratified bootstrap with percentiles, as Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
    """
    rng = np.random.default_rng(0)
    drawn = [runs[rng.integers(len(runs), size=(RESAMPLES, len(runs)))] for runs in tasks]
    low, high = np.quantile(iqm(pooled(drawn)), [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(iqm(pooled(tasks))), float(low), float(high)


def pooled(tasks: list[np.ndarray]) -> np.ndarray:
    """Join the runs of tasks, repeated to give all tasks the same weight.

    Args:
        tasks: [..., runs] each, with different numbers of runs.
    """
    sizes = [runs.shape[-1] for runs in tasks]
    repeats = [math.lcm(*sizes) // size for size in sizes]
    return np.concatenate([np.repeat(*pair, -1) for pair in zip(tasks, repeats, strict=True)], -1)


def figure(of: tuple[float, float, float]) -> str:
    """As 12.3 (11.0 to 13.9)."""
    digits = 0 if abs(of[0]) >= 100 else 1 if abs(of[0]) >= 10 else 2
    middle, low, high = (f"{x:,.{digits}f}" for x in of)
    return f"{middle} ({low} to {high})"


def reference(config: str) -> tuple[float, str]:
    """The highest number that others publish for a config, and who."""
    number, who = max(results.PUBLISHED[config].items(), key=lambda pair: leading(pair[0]))
    return leading(number), who.partition(":")[0]


def leading(number: str) -> float:
    """The number before a ±."""
    return float(number.partition(" ")[0])


def normalised(runs: results.Rows, randoms: dict[str, float]) -> np.ndarray:
    """Last returns of a config's seeds: 0 is random actions, 1 the highest published number."""
    config = runs[0]["config"]
    floor, top = randoms[config], reference(config)[0]
    return (np.array(results.lasts(runs)) - floor) / (top - floor)


def suites(rows: results.Rows) -> list[str]:
    """A table of the suites' interquartile means; nothing before random actions were measured."""
    randoms = {row["config"]: row["return_mean"] for row in results.read("random_returns.jsonl")}
    plain = [row for row in rows if not row["flags"]]
    runs = {own[0]["config"]: own for own in results.group(plain, "config").values()}
    table = []
    for suite, configs in SUITES.items():
        if not all(config in randoms and len(runs.get(config, ())) > 1 for config in configs):
            continue
        each = [normalised(runs[config], randoms) for config in configs]
        for name, scores in (
            *zip(configs, ([one] for one in each), strict=True),
            (suite, each),
        ):
            about = (
                f"`{name}`: 0 is {randoms[name]:,.1f}, 1 is {reference(name)[0]:,.1f} "
                f"({reference(name)[1]})"
                if name in randoms
                else f"**{name}**, {len(configs)} tasks"
            )
            table.append(
                f"| {about} | {sum(map(len, scores))} | {figure(interval(list(scores)))} |"
            )
    if not table:
        return []
    return [
        "### Suites",
        "",
        "Last checkpoints, normalised so that 0 is what uniformly random actions get "
        "(`python benchmarks/random_returns.py`) and 1 the highest published number of the table "
        "above, by `python docs/make_results.py`; interquartile means with 95 % intervals of a "
        "stratified bootstrap over seeds (Agarwal et al. 2021). All tasks have the same weight, "
        "regardless of their number of runs. The published numbers are of "
        "earlier versions of the tasks: the mean says where runs stand on one scale, not who "
        "learns better. Ant-v5 has not been measured yet, and is no part of it.",
        "",
        "| task | runs | interquartile mean |",
        "| --- | --- | --- |",
        *table,
    ]


def draw(rows: results.Rows) -> None:
    """Writes the picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = list(results.group(rows, "config", "flags").values())
    height = math.ceil(len(panels) / COLUMNS)
    pictures, axes = pyplot.subplots(
        height, COLUMNS, figsize=(3.4 * COLUMNS, 2.5 * height), squeeze=False, layout="constrained"
    )
    for axis, runs in zip(axes.flat, panels, strict=False):
        panel(axis, sorted(runs, key=lambda run: run["seed"]))
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    pictures.savefig(PICTURE, dpi=80)


def panel(axis: Any, runs: results.Rows) -> None:
    """One config: seeds thin, their mean thick where there are several, published dashed."""
    curves = [np.array(run["curve"]) for run in runs]
    steps = [curve[:, 0] / 1e6 for curve in curves]
    returns = [curve[:, 2] for curve in curves]
    several = len(runs) > 1
    for x, y in zip(steps, returns, strict=True):
        axis.plot(x, y, color="tab:blue", alpha=0.35 if several else 1.0, linewidth=0.9)
    if several:
        grid = np.linspace(max(x[0] for x in steps), min(x[-1] for x in steps), 100)
        mean = np.mean([np.interp(grid, *xy) for xy in zip(steps, returns, strict=True)], 0)
        axis.plot(grid, mean, color="tab:blue", linewidth=2)
    for number, colour in zip(
        results.PUBLISHED.get(runs[0]["config"], {}), ("tab:orange", "tab:green"), strict=False
    ):
        who = results.PUBLISHED[runs[0]["config"]][number]
        name = re.split(r":| in ", who)[0]
        axis.axhline(leading(number), color=colour, linestyle="--", linewidth=1, label=name)
    if runs[0]["config"] in results.PUBLISHED:
        axis.legend(fontsize=7, loc="best", framealpha=0.6)
    seeds = f"{len(runs)} seeds" if several else "1 seed"
    flags = " with flags" if runs[0]["flags"] else ""
    axis.set_title(f"{Path(runs[0]['config']).stem}{flags}, {seeds}", fontsize=9)
    axis.set_xlabel("million steps", fontsize=7)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25)


if __name__ == "__main__":
    draw(results.read("learning.jsonl"))
