"""Comparison of trees of arrays and random keys."""

import jax
import jax.numpy as jnp
import numpy as np


def to_numpy(tree):
    """Return a tree of numpy arrays, with keys as their bits."""
    return jax.tree.map(
        lambda x: np.asarray(
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        ),
        tree,
    )


def assert_same(a, b):
    """Check that two trees are bit-identical."""
    jax.tree.map(np.testing.assert_array_equal, to_numpy(a), to_numpy(b))


def fill_tree(shapes, fill):
    """Return a tree of given shapes and dtypes, with arrays `fill(shape)`, also for keys."""

    def leaf(x):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.asarray(fill((*x.shape, 2)), jnp.uint32))
        return jnp.asarray(fill(x.shape)).astype(x.dtype)

    return jax.tree.map(leaf, shapes)
