"""Neuron-steps per second of the oscillator ensembles, and PPO's share of them.

    python benchmarks/oscillator.py [--seconds 3]
    python benchmarks/oscillator.py --learn 5

Env only: every core a device, zero actions, histories and rewards included. Training: the program
of `python -m purejaxppo.train --config oscillator.yaml`. Then its parts (docs/parts.md), each alone
on one device, per neuron-step of the rollouts that they serve. Compile time is not counted. Rows go
to benchmarks/results/oscillator.jsonl.

--learn trains oscillator.yaml with the README's command for so many seeds, and keeps how far each
agent parts 16 ensembles that it has never seen, in benchmarks/results/oscillator_learning.jsonl.
"""

import argparse
import csv
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import machine

GRID = [(64, 100), (64, 1_000), (64, 10_000), (512, 1_000), (4_096, 100), (4_096, 1_000)]
"""(ensembles, neurons of each)."""


def main() -> None:
    """Measures the grid, then training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of one timed round")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--learn", type=int, default=0, help="seeds to train instead")
    args = parser.parse_args()
    if args.learn:
        learned = [learn(seed) for seed in range(args.learn)]
        machine.write_rows(machine.RESULTS / "oscillator_learning.jsonl", learned)
        return
    from purejaxppo.parallel.shards import use_cpu_cores

    use_cpu_cores(0)
    rows = []
    for ensembles, neurons in GRID:
        speed = env_only(ensembles, neurons, args.seconds, args.repeats)
        rows.append(row("env only", ensembles, neurons, speed))
    rows.append(row("training", 64, 1_000, training(args.seconds, args.repeats)))
    for what, speed in parts(args.seconds, args.repeats).items():
        rows.append(row(what, 64, 1_000, speed))
    machine.write_rows(machine.RESULTS / "oscillator.jsonl", rows)


def learn(seed: int) -> dict[str, Any]:
    """One seed: the training command, then the figures of its best agent."""
    code = (
        "import json, sys\n"
        "from purejaxppo import restore\n"
        "from purejaxppo.envs import registry\n"
        "from purejaxppo.envs.oscillator import report\n"
        "agent = restore(sys.argv[1])\n"
        "f = report.measure(\n"
        "    registry.make_task(agent.config.env), agent.controller(), seed=1000)\n"
        "f = {k: [float(x.mean()), float(x.min())] for k, x in f._asdict().items()}\n"
        "print(json.dumps(f))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        run_dir = str(Path(folder) / "run")
        command = [sys.executable, "-m", "purejaxppo.train", "--config", "oscillator"]
        started = time.perf_counter()
        subprocess.run(
            [*command, "--seed", str(seed), "--run_dir", run_dir], check=True, capture_output=True
        )
        seconds = time.perf_counter() - started
        out = subprocess.run(
            [sys.executable, "-c", code, run_dir], check=True, capture_output=True, text=True
        )
        with (Path(run_dir) / "metrics.csv").open(newline="") as file:
            last = list(csv.DictReader(file))[-1]
    figures = json.loads(out.stdout.splitlines()[-1])
    print(
        f"seed {seed}: suppression {figures['suppression'][0]:.1f} (worst ensemble "
        f"{figures['suppression'][1]:.1f}), neuron std {figures['neuron_std'][0]:.2f}, "
        f"{seconds:.0f} s in all",
        flush=True,
    )
    return {
        "seed": seed,
        "env_steps": int(float(last["global_step"])),
        "train_seconds": float(last["seconds"]),
        "seconds": seconds,
        "figures": figures,
        "date": datetime.date.today().isoformat(),
        **machine.describe(),
    }


def row(what: str, ensembles: int, neurons: int, speed: float) -> dict[str, Any]:
    """What is kept, and printed, of one setting."""
    print(f"{what:16} {ensembles:5} x {neurons:6,} neurons: {speed:.3g} neuron-steps/s", flush=True)
    return {
        "what": what,
        "ensembles": ensembles,
        "neurons": neurons,
        "neuron_steps_per_second": speed,
        "date": datetime.date.today().isoformat(),
        **machine.describe(),
    }


def timed(step: Any, seconds: float, repeats: int) -> float:
    """Median over rounds of what `step()` returns per second."""
    step()
    started = time.perf_counter()
    step()
    calls = max(1, round(seconds / (time.perf_counter() - started)))
    speeds = []
    for _ in range(repeats):
        started = time.perf_counter()
        done = sum(step() for _ in range(calls))
        speeds.append(done / (time.perf_counter() - started))
    return statistics.median(speeds)


def env_only(ensembles: int, neurons: int, seconds: float, repeats: int) -> float:
    """Neuron-steps per second of the simulator alone."""
    import jax
    import jax.numpy as jnp

    from purejaxppo.config.schema import EnvConfig
    from purejaxppo.envs import registry
    from purejaxppo.parallel.shards import Shards

    shards = Shards(len(jax.devices()), jax.devices())
    config = EnvConfig(name="oscillator/bvdp", options={"num_neurons": neurons})
    env = registry.make(config, ensembles // shards.num_shards)
    length = max(1, min(200, 100_000_000 // (ensembles * neurons)))
    action = jnp.zeros((env.spec.num_envs, 1))

    def rollout(state):
        return jax.lax.scan(lambda s, _: (env.step(s, action)[0], None), state, None, length)[0]

    init = jax.jit(
        shards.map(lambda key, i: env.reset(jax.random.fold_in(key, i))[0], (None, 0), 0),
        out_shardings=shards.shardings(0),
    )
    program = jax.jit(
        shards.map(rollout, (0,), 0), donate_argnums=0, out_shardings=shards.shardings(0)
    )
    state = init(jax.random.key(0), jnp.arange(shards.num_shards))

    def step() -> int:
        nonlocal state
        state = jax.block_until_ready(program(state))
        return ensembles * neurons * length

    return timed(step, seconds, repeats)


def training(seconds: float, repeats: int) -> float:
    """Neuron-steps per second while PPO learns."""
    import jax
    import numpy as np

    from purejaxppo import load_config
    from purejaxppo.runs.programs import Programs, resolve_shards

    config = resolve_shards(load_config("oscillator.yaml"), len(jax.devices()))
    programs = Programs(config, jax.devices())
    state = programs.init()
    programs.compile(state)

    def step() -> int:
        nonlocal state
        state, metrics = programs.train_chunk(state, programs.hp, np.int32(4))
        return int(metrics.env_steps[0]) * 1_000

    return timed(step, seconds, repeats)


def parts(seconds: float, repeats: int) -> dict[str, float]:
    """Brain, inference, collector and trainer alone, on one device."""
    import jax
    import jax.numpy as jnp

    from purejaxppo import learner, load_config
    from purejaxppo.agents.schedules import make_hyperparams
    from purejaxppo.parts import make_parts

    parts = make_parts(load_config("oscillator.yaml"))
    hp, key = make_hyperparams(parts.config), jax.random.key(0)
    state = jax.jit(partial(learner.init_state, parts))(key, 0)
    length, n = parts.config.ppo.rollout_length, parts.env.spec.num_envs
    zeros = jnp.zeros((n, 1))

    def steps(env_state):
        body = lambda s, _: (parts.env.step(s, zeros)[0], None)  # noqa: E731
        return jax.lax.scan(body, env_state, None, length)[0]

    def inference(obs):
        keys = jax.random.split(key, length)
        start = state.rollout.start
        return jax.lax.map(lambda k: parts.act(state.agent, k, (), obs, start).env_action, keys)

    def collect(before):
        return learner.collect(parts, state.agent, before, key, 0.0)

    def train(rollout):
        return learner.learn(parts, state, rollout, hp)

    collector = jax.jit(collect)
    rollout = collector(state.rollout)
    brain, infer, trainer = jax.jit(steps), jax.jit(inference), jax.jit(train)
    calls = {
        "brain": lambda: brain(state.rollout.env),
        "inference": lambda: infer(state.rollout.obs),
        "collector": lambda: collector(state.rollout),
        "trainer": lambda: trainer(rollout),
    }

    def counted(call: Any) -> Any:
        return lambda: (jax.block_until_ready(call()), length * n * 1_000)[1]

    return {name: timed(counted(call), seconds, repeats) for name, call in calls.items()}


if __name__ == "__main__":
    main()
