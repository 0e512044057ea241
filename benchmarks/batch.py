"""Large batches: what else should grow with the number of environments, at equal environment steps.

    python benchmarks/batch.py [--task cartpole] [--seeds 5] [--steps 150000]

1, 4 and 16 times a task's environments, with the same number of minibatches or with minibatches of
the same size, each at a range of learning rates. For each number of environments and minibatches
all rates x seeds train side by side in one program. Returns are those of deterministic policies, at
equal environment steps. Rows go to benchmarks/results/batch.jsonl, the picture of them to
docs/pictures/batch.png.
"""

import argparse
import datetime
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import machine
import numpy as np
import ours

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "batch.png"
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env": "gymnax/CartPole-v1",
        "num_envs": 16,
        "rollout_length": 32,
        "num_minibatches": 4,
        "num_epochs": 4,
        "hidden": (64, 64),
        "normalize_obs": False,
        "learning_rate": 3e-4,
    },
    "hopper": {
        "env": "brax/hopper",
        "num_envs": 128,
        "rollout_length": 16,
        "num_minibatches": 8,
        "num_epochs": 4,
        "hidden": (64, 64),
        "gamma": 0.997,
        "normalize_reward": True,
        "learning_rate": 3e-4,
    },
}
FACTORS = (1, 4, 16)
RATES = (0.5, 1, 2, 4, 8, 16)
"""Times the task's learning rate: with 2 and 4 the square roots, with 4 and 16 the factors."""
POINTS = 8
WAYS = {
    "same": "the same minibatches and learning rate",
    "sqrt": "the same minibatches, learning rate times the square root",
    "linear": "the same minibatches, learning rate times the factor",
    "count": "minibatches of the same size, the same learning rate",
}


def main() -> None:
    """Trains the programs one after another in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="cartpole", choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0..N-1")
    parser.add_argument("--steps", type=int, default=150_000, help="environment steps of each")
    parser.add_argument("--episodes", type=int, default=16, help="of an evaluation")
    parser.add_argument("--factors", type=int, nargs="+", default=list(FACTORS))
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "batch.jsonl")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args()
    ours.start()
    rows = []
    for factor in args.factors:
        for growth in sorted({1, factor}):
            sizes = grown(TASKS[args.task], factor, growth)
            config = replace(ours.config_of(sizes | {"total_timesteps": args.steps}), num_shards=1)
            config = replace(config, eval=replace(config.eval, num_episodes=args.episodes))
            found = train(config, args.rates, args.seeds)
            facts = {"task": args.task, "factor": factor, "growth": growth, "sizes": sizes}
            rows += [facts | row for row in found]
            show(rows[-len(found) :])
    about = {"date": datetime.date.today().isoformat(), **machine.describe()}
    rows = [row | about for row in rows]
    machine.replace_rows(args.results, rows, "task", "factor", "growth", "device")
    draw(machine.read_rows(args.results), args.picture)


def grown(sizes: dict[str, Any], factor: int, growth: int) -> dict[str, Any]:
    """Sizes with `factor` times the environments and `growth` times the minibatches."""
    return sizes | {
        "num_envs": factor * sizes["num_envs"],
        "num_minibatches": growth * sizes["num_minibatches"],
    }


def train(config: Any, rates: list[float], seeds: int) -> list[dict[str, Any]]:
    """All rates x seeds of one structure in one program; a row of each."""
    import jax

    from purejaxppo.runs.programs import Programs

    base = config.ppo.learning_rate
    pairs = [(rate, seed) for rate in rates for seed in range(seeds)]
    members = [
        replace(config, seed=seed, ppo=replace(config.ppo, learning_rate=rate * base))
        for rate, seed in pairs
    ]
    programs = Programs(config, jax.devices(), members)
    state = programs.init()
    programs.compile(state)
    updates = np.linspace(0, config.num_updates, min(POINTS, config.num_updates) + 1).astype(int)
    steps, returns, seconds = [np.zeros(len(pairs), int)], [], 0.0
    for before, after in pairwise(updates):
        started = time.perf_counter()
        state, metrics = programs.train_chunk(state, programs.hp, np.int32(after - before))
        steps.append(steps[-1] + np.asarray(metrics.env_steps))
        seconds += time.perf_counter() - started
        evaluated, *_ = programs.evaluate(state.agent, programs.eval_key(int(after)))
        returns.append(np.asarray(evaluated).mean(axis=1))
    programs.close()
    ppo = config.ppo
    return [
        {
            "rate": rate,
            "learning_rate": rate * base,
            "seed": seed,
            "curve": [
                [int(at[i]), round(float(score[i]), 2)]
                for at, score in zip(steps[1:], returns, strict=True)
            ],
            "gradient_steps": config.num_updates * ppo.num_minibatches * ppo.num_epochs,
            "program_seconds": round(seconds, 2),
            "program_members": len(pairs),
        }
        for i, (rate, seed) in enumerate(pairs)
    ]


def show(rows: list[dict[str, Any]]) -> None:
    """One structure: the last return at each rate."""
    sizes = rows[0]["sizes"]
    cells = [
        f"x{rate:g} {np.mean(final(rows, rate)):.1f}" for rate in sorted({r["rate"] for r in rows})
    ]
    print(
        f"{sizes['num_envs']} environments, {sizes['num_minibatches']} minibatches, "
        f"{rows[0]['program_seconds']:.1f} s; return by learning rate: {', '.join(cells)}",
        flush=True,
    )


def final(rows: list[dict[str, Any]], rate: float) -> list[float]:
    """The last return of each seed at a learning rate."""
    return [row["curve"][-1][1] for row in rows if row["rate"] == rate]


def of_way(rows: list[dict[str, Any]], way: str, factor: int) -> list[float]:
    """The last return of each seed where `factor` times the environments were met in one way."""
    rate = {"sqrt": factor**0.5, "linear": factor}.get(way, 1)
    growth = factor if way == "count" else 1
    own = [row for row in rows if (row["factor"], row["growth"]) == (factor, growth)]
    return final(own, rate)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Returns over environments by way, and over learning rates by structure."""
    from matplotlib.figure import Figure

    from purejaxppo.runs.curves import confidence

    last = rows[-1]
    rows = [r for r in rows if (r["task"], r["device"]) == (last["task"], last["device"])]
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)

    def line(panel, points: list[tuple[float, list[float]]], label: str) -> None:
        values, scores = zip(*points, strict=True)
        means = [np.mean(score) for score in scores]
        bars = [confidence(np.asarray(score)) for score in scores]
        panel.errorbar(values, means, bars, fmt="o-", capsize=3, label=label)

    factors = sorted({row["factor"] for row in rows})
    for way, about in WAYS.items():
        points = [(factor, of_way(rows, way, factor)) for factor in factors]
        line(left, [point for point in points if point[1]], about)
    for structure in dict.fromkeys((row["factor"], row["growth"]) for row in rows):
        own = [row for row in rows if (row["factor"], row["growth"]) == structure]
        points = [(rate, final(own, rate)) for rate in sorted({row["rate"] for row in own})]
        sizes = own[0]["sizes"]
        label = f"{sizes['num_envs']} environments, {sizes['num_minibatches']} minibatches"
        line(right, points, label)
    steps, seeds = last["curve"][-1][0], len({row["seed"] for row in rows})
    left.set_ylabel(f"return after {steps / 1e3:,.0f} k steps; mean of {seeds} seeds, 95 %")
    left.set_xlabel("environments, times the task's")
    right.set_xlabel("learning rate, times the task's")
    for panel in (left, right):
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
