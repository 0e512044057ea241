"""Writes docs/results.md from the rows under benchmarks/results/; `--check` only compares.

In docs/scaling.md, policies.md, own_code.md and gpu.md it writes what stands between
`<!-- NAME -->` and `<!-- end -->`, and in the configs that were measured the first comment.

python docs/make_results.py
"""

import functools
import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "benchmarks" / "results"
TARGET = ROOT / "docs" / "results.md"
SCALING = ROOT / "docs" / "scaling.md"
POLICIES = ROOT / "docs" / "policies.md"
OWN_CODE = ROOT / "docs" / "own_code.md"
GPU = ROOT / "docs" / "gpu.md"
CONFIGS = ROOT / "configs"
Rows = list[dict[str, Any]]
CLEANRL = "CleanRL: {}; training return of the stochastic policy at the end, over 3 seeds"
ZOO = "SB3 zoo: {}; the last agent of one seed, deterministic, over its episodes"
ZOO_ATARI = ZOO.replace("deterministic", "stochastic")
BLINES = "gymnax-blines: {}; the last agent of one seed, stochastic"
PGX = "Pgx: 20 M steps; read off its plots, stochastic"


def suite(brax: str, slm: str, repeats: int = 1) -> dict[str, str]:
    """Published numbers of a task of Playground's control suite.

    `repeats`: the simulator's steps of an action in our config, which are 1 in Brax's run.
    """
    here = "" if repeats == 1 else f"; of the simulator, of which an action is {repeats} here"
    return {
        brax: f"Brax's PPO in REPPO's published curves: 60 M steps or more{here}; mean of seeds",
        slm: "SLM-Lab 5.3: 100 M steps; training average of seeds",
    }


PUBLISHED = {
    "cartpole.yaml": {"500 ± 0": ZOO.format("0.1 M steps")},
    "acrobot.yaml": {
        "-73.5 ± 18.2": ZOO.format("1 M steps"),
        "-80": BLINES.format("0.5 M steps"),
    },
    "pendulum.yaml": {
        "-172 ± 104": ZOO.format("0.1 M steps"),
        "-130": BLINES.format("1 M steps"),
    },
    "mountain_car.yaml": {"-110 ± 19": ZOO.format("1 M steps")},
    "minatar_breakout.yaml": {"28": BLINES.format("10 M steps")},
    "minatar_asterix.yaml": {"15": BLINES.format("10 M steps")},
    "minatar_freeway.yaml": {"58": BLINES.format("10 M steps")},
    "minatar_space_invaders.yaml": {"131": BLINES.format("10 M steps")},
    "cheetah_run.yaml": suite("825", "883", repeats=4),
    "finger_spin.yaml": suite("570", "713", repeats=2),
    "point_mass.yaml": suite("897", "868", repeats=4),
    "cartpole_balance.yaml": suite("1000", "968"),
    "cartpole_swingup.yaml": suite("693", "729"),
    "ball_in_cup.yaml": suite("565", "942", repeats=4),
    "reacher_easy.yaml": suite("982", "955"),
    "pendulum_swingup.yaml": suite("63", "637", repeats=4),
    "craftax.yaml": {
        "5.0": "Craftax's README: PPO, 1 M steps; 2.2 % of the largest return, over how many seeds "
        "is not said",
        "5.2": "Craftax's README: recurrent PPO, 1 M steps; 2.3 %, likewise not said",
    },
    "minigrid_doorkey.yaml": {
        "0.96": "NAVIX: rejax's PPO in NAVIX's DoorKey, 1.05 M steps; mean of seeds"
    },
    "pgx_asterix.yaml": {"22": PGX},
    "pgx_breakout.yaml": {"50": PGX},
    "pgx_freeway.yaml": {"63": PGX},
    "pgx_seaquest.yaml": {"54": PGX},
    "pgx_space_invaders.yaml": {"145": PGX},
    "hopper_v5.yaml": {
        "2383 ± 272": CLEANRL.format("v4, 1 M steps"),
        "2410 ± 10": ZOO.format("v3, 1 M steps"),
    },
    "walker2d_v5.yaml": {
        "2288 ± 572": CLEANRL.format("v4, 1 M steps"),
        "3479 ± 822": ZOO.format("v3, 1 M steps"),
    },
    "halfcheetah_v5.yaml": {
        "1443 ± 46": CLEANRL.format("v4, 1 M steps"),
        "5819 ± 664": ZOO.format("v3, 1 M steps"),
    },
    "reacher_v5.yaml": {
        "-4.1 ± 0.3": "Tianshou: v2, 1 M steps; the best evaluation of each of 10 seeds, over seeds"
    },
    "inverted_pendulum_v5.yaml": {"1000": "PPO and Friends: one agent"},
    "ant_v5.yaml": {"1327 ± 452": ZOO.format("v3, 1 M steps")},
    "lunarlander.yaml": {"242 ± 32": ZOO.format("v2, 1 M steps")},
    "bipedalwalker.yaml": {"287.9 ± 2.4": ZOO.format("v3, 5 M steps")},
    "pong.yaml": {
        "20.4 ± 0.2": CLEANRL.format("10 M steps"),
        "21.0 ± 0.1": ZOO_ATARI.format("10 M steps"),
    },
    "pong_small.yaml": {
        "20.4 ± 0.2": CLEANRL.format("10 M steps, 84 x 84 pixels"),
        "21.0 ± 0.1": ZOO_ATARI.format("10 M steps, 84 x 84 pixels"),
    },
    "breakout.yaml": {
        "415 ± 28": CLEANRL.format("10 M steps"),
        "398 ± 33": ZOO_ATARI.format("10 M steps"),
    },
}
"""What others publish for PPO on the same task: number -> who, version, budget; what kind it is."""
WORDS = {
    "minatar_freeway.yaml": "Freeway stands at {last:.0f} where gymnax-blines has 58, after half "
    "as many steps, and rose until the end; a longer run has not been tried.",
    "minatar_asterix.yaml": "Asterix stands at {last:.0f} where gymnax-blines has 15, after half "
    "as many steps, and rose until the end; a longer run has not been tried.",
    "bipedalwalker.yaml": "BipedalWalker counts as solved at 300 over 100 episodes, which neither "
    "this run with {last:.0f} nor the zoo's agent with 288 reaches; the return has hardly moved "
    "since the first million steps.",
    "walker2d.yaml": "Brax's walker2d fell back late in its run: {last:,.0f} in the end, "
    "{best:,.0f} at its best.",
    "pong_small.yaml": "Pong's best checkpoint was chosen by 8 episodes, too few to find the best: "
    "the last one has {last:.1f}, it has {best:.1f}.",
}
"""What is to be said of a config's row, with its last and best checkpoints' means."""

