"""Both forms of convolution and pooling against numpy loops, and against each other."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.agents.networks import convolutions

FORMS = {"batch_last": convolutions.BATCH_LAST, "lax": convolutions.LAX}


def padded(x, window, stride, value):
    """Return images with `SAME` padding: the larger half of an odd padding is at the end."""
    pads = []
    for size in x.shape[1:3]:
        total = max((-(-size // stride) - 1) * stride + window - size, 0)
        pads.append((total // 2, total - total // 2))
    return np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=value)


def windows(x, window, stride):
    """Return ((row, column), pixels [B, window, window, C]) for every window."""
    counts = [(size - window) // stride + 1 for size in x.shape[1:3]]
    for i, j in itertools.product(*map(range, counts)):
        top, left = i * stride, j * stride
        yield (i, j), x[:, top : top + window, left : left + window]


def assemble(parts):
    parts = dict(parts)
    rows, columns = (max(p[axis] for p in parts) + 1 for axis in (0, 1))
    return np.stack([np.stack([parts[i, j] for j in range(columns)], 1) for i in range(rows)], 1)


def numpy_convolve(x, kernel, bias, stride, padding):
    k = kernel.shape[0]
    x = padded(x, k, stride, 0.0) if padding == "SAME" else x
    return assemble(
        (at, np.einsum("bhwc,hwcf->bf", pixels, kernel) + bias)
        for at, pixels in windows(x, k, stride)
    )


def numpy_max_pool(x):
    pixels = windows(padded(x, 3, 2, -np.inf), 3, 2)
    return assemble((at, part.max((1, 2))) for at, part in pixels)


def convert(form, function):
    """Convert a function of images in the form's layout to one of images [B, H, W, C]."""
    return jax.jit(lambda x, *args: form.leave(function(form.enter(x, False), *args)))


SIZES = [
    # kernel, stride, padding, channels, features, image
    (8, 4, "VALID", 4, 32, (20, 24)),  # Nature's three, the second with a row to spare
    (4, 2, "VALID", 32, 64, (9, 8)),
    (3, 1, "VALID", 8, 8, (5, 7)),
    (3, 1, "SAME", 4, 16, (6, 5)),  # Impala's, as patches and as sums of rows
    (3, 1, "SAME", 8, 8, (6, 5)),
    (3, 2, "VALID", 3, 4, (9, 12)),  # no multiple of the stride
    (3, 2, "SAME", 3, 4, (7, 8)),
    (5, 3, "SAME", 2, 3, (11, 10)),
    (1, 1, "VALID", 3, 5, (4, 3)),
    (1, 2, "VALID", 3, 5, (4, 3)),
]


@pytest.mark.parametrize(("k", "stride", "padding", "channels", "features", "image"), SIZES)
def test_a_convolution_equals_loops_and_lax_in_numbers_and_gradients(
    k, stride, padding, channels, features, image, key
):
    keys = jax.random.split(key, 3)
    x = jax.random.normal(keys[0], (2, *image, channels))
    kernel = jax.random.normal(keys[1], (k, k, channels, features))
    bias = jax.random.normal(keys[2], (features,))
    expected = numpy_convolve(*map(np.asarray, (x, kernel, bias)), stride, padding)
    gradients = []
    for form in FORMS.values():
        convolve = convert(form, lambda *args, form=form: form.convolve(*args, stride, padding))

        def loss(*args, convolve=convolve):
            out = convolve(*args)
            return jnp.sum(jnp.sin(out)), out

        gradient, out = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(x, kernel, bias)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
        gradients.append(gradient)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), *gradients)


@pytest.mark.parametrize("image", [(8, 8), (7, 9), (4, 5), (2, 1), (1, 1)])
def test_a_max_pool_equals_loops_and_lax_in_numbers_and_gradients(image, key):
    x = jax.random.normal(key, (2, *image, 3))
    gradients = []
    for form in FORMS.values():
        pool = convert(form, form.max_pool)

        def loss(x, pool=pool):
            out = pool(x)
            return jnp.sum(jnp.sin(out)), out

        gradient, out = jax.jit(jax.grad(loss, has_aux=True))(x)
        np.testing.assert_array_equal(out, numpy_max_pool(np.asarray(x)))
        gradients.append(gradient)
    np.testing.assert_allclose(*gradients, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_tied_pixels_share_the_gradient_of_a_max_pool(form):
    pool = convert(form, form.max_pool)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(pool(x))))(jnp.ones((1, 6, 6, 2)))
    assert np.all(np.isfinite(gradient))
    np.testing.assert_allclose(gradient.sum((1, 2)), 9.0)  # 3 x 3 windows


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_both_layouts_accept_byte_images(form, key):
    x = jax.random.randint(key, (3, 6, 5, 2), 0, 256, jnp.int32).astype(jnp.uint8)
    for images, first in [(x, False), (jnp.moveaxis(x, -1, 1), True)]:
        inside = form.enter(images, first)
        assert inside.dtype == jnp.uint8
        assert inside.shape[form.channel_axis] == 2
        np.testing.assert_array_equal(form.leave(inside), x)


def test_vmapped_convolutions_equal_single_ones(key):
    form = convolutions.BATCH_LAST
    convolve = convert(form, lambda *args: form.convolve(*args, 2, "VALID"))
    kernels = jax.random.normal(key, (3, 4, 4, 2, 5))
    x, bias = jax.random.normal(key, (3, 2, 9, 10, 2)), jnp.zeros((3, 5))
    together = jax.vmap(convolve)(x, kernels, bias)
    for i in range(3):
        alone = convolve(x[i], kernels[i], bias[i])
        np.testing.assert_allclose(together[i], alone, rtol=1e-5, atol=1e-5)
