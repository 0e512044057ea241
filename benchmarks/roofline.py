"""An update beside the gradients of its networks alone, on one device and on two.

    python benchmarks/roofline.py [--tasks cartpole hopper64 hopper256] [--rounds 15]

The gradients alone are one scan over minibatches that computes the gradient of the same network
on as many rows, adds a little of it to the parameters, and does nothing else: no rows are
gathered, the loss is a sum of squares, and there is no optimiser. No update with these networks
and minibatches can be faster on this machine. Two devices have half of the rows each; the sum
over devices is one vector of the gradient's size for each minibatch. An update without its sums
over devices is the same program where each device learns from its own rows alone, so that neither
waits for the other: what it saves is the sums themselves and the waiting for the other core.

All contenders are programs of one process, and take turns; medians over rounds are compared. Their
CPU time, of all cores together, is kept beside the time: other programs of the machine add nothing
to it. On two devices the time is half of it if no core ever waits. Rows go to
benchmarks/results/roofline.jsonl, and from there `docs/make_results.py` writes the tables. A row is
kept only if two devices that never wait had both cores.
"""

import argparse
import datetime
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine
import ours
from throughput import TASKS

Run = Callable[[int], Any]
"""Runs so many passes, each over an update's number of minibatches -> arrays to wait for."""
Times = dict[str, list[tuple[float, float]]]
"""Contender -> (microseconds, CPU microseconds) per minibatch of each round."""
BUSY = 1.7
"""Cores below which a row is not kept, where two were to be used."""
CONTENDERS = {
    "gradients, 1 device": "gradients alone, one device",
    "update, 1 device": "an update, one device",
    "gradients": "gradients alone, two devices, no sum over them",
    "sums": "sums over two devices alone, of vectors of the gradient's size",
    "gradients, sums": "gradients alone, two devices, summed for each minibatch",
    "update, no sums": "an update, two devices, without its sums over them",
    "update": "an update, two devices",
}


def main() -> None:
    """Measures the tasks one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a contender in a round")
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "roofline.jsonl")
    args = parser.parse_args()
    ours.start(2)
    for task in args.tasks:
        measured = row(task, measure(TASKS[task], args.rounds, args.seconds))
        show(measured)
        if cores_used(measured) < BUSY:
            print(f"{task}: other programs were at work, the row is not kept", flush=True)
        else:
            machine.replace_rows(args.results, [measured], "task", "device")


def measure(sizes: dict[str, Any], rounds: int, seconds: float) -> Times:
    """Each contender's times in each round."""
    runs = {**programs(sizes, 1), **programs(sizes, 2)}
    runs = {name: runs[name] for name in CONTENDERS}
    minibatches = sizes["num_minibatches"] * sizes["num_epochs"]
    counts = {}
    for name, run in runs.items():
        timed(run, 1)
        counts[name] = max(1, round(seconds / (timed(run, 4)[0] / 4)))
    times: Times = {name: [] for name in runs}
    for i in range(rounds):
        for name in list(runs)[:: 1 if i % 2 else -1]:
            count = counts[name]
            spent = timed(runs[name], count)
            times[name].append(tuple(1e6 * x / (count * minibatches) for x in spent))
    return times


def timed(run: Run, count: int) -> tuple[float, float]:
    """(seconds, CPU seconds of all threads) of one call."""
    import jax

    started = time.perf_counter(), time.process_time()
    jax.block_until_ready(run(count))
    return time.perf_counter() - started[0], time.process_time() - started[1]


def programs(sizes: dict[str, Any], devices: int) -> dict[str, Run]:
    """The contenders on so many devices."""
    import jax

    from purejaxppo.parallel.shards import Shards
    from purejaxppo.parts import make_parts

    class Apart(Shards):
        """Shards that learn by themselves."""

        def psum(self, x: Any) -> Any:
            """The shard's own."""
            return x

    config = replace(ours.config_of(sizes), num_shards=devices)
    used = jax.devices()[:devices]
    parts = make_parts(config, Shards(devices, used))
    apart = make_parts(config, Apart(devices, used))
    if devices == 1:
        return {
            "gradients, 1 device": gradients(parts, sizes),
            "update, 1 device": update(parts),
        }
    return {
        "gradients": gradients(apart, sizes),
        "sums": gradients(parts, sizes, compute=False),
        "gradients, sums": gradients(parts, sizes),
        "update, no sums": update(apart),
        "update": update(parts),
    }


