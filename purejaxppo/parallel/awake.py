"""CPU cores that stay awake while devices wait for each other.

Two cores that train together add up gradients at every minibatch, and one of them waits for the
other. A core that waits is halted, and on a virtual machine waking it up can take longer than the
sum itself. A process of Linux's class SCHED_IDLE on each core, which runs while this program does
not want the core, keeps it from being halted. Programs of other sessions and control groups share a
core with this one's as ever, by weights: such a process brings next to none while the program
computes on another core. Nothing that is learned depends on it.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from purejaxppo.parallel import busy, processes
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.parallel.shards import SHARD_DEVICES, Shards

CGROUPS = Path("/sys/fs/cgroup")
VERSION_1 = ("cpu", "cpu,cpuacct")
"""Folders of the first version's controller, in either order of the names in its line."""
OWN_CGROUPS = Path("/proc/self/cgroup")
PROCESSOR = Path("/proc/cpuinfo")
HYPERTHREADS = Path("/sys/devices/system/cpu/smt/active")


def check(when: str) -> None:
    """Checks that this system can keep its cores awake, if they are always to be.

    Raises:
        ValueError: it cannot.
    """
    if when == "always" and not _possible():
        raise ValueError(
            "keep_cores_awake = always needs Linux's scheduling class SCHED_IDLE, which "
            f"{sys.platform} has not; auto does without"
        )


def wanted(when: str, shards: Shards) -> bool:
    """True if the cores are to be kept awake while this process trains.

    Args:
        when: `Config.keep_cores_awake`.
        shards: on the devices of the training.
    """
    if when == "never" or shards.platform != "cpu" or not _possible():
        return False
    if when == "always":
        return True
    if processes.is_distributed() or shards.num_devices != cpu_cores():
        return False
    waits = shards.mesh is not None and shards.mesh.shape[SHARD_DEVICES] > 1
    return waits and is_virtual() and not has_hyperthreads() and not has_quota()


@contextlib.contextmanager
def kept_awake(when: bool) -> Iterator[list[int]]:
    """Keeps the cores that this process may use awake meanwhile; ids of the processes that do."""
    started: list[int] = []
    try:
        with contextlib.suppress(OSError):  # no more processes: then without
            for core in sorted(os.sched_getaffinity(0)) if when else ():
                started.append(_start(core))
        yield started
    finally:
        for process in started:
            # Not if others wait for this program's processes, too: the id may be a stranger's.
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if os.waitpid(process, os.WNOHANG) == (0, 0):
                    os.kill(process, signal.SIGKILL)
                    # It ends when its core has time for it, which nobody else waits for.
                    threading.Thread(target=_wait_for, args=(process,), daemon=True).start()


def _wait_for(process: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, 0)


def _start(core: int) -> int:
    """A process on a core; it does not hear a Ctrl-C, which this one answers."""
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    command = [sys.executable, "-I", "-S", busy.__file__, str(os.getpid()), str(core)]
    return os.posix_spawn(
        sys.executable, command, os.environ, file_actions=quiet, setsigmask=[signal.SIGINT]
    )


def _possible() -> bool:
    """True on a Linux, with a Python that can be started."""
    return hasattr(os, "SCHED_IDLE") and hasattr(os, "sched_getaffinity") and bool(sys.executable)


def is_virtual() -> bool:
    """True on a virtual machine, whose processor says so; waking up a core is dear there."""
    with contextlib.suppress(OSError):
        lines = PROCESSOR.read_text(encoding="utf-8").splitlines()
        return any("hypervisor" in line.split() for line in lines if line.startswith("flags"))
    return False


def has_hyperthreads() -> bool:
    """True if two of the system's cores share one: each slows the other down when it is busy."""
    with contextlib.suppress(OSError):
        return HYPERTHREADS.read_text(encoding="utf-8").strip() != "0"
    return False


def has_quota() -> bool:
    """True if a group of this process has a share of CPU time, which such processes would use up.

    Linux's control groups, of version 2 (`cpu.max`) or 1 (`cpu.cfs_quota_us`).
    """
    try:
        lines = OWN_CGROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        roots = {CGROUPS / name for name in (controllers, *VERSION_1 * bool(controllers))}
        if any(_limited(root, path) for root in roots):
            return True
    return False


def _limited(root: Path, path: str) -> bool:
    """True if a group below a root, or one that it is in, has a quota."""
    own = root / path.lstrip("/")
    for group in (own, *own.parents):
        for name in ("cpu.max", "cpu.cfs_quota_us"):
            with contextlib.suppress(OSError):
                if (group / name).read_text(encoding="utf-8").split()[0] not in ("max", "-1"):
                    return True
        if group == root:
            break
    return False