MOST = {"cartpole.yaml": 500.0, "cartpole_hidden.yaml": 500.0}
"""The largest return that a task gives, where that is known."""
SATURATED = (
    "*Saturated: every variant comes within 3 % of the most that the task gives, so that these "
    "rows cannot tell them apart. `benchmarks/ablations.py` asks the question of another task now, "
    "which has not been run yet.*"
)
HOST = (
    "`python benchmarks/host.py`: as above, beside others' PPO, where the simulator runs on the "
    "host. Observations are not normalised, by anyone. The simulator column compares with the "
    "same environments stepped without a network, under EnvPool's own Python API or in the "
    "compiled loop, whichever was faster: no training can outrun it while both share the cores."
)
COUNTS = ("num_envs", "rollout_length", "num_minibatches", "num_epochs")
"""Sizes that differ between the contenders of one task."""
PEERS = {"sb3": "of SB3", "sbx": "of SBX", "torch": "of PyTorch"}
"""Contenders of `benchmarks/host.py` that others are compared with."""
NAMED = ("jax", "envpool", "gymnasium", "mujoco", "torch", "stable_baselines3", "sbx-rl")
"""Packages whose versions are told where peers took part."""
ANATOMY = (
    "`python benchmarks/anatomy.py`: microseconds per environment step. Each piece is the "
    "difference between an iteration and one that does without it, switched off one after "
    "another from the right, and the simulator is what is left. The loop is what stepping it from "
    "the compiled program costs beyond its own Python API."
)


def read(name: str) -> Rows:
    """The rows of a results file; [] if there is none."""
    path = ROWS / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def group(rows: Rows, *keys: str) -> dict[tuple[Any, ...], Rows]:
    """Rows by the values of some keys, in order of appearance."""
    groups: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return dict(groups)


def learning(rows: Rows) -> list[str]:
    """Configs of several seeds, then those of one: one line each, the last checkpoint first."""
    found = group(rows, "config", "flags", "device", "cores").values()
    runs = sorted(found, key=lambda own: (task(own[0]["config"]), own[0]["flags"]))
    several = [own for own in runs if len(own) > 1]
    single = [own for own in runs if len(own) == 1]
    lines = [
        "### Several seeds",
        "",
        "| config | seeds | last checkpoint: mean of seeds ± std | worst, best seed "
        "| best checkpoint: mean of seeds ± std | published | steps | training s "
        "| whole command s | device |",
        "| --- " * 10 + "|",
    ]
    lines += [
        f"| {label(own)} | {len(own)} | {mean_and_spread(lasts(own))}{success(own)} "
        f"| {mean_and_spread([min(lasts(own))])}, {mean_and_spread([max(lasts(own))])} "
        f"| {mean_and_spread(bests(own))} | {published(own[0]['config'])} | {cost(own)} |"
        for own in several
    ]
    lines += [
        "",
        "### One seed",
        "",
        "How far another seed would be from these nobody knows: no comparison rests on them.",
        "",
        "| config | last checkpoint | best checkpoint | published | steps | training s "
        "| whole command s | device |",
        "| --- " * 8 + "|",
    ]
    lines += [
        f"| {label(own)} | {lasts(own)[0]:.1f} | {bests(own)[0]:.1f} "
        f"| {published(own[0]['config'])} | {cost(own)} |"
        for own in single
    ]
    words = [
        WORDS[own[0]["config"]].format(
            last=statistics.mean(lasts(own)), best=statistics.mean(bests(own))
        )
        for own in runs
        if own[0]["config"] in WORDS
    ]
    return [*lines, "", *(f"* {word}" for word in words)]


@functools.cache
def task(config: str) -> str:
    """The environment of a config."""
    return yaml.safe_load((CONFIGS / config).read_text())["env"]["name"]


def lasts(runs: Rows) -> list[float]:
    """The last checkpoints' mean returns."""
    return [run["last_return_mean"] for run in runs]


def success(runs: Rows) -> str:
    """The last checkpoints' mean share of successes, of tasks that say what one is."""
    rates = [run.get("last_success_rate") for run in runs]
    return "" if None in rates else f" (success {statistics.mean(rates):.1%})"


def bests(runs: Rows) -> list[float]:
    """The best checkpoints' mean returns."""
    return [run["return_mean"] for run in runs]


def label(runs: Rows) -> str:
    """A config with its flags, as code."""
    flags = runs[0]["flags"]
    return f"`{runs[0]['config']}`{f' `{flags}`' if flags else ''}"


def cost(runs: Rows) -> str:
    """Steps, seconds of training, seconds in all, device: four cells."""
    steps, train, whole = (
        statistics.mean(run[key] for run in runs)
        for key in ("env_steps", "train_seconds", "seconds")
    )
    machine = f"{runs[0]['cores']} x {runs[0]['device']}"
    return f"{steps / 1e6:.2f} M | {train:.0f} | {whole:.0f} | {machine}"


def published(config: str) -> str:
    """What others report: each number with its kind."""
    return "<br>".join(f"{x} ({what})" for x, what in PUBLISHED.get(config, {}).items())


def reached(runs: Rows) -> str:
    """What a config's first comment says: "return 2,002 ± 323 over 5 seeds after 8.0 M steps"."""
    mean = abs(statistics.mean(lasts(runs)))
    digits = 0 if mean >= 100 else 1 if mean >= 2 else 2

    def figure(values: list[float]) -> str:
        spread = f" ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):,.{digits}f}{spread}"

    seeds = f"over {len(runs)} seeds" if len(runs) > 1 else "of one seed"
    steps = statistics.mean(run["env_steps"] for run in runs) / 1e6
    flags = f", with {runs[0]['flags']}" if runs[0]["flags"] else ""
    return (
        f"return {figure(lasts(runs))} {seeds} after {steps:.1f} M steps "
        f"(best checkpoint {figure(bests(runs))}){flags}"
    )


def commented(rows: Rows) -> dict[Path, str]:
    """Configs that were measured, with first comments that say what they reached."""
    pages = {}
    for (config,), runs in group(rows, "config").items():
        alike = group(runs, "flags", "device", "cores").values()
        own = min(alike, key=lambda rows: rows[0]["flags"] != "")  # as it is, if that ran
        path = CONFIGS / config
        if not path.is_file():
            continue
        first, _, rest = path.read_text(encoding="utf-8").partition("\n")
        pages[path] = f"{first.partition(': ')[0]}: {reached(own)}\n{rest}"
    return pages


