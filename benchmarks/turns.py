"""Contenders that take turns: each a process of its own, one at work at a time, round after round.

A noisy machine is then noisy for all, and medians over rounds can be compared. A worker compiles
and warms up, prints `ready` and its versions, and then one `speed` per line of its stdin. Imports
nothing that a peer's Python may not have.
"""

import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TextIO

import machine

SETTLED = 0.2
"""Seconds after which the processes that keep cores awake have begun."""


class Result(NamedTuple):
    """What one contender reached."""

    speeds: list[float]  # steps/s of each round
    about: dict[str, Any]  # its Python, its packages, and what else it told

    def median(self) -> float:
        """Steps/s."""
        return statistics.median(self.speeds)

    def row(self, **facts: Any) -> dict[str, Any]:
        """What is kept of it; call when all have ended, since describing a machine starts JAX."""
        return {
            **facts,
            "steps_per_second": self.median(),
            "rounds": [round(speed) for speed in self.speeds],
            "date": datetime.date.today().isoformat(),
            **machine.describe(),
            **self.about,
        }


def measure(
    commands: dict[str, list[str]], repeats: int, awake: Collection[str] = ()
) -> dict[str, Result]:
    """Runs the contenders' commands in turns; cores are kept awake in those of some."""
    workers: dict[str, Worker] = {}
    results: dict[str, Result] = {}
    with contextlib.ExitStack() as stack:
        for name, command in commands.items():
            errors = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
            workers[name] = Worker(command, errors)
            stack.callback(workers[name].end)
            # One compiles at a time.
            results[name] = Result([], json.loads(workers[name].expect("ready")))
        for _ in range(repeats):
            for name, worker in workers.items():
                with kept_awake() if name in awake else contextlib.nullcontext():
                    worker.go()
                    results[name].speeds.append(float(worker.expect("speed")))
    return results


def quartiles(before: list[float], after: list[float]) -> list[float]:
    """Of the ratios after / before of two contenders, round by round."""
    return statistics.quantiles([b / a for a, b in zip(before, after, strict=True)], n=4)


@contextlib.contextmanager
def kept_awake() -> Iterator[None]:
    """As `python -m purejaxppo.train` keeps cores awake, whoever is at work."""
    from purejaxppo.parallel import awake

    with awake.kept_awake(True):
        time.sleep(SETTLED)
        yield


class Worker:
    """The parent's side of one contender."""

    def __init__(self, command: list[str], errors: TextIO) -> None:
        """Starts the process; what it complains of goes to `errors`, to be shown if it fails."""
        self.errors = errors
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # Several contenders share one GPU.
            env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ},
        )

    def go(self) -> None:
        """Lets it run one round."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def expect(self, word: str) -> str:
        """The rest of its next line that begins with `word`."""
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        code = self.process.wait()
        self.errors.seek(0)
        last = "".join(self.errors.readlines()[-5:])
        raise RuntimeError(f"{' '.join(self.process.args)}: ended with {code}\n{last}")

    def end(self) -> None:
        """A closed stdin ends its rounds, and with them its own workers."""
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


Facts = Callable[[], dict[str, Any]]


def rounds(run: Callable[[int], int], seconds: float, facts: Facts = dict) -> None:
    """A worker's life: warms up, then reports a speed whenever it is let.

    Args:
        run: how many updates to do -> environment steps that they took.
        seconds: of one round, at least one update.
        facts: what its row keeps besides, asked for once it has run.
    """
    run(1)
    count, elapsed = 1, timed(run, 1)[1]
    while elapsed < seconds / 4:
        count *= 2
        elapsed = timed(run, count)[1]
    count = max(1, round(count * seconds / elapsed))
    ready(facts)
    for _ in sys.stdin:
        steps, elapsed = timed(run, count)
        print("speed", steps / elapsed, flush=True)


def timed(run: Callable[[int], int], count: int) -> tuple[int, float]:
    """(steps, seconds) of one call."""
    started = time.perf_counter()
    steps = run(count)
    return steps, time.perf_counter() - started


def ready(facts: Facts = dict) -> None:
    """Says that compiling is over, and with which versions."""
    print("ready", json.dumps({**machine.software(), **facts()}), flush=True)
