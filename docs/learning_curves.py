"""Draw docs/pictures/learning.png from benchmarks/results/learning.jsonl.

    python docs/learning_curves.py

A panel per config: the evaluations of every seed, their mean, and published returns as lines.
"""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import make_results as results

PICTURE = results.ROOT / "docs" / "pictures" / "learning.png"
COLUMNS = 4


def draw(rows: results.Rows) -> None:
    """Write the image."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = list(results.group(rows, "config", "flags").values())
    height = math.ceil(len(panels) / COLUMNS)
    figure, axes = pyplot.subplots(
        height, COLUMNS, figsize=(3.4 * COLUMNS, 2.5 * height), squeeze=False, layout="constrained"
    )
    for axis, runs in zip(axes.flat, panels, strict=False):
        panel(axis, sorted(runs, key=lambda run: run["seed"]))
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.savefig(PICTURE, dpi=80)


def panel(axis: Any, runs: results.Rows) -> None:
    """Draw one config: seeds thin, the mean of several seeds thick, published returns dashed."""
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
    numbers = results.PUBLISHED["numbers"].get(runs[0]["config"], {})
    for (library, (number, _)), colour in zip(
        numbers.items(), ("tab:orange", "tab:green"), strict=False
    ):
        value = results.leading(number)
        axis.axhline(value, color=colour, linestyle="--", linewidth=1, label=library)
    if numbers:
        axis.legend(fontsize=7, loc="best", framealpha=0.6)
    seeds = f"{len(runs)} seeds" if several else "1 seed"
    flags = " with flags" if runs[0]["flags"] else ""
    axis.set_title(f"{Path(runs[0]['config']).stem}{flags}, {seeds}", fontsize=9)
    axis.set_xlabel("million steps", fontsize=7)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25)


if __name__ == "__main__":
    draw(results.read("learning"))
