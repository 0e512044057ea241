"""Command lines to print: they work as printed in the shell that started this process."""

import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from purejaxppo.config.hints import short_path


def command_line(command: str, *words: object) -> str:
    """A command line that starts `command`: by the script `purejaxppo`, or by this Python.

    The script is named where the shell finds it and it belongs to this environment; otherwise, as
    where no environment is activated, this interpreter is, relative to the current folder.
    """
    return shlex.join([*program(command), *map(str, words)])


def program(command: str) -> list[str]:
    """The words that start a command."""
    script = shutil.which("purejaxppo")
    if script and Path(script).absolute().parent == Path(sysconfig.get_path("scripts")):
        return ["purejaxppo", command]
    return [_interpreter(), "-m", f"purejaxppo.{command}"]


def _interpreter() -> str:
    """This interpreter: `python` if the shell finds it so, else its path."""
    ours = Path(sys.executable)
    found = shutil.which("python")
    if found and Path(found).absolute() == ours:
        return "python"
    return str(short_path(ours))
