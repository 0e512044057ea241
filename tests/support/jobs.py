"""What jobs run, in a module that they can import."""

import os
import signal
from pathlib import Path

from purejaxppo.sweep import packing


def dies_once(group):
    """Trains a group, but kills its process the first time that anybody calls it."""
    marker = Path(os.environ["DIES_ONCE"])
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return packing.train_group(group)
