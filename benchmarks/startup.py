"""Seconds from a command to its first update or its end, compared with another version.

    python benchmarks/startup.py [--before FOLDER] [--rounds 7] [--only WHAT ...]

Commands run in separate processes, in alternation: each round runs every contender once. A first
update ends when its progress is printed. A cold start has an empty cache; a warm one is the third
or a later one. `--before` is a checkout of another version, which has its own caches. Rows go to
benchmarks/results/startup.jsonl.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import harness

ALONE = {
    "imports": "import jax, brax.envs",
    "program": """
import jax
from purejaxppo.config.files import load_config
from purejaxppo.parallel.shards import use_cpu_cores
from purejaxppo.runs.programs import Programs
from purejaxppo.setup import divide, resolve
use_cpu_cores(0)
changes = {"env.num_envs": 512, "network.layer_norm": False, "ppo.rollout_length": 16}
config = load_config("hopper.yaml", changes | {"total_timesteps": 16384})
programs = Programs(divide(resolve(config), jax.devices()))
programs.compile(programs.abstract_state())
""",
}
"""The unavoidable part of a start, in a separate process: imports of a simulator; or tracing and
compiling the program of training, without caches."""


class Measurement(NamedTuple):
    """A command, and the end of its measured time."""

    words: tuple[str, ...]
    until: str = ""
    """The output that ends the measurement; empty: the end of the command."""
    cold: bool = False
    alone: str = ""
    """The key in `ALONE` of its unavoidable part."""


SIZES = ("--env.num_envs", "512", "--ppo.rollout_length", "16", "--network.no_layer_norm")
"""Settings of hopper.yaml in version 0.2, for a comparison with it."""
TRAIN_HOPPER = ("train", "--config", "hopper.yaml", *SIZES, "--total_timesteps")
HOPPER = (*TRAIN_HOPPER, "16384", "--clobber")
CARTPOLE = ("train", "--config", "cartpole.yaml", "--clobber")
TRAINED = (*TRAIN_HOPPER, "1_000_000")
"""The run whose agent is evaluated and recorded."""
RUN = ("evaluate", "--run", "FOLDER/trained")
TOY = "CartPole, toy"
MEASUREMENTS = {
    "hopper, first update, warm": Measurement(HOPPER, "steps/s", alone="imports"),
    "hopper, first update, cold": Measurement(HOPPER, "steps/s", cold=True, alone="program"),
    "CartPole, whole command, warm": Measurement(CARTPOLE),
    "hopper, evaluate 100 episodes, warm": Measurement((*RUN, "--episodes", "100")),
    "hopper, evaluate 1 episode and record it, warm": Measurement(
        (*RUN, "--episodes", "1", "--render", "FOLDER/video.mp4")
    ),
    TOY: Measurement((*CARTPOLE, "--total_timesteps", "2048"), "steps/s", cold=True),
}


def main() -> None:
    """Run the chosen measurements."""
    parser = harness.options(__doc__, "startup", rounds=7)
    parser.add_argument("--before", type=Path, help="checkout of another version")
    parser.add_argument(
        "--only", nargs="+", choices=MEASUREMENTS, metavar="WHAT", help="; ".join(MEASUREMENTS)
    )
    parser.add_argument("--work", type=Path, help="folder that keeps caches between calls")
    args = parser.parse_args()
    if args.toy:
        args.rounds, args.only = 1, [TOY]
    versions = {"ours": harness.ROOT}
    if args.before:
        versions["before"] = args.before.resolve()
    rows = []
    with tempfile.TemporaryDirectory() as made:
        work = (args.work or Path(made)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        for what in args.only or [name for name in MEASUREMENTS if name != TOY]:
            for name, taken in measure(MEASUREMENTS[what], versions, work, args.rounds).items():
                print(f"{what}: {name} {statistics.median(taken):.2f} s", flush=True)
                rounds = [round(x, 3) for x in taken]
                rows.append({"what": what, "contender": name, "rounds": rounds})
    harness.keep(args, rows, "what", "contender")


def measure(
    measurement: Measurement, versions: dict[str, Path], work: Path, rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of one command in all versions, and of its part alone, per round."""
    for name, package in versions.items():
        prepare(measurement, package, work / name)
    seconds: dict[str, list[float]] = {name: [] for name in versions}
    if measurement.alone:
        seconds[measurement.alone] = []
    for _ in range(rounds):
        for name, taken in seconds.items():
            if name in versions:
                taken.append(start(measurement, versions[name], work / name))
            else:
                words = [sys.executable, "-c", ALONE[name]]
                taken.append(run(words, environment(harness.ROOT, work / "alone")))
    return seconds


def prepare(measurement: Measurement, package: Path, folder: Path) -> None:
    """Train the evaluated agent, and start each command twice that is measured warm."""
    folder.mkdir(exist_ok=True)
    if measurement.words[0] == "evaluate" and not (folder / "trained" / "config.yaml").is_file():
        words = command([*TRAINED, "--run_dir", str(folder / "trained")])
        run(words, environment(package, folder))
    for _ in range(0 if measurement.cold else 2):
        start(measurement, package, folder)


def start(measurement: Measurement, package: Path, folder: Path) -> float:
    """Return the seconds of one start."""
    cache = folder / "cold" if measurement.cold else folder
    if measurement.cold:
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
    words = [word.replace("FOLDER", str(folder)) for word in measurement.words]
    if words[0] == "train":
        words += ["--run_dir", str(folder / "run")]
    return run(command(words), environment(package, cache), measurement.until)


def command(words: list[str]) -> list[str]:
    """Return the words of a process that runs a command of the library."""
    return [sys.executable, "-m", "purejaxppo", *words]


def environment(package: Path, cache: Path) -> dict[str, str]:
    """Return the environment variables of a version, with its own cache."""
    inherited = {k: x for k, x in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    own = {"PYTHONPATH": str(package), "XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
    return inherited | own


def run(words: list[str], env: dict[str, str], until: str = "") -> float:
    """Return the seconds until a process prints `until` or ends; wait for its end in both cases."""
    started, seen = time.perf_counter(), 0.0
    where = env["PYTHONPATH"] if "-m" in words else None  # -m imports from the current folder
    with subprocess.Popen(words, env=env, cwd=where, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if until and until in line and not seen:
                seen = time.perf_counter() - started
    if process.returncode or (until and not seen):
        raise RuntimeError(f"{' '.join(words)} failed")
    return seen or time.perf_counter() - started


if __name__ == "__main__":
    main()
