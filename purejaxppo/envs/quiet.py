"""Quiet use of simulators, which print and warn while they are imported, made and traced.

`sys.stdout`, the filters of warnings and `sys.modules` belong to the process. Of two threads that
change them at once, the one that ends last would restore the changes of the other.
"""

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

PROCESS_LOCK = threading.RLock()
"""Lock for code that changes the process and restores it."""


class MutedStream:
    """A text stream that drops the output of the thread that made it; other threads can write."""

    def __init__(self, stream: Any) -> None:
        """Wrap a stream."""
        self.stream, self.thread = stream, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream."""
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text of another thread."""
        return len(text) if threading.get_ident() == self.thread else self.stream.write(text)


@contextlib.contextmanager
def quiet(*ignored: tuple[str, type[Warning]]) -> Iterator[None]:
    """Discard the output of this thread, and warnings that match (message, category)."""
    with (
        PROCESS_LOCK,
        contextlib.redirect_stdout(MutedStream(sys.stdout)),
        warnings.catch_warnings(),
    ):
        for message, category in ignored:
            warnings.filterwarnings("ignore", message, category)
        yield
