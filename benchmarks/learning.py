"""Returns of configs over several seeds, trained and evaluated with the commands of the README.

    python benchmarks/learning.py cartpole acrobot --seeds 5
    python benchmarks/learning.py hopper_v5 --random_returns
    python benchmarks/learning.py ant --first_minutes --seeds 2
    python benchmarks/learning.py --minutes 120
    python benchmarks/learning.py --table ppo_and_friends

For every config and seed: `python -m purejaxppo.train`, then the evaluation of `python -m
purejaxppo.evaluate --episodes 100`, for the best and for the last checkpoint. `--side_by_side 2`
trains two seeds in parallel, each on one core, and their rows record one core. Rows go to
benchmarks/results/learning.jsonl. A new row replaces the row of the same config, flags and seed,
and all rows of this config and flags with other settings, also those of other devices.
`--random_returns` stores returns of uniformly random actions instead, in random_returns.jsonl;
`--zero_returns` prints those of actions of 0, such as of a robot that stands still;
`--first_minutes` compares with Brax's PPO by seconds (first_minutes.py). `--runs FOLDER` keeps the
run folders, each with its row in row.json, for zoo.py.

`--minutes N` trains missing seeds for N minutes: those without a row for the current settings. A
config needs five seeds, or ten if a seed takes less than a minute. Without configs, all configs are
trained. Seed 0 of all configs comes before seed 1; for each seed, faster configs come first. When
the time is over, the current run is interrupted, and the next call resumes it, unless the package
has changed since. Rows of resumed runs are marked. A failed run is not repeated in the same call.

`--table NAME` prints a table of docs/tables.yaml with the stored rows instead.
"""

import argparse
import hashlib
import json
import math
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import first_minutes
import harness
import ours

SEEDS, SEEDS_OF_QUICK = 5, 10
"""Seeds per config for `--minutes`: SEEDS, or SEEDS_OF_QUICK if a seed takes less than
QUICK_SECONDS."""
QUICK_SECONDS = 60.0
UNFINISHED = harness.ROOT / "runs" / "learning"
"""Run folders of `--minutes`. Each is deleted when its row is stored."""
INTERRUPTED = (130, 143, -signal.SIGTERM)
"""Exit codes of an interrupted train command."""
SCORE = """
import sys, json, numpy as np
from purejaxppo import restore, evaluate
from purejaxppo.parallel.shards import use_cpu_cores, use_compilation_cache
use_cpu_cores(0); use_compilation_cache()
out = {}
for which in ("best", "last"):
    result = evaluate(restore(sys.argv[1], which), int(sys.argv[2]))
    out[which] = [result.score, float(np.nanstd(result.returns)),
                  float(result.lengths.mean()), result.success_rate, result.metric_means,
                  result.returns.size]
print(json.dumps(out))
"""


def main() -> None:
    """Run the chosen benchmark."""
    parser = harness.options(__doc__, "learning")
    parser.add_argument("--seconds", type=float, default=120.0, help="of --first_minutes")
    parser.add_argument("configs", nargs="*", help="names or paths of configs")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds 0..N-1")
    parser.add_argument("--minutes", type=float, help="train missing seeds for this many minutes")
    parser.add_argument(
        "--first", type=int, default=0, help="first seed; rows of other seeds are kept"
    )
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes per seed")
    parser.add_argument("--flags", default="", help="further flags of the train command")
    parser.add_argument(
        "--side_by_side", type=int, default=0, help="parallel seeds, each on one core"
    )
    parser.add_argument("--runs", type=Path, help="keep the run folders in this folder")
    parser.add_argument(
        "--random_returns", action="store_true", help="store returns of random actions"
    )
    parser.add_argument("--zero_returns", action="store_true", help="print returns of actions of 0")
    parser.add_argument(
        "--first_minutes", action="store_true", help="compare with Brax's PPO by seconds"
    )
    parser.add_argument("--table", help="print a table of docs/tables.yaml, and train nothing")
    first_minutes.add_flags(parser)
    args = harness.parse(parser)
    args.flags = " ".join(args.flags.split())
    if args.toy:
        args.configs, args.seeds, args.episodes = args.configs or ["cartpole"], 1, 2
        args.flags = "--total_timesteps 256 --env.num_envs 4 --ppo.rollout_length 8"
    try:
        for config in args.configs:
            settings(config)
    except ValueError as error:
        parser.error(str(error))
    if args.table:
        print_table(parser, args.table)
    elif args.worker:
        first_minutes.work(*args.worker, args)
    elif args.first_minutes:
        first_minutes.compare(args, __file__)
    elif args.random_returns or args.zero_returns:
        store_returns_without_policy(args)
    elif args.minutes is not None:
        if args.toy or args.runs or args.first or args.seeds != SEEDS:
            parser.error("--minutes cannot be combined with --toy, --runs, --first or --seeds")
        try:
            sys.exit(train_missing(args))
        except KeyboardInterrupt:
            print("interrupted; the same command continues", flush=True)
            sys.exit(130)
    else:
        check_jobs(parser, args)
        train_all(args)


