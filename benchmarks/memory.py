"""Peak memory of whole runs of different lengths: it must not grow with total_timesteps.

    python benchmarks/memory.py [--tasks cartpole seeds pixels]

Each run is a process of its own: the command `python -m purejaxppo.train`, and `make_train` with
four vmapped seeds; then the command with 16 seeds, and on images, by the number of environments.
Rows go to benchmarks/results/memory.jsonl.

--windows: one update of 1,024 oscillator ensembles of 100 neurons, whose observations are windows
of 250 values, over rollouts of different lengths: with the series kept, as a learner does, and with
every window kept. Minibatches have the same size in all. Rows go to
benchmarks/results/memory_windows.jsonl.
"""

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine

SEEDS = """
import sys, jax, resource
from purejaxppo import load_config, make_train
config = load_config("cartpole.yaml", {"total_timesteps": int(sys.argv[1])})
train = jax.jit(jax.vmap(make_train(config)))
jax.block_until_ready(train(jax.random.split(jax.random.key(0), 4)))
"""
WINDOWS = """
import sys, jax
from purejaxppo import load_config
from purejaxppo.agents.obs_storage import FullObs
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
length = int(sys.argv[1])
config = load_config("oscillator.yaml", {
    "env.num_envs": 1024, "env.options": {"num_neurons": 100}, "ppo.rollout_length": length,
    "ppo.num_minibatches": length // 8})
parts = make_parts(config)
if sys.argv[2] == "windows":
    parts = parts._replace(storage=FullObs())
state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
train = jax.jit(train_program(parts), donate_argnums=0)
jax.block_until_ready(train(state, make_hyperparams(config), 1))
"""
LENGTHS = (64, 256, 1024)
SEEDS_OF_FOUR = ["--env.num_envs", "4", "--ppo.rollout_length", "128"]
PIXELS = [
    "--env.name",
    "dummy/pixels",
    "--env.backend",
    "",
    "--network.torso",
    "shared",
    "--eval.num_episodes",
    "0",
]
PIXELS += ["--ppo.num_epochs", "1"]


def main() -> None:
    """Measures 1x, 4x and 20x, or windows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps at 1x")
    parser.add_argument("--tasks", nargs="+", default=["cartpole", "seeds", "pixels"])
    parser.add_argument("--windows", action="store_true", help="lengths of rollouts of windows")
    args = parser.parse_args()
    if args.windows:
        kinds = [windows(length, kept) for length in LENGTHS for kept in ("windows", "series")]
        machine.write_rows(machine.RESULTS / "memory_windows.jsonl", kinds)
        return
    rows: list[dict[str, Any]] = []

    def measure(what: str, steps: int, arguments: list[str]) -> None:
        megabytes = peak(arguments)
        print(f"{what:16} {steps:>10,} steps  {megabytes:7.0f} MB", flush=True)
        rows.append(
            {
                "what": what,
                "steps": steps,
                "peak_mb": round(megabytes),
                "date": datetime.date.today().isoformat(),
                **machine.describe(),
            }
        )

    with tempfile.TemporaryDirectory() as folder:
        for times in (1, 4, 20) if "cartpole" in args.tasks else ():
            steps = times * args.steps
            measure("train", steps, train(folder, steps, "--config", "cartpole"))
            measure("vmap of 4", steps, ["-c", SEEDS, str(steps)])
        for times in (1, 20) if "seeds" in args.tasks else ():
            steps = times * args.steps
            flags = [*SEEDS_OF_FOUR, "--config", "cartpole", "--num_seeds", "16"]
            measure("train, 16 seeds", steps, train(folder, steps, *flags))
        for num_envs in (8, 64) if "pixels" in args.tasks else ():
            # Two rollouts of num_envs x 128 images of 84 x 84 x 4 bytes.
            steps = 2 * 128 * num_envs
            flags = [*PIXELS, "--env.num_envs", str(num_envs)]
            flags += ["--ppo.num_minibatches", str(num_envs // 2)]
            measure(f"pixels, {num_envs} envs", steps, train(folder, steps, *flags))
    path = machine.RESULTS / "memory.jsonl"
    done = {(row["what"], row["steps"]) for row in rows}
    kept = [row for row in machine.read_rows(path) if (row["what"], row["steps"]) not in done]
    machine.write_rows(path, [*kept, *rows])


def train(folder: str, steps: int, *flags: str) -> list[str]:
    """Python's arguments for a training in a run folder of its own."""
    run = str(Path(folder) / f"{len(list(Path(folder).iterdir()))}")
    command = ["-m", "purejaxppo.train", *flags, "--total_timesteps", str(steps)]
    return [*command, "--run_dir", run]


def windows(length: int, kept: str) -> dict[str, Any]:
    """One update with rollouts of `length` that keep windows or the series behind them."""
    megabytes = peak(["-c", WINDOWS, str(length), kept])
    print(f"{kept:8} {length:5} steps  {megabytes:7.0f} MB", flush=True)
    return {
        "kept": kept,
        "length": length,
        "peak_mb": round(megabytes),
        "date": datetime.date.today().isoformat(),
        **machine.describe(),
    }


def peak(arguments: list[str]) -> float:
    """Largest resident size of a Python process with these arguments, in MB."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, "
        "stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, sys.executable, *arguments],
        check=True,
        capture_output=True,
        text=True,
        # Compiling takes memory: then all runs shall compile, and not only the first.
        env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
    )
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return int(out.stdout.split()[-1]) / unit


if __name__ == "__main__":
    main()
