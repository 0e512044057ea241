"""Trees of arrays and random keys, compared."""

import jax
import jax.numpy as jnp
import numpy as np


def plain(tree):
    """Numpy arrays, keys as their bits."""
    return jax.tree.map(
        lambda x: np.asarray(
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        ),
        tree,
    )


def assert_same(a, b):
    """Bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, plain(a), plain(b))


def filled(shapes, fill):
    """A tree of such shapes and types, each array from `fill` of a shape; keys from their bits."""

    def leaf(x):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.asarray(fill((*x.shape, 2)), jnp.uint32))
        return jnp.asarray(fill(x.shape)).astype(x.dtype)

    return jax.tree.map(leaf, shapes)
