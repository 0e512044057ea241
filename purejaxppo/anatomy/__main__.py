"""The command `purejaxppo anatomy --config hopper_v5.yaml`."""

import sys

from purejaxppo.cli import begin_process, start

if __name__ == "__main__":  # before JAX is imported
    begin_process()
    sys.exit(start("anatomy", sys.argv[1:]))

import json
from collections.abc import Sequence

from purejaxppo.anatomy.measure import measure
from purejaxppo.anatomy.report import words as flags_of
from purejaxppo.cli import parser
from purejaxppo.cli.flags import AnatomyFlags
from purejaxppo.config.hints import short_path
from purejaxppo.config.plain import user_path
from purejaxppo.interrupts import atomic_write
from purejaxppo.runs.command_line import command_line
from purejaxppo.runs.console import print_line


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return parser.run(run, args)


def run(words: Sequence[str]) -> int:
    """Measure a config, print and plot the result, and return the exit code."""
    command, config = parser.parse_over_config(AnatomyFlags, words)
    parser.check_task(config)
    check_targets(command)
    # Custom code may change the current folder.
    plot, data = (user_path(path).absolute() for path in (command.plot, command.json))
    result = measure(config, command.workers, command.seconds, print_line)
    print_line(f"\n{result}")
    if result.changes:
        flags = flags_of(result.changes).split(" ")
        print_line(f"train: {command_line('train', *training_flags(words), *flags)}")
    if command.json:
        with atomic_write(data) as partial:
            partial.write_text(f"{json.dumps(result.to_dict(), indent=2)}\n", encoding="utf-8")
        print_line(f"measurements: {short_path(data)}")
    if command.plot:
        print_line(f"plot: {short_path(result.plot(plot))}")
    return 130 if result.interrupted else 0


def training_flags(words: Sequence[str]) -> list[str]:
    """Return the arguments that `purejaxppo train` also takes."""
    kept, is_kept = [], True
    for word in words:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
            is_kept = name not in ("workers", "seconds", "plot", "json")
        if is_kept:
            kept.append(word)
    return kept


def check_targets(command: AnatomyFlags) -> None:
    """Check the files to write, before anything is measured.

    Raises:
        ValueError: a file has the wrong ending, or its folder does not exist.
    """
    for flag, path, ending in (("plot", command.plot, ".png"), ("json", command.json, ".json")):
        if path and not path.endswith(ending):
            raise ValueError(f"--{flag} = {path}: the file must end in {ending}.")
        folder = user_path(path).parent
        if path and not folder.is_dir():
            raise ValueError(f"--{flag} = {path}: the folder {folder} does not exist. Create it.")
