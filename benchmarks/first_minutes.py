"""Returns over the first seconds of training, beside Brax's own PPO, and a film of them.

    python benchmarks/first_minutes.py [--config ant] [--seeds 3] [--seconds 120]

Trainings take turns, one at a time, seed by seed: this library with the config, Brax's PPO with the
config's sizes, and Brax's PPO with the sizes of its own notebook. Seconds are of training, without
compiling and evaluating; every point is a mean over episodes of the deterministic policy. Rows go
to benchmarks/results/first_minutes.jsonl, pictures to docs/pictures/: first_minutes.png, and
first_minutes.gif, with this library's first seed after 0, 20 and `--seconds` seconds.
"""

import argparse
import contextlib
import datetime
import itertools
import json
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import ours

PATH = machine.RESULTS / "first_minutes.jsonl"
PICTURES = machine.RESULTS.parent.parent / "docs" / "pictures"
CONTENDERS = {
    "ours": "purejaxppo",
    "brax": "Brax's PPO, the same sizes",
    "brax-notebook": "Brax's PPO, the sizes of its notebook",
}
NOTEBOOK = {
    "num_envs": 4096,
    "unroll_length": 5,
    "batch_size": 2048,
    "num_minibatches": 32,
    "num_updates_per_batch": 4,
}
"""Of ant in brax/notebooks/training.ipynb; its networks are Brax's default ones."""
LEARNING = {"learning_rate": 3e-4, "entropy_cost": 1e-2, "discounting": 0.97, "reward_scaling": 10}
"""The other settings of ant there, for both of Brax's contenders."""
EPISODES = 64
FRAMES, HEIGHT, WIDTH = 60, 176, 240


