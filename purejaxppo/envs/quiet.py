"""Suppress the output and warnings of simulators during import, construction and tracing.

`sys.stdout`, warning filters and `sys.modules` are global to the process. If two threads changed
them at the same time, the second could restore the changes of the first. A lock prevents this.
"""

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

PROCESS_LOCK = threading.RLock()
"""Lock for code that changes global state of the process and restores it."""


class MutedStream:
    """A text stream that drops the output of the thread that created it."""

    def __init__(self, stream: Any) -> None:
        """Wrap the output stream `stream`."""
        self.stream, self.thread = stream, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped output stream."""
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text from other threads."""
        return len(text) if threading.get_ident() == self.thread else self.stream.write(text)


@contextlib.contextmanager
def quiet(*ignored: tuple[str, type[Warning]]) -> Iterator[None]:
    """Discard the stdout of this thread, and warnings that match (message, category)."""
    with (
        PROCESS_LOCK,
        contextlib.redirect_stdout(MutedStream(sys.stdout)),
        warnings.catch_warnings(),
    ):
        for message, category in ignored:
            warnings.filterwarnings("ignore", message, category)
        yield
