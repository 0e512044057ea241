"""Keep CPU cores awake while devices wait for each other.

CPU devices sum their gradients at every minibatch, and the first one waits for the others. A
waiting core is halted. On a virtual machine, waking it up can take longer than the sum. A busy
process of Linux's class SCHED_IDLE on each core prevents this; it runs only while the core is idle.
Results do not depend on it.

This file is also the program of these processes, so it imports only the standard library.
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

PASSES = 100_000
"""Iterations of an empty loop between two checks of the parent: a few milliseconds."""


def check() -> None:
    """Raise ValueError if this system cannot keep its cores awake."""
    if not hasattr(os, "SCHED_IDLE"):
        raise ValueError(
            f"keep_cores_awake = true: {sys.platform} does not support Linux's scheduling class "
            f"SCHED_IDLE. Use keep_cores_awake = false."
        )


@contextlib.contextmanager
def kept_awake(active: bool) -> Iterator[list[subprocess.Popen]]:
    """Keep the cores of this process awake inside the block, if `active`; yield the processes."""
    processes: list[subprocess.Popen] = []
    try:
        for core in sorted(os.sched_getaffinity(0)) if active else ():
            processes.append(_start(core))
        yield processes
    finally:
        for process in processes:
            process.kill()
            # It terminates when its core is free. Wait for that in a thread.
            threading.Thread(target=process.wait, daemon=True).start()


def _start(core: int) -> subprocess.Popen:
    """Start the busy process of a core.

    It has a separate process group, so Ctrl-C does not reach it. It stays in the session, because
    Linux gives each session an equal share of the cores, regardless of scheduling classes.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(core)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )


def compute_nothing(parent: int, core: int) -> None:
    """Keep `core` awake with an idle-priority loop until the process `parent` ends."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, {core})
    while os.getppid() == parent:
        for _ in range(PASSES):
            pass


if __name__ == "__main__":
    compute_nothing(int(sys.argv[1]), int(sys.argv[2]))
