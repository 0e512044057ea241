"""A process that keeps one core awake, until its parent ends; see `awake`, which starts it.

Run as a file, by its path: it imports nothing of this package.
"""

import os
import sys

PASSES = 100_000
"""Of an empty loop between two looks at the parent; some milliseconds on an idle core."""


def main(parent: int, core: int) -> None:
    """Computes nothing on one core while its parent and others leave it the core."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, {core})
    while os.getppid() == parent:
        for _ in range(PASSES):
            pass


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
