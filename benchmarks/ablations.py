"""Returns of configs with an option, compared with the config without it, on six tasks.

    python benchmarks/ablations.py                                  # screen all of OPTIONS
    python benchmarks/ablations.py ppo.objective=spo "ppo.optimizer=adamw ppo.weight_decay=0.1"
    python benchmarks/ablations.py --finals ppo.critic=hl_gauss
    python benchmarks/ablations.py --studies curiosity              # studies.py

Every run is a call of `python -m purejaxppo.train` with `--num_seeds`. The screening compares at
equal environment steps, five seeds with ten of the default. `--finals` uses ten other seeds of both
and equal CPU seconds: it measures the CPU seconds per step of both on one core, in alternation, and
divides the steps of the option by their ratio. The score of a seed is the mean of its last three
evaluations. Runs in benchmarks/results/ablations.jsonl are not repeated, so an interrupted command
continues.
Plot: docs/pictures/ablations.png. Tables: `python docs/make_results.py`.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import ours
import studies
import yaml

TASKS = {
    "lunarlander.yaml": 250_000,
    "minatar_breakout.yaml": 1_000_000,
    "minatar_asterix.yaml": 750_000,
    "hopper_v5.yaml": 250_000,
    "cartpole_swingup.yaml": 3_000_000,
    "reacher_easy.yaml": 1_500_000,
}
"""Config -> environment steps of a seed.

