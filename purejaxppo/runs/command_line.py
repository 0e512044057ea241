"""Command lines for output, which you can copy into the shell that started this process."""

import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from purejaxppo.config.hints import short_path


def command_line(command: str, *words: object) -> str:
    """Return a command line that starts `command`.

    It names the script `purejaxppo` if the shell finds it and it belongs to this environment.
    Otherwise, for example without an activated environment, it names this interpreter by its path
    relative to the current folder.
    """
    return shlex.join([*program(command), *map(str, words)])


def program(command: str) -> list[str]:
    """Return the arguments that start a command."""
    script = shutil.which("purejaxppo")
    if script and Path(script).absolute().parent == Path(sysconfig.get_path("scripts")):
        return ["purejaxppo", command]
    return [_interpreter(), "-m", f"purejaxppo.{command}"]


def _interpreter() -> str:
    """Return `python` if the shell finds this interpreter by that name, else its path."""
    interpreter = Path(sys.executable)
    shell_python = shutil.which("python")
    if shell_python and Path(shell_python).absolute() == interpreter:
        return "python"
    return str(short_path(interpreter))
