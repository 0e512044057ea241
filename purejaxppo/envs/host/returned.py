"""Checks of the values that `reset` and `step` of custom environments return.

Nothing here imports JAX, since worker processes import it.
"""

import numbers
import re
import traceback
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from purejaxppo.envs.host.errors import MakeError

BEFORE = "the interface of Gym before 0.26"
STEP = "Return (obs, reward, terminated, truncated, info), as Gymnasium does"
RESET = "Return (obs, info), as Gymnasium does"
SEED = "Define reset(self, *, seed=None, options=None), as Gymnasium does"
CALL = r"(\benv\w*(\[\w+\])?|\bsuper\(\))\.(step|reset)\("
"""A call of an environment, of the environment in a wrapper, or of a base class."""
NOT_UNPACKED = r"values to unpack|cannot unpack"
NO_SEED = r"unexpected keyword argument '(seed|options)'"


def old_interface(error: BaseException) -> str:
    """Describes an error of calling an environment that has Gym's old interface.

    It is an error of the arguments of `reset` or `step` or of unpacking the result, in a wrapper or
    in this package.

    Returns:
        A sentence; "" for other errors.
    """
    frames = traceback.extract_tb(error.__traceback__)
    call = re.search(CALL, (frames[-1].line or "") if frames else "")
    text = str(error)
    if call is None:
        return ""
    if call[3] == "reset" and isinstance(error, TypeError) and re.search(NO_SEED, text):
        return f"reset does not take seed and options, {BEFORE}. {SEED}."
    if not re.search(NOT_UNPACKED, text):
        return ""
    if call[3] == "reset":
        return f"reset returned an observation alone, {BEFORE}. {RESET}."
    if "got 4" in text:
        return f"step returned 4 values, {BEFORE}. {STEP}."
    return f"step did not return 5 values ({text}). {STEP}."


def pair(result: Any) -> tuple[Any, Any]:
    """(observation, info) that `reset` returned.

    Raises:
        MakeError: it returned something else, such as an observation alone.
    """
    if isinstance(result, tuple | list) and len(result) == 2:
        obs, info = result
        if info is None or isinstance(info, Mapping):
            return obs, info
    raise MakeError(f"reset returned an observation alone, {BEFORE}. {RESET}.")


def number(value: Any, name: str) -> float:
    """A reward as a float: a number, or an array of one number.

    Args:
        value: as `step` returned it.
        name: for messages.

    Raises:
        MakeError: it is not one number. NaN is one.
    """
    if isinstance(value, float | int):
        return float(value)
    array = np.asarray(value)
    if array.size == 1 and _is_number(array):
        return float(array.item())
    raise MakeError(f"step returned {_described(value, array, name)}. It must be one number.")


def flag(value: Any, name: str) -> bool:
    """An end as a bool: true or false, 0 or 1, or an array of one of these.

    Args:
        value: as `step` returned it.
        name: for messages.

    Raises:
        MakeError: it is something else.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    array = np.asarray(value)
    if array.size == 1 and _is_number(array) and array.item() in (0, 1):
        return bool(array.item())
    raise MakeError(f"step returned {_described(value, array, name)}. It must be true or false.")


def _is_number(array: np.ndarray) -> bool:
    """True if the only element of an array is a real number or a bool."""
    return isinstance(array.item(), numbers.Real | Decimal)


def _described(value: Any, array: np.ndarray, name: str) -> str:
    """A wrong value by its shape, or as it is."""
    if array.shape != ():
        return f"{name} of shape {array.shape}"
    text = repr(value)
    return f"{name} = {text if len(text) <= 60 else type(value).__name__}"