def milestones(rows: Rows) -> list[str]:
    """When hopper's evaluations first passed a mark, in steps and in seconds of training."""
    lines = [
        "| seed | best evaluation within 60 s of training | steps by then | 1,400 passed after |",
        "| --- | --- | --- | --- |",
    ]
    for run in sorted((r for r in rows if r["config"] == "hopper.yaml"), key=lambda r: r["seed"]):
        early = [point for point in run["curve"] if point[1] <= 60]
        passed = next((point for point in run["curve"] if point[2] >= 1400), None)
        lines.append(
            f"| {run['seed']} | {max((p[2] for p in early), default=float('nan')):.0f} "
            f"| {early[-1][0] / 1e6 if early else 0:.2f} M "
            f"| {f'{passed[0] / 1e6:.1f} M steps, {passed[1]:.0f} s' if passed else 'never'} |"
        )
    return lines


def first_minutes(rows: Rows) -> list[str]:
    """Returns at some seconds of training, beside Brax's PPO."""
    if not rows:
        return []
    marks = (20, 60, 90, 115)
    lines = [
        "",
        "### Ant, the first two minutes",
        "",
        "`python benchmarks/first_minutes.py --seeds 2 --contenders ours brax`: returns of "
        "deterministic policies over seconds of training without compiling and evaluating, "
        "interpolated between evaluations; this "
        "library with ant.yaml (its schedules over twice the steps), and Brax's PPO with the same "
        "sizes and the rest of Brax's own settings for ant. Contenders take turns, seed by seed, "
        f"on {machine(rows)}. "
        "Untrained, an ant that stands gets 1,000.",
        "",
        "![Returns over seconds](pictures/first_minutes.png)",
        "",
        f"| contender | seed | {' | '.join(f'{mark} s' for mark in marks)} | steps/s |",
        "| --- " * (3 + len(marks)) + "|",
    ]
    for row in sorted(rows, key=lambda row: (row["contender"] != "ours", row["seed"])):
        steps, seconds, returns = zip(*row["curve"], strict=True)
        cells = [f"{interpolated(mark, seconds, returns):,.0f}" for mark in marks]
        name = {"ours": "purejaxppo", "brax": "Brax's PPO"}.get(row["contender"], "Brax's notebook")
        speed = (steps[-1] - steps[0]) / (seconds[-1] - seconds[0])
        lines.append(f"| {name} | {row['seed']} | {' | '.join(cells)} | {speed:,.0f} |")
    return lines


ALONE = {
    "imports": "importing JAX and Brax",
    "program": "compiling the program of training",
}
"""What a start is compared with, besides the version before."""


def startup(rows: Rows) -> list[str]:
    """Seconds of commands, beside the version before and a part of each alone."""
    if not rows:
        return []
    lines = [
        "",
        "## Start",
        "",
        "`python benchmarks/startup.py --before FOLDER`: seconds of whole processes, medians of "
        "rounds in which all take turns, with the range, "
        f"on {machine(rows)}. Before is version 0.2.0. Cold "
        "starts have an empty cache. Beside them is what a start cannot do without: `python -c "
        "'import jax, brax.envs'`, or a process that traces and compiles the program of training "
        "and nothing else.",
        "",
        "| command | seconds | before | ratio | a part of it, alone | seconds | ratio |",
        "| --- " * 7 + "|",
    ]
    for (what,), own in group(rows, "what").items():
        rounds = {row["contender"]: row["rounds"] for row in own}
        ours = statistics.median(rounds["ours"])
        alone = next((name for name in ALONE if name in rounds), "")
        cells = []
        for other, name in ("before", []), (alone, [ALONE.get(alone, "")]):
            taken = rounds.get(other)
            ratio = f"{ours / statistics.median(taken):.2f}" if taken else ""
            cells += [*name, span(taken) if taken else "", ratio]
        lines.append(f"| {what} | {span(rounds['ours'])} | {' | '.join(cells)} |")
    return lines


def span(rounds: list[float]) -> str:
    """The median of rounds, with their range."""
    return f"{statistics.median(rounds):.1f} ({min(rounds):.1f} to {max(rounds):.1f})"


def interpolated(x: float, xs: tuple[float, ...], ys: tuple[float, ...]) -> float:
    """The value at x of a line through points."""
    for left, right, low, high in zip(xs, xs[1:], ys, ys[1:], strict=False):
        if left <= x <= right:
            return low + (high - low) * (x - left) / (right - left)
    return float("nan")


