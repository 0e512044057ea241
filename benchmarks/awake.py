"""Training with cores that are kept awake beside training without, in turns.

    python benchmarks/awake.py [--tasks cartpole hopper] [--rounds 15] [--seconds 1.5] [--beside]

Each task is compiled once, in a process of its own, as `python -m purejaxppo.train` compiles it;
its rounds are run with `parallel.awake` and without. `--beside` measures beside a program of
another session that computes all the time, and what it has of the cores. Rows go to
benchmarks/results/awake.jsonl, and from there `docs/make_results.py` writes the table.
"""

import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
import turns

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
        with other_program() if args.beside else contextlib.nullcontext() as process:
            print(json.dumps(measure(args.worker, args.rounds, args.seconds, process)))
        return
    for task in args.tasks:
        command = [sys.executable, __file__, "--worker", task, "--rounds", str(args.rounds)]
        command += ["--seconds", str(args.seconds), *["--beside"] * args.beside]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        row = {"task": task, "beside": args.beside, **json.loads(done.stdout.splitlines()[-1])}
        show(row)
        about = {"date": datetime.date.today().isoformat(), **machine.describe()}
        machine.replace_rows(args.results, [row | about], "task", "beside", "device")


@contextlib.contextmanager
def other_program() -> Iterator[int]:
    """The id of a program of another session, which computes all the time."""
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        yield program.pid
    finally:
        program.kill()
        program.wait()


def cpu_seconds(process: int) -> float:
    """That a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(task: str, rounds: int, seconds: float, other: int | None) -> dict[str, Any]:
    """Steps/s of each round without and with, and the cores that another program had."""
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
    cores: dict[bool, list[float]] = {False: [], True: []}
    for i in range(rounds):
        for kept in (False, True) if i % 2 else (True, False):
            with awake.kept_awake(kept):
                speed(max(1, updates // 8))  # by then the processes have begun
                started, used = time.perf_counter(), cpu_seconds(other) if other else 0.0
                speeds[kept].append(round(speed(updates)))
                if other:
                    spent = time.perf_counter() - started
                    cores[kept].append(round((cpu_seconds(other) - used) / spent, 2))
    programs.close()
    others = {"other_without": cores[False], "other_kept": cores[True]} if other else {}
    return {"without": speeds[False], "kept": speeds[True], **others}


def show(row: dict[str, Any]) -> None:
    """Medians, and the ratio within a round."""
    low, middle, high = turns.quartiles(row["without"], row["kept"])
    print(
        f"{row['task']}: {statistics.median(row['without']):,.0f} steps/s, kept awake "
        f"{statistics.median(row['kept']):,.0f}; ratio of a round {middle:.2f} (quartiles "
        f"{low:.2f} to {high:.2f})"
    )
    if row["beside"]:
        without, kept = (statistics.median(row[name]) for name in ("other_without", "other_kept"))
        print(f"{row['task']}: another program had {without:.2f} cores, kept awake {kept:.2f}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
