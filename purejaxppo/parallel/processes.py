"""Coordination of several processes that train one run; `places` starts them.

Python must take the same decisions in all processes. Otherwise a process waits for a collective
that another never joins. `maximum` and `raise_together` ensure this. With one process, the
functions here do nothing.
"""

import contextlib
import hashlib
import os
import re
import signal
import sys
from collections.abc import Iterator

import jax
import numpy as np

from purejaxppo.interrupts import Interrupt

MAX_BYTES = 1000
"""Largest size of an error message that processes exchange, in bytes."""


class DistributedError(ValueError):
    """An error that all processes raise; only process 0 prints it."""

    def __init__(self, message: str, index: int) -> None:
        """Initialise the error in process `index`."""
        super().__init__(message)
        self.quiet = index > 0


def is_distributed() -> bool:
    """Return True if several processes train together."""
    return jax.distributed.is_initialized()


def is_main() -> bool:
    """Return True for the process that prints and writes files: process 0, or the only one."""
    return not is_distributed() or jax.process_index() == 0


def index() -> int:
    """Return the index of this process; 0 if it is the only one."""
    return jax.process_index() if is_distributed() else 0


def maximum(*numbers: float) -> tuple[float, ...]:
    """Return the maximum of each number over all processes (in float32 if there are several)."""
    if not is_distributed():
        return numbers
    return tuple(map(float, _gather(np.asarray(numbers, np.float32)).max(0)))


def total(numbers: list[int]) -> list[int]:
    """Return the sum of each number over all processes, modulo 2^64."""
    if not is_distributed():
        return numbers
    parts = _gather(np.array(numbers, np.uint64).view(np.uint32))
    rows = np.ascontiguousarray(parts).view(np.uint64)
    return [int(number) for number in rows.sum(0)]


@contextlib.contextmanager
def raise_together() -> Iterator[None]:
    """Synchronise all processes at the end of the block; if one fails inside, all raise an error.

    Raises:
        DistributedError: the message of the first process that failed.
    """
    if not is_distributed():
        yield
        return
    message = ""
    try:
        yield
    except (ValueError, OSError) as error:
        message = str(error)
    raw = np.zeros(MAX_BYTES, np.uint8)
    data = message.encode(errors="backslashreplace")[:MAX_BYTES]
    raw[: len(data)] = np.frombuffer(data, np.uint8)
    for index, row in enumerate(_gather(raw)):
        if row.any():
            text = bytes(row[row > 0]).decode(errors="replace")
            raise DistributedError(f"process {index}: " * bool(index) + text, jax.process_index())


def check_equal(work: str) -> None:
    """Check that the description of the work is the same in all processes.

    Raises:
        DistributedError: a process has another description than process 0.
    """
    if not is_distributed():
        return
    hashes = _gather(np.frombuffer(hashlib.sha256(work.encode()).digest(), np.uint8))
    for index, row in enumerate(hashes):
        if (row != hashes[0]).any():
            raise DistributedError(
                f"process {index} has another command, config or version than process 0. Start "
                f"all processes with the same ones.",
                jax.process_index(),
            )


def _gather(row: np.ndarray) -> np.ndarray:
    """Gather the rows of all processes."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(row))


def devices() -> list[list[jax.Device]]:
    """Return the devices of each process.

    Raises:
        ValueError: the processes have different numbers of devices.
    """
    by_process: list[list[jax.Device]] = [[] for _ in range(jax.process_count())]
    for device in jax.devices():
        by_process[device.process_index].append(device)
    counts = [len(part) for part in by_process]
    if len(set(counts)) > 1:
        raise ValueError(
            f"the processes have different numbers of devices ({', '.join(map(str, counts))}). "
            f"Use --devices {min(counts)}."
        )
    # Gloo's processes have 30 s to connect, at the first collective; later ones may take long.
    maximum(0)
    return by_process


def spread(devices: list[jax.Device], num_shards: int) -> list[jax.Device]:
    """Return the devices for the shards, equally many of each process.

    Args:
        devices: devices of all processes in order, equally many of each.
        num_shards: number of logical shards.

    Raises:
        ValueError: the shards cannot be divided among the processes.
    """
    if not is_distributed():
        return devices
    count = jax.process_count()
    if num_shards % count:
        divisors = [n for n in range(1, num_shards + 1) if num_shards % n == 0]
        raise ValueError(
            f"num_shards = {num_shards}: cannot be divided among {count} processes. Use "
            f"{' or '.join(map(str, divisors))} processes."
        )
    by_process = [[d for d in devices if d.process_index == i] for i in range(count)]
    per_process = num_shards // count
    used = max(n for n in range(1, len(by_process[0]) + 1) if per_process % n == 0)
    return [device for process in by_process for device in process[:used]]


def interrupted(interrupt: Interrupt) -> bool:
    """Return True in all processes if any process was interrupted."""
    number = int(signal.Signals[interrupt.signal]) if interrupt.signal else 0
    (number,) = map(int, maximum(number))
    if number:
        interrupt.signal = signal.Signals(number).name
    return bool(number)


def is_communication_failure(error: Exception) -> bool:
    """Return True if the error is a failed communication between processes.

    JAX has no exception type for it.
    """
    cause: BaseException | None = error
    while cause is not None:
        runtime = isinstance(cause, jax.errors.JaxRuntimeError)
        if runtime and "RESOURCE_EXHAUSTED" not in str(cause):
            return True
        if re.search(r"\b(gloo|nccl)\b", str(cause), re.IGNORECASE):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def reason(error: BaseException) -> str:
    """Return JAX's message for a failure in one line, without source locations."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"\[\S+\.cc:\d+\] ?|^[A-Z_]+: ", "", line)[:200]


def abort(code: int) -> int:
    """Return the exit code of a failed process; with several processes, exit immediately.

    The usual cleanup would wait for the other processes, which wait for this one.
    """
    if is_distributed():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def finish() -> None:
    """Wait for the other processes, and shut down JAX's distributed runtime."""
    if is_distributed():
        jax.distributed.shutdown()
