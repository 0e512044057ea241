"""Steps per second of our PPO, of other libraries, and of the simulator under random actions.

    python benchmarks/throughput.py [--tasks hopper64 cartpole] [--rounds 7] [--seconds 4]
    python benchmarks/throughput.py --tasks cartpole --set num_envs=1024 --contenders ours
    python benchmarks/throughput.py --contenders ours before --before ../other_checkout
    python benchmarks/throughput.py --tasks cartpole --peer-python PATH  # a Python with rejax
    python benchmarks/throughput.py --worlds [xminigrid/MiniGrid-DoorKey-8x8 ...]

Contenders run without `keep_cores_awake`, except those with `awake` in their name. `--set` changes
sizes of the tasks, and `--before` compares with the package of another checkout. `--worlds`
compares simulators in JAX, through our protocol and by their auto-reset (worlds.py). Compile time
is not counted. Rows go to benchmarks/results/throughput.jsonl.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import harness
import ours
import peers
import worlds

COMMON = {"rollout_length": 32, "num_epochs": 4, "hidden": (64, 64)}
HOPPER = {"env": "brax/hopper", "num_envs": 256, "num_minibatches": 32, "normalize_obs": True}
CARTPOLE = {
    "env": "gymnax/CartPole-v1",
    "num_envs": 64,
    "num_minibatches": 4,
    "normalize_obs": False,
}
TASKS: dict[str, dict[str, Any]] = {
    "hopper64": HOPPER | COMMON,
    "hopper256": HOPPER | COMMON | {"hidden": (256, 256)},
    "cartpole": CARTPOLE | COMMON,
}
TOY = {"num_envs": 8, "rollout_length": 4, "num_minibatches": 2, "num_epochs": 1, "hidden": (4,)}
CONTENDERS = {
    "ours": "purejaxppo, transitions shuffled, every core a device",
    "ours-awake": "the same with `keep_cores_awake`",
    "ours-trajectories": "purejaxppo, whole trajectories shuffled, every core a device",
    "ours-one-device": "purejaxppo, transitions shuffled, one device",
    "before": "purejaxppo of another checkout, as the first row",
    "random": "the simulator under a random policy, every core a device",
    "brax": "Brax's own PPO, equal sizes and epochs, one device (its default)",
    "brax-devices": "Brax's own PPO, equal sizes and epochs, every core a device",
    "brax-awake": "the same with cores kept awake by purejaxppo's processes",
    "rejax": "rejax's own PPO with JAX 0.6, equal sizes and epochs, one device (its default)",
}
AWAKE = ("ours-awake", "brax-awake")


def main() -> None:
    """Compare the contenders of each task in alternation."""
    parser = harness.options(__doc__, "throughput", rounds=7, seconds=4.0)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--set", nargs="+", default=[], metavar="SIZE=NUMBER", help="other sizes")
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument(
        "--peer-python", type=harness.program, default=sys.executable, help="Python with rejax"
    )
    parser.add_argument(
        "--worlds", nargs="*", metavar="TASK", help="measure simulators with auto-resets"
    )
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = harness.parse(parser)
    worker = [__file__, "--seconds", str(args.seconds), "--worker"]
    if args.worker:
        name, sizes = args.worker[0], json.loads(args.worker[1])
        (worlds.work if "world" in sizes else work)(name, sizes, args.seconds)
    elif args.worlds is not None:
        worlds.compare(args, [sys.executable, *worker])
    else:
        compare(args, worker)


def compare(args: argparse.Namespace, worker: list[str]) -> None:
    """Measure the tasks, print tables and store the rows."""
    changes = {name: int(x) for name, _, x in (text.partition("=") for text in args.set)}
    suffix = "".join(f", {name} {x}" for name, x in changes.items())
    rows = []
    for task in args.tasks:
        sizes = {**TASKS[task], **(TOY if args.toy else {}), **changes}
        commands = {
            name: [python_of(name, args), *worker, name, json.dumps(sizes)]
            for name in args.contenders
            if takes_part(name, sizes["env"], args)
        }
        before = {"before": {"PYTHONPATH": str(args.before and args.before.resolve())}}
        results = harness.measure(commands, args.rounds, AWAKE, before)
        harness.show(f"{task}: {sizes}", results, "random", "brax", "rejax", "before")
        rows += [
            result.row(
                task=task + suffix,
                contender=name,
                about=CONTENDERS[name],
                sizes=sizes,
                keep_cores_awake=name in AWAKE,
            )
            for name, result in results.items()
        ]
    harness.keep(args, rows, "task", "contender", "device")


def takes_part(contender: str, env: str, args: argparse.Namespace) -> bool:
    """Return whether a library has the task and is installed, or another checkout is given."""
    if contender == "before":
        return args.before is not None
    if contender == "rejax":
        python = python_of(contender, args)
        return env.startswith("gymnax/") and harness.has_modules(contender, python, ("rejax",))
    return env.startswith("brax/") or not contender.startswith("brax")


def python_of(contender: str, args: argparse.Namespace) -> str:
    """Return the interpreter of a contender."""
    return args.peer_python if contender == "rejax" else sys.executable


def work(name: str, sizes: dict[str, Any], seconds: float) -> None:
    """Compile, warm up, then time one round per line of stdin."""
    sizes["hidden"] = tuple(sizes["hidden"])
    if name == "rejax":
        peers.rejax(sizes, seconds)
        return
    ours.start(1 if name in ("ours-one-device", "brax") else 0)
    if name.startswith("brax"):
        peers.brax(sizes, seconds)
    elif name == "random":
        ours.random_actions(sizes, seconds)
    else:
        shuffle = "trajectories" if name.endswith("trajectories") else "transitions"
        ours.train(sizes | {"shuffle": shuffle}, seconds)


if __name__ == "__main__":
    main()
