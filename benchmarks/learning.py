"""Returns of configs over several seeds, trained and evaluated with the commands of the README.

    python benchmarks/learning.py cartpole acrobot --seeds 5
    python benchmarks/learning.py hopper_v5 --random_returns
    python benchmarks/learning.py ant --first_minutes --seeds 2

For every config and seed: `python -m purejaxppo.train`, then the evaluation of `python -m
purejaxppo.evaluate --episodes 100`, for the best and for the last checkpoint. `--side_by_side 2`
trains two seeds in parallel, each on one core, and their rows record one core. Rows go to
benchmarks/results/learning.jsonl, and replace those of the same seed, and those of the same config
and flags with other settings or on other cores. `--random_returns` stores returns of uniformly
random actions instead, in random_returns.jsonl; `--first_minutes` compares with Brax's PPO by
seconds (first_minutes.py). `--runs FOLDER` keeps the run folders, each with its row in row.json,
for zoo.py.
"""

import argparse
import hashlib
import json
import os
import queue
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import first_minutes
import harness
import ours

SCORE = """
import sys, json, numpy as np
from purejaxppo import restore, evaluate
from purejaxppo.parallel.shards import use_cpu_cores, use_compilation_cache
use_cpu_cores(0); use_compilation_cache()
out = {}
for which in ("best", "last"):
    result = evaluate(restore(sys.argv[1], which), int(sys.argv[2]))
    out[which] = [result.score, float(np.nanstd(result.returns)),
                  float(result.lengths.mean()), result.success_rate]
print(json.dumps(out))
"""


def main() -> None:
    """Run the chosen benchmark."""
    parser = harness.options(__doc__, "learning")
    parser.add_argument("--seconds", type=float, default=120.0, help="of --first_minutes")
    parser.add_argument("configs", nargs="*", help="names or paths of configs")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0..N-1")
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
    parser.add_argument(
        "--first_minutes", action="store_true", help="compare with Brax's PPO by seconds"
    )
    first_minutes.add_flags(parser)
    args = harness.parse(parser)
    if args.toy:
        args.configs, args.seeds, args.episodes = args.configs or ["cartpole"], 1, 2
        args.flags = "--total_timesteps 256 --env.num_envs 4 --ppo.rollout_length 8"
    if args.worker:
        first_minutes.work(*args.worker, args)
    elif args.first_minutes:
        first_minutes.compare(args, __file__)
    elif args.random_returns:
        rows = [random_returns(config, args.episodes) for config in args.configs]
        args.results = args.results.with_name("random_returns.jsonl")
        harness.keep(args, rows, "config")
    else:
        train_all(args)


def train_all(args: argparse.Namespace) -> None:
    """Train all seeds of all configs, and store each row when it is measured."""
    flags, cores = args.flags.split(), shares(args.side_by_side)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores.qsize()) as pool:

        def train(config: str, seed: int) -> dict[str, Any]:
            own = cores.get()
            try:
                return run(config, seed, args.episodes, flags, args.runs or Path(folder), own)
            finally:
                cores.put(own)

        seeds = range(args.first, args.seeds)
        runs = [pool.submit(train, config, seed) for config in args.configs for seed in seeds]
        try:
            for done in as_completed(runs):
                row = done.result()
                keep(args, row)
                if args.runs:
                    (complete,) = harness.complete([row])
                    path = args.runs / run_name(row["config"], row["seed"]) / "row.json"
                    path.write_text(json.dumps(complete, sort_keys=True) + "\n", encoding="utf-8")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


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
    config: str, seed: int, episodes: int, flags: list[str], folder: Path, cores: list[int]
) -> dict[str, Any]:
    """Train one seed of one config, and return its curve, times and final score."""
    run_dir = folder / run_name(config, seed)
    command = [sys.executable, "-m", "purejaxppo.train", "--config", config, "--seed", str(seed)]
    started = time.perf_counter()
    harness.call(on_cores(cores, [*command, *flags, "--run_dir", str(run_dir)]))
    seconds = time.perf_counter() - started
    score = [sys.executable, "-c", SCORE, str(run_dir), str(episodes)]
    scores = json.loads(harness.call(on_cores(cores, score)).splitlines()[-1])
    rows = harness.metrics(run_dir)
    names = "global_step", "seconds", "eval/return_mean"
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
        "env_steps": int(rows[-1]["global_step"]),
        "train_seconds": rows[-1]["seconds"],
        "seconds": seconds,
        "curve": [[r[x] for x in names] for r in rows if "eval/return_mean" in r],
        **({"cores": len(cores)} if cores else {}),
        "settings": settings(config),
    }


def run_name(config: str, seed: int) -> str:
    """Return the name of a run folder."""
    return f"{Path(config).stem}-s{seed}"


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
    return hashlib.sha1(repr(changed).encode()).hexdigest()[:12]


def keep(args: argparse.Namespace, row: dict[str, Any]) -> None:
    """Store a row in place of one of the same seed, and of those with other settings."""
    if not args.toy:
        (full,) = harness.complete([row])
        same = ("settings", "device", "cores")
        rows = [
            other
            for other in harness.read_rows(args.results)
            if any(other[key] != row[key] for key in ("config", "flags"))
            or all(other.get(key) == full[key] for key in same)
        ]
        harness.write_rows(args.results, rows)
    harness.keep(args, [row], "config", "flags", "seed")
    print(
        f"{row['config']} seed {row['seed']}: last {row['last_return_mean']:.1f}, best "
        f"{row['return_mean']:.1f}, {row['env_steps']:,} steps, {row['seconds']:.0f} s in all",
        flush=True,
    )


def random_returns(name: str, episodes: int) -> dict[str, Any]:
    """Return the row of uniformly random actions on the task of a config, over full episodes."""
    import jax
    import jax.numpy as jnp

    from purejaxppo import load_config
    from purejaxppo.envs import registry
    from purejaxppo.runs.episodes import run_episodes
    from purejaxppo.types import PolicyStep

    env = registry.make(load_config(name).env, episodes, evaluation=True)

    def act(keys, carry, obs, start):
        del obs, start
        action = ours.draw(env.spec.action, episodes, keys[0])
        return PolicyStep(carry, action, jnp.zeros(episodes), action)

    start, key = jax.jit(env.reset)(jax.random.key(0)), jax.random.split(jax.random.key(1), 1)
    play = jax.jit(lambda start, keys: run_episodes(env, start, act, lambda shape: (), keys))
    returns = jax.device_get(play(start, key)).returns
    row = {"return_mean": float(returns.mean()), "return_std": float(returns.std())}
    print(f"{name}: {row['return_mean']:.1f} ± {row['return_std']:.1f}", flush=True)
    return {"config": f"{name}.yaml", "episodes": episodes, **row}


if __name__ == "__main__":
    main()
