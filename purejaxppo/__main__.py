"""`purejaxppo COMMAND ...` and `python -m purejaxppo COMMAND ...`: the commands by name.

Commands are imported when they run, so that help and wrong words are answered without JAX.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from purejaxppo import __version__, interrupts
from purejaxppo.commands import begin_process, imported
from purejaxppo.config.hints import nearest


class Command(NamedTuple):
    """A command's module, which has `main(args) -> exit code`, and its description."""

    module: str
    about: str
    listens: bool = True
    """True if a signal ends it at once (`interrupts.listen`)."""


COMMANDS = {
    "train": Command("purejaxppo.commands.train", "train an agent; the same command resumes"),
    "evaluate": Command("purejaxppo.commands.evaluate", "score a trained agent, and film it"),
    "sweep": Command("purejaxppo.sweep.__main__", "train many settings and compare them", False),
    "export": Command("purejaxppo.export.__main__", "write a policy as one file, .onnx or .npz"),
    "list": Command("purejaxppo.commands.list", "list environments and configs"),
    "init": Command("purejaxppo.commands.init", "write an example of one's own to start from"),
}
USAGE = "\n".join(
    [
        "usage: purejaxppo COMMAND ...",
        "",
        *(f"  {name:9} {command.about}" for name, command in COMMANDS.items()),
        "",
        "`purejaxppo COMMAND --help` describes a command. To begin with:",
        "  purejaxppo train --env.name gymnax/CartPole-v1",
    ]
)


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command that the first word names; returns its exit code."""
    words = list(sys.argv[1:] if args is None else args)
    if args is None:
        begin_process()
    if not words:
        print(USAGE, file=sys.stderr)
        return 2
    if words[0] == "help":
        words = [*words[1:2], "--help", *words[2:]]
    if words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if words[0] == "--version":
        print(f"purejaxppo {__version__}")
        return 0
    if words[0] not in COMMANDS:
        print(f"error: {_wrong(words)}", file=sys.stderr)
        return 2
    command = COMMANDS[words[0]]
    if args is not None:
        return importlib.import_module(command.module).main(words[1:])
    if command.listens:  # before JAX is imported, which takes seconds
        interrupts.listen()
    return imported(command.module).main(words[1:])


def _wrong(words: Sequence[str]) -> str:
    """The sentence about a first word that is no command."""
    if words[0].startswith("-"):
        command = "evaluate" if words[0].partition("=")[0] == "--run" else "train"
        return f"{words[0]}: a command comes first, as in purejaxppo {command} {' '.join(words)}"
    close = nearest(words[0], COMMANDS)
    hint = f"did you mean {close!r}?" if close else f"there are {', '.join(COMMANDS)}"
    return f"purejaxppo {words[0]}: no such command; {hint}"


if __name__ == "__main__":
    sys.exit(main())
