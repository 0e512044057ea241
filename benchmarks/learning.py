"""Trains configs over several seeds with the README's own commands, and keeps what they reached.

    python benchmarks/learning.py cartpole acrobot --seeds 5

For every config and seed: `python -m purejaxppo.train`, then what `python -m purejaxppo.evaluate
--episodes 100` does, for the best and for the last checkpoint. `--side_by_side 2` trains two seeds
at a time, each on a core of its own; their rows say one core. Rows go to
benchmarks/results/learning.jsonl, replacing those of the same seed, and those of the same config
and flags with other settings or on other cores; `docs/make_results.py` writes docs/results.md.
"""

import argparse
import csv
import datetime
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import machine

PATH = machine.RESULTS / "learning.jsonl"


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="+", help="bare names or paths of configs")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0..N-1")
    parser.add_argument("--first", type=int, default=0, help="the first seed; others stay as kept")
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes per seed")
    parser.add_argument("--flags", default="", help="further flags of the train command")
    parser.add_argument("--side_by_side", type=int, default=0, help="seeds at a time, a core each")
    args = parser.parse_args()
    flags, cores = args.flags.split(), shares(args.side_by_side)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores.qsize()) as pool:

        def one(config: str, seed: int) -> dict[str, Any]:
            own = cores.get()
            try:
                return run(config, seed, args.episodes, flags, Path(folder), own)
            finally:
                cores.put(own)

        seeds = range(args.first, args.seeds)
        runs = [pool.submit(one, config, seed) for config in args.configs for seed in seeds]
        try:
            for done in as_completed(runs):
                keep(done.result())
                report(done.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def report(row: dict[str, Any]) -> None:
    """Prints what a seed reached."""
    print(
        f"{row['config']} seed {row['seed']}: last {row['last_return_mean']:.1f}, best "
        f"{row['return_mean']:.1f}, {row['env_steps']:,} steps, {row['seconds']:.0f} s in all",
        flush=True,
    )


def shares(count: int) -> "queue.Queue[list[int]]":
    """The cores of each of so many runs at a time; of one (0), no choice of cores."""
    found: queue.Queue[list[int]] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0))[:count] if count else ():
        found.put([core])
    if not count:
        found.put([])
    return found


def on(cores: list[int], command: list[str]) -> list[str]:
    """A command that runs on these cores alone; without any, on all."""
    return ["taskset", "-c", ",".join(map(str, cores)), *command] if cores else command


def run(
    config: str, seed: int, episodes: int, flags: list[str], folder: Path, cores: list[int]
) -> dict[str, Any]:
    """One seed of one config: its curve, times and final score."""
    run_dir = folder / f"{Path(config).stem}-s{seed}"
    command = [sys.executable, "-m", "purejaxppo.train", "--config", config, "--seed", str(seed)]
    started = time.perf_counter()
    command += [*flags, "--run_dir", str(run_dir)]
    subprocess.run(on(cores, command), check=True, capture_output=True)
    seconds = time.perf_counter() - started
    code = (
        "import sys, json, numpy as np; from purejaxppo import restore, evaluate\n"
        "run, n = sys.argv[1], int(sys.argv[2])\n"
        "from purejaxppo.parallel.shards import use_cpu_cores, use_compilation_cache\n"
        "use_cpu_cores(0); use_compilation_cache()\n"
        "out = {}\n"
        "for which in ('best', 'last'):\n"
        "    result = evaluate(restore(run, which), n)\n"
        "    out[which] = [result.score, float(np.nanstd(result.returns)),\n"
        "                  float(result.lengths.mean()), result.success_rate]\n"
        "print(json.dumps(out))\n"
    )
    scored = subprocess.run(
        on(cores, [sys.executable, "-c", code, str(run_dir), str(episodes)]),
        check=True,
        capture_output=True,
        text=True,
    )
    scores = json.loads(scored.stdout.splitlines()[-1])
    with (run_dir / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    curve = [
        [float(r["global_step"]), float(r["seconds"]), float(r["eval/return_mean"])]
        for r in rows
        if r["eval/return_mean"]
    ]
    train_seconds = float(rows[-1]["seconds"])
    return {
        "config": f"{Path(config).stem}.yaml",
        "flags": " ".join(flags),
        "seed": seed,
        "episodes": episodes,
        "return_mean": scores["best"][0],
        "return_std": scores["best"][1],
        "length_mean": scores["best"][2],
        "success_rate": scores["best"][3],
        "last_return_mean": scores["last"][0],
        "last_success_rate": scores["last"][3],
        "env_steps": int(float(rows[-1]["global_step"])),
        "train_seconds": train_seconds,
        "seconds": seconds,
        "curve": curve,
        "date": datetime.date.today().isoformat(),
        **machine.describe(),
        **({"cores": len(cores)} if cores else {}),
        "settings": settings(config),
    }


def settings(config: str) -> str:
    """A name of a config's settings, whatever its comments say."""
    from purejaxppo import load_config

    return hashlib.sha1(repr(load_config(config)).encode()).hexdigest()[:12]


def keep(row: dict[str, Any]) -> None:
    """Adds a row to the results, in place of an earlier one of the same seed or other settings."""

    def stays(other: dict[str, Any]) -> bool:
        if any(other[key] != row[key] for key in ("config", "flags")):
            return True
        alike = all(other.get(key) == row[key] for key in ("settings", "device", "cores"))
        return alike and other["seed"] != row["seed"]

    machine.write_rows(PATH, [*filter(stays, machine.read_rows(PATH)), row])


if __name__ == "__main__":
    main()
