"""Trains configs over several seeds with the README's own commands, and keeps what they reached.

    python benchmarks/learning.py cartpole acrobot --seeds 5

For every config and seed: `python -m purejaxppo.train`, then what `python -m purejaxppo.evaluate
--episodes 100` does, for the best and for the last checkpoint. Rows go to
benchmarks/results/learning.jsonl, replacing earlier rows of the same config and flags;
`docs/make_results.py` writes docs/results.md from them.
"""

import argparse
import csv
import datetime
import json
import subprocess
import sys
import tempfile
import time
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
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for config in args.configs:
            for seed in range(args.first, args.seeds):
                row = run(config, seed, args.episodes, args.flags.split(), Path(folder))
                keep(row)
                print(
                    f"{row['config']} seed {seed}: last {row['last_return_mean']:.1f}, best "
                    f"{row['return_mean']:.1f}, {row['env_steps']:,} steps, "
                    f"{row['seconds']:.0f} s in all",
                    flush=True,
                )


def run(config: str, seed: int, episodes: int, flags: list[str], folder: Path) -> dict[str, Any]:
    """One seed of one config: its curve, times and final score."""
    run_dir = folder / f"{Path(config).stem}-s{seed}"
    command = [sys.executable, "-m", "purejaxppo.train", "--config", config, "--seed", str(seed)]
    started = time.perf_counter()
    subprocess.run([*command, *flags, "--run_dir", str(run_dir)], check=True, capture_output=True)
    seconds = time.perf_counter() - started
    code = (
        "import sys, json; from purejaxppo import restore, evaluate\n"
        "run, n = sys.argv[1], int(sys.argv[2])\n"
        "from purejaxppo.parallel.shards import use_cpu_cores, use_compilation_cache\n"
        "use_cpu_cores(0); use_compilation_cache()\n"
        "out = {}\n"
        "for which in ('best', 'last'):\n"
        "    result = evaluate(restore(run, which), n)\n"
        "    out[which] = [float(result.returns.mean()), float(result.returns.std()),\n"
        "                  float(result.lengths.mean())]\n"
        "print(json.dumps(out))\n"
    )
    scored = subprocess.run(
        [sys.executable, "-c", code, str(run_dir), str(episodes)],
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
        "last_return_mean": scores["last"][0],
        "env_steps": int(float(rows[-1]["global_step"])),
        "train_seconds": train_seconds,
        "seconds": seconds,
        "curve": curve,
        "date": datetime.date.today().isoformat(),
        **machine.describe(),
    }


def keep(row: dict[str, Any]) -> None:
    """Adds a row to the results, in place of an earlier one of the same run."""
    same = ("config", "flags", "seed", "device", "cores")
    rows = [r for r in machine.read_rows(PATH) if any(r[key] != row[key] for key in same)]
    machine.write_rows(PATH, [*rows, row])


if __name__ == "__main__":
    main()
