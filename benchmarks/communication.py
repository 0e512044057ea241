"""What the shards of one agent say to each other in an update, and what it would cost on a cluster.

    python benchmarks/communication.py

Nothing is run or timed. The sums over shards and their bytes are counted in the program that two
devices would run; the cost on n devices follows from a model with the assumptions in `NETWORKS`.
Rows go to benchmarks/results/communication.jsonl.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import machine

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "hopper.yaml": ("hopper.yaml", {}),
    "hopper.yaml, layers of 256-256": ("hopper.yaml", {"network.hidden": [256, 256]}),
    "hopper.yaml, 4 minibatches, 4 epochs": (
        "hopper.yaml",
        {"ppo.num_minibatches": 4, "ppo.num_epochs": 4},
    ),
}


class Network(NamedTuple):
    """What is assumed of the links between devices."""

    about: str
    devices: int
    latency: float  # seconds of one hop
    bandwidth: float  # bytes/s out of a device


NETWORKS = (
    Network("one node", 8, 2e-6, 300e9),
    Network("nodes on a network", 64, 10e-6, 25e9),
    Network("nodes on a network", 1000, 10e-6, 25e9),
)


class Sum(NamedTuple):
    """One sum over shards in the program of an update."""

    times: int  # per update
    bytes: int  # of its operand


def main() -> None:
    """Counts the cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "communication.jsonl")
    args = parser.parse_args()

    from purejaxppo import load_config
    from purejaxppo.parallel.shards import use_cpu_cores

    use_cpu_cores(2)
    rows = []
    for name, (config, overrides) in CASES.items():
        rows.append(row(name, load_config(config, overrides)))
        print(f"\n{name}: {rows[-1]['sums']} sums, {rows[-1]['bytes']:,} bytes per update")
        for cost in rows[-1]["costs"]:
            print(
                f"  {cost['devices']:5} devices, {cost['about']:20} "
                f"{1e3 * cost['seconds']:9.2f} ms per update"
            )
    machine.write_rows(args.results, rows)


def row(name: str, config: Any) -> dict[str, Any]:
    """What is kept of one case."""
    sums = shard_sums(config)
    gradient = max(sums, key=lambda x: x.times)
    return {
        "case": name,
        "sums": sum(x.times for x in sums),
        "bytes": sum(x.times * x.bytes for x in sums),
        "gradient_sums": gradient.times,
        "gradient_bytes": gradient.bytes,
        "num_envs": config.env.num_envs,
        "steps_per_update": config.steps_per_update,
        "costs": [
            {
                **network._asdict(),
                "gradient_seconds": all_reduce_seconds(gradient.bytes, network),
                "seconds": sum(x.times * all_reduce_seconds(x.bytes, network) for x in sums),
            }
            for network in NETWORKS
        ],
        **machine.software(),
    }


def shard_sums(config: Any) -> list[Sum]:
    """The sums over shards in one update of two shards on two devices."""
    import jax

    from purejaxppo import learner
    from purejaxppo.agents.schedules import make_hyperparams
    from purejaxppo.parallel.shards import Shards
    from purejaxppo.parts import STATE_AXES, init_program, make_parts, map_over_shards, shard_ids

    parts = make_parts(replace(config, num_shards=2), Shards(2, jax.devices()[:2]))
    axes = (STATE_AXES, None)
    update = map_over_shards(parts, learner.train_step, axes, axes)
    state = jax.eval_shape(init_program(parts), jax.random.key(0), shard_ids(parts))
    program = jax.make_jaxpr(update)(state, make_hyperparams(config))
    return list(find_sums(program.jaxpr, 1))


def find_sums(program: Any, times: int) -> Iterator[Sum]:
    """The sums in a program that runs so many times, and in the loops inside it."""
    for equation in program.eqns:
        if equation.primitive.name.startswith("psum"):
            yield from (Sum(times, x.aval.size * x.aval.dtype.itemsize) for x in equation.invars)
        inside = times * equation.params.get("length", 1)
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                body = getattr(part, "jaxpr", part)
                if hasattr(body, "eqns"):
                    yield from find_sums(body, inside)


def all_reduce_seconds(size: int, network: Network) -> float:
    """How long a sum of `size` bytes over n devices takes, of the better of two algorithms.

    Ring: 2 (n - 1) hops, each of size / n bytes. Tree: 2 log2 n hops up and down, in parts that
    follow each other closely, so that twice the size passes a device.
    """
    n = network.devices
    ring = 2 * (n - 1) * network.latency + 2 * (n - 1) / n * size / network.bandwidth
    tree = 2 * math.ceil(math.log2(n)) * network.latency + 2 * size / network.bandwidth
    return min(ring, tree)


if __name__ == "__main__":
    main()
