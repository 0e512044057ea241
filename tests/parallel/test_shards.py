"""Where shards live does not change what they compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.parallel.shards import Shards

pytestmark = pytest.mark.toy


@pytest.mark.parametrize(
    ("num_shards", "devices", "num_devices", "per_device"),
    [(1, 2, 1, 1), (2, 2, 2, 1), (6, 2, 2, 3), (3, 2, 1, 3), (4, 0, 1, 4)],
)
def test_shards_are_spread_over_the_most_devices_that_divide_them(
    num_shards, devices, num_devices, per_device
):
    shards = Shards(num_shards, jax.devices("cpu")[:devices])
    assert (shards.num_devices, shards.per_device) == (num_devices, per_device)


@pytest.mark.parametrize("devices", [0, 1, 2])
@pytest.mark.parametrize("num_shards", [1, 2, 4])
def test_sums_are_over_all_shards_wherever_they_are(num_shards, devices):
    shards = Shards(num_shards, jax.devices("cpu")[:devices])

    def function(common, local):
        total = shards.psum({"sum": common * local["x"]})["sum"]
        return total, {"x": local["x"] + total}

    mapped = jax.jit(shards.map(function, (None, 0), (None, 0)))
    x = np.arange(1.0, num_shards + 1)[:, None] * np.array([1.0, 10.0])
    total, local = mapped(jnp.float32(2), {"x": jnp.asarray(x)})
    np.testing.assert_array_equal(total, 2 * x.sum(0))
    np.testing.assert_array_equal(local["x"], x + 2 * x.sum(0))
