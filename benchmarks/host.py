"""Steps per second where the simulator runs on the host, beside others' PPO, in one run.

    python benchmarks/host.py [--tasks hopper pong pong_small] [--peer-python PATH] [--repeats 7]

Every contender is a process of its own; see `turns`. Peers run under `--peer-python` and are left
out where that Python has not got them. Rows go to benchmarks/results/host.jsonl, and
`python docs/make_results.py` makes the table.

All see observations as they are: Stable-Baselines3 does not normalise them by default, and doing so
in a wrapper, step by step, would slow it down. Steps are those of the environment that an episode
consists of: where a simulator needs a call to reset itself, that call is not counted.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import machine
import ours
import peers
import turns

HOPPER = {
    "env": "envpool/Hopper-v5",
    "num_envs": 8,
    "rollout_length": 256,
    "num_minibatches": 32,
    "num_epochs": 10,
    "hidden": (64, 64),
    "normalize_obs": False,
    "learning_rate_schedule": "constant",
}
"""Stable-Baselines3's sizes, with 8 environments: 2,048 steps, minibatches of 64."""
WIDE = HOPPER | {"num_envs": 64, "rollout_length": 128, "num_minibatches": 8, "num_epochs": 4}
WORKERS = HOPPER | {"env": "gymnasium/Hopper-v5"}
PONG = {
    "env": "envpool/Pong-v5",
    "num_envs": 8,
    "rollout_length": 128,
    "num_minibatches": 4,
    "num_epochs": 4,
    "hidden": (512,),
    "torso": "shared",
    "activation": "relu",
    "encoder": "cnn_nature",
    "normalize_obs": False,
    "learning_rate": 2.5e-4,
    "learning_rate_schedule": "constant",
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_eps": 0.1,
    "vf_coef": 0.5,
    "ent_coef": 0.01,
    "max_grad_norm": 0.5,
}
PONG_SMALL = PONG | {
    "options": {"img_height": 56, "img_width": 56},
    "num_envs": 16,
    "num_minibatches": 8,
    "hidden": (256,),
    "encoder": "cnn_nips",
    "critic": "hl_gauss",
    "learning_rate": 1e-3,
}
"""As configs/pong_small.yaml."""


class Contender(NamedTuple):
    """One of those who take turns."""

    about: str
    kind: Literal["training", "rollouts", "simulator"]
    work: Callable[[dict[str, Any], float], None]  # (sizes, seconds of a round)
    sizes: dict[str, Any]
    needs: tuple[str, ...]  # modules
    peer: bool = False  # runs under --peer-python


POOL, GYM = ("envpool",), ("gymnasium", "mujoco")


def on_envpool(sizes: dict[str, Any]) -> dict[str, Contender]:
    """Training and its parts on EnvPool: rollouts, and the simulator alone in two ways."""
    return {
        name: Contender(about, kind, work, sizes, POOL)
        for name, about, kind, work in (
            ("ours", "purejaxppo on EnvPool", "training", ours.train),
            ("ours-rollouts", "purejaxppo's rollouts, no update", "rollouts", ours.rollouts),
            ("pool", "EnvPool alone, random actions", "simulator", ours.pool_alone),
            (
                "pool-jit",
                "EnvPool in the compiled loop, random actions",
                "simulator",
                ours.random_actions,
            ),
        )
    }


CONTENDERS = {
    "hopper": {
        "ours": Contender("purejaxppo on EnvPool", "training", ours.train, HOPPER, POOL),
        "ours-wide": Contender("purejaxppo on EnvPool, wide", "training", ours.train, WIDE, POOL),
        "ours-processes": Contender(
            "purejaxppo on Gymnasium, worker processes",
            "training",
            ours.train,
            WORKERS | {"options": {"workers": "process"}},
            GYM,
        ),
        "ours-threads": Contender(
            "purejaxppo on Gymnasium, worker threads",
            "training",
            ours.train,
            WORKERS | {"options": {"workers": "thread"}},
            GYM,
        ),
        "sb3": Contender(
            "Stable-Baselines3's PPO on Gymnasium, DummyVecEnv, one thread",
            "training",
            peers.sb3,
            WORKERS,
            ("stable_baselines3", *GYM),
            peer=True,
        ),
        "sbx": Contender(
            "SBX's PPO on Gymnasium, DummyVecEnv",
            "training",
            peers.sbx,
            WORKERS,
            ("sbx", *GYM),
            peer=True,
        ),
        "pool": Contender(
            "EnvPool alone, random actions", "simulator", ours.pool_alone, HOPPER, POOL
        ),
        "pool-wide": Contender(
            "EnvPool alone, random actions, wide", "simulator", ours.pool_alone, WIDE, POOL
        ),
        "pool-jit": Contender(
            "EnvPool in the compiled loop, random actions",
            "simulator",
            ours.random_actions,
            HOPPER,
            POOL,
        ),
        "pool-jit-wide": Contender(
            "EnvPool in the compiled loop, random actions, wide",
            "simulator",
            ours.random_actions,
            WIDE,
            POOL,
        ),
    },
    "pong": {
        **on_envpool(PONG),
        "torch": Contender(
            "PPO in PyTorch on EnvPool",
            "training",
            peers.torch_ppo,
            PONG,
            ("torch", *POOL),
            peer=True,
        ),
    },
    "pong_small": on_envpool(PONG_SMALL),
}


def main() -> None:
    """Parent: starts the contenders of each task, and lets them run in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one timed round")
    parser.add_argument("--tasks", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--contenders", nargs="+", help="some of a task's; all by default")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter of the peers")
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "host.jsonl")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker, args.seconds)
        return
    results = {}
    for task in args.tasks:
        commands = {}
        for name, contender in CONTENDERS[task].items():
            python = args.peer_python if contender.peer else sys.executable
            if args.contenders and name not in args.contenders:
                continue
            if missing := missing_modules(python, contender.needs):
                print(f"{task}, {name}: left out, {python} has no {', '.join(missing)}.")
                continue
            worker = [__file__, "--worker", task, name, "--seconds", str(args.seconds)]
            commands[name] = [python, *worker]
        results[task] = turns.measure(commands, args.repeats)
        show(task, results[task])
    rows = [
        result.row(
            task=task,
            contender=name,
            about=CONTENDERS[task][name].about,
            kind=CONTENDERS[task][name].kind,
            sizes=CONTENDERS[task][name].sizes,
        )
        for task, contenders in results.items()
        for name, result in contenders.items()
    ]
    machine.replace_rows(args.results, rows, "task", "contender", "device")


def missing_modules(python: str, names: tuple[str, ...]) -> list[str]:
    """Those of some modules that an interpreter does not find."""
    code = (
        "import importlib.util, sys\n"
        "print(*(m for m in sys.argv[1:] if not importlib.util.find_spec(m)))"
    )
    found = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True)
    return found.stdout.split()


def show(task: str, results: dict[str, turns.Result]) -> None:
    """A table of medians and ranges."""
    print(f"\n{task:16} {'steps/s':>9} {'min':>9} {'max':>9}")
    for name, (speeds, _) in results.items():
        median = statistics.median(speeds)
        print(f"{name:16} {median:9,.0f} {min(speeds):9,.0f} {max(speeds):9,.0f}")
    sys.stdout.flush()


def work(task: str, name: str, seconds: float) -> None:
    """Worker: compile, warm up, then one timed round per line of stdin."""
    contender = CONTENDERS[task][name]
    if not contender.peer:
        ours.start()
    contender.work(contender.sizes, seconds)


if __name__ == "__main__":
    main()
