"""Checksums of arrays that do not depend on the sharding of the arrays."""

import json
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.parallel import processes

CHUNK = 1 << 16
"""Number of elements that a sum converts in one step."""


def of_counters(counters: dict[str, Any]) -> str:
    """Compute the checksum of a dictionary that JSON can store."""
    return f"{zlib.crc32(json.dumps(counters, sort_keys=True).encode()):08x}"


def of_arrays(arrays: dict[str, np.ndarray | jax.Array]) -> dict[str, str]:
    """Compute the checksum of each array: its type, its shape and a sum over its bits.

    The sum of an array with elements x_i in C order is Σ_i bits(x_i) (2 i + 1) mod 2^64. Since the
    weights are odd, a change of one element always changes the sum. All processes must call this
    together for JAX arrays, and add the sums of their shards.
    """
    data = {
        name: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for name, x in arrays.items()
    }
    sums = [_sum(x) for x in data.values()]
    if any(isinstance(x, jax.Array) for x in data.values()):
        sums = processes.total(sums)
    return {
        name: f"{x.dtype}{list(x.shape)} {number:016x}"
        for (name, x), number in zip(data.items(), sums, strict=True)
    }


def _sum(x: np.ndarray | jax.Array) -> int:
    """Compute the sum over the elements that this process stores."""
    if isinstance(x, np.ndarray):
        return _weighted_sum(x, 0)
    total = 0
    for shard in x.addressable_shards:
        if shard.replica_id:
            continue
        part = np.asarray(shard.data)
        start = [cut.start or 0 for cut in shard.index]
        # After the last axis that is sharded, elements are contiguous in the whole array.
        axis = max((i for i, n in enumerate(part.shape) if n < x.shape[i]), default=0)
        for row in np.ndindex(part.shape[:axis]):
            first = [*np.add(start[:axis], row), *start[axis:]]
            offset = int(np.ravel_multi_index(first, x.shape)) if first else 0
            total += _weighted_sum(part[row], offset)
    return total % (1 << 64)


def _weighted_sum(x: np.ndarray, offset: int) -> int:
    """Compute the sum over contiguous elements, the first of which has the index `offset`."""
    bits = np.ascontiguousarray(x).reshape(-1).view(f"u{x.itemsize}")
    total = 0
    for start in range(0, bits.size, CHUNK):
        part = bits[start : start + CHUNK].astype(np.uint64)
        weights = 2 * np.arange(part.size, dtype=np.uint64) + 1
        total += int(part @ weights) + 2 * (offset + start) * int(part.sum())
    return total % (1 << 64)
