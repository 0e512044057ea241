"""The commands: one module each."""

import atexit
import gc
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from purejaxppo import interrupts
from purejaxppo.cli.flags import FLAGS
from purejaxppo.cli.usage import help_text
from purejaxppo.runs.console import fail, ignore_output_errors, print_warnings


class Command(NamedTuple):
    """Module of a command, with a function `main(args) -> exit code`, and its description."""

    module: str
    about: str
    listens: bool = True
    """True if a signal ends it immediately (`interrupts.handle_signals`)."""


COMMANDS = {
    "train": Command("purejaxppo.cli.train", "train an agent, or resume training"),
    "evaluate": Command(
        "purejaxppo.cli.evaluate", "evaluate a trained agent, or write a video of it"
    ),
    "sweep": Command(
        "purejaxppo.sweep.__main__", "train with many settings and compare them", False
    ),
    "export": Command("purejaxppo.export.__main__", "export a policy to a file, .onnx or .npz"),
    "anatomy": Command("purejaxppo.anatomy.__main__", "measure where the time of training goes"),
    "list": Command("purejaxppo.cli.list", "list environments and configs"),
    "init": Command("purejaxppo.cli.init", "write a template for custom code"),
}


def begin_process() -> None:
    """Set up output, warnings, exit handlers and garbage collection of a command's process."""
    ignore_output_errors()
    print_warnings()
    atexit.register(interrupts.end_children)
    gc.set_threshold(10_000, 10, 10)  # imports and traces create mostly permanent objects


def start(name: str, words: Sequence[str], *, own_process: bool = True) -> int:
    """Run a command and return its exit code. Help is printed without importing JAX.

    Args:
        name: name of the command.
        words: command-line arguments after the name.
        own_process: True if the process exits after the command.
    """
    command = COMMANDS[name]
    try:
        text = help_text(name, FLAGS[name], words) if name in FLAGS else None
    except (ValueError, OSError) as error:
        return fail(error)
    if text is not None:
        print(text)
        return 0
    if own_process and command.listens:  # before JAX is imported, which takes seconds
        interrupts.handle_signals()
    module = imported(command.module) if own_process else importlib.import_module(command.module)
    code: int = module.main(words)
    return code


def imported(module: str) -> ModuleType:
    """Import a command's module, in a process that exits after the command.

    Its objects are hidden from the garbage collector, which saves a short command tenths of a
    second.
    """
    try:
        command = importlib.import_module(module)
    except ValueError as error:
        if "jax" not in str(error).lower():
            raise
        raise SystemExit(fail(f"{error}. Correct or unset this variable.")) from error
    gc.freeze()
    return command
