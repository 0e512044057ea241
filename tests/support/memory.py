"""The memory of a test process."""

import ctypes
import gc
import resource
import sys
from pathlib import Path

import jax

LARGE = 2.1e9
"""Bytes below which small programs, which compile fast but often, are kept for other files."""
LARGEST = 2.4e9
"""Bytes above which they are not kept for the rest of a file."""


def resident_bytes():
    """Return the bytes of resident memory of this process; infinity on other systems than Linux."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except FileNotFoundError:
        return float("inf")
    return int(pages) * resource.getpagesize()


def drop_large_programs(limit=LARGE):
    """Drop compiled programs, which are also on disk, if the process is larger than `limit`."""
    if resident_bytes() > limit:
        jax.clear_caches()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