def print_table(parser: argparse.ArgumentParser, name: str) -> None:
    """Print a table of the docs, or exit with an error if it does not exist."""
    sys.path.insert(0, str(harness.ROOT / "docs"))
    import make_results

    if name not in make_results.TABLES:
        parser.error(f"--table {name}: not found. Tables: {', '.join(make_results.TABLES)}.")
    print("\n".join(make_results.tables(name)).strip())


def check_jobs(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with an error if there is nothing to train."""
    if not args.configs:
        parser.error("no config given, and no --minutes")
    if args.first >= args.seeds:
        last = args.seeds - 1
        parser.error(f"--first {args.first}: --seeds {args.seeds} trains seeds up to {last}")


def train_all(args: argparse.Namespace) -> None:
    """Train the given seeds of the configs, and store each row when it is measured."""
    jobs = [(config, seed) for config in args.configs for seed in range(args.first, args.seeds)]
    with tempfile.TemporaryDirectory() as folder:
        runs = args.runs or Path(folder)
        for config, seed, done in train_each(args, jobs, dict.fromkeys(args.configs, runs)):
            row = done.result()
            keep(args, row)
            if args.runs:
                (complete,) = harness.complete([row])
                path = runs / run_name(config, seed) / "row.json"
                path.write_text(json.dumps(complete, sort_keys=True) + "\n", encoding="utf-8")


def train_missing(args: argparse.Namespace) -> int:
    """Train missing seeds for `--minutes`, and return the exit code: 1 if a run failed."""
    from purejaxppo.config.files import library_configs

    deadline = time.monotonic() + 60 * args.minutes
    args.configs = args.configs or list(library_configs())
    machine = harness.describe()
    cores = 1 if args.side_by_side else machine["cores"]
    same = [args.flags, machine["device"], cores, machine["versions"], harness.package_hash()]
    runs = {x: UNFINISHED / digest([settings(x), *same]) for x in args.configs}
    failed: set[tuple[str, int]] = set()
    while time.monotonic() < deadline:
        jobs = [job for job in missing(args) if job not in failed]
        if not jobs:
            break
        for config, seed, done in train_each(args, jobs, runs, deadline):
            try:
                row = done.result()
            except RuntimeError as error:
                failed.add((config, seed))
                print(f"{config} seed {seed}: {error}", flush=True)
                continue
            if row is not None:
                keep(args, row)
                shutil.rmtree(runs[config] / run_name(config, seed))
                clock(runs[config], config, seed).unlink()
    print(f"seeds without a row: {len(missing(args))}", flush=True)
    return 1 if failed else 0


def train_each(
    args: argparse.Namespace,
    jobs: list[tuple[str, int]],
    folders: dict[str, Path],
    deadline: float = math.inf,
) -> Iterator[tuple[str, int, Future]]:
    """Train seeds until a deadline, and yield (config, seed, result of `run`).

    Args:
        args: parsed flags.
        jobs: (config, seed).
        folders: config -> folder of its run folders.
        deadline: seconds of `time.monotonic`.
    """
    cores = shares(args.side_by_side)

    def train(config: str, seed: int) -> dict[str, Any] | None:
        cores_of_run = cores.get()
        try:
            return run(args, config, seed, folders[config], cores_of_run, deadline)
        finally:
            cores.put(cores_of_run)

    with ThreadPoolExecutor(cores.qsize()) as pool:
        runs = {pool.submit(train, *job): job for job in jobs}
        try:
            for done in as_completed(runs):
                yield (*runs[done], done)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def missing(args: argparse.Namespace) -> list[tuple[str, int]]:
    """Return the missing (config, seed), in the order of `--minutes`."""
    rows = [row for row in harness.read_rows(args.results) if row["flags"] == args.flags]
    jobs = []
    for config in args.configs:
        of_config = [row for row in rows if row["config"] == f"{Path(config).stem}.yaml"]
        seconds = statistics.median([row["seconds"] for row in of_config] or [math.inf])
        wanted = set(range(SEEDS_OF_QUICK if seconds < QUICK_SECONDS else SEEDS))
        stored = {row["seed"] for row in of_config if row.get("settings") == settings(config)}
        jobs += [(seed, seconds, config) for seed in wanted - stored]
    return [(config, seed) for seed, _, config in sorted(jobs)]


def shares(count: int) -> "queue.Queue[list[int]]":
    """Return the cores of each of several parallel runs; for 0, one run without a choice."""
    found: queue.Queue[list[int]] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0))[:count] if count else ():
        found.put([core])
    if not count:
        found.put([])
    return found


def on_cores(cores: list[int], command: list[str]) -> list[str]:
    """Return a command that runs only on the given cores, or on all if none are given."""
    return ["taskset", "-c", ",".join(map(str, cores)), *command] if cores else command


def run(
    args: argparse.Namespace,
    config: str,
    seed: int,
    folder: Path,
    cores: list[int],
    deadline: float = math.inf,
) -> dict[str, Any] | None:
    """Train one seed of one config, and return its curve, times and final score.

    At the deadline (seconds of `time.monotonic`), the run is interrupted, and None is returned.
    """
    flags, run_dir = args.flags.split(), folder / run_name(config, seed)
    command = [sys.executable, "-m", "purejaxppo.train", "--config", config, "--seed", str(seed)]
    path, resumes = clock(folder, config, seed), math.isfinite(deadline)
    seconds = float(path.read_text(encoding="utf-8")) if resumes and path.exists() else 0.0
    resumed, started = seconds > 0, time.perf_counter()
    try:
        ended = until(deadline, on_cores(cores, [*command, *flags, "--run_dir", str(run_dir)]))
    finally:
        seconds += time.perf_counter() - started
        if resumes and run_dir.is_dir():
            path.write_text(str(seconds), encoding="utf-8")
    if not ended:
        return None
    score = [sys.executable, "-c", SCORE, str(run_dir), str(args.episodes)]
    scores = json.loads(harness.call(on_cores(cores, score)).splitlines()[-1])
    rows = harness.metrics(run_dir)
    names = "global_step", "seconds", "eval/return_mean"
    return {
        "config": f"{Path(config).stem}.yaml",
        "flags": args.flags,
        "seed": seed,
        "episodes": scores["last"][5],
        "return_mean": scores["best"][0],
        "return_std": scores["best"][1],
        "length_mean": scores["best"][2],
        "success_rate": scores["best"][3],
        "last_return_mean": scores["last"][0],
        "last_success_rate": scores["last"][3],
        "last_metrics": scores["last"][4],
        "env_steps": int(rows[-1]["global_step"]),
        "train_seconds": rows[-1]["seconds"],
        "seconds": seconds,
        "curve": [[r[x] for x in names] for r in rows if "eval/return_mean" in r],
        **({"cores": len(cores)} if cores else {}),
        **({"resumed": True} if resumed else {}),
        "settings": settings(config),
    }


def until(deadline: float, command: list[str]) -> bool:
    """Run a train command; return False if it was interrupted at the deadline, otherwise True.

    Raises:
        RuntimeError: the command failed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        late = False
        try:
            _, errors = process.communicate(timeout=None if math.isinf(left) else left)
        except subprocess.TimeoutExpired:
            late = True
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate()
    if late and process.returncode in INTERRUPTED:
        return False
    if process.returncode:
        last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise RuntimeError(f"{' '.join(command)}: {last}")
    return True


def run_name(config: str, seed: int) -> str:
    """Return the name of a run folder."""
    return f"{Path(config).stem}-s{seed}"


def clock(folder: Path, config: str, seed: int) -> Path:
    """Return the path of the file that stores the seconds a run has taken so far."""
    return folder / f"{run_name(config, seed)}.seconds"


def settings(config: str) -> str:
    """Return a hash of the values in a config that differ from their defaults.

    So rows stay valid when a version adds fields with defaults that change nothing.
    """
    import jax

    from purejaxppo import Config, load_config
    from purejaxppo.config.files import flatten, for_platform

    used = for_platform(load_config(config), jax.default_backend())
    values, defaults = flatten(used), flatten(Config())
    changed = sorted((name, x) for name, x in values.items() if x != defaults[name])
    return digest(changed)


def digest(values: list[Any]) -> str:
    """Return a hash of values."""
    return hashlib.sha1(repr(values).encode()).hexdigest()[:12]


def keep(args: argparse.Namespace, row: dict[str, Any]) -> None:
    """Store a row, and remove rows of its config and flags with its seed or other settings."""
    if not args.toy:

        def equal(other: dict[str, Any], *keys: str) -> bool:
            return all(other.get(key) == row[key] for key in keys)

        rows = harness.read_rows(args.results)
        remaining = [x for x in rows if equal(x, "settings") or not equal(x, "config", "flags")]
        harness.write_rows(args.results, remaining)
    harness.keep(args, [row], "config", "flags", "seed")
    print(
        f"{row['config']} seed {row['seed']}: last {row['last_return_mean']:.1f}, best "
        f"{row['return_mean']:.1f}, {row['env_steps']:,} steps, {row['seconds']:.0f} s in all",
        flush=True,
    )


def store_returns_without_policy(args: argparse.Namespace) -> None:
    """Print returns of random actions and store them, or only print those of actions of 0."""
    rows = [returns_without_policy(x, args.episodes, zero=args.zero_returns) for x in args.configs]
    args.results = args.results.with_name("random_returns.jsonl")
    if not args.zero_returns:
        harness.keep(args, rows, "config")


def returns_without_policy(name: str, episodes: int, *, zero: bool = False) -> dict[str, Any]:
    """Return the row of uniformly random actions on the task of a config, over full episodes.

    Args:
        name: name of the config.
        episodes: number of episodes.
        zero: whether all actions are 0 instead.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from purejaxppo import load_config
    from purejaxppo.envs import registry
    from purejaxppo.runs.conditions import evaluation_env
    from purejaxppo.runs.episodes import run_episodes
    from purejaxppo.types import PolicyStep

    env = registry.make(evaluation_env(load_config(name)), episodes, evaluation=True)

    def act(keys, carry, obs, start):
        del obs, start
        action = ours.draw(env.spec.action, episodes, keys[0])
        action = jax.tree.map(jnp.zeros_like, action) if zero else action
        return PolicyStep(carry, action, jnp.zeros(episodes), action)

    start, key = jax.jit(env.reset)(jax.random.key(0)), jax.random.split(jax.random.key(1), 1)
    play = jax.jit(lambda start, keys: run_episodes(env, start, act, lambda shape: (), keys))
    outcome = jax.device_get(play(start, key))
    returns = outcome.returns
    row = {"return_mean": float(returns.mean()), "return_std": float(returns.std())}
    print(f"{name}: {row['return_mean']:.1f} ± {row['return_std']:.1f}")
    for metric, values in outcome.metrics.items():
        print(f"  {metric} {np.nanmean(values):.1f}")
    return {"config": f"{name}.yaml", "episodes": episodes, **row}


if __name__ == "__main__":
    main()
