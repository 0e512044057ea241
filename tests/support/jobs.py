"""Functions of jobs, in a module that their processes can import."""

import os
import signal
from pathlib import Path

from purejaxppo.sweep import packing


def dies_once(group):
    """Train a group, but kill the process in the first call."""
    marker = Path(os.environ["DIES_ONCE"])
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return packing.train_group(group)
