"""The harness of all benchmarks: alternating contenders, medians, and rows of results.

Each contender is a separate process. One runs at a time, round after round, which spreads the noise
of a machine over all, and medians over rounds are compared. A worker compiles, warms up and prints
`ready` with its versions, then one `speed` per line of its stdin. This module only imports packages
that the Python of a peer also has.
"""

import argparse
import contextlib
import datetime
import functools
import hashlib
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TextIO

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures"
PACKAGES = (
    *("jax", "jaxlib", "flax", "optax"),
    *("brax", "gymnax", "playground", "mujoco-mjx", "mujoco", "envpool", "gymnasium"),
    *("craftax", "jaxmarl", "jumanji", "pgx", "xminigrid"),
    *("torch", "stable_baselines3", "sbx-rl", "rejax", "distrax", "tensorflow-probability"),
)
SETTLE_SECONDS = 0.2
"""Seconds for the start of the processes that keep cores awake."""
Row = dict[str, Any]
Facts = Callable[[], Row]
Clock = Callable[[], float]


def options(
    doc: str, name: str, *, rounds: int = 0, seconds: float = 0.0
) -> argparse.ArgumentParser:
    """Make the parser of a script with the flags of all scripts.

    Args:
        doc: docstring of the script; its first line becomes the description.
        name: stem of the results file.
        rounds: default number of timed rounds; 0: no such flag.
        seconds: default length of a round; 0: no such flag.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0], allow_abbrev=False)
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, help="timed rounds")
    if seconds:
        parser.add_argument("--seconds", type=float, default=seconds, help="length of a round")
    parser.add_argument(
        "--results", type=Path, default=RESULTS / f"{name}.jsonl", help="file of the rows"
    )
    parser.add_argument(
        "--toy", action="store_true", help="tiny sizes; print rows, do not store them"
    )
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line. A toy run has one short round."""
    args = parser.parse_args()
    commit()
    if args.toy:
        args.rounds, args.seconds = 1, 0.01
    return args


def program(path: str) -> str:
    """Check that a program exists, and return its path; the type of a flag."""
    if not shutil.which(path):
        raise argparse.ArgumentTypeError(f"{path}: no such program")
    return path


def describe() -> Row:
    """Return device, versions and commit for a row. This starts JAX."""
    import jax

    from purejaxppo.parallel.cores import cpu_cores

    device = jax.devices()[0]
    on_cpu = device.platform == "cpu"
    return {
        "device": _cpu_name() if on_cpu else device.device_kind,
        "cores": cpu_cores() if on_cpu else len(jax.devices()),
        "commit": commit(),
        **software(),
    }