Runs end before the best return, except on LunarLander and CartpoleSwingup, where most seeds are
close to it and scores depend mainly on the other seeds.
"""
CONTINUOUS = ("hopper_v5.yaml", "cartpole_swingup.yaml", "reacher_easy.yaml")
MANY_ENVS = (
    "minatar_breakout.yaml",
    "minatar_asterix.yaml",
    "cartpole_swingup.yaml",
    "reacher_easy.yaml",
)
DEFAULT = ""
OPTIONS: dict[str, tuple[str, ...]] = {
    "ppo.critic=hl_gauss": (),
    "network.layer_norm=true": (),
    "network.block=residual": (),
    "ppo.recompute_advantages=true": (),
    "ppo.learning_rate_schedule=adaptive": (),
    "ppo.learning_rate_schedule=constant": (),
    "ppo.early_stop_kl=true": (),
    "ppo.early_stop_kl=true ppo.early_stop_unit=episode ppo.target_kl=1": (),
    "ppo.objective=spo": (),
    "ppo.final_gamma=0.998": ("cartpole_swingup.yaml", "reacher_easy.yaml"),
    "ppo.optimizer=muon": (),
    "ppo.critic=popart": (),
    "ppo.optimizer=adamw ppo.weight_decay=0.1": (),
    "env.stagger=false": ("cartpole_swingup.yaml", "reacher_easy.yaml"),
    "ppo.num_epochs=8": (),
    "ppo.num_epochs=2": (),
    "ppo.shuffle=trajectories": MANY_ENVS,
    "ppo.advantage_normalization=batch": (),
    "network.distribution=tanh_gaussian": CONTINUOUS,
    "network.distribution=beta": CONTINUOUS,
    "network.std=dependent": CONTINUOUS,
    "ppo.objective=dual_clip": (),
    "ppo.objective=kl": (),
    "ppo.objective=clip_kl": (),
    "ppo.value_clipping=true": (),
    "ppo.clip_bootstrap=observed": (),
    "ppo.critic=symlog": (),
    "ppo.learning_rate_warmup=0.1": (),
    "ppo.symmetry=augment": ("lunarlander.yaml", "cartpole_swingup.yaml"),
    "ppo.symmetry=loss": ("lunarlander.yaml", "cartpole_swingup.yaml"),
    "ppo.normalize_reward=true": ("minatar_breakout.yaml", "minatar_asterix.yaml"),
}
"""Settings that differ from the config -> tasks; (): all. The most promising come first."""
EVALUATIONS = 12
LAST = 3
"""Number of last evaluations whose mean is the score."""
STAGES = {"screen": range(5), "finals": range(100, 110)}
"""Stage -> seeds."""
SEEDS_OF_DEFAULT = {"screen": range(10)}
"""Stage -> seeds of the runs without an option, if they are not those of STAGES."""


def main() -> None:
    """Compare the given options, or all, with the default."""
    parser = harness.options(__doc__, "ablations", rounds=5, seconds=2.0)
    parser.add_argument("options", nargs="*", metavar="OPTION", help="settings: KEY=VALUE ...")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--finals", action="store_true", help="10 seeds at equal CPU seconds")
    parser.add_argument(
        "--studies",
        nargs="*",
        metavar="STUDY",
        help=f"all by default: {'; '.join(studies.STUDIES)}",
    )
    parser.add_argument("--cost", help=argparse.SUPPRESS)
    args = harness.parse(parser)
    if args.toy:
        args.options, args.tasks = args.options or ["ppo.objective=spo"], args.tasks[:1]
    if args.cost:
        print(cost(args.cost, args.options[0], args))
        return
    begin, run = (check, screen) if args.studies is None else (studies.check, studies.main)
    try:
        begin(args)
    except ValueError as error:
        parser.error(str(error))
    run(args)


def check(args: argparse.Namespace) -> None:
    """Raise ValueError for an option that is invalid, or that changes no task."""
    for option in args.options:
        if not tasks_of(args, option):
            raise ValueError(
                f"option {option!r}: equal to the configs of {', '.join(args.tasks)}, or not for "
                f"them."
            )


def tasks_of(args: argparse.Namespace, option: str) -> list[str]:
    """Return the tasks on which an option differs from the config."""
    tasks = OPTIONS.get(option) or args.tasks
    return [task for task in tasks if task in args.tasks and changes(task, option)]


def screen(args: argparse.Namespace) -> None:
    """Run the missing combinations of options and tasks, and draw the comparison."""
    stage = "finals" if args.finals else "screen"
    for option in args.options or OPTIONS:
        for task in tasks_of(args, option):
            for variant in (DEFAULT, option):
                run_missing(args, stage, task, variant)
        report(args, stage, option)
    if not args.toy:
        draw(harness.read_rows(args.results))


def settings_of(option: str) -> dict[str, Any]:
    """Return the settings of an option such as "ppo.objective=spo ppo.gamma=0.9" by name."""
    pairs = [word.partition("=") for word in option.split()]
    if not all(name and equal for name, equal, _ in pairs):
        raise ValueError(f"option {option!r}: must be NAME=VALUE, or several in quotes.")
    return {name: yaml.safe_load(value) for name, _, value in pairs}


def changes(task: str, option: str) -> bool:
    """Return whether an option differs from the config of a task."""
    from purejaxppo import load_config

    config = load_config(task)
    return config.replace(**settings_of(option)) != config


def run_missing(args: argparse.Namespace, stage: str, task: str, option: str) -> None:
    """Train all seeds of an option on a task, unless their row exists, and store the row."""
    seeds = STAGES[stage] if option else SEEDS_OF_DEFAULT.get(stage, STAGES[stage])
    key = {"stage": stage, "task": task, "option": option, "settings": text_hash(task)}
    key["seeds"] = len(seeds)
    if not args.toy and any(key.items() <= row.items() for row in harness.read_rows(args.results)):
        return
    relative = measured_cost(args, task, option) if stage == "finals" and option else 1.0
    steps, size = int(TASKS[task] / relative), f"--num_seeds {len(seeds)}"
    if args.toy:
        steps, size = 512, "--num_seeds 2 --env.num_envs 4 --ppo.rollout_length 8"
        size += " --ppo.num_minibatches 2 --ppo.num_epochs 1"
    size += f" --seed {seeds[0]} --total_timesteps {steps}"
    size += f" --eval.interval {steps // EVALUATIONS} --eval.num_episodes 16"
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--{word}" for word in option.split()]
        studies.train(task, [*flags, *size.split()], Path(folder) / "run")
        at, returns = studies.curves(Path(folder) / "run")
    scores = [float(np.mean(curve[-LAST:])) for curve in returns]
    facts = {"cost": relative, "seeds": len(returns), "steps": at, "returns": returns}
    names = "stage", "task", "option", "settings"
    harness.keep(args, [key | facts | {"last": scores}], *names)
    print(f"{stage}: {task}: {option or 'default'}: {np.mean(scores):.1f}", flush=True)


def text_hash(task: str) -> str:
    """Return a hash of the values that a config file sets, and of the steps here."""
    values = yaml.safe_load((harness.ROOT / "configs" / task).read_text(encoding="utf-8"))
    text = f"{values} {TASKS[task]} {EVALUATIONS}"
    return hashlib.sha1(text.encode()).hexdigest()[:12]


def measured_cost(args: argparse.Namespace, task: str, option: str) -> float:
    """Return the CPU seconds per step of an option over those of the default, on one core."""
    command = [sys.executable, __file__, "--cost", task, option]
    command += ["--rounds", str(args.rounds), "--seconds", str(args.seconds)]
    core = min(os.sched_getaffinity(0))
    return float(harness.call(["taskset", "-c", str(core), *command]).splitlines()[-1])


def cost(task: str, option: str, args: argparse.Namespace) -> float:
    """Measure the cost of an option in this process."""
    from purejaxppo import load_config

    ours.start(1)
    config = load_config(task).replace(**{"eval.num_episodes": 0})
    runs = {
        name: ours.updates_of(config.replace(**settings_of(name)))[0] for name in (DEFAULT, option)
    }
    results = harness.alternate(runs, args, clock=time.process_time)
    return results[DEFAULT].median() / results[option].median()


def report(args: argparse.Namespace, stage: str, option: str) -> None:
    """Print the comparison of an option."""
    if args.toy:
        return
    result = compare(harness.read_rows(args.results), stage, option, tasks_of(args, option))
    if result:
        gain, low, high = (100 * x for x in result)
        print(f"{stage}: {option}: {gain:+.1f} % ({low:+.1f} to {high:+.1f} %)", flush=True)


def compare(
    rows: list[harness.Row], stage: str, option: str, tasks: Sequence[str] = ()
) -> tuple[float, float, float] | None:
    """Return the gain of an option with its 95 % interval, or None if a task is not measured.

    The gain is the interquartile mean (IQM) of its scores minus the IQM of the default's, see
    `scores`. Tasks have equal weight.

    Args:
        rows: stored rows.
        stage: see `STAGES`.
        option: settings that differ from the config.
        tasks: configs. Default: all tasks of the option, including configs that have adopted it.
    """
    by_task = scores(rows, stage, option)
    tasks = tasks or OPTIONS.get(option) or ()
    tasks = tasks or [task for task in TASKS if task in by_task or changes(task, option)]
    if not tasks or not all(task in by_task for task in tasks):
        return None
    with_option, default = zip(*(by_task[task] for task in tasks), strict=True)
    return harness.iqm_interval(list(with_option), list(default))


def scores(
    rows: list[harness.Row], stage: str, option: str
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the scores of each task: of the seeds with an option, and of the default's.

    0 is a random policy and 1 the mean of the default. A return that is not finite scores 0. Rows
    without a default of the same settings are left out; of several settings, the latest rows count.
    """
    path = harness.RESULTS / "random_returns.jsonl"
    random = {row["config"]: row["return_mean"] for row in harness.read_rows(path)}
    rows = [row for row in rows if row["stage"] == stage]
    defaults = {(x["task"], x["settings"]): x["last"] for x in rows if x["option"] == DEFAULT}
    by_task = {}
    for row in rows:
        task, last = row["task"], defaults.get((row["task"], row["settings"]))
        if row["option"] == option and last is not None:
            gain, default = (above(returns, random[task]) for returns in (row["last"], last))
            by_task[task] = gain / default.mean(), default / default.mean()
    return by_task