def oscillator(learned: Rows, speeds: Rows) -> list[str]:
    """How far each seed parts the ensembles, and neuron-steps per second."""
    if not learned:
        return []
    lines = [
        "",
        "### The oscillator ensemble",
        "",
        "`python benchmarks/oscillator.py --learn 5`: `oscillator.yaml`, then control of 16 "
        "ensembles of 1,000 neurons that were not seen in training, by each seed's best "
        "checkpoint. Suppression is the standard "
        "deviation of the mean field before over that under control.",
        "",
        "| seed | suppression, mean | worst ensemble | single-neuron std | sum abs kick per 1000 "
        "| steps | training s | whole command s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in learned:
        figures = run["figures"]
        lines.append(
            f"| {run['seed']} | {figures['suppression'][0]:.1f} | {figures['suppression'][1]:.1f} "
            f"| {figures['neuron_std'][0]:.2f} | {figures['energy'][0]:.2f} "
            f"| {run['env_steps'] / 1e6:.2f} M | {run['train_seconds']:.0f} "
            f"| {run['seconds']:.0f} |"
        )
    if speeds:
        lines += [
            "",
            "`python benchmarks/oscillator.py`: the simulator alone, training, and its parts.",
            "",
            "| what | ensembles | neurons of each | neuron-steps/s |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| {r['what']} | {r['ensembles']:,} | {r['neurons']:,} "
            f"| {r['neuron_steps_per_second']:.2e} |"
            for r in speeds
        ]
    return lines


def throughput(rows: Rows) -> list[str]:
    """Medians and ratios, a table per task and device."""
    lines = []
    for (task, device, cores), runs in group(rows, "task", "device", "cores").items():
        speed = {run["contender"]: run["steps_per_second"] for run in runs}
        sizes = ", ".join(f"{key} {value}" for key, value in runs[0]["sizes"].items())
        lines += [
            "",
            f"**{task}** ({sizes}), {cores} x {device}, {len(runs[0]['rounds'])} rounds:",
            "",
            "| contender | steps/s, median | range | of the random policy | of Brax's PPO |",
            "| --- | --- | --- | --- | --- |",
        ]
        for run in runs:
            value = run["steps_per_second"]
            cells = [
                f"{value / speed[base]:.2f}" if base in speed else "" for base in ("random", "brax")
            ]
            lines.append(
                f"| {run['about']} | {value:,.0f} "
                f"| {min(run['rounds']):,} to {max(run['rounds']):,} | {cells[0]} | {cells[1]} |"
            )
    return lines


def roofline(rows: Rows) -> list[str]:
    """An update beside its networks' gradients alone, a table per task and device."""
    if not rows:
        return []
    lines = [
        "",
        "### The update's limit",
        "",
        "`python benchmarks/roofline.py`: microseconds per minibatch of updates from one rollout, "
        "beside one scan over minibatches of as many rows that computes the gradient of the same "
        "network and nothing else. CPU time is that of all cores together. What an update on two "
        "devices takes beyond half of its CPU time, its cores wait: for each other, or for other "
        "programs of the machine. Without its sums over devices neither waits for the other.",
    ]
    for (task, device, cores), runs in group(rows, "task", "device", "cores").items():
        (run,) = runs
        rounds = len(run["rounds"]["update"])
        lines += [
            "",
            f"**{task}**, {cores} x {device}, medians of {rounds} rounds:",
            "",
            "| program | µs per minibatch | range | CPU µs | of the gradients' CPU µs |",
            "| --- | --- | --- | --- | --- |",
        ]
        cpu = run["cpu_microseconds"]
        for name, about in run["contenders"]:
            times = run["rounds"][name]
            alone = cpu["gradients, 1 device" if name.endswith("1 device") else "gradients"]
            lines.append(
                f"| {about} | {run['microseconds'][name]:,.0f} | {min(times):,.0f} to "
                f"{max(times):,.0f} | {cpu[name]:,.0f} | {cpu[name] / alone:.2f} |"
            )
    return lines


def awake(rows: Rows) -> list[str]:
    """Training with cores kept awake beside training without, a table per device."""
    if not rows:
        return []
    lines = [
        "",
        "### Cores kept awake",
        "",
        "`python benchmarks/awake.py`, and `--beside`, where a program of another session computes "
        "all the time: training steps per second with `keep_cores_awake: never` and `always`, in "
        "turns; medians, and quartiles of a round's ratio; and the cores that the other program "
        "had without and with.",
    ]
    for (device, cores), runs in group(rows, "device", "cores").items():
        lines += [
            "",
            f"{cores} x {device}:",
            "",
            "| task | beside another program | never | always | ratio | quartiles |",
            "| --- " * 6 + "|",
        ]
        for run in runs:
            low, middle, high = quartiles(run["without"], run["kept"])
            never, always = (statistics.median(run[name]) for name in ("without", "kept"))
            lines.append(
                f"| {run['task']} | {other(run)} | {never:,.0f} "
                f"| {always:,.0f} | {middle:.2f} | {low:.2f} to {high:.2f} |"
            )
    return lines


def quartiles(before: list[float], after: list[float]) -> list[float]:
    """Of the ratios after / before of two contenders, round by round."""
    return statistics.quantiles([b / a for a, b in zip(before, after, strict=True)], n=4)


def other(run: dict[str, Any]) -> str:
    """The cores that another program had without and with, if there was one."""
    if not run["beside"]:
        return ""
    without, kept = (statistics.median(run[name]) for name in ("other_without", "other_kept"))
    return f"had {without:.2f} and {kept:.2f} cores"


LAST = "own, last"
"""The contender of benchmarks/jax_world.py that gives last observations, too."""


def jax_world(rows: Rows) -> list[str]:
    """Simulators in JAX, through our protocol and by their own auto-reset."""
    if not rows:
        return []
    lines = [
        "",
        "### Resets in JAX",
        "",
        "`python benchmarks/jax_world.py`: random actions (allowed ones, where there are masks) on "
        "one device, through this library's protocol and by the simulator's own auto-reset, which "
        "computes a reset at every step. Where that is cheaper, ours draws starts once per 64 "
        "steps, one for each environment or, of the dearest (Craftax, Maze), a quarter of them, so "
        "that several episodes may begin alike. Of several agents, each takes steps of its own, "
        "and the number is that of worlds. Connect Four is played against a player who moves at "
        "random, by both. Ours counts no row that only delivers an episode's first observation, "
        "one per episode, which is most where random episodes are short (PacMan, Asterix). "
        "The observation in which an episode ends, without which nothing can be bootstrapped at a "
        "time limit, is given by ours, and by Jumanji's own when asked: last column. "
        "For some rows another program trained on the other core meanwhile.",
        "",
        "| environment | number | ours, steps/s | range | its own, steps/s | range | ratio "
        "| ratio to its own with last observations |",
        "| --- " * 8 + "|",
    ]
    for (env, count, _), runs in sorted(group(rows, "env", "num_envs", "device").items()):
        speed = {run["contender"]: run["steps_per_second"] for run in runs}
        ranges = {
            run["contender"]: f"{min(run['rounds']):,} to {max(run['rounds']):,}" for run in runs
        }
        lines.append(
            f"| {env} | {count:,} | {speed['ours']:,.0f} | {ranges['ours']} "
            f"| {speed['own']:,.0f} | {ranges['own']} | {speed['ours'] / speed['own']:.2f} "
            f"| {format(speed['ours'] / speed[LAST], '.2f') if LAST in speed else ''} |"
        )
    return lines


def jax_training(rows: Rows) -> list[str]:
    """Training where resets are dear, beside PureJaxRL's plan."""
    if not rows:
        return []
    lines = ["", "`python benchmarks/jax_training.py`: training there, at one config's sizes."]
    for (env, device, cores), runs in group(rows, "env", "device", "cores").items():
        speed = {run["contender"]: run["steps_per_second"] for run in runs}
        lines += [
            "",
            f"**{env}**, {cores} x {device}:",
            "",
            "| contender | training, steps/s | range | ours / this |",
            "| --- " * 4 + "|",
        ]
        lines += [
            f"| {run['about']} | {run['steps_per_second']:,.0f} | {min(run['rounds']):,} to "
            f"{max(run['rounds']):,} | {speed['ours'] / run['steps_per_second']:.2f} |"
            for run in runs
        ]
    return lines


def host(rows: Rows) -> list[str]:
    """Simulators on the host: a table per task, with ratios to the simulator and to peers."""
    lines = ["", "### Simulators on the host", "", HOST] if rows else []
    for (task, device, cores), runs in group(rows, "task", "device", "cores").items():
        speed = {run["contender"]: run["steps_per_second"] for run in runs}
        peers = {name: of for name, of in PEERS.items() if name in speed}
        same = {k: v for k, v in runs[0]["sizes"].items() if k not in ("env", *COUNTS)}
        sizes = ", ".join(f"{key} {value}" for key, value in same.items())
        versions = {k: v for run in runs for k, v in run["versions"].items() if k in NAMED}
        lines += [
            "",
            f"**{task}** ({sizes}), {cores} x {device}, {len(runs[0]['rounds'])} rounds; "
            + ", ".join(f"{k} {v}" for k, v in sorted(versions.items()))
            + ":",
            "",
            "| contender | sizes | steps/s, median | range | of the simulator |"
            + "".join(f" {of} |" for of in peers.values()),
            "| --- " * (5 + len(peers)) + "|",
        ]
        for run in runs:
            own, value = run["sizes"], run["steps_per_second"]
            limit = simulator_speed(runs, own)
            counts = f"{own['num_envs']} x {own['rollout_length']}"
            if run["kind"] == "training":
                counts += f", {own['num_minibatches']} minibatches, {own['num_epochs']} epochs"
            ratios = [value / limit if limit else None, *(value / speed[name] for name in peers)]
            lines.append(
                f"| {run['about']} | {counts} | {value:,.0f} "
                f"| {min(run['rounds']):,} to {max(run['rounds']):,} "
                + "".join(f"| {'' if ratio is None else f'{ratio:.2f}'} " for ratio in ratios)
                + "|"
            )
    return lines


def engines(godot: Rows, unity: Rows) -> list[str]:
    """Steps of game engines in the compiled loop, beside others' clients."""
    lines = ["", "## Game engines", ""]
    if godot:
        lines += [
            f"`python benchmarks/engines.py --peer FOLDER`: steps per second of every game of the "
            f"chase under random actions, 8 ticks a step, on {machine(godot)}: by our client in a "
            f"plain loop, in the compiled loop, and by the client of Godot RL Agents. Ratios are "
            f"medians over rounds in which all take turns.",
            "",
            "| agents of a game | games | our client | compiled loop | its ratio | godot_rl | "
            "its ratio |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for sizes, rows in group(godot, "agents", "games").items():
            lines.append(row_of(sizes, rows, ("engine", "loop", "godot_rl"), "of_engine"))
        lines.append("")
    if unity:
        for row in unity:
            (peer,) = [x for x in unity if (x["agents"], x["contender"]) == (row["agents"], PEER)]
            row["of_peer"] = round(row["steps_per_second"] / peer["steps_per_second"], 2)
        lines += [
            f"`python benchmarks/unity_engine_speed.py --peer FOLDER`: steps per second of a "
            f"scripted game that speaks ML-Agents' protocol, on {machine(unity)}, by the client "
            f"of mlagents_envs, by ours in a plain loop, and in the compiled loop.",
            "",
            "| agents | mlagents_envs | our client | its ratio | compiled loop | its ratio |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for sizes, rows in group(unity, "agents").items():
            lines.append(row_of(sizes, rows, (PEER, "rows", "loop"), "of_peer"))
        lines.append("")
    return lines[:-1] if godot or unity else []


PEER = "mlagents_envs"


def row_of(sizes: tuple[Any, ...], rows: Rows, names: tuple[str, ...], ratio: str) -> str:
    """A line of a table: sizes, the first's steps per second, and the others' with ratios to it."""
    first, *others = ([x for x in rows if x["contender"] == name] for name in names)
    cells = [*map(str, sizes), f"{first[0]['steps_per_second']:,}"]
    for found in others:
        cells += [f"{x['steps_per_second']:,} | {x[ratio]:.2f}" for x in found] or [" | "]
    return f"| {' | '.join(cells)} |"


def machine(rows: Rows) -> str:
    """What was measured on."""
    return f"{rows[0]['cores']} cores of an {rows[0]['device']}"


def simulator_speed(runs: Rows, sizes: dict[str, Any]) -> float | None:
    """The best that the same environments reach alone; None if they were not run alone."""
    alone = (
        run["steps_per_second"]
        for run in runs
        if run["kind"] == "simulator"
        and all(run["sizes"][key] == sizes[key] for key in ("env", "num_envs"))
    )
    return max(alone, default=None)


def anatomy(rows: Rows) -> list[str]:
    """Microseconds per environment step, a column per piece."""
    if not rows:
        return []
    names = [name for name, _ in max((row["pieces"] for row in rows), key=len)]
    lines = [
        "",
        "### Where a step's time goes",
        "",
        ANATOMY,
        "",
        "![Microseconds per environment step, by piece](pictures/anatomy.png)",
        "",
        f"| environment | environments x steps | {' | '.join(names)} | in all | device |",
        "| --- " * (len(names) + 4) + "|",
    ]
    for row in rows:
        sizes, pieces = row["sizes"], dict(row["pieces"])
        cells = [f"{pieces[name]:.2f}" if name in pieces else "" for name in names]
        lines.append(
            f"| {sizes['env']} | {sizes['num_envs']} x {sizes['rollout_length']} "
            f"| {' | '.join(cells)} | {row['microseconds']:.2f} "
            f"| {row['cores']} x {row['device']} |"
        )
    return lines


def memory(rows: Rows) -> list[str]:
    """Peak memory over lengths of run."""
    lines = ["| run | steps | peak memory |", "| --- | --- | --- |"]
    for row in sorted(rows, key=lambda r: (r["what"], r["steps"])):
        lines.append(f"| {row['what']} | {row['steps']:,} | {row['peak_mb']:,} MB |")
    return lines


def windows(rows: Rows) -> list[str]:
    """Peak memory over lengths of rollout, with windows kept or the series behind them."""
    if not rows:
        return []
    lines = [
        "",
        "### Rollouts of windows",
        "",
        "`python benchmarks/memory.py --windows`: peak resident memory of a process that makes one "
        "update of 1,024 oscillator ensembles of 100 neurons, which observe windows of 250 values. "
        "A learner keeps the series; keeping each window is what that saves.",
        "",
        "| rollout | size of its windows | peak, windows kept | peak, series kept |",
        "| --- | --- | --- | --- |",
    ]
    for (length,), runs in group(rows, "length").items():
        mb = {run["kept"]: run["peak_mb"] for run in runs}
        lines.append(
            f"| {length:,} steps | {length * 1024 * 250 * 4 / 1e6:,.0f} MB "
            f"| {mb['windows']:,} MB | {mb['series']:,} MB |"
        )
    return lines


def slow(rows: Rows) -> list[str]:
    """Steps/s with simulators of a given slowness, by setting, and the gain over neither."""
    if not rows:
        return []
    lines = [
        "",
        "### Slow simulators",
        "",
        "`python benchmarks/slow.py`: training steps per second of [slow simulators](slow.md), 16 "
        "environments on 8 pretended cores, with the gain over neither setting.",
        "",
        "| network | ms per step | neither | `env.double_buffer` | `asynchronous` | both |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (milliseconds, *_), runs in group(
        [row | {"widths": str(row["network"])} for row in rows], "milliseconds", "widths"
    ).items():
        speed = {run["contender"]: run["steps_per_second"] for run in runs}
        cells = [
            f"{speed[name]:,.0f} ({speed[name] / speed['plain']:.2f})"
            for name in ("double", "asynchronous", "both")
        ]
        widths = "-".join(map(str, runs[0]["network"]))
        lines.append(
            f"| {widths} | {milliseconds:g} | {speed['plain']:,.0f} | {' | '.join(cells)} |"
        )
    return lines


def processes(rows: Rows) -> list[str]:
    """Steps/s of one run in one process and in several, a table per device."""
    lines = []
    for (device, cores), runs in group(rows, "device", "cores").items():
        alone = [run["steps_per_second"] for run in runs if run["contender"] == "one-device"]
        sizes = ", ".join(f"{key} {value}" for key, value in runs[0]["sizes"].items())
        lines += [
            "",
            "### Many processes",
            "",
            f"`python benchmarks/processes.py` ([many processes](processes.md)): {sizes}; "
            f"{cores} x {device}, {len(runs[0]['rounds'])} rounds:",
            "",
            "| | steps/s, median | range | of one device |",
            "| --- | --- | --- | --- |",
        ]
        for run in runs:
            value = run["steps_per_second"]
            ratio = f"{value / alone[0]:.2f}" if alone else ""
            lines.append(
                f"| {run['about']} | {value:,.0f} "
                f"| {min(run['rounds']):,} to {max(run['rounds']):,} | {ratio} |"
            )
    return lines


def seeds(rows: Rows) -> list[str]:
    """Many seeds at once, a table per device."""
    if not rows:
        return []
    lines = [
        "",
        "## Many seeds",
        "",
        "`python benchmarks/seeds.py`: whole trainings of CartPole, 4 environments x 128 steps per "
        "seed, every contender in a process of its own, in turns. Steps per second are those of "
        "all seeds together, and seconds leave out compiling; peak memory is the whole process's, "
        "compiling included. [Drawn](scaling.md#seeds-first).",
    ]
    for (device, cores, steps), runs in group(rows, "device", "cores", "steps").items():
        lines += [
            "",
            f"{cores} x {device}, {steps:,} steps of each seed, {len(runs[0]['rounds'])} rounds:",
            "",
            "| seeds | contender | steps/s in sum, median | range | seconds | compile s "
            "| peak memory | of PureJaxRL's plan |",
            "| --- " * 8 + "|",
        ]
        for (count,), own in group(runs, "seeds").items():
            plain = next((r["steps_per_second"] for r in own if r["contender"] == "plain"), None)
            for run in own:
                speed = run["steps_per_second"]
                lines.append(
                    f"| {count:,} | {run['about']} | {speed:,.0f} "
                    f"| {min(run['rounds']):,} to {max(run['rounds']):,} "
                    f"| {count * steps / speed:.2f} | {run['compile_seconds']:.1f} "
                    f"| {run.get('device_peak_mb', run['peak_mb']):,} MB "
                    f"| {'' if plain is None else f'{speed / plain:.2f}'} |"
                )
    return lines


def scaling(rows: Rows) -> list[str]:
    """Cost over environments, seeds and widths, a line per task and axis."""
    if not rows:
        return []
    lines = [
        "",
        "## Growing sizes",
        "",
        "`python benchmarks/scaling.py`: microseconds per environment step of a training, and the "
        "memory that its program asks for, with one size varied. "
        "[Drawn](scaling.md#what-grows-with-what).",
        "",
        "| task | what varies | value | µs per step | program's memory | device |",
        "| --- " * 6 + "|",
    ]
    lines += [
        f"| {row['task']} | {row['axis']} | {row['value']:,} "
        f"| {1e6 / row['steps_per_second']:.2f} | {row['program_mb']:,.1f} MB "
        f"| {row['cores']} x {row['device']} |"
        for row in rows
    ]
    return lines


def batch(rows: Rows) -> list[str]:
    """Larger batches: the last return at each learning rate, a line per structure."""
    if not rows:
        return []
    lines = [
        "",
        "## Large batches",
        "",
        "`python benchmarks/batch.py`: returns of deterministic policies at equal environment "
        "steps, mean ± standard deviation over seeds, by the learning rate over the task's. "
        "Seconds are those of all these trainings side by side in one program. "
        "[Drawn, and what follows](scaling.md#large-batches-done-right).",
    ]
    for (task, device, cores), runs in group(rows, "task", "device", "cores").items():
        rates = sorted({run["rate"] for run in runs})
        base, first = runs[0]["learning_rate"] / runs[0]["rate"], runs[0]
        lines += [
            "",
            f"**{task}**, learning rate {base:g}, {first['curve'][-1][0]:,} steps, "
            f"{len({run['seed'] for run in runs})} seeds, {cores} x {device}:",
            "",
            "| environments | minibatches | gradient steps | seconds | "
            + " | ".join(f"rate x {rate:g}" for rate in rates)
            + " |",
            "| --- " * (4 + len(rates)) + "|",
        ]
        for own in group(runs, "factor", "growth").values():
            sizes = own[0]["sizes"]
            cells = [
                mean_and_spread([run["curve"][-1][1] for run in own if run["rate"] == rate])
                for rate in rates
            ]
            lines.append(
                f"| {sizes['num_envs']:,} | {sizes['num_minibatches']} "
                f"| {own[0]['gradient_steps']:,} | {own[0]['program_seconds']:.1f} "
                f"| {' | '.join(cells)} |"
            )
    return lines


def mean_and_spread(values: list[float]) -> str:
    """12.3 ± 4.5; without the second where there is one value, nothing where there is none."""
    if not values:
        return ""
    digits = 1 if abs(statistics.mean(values)) >= 2 else 2
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def communication(rows: Rows) -> list[str]:
    """Sums over shards per update, counted in the program."""
    if not rows:
        return []
    lines = [
        "| config | steps per update | sums | gradient sums | bytes of one | bytes of all sums |",
        "| --- " * 6 + "|",
    ]
    lines += [
        f"| {row['case']} | {row['steps_per_update']:,} | {row['sums']:,} "
        f"| {row['gradient_sums']:,} | {row['gradient_bytes']:,} | {row['bytes']:,} |"
        for row in rows
    ]
    return lines


def costs(rows: Rows) -> list[str]:
    """What a model says that the sums of an update cost, and the speed that this allows."""
    if not rows:
        return []
    lines = [
        "| config | devices | latency of a hop | bandwidth | a gradient's sum | sums of an update "
        "| steps/s at most, environments divided | as many on each device |",
        "| --- " * 8 + "|",
    ]
    for row in rows:
        for cost in row["costs"]:
            most = row["steps_per_update"] / cost["seconds"] / 1e6
            divided = f"{most:,.2f} M" if cost["devices"] <= row["num_envs"] else "too few"
            lines.append(
                f"| {row['case']} | {cost['devices']:,}, {cost['about']} "
                f"| {1e6 * cost['latency']:g} µs | {cost['bandwidth'] / 1e9:g} GB/s "
                f"| {1e6 * cost['gradient_seconds']:.0f} µs | {1e3 * cost['seconds']:.1f} ms "
                f"| {divided} | {most * cost['devices']:,.0f} M |"
            )
    return lines


def document() -> str:
    """The whole page."""
    import learning_curves

    learned, speeds = read("learning.jsonl"), read("throughput.jsonl")
    versions = (learned or speeds or [{"versions": {}}])[-1]["versions"]
    parts = [
        "# Results",
        "",
        "Written by `python docs/make_results.py` from the rows in `benchmarks/results/`. "
        "Versions: " + ", ".join(f"{k} {v}" for k, v in versions.items()) + ".",
        "",
        "## Learning",
        "",
        "Each row is `python benchmarks/learning.py CONFIG --seeds N`, which runs, seed by seed,",
        "",
        "```bash",
        "python -m purejaxppo.train --config CONFIG.yaml --seed SEED",
        "python -m purejaxppo.evaluate --run RUN --episodes 100",
        "```",
        "",
        "and keeps mean returns over at least 100 whole episodes of the deterministic policy "
        "(where the config has `eval.stochastic`: of samples of it): of the last checkpoint, which "
        "is what the algorithm arrives at and what comparisons should rest on, and of the best "
        "one, which evaluations during training chose, on other starts. ± is the standard "
        "deviation over seeds. Training seconds leave out compiling, evaluating and saving; the "
        "whole command counts everything from process start to end. Both are upper bounds: the "
        "machine did other work beside most of these runs. Speed is measured "
        "[further down](#speed).",
        "",
        "The published column is what others report for PPO on the task, each with who, which "
        "version of the task, how many steps, and what kind of number it is: as a rule the "
        "training return of a stochastic policy is below what its deterministic policy would get, "
        "and a best evaluation above the last one. A ± over one agent's episodes says nothing of "
        "other seeds.",
        "",
        "![Evaluations of every seed over steps; published returns dashed](pictures/learning.png)",
        "",
        "Evaluations of every seed (`python docs/learning_curves.py`), their mean thick, published "
        "returns dashed.",
        "",
        *learning(learned),
        "",
        *learning_curves.suites(learned),
        "",
        "### Hopper, the first minute",
        "",
        *milestones(learned),
        *first_minutes(read("first_minutes.jsonl")),
        *oscillator(read("oscillator_learning.jsonl"), read("oscillator.jsonl")),
        "",
        "## Speed",
        "",
        "`python benchmarks/throughput.py`: training steps per second without compile time, every "
        "contender in the same run, one at a time, round after round. The random policy is the "
        "simulator alone, which no training can outrun.",
        *throughput(speeds),
        *roofline(read("roofline.jsonl")),
        *awake(read("awake.jsonl")),
        *jax_world(read("jax_world.jsonl")),
        *jax_training(read("jax_training.jsonl")),
        *host(read("host.jsonl")),
        *anatomy(read("anatomy.jsonl")),
        *slow(read("slow.jsonl")),
        *processes(read("processes.jsonl")),
        *seeds(read("seeds.jsonl")),
        *scaling(read("scaling.jsonl")),
        *batch(read("batch.jsonl")),
        *engines(read("engines.jsonl"), read("unity_engine_speed.jsonl")),
        *startup(read("startup.jsonl")),
        "",
        "## Memory",
        "",
        "`python benchmarks/memory.py`: peak resident memory of whole processes: CartPole, by the "
        "environment steps of each seed, and images of 84 x 84 x 4 bytes in rollouts of 128 steps.",
        "",
        *memory(read("memory.jsonl")),
        *windows(read("memory_windows.jsonl")),
        "",
        "GPU figures: none are measured yet; [GPUs](gpu.md) has what programs launch.",
        "",
    ]
    return "\n".join(parts)


def filled(page: str) -> str:
    """A page with its blocks written anew."""
    said = read("communication.jsonl")
    blocks = {
        "scaling": picture("scaling", "Time and memory over environments, seeds and widths"),
        "seeds": picture("seeds", "Seconds and memory over the number of seeds"),
        "batch": picture("batch", "Returns over environments and over learning rates"),
        "communication": communication(said),
        "costs": costs(said),
        "matrix": matrix(read("policies.jsonl")),
        "ablations": ablations(read("ablations.jsonl")),
        "off": off(read("off.jsonl")),
        "own": own(read("own.jsonl")),
        "launches": gpu_programs(read("gpu_programs.jsonl")),
        "compiles": gpu_compiles(read("gpu_programs.jsonl")),
        "gpu": gpu(read("gpu.jsonl")),
    }
    for name, lines in blocks.items():
        inside = ["", *lines, ""] if lines else []
        text = "\n".join([f"<!-- {name} -->", *inside, "<!-- end -->"])
        page = re.sub(f"<!-- {name} -->.*?<!-- end -->", lambda _, t=text: t, page, flags=re.DOTALL)
    return page


def matrix(rows: Rows) -> list[str]:
    """Families and kinds of actions by kinds of memory."""
    memories = list(dict.fromkeys(row["memory"] for row in rows))
    cells = {(row["family"], row["action"], row["memory"]): row for row in rows}
    table = [
        f"| simulators | actions | {' | '.join(memories)} |",
        "| --- | --- |" + " --- |" * len(memories),
    ]
    for family, action in dict.fromkeys((row["family"], row["action"]) for row in rows):
        signs = [sign(cells[family, action, memory]) for memory in memories]
        table.append(f"| {family} | {action} | {' | '.join(signs)} |")
    return table if rows else []


def sign(row: dict[str, Any]) -> str:
    """What one cell of the matrix found."""
    if not (row["finite"] and row["ratios"]):
        return "fails"
    return {True: "exact", False: "not the same", None: "agent"}[row["resumed"]]


def ablations(rows: Rows) -> list[str]:
    """Each study's flags and returns, and its picture."""
    lines: list[str] = []
    for study in dict.fromkeys(row["study"] for row in rows):
        own = [row for row in rows if row["study"] == study]
        steps, seeds = own[0]["steps"][-1], own[0]["seeds"]
        each = [flags_of(row["flags"]) for row in own]
        common = [flag for flag in each[0] if all(flag in other for other in each)]
        shared = f" `{' '.join(common)}`" if common else ""
        teacher = own[0].get("teacher")
        lines += [
            f"**{study[0].upper()}{study[1:]}**, `{own[0]['config']}`{shared}, "
            f"{steps / 1e3:,.0f} k steps, {seeds} seeds"
            + (f"; the teacher's flags: `{teacher}`:" if teacher else ":"),
            "",
        ]
        if saturated(own):
            lines += [SATURATED, ""]
        lines += ["| | flags | return |", "| --- | --- | --- |"]
        for row, flags in zip(own, each, strict=True):
            mean, std = statistics.mean(row["last"]), statistics.stdev(row["last"])
            digits = 2 if abs(mean) < 10 else 0
            spread = f"{mean:,.{digits}f} ± {std:,.{digits}f}"
            rest = " ".join(flag for flag in flags if flag not in common)
            lines.append(f"| {row['variant']} | {f'`{rest}`' if rest else ''} | {spread} |")
        name = "".join(c if c.isalnum() else "_" for c in study)
        lines += ["", f"![Returns over steps: {study}](pictures/ablations/{name}.png)", ""]
    return lines[:-1]


def flags_of(text: str) -> list[str]:
    """A command line's flags, each with its values."""
    return [flag.strip() for flag in re.split(r"(?:^|\s+)(?=--)", text) if flag.strip()]


def saturated(rows: Rows) -> bool:
    """Whether all variants of a study come within 3 % of the most that its task gives."""
    most = MOST.get(rows[0]["config"])
    means = [statistics.mean(row["last"]) for row in rows]
    return most is not None and min(means) > 0.97 * most


def off(rows: Rows) -> list[str]:
    """Speed beside earlier versions."""
    if not rows:
        return []
    table = [
        "| before | task | before, steps/s | now | ratio, median (quartiles) "
        "| now, cores kept awake | its ratio |",
        "| --- " * 7 + "|",
    ]
    for row in rows:
        cells = [f"{statistics.median(row['before']) / 1e3:,.1f} k"]
        for name in ("now", "kept awake"):
            if name not in row:
                cells += ["", ""]
                continue
            low, middle, high = quartiles(row["before"], row[name])
            cells += [
                f"{statistics.median(row[name]) / 1e3:,.1f} k",
                f"{middle:.2f} ({low:.2f} to {high:.2f})",
            ]
        table.append(f"| {row['revision']} | {row['task']} | {' | '.join(cells)} |")
    return table


def own(rows: Rows) -> list[str]:
    """Speed of a user's own environment beside the same one built in."""
    if not rows:
        return []
    built_in, mine = rows[-1]["built in"], rows[-1]["own"]
    low, middle, high = quartiles(built_in, mine)
    return [
        f"CartPole in a file (benchmarks/own_cartpole.py), trained with cartpole.yaml, makes "
        f"{statistics.median(mine) / 1e3:,.0f} k steps/s, and gymnax's "
        f"{statistics.median(built_in) / 1e3:,.0f} k: {middle:.3f} times as many in the median of "
        f"{len(mine)} rounds in turns (quartiles {low:.3f} and {high:.3f}; "
        f"`python benchmarks/own.py`)."
    ]


def gpu_programs(rows: Rows) -> list[str]:
    """Launches and memory of programs compiled for an H200, and the speed that launches allow."""
    table = [
        "| case | cards | environments | launches / steps per update | a gradient step | sums over "
        "cards | memory of a card | bound at 3 to 1.5 us, predicted |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        train, steps = row["train"], row["steps_per_update"]
        low, high = (steps / train["kernels"] / us for us in (3.0, 1.5))
        table.append(
            f"| {row['case']} | {row['cards']} | {row['num_envs']:,} | {train['kernels']:,} / "
            f"{steps:,} | {row['gradient_step']} | {train['collectives'] or '-'} | "
            f"{train['bytes'] / 2**20:,.0f} MiB | {low:.2g}-{high:.2g} M steps/s |"
        )
    return table if rows else []


def gpu_compiles(rows: Rows) -> list[str]:
    """CPU seconds of compiling training for an H200, where they go, and those for a CPU."""
    table = [
        "| training of | instructions | kernels made | passes (of these fusion) | LLVM | ptxas | "
        "all for an H200 | for a CPU |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    timed = [row for row in rows if "train_on_cpu" in row]
    for row in timed:
        train, stages = row["train"], row["train"]["stages"]
        table.append(
            f"| {row['case']} | {train['instructions']:,} | {train['modules']} | "
            f"{stages['passes']:.0f} ({stages['fusion']:.0f}) | {stages['llvm']:.0f} | "
            f"{stages['ptxas']:.0f} | {train['cpu_seconds']:.0f} s | "
            f"{row['train_on_cpu']['cpu_seconds']:.0f} s |"
        )
    return table if timed else []


def gpu(rows: Rows) -> list[str]:
    """What benchmarks/gpu.py measured on a card."""
    measured = [row for row in rows if row.get("rounds")]
    if not measured:
        return ["No figure has been measured on a GPU yet."]
    table = ["| training | sizes | steps/s | launches | us per launch |", "| --- " * 5 + "|"]
    for row in measured:
        launches, us = row.get("launches"), row.get("launch_us")
        table.append(
            f"| {row['name']} | {row.get('sizes', '')} | {row['steps_per_second']:,.0f} | "
            f"{launches or ''} | {f'{us:.2f}' if us else ''} |"
        )
    return table


def picture(name: str, about: str) -> list[str]:
    """The picture of a benchmark, if it has rows."""
    return [f"![{about}](pictures/{name}.png)"] if read(f"{name}.jsonl") else []


def main() -> int:
    """Writes the pages, or with --check says whether they are up to date."""
    pages = {TARGET: document()}
    for path in (SCALING, POLICIES, OWN_CODE, GPU):
        pages[path] = filled(path.read_text(encoding="utf-8"))
    pages |= commented(read("learning.jsonl"))
    for path, text in pages.items():
        old = path.read_text(encoding="utf-8") if path.is_file() else ""
        if old != text and "--check" in sys.argv[1:]:
            return 1
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
