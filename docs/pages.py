"""The command line that the scripts of pages share: write a page, or with --check compare it."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def run(about: str | None, target: Path, render: Callable[[str], str]) -> int:
    """Writes or checks a page; returns the exit code.

    Args:
        about: the script's docstring.
        target: the page.
        render: the page's text now ("" if there is none) -> as it should be.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    old = target.read_text(encoding="utf-8") if target.is_file() else ""
    new = render(old)
    if not check:
        target.write_text(new, encoding="utf-8")
    elif new != old:
        script = Path(sys.argv[0]).name
        sys.stderr.write(f"docs/{target.name} is out of date: run docs/{script}\n")
        return 1
    return 0
