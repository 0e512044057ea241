"""Checks of custom functions by tracing: arguments, shapes, dtypes and purity.

Errors name the file and the line of the custom code.
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
    """Trace a custom function and check its arguments, result and purity.

    Args:
        function: the function.
        where: the config field and its value, for errors.
        signature: names of the arguments, such as "(log_ratio [B], advantage [B], hp)".
        args: arrays, or shapes of arrays, to trace with.
        expected: shapes of the result; None: any.

    Returns:
        The shapes of the result.

    Raises:
        ValueError: the function has other arguments, cannot be traced, returns other shapes, or
            uses Python's or NumPy's random numbers.
    """
    check_arguments(function, where, signature, len(args))
    states = random_states()
    try:
        (first, result), (second, _) = (trace(function, args) for _ in range(2))
    except Exception as error:
        raise ValueError(f"{where}: {reason(error)}") from error
    if states != random_states() or not are_equal(first, second):
        raise ValueError(
            f"{where}: two calls differ. Python's and NumPy's random numbers become constants when "
            f"JAX traces the function. Use jax.random with a key."
        )
    if expected is not None and shapes_of(result) != shapes_of(expected):
        raise ValueError(
            f"{where} returns {shapes_of(result)}. It must return {shapes_of(expected)}."
        )
    return result


def trace(function: Callable, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return a function's jaxpr and the shapes of its result."""
    # A new function object each time, because JAX caches traces by function.
    return jax.make_jaxpr(partial(function), return_shape=True)(*args)


def are_equal(first: Any, second: Any) -> bool:
    """Return True if two jaxprs and their NumPy constants are equal."""
    consts = zip(first.consts, second.consts, strict=False)
    arrays = [pair for pair in consts if all(isinstance(x, np.ndarray) for x in pair)]
    return str(first) == str(second) and all(np.array_equal(*pair) for pair in arrays)


def check_finite(function: Callable, where: str, *args: Any) -> None:
    """Raise ValueError if a function returns NaN or infinity for `args`."""
    for value in jax.tree.leaves(function(*args)):
        array = np.asarray(value)
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise ValueError(
                f"{where} returns values that are not finite. The first ones are "
                f"{array.ravel()[:3]}."
            )


def check_arguments(function: Callable, where: str, signature: str, count: int) -> None:
    """Raise ValueError if a function does not take `count` positional arguments."""
    if not callable(function):
        raise ValueError(
            f"{where} is a {type(function).__name__}. It must be a function {signature}."
        )
    try:
        parameters = inspect.signature(function)
    except ValueError:  # a builtin without a signature
        return
    try:
        parameters.bind(*[None] * count)
    except TypeError as error:
        names = ", ".join(parameters.parameters)
        raise ValueError(f"{where} takes ({names}). It must take {signature}.") from error


def has_parameter(function: Callable, name: str) -> bool:
    """Return True if a class or function has a parameter of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def call(function: Callable, where: str, *args: Any, **options: Any) -> Any:
    """Call a custom function or class on the host.

    Raises:
        ValueError: it has other arguments, or raises an error; the message has its line.
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
    """Describe the error that occurred while a function was traced."""
    if isinstance(
        error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError
    ):
        line = described(error).partition(" raises ")[0]
        place = line if line.startswith("line") else "it"
        return (
            f"{place} needs the value of an array that JAX only traces. Use jax.numpy, and "
            f"jnp.where instead of if."
        )
    return described(error)


def shapes_of(tree: Any) -> str:
    """Describe the dtypes and shapes of a pytree, such as "float32 [4]"."""
    return _described_shapes(_shapes(tree))


def differing_shapes(first: Any, second: Any) -> tuple[str, str]:
    """Describe two pytrees as `shapes_of`, without leaves that are the same in both."""
    shapes = _shapes(first), _shapes(second)
    same = set(shapes[0].items()) & set(shapes[1].items())
    first, second = (
        _described_shapes({name: text for name, text in each.items() if (name, text) not in same})
        for each in shapes
    )
    return first, second


def _shapes(tree: Any) -> dict[str, str]:
    """Return the dtype and shape of each leaf by its path; the path of a single array is ""."""

    def leaf(x: Any) -> str:
        dtype = getattr(x, "dtype", None) or np.result_type(x)
        return f"{dtype} {list(np.shape(x))}"

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf(x) for path, x in leaves}


def _described_shapes(shapes: dict[str, str]) -> str:
    if list(shapes) == [""]:
        return shapes[""]
    return "{" + ", ".join(f"{name}: {text}" for name, text in shapes.items()) + "}"


def random_states() -> tuple[Any, Any]:
    """Return the states of Python's and NumPy's global random generators."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - to detect changes
    return random.getstate(), (kind, np.asarray(keys).tobytes(), *rest)


def rows(count: int = 4, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Return the shape of one number per row, [B]."""
    return jax.ShapeDtypeStruct((count,), dtype)
