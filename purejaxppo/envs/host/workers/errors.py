"""Errors of host simulators, without JAX."""

from purejaxppo.config.references import LoadError


class MakeError(LoadError):
    """An environment cannot be created: its description is invalid, or a package is missing."""


class SimulatorError(RuntimeError):
    """A host simulator failed, and with it the compiled program that stepped it."""


LONGEST = 4000
"""Maximum number of characters in an error message."""


def printable(error: BaseException) -> str:
    """Return the message of an error, shortened and with escapes for lone surrogates.

    JAX crashes the process if the error of a callback, or a file name in its traceback, contains a
    lone surrogate. Python decodes file names that are not UTF-8 to such characters.
    """
    try:
        text = str(error)
    except Exception:  # raised by the __str__ of a custom class
        text = type(error).__name__
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return text
