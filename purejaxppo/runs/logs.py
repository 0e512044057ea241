"""The log file of a run."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from purejaxppo.config.schema import Config
from purejaxppo.parallel import processes


class LogFile(logging.FileHandler):
    """A log file. Records that cannot be written are dropped: a full disk does not end a run."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Does nothing; Python would print a traceback for each record."""

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):
            super().close()


def not_of_a_save(record: logging.LogRecord) -> bool:
    """False for errors of a failed save that nothing has waited for; logs them as debug detail.

    asyncio reports them when they are garbage-collected, which can be after the run.
    """
    text = logging.Formatter().format(record)  # with the traceback
    if "orbax" not in text and "ocdbt" not in text:
        return True
    logging.getLogger("purejaxppo").debug("a late error of a save: %s", text)
    return False


@contextlib.contextmanager
def logs(config: Config, run_dir: Path) -> Iterator[None]:
    """Sends debug detail to the log file, if the config has one and this process writes.

    After a failed save, threads of Orbax and TensorStore report tracebacks. These go only to the
    log file, because the run reports the reason in one sentence.
    """
    ours, absl = logging.getLogger("purejaxppo"), logging.getLogger("absl")
    handler: logging.Handler = logging.NullHandler()
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.WARNING)
    propagates = ours.propagate  # False in a command, which prints warnings itself
    level = ours.level
    ours.setLevel(logging.WARNING)  # custom code may change the level of the root logger
    if config.logging.log_file and processes.is_main():
        path = run_dir / config.logging.log_file
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = LogFile(path, encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        ours.addHandler(handler)
        if propagates:
            ours.addHandler(terminal)
        ours.setLevel(logging.DEBUG)
        ours.propagate = False  # absl, which Orbax imports, lets the root logger print everything
    absl.addHandler(handler)
    absl.propagate = False
    logging.getLogger("asyncio").addFilter(not_of_a_save)
    hook = sys.unraisablehook

    def without_late_results(lost: Any) -> None:
        """Logs errors of TensorStore that arrive after Orbax has given up a save."""
        if str(lost.exc_value) == "Event loop is closed":
            absl.debug("a late result", exc_info=lost.exc_value)
        else:
            hook(lost)

    sys.unraisablehook = without_late_results
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for logger in (ours, absl):
            logger.removeHandler(handler)
        ours.propagate, absl.propagate = propagates, True
        ours.removeHandler(terminal)
        ours.setLevel(level)
        handler.close()
