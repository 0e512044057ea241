"""Matrix products of dense layers have the values and derivatives of numpy, in every mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from purejaxppo.agents.networks import products
from purejaxppo.parallel import platforms

pytestmark = pytest.mark.toy
SHAPES = [((3, 5), 4), ((2, 3, 5), 2), ((5,), 3), ((3, 5), 1), ((7, 200), 100)]
"""Shapes of x, and layer widths; the last weight is larger than `products.LARGEST_WEIGHT`."""


def parts(shape, width):
    rng = np.random.default_rng(0)
    return [
        rng.normal(size=s).astype("f") for s in (shape, (shape[-1], width), (*shape[:-1], width))
    ]


def product(x, weight):
    return products.dot_general(x, weight, (((x.ndim - 1,), (0,)), ((), ())))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize(("shape", "width"), SHAPES)
def test_values_and_gradients_equal_numpy(shape, width, platform):
    x, weight, dy = parts(shape, width)
    with platforms.tracing_for(platform):
        y, pull = jax.vjp(product, x, weight)
        dx, d_weight = pull(dy)
    rows, d_rows = x.reshape(-1, shape[-1]).astype("d"), dy.reshape(-1, width).astype("d")
    np.testing.assert_allclose(y, x.astype("d") @ weight.astype("d"), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dx, dy.astype("d") @ weight.T.astype("d"), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d_weight, rows.T @ d_rows, rtol=1e-4, atol=1e-5)


def test_forward_mode_and_second_derivatives_equal_a_plain_product():
    x, weight, _ = parts((3, 5), 4)

    def loss(product, x, weight):
        return jnp.sum(jnp.tanh(product(x, weight)) ** 2)

    def plain(x, weight):
        return x @ weight

    for derivative in (
        lambda f: jax.jvp(f, (x, weight), (x + 1, weight - 1))[1],
        lambda f: jax.jvp(lambda w: f(x, w), (weight,), (weight,))[1],
        lambda f: jax.hessian(f)(x, weight),
        lambda f: jax.grad(lambda w: jnp.sum(jax.grad(f)(x, w) ** 2))(weight),
    ):
        ours, theirs = (derivative(lambda *a, p=p: loss(p, *a)) for p in (product, plain))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_vmapped_products_equal_single_ones():
    x, weight, dy = (np.stack([part, part + 1]) for part in parts((3, 5), 4))

    def gradient(x, weight, dy):
        return jax.grad(lambda w: jnp.sum(product(x, w) * dy))(weight)

    both = jax.jit(jax.vmap(gradient))(x, weight, dy)
    for i in range(2):
        np.testing.assert_allclose(both[i], x[i].T @ dy[i], rtol=1e-4, atol=1e-5)


def test_a_dense_layer_can_use_the_product_in_its_compute_dtype():
    layer = nn.Dense(4, dtype=jnp.bfloat16, dot_general=products.dot_general)
    x, _, _ = parts((3, 5), 4)
    params = layer.init(jax.random.key(0), x)
    plain = nn.Dense(4, dtype=jnp.bfloat16)
    assert layer.apply(params, x).dtype == jnp.bfloat16
    np.testing.assert_array_equal(layer.apply(params, x), plain.apply(params, x))
    ours, theirs = (
        jax.grad(lambda p, m=m: jnp.sum(m.apply(p, x).astype("f") ** 2))(params)["params"]
        for m in (layer, plain)
    )
    assert ours["kernel"].dtype == jnp.float32
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.02), ours, theirs)
    assert not product(np.zeros((3, 0), "f"), np.zeros((0, 4), "f")).any()


def test_only_cpus_materialise_the_transpose_before_a_weight_gradient():
    x, weight, dy = parts((64, 16), 8)

    for platform, barriers in (("cpu", 1), ("gpu", 0)):
        with platforms.tracing_for(platform):
            gradient = jax.grad(lambda w: jnp.sum(product(x, w) * dy))
            text = str(jax.make_jaxpr(gradient)(weight))
        assert text.count("optimization_barrier") == barriers
