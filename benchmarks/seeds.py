"""Many seeds at once: seconds, steps per second in sum, and peak memory, by the number of seeds.

    python benchmarks/seeds.py [--counts 1 4 16 32 64 256] [--repeats 3] [--steps 25600]

CartPole, 4 environments x 128 steps per seed. Whole trainings, from fresh parameters to the last
update: the seeds together in one program over every device; one after another, with a program that
was compiled once; and PPO after PureJaxRL's plan (plain.py), vmapped over seeds. Every contender is
a process of its own, so that its memory is its own; the parent lets one run at a time, round after
round. Compiling is timed apart. Rows go to benchmarks/results/seeds.jsonl, the picture of them to
docs/pictures/seeds.png.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
import ours
import turns

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "seeds.png"
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
"""Seeds that are also trained one after another; more take as many times longer."""


def main() -> None:
    """Parent: for each number of seeds, the contenders in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="+", help="numbers of seeds")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds")
    parser.add_argument("--steps", type=int, default=25_600, help="environment steps of a seed")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round, at least")
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "seeds.jsonl")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker[0], int(args.worker[1]), args.steps, args.seconds)
        return
    counts = args.counts or (CPU_COUNTS if on_cpu() else ACCELERATOR_COUNTS)
    flags = ["--steps", str(args.steps), "--seconds", str(args.seconds)]
    results = {}
    for count in counts:
        commands = {
            name: [sys.executable, __file__, "--worker", name, str(count), *flags]
            for name in args.contenders
            if name != "alone" or count <= MOST_ALONE
        }
        results[count] = turns.measure(commands, args.repeats)
        show(count, args.steps, results[count])
    rows = [
        result.row(
            contender=name, seeds=count, steps=args.steps, about=CONTENDERS[name], sizes=SIZES
        )
        for count, contenders in results.items()
        for name, result in contenders.items()
    ]
    machine.replace_rows(args.results, rows, "contender", "seeds", "device")
    draw(machine.read_rows(args.results), args.picture)


def on_cpu() -> bool:
    """Whether JAX finds no accelerator; asked in a process that ends, so that this one is small."""
    code = "import jax; print(jax.default_backend())"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return out.stdout.split()[-1] == "cpu"


def show(count: int, steps: int, results: dict[str, turns.Result]) -> None:
    """A table of medians."""
    print(f"\n{count} seeds of {steps:,} steps")
    print(f"{'contender':24}{'steps/s':>12}{'seconds':>10}{'compile s':>11}{'peak MB':>9}")
    for name, result in results.items():
        speed = result.median()
        compiled, peak = result.about["compile_seconds"], result.about["peak_mb"]
        print(f"{name:24}{speed:12,.0f}{count * steps / speed:10.2f}{compiled:11.1f}{peak:9,.0f}")
    sys.stdout.flush()


def work(name: str, count: int, steps: int, seconds: float) -> None:
    """Worker: compiles afresh, trains once, then trains whenever it is let."""
    ours.start(1 if name == "plain" else 0, cache=False)
    started = time.perf_counter()
    if name.startswith("plain"):
        once = plain(count, steps)
    else:
        shuffle = "trajectories" if name.endswith("trajectories") else "transitions"
        once = ours_once(SIZES | {"shuffle": shuffle}, count, steps, together=name != "alone")
    compiled = time.perf_counter() - started

    def run(trainings: int) -> int:
        return sum(once() for _ in range(trainings))

    turns.rounds(run, seconds, lambda: {"compile_seconds": round(compiled, 2), **machine.peak()})


def ours_once(sizes: dict[str, Any], count: int, steps: int, *, together: bool) -> Any:
    """A function that trains all seeds and returns how many environment steps they took."""
    import jax
    import numpy as np

    from purejaxppo.parts import STATE_AXES, init_program, shard_ids

    config = ours.config_of(
        sizes | {"num_seeds": count if together else 1, "total_timesteps": steps}
    )
    programs = ours.programs_of(config)
    seeds = [jax.random.key(seed)[None] for seed in range(count)]
    keys = [programs.key] if together else seeds
    updates, ids = np.int32(config.num_updates), shard_ids(programs.parts)
    where = programs.shards.shardings(STATE_AXES)
    init = jax.jit(init_program(programs.parts), out_shardings=where)
    init = init.lower(programs.key, ids).compile()
    programs.compile(init(programs.key, ids))

    def once() -> int:
        total = 0
        for key in keys:
            state, metrics = programs.train_chunk(init(key, ids), programs.hp, updates)
            total += int(np.sum(metrics.env_steps))
            jax.block_until_ready(state)
        return total

    return once


def plain(count: int, steps: int) -> Any:
    """As `ours_once`, for plain.py: the seeds vmapped, over the devices that divide them."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec
    from plain import make_train

    from purejaxppo.parallel.shards import largest_divisor

    per_update = SIZES["num_envs"] * SIZES["rollout_length"]
    updates = -(-steps // per_update)
    init, train = make_train(SIZES, updates)
    devices = largest_divisor(count, len(jax.devices()))
    mesh = jax.make_mesh((devices,), ("seed",), devices=jax.devices()[:devices])
    spec = PartitionSpec("seed")
    split = jax.device_put(jax.random.split(jax.random.key(0), count), NamedSharding(mesh, spec))

    def program(keys):
        return jax.vmap(train)(jax.lax.map(init, keys), keys)

    compiled = (
        jax.jit(jax.shard_map(program, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
        .lower(split)
        .compile()
    )

    def once() -> int:
        jax.block_until_ready(compiled(split))
        return count * updates * per_update

    return once


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds and memory over the number of seeds, of the device that was measured last."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["device"] == rows[-1]["device"]]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for name, about in CONTENDERS.items():
        own = sorted((row for row in rows if row["contender"] == name), key=lambda r: r["seeds"])
        counts = [row["seeds"] for row in own]
        seconds = [row["seeds"] * row["steps"] / row["steps_per_second"] for row in own]
        panels[0].loglog(counts, seconds, "o-", label=about)
        panels[1].loglog(counts, [row["peak_mb"] for row in own], "o-")
    panels[0].set_ylabel(f"seconds for {rows[-1]['steps']:,} steps of each")
    panels[1].set_ylabel("peak memory of the process, MB")
    panels[1].set_yscale("log", base=2)
    panels[1].yaxis.set_major_formatter("{x:g}")
    low, high = panels[1].get_ylim()
    panels[1].set_ylim(low / 2, high * 2)
    for panel in panels:
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_xlabel("seeds")
        panel.grid(alpha=0.3, which="both")
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
