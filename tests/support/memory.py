"""How much memory a process of tests takes."""

import ctypes
import gc
import resource
import sys
from pathlib import Path

import jax

LARGE = 2.1e9
"""Bytes; below, small programs are kept from file to file: they compile in no time, but often."""
LARGEST = 2.4e9
"""Bytes above which they are not even kept for the rest of a file."""


def resident():
    """Bytes of memory that this process has now; elsewhere than on Linux, infinite."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except FileNotFoundError:
        return float("inf")
    return int(pages) * resource.getpagesize()


def drop_large_programs(limit=LARGE):
    """Drops compiled programs, which are on the disk, if the process is larger than `limit`."""
    if resident() > limit:
        jax.clear_caches()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
