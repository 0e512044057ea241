"""Seconds from a command to what its user waits for, beside another version and a part alone.

    python benchmarks/startup.py [--before FOLDER] [--rounds 7] [--only WHAT ...]

Whole commands in processes of their own, in turns: each round runs every contender once. A first
update is over when its progress is printed. A cold start has an empty cache; a warm one is the
third or a later one. `--before` is a checkout of another version, which has caches of its own.
`--timeline` prints where one warm start's seconds go. Rows go to benchmarks/results/startup.jsonl.
"""

import argparse
import datetime
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import machine

PATH = machine.RESULTS / "startup.jsonl"
ROOT = Path(__file__).resolve().parent.parent
ALONE = {
    "imports": "import jax, brax.envs",
    "program": """
import jax
from purejaxppo.config.files import load_config
from purejaxppo.parallel.shards import use_cpu_cores
from purejaxppo.runs.programs import Programs, resolve_shards
use_cpu_cores(0)
config = load_config("hopper.yaml", {"total_timesteps": 16384})
programs = Programs(resolve_shards(config, len(jax.devices())), jax.devices())
programs.compile_training(programs.abstract_state())
""",
}
"""What a start cannot do without, in a process of its own: imports of a simulator; these, and
tracing and compiling the program of training alone, without caches."""
TRAINED = 1_000_000
"""Steps of the agent that is evaluated and filmed."""


class Measurement(NamedTuple):
    """A command, and until when its time is taken."""

    words: tuple[str, ...]
    until: str = ""
    """The output that ends the measurement; empty: the command's end."""
    cold: bool = False
    alone: str = ""
    """The key in `ALONE` of what it is compared with, too."""


