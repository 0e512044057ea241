"""Steps per second: ours, Brax's own PPO, and the simulator under random actions, in one run.

    python benchmarks/throughput.py [--repeats 7] [--seconds 4] [--tasks hopper64 cartpole]

Every contender is a process of its own that compiles, warms up and then waits; the parent lets one
run at a time, round after round, so that a noisy machine is noisy for all. Medians over rounds are
compared. Compile time is never counted. Results go to benchmarks/results/throughput.jsonl.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import machine
import ours
import turns

TASKS: dict[str, dict[str, Any]] = {
    "hopper64": {
        "env": "brax/hopper",
        "num_envs": 256,
        "rollout_length": 32,
        "num_minibatches": 32,
        "num_epochs": 4,
        "hidden": (64, 64),
        "normalize_obs": True,
    },
    "cartpole": {
        "env": "gymnax/CartPole-v1",
        "num_envs": 64,
        "rollout_length": 32,
        "num_minibatches": 4,
        "num_epochs": 4,
        "hidden": (64, 64),
        "normalize_obs": False,
    },
}
TASKS["hopper256"] = {**TASKS["hopper64"], "hidden": (256, 256)}
CONTENDERS = {
    "ours": "purejaxppo, transitions shuffled, every core a device, kept awake",
    "ours-asleep": "the same with `keep_cores_awake: never`",
    "ours-trajectories": "purejaxppo, whole trajectories shuffled, every core a device, kept awake",
    "ours-one-device": "purejaxppo, transitions shuffled, one device",
    "random": "the simulator under a random policy, every core a device",
    "brax": "Brax's own PPO, equal sizes and epochs, one device (its default)",
    "brax-devices": "Brax's own PPO, equal sizes and epochs, every core a device",
    "brax-awake": "the same with cores kept awake by purejaxppo's processes",
}
AWAKE = ("ours", "ours-trajectories", "brax-awake")


def main() -> None:
    """Parent: starts the contenders of each task, and lets them run in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one timed round")
    parser.add_argument("--tasks", nargs="+", default=["hopper64", "hopper256", "cartpole"])
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "throughput.jsonl")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker, args.seconds)
        return
    results = {}
    for task in args.tasks:
        commands = {
            name: [sys.executable, __file__, "--worker", task, name, "--seconds", str(args.seconds)]
            for name in args.contenders
            if TASKS[task]["env"].startswith("brax/") or not name.startswith("brax")
        }
        results[task] = turns.measure(commands, args.repeats, AWAKE)
        show(task, {name: result.speeds for name, result in results[task].items()})
    rows = [
        result.row(task=task, contender=name, about=CONTENDERS[name], sizes=TASKS[task])
        for task, contenders in results.items()
        for name, result in contenders.items()
    ]
    machine.replace_rows(args.results, rows, "task", "contender", "device")


def show(task: str, speeds: dict[str, list[float]]) -> None:
    """A table of medians, with ratios to Brax's PPO and to the random policy."""
    median = {name: statistics.median(values) for name, values in speeds.items()}
    print(f"\n{task}: {TASKS[task]}")
    print(f"{'contender':20} {'steps/s':>10} {'min':>9} {'max':>9}  of random   of Brax's PPO")
    for name, value in median.items():
        ratios = [value / median[base] if base in median else None for base in ("random", "brax")]
        cells = ["" if r is None else f"{r:.2f}" for r in ratios]
        low, high = min(speeds[name]), max(speeds[name])
        print(f"{name:20} {value:10,.0f} {low:9,.0f} {high:9,.0f}  {cells[0]:>9}   {cells[1]:>9}")
    sys.stdout.flush()


def work(task: str, name: str, seconds: float) -> None:
    """Worker: compile, warm up, then one timed round per line of stdin."""
    ours.start(1 if name in ("ours-one-device", "brax") else 0)
    if name.startswith("brax"):
        work_brax(TASKS[task], seconds)
    elif name == "random":
        ours.random_actions(TASKS[task], seconds)
    else:
        shuffle = "trajectories" if name.endswith("trajectories") else "transitions"
        ours.train(TASKS[task] | {"shuffle": shuffle}, seconds)


def repair_brax() -> None:
    """Gives JAX back a function that Brax 0.14.2 still calls, and that JAX 0.10 has dropped."""
    import jax
    import jax.numpy as jnp

    if not hasattr(jax, "device_put_replicated"):
        mesh = jax.sharding.Mesh(jax.local_devices(), "device")
        each = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
        jax.device_put_replicated = lambda tree, devices: jax.tree.map(
            lambda x: jax.device_put(jnp.stack([x] * len(devices)), each), tree
        )


def work_brax(task: dict[str, Any], seconds: float) -> None:
    """Brax's PPO as it is; between two of its reports it waits for its turn."""
    import functools

    from brax import envs
    from brax.training.agents.ppo import networks, train

    repair_brax()
    factory = functools.partial(
        networks.make_ppo_networks,
        policy_hidden_layer_sizes=task["hidden"],
        value_hidden_layer_sizes=task["hidden"],
    )
    per_update = task["num_envs"] * task["rollout_length"]
    updates = max(1, round(seconds * 60_000 / per_update))
    reports = 0

    def progress(steps: int, metrics: dict[str, Any]) -> None:
        nonlocal reports
        reports += 1
        if reports == 2:  # the first interval compiles
            turns.ready()
        elif reports > 2:
            print("speed", float(metrics["training/sps"]), flush=True)
        if reports > 1 and not sys.stdin.readline():
            sys.exit()

    evals = 200
    train.train(
        environment=envs.get_environment(task["env"].partition("/")[2], backend="spring"),
        num_timesteps=per_update * updates * evals,
        episode_length=1000,
        num_envs=task["num_envs"],
        unroll_length=task["rollout_length"],
        batch_size=task["num_envs"] // task["num_minibatches"],
        num_minibatches=task["num_minibatches"],
        num_updates_per_batch=task["num_epochs"],
        normalize_observations=task["normalize_obs"],
        num_evals=evals + 1,
        num_eval_envs=1,
        run_evals=False,
        network_factory=factory,
        progress_fn=progress,
        seed=0,
    )


if __name__ == "__main__":
    main()
