"""Steps per second with simulators of a given slowness: plain, double-buffered, asynchronous.

    python benchmarks/slow.py [--repeats 3] [--seconds 1.5] [--milliseconds 0 0.1 1 5]

The simulator sleeps in every step (slow_env.py): 16 environments on 8 pretended cores, whatever the
machine has. Every contender is a process of its own that compiles, warms up and then waits; the
parent lets one run at a time, round after round. Medians over rounds are compared. Results go to
benchmarks/results/slow.jsonl.
"""

import argparse
import datetime
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine

NETWORKS = {"small": (64, 64), "large": (512, 512)}
CONTENDERS = {
    "plain": {},
    "double": {"env.double_buffer": True},
    "asynchronous": {"asynchronous": True},
    "both": {"env.double_buffer": True, "asynchronous": True},
}
NUM_ENVS, WORKERS = 16, 8
SIZES = {"ppo.rollout_length": 32, "ppo.num_minibatches": 4, "ppo.num_epochs": 4}


def main() -> None:
    """Parent: starts the contenders of each case, and lets them run in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=1.5, help="of one timed round")
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[0, 0.1, 1, 5])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--dry", action="store_true", help="keep no rows")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, network, milliseconds = args.worker
        work(name, network, float(milliseconds), args.seconds)
        return
    rows = []
    for network, milliseconds in itertools.product(args.networks, args.milliseconds):
        speeds = measure(args.contenders, network, milliseconds, args.repeats, args.seconds)
        rows += [row(name, network, milliseconds, values) for name, values in speeds.items()]
        cells = (f"{name} {statistics.median(values):,.0f}" for name, values in speeds.items())
        print(f"{network}, {milliseconds:g} ms: {', '.join(cells)} steps/s", flush=True)
    if not args.dry:
        machine.write_rows(machine.RESULTS / "slow.jsonl", rows)


def measure(
    names: list[str], network: str, milliseconds: float, repeats: int, seconds: float
) -> dict[str, list[float]]:
    """Steps/s of each contender in each round."""
    workers = {}
    for name in names:
        case = (name, network, str(milliseconds))
        workers[name] = subprocess.Popen(
            [sys.executable, __file__, *f"--seconds {seconds} --worker".split(), *case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        expect(workers[name], "ready")  # one compiles at a time
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, worker in workers.items():
            worker.stdin.write("go\n")
            worker.stdin.flush()
            speeds[name].append(float(expect(worker, "speed").split()[1]))
    for worker in workers.values():
        worker.kill()
        worker.wait()
    return speeds


def expect(worker: subprocess.Popen, word: str) -> str:
    """The next line of a worker that begins with `word`."""
    for line in worker.stdout:
        if line.startswith(word):
            return line
    raise RuntimeError(f"{worker.args}: ended with {worker.wait()}")


def row(name: str, network: str, milliseconds: float, speeds: list[float]) -> dict[str, Any]:
    """What is kept of one contender in one case."""
    return {
        "contender": name,
        "network": list(NETWORKS[network]),
        "milliseconds": milliseconds,
        "steps_per_second": statistics.median(speeds),
        "rounds": [round(speed) for speed in speeds],
        "date": datetime.date.today().isoformat(),
        **machine.describe(),
    }


class Pacer:
    """Stands in for what a run does between updates: waits for a line of stdin, and times."""

    def __init__(self, run: Any, interrupt: Any, seconds: float) -> None:
        """Times rounds of so many seconds."""
        self.run, self.interrupt, self.seconds = run, interrupt, seconds
        self.begun: tuple[float, int] | None = None
        self.calls = 0

    def __call__(self, *metrics: Any) -> None:
        """Of each round the first update, and the two that come before all, are not timed."""
        self.calls += 1
        now, steps = time.perf_counter(), self.run.progress.env_steps
        if self.calls <= 2:
            if self.calls == 2:
                self.say("ready")
        elif self.begun is None:
            self.begun = now, steps
        elif now - self.begun[0] >= self.seconds:
            speed = (steps - self.begun[1]) / (now - self.begun[0])
            self.begun = None
            self.say(f"speed {speed}")

    def say(self, line: str) -> None:
        """Tells the parent, and waits until it says go; ends if it is gone."""
        print(line, flush=True)
        if not sys.stdin.readline():
            self.interrupt.signal = "SIGTERM"


def work(name: str, network: str, milliseconds: float, seconds: float) -> None:
    """Worker: the loop of `python -m purejaxppo.train`, without its logs and saves."""
    import jax

    from purejaxppo import load_config
    from purejaxppo.parallel.shards import use_compilation_cache, use_cpu_cores
    from purejaxppo.runs.console import Console
    from purejaxppo.runs.loop import Interrupt
    from purejaxppo.runs.programs import resolve_shards
    from purejaxppo.runs.session import programs_of

    use_compilation_cache()
    use_cpu_cores(0)
    overrides = {
        "env.name": f"gymnasium/{Path(__file__).with_name('slow_env.py')}:Slow",
        "env.num_envs": NUM_ENVS,
        "env.max_episode_steps": 1000,
        "env.options": {
            "milliseconds": milliseconds,
            "workers": "thread",
            "num_workers": WORKERS,
        },
        "network.hidden": list(NETWORKS[network]),
        "eval.num_episodes": 0,
        "total_timesteps": 1_000_000_000,
        **SIZES,
        **CONTENDERS[name],
    }
    config = resolve_shards(load_config("cartpole.yaml", overrides), len(jax.devices()))
    programs, run_kind = programs_of(config, jax.devices())
    state = programs.init()
    programs.compile(state)
    with tempfile.TemporaryDirectory() as folder:
        run = run_kind(programs, Path(folder), Console(config.total_timesteps))
        interrupt = Interrupt()
        run._after_chunk = Pacer(run, interrupt, seconds)
        run.train(state, interrupt)


if __name__ == "__main__":
    main()
