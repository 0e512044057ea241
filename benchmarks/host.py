"""Steps per second with host simulators, compared with other PPO libraries.

    python benchmarks/host.py [--tasks hopper pong pong_small] [--peer-python PATH]

Peers run under `--peer-python` and are skipped where that Python lacks them. No contender
normalises observations: Stable-Baselines3 does not by default, and a wrapper that did so in every
step would make it slower. Only the steps of episodes are counted: where a simulator needs a step to
reset, that step is not. Rows go to benchmarks/results/host.jsonl.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import harness
import ours
import peers

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
"""The sizes of Stable-Baselines3, with 8 environments: 2,048 steps, minibatches of 64."""
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
"""The sizes of configs/pong_small.yaml."""
TOY = {"num_envs": 4, "rollout_length": 8, "num_minibatches": 2, "num_epochs": 1, "hidden": (4,)}
POOL, GYM = ("envpool",), ("gymnasium", "mujoco")


class Contender(NamedTuple):
    """A contender of a task."""

    about: str
    kind: Literal["training", "rollouts", "simulator"]
    work: Callable[[dict[str, Any], float], None]  # (sizes, seconds of a round)
    sizes: dict[str, Any]
    needs: tuple[str, ...]  # required modules
    peer: bool = False  # runs under --peer-python


def training(about: str, sizes: dict[str, Any], needs: tuple[str, ...] = POOL) -> Contender:
    """Return the contender of our training."""
    return Contender(f"purejaxppo on {about}", "training", ours.train, sizes, needs)


def alone(sizes: dict[str, Any], suffix: str = "") -> dict[str, Contender]:
    """Return EnvPool alone, under its Python API and in the compiled loop."""
    about = f"random actions{suffix.replace('-', ', ')}"
    return {
        f"{name}{suffix}": Contender(f"{where}, {about}", "simulator", work, sizes, POOL)
        for name, where, work in (
            ("pool", "EnvPool alone", ours.pool_alone),
            ("pool-jit", "EnvPool in the compiled loop", ours.random_actions),
        )
    }


def on_envpool(sizes: dict[str, Any]) -> dict[str, Contender]:
    """Return training and its parts on EnvPool."""
    rollouts = "purejaxppo's rollouts, no update"
    return {
        "ours": training("EnvPool", sizes),
        "ours-rollouts": Contender(rollouts, "rollouts", ours.rollouts, sizes, POOL),
        **alone(sizes),
    }


CONTENDERS = {
    "hopper": {
        "ours": training("EnvPool", HOPPER),
        "ours-wide": training("EnvPool, wide", WIDE),
        "ours-processes": training(
            "Gymnasium, worker processes", WORKERS | {"options": {"workers": "process"}}, GYM
        ),
        "ours-threads": training(
            "Gymnasium, worker threads", WORKERS | {"options": {"workers": "thread"}}, GYM
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
        **alone(HOPPER),
        **alone(WIDE, "-wide"),
    },
    "pong": on_envpool(PONG),
    "pong_small": on_envpool(PONG_SMALL),
}


def main() -> None:
    """Compare the contenders of each task in alternation."""
    parser = harness.options(__doc__, "host", rounds=7, seconds=4.0)
    parser.add_argument("--tasks", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--contenders", nargs="+", help="all of a task by default")
    parser.add_argument(
        "--peer-python",
        type=harness.program,
        default=sys.executable,
        help="Python with the other libraries",
    )
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = harness.parse(parser)
    if args.worker:
        work(*args.worker, args)
        return
    worker = [__file__, "--seconds", str(args.seconds), *["--toy"] * args.toy, "--worker"]
    rows = []
    for task in args.tasks:
        contenders = CONTENDERS[task]
        commands = {
            name: [python_of(contender, args), *worker, task, name]
            for name, contender in contenders.items()
            if (not args.contenders or name in args.contenders)
            and harness.has_modules(f"{task}, {name}", python_of(contender, args), contender.needs)
        }
        results = harness.measure(commands, args.rounds)
        harness.show(task, results, "sb3", "sbx")
        for name, result in results.items():
            about, kind, _, sizes, *_ = contenders[name]
            row = {"task": task, "contender": name, "about": about, "kind": kind, "sizes": sizes}
            rows.append(result.row(**row))
    harness.keep(args, rows, "task", "contender", "device")


def python_of(contender: Contender, args: argparse.Namespace) -> str:
    """Return the interpreter of a contender."""
    return args.peer_python if contender.peer else sys.executable


def work(task: str, name: str, args: argparse.Namespace) -> None:
    """Compile, warm up, then time one round per line of stdin."""
    contender = CONTENDERS[task][name]
    if not contender.peer:
        ours.start(calls_host=True)
    contender.work({**contender.sizes, **(TOY if args.toy else {})}, args.seconds)


if __name__ == "__main__":
    main()
