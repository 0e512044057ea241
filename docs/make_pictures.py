"""Draw the plots in docs/pictures/ from benchmarks/results/.

    python docs/make_pictures.py

ant.gif joins the video first_minutes.gif and the returns in first_minutes.jsonl. A learning_*.png
has a panel per config: evaluations of every seed, their mean, and published returns as lines.
profiles.png has the performance profile of each suite. A peers_*.png compares
with other libraries, over steps and over training time.
The other plots are drawn by functions of the benchmarks, which also draw them after each run.
"""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import ablations
import make_results as results
import studies
from seeds import draw as draw_many_seeds

PICTURES = results.ROOT / "docs" / "pictures"
COLUMNS = 3
DPI = 100
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
X_AXES = ((0, 1e6, "million steps"), (1, 60, "minutes of training"))
"""x axes of returns: column of the curve, unit, label."""
FAMILIES = ("brax", "envpool", "gymnax", "pgx", "playground")
"""Families with an image; the image `other` has the rest."""
CONTENDERS = {
    "ours": ("purejaxppo", "tab:blue"),
    "brax": ("Brax's PPO, same sizes", "tab:orange"),
}


def new_axes(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of a size in pixels, and its axes, an array [rows, columns]."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    size = width / DPI, height / DPI
    return pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")


def draw_learning(rows: results.Rows) -> None:
    """Write an image per group of simulators."""
    for row in rows:
        family = results.env_name(row["config"]).partition("/")[0]
        row["family"] = family if family in FAMILIES else "other"
    for (family,), trained in results.group(rows, "family").items():
        panels = sorted(
            results.group(trained, "config", "flags").values(), key=lambda runs: runs[0]["config"]
        )
        height = math.ceil(len(panels) / COLUMNS)
        figure, axes = new_axes(height, COLUMNS, 930, 230 * height)
        for axis, runs in zip(axes.flat, panels, strict=False):
            panel(axis, sorted(runs, key=lambda run: run["seed"]))
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        figure.savefig(PICTURES / f"learning_{family}.png", dpi=DPI)


def panel(axis: Any, runs: results.Rows) -> None:
    """Draw one config: seeds thin, the mean of several seeds thick, published returns dashed."""
    curves = [np.array(run["curve"])[:, [0, 2]] / [1e6, 1] for run in runs]
    draw_seeds(axis, curves, "tab:blue")
    numbers = results.PUBLISHED["numbers"].get(runs[0]["config"], {})
    for (library, (number, _)), colour in zip(numbers.items(), COLOURS[1:], strict=False):
        value = results.leading(number)
        axis.axhline(value, color=colour, linestyle="--", linewidth=1.2, label=library)
    if numbers:
        axis.legend(fontsize=8, loc="best", framealpha=0.6)
    seeds = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
    flags = runs[0]["flags"].replace("--", "\n--")
    title = f"{Path(runs[0]['config']).stem}, {seeds}{flags}"
    axis.set_title(title, fontsize=8 if flags else 10)
    axis.set_xlabel("million steps", fontsize=9)
    axis.tick_params(labelsize=9)
    axis.grid(alpha=0.25)


def draw_seeds(axis: Any, curves: list[np.ndarray], colour: str, label: str = "") -> None:
    """Draw seeds as thin lines, and the mean of several seeds as a thick one.

    Args:
        axis: the axes.
        curves: float [points, 2] of each seed.
        colour: colour of all lines.
        label: label of the mean.
    """
    several = len(curves) > 1
    for curve in curves:
        alpha = 0.4 if several else 1.0
        axis.plot(*curve.T, color=colour, alpha=alpha, linewidth=1)
    if several:
        low, high = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
        grid = np.linspace(low, high, 200)
        mean = np.mean([np.interp(grid, *curve.T) for curve in curves], 0)
        axis.plot(grid, mean, color=colour, linewidth=2.2, label=label)


def draw_peers() -> None:
    """Plot returns of this and other libraries, one image per group of simulators."""
    families = {}
    for config, runs in results.with_peers().items():
        family = results.env_name(config).partition("/")[0]
        families.setdefault(family, {})[config] = runs
    for family, tasks in families.items():
        columns = min(COLUMNS, len(tasks))
        height = 2 * math.ceil(len(tasks) / columns)
        figure, axes = new_axes(height, columns, 310 * columns, 230 * height + 60)
        panels = axes.reshape(-1, 2, columns).swapaxes(1, 2).reshape(-1, 2)  # [task, steps or time]
        names = dict.fromkeys(name for runs in tasks.values() for name in runs)
        colours = dict(zip(names, COLOURS, strict=False))
        for pair, (config, runs) in zip(panels, tasks.items(), strict=False):
            first = runs[results.OURS][0]
            for axis, (kept, unit, label) in zip(pair, X_AXES, strict=True):
                for name, seeds in runs.items():
                    shown = results.on_equal_hardware(seeds, first) if kept == 1 else seeds
                    curves = [np.array(x["curve"])[:, [kept, 2]] / [unit, 1] for x in shown]
                    draw_seeds(axis, curves, colours[name])
                axis.set_xlabel(label, fontsize=9)
                axis.tick_params(labelsize=9)
                axis.grid(alpha=0.25)
            pair[0].set_title(Path(config).stem, fontsize=10)
        for axis in panels[len(tasks) :].flat:
            axis.set_visible(False)
        for name, colour in colours.items():
            axes[0, 0].plot([], [], color=colour, label=name)
        lines = axes[0, 0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside upper center", ncols=columns, fontsize=9, frameon=False)
        figure.savefig(PICTURES / f"peers_{family}.png", dpi=DPI)


def draw_ant(rows: results.Rows) -> None:
    """Write the video of the ant above its returns over seconds."""
    from PIL import Image, ImageSequence

    with Image.open(PICTURES / "first_minutes.gif") as video:
        shown = [frame.convert("RGB") for frame in ImageSequence.Iterator(video)]
        duration = video.info["duration"]
    width, height = shown[0].size
    figure, ((axis,),) = new_axes(1, 1, width, 300)
    for contender, (name, colour) in CONTENDERS.items():
        curves = [np.array(x["curve"])[:, 1:] for x in rows if x["contender"] == contender]
        draw_seeds(axis, curves, colour, f"{name} (mean of {len(curves)} seeds)")
    axis.set_xlim(0, 120)
    axis.set_xlabel("seconds of training on two CPU cores", fontsize=11)
    axis.set_ylabel("return of Brax's ant", fontsize=11)
    axis.tick_params(labelsize=10)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=10, loc="upper left")
    figure.canvas.draw()
    curve = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    frames = [Image.new("RGB", (width, height + curve.height)) for _ in shown]
    for frame, top in zip(frames, shown, strict=True):
        frame.paste(top, (0, 0))
        frame.paste(curve, (0, height))
    palette = frames[0].quantize(64)
    first, *rest = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    path = PICTURES / "ant.gif"
    first.save(path, save_all=True, append_images=rest, duration=duration, loop=0, optimize=True)


def draw_profiles() -> None:
    """Write the performance profiles of the suites.

    A profile is the share of runs above a score, the mean over tasks (Agarwal et al. 2021,
    https://arxiv.org/abs/2108.13264, section 4.3).
    """
    figure, ((axis,),) = new_axes(1, 1, 620, 330)
    scores = np.linspace(0, 2, 401)
    for suite, configs in results.suite_runs().items():
        shares = [(runs[:, None] > scores).mean(axis=0) for _, runs in configs.values()]
        axis.plot(scores, np.mean(shares, axis=0), linewidth=2, label=suite)
    axis.axvline(1, color="0.6", linestyle="--", linewidth=1)
    axis.set_xlabel("score: 0 is random, 1 is the highest published return")
    axis.set_ylabel("share of runs above the score")
    axis.set_ylim(0, 1.02)
    axis.grid(alpha=0.25)
    figure.legend(fontsize=8, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(PICTURES / "profiles.png", dpi=DPI)


if __name__ == "__main__":
    draw_ant([row for row in results.read("first_minutes") if row["config"] == "ant"])
    draw_profiles()
    draw_peers()
    draw_learning(results.read("learning"))
    ablations.draw(results.read("ablations"))
    draw_many_seeds(results.read("seeds"), PICTURES / "seeds.png")
    for (name,), rows in results.group(results.read("studies"), "study").items():
        studies.draw(name, rows)