HOPPER = ("train", "--config", "hopper.yaml", "--total_timesteps", "16384", "--clobber")
CARTPOLE = ("train", "--config", "cartpole.yaml", "--clobber")
RUN = ("evaluate", "--run", "TRAINED")
MEASUREMENTS = {
    "hopper, first update, warm": Measurement(HOPPER, "steps/s", alone="imports"),
    "hopper, first update, cold": Measurement(HOPPER, "steps/s", cold=True, alone="program"),
    "CartPole, whole command, warm": Measurement(CARTPOLE),
    "hopper, evaluate 100 episodes, warm": Measurement((*RUN, "--episodes", "100")),
    "hopper, evaluate 1 episode and film it, warm": Measurement(
        (*RUN, "--episodes", "1", "--render", "FOLDER/film.mp4")
    ),
}


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="a checkout of another version")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", default=list(MEASUREMENTS), choices=MEASUREMENTS)
    parser.add_argument("--work", type=Path, help="a folder that keeps caches between calls")
    parser.add_argument("--timeline", action="store_true")
    args = parser.parse_args()
    versions = {"ours": ROOT} | ({"before": args.before.resolve()} if args.before else {})
    with tempfile.TemporaryDirectory() as made:
        work = (args.work or Path(made)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        for what in args.only:
            if args.timeline:
                timeline(MEASUREMENTS[what], ROOT, work / "ours")
            else:
                measure(what, versions, work, args.rounds)


def measure(what: str, versions: dict[str, Path], work: Path, rounds: int) -> None:
    """Measures one command in all versions, and keeps a row of each."""
    measurement = MEASUREMENTS[what]
    seconds: dict[str, list[float]] = {name: [] for name in versions}
    for name, package in versions.items():
        prepare(measurement, package, work / name)
    if measurement.alone:
        seconds[measurement.alone] = []
    for _ in range(rounds):
        for name, taken in seconds.items():
            taken.append(
                once(measurement, versions[name], work / name)
                if name in versions
                else run([sys.executable, "-c", ALONE[name]], environment(ROOT, work / "alone"))
            )
    for name, taken in seconds.items():
        keep({"what": what, "contender": name, "rounds": [round(x, 3) for x in taken]})
        print(f"{what}: {name} {statistics.median(taken):.2f} s", flush=True)


def keep(row: dict) -> None:
    """Writes a row in place of the one before it."""
    same = ("what", "contender")
    rows = [r for r in machine.read_rows(PATH) if any(r[key] != row[key] for key in same)]
    row |= {"date": datetime.date.today().isoformat(), **machine.describe()}
    machine.write_rows(PATH, [*rows, row])


def prepare(measurement: Measurement, package: Path, folder: Path) -> None:
    """Trains the agent that is asked for, and starts twice what is to be warm."""
    folder.mkdir(exist_ok=True)
    if measurement.words[0] == "evaluate" and not (folder / "trained" / "config.yaml").is_file():
        words = ["train", "--config", "hopper.yaml", "--total_timesteps", str(TRAINED)]
        run(command([*words, "--run_dir", str(folder / "trained")]), environment(package, folder))
    for _ in range(0 if measurement.cold else 2):
        once(measurement, package, folder)


def once(measurement: Measurement, package: Path, folder: Path) -> float:
    """Seconds of one start."""
    if measurement.cold:
        shutil.rmtree(folder / "cold", ignore_errors=True)
        (folder / "cold").mkdir()
    cache = folder / "cold" if measurement.cold else folder
    given = {"TRAINED": str(folder / "trained"), "FOLDER": str(folder)}
    words = [given.get(word, word.replace("FOLDER", str(folder))) for word in measurement.words]
    if words[0] == "train":
        words += ["--run_dir", str(folder / "run")]
    return run(command(words), environment(package, cache), measurement.until)


def command(words: list[str]) -> list[str]:
    """The words of a process that runs a command of the library."""
    return [sys.executable, "-m", "purejaxppo", *words]


def environment(package: Path, cache: Path) -> dict[str, str]:
    """The environment variables of a version, with a cache of its own."""
    without = "JAX_COMPILATION_CACHE_DIR"
    inherited = {key: value for key, value in os.environ.items() if key != without}
    own = {"PYTHONPATH": str(package), "XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
    return inherited | own


def run(words: list[str], env: dict[str, str], until: str = "") -> float:
    """Seconds until a process prints `until`, or ends; it always runs to its end."""
    started, seen = time.perf_counter(), 0.0
    where = env.get("PYTHONPATH") if "-m" in words else None  # -m looks in the folder it runs in
    with subprocess.Popen(words, env=env, cwd=where, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if until and until in line and not seen:
                seen = time.perf_counter() - started
    if process.returncode or (until and not seen):
        raise SystemExit(f"{' '.join(words)} failed")
    return seen or time.perf_counter() - started


TIMELINE = """
import collections, logging, sys, time
started = time.perf_counter()
import jax, jax.monitoring
spent = collections.Counter()
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: spent.update({event: seconds})
)
def say(what):
    print(f"{time.perf_counter() - started:7.2f} s  {what}", file=sys.stderr)
class Marks(logging.Handler):
    def emit(self, record):
        say(record.getMessage()[:100])
say("JAX is imported")
for name in ("jax._src.interpreters.pxla", "purejaxppo"):
    logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger(name).addHandler(Marks())
jax.config.update("jax_log_compiles", True)
from purejaxppo.__main__ import main
code = main()
say("end")
for event, seconds in spent.most_common(8):
    print(f"{seconds:7.2f} s in {event}", file=sys.stderr)
sys.exit(code)
"""


def timeline(measurement: Measurement, package: Path, folder: Path) -> None:
    """Prints when each program of a warm start begins to compile, and what JAX spent."""
    prepare(measurement, package, folder)
    words = [sys.executable, "-c", TIMELINE]
    given = {"TRAINED": str(folder / "trained")}
    words += [given.get(w, w.replace("FOLDER", str(folder))) for w in measurement.words]
    if measurement.words[0] == "train":
        words += ["--run_dir", str(folder / "run")]
    subprocess.run(words, env=environment(package, folder), check=True)


if __name__ == "__main__":
    main()
