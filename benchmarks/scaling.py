"""How cost grows: time per environment step and memory over environments, seeds and widths.

    python benchmarks/scaling.py [--tasks cartpole hopper] [--axes num_envs num_seeds width]

One size varies at a time, the others stay those of the task. Every case is a process of its own
that compiles, warms up and then waits; the parent lets one run at a time, round after round, and
medians are kept. Memory is what the compiled program asks for on all its devices: state, rollout
and what an update needs besides. Rows go to benchmarks/results/scaling.jsonl, the picture of them
to docs/pictures/scaling.png.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import machine
import ours
import turns

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "scaling.png"
COMMON = {"rollout_length": 32, "num_epochs": 4, "num_minibatches": 4, "hidden": (64, 64)}
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {"env": "gymnax/CartPole-v1", "num_envs": 64, "normalize_obs": False, **COMMON},
    "hopper": {"env": "brax/hopper", "num_envs": 256, "normalize_obs": True, **COMMON},
}
AXES = {
    "num_envs": (16, 64, 256, 1024, 2048),
    "num_seeds": (1, 4, 16, 64),
    "width": (32, 64, 128, 256, 512),
}
LABELS = {"num_envs": "environments", "num_seeds": "seeds", "width": "width of both hidden layers"}


def main() -> None:
    """Parent: the cases of each task and axis in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--axes", nargs="+", default=list(AXES), choices=list(AXES))
    parser.add_argument("--values", type=int, nargs="+", help="instead of an axis's own")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round")
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "scaling.jsonl")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        ours.start(cache=False)
        ours.train(json.loads(args.worker), args.seconds, memory=True)
        return
    measured = []
    for task in args.tasks:
        for axis in args.axes:
            sizes = {value: sized(task, axis, value) for value in args.values or AXES[axis]}
            worker = [sys.executable, __file__, "--seconds", str(args.seconds), "--worker"]
            commands = {str(v): [*worker, json.dumps(own)] for v, own in sizes.items()}
            results = turns.measure(commands, args.repeats)
            for value, own in sizes.items():
                result = results[str(value)]
                measured.append((task, axis, value, own, result))
                micro, memory = 1e6 / result.median(), result.about["program_mb"]
                print(
                    f"{task:9} {axis:10} {value:5}: {micro:8.2f} µs/step, {memory:8.1f} MB",
                    flush=True,
                )
    rows = [
        result.row(task=task, axis=axis, value=value, sizes=own)
        for task, axis, value, own, result in measured
    ]
    machine.replace_rows(args.results, rows, "task", "axis", "value", "device")
    draw(machine.read_rows(args.results), args.picture)


def sized(task: str, axis: str, value: int) -> dict[str, Any]:
    """A task's sizes with one of them changed."""
    return TASKS[task] | ({"hidden": (value, value)} if axis == "width" else {axis: value})


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A column per axis: time above, memory below, of the device that was measured last."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["device"] == rows[-1]["device"]]
    figure = Figure(figsize=(11, 6), layout="constrained")
    panels = figure.subplots(2, len(AXES), sharex="col", sharey="row")
    for column, axis in enumerate(AXES):
        above, below = panels[:, column]
        for task in sorted({row["task"] for row in rows}):
            own = [row for row in rows if (row["task"], row["axis"]) == (task, axis)]
            own.sort(key=lambda row: row["value"])
            values = [row["value"] for row in own]
            above.loglog(values, [1e6 / row["steps_per_second"] for row in own], "o-", label=task)
            below.loglog(values, [row["program_mb"] for row in own], "o-")
        below.set_xlabel(LABELS[axis])
        for panel in (above, below):
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter("{x:g}")
            panel.grid(alpha=0.3, which="both")
            panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("microseconds per environment step")
    panels[1, 0].set_ylabel("memory of the program, MB")
    panels[0, 0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
