"""`learning.py --first_minutes`: returns over the first seconds of training, compared with Brax.

Trainings alternate, one at a time, seed by seed: this library with the config, Brax's PPO with the
sizes of the config, and Brax's PPO with the sizes of its notebook. Both contenders of Brax use the
notebook's learning rate, discount, entropy and reward scale; for a task that it does not train with
PPO, they use those of the config. Seconds are those of training, without compilation and
evaluation; every point is a mean over episodes of the deterministic policy. Rows go to
benchmarks/results/first_minutes.jsonl. With ant, docs/pictures/first_minutes.gif shows the first
seed of this library after 0, 20 and `--seconds` seconds; docs/make_pictures.py draws the returns.
"""

import argparse
import contextlib
import itertools
import json
import pickle
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import harness
import ours
import peers

CONTENDERS = {
    "ours": "purejaxppo",
    "brax": "Brax's PPO, same sizes",
    "brax-notebook": "Brax's PPO, sizes of its notebook",
}


class Notebook(NamedTuple):
    """Settings of a task in brax/notebooks/training.ipynb; the networks are the default ones."""

    num_envs: int
    rollout_length: int
    num_minibatches: int
    num_epochs: int
    batch_size: int
    entropy_cost: float
    discounting: float
    reward_scaling: float
    action_repeat: int = 1


