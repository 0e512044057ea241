"""Helpers for messages: suggestions for unknown names, types, numbers and paths.

This module does not import JAX, because worker processes use it.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def current_folder() -> Path | None:
    """Return the current folder; None if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


START = current_folder()
"""The folder in which this process started."""


def short_path(path: Path) -> Path:
    """Return a path for printing, relative to the current folder unless that has changed."""
    folder = current_folder()
    if folder is None or folder != START or not path.is_relative_to(folder):
        return path
    return path.relative_to(folder)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to `name`, ignoring case; None if no name is."""
    by_lower = {known_name.lower(): known_name for known_name in known}
    close = difflib.get_close_matches(name.lower(), by_lower, 1, cutoff)
    return by_lower[close[0]] if close else None


def format_number(x: float, largest: float = 0.0) -> str:
    """Format a return with one decimal; three if `x` and `largest` are both below 10 in size.

    `largest` is the largest number that is printed with it.
    """
    return f"{x:.1f}" if max(abs(x), abs(largest)) >= 10 or x == 0 else f"{x:.3f}"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return "Did you mean NEAREST?"; if no name is similar, `otherwise` or a list of all names."""
    known = list(known)
    close = nearest(name, known)
    return f"Did you mean {close!r}?" if close else otherwise or f"Available: {', '.join(known)}."


KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
"""Names of scalar types for messages. bool comes first, because a bool is also an int."""


def kind_of(value: Any) -> str:
    """Return the name of a value's type for messages."""
    names: dict[Any, str] = {**KINDS, list: "a list", Mapping: "a mapping", type(None): "empty"}
    matching = (name for known, name in names.items() if isinstance(value, known))
    return next(matching, f"a {type(value).__name__}")


def python_names(message: str) -> str:
    """Return a message about flags of a command as one about arguments of a function.

    --run_dir becomes run_dir, --clobber becomes clobber=True, --search grid becomes search="grid".
    Text in backticks stays as it is.
    """
    parts = message.split("`")
    for i, part in enumerate(parts[::2]):
        new = re.sub(r"--search (grid|random|optuna|population)\b", r'search="\1"', part)
        new = re.sub(r"--(clobber|force)\b", r"\1=True", new)
        parts[2 * i] = re.sub(r"(?<![\w-])--([a-z][a-z_]*)", r"\1", new)
    return "`".join(parts)


def wrong_type(name: str, value: Any, kind: type) -> str:
    """Return the message for a value that does not have the scalar type `kind`."""
    quoted = f" Write '{value}'." if kind is str and type(value) in (int, float) else ""
    return f"{name} = {value!r}: must be {KINDS[kind]}.{quoted}"


def show(value: Any) -> str:
    """Return a value as in YAML; "empty" for an empty one."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value)) if value else "empty"
    if value and isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {show(item)}' for name, item in value.items())}}}"
    return str(value) if value or value == 0 else "empty"
