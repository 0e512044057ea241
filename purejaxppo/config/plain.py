"""Conversion of numbers of NumPy, JAX and other libraries to Python numbers.

This module does not import JAX, because worker processes use it.
"""

import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

MOST_STEPS = 2**30
"""Longest time limit in steps. Longer ones count as no limit."""


def user_path(path: str | Path, name: str = "path") -> Path:
    """Return a path with "~" replaced by the home folder; "~" of an unknown user stays.

    Args:
        path: the path.
        name: name of the setting or argument, for messages.

    Raises:
        ValueError: the value is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{name} = {path!r}: must be a string or a pathlib.Path.")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def seed_of(value: Any) -> int:
    """Return a seed as an integer.

    Raises:
        ValueError: not a whole number of 32 bits.
    """
    if (seed := whole(value)) is None or not -(2**31) <= seed < 2**31:
        raise ValueError(f"seed = {value!r}: must be a whole number from -2^31 to 2^31 - 1.")
    return seed


def plain(value: Any) -> Any:
    """Convert a number, or a list or mapping of numbers, to Python numbers.

    Arrays become numbers or lists. Other values, such as strings, are returned as they are.
    """
    if isinstance(value, str) or type(value) in (bool, int, float):
        return value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # of NumPy or JAX
        return value.tolist()
    return value


def whole(value: Any) -> int | None:
    """Return a whole number as an int, 20 for 20.0; None for other values and for bools."""
    value = plain(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def time_limit(value: Any, name: str, *, unlimited: Literal["None", "0", ""] = "None") -> int:
    """Return a time limit in steps as an int; 0 (no limit) for None and above `MOST_STEPS`.

    Args:
        value: a number of any type.
        name: name of the limit, for messages.
        unlimited: the value that means no limit, for messages; 0 is an error unless this is "0".

    Raises:
        ValueError: the value is not a whole number of at least 1.
    """
    if value is None:
        return 0
    steps = whole(value)
    if steps is None or steps < (0 if unlimited == "0" else 1):
        hint = f" Use {unlimited} for no limit." if unlimited else ""
        raise ValueError(
            f"{name} = {value!r}: a time limit must be a whole number of steps, at least 1.{hint}"
        )
    return steps if steps <= MOST_STEPS else 0