NOTEBOOK = {
    "ant": Notebook(4096, 5, 32, 4, 2048, 1e-2, 0.97, 10),
    "halfcheetah": Notebook(2048, 20, 32, 8, 512, 1e-3, 0.95, 1),
    "humanoid": Notebook(2048, 10, 32, 8, 1024, 1e-3, 0.97, 0.1),
    "inverted_double_pendulum": Notebook(2048, 5, 32, 4, 1024, 1e-2, 0.97, 10),
    "inverted_pendulum": Notebook(2048, 5, 32, 4, 1024, 1e-2, 0.97, 10),
    "pusher": Notebook(2048, 30, 16, 8, 512, 1e-2, 0.95, 5),
    "reacher": Notebook(2048, 50, 32, 8, 256, 1e-3, 0.95, 5, action_repeat=4),
}
"""Task -> settings. The learning rate is always 3e-4."""
EPISODES = 64
EVALUATIONS = 40
FRAMES, HEIGHT, WIDTH = 60, 176, 240


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this comparison."""
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)


def compare(args: argparse.Namespace, script: str) -> None:
    """Train all contenders seed by seed, store their rows and plot them."""
    (config,) = args.configs
    path = args.results.with_name("first_minutes.jsonl")
    args.results = path
    with tempfile.TemporaryDirectory() as folder:
        agents = Path(folder) / "agents.pkl"
        contenders = [x for x in args.contenders if x != "brax-notebook" or config in NOTEBOOK]
        for seed, contender in itertools.product(range(args.first, args.seeds), contenders):
            words = [sys.executable, script, "--seconds", str(args.seconds)]
            words += ["--worker", config, contender, str(seed), str(agents)]
            curve = json.loads(harness.call(words).splitlines()[-1])
            steps, seconds, mean = curve[-1]
            row = {"config": config, "contender": contender, "seed": seed, "curve": curve}
            harness.keep(args, [row], "config", "contender", "seed")
            print(f"{contender} seed {seed}: {mean:,.0f} after {seconds:.0f} s, {steps:,.0f} steps")
        if agents.is_file() and config == "ant" and not args.toy:
            draw_video(agents)


def work(config: str, contender: str, seed: str, agents: str, args: argparse.Namespace) -> None:
    """Train once, and print the curve of [environment steps, seconds, return]."""
    ours.start(0 if contender == "ours" else 1)
    if contender == "ours":
        curve = train(config, int(seed), args.seconds, Path(agents))
    else:
        curve = train_brax(config, int(seed), args.seconds, notebook=contender == "brax-notebook")
    print(json.dumps(curve), flush=True)


def train(config: str, seed: int, seconds: float, agents: Path) -> list[list[float]]:
    """Train with this library, and pickle the agents of seed 0 after 0, 20 and all seconds."""
    import jax

    import purejaxppo as ppo

    made = ppo.load_config(config)
    marks = sorted([20.0, seconds])
    kept: dict[float, Any] = {}

    class Keep(ppo.Callback):
        """Stores agents at given times, and stops at the first evaluation after `seconds`."""

        def on_start(self, context: ppo.CallbackContext) -> None:
            kept[0.0] = jax.device_get(context.agent.state)

        def on_log(self, context: ppo.CallbackContext) -> None:
            now = context.rows[0]["seconds"]
            while marks and now >= marks[0]:
                kept[marks.pop(0)] = jax.device_get(context.agent.state)

        def on_evaluation(self, context: ppo.CallbackContext) -> None:
            if seconds in kept:
                context.stop(f"{seconds:.0f} seconds of training")

    with tempfile.TemporaryDirectory() as folder:
        curves = ppo.train(
            made,
            seed=seed,
            total_timesteps=2 * made.total_timesteps,  # the length of schedules
            run_dir=f"{folder}/run",
            callbacks=Keep(),
            quiet=True,
            **{
                "eval.num_episodes": EPISODES,
                "eval.interval": made.total_timesteps // EVALUATIONS,
                "logging.interval": made.total_timesteps // 100,
            },
        ).metrics
    if seed == 0:
        agents.write_bytes(pickle.dumps((made.replace(seed=seed), kept)))
    names = "global_step", "seconds", "eval/return_mean"
    points = zip(*(curves[name] for name in names), strict=True)
    return [list(map(float, point)) for point in points if point[2] == point[2]]


def train_brax(config: str, seed: int, seconds: float, *, notebook: bool) -> list[list[float]]:
    """Train with Brax; its compile time is the first interval minus a later one."""
    from purejaxppo import load_config

    made, of_task = load_config(config), NOTEBOOK.get(config)
    sizes = {
        "env": made.env.name,
        "num_envs": made.env.num_envs,
        "rollout_length": made.ppo.rollout_length,
        "num_minibatches": made.ppo.num_minibatches,
        "num_epochs": made.ppo.num_epochs,
        "normalize_obs": True,
    }
    learning = {
        "learning_rate": made.ppo.learning_rate,
        "entropy_cost": made.ppo.ent_coef,
        "discounting": made.ppo.gamma,
    }
    if of_task:
        names = "entropy_cost", "discounting", "reward_scaling", "action_repeat"
        learning = {"learning_rate": 3e-4} | {name: getattr(of_task, name) for name in names}
    if of_task and notebook:
        sizes |= {name: getattr(of_task, name) for name in of_task._fields[:4]}
        learning["batch_size"] = of_task.batch_size
    else:
        sizes["hidden"] = made.network.hidden
    walls: list[tuple[int, float, float]] = []

    class Enough(Exception):
        """Ends a training of Brax, which has no other way to stop."""

    def later_intervals() -> list[float]:
        return [b[1] - a[1] for a, b in itertools.pairwise(walls[1:])]

    def progress(count: int, metrics: dict[str, Any]) -> None:
        wall = metrics.get("training/walltime", 0.0)
        walls.append((count, wall, float(metrics["eval/episode_reward"])))
        later = later_intervals()
        if later and sum(later) + statistics.median(later) >= seconds:
            raise Enough

    with contextlib.suppress(Enough):
        peers.brax_ppo(
            sizes,
            progress,
            num_timesteps=8 * made.total_timesteps,
            num_evals=8 * EVALUATIONS + 1,
            num_eval_envs=EPISODES,
            deterministic_eval=True,
            seed=seed,
            **learning,
        )
    compiling = max(0.0, walls[1][1] - statistics.median(later_intervals()))
    return [[float(n), max(0.0, wall - compiling), mean] for n, wall, mean in walls]


def draw_video(agents: Path) -> None:
    """Render the agents next to each other."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    from purejaxppo import Agent
    from purejaxppo.runs.recording import record_states
    from purejaxppo.video import video

    config, kept = pickle.loads(agents.read_bytes())
    videos = []
    for seconds, state in sorted(kept.items()):
        task, states, rewards = record_states(Agent(config, state))
        shown = [states[min(i, len(states) - 1)] for i in range(0, 2 * FRAMES, 2)]
        frames = [Image.fromarray(x) for x in video.frames(task, shown, HEIGHT, WIDTH)]
        words = f"{seconds:.0f} s of training, return {rewards.sum():,.0f}"
        for frame in frames:
            font = ImageFont.load_default(11)
            ImageDraw.Draw(frame).text((8, 5), words, fill=(40, 44, 52), font=font)
        videos.append(frames)
    rows = [
        np.concatenate([np.asarray(x) for x in frames], 1) for frames in zip(*videos, strict=True)
    ]
    palette = Image.fromarray(rows[0]).quantize(48)
    first, *rest = (
        Image.fromarray(x).quantize(palette=palette, dither=Image.Dither.NONE) for x in rows
    )
    path = harness.PICTURES / "first_minutes.gif"
    first.save(path, save_all=True, append_images=rest, duration=100, loop=0, optimize=True)
