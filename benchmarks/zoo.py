"""A folder of trained agents, to attach to a release: config, policies, video and card of each.

    python benchmarks/learning.py cartpole hopper --seeds 5 --runs runs/evidence
    python benchmarks/zoo.py --runs runs/evidence --to zoo

Each config gets the agent with the highest mean return of its seeds. Its card lists the returns of
all seeds, so that the best seed is not mistaken for a typical one.
"""

import argparse
import json
import shutil
import statistics
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import harness

from purejaxppo import load

CARD = """\
# {config}: {task}

| | return |
| --- | --- |
| this agent (seed {seed}), mean ± standard deviation over {episodes} episodes | {score} |
| mean ± standard deviation over {count} seeds (best checkpoints) | {best} |
| the same for the last checkpoints | {last} |
{seeds}

Trained for {steps:,} environment steps with `{command}`, on {cores} cores ({device}), {date}.
Versions: {versions}, commit {commit}.

| file | contents |
| --- | --- |
| `config.yaml` | all settings: `purejaxppo train --config config.yaml` trains it again |
| `policy.npz` | the policy for NumPy, with `purejaxppo/export/player.py` |
| `policy.onnx` | the same for ONNX runtimes |
{video}"""


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True, help="folder of learning.py --runs")
    parser.add_argument("--to", type=Path, default=Path("zoo"), help="folder to write")
    parser.add_argument("--no_video", action="store_true", help="render no videos")
    args = parser.parse_args()
    rows = [(json.loads(path.read_text()), path.parent) for path in args.runs.glob("*/row.json")]
    if not rows:
        parser.exit(2, f"{args.runs}: no runs with row.json. Train them with learning.py --runs.\n")
    for config, group in groupby(sorted(rows, key=config_of), key=config_of):
        agent = add(list(group), args.to / Path(config).stem, with_video=not args.no_video)
        print(agent, flush=True)


def config_of(entry: tuple[harness.Row, Path]) -> str:
    """Return the config of a row and its run folder."""
    return str(entry[0]["config"])


def add(entries: list[tuple[harness.Row, Path]], folder: Path, *, with_video: bool) -> Path:
    """Write the agent with the highest return of the seeds of one config, and return its folder."""
    row, run_dir = max(entries, key=lambda entry: entry[0]["return_mean"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(run_dir / "config.yaml", folder)
    shutil.copy(run_dir / "row.json", folder)
    if (run_dir / "code").is_dir():
        shutil.copytree(run_dir / "code", folder / "code")
    for file in ("policy.npz", "policy.onnx"):
        command("export", "--run", run_dir, "--to", folder / file)
    if with_video:
        video = folder / "video.mp4"
        command("evaluate", "--run", run_dir, "--episodes", 1, "--render", video)
    task = load(run_dir).config.env.name
    text = card(task, row, [entry[0] for entry in entries], has_video=with_video)
    (folder / "README.md").write_text(text, encoding="utf-8")
    return folder


def command(*words: Any) -> None:
    """Run a command of the package."""
    harness.call([sys.executable, "-m", "purejaxppo", *map(str, words)])


def card(task: str, row: harness.Row, rows: list[harness.Row], *, has_video: bool) -> str:
    """Return the text of a card.

    Args:
        task: name of the environment.
        row: the row of the agent.
        rows: the rows of all seeds.
        has_video: whether the folder contains a video.
    """
    ordered = sorted(rows, key=lambda other: other["seed"])
    seeds = [f"| seed {other['seed']} | {other['return_mean']:.1f} |" for other in ordered]
    flags = f" {row['flags']}" if row["flags"] else ""
    return CARD.format(
        config=Path(row["config"]).stem,
        task=task,
        seed=row["seed"],
        episodes=row["episodes"],
        score=f"{row['return_mean']:.1f} ± {row['return_std']:.1f}",
        count=len(rows),
        best=over_seeds([other["return_mean"] for other in rows]),
        last=over_seeds([other["last_return_mean"] for other in rows]),
        seeds="\n".join(seeds),
        steps=row["env_steps"],
        command=f"purejaxppo train --config {row['config']} --seed {row['seed']}{flags}",
        cores=row["cores"],
        device=row["device"],
        date=row["date"],
        versions=", ".join(f"{name} {version}" for name, version in row["versions"].items()),
        commit=row["commit"],
        video="| `video.mp4` | one episode |\n" if has_video else "",
    )


def over_seeds(returns: list[float]) -> str:
    """Return mean and standard deviation (n - 1 in the denominator) of returns of seeds."""
    mean = f"{statistics.fmean(returns):.1f}"
    return f"{mean} ± {statistics.stdev(returns):.1f}" if len(returns) > 1 else mean


if __name__ == "__main__":
    main()
