"""LAPACK on several CPU devices, which can block forever before jaxlib 0.11.1.

A call for a batch of matrices (Cholesky, QR, eigh, LU) holds a thread of XLA's pool while other
threads compute its parts. If as many devices call it as the pool has threads, all threads wait
forever. More threads than devices avoid this, but slow down programs without LAPACK by a fifth.
"""

import functools
import os
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import jax

from purejaxppo.parallel.cores import cpu_cores

VARIABLE = "NPROC"
"""Environment variable with the number of threads; XLA reads it when its CPU back end starts."""
FIXED_IN = (0, 11, 1)
"""The first version of jaxlib that does not block."""
BATCHED = re.compile(r'custom_call @lapack_[^\n]*num_batch_dims = "[1-9]')


class TooFewThreadsError(ValueError):
    """A program that can hang on its devices."""


def can_block() -> bool:
    """True for a jaxlib whose LAPACK calls can block."""
    return tuple(map(int, version("jaxlib").split(".")[:3])) < FIXED_IN


def has_started() -> bool:
    """True after JAX's first use of a device: the number of CPU devices cannot change any more."""
    devices = jax.config.values["jax_num_cpu_devices"]
    try:
        jax.config.update("jax_num_cpu_devices", devices + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", devices)
    return False


def start_with_threads() -> None:
    """Starts JAX with enough threads for LAPACK on all CPU devices, unless NPROC is set.

    Later child processes do not inherit NPROC. Has no effect once JAX has started.

    Raises:
        RuntimeError, AssertionError: JAX does not find the devices of JAX_PLATFORMS.
    """
    devices = jax.config.values["jax_num_cpu_devices"]
    if devices < 2 or not can_block() or os.environ.get(VARIABLE) or has_started():
        return
    os.environ[VARIABLE] = str(cpu_cores() + devices)
    try:
        threads()
        jax.devices()
    finally:
        del os.environ[VARIABLE]


@functools.cache
def threads() -> int:
    """Number of threads in XLA's pool, read when JAX starts."""
    return int(os.environ.get(VARIABLE) or cpu_cores())


def too_few_threads(devices: Sequence[jax.Device]) -> bool:
    """True if LAPACK calls on these devices can block this process."""
    own = sum(d.platform == "cpu" and d.process_index == jax.process_index() for d in devices)
    return can_block() and own > 1 and own >= threads()


def operations(operation: Any) -> Iterator[Any]:
    """An operation of an MLIR module, and all those inside it."""
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from operations(inner.operation)


def calls_batches(lowered: Any) -> bool:
    """True if a `jax.stages.Lowered` calls LAPACK for batches of matrices."""
    return any(
        operation.name == "stablehlo.custom_call" and BATCHED.search(str(operation))
        for operation in operations(lowered.compiler_ir().operation)
    )


def check(lowered: Any, devices: Sequence[jax.Device]) -> None:
    """Checks that a `jax.stages.Lowered` cannot block.

    Raises:
        TooFewThreadsError: it calls LAPACK for batches, on too many devices for the threads.
    """
    if too_few_threads(devices) and calls_batches(lowered):
        raise TooFewThreadsError(
            f"jaxlib {version('jaxlib')} can hang when {len(devices)} CPU devices call LAPACK "
            f"(Cholesky, QR, eigh, LU), so one is used. Set {VARIABLE}="
            f"{cpu_cores() + len(devices)} or install jaxlib 0.11.1 (Python 3.12) to use "
            f"{len(devices)}."
        )