def software() -> Row:
    """Return the versions of Python and of the relevant installed packages."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {"python": platform.python_version(), "versions": versions}


@functools.cache
def commit() -> str:
    """Return the short commit of this checkout at the first call, or "" outside of git.

    The first call is before rows are stored, which makes the checkout dirty.
    """
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def package_hash() -> str:
    """Return a hash of the source files of the package."""
    paths = sorted((ROOT / "purejaxppo").rglob("*.py"))
    return hashlib.sha1(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def peak() -> Row:
    """Return peak memory of this process and of its accelerators, in MB."""
    import jax

    unit = 2**20 if sys.platform == "darwin" else 2**10
    row = {"peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)}
    devices = [stats for d in jax.local_devices() if (stats := d.memory_stats())]
    if devices:
        row["device_peak_mb"] = round(sum(s["peak_bytes_in_use"] for s in devices) / 2**20)
    return row


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_rows(path: Path) -> list[Row]:
    """Read a results file, one JSON object per line; [] if it does not exist."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_rows(path: Path, rows: list[Row]) -> None:
    """Replace a results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def complete(rows: list[Row]) -> list[Row]:
    """Add the date, device, versions, commit and `keep_cores_awake` (default false) to rows."""
    shared = {"keep_cores_awake": False, "date": datetime.date.today().isoformat(), **describe()}
    return [shared | row for row in rows]


def keep(args: argparse.Namespace, rows: list[Row], *keys: str) -> None:
    """Complete rows and replace earlier ones with equal `keys`; a toy run only prints them."""
    rows = complete(rows)
    if args.toy:
        print(*(json.dumps(row) for row in rows), sep="\n", flush=True)
        return
    new = {tuple(row[key] for key in keys) for row in rows}
    others = [r for r in read_rows(args.results) if tuple(r.get(key) for key in keys) not in new]
    write_rows(args.results, [*others, *rows])


class Result(NamedTuple):
    """The speeds of a contender."""

    speeds: list[float]  # steps/s of each round
    facts: Row  # its Python and packages, and entries of its worker

    def median(self) -> float:
        """Return the median steps/s."""
        return statistics.median(self.speeds)

    def row(self, **facts: Any) -> Row:
        """Return the row of the contender."""
        speeds = {"steps_per_second": self.median(), "rounds": [round(x) for x in self.speeds]}
        return {**facts, **speeds, **self.facts}


def show(title: str, results: dict[str, Result], *bases: str) -> None:
    """Print medians and ranges, with ratios to the measured contenders among `bases`."""
    bases = tuple(base for base in bases if base in results)
    print(f"\n{title}\n{'contender':24}{'steps/s':>12}{'min':>12}{'max':>12}", end="")
    print("".join(f"{'of ' + base:>16}" for base in bases))
    for name, result in results.items():
        numbers = result.median(), min(result.speeds), max(result.speeds)
        ratios = [f"{result.median() / results[base].median():16.2f}" for base in bases]
        print(f"{name:24}" + "".join(f"{x:12,.0f}" for x in numbers) + "".join(ratios), flush=True)


def measure(
    commands: dict[str, list[str]],
    rounds: int,
    awake: Collection[str] = (),
    env: dict[str, dict[str, str]] | None = None,
) -> dict[str, Result]:
    """Run the commands of contenders in alternation.

    Args:
        commands: contender -> command of its worker.
        rounds: number of rounds.
        awake: contenders in whose rounds cores are kept awake.
        env: contender -> further environment variables.
    """
    workers: dict[str, Worker] = {}
    results: dict[str, Result] = {}
    with contextlib.ExitStack() as stack:
        for name, command in commands.items():
            errors = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
            workers[name] = Worker(command, errors, (env or {}).get(name, {}))
            stack.callback(workers[name].end)
            # They compile one at a time.
            results[name] = Result([], json.loads(workers[name].expect("ready")))
        for _ in range(rounds):
            for name, worker in workers.items():
                with kept_awake() if name in awake else contextlib.nullcontext():
                    worker.go()
                    results[name].speeds.append(float(worker.expect("speed")))
    return results


@contextlib.contextmanager
def kept_awake() -> Iterator[None]:
    """Keep cores awake, as `python -m purejaxppo.train --keep_cores_awake` does."""
    from purejaxppo.parallel import awake

    with awake.kept_awake(True):
        time.sleep(SETTLE_SECONDS)
        yield


class Worker:
    """The process of a contender, used by the parent."""

    def __init__(self, command: list[str], errors: TextIO, env: dict[str, str]) -> None:
        """Start the process; its stderr goes to `errors` and is printed if it fails."""
        self.errors = errors
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # Several contenders share one GPU.
            env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ, **env},
        )

    def go(self) -> None:
        """Start one round."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def expect(self, word: str) -> str:
        """Return the rest of its next line that starts with `word`."""
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        code = self.process.wait()
        self.errors.seek(0)
        last = "".join(self.errors.readlines()[-5:])
        raise RuntimeError(f"{' '.join(self.process.args)}: exit code {code}\n{last}")

    def end(self) -> None:
        """Close its stdin, which ends its rounds."""
        with self.process:
            self.process.stdin.close()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()


def rounds(run: Callable[[int], int], seconds: float, facts: Facts = dict) -> None:
    """Run a worker: warm up, then report a speed for every line of stdin.

    Args:
        run: number of updates -> number of environment steps.
        seconds: length of a round, which has at least one update.
        facts: further entries of its row, read after the warm-up.
    """
    count = calibrate(run, seconds)
    ready(facts)
    for _ in sys.stdin:
        steps, elapsed = timed(run, count)
        print("speed", steps / elapsed, flush=True)


