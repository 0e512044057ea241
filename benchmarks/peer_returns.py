"""Measure returns of other PPO libraries on this library's tasks.

    python benchmarks/peer_returns.py hopper_v5 walker2d_v5 --libraries sb3 sbx --peer-python PATH
    python benchmarks/peer_returns.py ant reacher --libraries brax brax-notebook [--core 0]

sb3 and sbx: Stable-Baselines3 and SBX with the settings of RL Baselines3 Zoo, as many steps as
there, on Gymnasium's environment of the config, under `--peer-python`. The deterministic policy is
evaluated 20 times over 16 episodes, and at the end over 100. Seconds are training time with
compilation, without evaluations. The settings are those of hyperparams/ppo.yml in
https://github.com/DLR-RM/rl-baselines3-zoo for the -v3 tasks, at commit 00128b5.

brax and brax-notebook: Brax's PPO, as in first_minutes.py, for the median training time of this
library's stored runs on one core of this hardware, or for `--seconds`, with evaluations over 64
episodes.

Each training uses one core and, in PyTorch, one thread. Rows go to
benchmarks/results/peer_returns.jsonl; stored seeds are skipped.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

import first_minutes
import harness
import ours
from learning import settings

NETWORK = {
    "log_std_init": -2.0,
    "ortho_init": False,
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}
TASKS: dict[str, dict[str, Any]] = {
    "halfcheetah_v5": {
        "env": "HalfCheetah-v5",
        "batch_size": 64,
        "n_steps": 512,
        "gamma": 0.98,
        "learning_rate": 2.0633e-05,
        "ent_coef": 0.000401762,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.92,
        "max_grad_norm": 0.8,
        "vf_coef": 0.58096,
        "policy_kwargs": NETWORK,
    },
    "hopper_v5": {
        "env": "Hopper-v5",
        "batch_size": 32,
        "n_steps": 512,
        "gamma": 0.999,
        "learning_rate": 9.80828e-05,
        "ent_coef": 0.00229519,
        "clip_range": 0.2,
        "n_epochs": 5,
        "gae_lambda": 0.99,
        "max_grad_norm": 0.7,
        "vf_coef": 0.835671,
        "policy_kwargs": NETWORK,
    },
    "walker2d_v5": {
        "env": "Walker2d-v5",
        "batch_size": 32,
        "n_steps": 512,
        "gamma": 0.99,
        "learning_rate": 5.05041e-05,
        "ent_coef": 0.000585045,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.95,
        "max_grad_norm": 1.0,
        "vf_coef": 0.871923,
        "policy_kwargs": {},
    },
}
"""Config name -> environment and PPO arguments of the zoo, which uses one environment.

