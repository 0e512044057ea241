"""The log file of a run.

Python's loggers belong to the process, and several runs in threads share them. The first run sets
them up, and the last run restores them. A record goes to the log of the run whose thread made it.
Threads of other libraries, such as those that write checkpoints, do not belong to a run, and all
runs log their records.
"""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from purejaxppo.config.schema import Config
from purejaxppo.parallel import processes
from purejaxppo.runs.console import warning_handlers

LOGGERS = ("purejaxppo", "absl")
"""Names of the loggers whose records go to log files; Orbax logs to absl's."""

_CHANGING = threading.Lock()
"""Lock for the settings of loggers."""
_LOG: ContextVar["RunLog | None"] = ContextVar("log", default=None)
"""The log of the run that this thread belongs to."""


class RunLog(logging.FileHandler):
    """The log file of a run. Records that cannot be written are dropped."""

    restore: Callable[[], None]
    """Restores the loggers' settings from before the first run."""

    def __init__(self, path: str | Path) -> None:
        """Open the file."""
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        self.addFilter(lambda record: _LOG.get() in (None, self))

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the record, because Python would print a traceback."""

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            super().close()


def not_of_a_save(record: logging.LogRecord) -> bool:
    """Return False for further errors of a failed checkpoint, and log them with level DEBUG.

    asyncio reports them when they are garbage-collected, possibly after the run.
    """
    text = logging.Formatter().format(record)  # with the traceback
    if "orbax" not in text and "ocdbt" not in text:
        return True
    logging.getLogger("purejaxppo").debug(
        "another error of a checkpoint that has already failed: %s", text
    )
    return False


def without_late_results(hook: Callable[[Any], object], lost: Any) -> None:
    """Log TensorStore's further errors of a failed checkpoint, and pass others to `hook`."""
    if str(lost.exc_value) == "Event loop is closed":
        logging.getLogger("absl").debug(
            "another error of a checkpoint that has already failed", exc_info=lost.exc_value
        )
    else:
        hook(lost)


def set_up_loggers() -> Callable[[], None]:
    """Send debug records to log files and warnings to the terminal, and return an undo function.

    After a failed checkpoint, threads of Orbax and TensorStore report tracebacks. These go only to
    log files, because the run reports the reason in one sentence.
    """
    undo = contextlib.ExitStack()
    package_logger, absl = loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        undo.callback(logger.setLevel, logger.level)
        undo.callback(setattr, logger, "propagate", logger.propagate)
    if package_logger.propagate:  # a command prints warnings already
        for handler in warning_handlers():
            package_logger.addHandler(handler)
            undo.callback(package_logger.removeHandler, handler)
    package_logger.setLevel(logging.DEBUG)
    package_logger.propagate = absl.propagate = False
    logging.getLogger("asyncio").addFilter(not_of_a_save)
    undo.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
    sys.unraisablehook = partial(without_late_results, sys.unraisablehook)
    return undo.close


@contextlib.contextmanager
def logs(config: Config, run_dir: Path) -> Iterator[None]:
    """Send debug records to the log file, if the config names one and this is process 0."""
    path = Path(os.devnull)
    if config.logging.log_file and processes.is_main():
        path = run_dir / config.logging.log_file
        path.parent.mkdir(parents=True, exist_ok=True)
    log, package_logger = RunLog(path), logging.getLogger(LOGGERS[0])
    with _CHANGING:
        running = [other for other in package_logger.handlers if isinstance(other, RunLog)]
        log.restore = running[0].restore if running else set_up_loggers()
        for name in LOGGERS:
            logging.getLogger(name).addHandler(log)
    token = _LOG.set(log)
    try:
        yield
    finally:
        _LOG.reset(token)
        with _CHANGING:
            for name in LOGGERS:
                logging.getLogger(name).removeHandler(log)
            if not any(isinstance(other, RunLog) for other in package_logger.handlers):
                log.restore()
        log.close()
