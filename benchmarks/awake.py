"""Training with cores that are kept awake beside training without, in turns.

    python benchmarks/awake.py [--tasks cartpole hopper] [--rounds 15] [--seconds 1.5] [--beside]

Each task is compiled once, in a process of its own, as `python -m purejaxppo.train` compiles it;
its rounds are run with `parallel.awake` and without. `--beside` measures beside a program of
somebody else that keeps one core busy. Rows go to benchmarks/results/awake.jsonl, and from there
`docs/make_results.py` writes the table.
"""

import argparse
import contextlib
import datetime
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole": ("cartpole.yaml", {}),
    "cartpole, 32 seeds": ("cartpole.yaml", {"num_seeds": 32}),
    "cartpole_hidden": ("cartpole_hidden.yaml", {}),
    "hopper": ("hopper.yaml", {}),
    "hopper, 256-256": ("hopper.yaml", {"network.hidden": [256, 256]}),
    "mpe_spread": ("mpe_spread.yaml", {}),
    "hopper_v5": ("hopper_v5.yaml", {}),
}
"""Task -> config, and other values of fields. EnvPool's is none whose cores auto keeps awake."""


def main() -> None:
    """Measures the tasks one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a round, each of its two")
    parser.add_argument("--beside", action="store_true", help="beside another busy program")
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "awake.jsonl")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure(args.worker, args.rounds, args.seconds)))
        return
    for task in args.tasks:
        command = [sys.executable, __file__, "--worker", task, "--rounds", str(args.rounds)]
        with busy_program() if args.beside else contextlib.nullcontext():
            done = subprocess.run(
                [*command, "--seconds", str(args.seconds)], check=True, stdout=subprocess.PIPE
            )
        row = {"task": task, "beside": args.beside, **json.loads(done.stdout.splitlines()[-1])}
        show(row)
        about = {"date": datetime.date.today().isoformat(), **machine.describe()}
        machine.replace_rows(args.results, [row | about], "task", "beside", "device")


@contextlib.contextmanager
def busy_program() -> Iterator[None]:
    """Somebody else's program, which computes all the time."""
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def measure(task: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Steps/s of each round without and with."""
    import jax
    import numpy as np
    import ours

    from purejaxppo.config.files import load_config
    from purejaxppo.parallel import awake
    from purejaxppo.runs import session
    from purejaxppo.runs.programs import resolve_shards

    name, fields = TASKS[task]
    config = load_config(name, {**fields, "eval.num_episodes": 0, "total_timesteps": 10**9})
    session.start_jax(config)
    programs = ours.programs_of(resolve_shards(config, len(jax.devices())))
    state = programs.init()
    programs.compile(state)

    def speed(updates: int) -> float:
        nonlocal state
        started = time.perf_counter()
        state, metrics = programs.train_chunk(state, programs.hp, np.int32(updates))
        return float(np.sum(metrics.env_steps)) / (time.perf_counter() - started)

    steps = config.env.num_envs * config.ppo.rollout_length * config.num_seeds
    speed(1)
    updates = max(1, round(seconds * speed(2) / steps))
    speeds: dict[bool, list[float]] = {False: [], True: []}
    for i in range(rounds):
        for kept in (False, True) if i % 2 else (True, False):
            with awake.kept_awake(kept):
                speed(max(1, updates // 8))  # by then the processes have begun
                speeds[kept].append(round(speed(updates)))
    programs.close()
    return {"without": speeds[False], "kept": speeds[True]}


def show(row: dict[str, Any]) -> None:
    """Medians, and the ratio within a round."""
    ratios = [b / a for a, b in zip(row["without"], row["kept"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{row['task']}{', beside a busy program' * row['beside']}: "
        f"{statistics.median(row['without']):,.0f} steps/s, kept awake "
        f"{statistics.median(row['kept']):,.0f}; ratio of a round {middle:.2f} (quartiles "
        f"{low:.2f} to {high:.2f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