def main() -> None:
    """Trains what the command line asks for, and draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="ant")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--work", nargs=3, metavar=("CONTENDER", "SEED", "FILE"))
    args = parser.parse_args()
    if args.work:
        work(args.config, args.work[0], int(args.work[1]), args.seconds, Path(args.work[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            for contender in args.contenders:
                run(args, contender, seed, Path(folder) / "agents.pkl")
        draw_curves([row for row in machine.read_rows(PATH) if row["config"] == args.config])
        if (Path(folder) / "agents.pkl").is_file():
            draw_film(args.config, Path(folder) / "agents.pkl")


def run(args: argparse.Namespace, contender: str, seed: int, agents: Path) -> None:
    """Trains one seed in a process of its own, and keeps its row."""
    words = ["--config", args.config, "--seconds", str(args.seconds)]
    words += ["--work", contender, str(seed), str(agents)]
    done = subprocess.run(
        [sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True
    )
    row = {"config": args.config, "contender": contender, "seed": seed}
    rows = [r for r in machine.read_rows(PATH) if any(r[key] != row[key] for key in row)]
    row |= json.loads(done.stdout.splitlines()[-1])
    row |= {"date": datetime.date.today().isoformat(), **machine.describe()}
    machine.write_rows(PATH, [*rows, row])
    steps, seconds, mean = row["curve"][-1]
    print(f"{contender} seed {seed}: {mean:,.0f} after {seconds:.0f} s, {steps:,.0f} steps")


def work(config: str, contender: str, seed: int, seconds: float, agents: Path) -> None:
    """One training; prints its curve, [environment steps, seconds, return] each."""
    ours.start(0 if contender == "ours" else 1)
    if contender == "ours":
        curve = train(config, seed, seconds, agents if seed == 0 else None)
    else:
        curve = train_brax(config, seed, seconds, notebook=contender == "brax-notebook")
    print(json.dumps({"curve": curve}), flush=True)


def train(config: str, seed: int, seconds: float, agents: Path | None) -> list[list[float]]:
    """This library's training; agents after 0, 20 and all seconds are pickled for the film."""
    import jax

    import purejaxppo as ppo

    made = ppo.load_config(config)
    evaluated = {"eval.num_episodes": EPISODES, "eval.interval": made.total_timesteps // 40}
    kept: dict[float, Any] = {}

    class Keep(ppo.Callback):
        """Keeps agents at given times, and stops at the last one."""

        def on_start(self, moment: ppo.Moment) -> None:
            kept[0.0] = jax.device_get(moment.agent.state)

        def on_log(self, moment: ppo.Moment) -> None:
            now = moment.rows[0]["seconds"]
            for mark in (20.0, seconds):
                if now >= mark and mark not in kept:
                    kept[mark] = jax.device_get(moment.agent.state)
            if now >= seconds:
                moment.stop(f"{seconds:.0f} seconds of training")

    with tempfile.TemporaryDirectory() as folder:
        run = ppo.train(
            made.replace(**evaluated),
            seed=seed,
            total_timesteps=2 * made.total_timesteps,  # its schedules are as long
            run_dir=f"{folder}/run",
            callbacks=Keep(),
            quiet=True,
            **{"logging.interval": made.total_timesteps // 100},
        )
        curves = run.metrics
    if agents:
        agents.write_bytes(pickle.dumps((kept, made.replace(seed=seed))))
    names = "global_step", "seconds", "eval/return_mean"
    points = zip(*(curves[name] for name in names), strict=True)
    return [list(map(float, point)) for point in points if point[2] == point[2]]


def train_brax(config: str, seed: int, seconds: float, *, notebook: bool) -> list[list[float]]:
    """Brax's training; the compile time in its first interval is that beyond the later ones."""
    import functools

    from brax import envs
    from brax.training.agents.ppo import networks
    from brax.training.agents.ppo import train as brax_ppo
    from throughput import repair_brax

    from purejaxppo import load_config

    repair_brax()
    made = load_config(config)
    hidden = made.network.hidden
    sizes = {
        "num_envs": made.env.num_envs,
        "unroll_length": made.ppo.rollout_length,
        "batch_size": made.env.num_envs // made.ppo.num_minibatches,
        "num_minibatches": made.ppo.num_minibatches,
        "num_updates_per_batch": made.ppo.num_epochs,
    }
    factory = functools.partial(
        networks.make_ppo_networks,
        policy_hidden_layer_sizes=hidden,
        value_hidden_layer_sizes=hidden,
    )
    evals, steps = 40, made.total_timesteps
    walls: list[tuple[int, float, float]] = []

    class Enough(Exception):
        """Ends Brax's training, which cannot be asked to stop."""

    def progress(count: int, metrics: dict[str, Any]) -> None:
        walls.append(
            (count, metrics.get("training/walltime", 0.0), float(metrics["eval/episode_reward"]))
        )
        later = [b[1] - a[1] for a, b in itertools.pairwise(walls[1:])]
        if sum(later) >= seconds:
            raise Enough

    with contextlib.suppress(Enough):
        brax_ppo.train(
            environment=envs.get_environment(made.env.name.partition("/")[2], backend="spring"),
            num_timesteps=8 * steps,
            episode_length=1000,
            normalize_observations=True,
            deterministic_eval=True,
            num_evals=8 * evals + 1,
            num_eval_envs=EPISODES,
            network_factory=networks.make_ppo_networks if notebook else factory,
            progress_fn=progress,
            seed=seed,
            **(NOTEBOOK if notebook else sizes),
            **LEARNING,
        )
    interval = statistics.median(b[1] - a[1] for a, b in itertools.pairwise(walls[1:]))
    compiling = max(0.0, walls[1][1] - interval)
    return [[float(n), max(0.0, wall - compiling), mean] for n, wall, mean in walls]


def draw_curves(rows: list[dict[str, Any]]) -> None:
    """Returns over seconds: every seed thin, means thick."""
    import matplotlib
    import numpy as np

    matplotlib.use("agg")
    from matplotlib import pyplot

    picture, axis = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    colours = dict(zip(CONTENDERS, ("tab:blue", "tab:orange", "tab:green"), strict=True))
    for contender, about in CONTENDERS.items():
        curves = [np.array(row["curve"]) for row in rows if row["contender"] == contender]
        if not curves:
            continue
        for curve in curves:
            axis.plot(curve[:, 1], curve[:, 2], color=colours[contender], alpha=0.3, linewidth=0.9)
        ends = max(curve[0, 1] for curve in curves), min(curve[-1, 1] for curve in curves)
        grid = np.linspace(*ends, 200)
        mean = np.mean([np.interp(grid, curve[:, 1], curve[:, 2]) for curve in curves], 0)
        label = f"{about}, {len(curves)} seed{'s' * (len(curves) > 1)}"
        axis.plot(grid, mean, color=colours[contender], linewidth=2, label=label)
    axis.set_xlabel("seconds of training, two CPU cores")
    axis.set_ylabel("return")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    picture.savefig(PICTURES / "first_minutes.png", dpi=100)


def draw_film(config: str, agents: Path) -> None:
    """The agents side by side."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    from purejaxppo import Agent
    from purejaxppo.pictures import video
    from purejaxppo.runs.recording import record_states

    kept, made = pickle.loads(agents.read_bytes())
    films = []
    for seconds, state in sorted(kept.items()):
        task, states, rewards = record_states(Agent(made, state))
        shown = [states[min(i, len(states) - 1)] for i in range(0, 2 * FRAMES, 2)]
        frames = [Image.fromarray(x) for x in video.frames(task, shown, HEIGHT, WIDTH)]
        for frame in frames:
            ImageDraw.Draw(frame).text(
                (8, 5),
                f"{seconds:.0f} s of training, return {rewards.sum():,.0f}",
                fill=(40, 44, 52),
                font=ImageFont.load_default(11),
            )
        films.append(frames)
    whole = [
        Image.fromarray(np.concatenate([np.asarray(x) for x in three], axis=1))
        for three in zip(*films, strict=True)
    ]
    palette = whole[0].quantize(48)
    joined = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in whole]
    joined[0].save(
        PICTURES / "first_minutes.gif",
        save_all=True,
        append_images=joined[1:],
        duration=100,
        loop=0,
        optimize=True,
    )


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s in all", file=sys.stderr)