def gradients(parts: Any, sizes: dict[str, Any], *, compute: bool = True) -> Run:
    """Passes over minibatches with nothing but gradients and sums over shards, or the sums only."""
    import jax
    import jax.numpy as jnp

    from purejaxppo.agents import optimizers
    from purejaxppo.agents.networks import zeros

    minibatches = sizes["num_minibatches"] * sizes["num_epochs"]
    shards, policy = parts.shards, parts.policy
    rows = sizes["num_envs"] * sizes["rollout_length"] // sizes["num_minibatches"]
    shape = minibatches, rows // shards.num_shards, *zeros(policy.observation).shape
    params = jax.jit(policy.network.init)(jax.random.key(0))
    flat, unravel = optimizers.flatten(params)

    def loss(flat, obs):
        start = jnp.zeros(len(obs), bool)
        out = policy.network.unroll(unravel(flat), (), obs, start, None)
        return jnp.sum(jnp.square(out.dist_params)) + jnp.sum(jnp.square(out.critic))

    def step(flat, obs):
        gradient = jax.grad(loss)(flat, obs) if compute else flat
        return flat - 1e-6 * shards.psum(gradient), None

    def passes(flat, obs, count):
        return jax.lax.fori_loop(0, count, lambda _, x: jax.lax.scan(step, x, obs)[0], flat)

    program = jax.jit(shards.map(passes, (None, 0, None), None))
    obs = jax.random.normal(jax.random.key(1), (shards.num_shards, *shape))
    given = jax.device_put((flat, obs), shards.shardings((None, 0)) or shards.devices[0])
    return lambda count: program(*given, count)


def update(parts: Any) -> Run:
    """Updates from one rollout, again and again: values, advantages, and all epochs."""
    import jax

    from purejaxppo import learner
    from purejaxppo.agents import diagnostics
    from purejaxppo.agents.schedules import make_hyperparams
    from purejaxppo.parts import STATE_AXES, init_program, map_over_shards, shard_ids

    def collect(parts, state):
        return learner.collect(parts, state.agent, state.rollout, state.key, 0.0)

    def updates(parts, state, rollout, hp, count):
        def body(_, carried):
            state, metrics = learner.learn(parts, carried[0], rollout, hp)
            return state, jax.tree.map(jax.numpy.add, carried[1], metrics)

        first = state, diagnostics.zero_metrics(parts.figures)
        return jax.lax.fori_loop(0, count, body, first)

    state = jax.jit(init_program(parts), out_shardings=parts.shards.shardings(STATE_AXES))(
        jax.random.key(0), shard_ids(parts)
    )
    rollout = jax.jit(map_over_shards(parts, collect, (STATE_AXES,), 0))(state)
    hp = make_hyperparams(parts.config)
    axes = (STATE_AXES, 0, None, None), (STATE_AXES, None)
    program = jax.jit(map_over_shards(parts, updates, *axes))
    return lambda count: program(state, rollout, hp, count)


def row(task: str, times: Times) -> dict[str, Any]:
    """What is kept of a task."""

    def each(place: int) -> dict[str, list[float]]:
        return {name: [round(t[place], 1) for t in x] for name, x in times.items()}

    return {
        "task": task,
        "sizes": TASKS[task],
        "contenders": list(CONTENDERS.items()),
        "microseconds": {name: statistics.median(x) for name, x in each(0).items()},
        "cpu_microseconds": {name: statistics.median(x) for name, x in each(1).items()},
        "rounds": each(0),
        "date": datetime.date.today().isoformat(),
        **machine.describe(),
    }


def cores_used(row: dict[str, Any]) -> float:
    """Cores at work in the program on two devices in which neither waits; 2 if nobody else ran."""
    return row["cpu_microseconds"]["gradients"] / row["microseconds"]["gradients"]


def show(row: dict[str, Any]) -> None:
    """Microseconds per minibatch."""
    print(f"\n{row['task']}: microseconds per minibatch, CPU microseconds, range of the former")
    for name, value in row["microseconds"].items():
        low, high = min(row["rounds"][name]), max(row["rounds"][name])
        cpu = row["cpu_microseconds"][name]
        print(f"{CONTENDERS[name]:65} {value:7.1f} {cpu:7.1f}  {low:7.1f} to {high:7.1f}")


if __name__ == "__main__":
    main()
