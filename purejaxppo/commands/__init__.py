"""The commands, a module each."""

import atexit
import gc
import importlib
import os
from types import ModuleType

from purejaxppo import interrupts
from purejaxppo.runs.console import fail, keep_printing, print_warnings


def begin_process() -> None:
    """Sets up a process that runs one command and ends."""
    keep_printing()
    print_warnings()
    keep_programs()
    atexit.register(interrupts.end_children)
    gc.set_threshold(10_000, 10, 10)  # imports and traces make mostly what stays


def keep_programs() -> None:
    """Lets a command, and processes that it starts, keep compiled programs on disk.

    Other processes do not unless asked to: functions could have been replaced in memory there.
    """
    os.environ.setdefault("PUREJAXPPO_KEEP_PROGRAMS", "1")


def imported(module: str) -> ModuleType:
    """A command's module, in a process of its own.

    What it imports stays to the end, and the garbage collector visits it no more, also at the end:
    visits cost a short command tenths of a second.
    """
    try:
        command = importlib.import_module(module)
    except ValueError as error:
        if "jax" not in str(error).lower():
            raise
        raise SystemExit(fail(f"{error}. Correct or unset this variable.")) from error
    gc.freeze()
    return command
