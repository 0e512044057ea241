"""Checks of the values that `reset` and `step` of custom environments return.

This module does not import JAX, because worker processes import it.
"""

import numbers
import re
import traceback
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from purejaxppo.envs.host.workers.errors import MakeError, printable

OLD_API = "as in Gym before 0.26"
FIX_STEP = "Return (obs, reward, terminated, truncated, info), as in Gymnasium"
FIX_RESET = "Return (obs, info), as in Gymnasium"
FIX_SEED = "Define reset(self, *, seed=None, options=None), as in Gymnasium"
ENV_CALL = r"(\benv\w*(\[\w+\])?|\bsuper\(\))\.(step|reset)\("
"""Pattern of a call of an environment, of a wrapped environment, or of a base class."""
UNPACK_ERROR = r"values to unpack|cannot unpack"
SEED_ERROR = r"unexpected keyword argument '(seed|options)'"


def old_gym_error(error: BaseException) -> str:
    """Describe an error that is caused by Gym's old interface.

    Such errors come from the arguments of `reset` or `step`, or from unpacking their results, in a
    wrapper or in this package.

    Returns:
        A description; "" for other errors.
    """
    frames = traceback.extract_tb(error.__traceback__)
    call = re.search(ENV_CALL, (frames[-1].line or "") if frames else "")
    text = printable(error)
    if call is None:
        return ""
    if call[3] == "reset" and isinstance(error, TypeError) and re.search(SEED_ERROR, text):
        return f"reset does not accept seed and options, {OLD_API}. {FIX_SEED}."
    if not re.search(UNPACK_ERROR, text):
        return ""
    if call[3] == "reset":
        return f"reset returned only an observation, {OLD_API}. {FIX_RESET}."
    if "got 4" in text:
        return f"step returned 4 values, {OLD_API}. {FIX_STEP}."
    return f"step did not return 5 values ({text}). {FIX_STEP}."


def reset_result(result: Any) -> tuple[Any, Any]:
    """Return (observation, info), the result of `reset`.

    Raises:
        MakeError: the result is something else, such as only an observation.
    """
    if isinstance(result, tuple | list) and len(result) == 2:
        obs, info = result
        if info is None or isinstance(info, Mapping):
            return obs, info
    if result is None:
        raise MakeError(f"reset returned None. {FIX_RESET}.")
    if isinstance(result, tuple):
        kinds = ", ".join(type(part).__name__ for part in result)
        raise MakeError(f"reset returned a tuple of {kinds}. {FIX_RESET}, with a dict as info.")
    raise MakeError(f"reset returned only an observation, {OLD_API}. {FIX_RESET}.")


def checked_info(info: Any) -> Mapping[Any, Any]:
    """Return the info of `step`; an empty one for None.

    Raises:
        MakeError: the info is not a mapping.
    """
    if info is None:
        return {}
    if not isinstance(info, Mapping):
        kind = type(info).__name__
        raise MakeError(f"step returned a {kind} as info. {FIX_STEP}, with a dict as info.")
    return info


def to_float(value: Any, name: str) -> float:
    """Convert a reward, a number or an array of one number, to a float.

    Args:
        value: the value that `step` returned.
        name: name to print in messages.

    Raises:
        MakeError: the value is not a single number. NaN is accepted.
    """
    if isinstance(value, float | int):
        return float(value)
    item = _item(value)
    if item is None:
        raise MakeError(f"step returned {_described(value, name)}. Return a single number.")
    return float(item)


def to_bool(value: Any, name: str) -> bool:
    """Convert an end, a bool, 0, 1 or an array of one of these, to a bool.

    Args:
        value: the value that `step` returned.
        name: name to print in messages.

    Raises:
        MakeError: the value is something else.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    item = _item(value)
    if item not in (0, 1):
        raise MakeError(f"step returned {_described(value, name)}. Return True or False.")
    return bool(item)


def _item(value: Any) -> Any:
    """Return the only element of a value if it is a real number or a bool; else None."""
    array = np.asarray(value)
    item = array.item() if array.size == 1 else None
    return item if isinstance(item, numbers.Real | Decimal) else None


def _described(value: Any, name: str) -> str:
    """Describe an invalid value by its shape, or by itself if it is a scalar."""
    shape = np.shape(value)
    if shape != ():
        return f"{name} of shape {shape}"
    text = repr(value)
    return f"{name} = {text if len(text) <= 60 else type(value).__name__}"
