"""Terminal output: progress, warnings and errors."""

import contextlib
import io
import logging
import math
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from purejaxppo.config.hints import format_number

if TYPE_CHECKING:
    from purejaxppo.runs.rows import Row

log = logging.getLogger("purejaxppo")

PATIENCE = 1.0
"""Seconds of waiting without output."""


class Stopped(RuntimeError):
    """A run had to stop. The message is one sentence for the user."""


class SafeStream:
    """A text stream that drops output that cannot be written.

    A closed pipe, a closed terminal and a full disk do not end a run. Characters that the stream
    cannot encode are replaced.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """Wrap a stream. None means that it was closed before Python started."""
        self.stream: Any = io.StringIO() if stream is None else stream

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream."""
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a string, or drop it."""
        with self._dropping():
            try:
                self.stream.write(text)
            except UnicodeEncodeError as error:
                plain = text.replace("±", "+-").encode(error.encoding, "backslashreplace")
                self.stream.write(plain.decode(error.encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream, or drop its text."""
        with self._dropping():
            self.stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # redirect it, because Python flushes it at exit
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), self.stream.fileno())
        except (OSError, ValueError):  # ValueError: the stream is closed
            pass


def ignore_output_errors() -> None:
    """Drop output of this process that cannot be written, instead of raising an error."""
    for descriptor in range(3):  # otherwise the next file would get a closed descriptor
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = SafeStream(sys.stdout), SafeStream(sys.stderr)


class WarningPrinter(logging.Handler):
    """A log handler that prints warnings on stderr as `warning: ...`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        print(f"warning: {self.format(record)}", file=SafeStream(sys.stderr))


class ToRoot(logging.Handler):
    """Passes records to the handlers of the root logger that do not print to the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        for handler in logging.getLogger().handlers:
            if record.levelno >= handler.level and not prints(handler):
                handler.handle(record)


def prints(handler: logging.Handler) -> bool:
    """Return True for handlers that print, such as those of `logging.basicConfig` and absl."""
    stream = getattr(handler, "stream", None)
    plain = type(handler) is logging.StreamHandler and not isinstance(stream, io.StringIO)
    return plain or type(handler).__module__.startswith("absl")


def warning_handlers() -> list[logging.Handler]:
    """Return handlers that print warnings once, and pass them to files and other handlers."""
    return [WarningPrinter(logging.WARNING), ToRoot(logging.WARNING)]


def print_warnings() -> None:
    """Print the warnings of this package's logger as `warning: ...`, unless it has handlers.

    They do not propagate: Orbax adds a handler to the root logger, which would print them again.
    """
    logger = logging.getLogger("purejaxppo")
    if logger.handlers:
        return
    for handler in warning_handlers():
        logger.addHandler(handler)
    logger.propagate = False


def print_line(text: object) -> None:
    """Print a line at once. Errors of a closed output are ignored."""
    print(text, file=SafeStream(sys.stdout), flush=True)


class Console:
    """Progress of a run: a live bar on a terminal, otherwise about 20 lines."""

    LINES = 20

    def __init__(self, total: int, *, quiet: bool = False, lines: bool = False) -> None:
        """Start at 0 of `total` steps. `quiet` prints nothing, `lines` prints no bar."""
        from rich.console import Console as RichConsole

        out: Any = SafeStream(sys.stdout)
        self._console = RichConsole(
            file=out, highlight=False, soft_wrap=True, quiet=quiet, force_jupyter=False
        )
        # Jupyter sets FORCE_COLOR, with which rich reports a terminal.
        self._live = self._console.is_terminal and out.isatty() and not quiet and not lines
        self._total, self._next_line = total, 0.0
        self._return = math.nan
        self._evaluated: float | None = None
        self._bar = None
        if self._live:
            from rich import progress

            self._bar = progress.Progress(
                progress.BarColumn(bar_width=None),
                progress.TextColumn("{task.percentage:>3.0f}%"),
                progress.TextColumn("{task.fields[text]}"),
                progress.TimeRemainingColumn(compact=True),
                progress.TextColumn("left"),
                console=self._console,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task("train", total=total, text="")

    def print_line(self, text: str) -> None:
        """Print one line, also into the run's log file."""
        log.debug("console: %s", text)
        self._console.print(text, markup=False)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.print_line(f"warning: {text}")

    @contextlib.contextmanager
    def announced(self, text: str, after: float = PATIENCE) -> Iterator[None]:
        """Print a line if the block takes longer than `after` seconds, before it ends."""
        timer = threading.Timer(after, self.print_line, [text])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def __enter__(self) -> None:
        """Show the bar."""
        if self._bar:
            self._bar.start()

    def __exit__(self, *error: object) -> None:
        """Stop the bar, leaving its last state on the terminal."""
        if self._bar:
            self._bar.stop()

    def progress(self, done: int, env_steps: int, sps: float, row: "Row", left: float) -> None:
        """Show the progress.

        Args:
            done: steps of the total.
            env_steps: environment steps of each agent.
            sps: steps per second.
            row: metrics, which may contain new returns.
            left: estimated seconds until the end.
        """
        self._return = row.get("charts/episodic_return", self._return)
        self._evaluated = row.get("eval/return_mean", self._evaluated)
        text = f"{format_short(env_steps)} steps  {format_short(sps)} steps/s"
        text += f"  return {format_return(self._return)}"
        if self._evaluated is not None:
            text += f"  eval {format_return(self._evaluated)}"
        if self._bar:
            self._bar.update(self._task, completed=done, text=text)
        elif done >= self._next_line:
            self._next_line = done + self._total / self.LINES
            self.print_line(f"{done / self._total:4.0%}  {text}  {format_duration(left)} left")


def format_return(x: float) -> str:
    """Format a return; - for NaN."""
    return "-" if math.isnan(x) else format_number(x)


def format_short(x: float) -> str:
    """Format a number: 1234567 -> '1.23M'."""
    rounded = abs(float(f"{x:.3g}"))
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rounded >= limit:
            return f"{x / limit:.3g}{suffix}"
    return f"{x:.3g}"


def format_duration(seconds: float) -> str:
    """Format seconds: 83.4 -> '1:23'."""
    if not math.isfinite(seconds):
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def message_of(error: object) -> str:
    """Return the text of an error; of a system error, the file and the reason."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    reason = f"{error.strerror[0].lower()}{error.strerror[1:]}"
    return f"{error.filename}: {reason}" if error.filename else reason


def fail(error: object, code: int = 2) -> int:
    """Print an error, in one sentence on stderr; return the exit code."""
    print(f"error: {message_of(error)}", file=SafeStream(sys.stderr))
    return code
