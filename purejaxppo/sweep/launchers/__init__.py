"""Launchers, which train the groups of a sweep on other hosts.

A launcher is a module with a function `launch`. A group can be pickled, and its runs are folders in
a shared file system. If a worker process dies, its group is restarted and resumes.
"""

import contextlib
import importlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from purejaxppo.config.installation import require
from purejaxppo.interrupts import NOTHING_LOST, SIGNALS
from purejaxppo.runs.console import fail
from purejaxppo.sweep.packing import Group

RETRIES = 3
"""Number of restarts of a group whose worker process died."""

Launcher = Callable[[Sequence[Group], Path, Mapping[str, Any]], list[int]]
"""(groups, folder for logs, options of the launcher) -> exit codes."""

PACKAGES = {"ray": "ray", "slurm": "submitit"}
"""The package that each launcher requires. The extra has the launcher's name."""


def launcher(name: str) -> Launcher:
    """Import a launcher.

    Raises:
        ValueError: its package is not installed.
    """
    require(PACKAGES[name], extra=name)
    launch: Launcher = importlib.import_module(f"{__name__}.{name}").launch
    return launch


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Raise SystemExit at the first SIGTERM or SIGHUP, so that jobs end as at Ctrl-C."""
    before: dict[int, Any] = {}
    codes: list[int] = []

    def leave(number: int, frame: object) -> None:
        for other in before:  # terminals and `timeout` send two
            signal.signal(other, signal.SIG_IGN)
        codes.append(fail(f"interrupted; {NOTHING_LOST}", code=128 + number))
        raise SystemExit(codes[0])

    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if number != signal.SIGINT and signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, leave)
    try:
        yield
    except SystemExit:
        if codes:  # Ray changes the code
            raise SystemExit(codes[0]) from None
        raise
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler or signal.SIG_DFL)
