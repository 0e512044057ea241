"""LAPACK on several CPU devices, which can block forever before jaxlib 0.11.1.

A call for a batch of matrices (Cholesky, QR, eigh, LU) holds a thread of XLA's pool while other
threads compute its parts. If as many devices call it as the pool has threads, all threads wait
forever. More threads than devices avoid this, but slow down programs without LAPACK by a fifth.
"""

import functools
import os
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import xla_bridge
from jaxlib.mlir import ir
from jaxlib.version import __version__ as version

from purejaxppo.parallel.cores import cpu_cores

VARIABLE = "NPROC"
"""Environment variable with the number of threads; XLA reads it when its CPU back end starts."""
FIXED = (0, 11, 1)
"""The first version of jaxlib that does not block."""
BATCHED = re.compile(r'custom_call @lapack_[^\n]*num_batch_dims = "[1-9]')


class TooFewThreadsError(ValueError):
    """A program that can hang on its devices."""


def can_block() -> bool:
    """True for a jaxlib whose LAPACK calls can block."""
    return tuple(map(int, version.split(".")[:3])) < FIXED


def start_with_threads() -> None:
    """Starts JAX with enough threads for LAPACK on all CPU devices, unless NPROC is set.

    Later child processes do not inherit NPROC. Has no effect once JAX has started.

    Raises:
        RuntimeError, AssertionError: JAX does not find the devices of JAX_PLATFORMS.
    """
    devices = jax.config.values["jax_num_cpu_devices"]
    started = xla_bridge.backends_are_initialized()
    if started or not can_block() or devices < 2 or os.environ.get(VARIABLE):
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


def calls_batches(lowered: Any) -> bool:
    """True if a `jax.stages.Lowered` calls LAPACK for batches of matrices."""
    found = []

    def visit(op: Any) -> Any:
        if op.operation.name == "stablehlo.custom_call" and BATCHED.search(str(op)):
            found.append(op)
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir().operation.walk(visit)
    return bool(found)


def check(lowered: Any, devices: Sequence[jax.Device]) -> None:
    """Checks that a `jax.stages.Lowered` cannot block.

    Raises:
        TooFewThreadsError: it calls LAPACK for batches, on too many devices for the threads.
    """
    if too_few_threads(devices) and calls_batches(lowered):
        raise TooFewThreadsError(
            f"jaxlib {version} can hang when {len(devices)} CPU devices call LAPACK "
            f"(Cholesky, QR, eigh, LU), so one is used. Set {VARIABLE}="
            f"{cpu_cores() + len(devices)} or install jaxlib 0.11.1 (Python 3.12) to use "
            f"{len(devices)}."
        )