def above(returns: list[float], random: float) -> np.ndarray:
    """Return the differences of returns to that of a random policy; 0 if they are not finite."""
    return np.nan_to_num(np.array(returns) - random, nan=0.0, posinf=0.0, neginf=0.0)


def draw(rows: list[harness.Row]) -> None:
    """Plot the gain of each option with its interval; finals replace screenings."""
    from purejaxppo.runs.curves import new_figure, save_figure

    gains = {}
    for option in {row["option"] for row in rows if row["option"] != DEFAULT}:
        for stage in STAGES:
            result = compare(rows, stage, option)
            if result:
                gains[option] = (*result, stage)
    if not gains:
        return
    ordered = sorted(gains, key=lambda option: gains[option][0])
    figure = new_figure(8, 1.4 + 0.28 * len(ordered))
    axes = figure.add_subplot()
    colors = {"screen": "0.55", "finals": "tab:blue"}
    for y, option in enumerate(ordered):
        gain, low, high, stage = gains[option]
        axes.plot([100 * low, 100 * high], [y, y], color=colors[stage], lw=2)
        axes.plot(100 * gain, y, "o", color=colors[stage])
    marks = [axes.plot([], [], "o-", color=colors[stage])[0] for stage in STAGES]
    labels = "5 seeds, equal steps", "10 other seeds, equal CPU seconds"
    figure.legend(marks, labels, loc="outside upper center", ncols=2, frameon=False)
    axes.axvline(0, color="0.3", lw=0.8)
    axes.set_yticks(range(len(ordered)), ordered)
    axes.set_xlabel("gain, % (95 % interval)")
    harness.axes_style(axes)
    save_figure(figure, harness.PICTURES / "ablations.png")


if __name__ == "__main__":
    main()
