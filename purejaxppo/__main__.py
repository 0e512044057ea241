"""Command line: `purejaxppo COMMAND ...` and `python -m purejaxppo COMMAND ...`.

Commands are imported when they run. Help and errors about unknown commands do not need JAX.
"""

import sys
from collections.abc import Sequence

from purejaxppo import __version__
from purejaxppo.cli import COMMANDS, begin_process, start
from purejaxppo.config.hints import nearest

USAGE = "\n".join(
    [
        "usage: purejaxppo COMMAND ...",
        "",
        *(f"  {name:9} {command.about}" for name, command in COMMANDS.items()),
        "",
        "For help on a command: purejaxppo COMMAND --help. A first example:",
        "  purejaxppo train --env.name gymnax/CartPole-v1",
    ]
)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; return its exit code."""
    arguments = list(sys.argv[1:] if args is None else args)
    if args is None:
        begin_process()
    if not arguments:
        print(USAGE, file=sys.stderr)
        return 2
    if arguments[0] == "help":
        arguments = [*arguments[1:2], "--help", *arguments[2:]]
    if arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if arguments[0] == "--version":
        print(f"purejaxppo {__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        print(f"error: {_unknown_command(arguments)}", file=sys.stderr)
        return 2
    return start(arguments[0], arguments[1:], own_process=args is None)


def _unknown_command(arguments: Sequence[str]) -> str:
    """Return the error for an unknown command."""
    if arguments[0].startswith("-"):
        command = "evaluate" if arguments[0].partition("=")[0] == "--run" else "train"
        return (
            f"{arguments[0]}: the command is missing. Run: purejaxppo {command} "
            f"{' '.join(arguments)}"
        )
    close = nearest(arguments[0], COMMANDS)
    hint = f"Did you mean {close}?" if close else f"Commands: {', '.join(COMMANDS)}."
    return f"unknown command {arguments[0]}. {hint}"


if __name__ == "__main__":
    sys.exit(main())
