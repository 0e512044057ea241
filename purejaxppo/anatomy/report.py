"""The result of an anatomy: pieces of an update, workers and advice, as text, plot and JSON."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from purejaxppo.anatomy.advice import NO_TIME, Advice
from purejaxppo.anatomy.simulators import Workers, WorkerSpeed
from purejaxppo.anatomy.timing import Spread
from purejaxppo.config.schema import Config
from purejaxppo.runs.console import format_short
from purejaxppo.runs.curves import new_figure, save_figure

MICROSECONDS = 1e6
NOISY = 0.2
"""Difference of the quartiles of the whole, divided by its median, from which a note is printed."""


@dataclass(frozen=True)
class Piece:
    """A piece of an update."""

    name: str
    seconds: Spread
    """Seconds per update."""


@dataclass(frozen=True)
class Anatomy:
    """Where the time of training goes, and the settings that make it faster."""

    config: Config
    """The measured config."""
    description: str
    """Environment, sizes, workers and devices in one line."""
    steps_per_update: int
    """Environment steps of an update of all agents."""
    pieces: tuple[Piece, ...]
    whole: Spread
    """Seconds per update of training, measured separately."""
    rounds: int
    """Number of measurements of each piece."""
    compile_seconds: float
    """Seconds of compiling and starting all programs, which the pieces do not include."""
    workers: Workers | None = None
    """Workers of the config; None for simulators without workers."""
    worker_speeds: tuple[WorkerSpeed, ...] = ()
    advice: tuple[Advice, ...] = ()
    interrupted: bool = False
    """Whether Ctrl-C ended the measurements."""

    @cached_property
    def changes(self) -> dict[str, Any]:
        """Recommended values of config fields, by dotted name, as for `Config.replace`."""
        return {
            k: x for advice in self.advice if advice.recommended for k, x in advice.setting.items()
        }

    @property
    def gain(self) -> float:
        """Speed of training with all recommended settings divided by the present speed."""
        gains = [a.gain.spread.median for a in self.advice if a.gain and a.recommended]
        return math.prod(gains)

    @property
    def total(self) -> float:
        """Sum of the pieces, in seconds per update."""
        return sum(piece.seconds.median for piece in self.pieces)

    @property
    def rest(self) -> float:
        """Seconds per update that no piece explains. Negative if pieces overlap."""
        return self.whole.median - self.total

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of training."""
        return self.steps_per_update / self.whole.median

    def per_step(self, seconds: float) -> float:
        """Convert seconds per update to microseconds per environment step."""
        return seconds * MICROSECONDS / self.steps_per_update

    def share(self, seconds: float) -> float:
        """Return the fraction of the time of an update."""
        return seconds / self.whole.median

    def __str__(self) -> str:
        """Return the tables and the recommendations."""
        return "\n\n".join(
            "\n".join(lines)
            for lines in (self._piece_table(), self._worker_table(), self._advice_lines())
            if lines
        )

    def _piece_table(self) -> list[str]:
        rest = "unexplained, overlap" if self.config.asynchronous else "unexplained"
        lines = [self.description, f"{'':28}{'us/step':>10}{'share':>9}   quartiles"]
        lines += [self._row(piece.name, *piece.seconds) for piece in self.pieces]
        lines += [self._row("sum of the pieces", self.total), self._row(rest, self.rest)]
        lines.append(self._row("whole", *self.whole))
        lines.append(
            f"{format_short(self.steps_per_second)} steps/s in training; {self.rounds} rounds. "
            f"Compiling and starting took {self.compile_seconds:.1f} s in addition."
        )
        if (self.whole.high - self.whole.low) / self.whole.median > NOISY:
            lines.append("The rounds differ a lot. Stop other programs, and measure again.")
        return lines

    def _row(self, name: str, seconds: float, *quartiles: float) -> str:
        times = " to ".join(f"{self.per_step(x):z.2f}" for x in quartiles)
        line = f"{name:28}{self.per_step(seconds):z10.2f}{self.share(seconds):z9.1%}   {times}"
        return line.rstrip()

    def _worker_table(self) -> list[str]:
        if not self.worker_speeds or self.workers is None:
            return []
        lines = [f"{'simulator alone':28}{'steps/s':>10}   compared with {self.workers}"]
        for speed in self.worker_speeds:
            steps = format_short(self.steps_per_update / Spread.of(speed.gain.after).median)
            lines.append(f"{speed.workers!s:28}{steps:>10}   {speed.gain}")
        return lines

    def _advice_lines(self) -> list[str]:
        if not self.advice:
            return []
        lines = ["training with other settings, one after another:"]
        lines += [f"{words(advice.setting)}\n    {advice.verdict}" for advice in self.advice]
        if self.changes:
            lines.append(f"recommended ({self.gain:.2f}x together): {words(self.changes)}")
        elif all(advice.note == NO_TIME for advice in self.advice):
            lines.append("no recommendation: there was no time to compare settings")
        else:
            lines.append("recommended: the present settings")
        return lines

    def plot(self, path: str | Path) -> Path:
        """Draw the pieces as bars, and return the path of the PNG file."""
        save_figure(self.figure(), Path(path))
        return Path(path)

    def figure(self) -> Any:
        """Return a Matplotlib figure with a bar for each piece."""
        named = [*self.pieces, Piece("unexplained", Spread(*(self.rest,) * 3))]
        spreads = [Spread(*map(self.per_step, piece.seconds)) for piece in named]
        figure = new_figure(8, 0.42 * len(named) + 1.4)
        axes = figure.add_subplot()
        middle = [spread.median for spread in spreads]
        lower = [spread.median - spread.low for spread in spreads]
        upper = [spread.high - spread.median for spread in spreads]
        bars = {"color": [*["C0"] * len(self.pieces), "0.7"], "ecolor": "0.3", "capsize": 2}
        axes.barh(range(len(named)), middle, xerr=[lower, upper], **bars)
        axes.set_yticks(range(len(named)), [piece.name for piece in named])
        axes.invert_yaxis()
        right = max(spread.high for spread in spreads)
        for y, (piece, spread) in enumerate(zip(named, spreads, strict=True)):
            x = max(spread.high, 0) + 0.01 * right
            axes.text(x, y, f"{self.share(piece.seconds.median):z.1%}", va="center", fontsize=9)
        axes.set_xlim(right=1.12 * right)
        axes.axvline(0, color="0.3", lw=0.8)
        axes.set_xlabel("microseconds per environment step; lines are quartiles")
        whole = self.per_step(self.whole.median)
        title = f"{whole:,.1f} microseconds per step, {format_short(self.steps_per_second)} steps/s"
        axes.set_title(f"{self.description}\n{title}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return the measurements as data for JSON: seconds per update, and ratios of speeds."""
        return {
            "env": str(self.config.env.name),
            "description": self.description,
            "steps_per_update": self.steps_per_update,
            "rounds": self.rounds,
            "pieces": {piece.name: piece.seconds._asdict() for piece in self.pieces},
            "unexplained": self.rest,
            "whole": self.whole._asdict(),
            "steps_per_second": self.steps_per_second,
            "compile_seconds": self.compile_seconds,
            "workers": [
                {**speed.workers._asdict(), "gain": speed.gain.ratios}
                for speed in self.worker_speeds
            ],
            "advice": [
                {
                    "setting": advice.setting,
                    "gain": advice.gain.ratios if advice.gain else None,
                    "recommended": advice.recommended,
                    "verdict": advice.verdict,
                }
                for advice in self.advice
            ],
            "recommended": self.changes,
            "interrupted": self.interrupted,
        }


def words(setting: dict[str, Any]) -> str:
    """Return config fields as flags of a command."""
    return " ".join(_flag(name, value) for name, value in setting.items())


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        section, dot, field = name.rpartition(".")
        return f"--{name}" if value else f"--{section}{dot}no_{field}"
    return f"--{name} {value}"
