"""Steps per second: ours, Brax's own PPO, and the simulator under random actions, in one run.

    python benchmarks/throughput.py [--repeats 7] [--seconds 4] [--tasks hopper64 cartpole]

Every contender is a process of its own that compiles, warms up and then waits; the parent lets one
run at a time, round after round, so that a noisy machine is noisy for all. Medians over rounds are
compared. Compile time is never counted. Results go to benchmarks/results/throughput.jsonl.
"""

import argparse
import datetime
import statistics
import subprocess
import sys
import time
from typing import Any

import machine

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
    "ours": "purejaxppo, transitions shuffled, every core a device",
    "ours-trajectories": "purejaxppo, whole trajectories shuffled, every core a device",
    "ours-one-device": "purejaxppo, transitions shuffled, one device",
    "random": "the simulator under a random policy, every core a device",
    "brax": "Brax's own PPO, equal sizes and epochs, one device (its default)",
    "brax-devices": "Brax's own PPO, equal sizes and epochs, every core a device",
}


def main() -> None:
    """Parent: starts the contenders of each task, and lets them run in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one timed round")
    parser.add_argument("--tasks", nargs="+", default=["hopper64", "hopper256", "cartpole"])
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker, args.seconds)
        return
    path = machine.RESULTS / "throughput.jsonl"
    rows = []
    for task in args.tasks:
        contenders = [
            name
            for name in args.contenders
            if TASKS[task]["env"].startswith("brax/") or not name.startswith("brax")
        ]
        speeds = measure(task, contenders, args.repeats, args.seconds)
        rows += [row(task, name, values) for name, values in speeds.items()]
        show(task, speeds)
    done = {(r["task"], r["contender"], r["device"]) for r in rows}
    old = machine.read_rows(path)
    kept = [r for r in old if (r["task"], r["contender"], r["device"]) not in done]
    machine.write_rows(path, [*kept, *rows])


def measure(task: str, names: list[str], repeats: int, seconds: float) -> dict[str, list[float]]:
    """Steps/s of each contender in each round."""
    workers = {}
    for name in names:
        workers[name] = subprocess.Popen(
            [sys.executable, __file__, "--worker", task, name, "--seconds", str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        expect(workers[name], "ready")  # one compiles at a time
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, worker in workers.items():
            worker.stdin.write("go\n")
            worker.stdin.flush()
            speeds[name].append(float(expect(worker, "speed").split()[1]))
    for worker in workers.values():
        worker.kill()
        worker.wait()
    return speeds


def expect(worker: subprocess.Popen, word: str) -> str:
    """The next line of a worker that begins with `word`."""
    for line in worker.stdout:
        if line.startswith(word):
            return line
    raise RuntimeError(f"{worker.args}: ended with {worker.wait()}")


def row(task: str, name: str, speeds: list[float]) -> dict[str, Any]:
    """What is kept of one contender."""
    return {
        "task": task,
        "contender": name,
        "about": CONTENDERS[name],
        "sizes": {k: list(v) if isinstance(v, tuple) else v for k, v in TASKS[task].items()},
        "steps_per_second": statistics.median(speeds),
        "rounds": [round(speed) for speed in speeds],
        "date": datetime.date.today().isoformat(),
        **machine.describe(),
    }


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
    from purejaxppo.sharding import use_compilation_cache, use_cpu_cores

    use_compilation_cache()
    use_cpu_cores(1 if name in ("ours-one-device", "brax") else 0)
    {"random": work_random, "brax": work_brax}.get(name.partition("-")[0], work_ours)(
        TASKS[task], name, seconds
    )


def rounds(step: Any, seconds: float) -> None:
    """Reports the speed of `step()`, which returns the env steps it took, round after round."""
    step()
    started = time.perf_counter()
    step()
    calls = max(1, round(seconds / (time.perf_counter() - started)))
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        steps = sum(step() for _ in range(calls))
        print("speed", steps / (time.perf_counter() - started), flush=True)


def our_config(task: dict[str, Any], name: str) -> Any:
    """A task's sizes as our Config."""
    from purejaxppo.config import Config, EnvConfig, EvalConfig, NetworkConfig, PPOConfig

    return Config(
        env=EnvConfig(name=task["env"], num_envs=task["num_envs"]),
        network=NetworkConfig(hidden=task["hidden"]),
        ppo=PPOConfig(
            rollout_length=task["rollout_length"],
            num_minibatches=task["num_minibatches"],
            num_epochs=task["num_epochs"],
            normalize_obs=task["normalize_obs"],
            shuffle="trajectories" if name.endswith("trajectories") else "transitions",
        ),
        eval=EvalConfig(num_episodes=0),
        total_timesteps=100_000_000,
    )


