"""Signal handling: the first Ctrl-C, SIGTERM or SIGHUP saves, the second exits immediately.

A second SIGHUP is ignored, because the shell and the system each send one when a terminal closes. A
second SIGTERM within a second is ignored, because `timeout` sends one to the process and one to its
group. A process that starts with SIGHUP ignored, as under nohup, continues to ignore it.

Python runs signal handlers between two bytecode instructions. There are none while XLA compiles or
computes, or while a simulator hangs. An exception that a handler raises inside of a JAX callback is
lost. Therefore a process that runs one command also handles signals in a thread.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

SIGNALS = [x for x in signal.Signals if x.name in ("SIGINT", "SIGTERM", "SIGHUP")]
"""Signals to handle. Windows has no SIGHUP."""
STOPPING = "saving and stopping after the current updates; press Ctrl-C again to exit immediately"
NOTHING_LOST = "everything saved so far is kept"
FLUSH_SECONDS = 0.5
REPEAT_SECONDS = 1.0
"""Seconds after a SIGTERM in which another one is ignored."""
PARTIAL: set[Path] = set()
"""Incomplete files, which are deleted when a signal ends the process."""
_ACTIVE: list["Interrupt"] = []
"""Interrupts that store the first signal."""


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` on success and is deleted on failure."""
    partial = path.with_name(f".{path.name}")
    PARTIAL.add(partial)
    try:
        yield partial
        partial.replace(path)
    except OSError as error:  # Python names the file in errors of open, but not of write
        error.filename = error.filename or str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)
        PARTIAL.discard(partial)


class Interrupt:
    """Store the first Ctrl-C, SIGTERM or SIGHUP; the second ends the process."""

    def __init__(self, notice: str = STOPPING) -> None:
        """Install the signal handlers, if this is the main thread.

        `notice` is printed after the first Ctrl-C.
        """
        self.notice = notice
        self.signal: str | None = None
        self._since = 0.0
        self._old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in _not_ignored():
                self._old[number] = signal.signal(number, self._handle)
            _ACTIVE.append(self)

    def __enter__(self) -> Self:
        """Return itself. Its handlers are already installed."""
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the previous signal handlers."""
        self.restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.store(number)
        self._restore_handlers(signal.SIGINT)
        if not self.is_repeat(number):
            self._restore_handlers(signal.SIGTERM)
            if number == signal.SIGTERM:
                signal.raise_signal(number)

    def store(self, number: int) -> None:
        """Store the first signal."""
        if self.signal is None:
            self.signal, self._since = signal.Signals(number).name, time.monotonic()

    def is_repeat(self, number: int) -> bool:
        """Return True for the stored SIGTERM, or another SIGTERM shortly after it."""
        soon = time.monotonic() - self._since < REPEAT_SECONDS
        return number == signal.SIGTERM and self.signal == "SIGTERM" and soon

    def restore(self) -> None:
        """Restore the previous signal handlers."""
        self._restore_handlers(*SIGNALS)
        if self in _ACTIVE:
            _ACTIVE.remove(self)

    def _restore_handlers(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            if number in self._old:
                signal.signal(number, self._old.pop(number))


def is_delayed() -> bool:
    """Return True while an `Interrupt` is active, so that a signal does not end the process."""
    return bool(_ACTIVE)


def _not_ignored() -> list[signal.Signals]:
    """Return the signals to handle."""
    return [x for x in SIGNALS if not (_is_hangup(x) and signal.getsignal(x) == signal.SIG_IGN)]


def _is_hangup(number: int) -> bool:
    """Return True for the signal of a closed terminal."""
    return signal.Signals(number).name == "SIGHUP"


def handle_signals() -> None:
    """End the process immediately on a signal, with exit code 128 + its number.

    An `Interrupt` ends it later. Checkpoints on disk are complete, because they get their names
    when they are complete. Call this before importing JAX, which takes seconds.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    for number in _not_ignored():
        signal.signal(number, _leave_to_thread)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_read_signals, args=(read,), daemon=True).start()


def _leave_to_thread(number: int, frame: FrameType | None) -> None:
    del number, frame


def _read_signals(read: int) -> None:
    """Read the numbers of signals from a pipe and handle them."""
    interrupt: Interrupt | None = None
    while number := os.read(read, 1):
        if number[0] not in SIGNALS:
            continue
        if _ACTIVE and interrupt is None:
            interrupt = _ACTIVE[-1]
            interrupt.store(
                number[0]
            )  # the signal may have arrived before its handler was installed
            if number[0] == signal.SIGINT:  # Ctrl-C
                after_the_bar = "\n" if sys.stderr.isatty() else ""
                _write_line(f"{after_the_bar}{interrupt.notice}")
        elif interrupt is None or not (_is_hangup(number[0]) or interrupt.is_repeat(number[0])):
            exit_now(number[0])


def end_children() -> None:
    """Send SIGTERM to all descendants of this process.

    Environments that step in threads of this process may leave some behind. Reads /proc on Linux.
    """
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has exited
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    pending = [os.getpid()]
    while pending:
        for child in children.get(pending.pop(), []):
            pending.append(child)
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGTERM)


def exit_now(number: int) -> None:
    """End the process at once, with the exit code of signal `number`. Running work is lost."""
    for partial in list(PARTIAL):
        partial.unlink(missing_ok=True)
    end_children()
    flush = threading.Thread(target=_flush, daemon=True)
    flush.start()
    flush.join(FLUSH_SECONDS)
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
    _write_line(f"error: interrupted; {NOTHING_LOST}{show_cursor}")
    os._exit(128 + number)


def _flush() -> None:
    with contextlib.suppress(OSError):
        sys.stdout.flush()


def _write_line(text: str) -> None:
    """Write one line to stderr, bypassing Python's buffers, which may be locked."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