def calibrate(run: Callable[[int], int], seconds: float) -> int:
    """Warm up, and return the number of updates in so many seconds."""
    run(1)
    count, elapsed = 1, timed(run, 1)[1]
    while elapsed < seconds / 4:
        count *= 2
        elapsed = timed(run, count)[1]
    return max(1, round(count * seconds / elapsed))


def timed(
    run: Callable[[int], int], count: int, clock: Clock = time.perf_counter
) -> tuple[int, float]:
    """Return (steps, seconds) of one call."""
    started = clock()
    steps = run(count)
    return steps, clock() - started


def alternate(
    runs: dict[str, Callable[[int], int]],
    args: argparse.Namespace,
    clock: Clock = time.perf_counter,
) -> dict[str, Result]:
    """Time functions (updates -> steps) of this process in alternation.

    With `time.process_time` as the clock, other processes on the machine matter little.
    """
    counts = {name: calibrate(run, args.seconds) for name, run in runs.items()}
    results = {name: Result([], {}) for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            steps, elapsed = timed(run, counts[name], clock)
            results[name].speeds.append(steps / elapsed)
    return results


def ready(facts: Facts = dict) -> None:
    """Print that compilation has ended, with versions."""
    print("ready", json.dumps({**software(), **facts()}), flush=True)


def call(command: list[str], **given: Any) -> str:
    """Return the stdout of a command, or raise RuntimeError with its last line of stderr."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **given)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {last}")
    return done.stdout


def has_modules(contender: str, python: str, names: tuple[str, ...]) -> bool:
    """Return whether an interpreter finds the modules, and print missing ones."""
    code = (
        "import importlib.util, sys\n"
        "print(*(m for m in sys.argv[1:] if not importlib.util.find_spec(m)))"
    )
    missing = subprocess.run([python, "-c", code, *names], check=True, stdout=subprocess.PIPE)
    if names := missing.stdout.decode().split():
        print(f"{contender}: skipped, since {python} does not find {', '.join(names)}.")
    return not names


def metrics(run_dir: Path) -> list[Row]:
    """Read the rows of metrics.csv of a run, without their empty cells."""
    from purejaxppo.runs.rows import read_csv

    return read_csv(run_dir / "metrics.csv")


def iqm(*tasks: Any) -> Any:
    """Return the interquartile mean (IQM) of the runs of tasks. All tasks have the same weight.

    It is the mean without the lowest and the highest quarter. A run on their border counts in part,
    so the mean of several copies of all runs is the same.

    Args:
        tasks: float [..., runs], with different numbers of runs.
    """
    import numpy as np

    runs = np.concatenate(tasks, -1)
    weights = np.concatenate([np.full(x.shape[-1], 1 / x.shape[-1]) for x in tasks]) / len(tasks)
    order = np.argsort(runs, -1)
    ends = np.cumsum(weights[order], -1)
    weights = np.diff(np.clip(ends, 0.25, 0.75), prepend=0.25)
    return np.sum(weights * np.take_along_axis(runs, order, -1), -1) / 0.5


def iqm_interval(tasks: list[Any], base: Collection[Any] = ()) -> tuple[float, float, float]:
    """Return the IQM over tasks with its 95 % interval, from a bootstrap of runs within tasks.

    With `base`, runs of the same tasks, both are divided by the mean of a task's base runs, and
    the difference of their IQMs is returned. Every resampled base has its own mean.
    Stratified bootstrap with percentiles (Agarwal et al. 2021, https://arxiv.org/abs/2108.13264).
    """
    import numpy as np
    from scipy import stats

    def difference(*drawn: Any, axis: int = -1) -> Any:
        del axis  # always the last one
        runs, base_runs = drawn[: len(tasks)], drawn[len(tasks) :]
        if not base:
            return iqm(*runs)
        means = [np.mean(x, axis=-1, keepdims=True) for x in base_runs]
        scaled = [
            iqm(*(x / mean for x, mean in zip(each, means, strict=True)))
            for each in (runs, base_runs)
        ]
        return scaled[0] - scaled[1]

    data = [*tasks, *base]
    bootstrap = stats.bootstrap(
        data,
        difference,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = bootstrap.confidence_interval
    return float(difference(*data)), float(low), float(high)


def axes_style(axes: Any) -> None:
    """Set the common style of grid and frame of a plot."""
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
