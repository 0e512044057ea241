"""Items of gpu.py that train with the command: returns by time, and the first update."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import harness

Row = dict[str, Any]
Measurements = Iterator[tuple[str, Callable[[], Row]]]
RUNS = (
    ("cartpole.yaml", 475.0),
    ("ant.yaml", 8000.0),
    ("minatar_breakout.yaml", 60.0),
    ("hopper.yaml", 2000.0),
    ("cheetah_run.yaml", 850.0),
)
"""Configs, trained with their sizes for a GPU, and their timed returns."""
SMALL_RUN = ("--env.num_envs", "8", "--ppo.rollout_length", "8", "--network.hidden", "8")


def command(config: str, folder: Path, *flags: str) -> list[str]:
    """Return the train command of a config in a folder."""
    words = [sys.executable, "-m", "purejaxppo.train", "--config", config]
    return [*words, "--run_dir", str(folder), *flags]


def learning(toy: bool) -> Measurements:
    """Train each config of `RUNS` once."""
    for config, wanted in RUNS:
        yield f"{config}, to {wanted:,.0f}", partial(learn, toy, config, wanted)


def learn(toy: bool, config: str, wanted: float) -> Row:
    """Train a seed, and return its evaluations by training seconds, and the total seconds."""
    flags = ("--total_timesteps", "2_048", *SMALL_RUN) if toy else ()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        name = "cartpole.yaml" if toy else config
        _, seconds = harness.timed(lambda _: harness.call(command(name, run_dir, *flags)), 1)
        rows = harness.metrics(run_dir)
    names = "global_step", "seconds", "eval/return_mean"
    curve = [[row[x] for x in names] for row in rows if "eval/return_mean" in row]
    reached = [second for _, second, mean in curve if mean >= wanted]
    return {
        "curve": curve,
        "env_steps": int(rows[-1]["global_step"]),
        "train_seconds": rows[-1]["seconds"],
        "seconds": round(seconds, 2),
        "reached_seconds": reached[0] if reached else None,
        "last_return_mean": curve[-1][2],
    }


def first_update(toy: bool) -> Measurements:
    """Measure the seconds from the command to its first progress, with and without a cache."""
    for config in ("hopper.yaml", "cartpole.yaml"):
        yield f"first update, {config}", partial(starts, toy, config)


def starts(toy: bool, config: str) -> Row:
    """Start a run three times with one cache, and return the seconds of the first and the last."""
    flags = ["--eval.num_episodes", "0", *(SMALL_RUN if toy else ())]
    flags += ["--total_timesteps", "256" if toy else "1_000_000", "--clobber"]
    name = "cartpole.yaml" if toy else config
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "JAX_COMPILATION_CACHE_DIR": f"{folder}/xla"}
        words = command(name, Path(folder) / "run", *flags)
        cold, _, warm = (until_progress(words, env) for _ in range(3))
    return {"cold_seconds": round(cold, 2), "warm_seconds": round(warm, 2)}


def until_progress(words: list[str], env: dict[str, str]) -> float:
    """Return the seconds until a run prints its speed, and wait for its end."""
    started, seen = time.perf_counter(), 0.0
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if "steps/s" in line and not seen:
                seen = time.perf_counter() - started
    if process.returncode or not seen:
        raise RuntimeError(f"{' '.join(words)} failed")
    return seen
