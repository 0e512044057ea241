"""Common decisions of several processes that train one run together; `places` starts them.

Decisions of Python between two programs must be the same in all processes, or one waits for a
collective that another never joins: `maximum` and `raise_together` ensure this. One process alone
skips all of it.
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

LONGEST = 1000
"""Largest number of bytes of an error message that processes exchange."""


class DistributedError(ValueError):
    """An error of all processes: process 0 prints it, the others are quiet."""

    def __init__(self, sentence: str, index: int) -> None:
        """Creates the error in process `index`."""
        super().__init__(sentence)
        self.quiet = index > 0


def is_distributed() -> bool:
    """True if this process trains together with others."""
    return jax.distributed.is_initialized()


def is_main() -> bool:
    """True if this is the process that prints and writes files: the first, or the only one."""
    return not is_distributed() or jax.process_index() == 0


def index() -> int:
    """The number of this process among those that train together, 0 if it is alone."""
    return jax.process_index() if is_distributed() else 0


def maximum(*numbers: float) -> tuple[float, ...]:
    """The largest of each number over all processes, the same for all (float32 among several)."""
    if not is_distributed():
        return numbers
    return tuple(map(float, _gather(np.asarray(numbers, np.float32)).max(0)))


def of_main(number: int) -> int:
    """The number of process 0, below 2^62 in size, the same for all."""
    if not is_distributed():
        return number
    high, low = divmod(number, 1 << 31)
    high, low = map(int, _gather(np.array([high, low], np.int32))[0])
    return (high << 31) + low


def total(numbers: list[int]) -> list[int]:
    """The sum of each number over all processes mod 2^64, the same for all."""
    if not is_distributed():
        return numbers
    parts = _gather(np.array(numbers, np.uint64).view(np.uint32))
    rows = np.ascontiguousarray(parts).view(np.uint64)
    return [int(number) for number in rows.sum(0)]


@contextlib.contextmanager
def raise_together() -> Iterator[None]:
    """Synchronises all processes at its end; if one of them fails inside, all do.

    Raises:
        DistributedError: the sentence of the first process that failed.
    """
    if not is_distributed():
        yield
        return
    sentence = ""
    try:
        yield
    except (ValueError, OSError) as error:
        sentence = str(error)
    raw = np.zeros(LONGEST, np.uint8)
    data = sentence.encode(errors="backslashreplace")[:LONGEST]
    raw[: len(data)] = np.frombuffer(data, np.uint8)
    for index, row in enumerate(_gather(raw)):
        if row.any():
            text = bytes(row[row > 0]).decode(errors="replace")
            raise DistributedError(f"process {index}: " * bool(index) + text, jax.process_index())


def check_equal(work: str) -> None:
    """Compare the texts that describe the work of each process.

    Raises:
        DistributedError: a process has another text than process 0.
    """
    if not is_distributed():
        return
    hashes = _gather(np.frombuffer(hashlib.sha256(work.encode()).digest(), np.uint8))
    for index, row in enumerate(hashes):
        if (row != hashes[0]).any():
            raise DistributedError(
                f"process {index} has another command, config or version than process 0. Start "
                f"all of them with the same ones.",
                jax.process_index(),
            )


def _gather(row: np.ndarray) -> np.ndarray:
    """Gathers the rows of all processes."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(row))


def devices() -> list[list[jax.Device]]:
    """The devices of each process.

    Raises:
        ValueError: they are not equally many.
    """
    own: list[list[jax.Device]] = [[] for _ in range(jax.process_count())]
    for device in jax.devices():
        own[device.process_index].append(device)
    counts = [len(part) for part in own]
    if len(set(counts)) > 1:
        raise ValueError(
            f"the processes see different numbers of devices ({', '.join(map(str, counts))}); "
            f"--devices {min(counts)} uses as many of each"
        )
    # Gloo's processes have 30 s to connect, at the first collective; later ones may take long.
    maximum(0)
    return own


def spread(devices: list[jax.Device], num_shards: int) -> list[jax.Device]:
    """The devices that shards are divided over, equally many of every process.

    Args:
        devices: of all processes, in their order, equally many of each.
        num_shards: logical shards.

    Raises:
        ValueError: the shards cannot be divided among the processes.
    """
    if not is_distributed():
        return devices
    count = jax.process_count()
    if num_shards % count:
        good = [n for n in range(1, num_shards + 1) if num_shards % n == 0]
        raise ValueError(
            f"num_shards = {num_shards} cannot be divided among {count} processes; a run of "
            f"num_shards = {num_shards} takes {' or '.join(map(str, good))}"
        )
    by_process = [[d for d in devices if d.process_index == i] for i in range(count)]
    per_process = num_shards // count
    used = max(n for n in range(1, len(by_process[0]) + 1) if per_process % n == 0)
    return [device for own in by_process for device in own[:used]]


def interrupted(interrupt: Interrupt) -> bool:
    """True if a process was interrupted, this one or another; the same answer for all."""
    number = int(signal.Signals[interrupt.signal]) if interrupt.signal else 0
    (number,) = map(int, maximum(number))
    if number:
        interrupt.signal = signal.Signals(number).name
    return bool(number)


def is_loss(error: Exception) -> bool:
    """True if a failure is one of communication between processes: JAX has no type for it."""
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
    """JAX's message for a failure, in one line and without the places in its own code."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"\[\S+\.cc:\d+\] ?|^[A-Z_]+: ", "", line)[:200]


def abort(code: int) -> int:
    """Returns the exit code of a process that failed by itself.

    One of several ends here instead: its cleanup would wait for the others, and they for it.
    """
    if is_distributed():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def finish() -> None:
    """Waits for the others, and shuts JAX's runtime down."""
    if is_distributed():
        jax.distributed.shutdown()
