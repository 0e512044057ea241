"""Checksums: hand-worked numbers, and independence of the sharding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from purejaxppo.runs import checksums

pytestmark = pytest.mark.toy


def test_a_checksum_has_dtype_shape_and_the_sum_of_bits_weighted_by_odd_numbers():
    # 5 * 1 + 2 * 3 + 1 * 5 = 16; float32 1.0 is 0x3f800000
    arrays = {"a": np.array([[5, 2, 1]], np.uint8), "b": np.array(1.0, np.float32)}
    expected = {"a": "uint8[1, 3] 0000000000000010", "b": "float32[] 000000003f800000"}
    assert checksums.of_arrays(arrays) == expected


def test_elements_beyond_a_chunk_have_their_own_weights():
    ones = np.ones(checksums.CHUNK + 3, np.bool_)
    total = (checksums.CHUNK + 3) ** 2  # of the first n odd numbers
    assert checksums.of_arrays({"x": ones}) == {"x": f"bool[{len(ones)}] {total:016x}"}


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "float32", "bfloat16", "float16"])
def test_every_changed_element_changes_the_checksum(dtype):
    x = np.arange(12).reshape(3, 4).astype(jnp.dtype(dtype))
    found = {checksums.of_arrays({"x": x})["x"]}
    for i in range(x.size):
        changed = x.copy()
        changed.reshape(-1).view(np.uint8)[i * x.itemsize] ^= 1
        found.add(checksums.of_arrays({"x": changed})["x"])
    assert len(found) == 13


@pytest.mark.parametrize("axes", [(), ("d",), (None, "d"), (None, None, "d")])
def test_a_checksum_does_not_depend_on_the_sharding(axes):
    x = np.arange(48, dtype=np.float32).reshape(2, 4, 6)
    mesh = jax.make_mesh((2,), ("d",))
    sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))
    assert checksums.of_arrays({"x": sharded}) == checksums.of_arrays({"x": x})


def test_the_checksum_of_keys_equals_that_of_their_data():
    keys = jax.random.split(jax.random.key(1), 3)
    data = np.asarray(jax.random.key_data(keys))
    assert checksums.of_arrays({"k": keys}) == checksums.of_arrays({"k": data})
