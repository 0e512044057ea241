"""Neuron-steps per second of the oscillator ensembles, and the share of PPO in the time.

    python benchmarks/oscillator.py [--seconds 3]
    python benchmarks/oscillator.py --learn 5

Env only: each core is a device, actions are zero, histories and rewards are included. Training: the
program of `python -m purejaxppo.train --config oscillator.yaml`. Then its parts (docs/parts.md),
each alone on one device, per neuron-step of their rollouts. Compile time is not counted. Rows go
to benchmarks/results/oscillator.jsonl.

--learn trains so many seeds of oscillator.yaml with the command of the README, and stores how far
each agent desynchronises 16 ensembles outside of its training, as rows of
benchmarks/results/oscillator_learning.jsonl.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness
import ours

GRID = [(64, 100), (64, 1_000), (64, 10_000), (512, 1_000), (4_096, 100), (4_096, 1_000)]
"""(ensembles, neurons per ensemble)."""
Run = Callable[[int], int]
"""A function: number of calls -> neuron-steps."""
MEASURE = """
import json, sys
from purejaxppo import restore
from purejaxppo.envs import registry
from purejaxppo.envs.adapters.oscillator import report
agent = restore(sys.argv[1])
f = report.measure(registry.make_task(agent.config.env), agent.controller(), seed=1000)
print(json.dumps({k: [float(x.mean()), float(x.min())] for k, x in f._asdict().items()}))
"""


def main() -> None:
    """Measure the grid of sizes, then training and its parts."""
    parser = harness.options(__doc__, "oscillator", rounds=5, seconds=3.0)
    parser.add_argument("--learn", type=int, default=0, help="seeds to train instead")
    args = harness.parse(parser)
    if args.learn:
        args.results = args.results.with_name("oscillator_learning.jsonl")
        harness.keep(args, [learn(seed) for seed in range(args.learn)], "seed")
        return
    ours.start()
    rows = []
    for ensembles, neurons in [(8, 10)] if args.toy else GRID:
        rows += measure({"env only": env_only(ensembles, neurons)}, ensembles, neurons, args)
    ensembles, neurons = (8, 10) if args.toy else (64, 1_000)
    changes = {"eval.num_episodes": 0, "env.options": {"num_neurons": neurons}}
    if args.toy:
        changes |= {"env.num_envs": 8, "ppo.rollout_length": 8, "ppo.num_minibatches": 2}
    if not args.toy:
        rows += measure({"training": training(changes, neurons)}, ensembles, neurons, args)
    rows += measure(parts(changes, neurons), ensembles, neurons, args)
    harness.keep(args, rows, "what", "ensembles", "neurons", "device")


def measure(
    runs: dict[str, Run], ensembles: int, neurons: int, args: argparse.Namespace
) -> list[harness.Row]:
    """Time functions in alternation, and return and print their rows."""
    rows = []
    for what, result in harness.alternate(runs, args).items():
        speed = result.median()
        print(f"{what:16} {ensembles:5} x {neurons:6,} neurons: {speed:.3g} neuron-steps/s")
        sizes = {"ensembles": ensembles, "neurons": neurons}
        rows.append({"what": what, **sizes, "neuron_steps_per_second": speed})
    return rows


def learn(seed: int) -> harness.Row:
    """Train one seed with the command, and return the metrics of its best agent."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = str(Path(folder) / "run")
        command = [sys.executable, "-m", "purejaxppo.train", "--config", "oscillator"]
        started = time.perf_counter()
        harness.call([*command, "--seed", str(seed), "--run_dir", run_dir])
        seconds = time.perf_counter() - started
        out = harness.call([sys.executable, "-c", MEASURE, run_dir])
        last = harness.metrics(Path(run_dir))[-1]
    figures = json.loads(out.splitlines()[-1])
    print(
        f"seed {seed}: suppression {figures['suppression'][0]:.1f} (worst ensemble "
        f"{figures['suppression'][1]:.1f}), neuron std {figures['neuron_std'][0]:.2f}, "
        f"{seconds:.0f} s in all",
        flush=True,
    )
    return {
        "seed": seed,
        "env_steps": int(last["global_step"]),
        "train_seconds": last["seconds"],
        "seconds": seconds,
        "figures": figures,
    }


def env_only(ensembles: int, neurons: int) -> Run:
    """Return the simulator alone."""
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
        key = jax.random.key(0)
        one_step = lambda s, _: (env.step(key, s, action)[0], None)  # noqa: E731
        return jax.lax.scan(one_step, state, None, length)[0]

    init = jax.jit(
        shards.map(lambda key, i: env.reset(jax.random.fold_in(key, i))[0], (None, 0), 0),
        out_shardings=shards.shardings(0),
    )
    program = jax.jit(
        shards.map(rollout, (0,), 0), donate_argnums=0, out_shardings=shards.shardings(0)
    )
    state = init(jax.random.key(0), jnp.arange(shards.num_shards))

    def run(calls: int) -> int:
        nonlocal state
        for _ in range(calls):
            state = jax.block_until_ready(program(state))
        return calls * ensembles * neurons * length

    return run


def training(changes: dict[str, Any], neurons: int) -> Run:
    """Return the training of oscillator.yaml."""
    import jax

    from purejaxppo import load_config
    from purejaxppo.setup import resolve_shards

    config = resolve_shards(load_config("oscillator.yaml", changes), len(jax.devices()))
    run, _ = ours.updates_of(config)
    return lambda calls: run(4 * calls) * neurons


def parts(changes: dict[str, Any], neurons: int) -> dict[str, Run]:
    """Return environment, inference, collector and trainer, each alone on one device."""
    import jax
    import jax.numpy as jnp

    from purejaxppo import learner, load_config
    from purejaxppo.agents.schedules import make_hyperparams
    from purejaxppo.parts import make_parts

    parts = make_parts(load_config("oscillator.yaml", changes))
    hp, key = make_hyperparams(parts.config), jax.random.key(0)
    state = jax.jit(partial(learner.init_state, parts))(key, 0)
    length, n = parts.config.ppo.rollout_length, parts.env.spec.num_envs
    zeros = jnp.zeros((n, 1))

    def steps(env_state):
        body = lambda s, _: (parts.env.step(key, s, zeros)[0], None)  # noqa: E731
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

    def counted(call: Any) -> Run:
        return lambda calls: sum(
            (jax.block_until_ready(call()), length * n * neurons)[1] for _ in range(calls)
        )

    return {name: counted(call) for name, call in calls.items()}


if __name__ == "__main__":
    main()
