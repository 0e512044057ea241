"""Errors of simulators on the host, without JAX."""

from purejaxppo.config.references import LoadError


class MakeError(LoadError):
    """A description names something that does not exist, is not installed, or cannot be used."""


LONGEST = 4000
"""Largest number of characters of an error's text."""


def printable(error: Exception) -> str:
    """The text of an error, of limited length and without characters that no encoding has.

    JAX ends the process with a segmentation fault if the error of a callback has a lone surrogate,
    which is part of any file name in another encoding.
    """
    try:
        text = str(error)
    except Exception:  # of a class of the environment
        text = type(error).__name__
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return text
