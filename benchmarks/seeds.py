"""Speed and peak memory of seeds trained in one program, by the number of seeds.

    python benchmarks/seeds.py [--counts 1 4 16 32 64 256] [--rounds 3] [--steps 25600]

CartPole, 4 environments x 128 steps per seed. Full trainings, from initial parameters to the last
update: all seeds in one program over every device; one after another, with a program that was
compiled once; and PPO with the structure of PureJaxRL (plain.py), vmapped over seeds. Each process
measures its own memory. Compilation is timed separately. Rows go to
benchmarks/results/seeds.jsonl, the plot of them to docs/pictures/seeds.png.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import ours

SIZES: dict[str, Any] = {
    "env": "gymnax/CartPole-v1",
    "num_envs": 4,
    "rollout_length": 128,
    "num_minibatches": 4,
    "num_epochs": 4,
    "hidden": (64, 64),
    "normalize_obs": False,
    "learning_rate": 1e-3,
}
TOY = {"rollout_length": 8, "num_epochs": 1, "hidden": (4,)}
CONTENDERS = {
    "together": "purejaxppo, seeds in one program, transitions shuffled",
    "together-trajectories": "purejaxppo, seeds in one program, whole trajectories shuffled",
    "alone": "purejaxppo, one seed after another, transitions shuffled",
    "plain": "PureJaxRL's plan, seeds vmapped on one device",
    "plain-devices": "PureJaxRL's plan, seeds vmapped on every core a device",
}
CPU_COUNTS = (1, 4, 16, 32, 64, 256)
ACCELERATOR_COUNTS = (*CPU_COUNTS, 1024, 2048)
MOST_ALONE = 16
"""Numbers of seeds that are also trained one after another; the time is proportional."""


def main() -> None:
    """Compare the contenders in alternation for each number of seeds."""
    parser = harness.options(__doc__, "seeds", rounds=3, seconds=1.0)
    parser.add_argument("--counts", type=int, nargs="+", help="numbers of seeds")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--steps", type=int, default=25_600, help="environment steps per seed")
    parser.add_argument(
        "--picture", type=Path, default=harness.PICTURES / "seeds.png", help="file of the plot"
    )
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = harness.parse(parser)
    if args.worker:
        name, count, sizes = args.worker
        work(name, int(count), json.loads(sizes), args.seconds)
        return
    sizes = {**SIZES, **(TOY if args.toy else {})}
    sizes["total_timesteps"] = 64 if args.toy else args.steps
    words = [sys.executable, __file__, "--seconds", str(args.seconds), "--worker"]
    rows = []
    for count in args.counts or ([2] if args.toy else default_counts()):
        commands = {
            name: [*words, name, str(count), json.dumps(sizes)]
            for name in args.contenders
            if name != "alone" or count <= MOST_ALONE
        }
        results = harness.measure(commands, args.rounds)
        harness.show(f"{count} seeds of {sizes['total_timesteps']:,} steps", results, "plain")
        row = {"seeds": count, "steps": args.steps, "sizes": SIZES}
        rows += [
            result.row(contender=name, about=CONTENDERS[name], **row)
            for name, result in results.items()
        ]
    harness.keep(args, rows, "contender", "seeds", "device")
    if not args.toy:
        draw(harness.read_rows(args.results), args.picture)


def default_counts() -> tuple[int, ...]:
    """Return the numbers of seeds for the device of JAX, which a separate process detects."""
    code = "import jax; print(jax.default_backend())"
    device = harness.call([sys.executable, "-c", code]).split()[-1]
    return CPU_COUNTS if device == "cpu" else ACCELERATOR_COUNTS


def work(name: str, count: int, sizes: dict[str, Any], seconds: float) -> None:
    """Compile without a cache, then train all seeds in every round."""
    ours.start(1 if name == "plain" else 0, cache=False)
    sizes["hidden"] = tuple(sizes["hidden"])
    started = time.perf_counter()
    if name.startswith("plain"):
        once = train_plain(sizes, count)
    else:
        shuffle = "trajectories" if name.endswith("trajectories") else "transitions"
        once = train_ours(sizes | {"shuffle": shuffle}, count, together=name != "alone")
    compiled = time.perf_counter() - started

    def run(trainings: int) -> int:
        return sum(once() for _ in range(trainings))

    facts = {"compile_seconds": round(compiled, 2)}
    harness.rounds(run, seconds, lambda: facts | harness.peak())


def train_ours(sizes: dict[str, Any], count: int, *, together: bool) -> Callable[[], int]:
    """Return a function that trains all seeds and returns their environment steps."""
    import jax
    import numpy as np

    from purejaxppo.parts import shard_ids

    config = ours.config_of(sizes | {"num_seeds": count if together else 1})
    programs = ours.programs_of(config)
    seeds = [jax.random.key(seed)[None] for seed in range(count)]
    keys = [programs.key] if together else seeds
    updates, ids = np.int32(config.num_updates), shard_ids(programs.parts)
    init = programs.begin().result()
    programs.compile(programs.abstract_state())

    def once() -> int:
        total = 0
        for key in keys:
            state, metrics = programs.train_chunk(init(key, ids), programs.hp, updates)
            total += int(np.sum(metrics.env_steps))
            jax.block_until_ready(state)
        return total

    return once


def train_plain(sizes: dict[str, Any], count: int) -> Callable[[], int]:
    """Return a function as `train_ours` for plain.py: vmapped seeds over the devices."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec
    from plain import make_train

    from purejaxppo.parallel.shards import largest_divisor

    per_update = sizes["num_envs"] * sizes["rollout_length"]
    updates = -(-sizes["total_timesteps"] // per_update)
    init, train = make_train(sizes, updates)
    devices = largest_divisor(count, len(jax.devices()))
    mesh = jax.make_mesh((devices,), ("seed",), devices=jax.devices()[:devices])
    spec = PartitionSpec("seed")
    keys = jax.device_put(jax.random.split(jax.random.key(0), count), NamedSharding(mesh, spec))

    def program(keys):
        return jax.vmap(train)(jax.lax.map(init, keys), keys)

    sharded = jax.shard_map(program, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    compiled = jax.jit(sharded).lower(keys).compile()

    def once() -> int:
        jax.block_until_ready(compiled(keys))
        return count * updates * per_update

    return once


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot seconds and memory over the number of seeds, for the device with the most rows."""
    from matplotlib.figure import Figure

    device = statistics.mode(row["device"] for row in rows)
    rows = [row for row in rows if row["device"] == device]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for name, about in CONTENDERS.items():
        points = sorted((row for row in rows if row["contender"] == name), key=lambda r: r["seeds"])
        counts = [row["seeds"] for row in points]
        seconds = [row["seeds"] * row["steps"] / row["steps_per_second"] for row in points]
        panels[0].loglog(counts, seconds, "o-", label=about)
        panels[1].semilogx(counts, [row["peak_mb"] for row in points], "o-")
    panels[0].set_ylabel(f"seconds for {rows[-1]['steps']:,} steps of each")
    panels[1].set_ylabel("peak memory of the process, MB")
    panels[1].set_ylim(bottom=0)
    for panel in panels:
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_xlabel("seeds")
        harness.axes_style(panel)
    figure.legend(loc="outside upper center", ncols=2, fontsize=9)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
