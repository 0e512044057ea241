"""Command line of the scripts that generate pages."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def run(about: str | None, target: Path, render: Callable[[str], str]) -> int:
    """Write a page, or compare it with --check; return the exit code.

    Args:
        about: the script's docstring.
        target: the page.
        render: function from the present text ("" if the page does not exist) to the new text.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    present = target.read_text(encoding="utf-8") if target.is_file() else ""
    new = render(present)
    if not check:
        target.write_text(new, encoding="utf-8")
    elif new != present:
        script = Path(sys.argv[0]).name
        sys.stderr.write(f"docs/{target.name} is out of date. Run: python docs/{script}\n")
        return 1
    return 0
