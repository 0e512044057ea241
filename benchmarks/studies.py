"""Comparisons of an option on a task made for it: `ablations.py --studies`.

Every variant is one call of `python -m purejaxppo.train` with 5 seeds, with equal environment
steps, and the same config with other flags. Rows, one per variant, go to
benchmarks/results/studies.jsonl, and a plot per study to docs/pictures/studies/;
`docs/make_results.py` writes the tables of docs/policies.md from the rows.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np


class Study(NamedTuple):
    """A comparison of variants on one task."""

    config: str
    steps: int
    flags: str
    """Flags of all variants."""
    variants: dict[str, str]
    """Label -> flags."""
    teacher: str = ""
    """Flags of a run that is trained first, whose folder replaces TEACHER in flags."""


PENDULUM = "--eval.num_episodes 64"
CHAIN = "--env.options memory_length 40 --eval.num_episodes 128"
HIDDEN = "--env.obs_indices 0 1"
CRITIC_SEES = (
    f"{PENDULUM} {HIDDEN} --env.privileged_obs --network.rnn gru --network.actor_keys obs "
    "--ppo.shuffle trajectories --ppo.bptt_length 16"
)
TAUGHT = "--pretrain.teacher TEACHER --pretrain.updates 20"
SPREAD = "--env.options global_state true --network.actor_keys agent obs"


def each(flag: str, values: str) -> dict[str, str]:
    """Return a variant per value of a flag."""
    return {value: f"--{flag} {value}" for value in values.split()}


def chain(variants: dict[str, str], flags: str = " --network.rnn gru") -> Study:
    """Return a study on MemoryChain with a memory of 40 steps."""
    return Study("memory_chain.yaml", 600_000, CHAIN + flags, variants)


def pendulum(variants: dict[str, str], steps: int = 200_000, flags: str = PENDULUM) -> Study:
    """Return a study on Pendulum."""
    return Study("pendulum.yaml", steps, flags, variants)


STUDIES = {
    "velocities hidden": Study(
        "cartpole_hidden.yaml", 300_000, "", each("network.rnn", "none gru lstm mingru")
    ),
    "a bit, 40 steps ago": chain(each("network.rnn", "none gru lstm mingru"), ""),
    "recurrent layers": chain(each("network.rnn_layers", "1 2 3"), " --network.rnn mingru"),
    "memory span at first": chain(each("network.rnn_timescale", "0 10 100")),
    "length of back-propagation": chain(each("ppo.bptt_length", "8 32 128")),
    "curriculum": chain(
        {"length 40": "", "5 to 40": f"--env.curriculum memory_length {__file__}:memory_length"},
        " --network.rnn gru --network.rnn_timescale 10",
    ),
    "curiosity": Study(
        "mountain_car_curious.yaml", 300_000, "", each("intrinsic.kind", "none icm rnd")
    ),
    "what the critic sees": pendulum(
        {
            "as the policy": "--network.critic_keys obs",
            "the whole state": "--network.critic_keys state",
        },
        flags=CRITIC_SEES,
    ),
    "symmetry": pendulum(
        each("ppo.symmetry", "none augment loss"),
        150_000,
        f"{PENDULUM} --env.mirror_obs 1 -2 -3 --env.mirror_action -1",
    ),
    "rollouts": Study(
        "cartpole.yaml", 150_000, "", {"continue": "", "reset": "--ppo.reset_each_rollout"}
    ),
    "teacher": Study(
        "cartpole_hidden.yaml",
        40_000,
        "--eval.interval 10000",
        {
            "none": "",
            "teacher acts": f"{TAUGHT} --pretrain.actor teacher",
            "student acts": TAUGHT,
        },
        teacher="--env.obs_indices --network.rnn none --total_timesteps 300000",
    ),
    "many agents": Study(
        "particles_spread.yaml",
        1_000_000,
        SPREAD,
        {
            "independent critics": "--network.critic_keys agent obs",
            "centralised critic": "--network.critic_keys agent state",
        },
    ),
}


def memory_length(progress):
    """Return the length of MemoryChain: integers from 5 to 40 in the first 60 % of a run."""
    import jax.numpy as jnp

    return jnp.round(5 + 35 * jnp.minimum(progress / 0.6, 1.0))


def check(args: argparse.Namespace) -> None:
    """Raise ValueError for a study that does not exist."""
    for name in args.studies:
        if name not in STUDIES:
            raise ValueError(f"--studies {name}: not found. Studies: {'; '.join(STUDIES)}.")


def main(args: argparse.Namespace) -> None:
    """Run the studies of `--studies`, or all."""
    path = args.results.with_name("studies.jsonl")
    for name in args.studies or (["rollouts"] if args.toy else STUDIES):
        with tempfile.TemporaryDirectory() as folder:
            rows = run_study(name, Path(folder), toy=args.toy)
        if args.toy:
            harness.keep(args, rows)
            continue
        others = [row for row in harness.read_rows(path) if row["study"] != name]
        harness.write_rows(path, [*others, *harness.complete(rows)])
        draw(name, rows)


def run_study(name: str, folder: Path, *, toy: bool = False) -> list[dict[str, Any]]:
    """Train all variants, and return a row of each."""
    study, rows = STUDIES[name], []
    size = f"--num_seeds 5 --total_timesteps {study.steps}"
    if toy:
        size = "--num_seeds 2 --total_timesteps 256 --env.num_envs 4 --ppo.rollout_length 8"
    if study.teacher:
        train(study.config, study.teacher.split(), folder / "teacher")
    for label, flags in study.variants.items():
        words = f"{study.flags} {flags}".replace("TEACHER", str(folder / "teacher")).split()
        run_dir = folder / str(len(rows))
        train(study.config, [*words, *size.split()], run_dir)
        steps, returns = curves(run_dir)
        row = {
            "study": name,
            "variant": label,
            "config": study.config,
            "flags": f"{study.flags} {flags}".replace(__file__, "benchmarks/studies.py"),
            "teacher": study.teacher,
            "seeds": len(returns),
            "steps": steps,
            "returns": returns,
            "last": [float(np.mean(curve[-len(curve) // 4 :])) for curve in returns],
        }
        rows.append(row)
        last = row["last"]
        print(f"{name}: {label}: {np.mean(last):.1f} ± {np.std(last):.1f}", flush=True)
    return rows


def train(config: str, flags: list[str], run_dir: Path) -> None:
    """Run the train command of the README once."""
    command = [sys.executable, "-m", "purejaxppo.train", "--config", config, *flags]
    harness.call([*command, "--logging.no_tensorboard", "--run_dir", str(run_dir)])


def curves(run_dir: Path) -> tuple[list[float], list[list[float]]]:
    """Read (steps [P], deterministic returns [S][P])."""
    from purejaxppo.runs.curves import member_curves

    steps, returns = member_curves(harness.metrics(run_dir), "eval/return_mean")
    return steps.round().tolist(), returns.round(4).tolist()


def draw(name: str, rows: list[dict[str, Any]]) -> None:
    """Plot mean returns over environment steps, with 95 % bands."""
    from purejaxppo.runs.curves import confidence, new_figure, save_figure

    figure = new_figure(6, 3.6)
    axes = figure.add_subplot()
    for row in rows:
        values, steps = np.asarray(row["returns"]), np.asarray(row["steps"])
        mean, half = values.mean(axis=0), confidence(values)
        (line,) = axes.plot(steps, mean, lw=1.8, label=row["variant"])
        axes.fill_between(steps, mean - half, mean + half, color=line.get_color(), alpha=0.2, lw=0)
    axes.set_title(f"{name}: {rows[0]['config'].removesuffix('.yaml')}")
    axes.set_xlabel("environment steps of each seed")
    axes.set_ylabel(f"return: mean and 95 % confidence\nover {rows[0]['seeds']} seeds")
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 0), useMathText=True)
    axes.grid(alpha=0.3)
    path = harness.PICTURES / "studies" / f"{''.join(c if c.isalnum() else '_' for c in name)}.png"
    save_figure(figure, path)
