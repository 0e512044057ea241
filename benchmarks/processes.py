"""Steps per second of one run in one process and in two, on the cores of one machine.

    python benchmarks/processes.py [--repeats 7] [--seconds 4]

Brax's hopper at the sizes of hopper.yaml. Every contender compiles, warms up and then waits; the
parent lets one run at a time, round after round. Medians over rounds are compared. The second
process is a child of the first, which tells it how many updates come next. Results go to
benchmarks/results/processes.jsonl.
"""

import argparse
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import machine
import ours
import turns

SIZES: dict[str, Any] = {
    "env": "brax/hopper",
    "num_envs": 512,
    "rollout_length": 16,
    "num_minibatches": 32,
    "num_epochs": 8,
    "hidden": (128, 128),
    "activation": "swish",
    "normalize_reward": True,
}


class Contender(NamedTuple):
    """How one run is spread."""

    about: str
    processes: int
    devices: int  # of each process


CONTENDERS = {
    "one-device": Contender("one process with one device", 1, 1),
    "two-devices": Contender("one process with two devices", 1, 2),
    "two-processes": Contender("two processes with one device each", 2, 1),
}


def main() -> None:
    """Parent: starts the contenders, and lets them run in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one timed round")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "processes.jsonl")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, index, port = args.worker
        work(CONTENDERS[name], int(index), int(port), args.seconds)
        return
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    worker = [sys.executable, __file__, "--seconds", str(args.seconds), "--worker"]
    commands = {name: [*worker, name, "0", str(port)] for name in args.contenders}
    results = turns.measure(commands, args.repeats)
    for name, result in results.items():
        low, high = min(result.speeds), max(result.speeds)
        middle = statistics.median(result.speeds)
        print(f"{CONTENDERS[name].about:36} {middle:10,.0f} steps/s ({low:,.0f} to {high:,.0f})")
    rows = [
        result.row(contender=name, sizes=SIZES, **CONTENDERS[name]._asdict())
        for name, result in results.items()
    ]
    machine.replace_rows(args.results, rows, "contender", "device")


def work(contender: Contender, index: int, port: int, seconds: float) -> None:
    """Worker: process `index` of a contender; the first starts the second, and waits for turns."""
    from purejaxppo.parallel import meeting, places, processes

    place = places.place_of(
        processes.ALONE,
        f"127.0.0.1:{port}" if contender.processes > 1 else "",
        contender.processes,
        index,
    )
    other = None
    if place.count > 1 and index == 0:
        command = [*sys.argv[: sys.argv.index("--worker")], "--worker", "two-processes", "1"]
        other = subprocess.Popen([sys.executable, *command, str(port)], stdout=sys.stderr)
    meeting.start(processes.ALONE, lambda _: place, lambda: None, seconds=60)
    ours.start(contender.devices)
    try:
        train(index, seconds)
    except BrokenPipeError:  # the parent is gone
        processes.abort(1)
    processes.finish()
    if other is not None:
        other.wait()


def train(index: int, seconds: float) -> None:
    """The compiled programs of `python -m purejaxppo.train`; process 0 says how far they run."""
    import numpy as np

    from purejaxppo.parallel import processes
    from purejaxppo.runs.programs import Programs

    devices = [device for own in processes.devices() for device in own]
    config = ours.config_of(SIZES)
    programs = Programs(config, processes.spread(devices, config.num_shards))
    state = programs.init()
    programs.compile(state)

    def run(updates: int) -> int:
        nonlocal state
        (most,) = processes.maximum(updates)
        if not most:
            return 0
        state, metrics = programs.train_chunk(state, programs.hp, np.int32(most))
        return int(np.sum(metrics.env_steps))

    if index == 0:
        turns.rounds(run, seconds)
        run(0)
    else:
        while run(0):
            pass


if __name__ == "__main__":
    main()
