"""Returns of the PPO of Stable-Baselines3 and of SBX with the settings of RL Baselines3 Zoo.

    python benchmarks/sb3.py hopper_v5 walker2d_v5 --seeds 2 --peer-python PATH [--core 0]

Trains for as many steps as the zoo, on Gymnasium's environment of the config, under
`--peer-python`. Twenty times, the deterministic policy is evaluated over 16 episodes, and at the
end over 100. Seconds are those of training with compilation, without evaluations. Each training
uses one core and, in PyTorch, one thread. Rows go to benchmarks/results/sb3.jsonl; those of
stored seeds are not trained again. The settings are those of hyperparams/ppo.yml in
https://github.com/DLR-RM/rl-baselines3-zoo, for versions 3 of the tasks, as of its commit 00128b5.
"""

import argparse
import json
import sys
import time
from typing import Any

import harness

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
"""Config of this library -> environment and arguments of the zoo's PPO, with one environment.

Observations and rewards are normalised. Where the zoo gives no network, it has the default one.
"""
LIBRARIES = {"sb3": "Stable-Baselines3", "sbx": "SBX"}
STEPS, EVALUATIONS, EPISODES, LAST_EPISODES = 1_000_000, 20, 16, 100


def main() -> None:
    """Train the missing seeds one after another, and store a row after each."""
    parser = harness.options(__doc__, "sb3")
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help="configs of this library")
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--seeds", type=int, default=2, help="seeds 0..N-1")
    parser.add_argument("--core", type=int, default=0, help="the core that trains")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="Python with the other libraries"
    )
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = harness.parse(parser)
    if args.worker:
        task, library, seed = args.worker
        print(json.dumps(train(task, library, int(seed), toy=args.toy)), flush=True)
        return
    for task in args.tasks:
        if task not in TASKS:
            parser.error(f"{task}: the zoo's settings are not in this file. Tasks: {list(TASKS)}.")
    stored = {(r["config"], r["library"], r["seed"]) for r in harness.read_rows(args.results)}
    jobs = [(x, y, seed) for seed in range(args.seeds) for x in args.tasks for y in args.libraries]
    for task, library, seed in jobs:
        if not args.toy and (f"{task}.yaml", library, seed) in stored:
            continue
        words = ["taskset", "-c", str(args.core), args.peer_python, __file__]
        words += ["--toy"] * args.toy + ["--worker", task, library, str(seed)]
        row = json.loads(harness.call(words).splitlines()[-1])
        row |= {"config": f"{task}.yaml", "library": library, "seed": seed, "cores": 1}
        harness.keep(args, [row], "config", "library", "seed")
        mean, seconds = row["last_return_mean"], row["train_seconds"]
        print(f"{task} {library} seed {seed}: {mean:,.0f} after {seconds:,.0f} s", flush=True)


def train(task: str, library: str, seed: int, *, toy: bool = False) -> dict[str, Any]:
    """Train one seed, and return the entries of its row."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    settings = dict(TASKS[task])
    name, policy = settings.pop("env"), dict(settings.pop("policy_kwargs"))
    kind, activation = kind_of(library)
    policy["activation_fn"] = activation["relu" if policy else "tanh"]
    env = VecNormalize(make_vec_env(name, 1, seed=seed), gamma=settings["gamma"])
    shown = VecNormalize(make_vec_env(name, 1, seed=seed + 1000), training=False, norm_reward=False)
    shown.obs_rms = env.obs_rms
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
                mean, _ = evaluate_policy(model, shown, episodes, deterministic=True)
                curve.append([self.num_timesteps, now - started - paused, float(mean)])
                paused += time.perf_counter() - now
            return True

    model.learn(steps, callback=Evaluations())
    seconds = time.perf_counter() - started - paused
    mean, std = evaluate_policy(model, shown, last, deterministic=True)
    return {
        "curve": curve,
        "env_steps": model.num_timesteps,
        "train_seconds": seconds,
        "episodes": last,
        "last_return_mean": float(mean),
        "last_return_std": float(std),
        **harness.software(),
    }


def kind_of(library: str) -> tuple[Any, dict[str, Any]]:
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
