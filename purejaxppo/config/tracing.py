"""Checks of users' own functions before anything is compiled: arguments, shapes, dtypes, purity.

Errors are one sentence each, with the file and the line of the user's code.
"""

import inspect
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.config.references import described


def check(function: Callable, where: str, signature: str, *args: Any, expected: Any = None) -> Any:
    """Traces a function, and checks its result.

    Args:
        function: of the user.
        where: the config field and its value, for errors.
        signature: names of the arguments, as "(log_ratio [B], advantage [B], hp)".
        args: arrays, or shapes of arrays.
        expected: shapes of the result; None: any.

    Returns:
        The shapes of the result.

    Raises:
        ValueError: other arguments, not traceable, another result, or draws from Python's or
            NumPy's random numbers.
    """
    check_arguments(function, where, signature, len(args))
    states = random_states()
    try:
        (first, found), (again, _) = (trace(function, args) for _ in range(2))
    except Exception as error:
        raise ValueError(f"{where}: {reason(error)}") from error
    if states != random_states() or not same(first, again):
        raise ValueError(
            f"{where} does not do the same when it is called again: Python's and NumPy's random "
            f"numbers are drawn once, while JAX traces; draw with jax.random, from a key"
        )
    if expected is not None and shapes_of(found) != shapes_of(expected):
        raise ValueError(f"{where} gives {shapes_of(found)} and not {shapes_of(expected)}")
    return found


def trace(function: Callable, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """(the program that a function is, shapes of its result), from a call of the function."""
    # A function of its own, since JAX remembers what it has traced.
    return jax.make_jaxpr(partial(function), return_shape=True)(*args)


def same(one: Any, other: Any) -> bool:
    """True if two traced programs, with the NumPy arrays that they hold, are equal."""
    consts = zip(one.consts, other.consts, strict=False)
    arrays = [pair for pair in consts if all(isinstance(x, np.ndarray) for x in pair)]
    return str(one) == str(other) and all(np.array_equal(*pair) for pair in arrays)


def check_finite(function: Callable, where: str, *args: Any) -> None:
    """Raises ValueError if a function of small arrays gives NaN or infinity for `args`."""
    for value in jax.tree.leaves(function(*args)):
        array = np.asarray(value)
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise ValueError(f"{where} gives {array.ravel()[:3]} for its first values, not numbers")


def check_arguments(function: Callable, where: str, signature: str, count: int) -> None:
    """Raises ValueError if a function does not take `count` arguments in a row."""
    if not callable(function):
        raise ValueError(f"{where} is a {type(function).__name__}, and not a function {signature}")
    try:
        own = inspect.signature(function)
    except ValueError:  # a builtin without a signature
        return
    try:
        own.bind(*[None] * count)
    except TypeError as error:
        names = ", ".join(own.parameters)
        raise ValueError(f"{where} takes ({names}), and is called with {signature}") from error


def has_parameter(function: Callable, name: str) -> bool:
    """True if a class or function has a parameter of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def call(function: Callable, where: str, *args: Any, **options: Any) -> Any:
    """Calls a user's function or class on the host.

    Raises:
        ValueError: other arguments, or an error inside, with its line.
    """
    try:
        bound = inspect.signature(function).bind(*args, **options)
    except ValueError:
        return function(*args, **options)
    except TypeError as error:
        raise ValueError(f"{where}: {' '.join(str(error).split())}") from error
    try:
        return function(*bound.args, **bound.kwargs)
    except Exception as error:
        raise ValueError(f"{where}: {described(error)}") from error


def reason(error: Exception) -> str:
    """The reason for which a function cannot be traced."""
    if isinstance(
        error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError
    ):
        line = described(error).partition(" raises ")[0]
        place = line if line.startswith("line") else "it"
        return (
            f"{place} needs the value of an array that JAX only traces: use jax.numpy, and "
            f"jnp.where in place of if"
        )
    return described(error)


def shapes_of(tree: Any) -> str:
    """The shapes of a tree, in words: float32 [4]."""

    def leaf(x: Any) -> str:
        dtype = getattr(x, "dtype", None) or np.result_type(x)
        return f"{dtype} {list(np.shape(x))}"

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if len(leaves) == 1 and not leaves[0][0]:
        return leaf(leaves[0][1])
    names = {jax.tree_util.keystr(path, simple=True, separator="."): leaf(x) for path, x in leaves}
    return "{" + ", ".join(f"{name}: {text}" for name, text in names.items()) + "}"


def random_states() -> tuple[Any, Any]:
    """The states of Python's and NumPy's global generators."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - to see whether it changes
    return random.getstate(), (kind, np.asarray(keys).tobytes(), *rest)


def rows(count: int = 4, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """The shape of one number per row, [B]."""
    return jax.ShapeDtypeStruct((count,), dtype)
