"""Launchers, which train the groups of a sweep on other hosts.

A launcher is a module with a function `launch`. A group can be pickled, and its runs are folders in
a shared file system. If a worker process dies, its group is restarted and resumes.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from purejaxppo.config.installation import require
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
