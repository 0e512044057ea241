"""The commands, a module each."""

import atexit
import gc
import os


def begin_process() -> None:
    """Sets up a process that runs one command and ends."""
    keep_programs()
    collect_rarely()


def keep_programs() -> None:
    """Lets a command, and processes that it starts, keep compiled programs on disk.

    Other processes do not unless asked to: functions could have been replaced in memory there.
    """
    os.environ.setdefault("PUREJAXPPO_KEEP_PROGRAMS", "1")


def collect_rarely() -> None:
    """Lets Python search for garbage less often, and not at its end.

    Imports and traces make a million objects that stay. To visit them again and again, and once
    more at the end, costs a short command several tenths of a second.
    """
    gc.set_threshold(20_000, 10, 10)
    atexit.register(gc.disable)
    atexit.register(gc.freeze)  # runs first: what is frozen, the interpreter's end does not visit
