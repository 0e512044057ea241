"""Workaround for LAPACK calls on several CPU devices, which can deadlock before jaxlib 0.11.1.

A batched call (Cholesky, QR, eigh, LU) holds a thread of XLA's pool while other threads compute its
parts. If as many devices call it as the pool has threads, all threads wait forever. More threads
than devices avoid this, but slow down programs without LAPACK by a fifth.
"""

import functools
import os
import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import jax

from purejaxppo.parallel.cores import cpu_cores

VARIABLE = "NPROC"
"""Environment variable with the number of threads, which XLA reads when its CPU backend starts."""
FIXED_IN = (0, 11, 1)
"""First version of jaxlib without the deadlock."""
BATCHED = re.compile(r'custom_call @lapack_[^\n]*num_batch_dims = "[1-9]')


class TooFewThreadsError(ValueError):
    """Raised for a program that can deadlock on its devices."""


def can_block() -> bool:
    """Return True if LAPACK calls of this jaxlib can deadlock."""
    return tuple(map(int, version("jaxlib").split(".")[:3])) < FIXED_IN


def has_started() -> bool:
    """Return True if JAX has started, after which the number of CPU devices is fixed."""
    devices = jax.config.values["jax_num_cpu_devices"]
    try:
        jax.config.update("jax_num_cpu_devices", devices + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", devices)
    return False


def start_with_threads() -> None:
    """Start JAX with enough threads for LAPACK on all CPU devices, unless NPROC is set.

    NPROC is set while JAX starts, then removed. This has no effect if JAX has started already.

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
    """Return the number of threads in XLA's pool."""
    return int(os.environ.get(VARIABLE) or cpu_cores())


def too_few_threads(devices: Sequence[jax.Device]) -> bool:
    """Return True if LAPACK calls on these devices can deadlock this process."""
    count = sum(d.platform == "cpu" and d.process_index == jax.process_index() for d in devices)
    return can_block() and count > 1 and count >= threads()


def calls_batches(lowered: Any) -> bool:
    """Return True if a `jax.stages.Lowered` contains batched LAPACK calls."""
    return BATCHED.search(lowered.as_text()) is not None


def check(lowered: Any, devices: Sequence[jax.Device]) -> None:
    """Check that a `jax.stages.Lowered` cannot deadlock.

    Raises:
        TooFewThreadsError: the program contains batched LAPACK calls, and there are too few
            threads.
    """
    if too_few_threads(devices) and calls_batches(lowered):
        raise TooFewThreadsError(
            f"Only one CPU device is used: jaxlib {version('jaxlib')} can hang when several call "
            f"LAPACK (Cholesky, QR, eigh, LU). To use all {len(devices)}, set {VARIABLE}="
            f"{cpu_cores() + len(devices)} or install jaxlib 0.11.1 (Python >= 3.12)."
        )