Observations and rewards are normalised. NETWORK uses ReLU; without it, the network is the default.
"""
LIBRARIES = ("sb3", "sbx", "brax", "brax-notebook")
STEPS, EVALUATIONS, EPISODES, LAST_EPISODES = 1_000_000, 20, 16, 100
"""Of SB3 and SBX: steps of a training, its evaluations, their episodes, and those at the end."""


def main() -> None:
    """Train the missing seeds one after another, and store a row after each."""
    parser = harness.options(__doc__, "peer_returns")
    parser.add_argument("tasks", nargs="+", help="names of configs")
    parser.add_argument("--libraries", nargs="+", required=True, choices=LIBRARIES)
    parser.add_argument("--seeds", type=int, default=2, help="seeds 0..N-1")
    parser.add_argument("--seconds", type=float, help="training time of Brax's PPO")
    parser.add_argument("--core", type=int, default=0, help="CPU core to train on")
    parser.add_argument(
        "--peer-python",
        type=harness.program,
        default=sys.executable,
        help="Python with Stable-Baselines3 and SBX",
    )
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = harness.parse(parser)
    if args.worker:
        print(json.dumps(work(*args.worker, args)), flush=True)
        return
    from purejaxppo.config.files import library_configs, load_config

    brax_configs = [
        name
        for name, env in ((name, load_config(name).env) for name in library_configs())
        if env.name.startswith("brax/") and env.backend == "spring"  # as in peers.brax_ppo
    ]
    notebook = first_minutes.NOTEBOOK
    known = {"sb3": TASKS, "sbx": TASKS, "brax": brax_configs, "brax-notebook": notebook}
    jobs = [(x, y, str(n)) for n in range(args.seeds) for x in args.tasks for y in args.libraries]
    for task, library, _ in jobs:
        if task not in known[library]:
            parser.error(f"{task}: no settings for {library}. Tasks: {', '.join(known[library])}.")
    stored = {
        (row["config"], row["library"], row["seed"])
        for row in harness.read_rows(args.results)
        if row.get("settings") in (None, settings(row["config"]))
    }
    for task, library, seed in jobs:
        config = f"{task}.yaml"
        if not args.toy and (config, library, int(seed)) in stored:
            continue
        python = args.peer_python if library in ("sb3", "sbx") else sys.executable
        seconds = args.seconds or seconds_of(config, args)
        if not seconds and library not in ("sb3", "sbx"):
            parser.error(
                f"{task}: learning.jsonl has no runs on one core of this hardware. Set --seconds, "
                f"or run python benchmarks/learning.py {task} --side_by_side 1 first."
            )
        words = ["taskset", "-c", str(args.core), python, __file__, task, "--libraries", library]
        words += ["--seconds", str(seconds)] + ["--toy"] * args.toy
        row = json.loads(harness.call([*words, "--worker", task, library, seed]).splitlines()[-1])
        row |= {"config": config, "library": library, "seed": int(seed), "cores": 1}
        if library not in ("sb3", "sbx"):
            row |= {"settings": settings(task), "wanted_seconds": seconds}
        harness.keep(args, [row], "config", "library", "seed")
        mean, trained = row["last_return_mean"], row["train_seconds"]
        print(f"{task} {library} seed {seed}: {mean:,.0f} after {trained:,.0f} s", flush=True)


def seconds_of(config: str, args: argparse.Namespace) -> float:
    """Return the median seconds of training of this library on one core; 0 if not measured."""
    rows = harness.read_rows(args.results.with_name("learning.jsonl"))
    kind = {"config": config, "flags": "", "device": harness.describe()["device"], "cores": 1}
    alike = [row for row in rows if kind.items() <= row.items()]
    return statistics.median([row["train_seconds"] for row in alike] or [0.0])


def work(task: str, library: str, seed: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train a seed of a library, and return its row."""
    if library in ("sb3", "sbx"):
        return train_sb3(task, library, int(seed), toy=args.toy)
    ours.start(1)
    notebook = library == "brax-notebook"
    curve = first_minutes.train_brax(task, int(seed), args.seconds, notebook=notebook)
    steps, seconds, mean = curve[-1]
    return {
        "curve": curve,
        "env_steps": int(steps),
        "train_seconds": seconds,
        "episodes": first_minutes.EPISODES,
        "last_return_mean": mean,
        **harness.software(),
    }


def train_sb3(task: str, library: str, seed: int, *, toy: bool = False) -> dict[str, Any]:
    """Train a seed of Stable-Baselines3 or SBX, and return its row."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    settings = dict(TASKS[task])
    name, policy = settings.pop("env"), dict(settings.pop("policy_kwargs"))
    kind, activation = ppo_class(library)
    policy["activation_fn"] = activation["relu" if policy else "tanh"]
    env = VecNormalize(make_vec_env(name, 1, seed=seed), gamma=settings["gamma"])
    eval_env = VecNormalize(
        make_vec_env(name, 1, seed=seed + 1000), training=False, norm_reward=False
    )
    eval_env.obs_rms = env.obs_rms
    model = kind("MlpPolicy", env, seed=seed, policy_kwargs=policy, device="cpu", **settings)
    steps, episodes, last = (1_024, 2, 2) if toy else (STEPS, EPISODES, LAST_EPISODES)
    curve: list[list[float]] = []
    started, paused = time.perf_counter(), 0.0

    class Evaluations(BaseCallback):
        """Evaluates at equal intervals of steps, with the clock stopped."""

        def _on_step(self) -> bool:
            nonlocal paused
            if self.num_timesteps >= steps * (len(curve) + 1) / EVALUATIONS:
                now = time.perf_counter()
                mean, _ = evaluate_policy(model, eval_env, episodes, deterministic=True)
                curve.append([self.num_timesteps, now - started - paused, float(mean)])
                paused += time.perf_counter() - now
            return True

    model.learn(steps, callback=Evaluations())
    seconds = time.perf_counter() - started - paused
    mean, std = evaluate_policy(model, eval_env, last, deterministic=True)
    return {
        "curve": curve,
        "env_steps": model.num_timesteps,
        "train_seconds": seconds,
        "episodes": last,
        "last_return_mean": float(mean),
        "last_return_std": float(std),
        **harness.software(),
    }


def ppo_class(library: str) -> tuple[Any, dict[str, Any]]:
    """Return a library's PPO and its activation functions."""
    if library == "sb3":
        import torch
        from stable_baselines3 import PPO

        torch.set_num_threads(1)
        return PPO, {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}
    import flax.linen as nn
    from sbx import PPO as SBX

    return SBX, {"tanh": nn.tanh, "relu": nn.relu}


if __name__ == "__main__":
    main()