def work_ours(task: dict[str, Any], name: str, seconds: float) -> None:
    """The same compiled programs as `python -m purejaxppo.train`."""
    import jax
    import numpy as np

    from purejaxppo.loop import Programs, resolve_shards

    config = resolve_shards(our_config(task, name), len(jax.devices()))
    programs = Programs(config, jax.devices())
    state = programs.init()
    programs.compile(state)
    updates = np.int32(max(1, 200_000 // config.steps_per_update))

    def step() -> int:
        nonlocal state
        state, metrics = programs.train_chunk(state, programs.hp, updates)
        return int(metrics.env_steps)

    rounds(step, seconds)


def work_random(task: dict[str, Any], name: str, seconds: float) -> None:
    """Uniform random actions, no network."""
    import jax
    import jax.numpy as jnp

    from purejaxppo.envs import registry
    from purejaxppo.loop import resolve_shards
    from purejaxppo.sharding import Shards
    from purejaxppo.spaces import Discrete

    config = resolve_shards(our_config(task, name), len(jax.devices()))
    shards = Shards(config.num_shards, jax.devices())
    env = registry.make(config.env, config.env.num_envs // config.num_shards)
    n, length = env.spec.num_envs, config.ppo.rollout_length

    def action(key):
        if isinstance(env.spec.action, Discrete):
            return jax.random.randint(key, (n,), 0, env.spec.action.n)
        return jax.random.uniform(key, (n, *env.spec.action.shape), minval=-1.0, maxval=1.0)

    def one(state, key):
        state, out = env.step(state, action(key))
        return state, jnp.sum(out.valid)

    def run(state, key, shard, count):
        def rollout(_, carried):
            state, key, steps = carried
            key, now = jax.random.split(key)
            state, valid = jax.lax.scan(one, env.refresh(state), jax.random.split(now, length))
            return state, key, steps + jnp.sum(valid)

        key = jax.random.fold_in(key, shard)
        return jax.lax.fori_loop(0, count, rollout, (state, key, jnp.zeros((), jnp.int32)))

    ids = jnp.arange(config.num_shards)
    init = jax.jit(
        shards.map(lambda key, i: env.reset(jax.random.fold_in(key, i))[0], (None, 0), 0),
        out_shardings=shards.shardings(0),
    )
    program = jax.jit(
        shards.map(
            lambda state, key, i, count: (
                (out := run(state, key, i, count))[0],
                shards.psum(out[2]),
            ),
            (0, None, 0, None),
            (0, None),
        ),
        donate_argnums=0,
        out_shardings=shards.shardings((0, None)),
    )
    state, key = init(jax.random.key(0), ids), jax.random.key(1)
    count = max(1, 200_000 // config.steps_per_update)

    def step() -> int:
        nonlocal state, key
        key, now = jax.random.split(key)
        state, steps = program(state, now, ids, count)
        return int(steps)

    step()
    rounds(step, seconds)


def work_brax(task: dict[str, Any], name: str, seconds: float) -> None:
    """Brax's PPO as it is; between two of its reports it waits for its turn."""
    import functools

    import jax
    import jax.numpy as jnp

    # Brax 0.14.2 still calls this; JAX 0.10 has dropped it.
    if not hasattr(jax, "device_put_replicated"):
        mesh = jax.sharding.Mesh(jax.local_devices(), "device")
        each = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
        jax.device_put_replicated = lambda tree, devices: jax.tree.map(
            lambda x: jax.device_put(jnp.stack([x] * len(devices)), each), tree
        )
    from brax import envs
    from brax.training.agents.ppo import networks, train

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
            print("ready", flush=True)
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
