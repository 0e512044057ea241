"""What sweeps' jobs call in place of a training. No test, so that a job can import it."""

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
