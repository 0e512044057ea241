"""What extras cost while they are off: training speed beside another checkout's, in turns.

    git worktree add ../before 0f0639b
    python benchmarks/off.py --before ../before [--rounds 7]

Each measurement is a process of its own that compiles, warms up and times a chunk of updates of
some seconds, from this version's config; the two versions take turns. Rows go to
benchmarks/results/off.jsonl, and from there `docs/make_results.py` writes the table of
docs/policies.md.
"""

import argparse
import datetime
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import machine

ROOT = Path(__file__).resolve().parent.parent
TASKS = {"cartpole": "cartpole.yaml", "hopper": "hopper.yaml"}
PROGRAM = """
import sys, time, jax, jax.numpy as jnp
from purejaxppo.sharding import Shards, use_cpu_cores, use_compilation_cache
use_compilation_cache(); use_cpu_cores(0)
from purejaxppo.configio import load_config
from purejaxppo.learner import STATE_AXES, Learner
devices = jax.devices()
config = load_config(sys.argv[1], {"num_shards": len(devices)})
shards = Shards(len(devices), devices)
learner = Learner(config, shards)
state = jax.jit(learner.init, out_shardings=shards.shardings(STATE_AXES))(
    jax.random.key(0), learner.shard_ids())
chunk = jax.jit(learner.train_chunk, donate_argnums=0,
                out_shardings=(shards.shardings(STATE_AXES), shards.shardings(None)))
hp = learner.hyperparams()
state, _ = jax.block_until_ready(chunk(state, hp, jnp.int32(1)))

started = time.perf_counter()
state, _ = jax.block_until_ready(chunk(state, hp, jnp.int32(4)))
each = (time.perf_counter() - started) / 4
n = max(1, round(float(sys.argv[2]) / each))
started = time.perf_counter()
state, metrics = jax.block_until_ready(chunk(state, hp, jnp.int32(n)))
print(int(metrics.env_steps) / (time.perf_counter() - started))
"""


def main() -> None:
    """Measures both versions on each task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for task, config in TASKS.items():
        speeds: dict[str, list[float]] = {"before": [], "now": []}
        for i in range(args.rounds):
            order = [("before", args.before.resolve()), ("now", ROOT)]
            for name, checkout in order if i % 2 else order[::-1]:
                speeds[name].append(measure(checkout, config, args.seconds))
            print(task, {name: round(x[-1]) for name, x in speeds.items()}, flush=True)
        row = {"task": task, **speeds, "date": datetime.date.today().isoformat()}
        rows.append({**row, **machine.describe()})
    machine.write_rows(machine.RESULTS / "off.jsonl", rows)


def measure(checkout: Path, config: str, seconds: float) -> float:
    """Steps per second of one version."""
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", PROGRAM, str(ROOT / "configs" / config), str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
