"""Repeated measurements in turns: medians and quartiles, within a budget of seconds."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from purejaxppo.interrupts import Interrupt

Work = Callable[[int], None]
"""Function that runs a number of updates, or the part of this number of updates."""

ROUND_SECONDS = 0.25
"""Shortest measurement."""
MIN_ROUNDS = 3
MAX_ROUNDS = 9
WORTHWHILE = 1.05
"""Smallest gain that is recommended."""


class Spread(NamedTuple):
    """Median and quartiles of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Return the median and quartiles of numbers."""
        low, median, high = np.percentile(list(values), [25, 50, 75])
        return cls(float(median), float(low), float(high))


class Gain(NamedTuple):
    """Seconds per update before and after a change, measured in turns: one number per round."""

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Speed after the change divided by the speed before it, in each round."""
        return tuple(x / y for x, y in zip(self.before, self.after, strict=True))

    @property
    def spread(self) -> Spread:
        """Median and quartiles."""
        return Spread.of(self.ratios)

    def times(self, factor: float) -> "Gain":
        """Return the seconds times a factor."""
        return Gain(*(tuple(factor * x for x in seconds) for seconds in self))

    @property
    def is_clear(self) -> bool:
        """Whether every round was faster, and the median gain is at least `WORTHWHILE`."""
        enough = len(self.ratios) >= MIN_ROUNDS
        return enough and min(self.ratios) > 1 and self.spread.median >= WORTHWHILE

    def __str__(self) -> str:
        """Return the median and the range, as in "1.42x (1.38 to 1.45)"."""
        low, high = min(self.ratios), max(self.ratios)
        return f"{self.spread.median:.2f}x ({low:.2f} to {high:.2f})"


class Budget:
    """Seconds that are left for measurements. Ctrl-C ends them early.

    Args:
        seconds: seconds in total, from now on.
        interrupt: stores Ctrl-C.
    """

    def __init__(self, seconds: float, interrupt: Interrupt) -> None:
        """Start to count."""
        self.seconds = seconds
        self._interrupt = interrupt
        self._end = time.perf_counter() + seconds

    @property
    def left(self) -> float:
        """Seconds until the budget is used up; at least 0."""
        return max(0.0, self._end - time.perf_counter())

    @property
    def interrupted(self) -> bool:
        """Whether the user pressed Ctrl-C."""
        return self._interrupt.signal is not None

    @property
    def ended(self) -> bool:
        """Whether no further measurement may start."""
        return self.interrupted or not self.left


def seconds_of(work: Work, count: int = 1) -> float:
    """Return the seconds of a call."""
    started = time.perf_counter()
    work(count)
    return time.perf_counter() - started


def repetitions(work: Work) -> tuple[int, float]:
    """Warm up, and return (number of updates of a measurement, its expected seconds)."""
    count, seconds = 1, seconds_of(work)
    if seconds < 4 * ROUND_SECONDS:  # otherwise the first call is not much slower than others
        seconds = seconds_of(work)
    while seconds < ROUND_SECONDS / 4:
        count *= 2
        seconds = seconds_of(work, count)
    scale = max(1, round(ROUND_SECONDS / seconds))
    return count * scale, seconds * scale


def in_turns(works: Mapping[str, Work], budget: Budget, share: float) -> dict[str, list[float]]:
    """Measure functions in turns, so that the noise of the host affects all of them.

    `MIN_ROUNDS` rounds are measured, further ones while the budget lasts.

    Args:
        works: function by name.
        budget: ends the measurements.
        share: seconds to spend. Sets the number of rounds, from `MIN_ROUNDS` to `MAX_ROUNDS`.

    Returns:
        Seconds per update in each round, by name; all have the same number of rounds.

    Raises:
        KeyboardInterrupt: Ctrl-C before the end of the first round.
    """
    plans = {}
    for name, work in works.items():
        if budget.interrupted:
            raise KeyboardInterrupt
        plans[name] = repetitions(work)
    expected = sum(seconds for _, seconds in plans.values())
    rounds = min(max(int(share / expected), MIN_ROUNDS), MAX_ROUNDS)
    times: dict[str, list[float]] = {name: [] for name in works}
    for finished in range(rounds):
        if finished >= MIN_ROUNDS and budget.ended:
            break
        row = {}
        for name, work in works.items():
            if budget.interrupted:
                break
            row[name] = seconds_of(work, plans[name][0]) / plans[name][0]
        if len(row) < len(works):
            break
        for name, seconds in row.items():
            times[name].append(seconds)
    if not all(times.values()):
        raise KeyboardInterrupt
    return times


def compare(base: Work, candidate: Work, budget: Budget, share: float) -> Gain:
    """Return the gain of a candidate, measured in turns with the present settings."""
    times = in_turns({"base": base, "candidate": candidate}, budget, share)
    return Gain(tuple(times["base"]), tuple(times["candidate"]))
