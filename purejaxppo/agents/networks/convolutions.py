"""Convolution and pooling of images in two forms with the same results, chosen by platform.

`LAX` is the convolution of the platform, for GPUs and TPUs. `BATCH_LAST` is for CPUs, where the
gradient of `lax.conv` inside of `lax.scan` is many times slower than matrix products. Its layout is
[C, H, W, B]. With the batch as the last axis, shifts and strides move whole rows of B numbers,
which CPUs do with vector instructions. The gradient of a kernel is a product of two matrices whose
long axis is contiguous.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.aliases import Array
from purejaxppo.parallel import platforms


class ConvolutionForm(NamedTuple):
    """One way to compute convolutions. x has its own layout between `enter` and `leave`."""

    channel_axis: int
    """Axis of the channels in this layout."""
    enter: Callable[[Array, bool], Array]
    """(images [B, H, W, C] or [B, C, H, W], channels_first) -> x, with the same dtype."""
    convolve: Callable[[Array, Array, Array, int, str], Array]
    """(x, kernel [k, k, C, F], bias [F], stride, padding) -> x with F channels."""
    max_pool: Callable[[Array], Array]
    """x -> x, maxima of 3 x 3 pixels around every second pixel, padded as `SAME`."""
    leave: Callable[[Array], Array]
    """x -> images [B, H, W, C]."""


_CHOSEN: ContextVar[ConvolutionForm | None] = ContextVar("form", default=None)


def default() -> ConvolutionForm:
    """Return the form that `using` selected, or else the fast one for this platform."""
    return _CHOSEN.get() or (LAX if platforms.is_accelerated() else BATCH_LAST)


@contextlib.contextmanager
def using(form: ConvolutionForm) -> Iterator[None]:
    """Use this form for all code traced in this context, on any platform."""
    token = _CHOSEN.set(form)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def same_padding(size: int, window: int, stride: int) -> tuple[int, int]:
    """Return the padding before and after, for ceil(size / stride) windows."""
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def _lax_enter(x: Array, channels_first: bool) -> Array:
    return jnp.moveaxis(x, 1, -1) if channels_first else x


def _lax_convolve(x: Array, kernel: Array, bias: Array, stride: int, padding: str) -> Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=numbers
    )
    return y + bias


def _lax_max_pool(x: Array) -> Array:
    windows, strides = (1, 3, 3, 1), (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, windows, strides, "SAME")


def _enter(x: Array, channels_first: bool) -> Array:
    """Transpose [B, H, W, C] or [B, C, H, W] to [C, H, W, B].

    The loop over image rows prevents XLA from fusing the transposition into each of its users.
    These would then read single bytes from the whole batch repeatedly.
    """
    axis = 2 if channels_first else 1

    def row(i: Array) -> Array:
        return jnp.moveaxis(jax.lax.dynamic_index_in_dim(x, i, axis, keepdims=False), 0, -1)

    rows = jax.lax.map(row, jnp.arange(x.shape[axis]))
    return jnp.moveaxis(rows, 1 if channels_first else 2, 0)


def _blocks(x: Array, kernel: Array, stride: int) -> tuple[Array, Array]:
    """Convert a strided convolution to one of stride 1 over blocks of stride x stride pixels.

    Returns:
        x [stride * stride * C, H', W', B], and the kernel [m, m, stride * stride * C, F], padded
        with zeros to m x m blocks.
    """
    channels, height, width, batch = x.shape
    k, s = kernel.shape[0], stride
    m = -(-k // s)
    rows, columns = (height - k) // s + m, (width - k) // s + m
    fill = (0, m * s - k)
    x = jnp.pad(x, ((0, 0), fill, fill, (0, 0)))[:, : rows * s, : columns * s]
    x = x.reshape(channels, rows, s, columns, s, batch).transpose(2, 4, 0, 1, 3, 5)
    kernel = jnp.pad(kernel, (fill, fill, (0, 0), (0, 0)))
    kernel = kernel.reshape(m, s, m, s, channels, -1).transpose(0, 2, 1, 3, 4, 5)
    x = x.reshape(s * s * channels, rows, columns, batch)
    return x, kernel.reshape(m, m, s * s * channels, -1)


def _convolve(x: Array, kernel: Array, bias: Array, stride: int, padding: str) -> Array:
    """Compute a convolution as one matrix product.

    Patches copy the input k * k times. If it takes less memory, only columns are gathered before
    the product and rows are summed after it: k copies of the input and k of the output.
    """
    if padding == "SAME":
        pads = [same_padding(size, kernel.shape[0], stride) for size in x.shape[1:3]]
        x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    if stride > 1:
        x, kernel = _blocks(x, kernel, stride)
    k, _, channels, features = kernel.shape
    _, height, width, batch = x.shape
    rows, columns = height - k + 1, width - k + 1
    shifted = [x[:, :, j : j + columns] for j in range(k)]
    if channels + features < k * channels:
        weights = kernel.transpose(0, 3, 1, 2).reshape(k * features, k * channels)
        products = weights @ jnp.concatenate(shifted).reshape(k * channels, -1)
        products = products.reshape(k, features, height, columns, batch)
        y = sum(products[i, :, i : i + rows] for i in range(k))
    else:
        patches = jnp.concatenate([part[:, i : i + rows] for i in range(k) for part in shifted])
        y = kernel.reshape(-1, features).T @ patches.reshape(k * k * channels, -1)
        y = y.reshape(features, rows, columns, batch)
    return y + bias[:, None, None, None]


def _max_pool(x: Array) -> Array:
    """Return maxima of shifted slices. Equal largest pixels share the gradient."""
    pads = [same_padding(size, 3, 2) for size in x.shape[1:3]]
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    for axis in (1, 2):
        count = (x.shape[axis] - 1) // 2
        a, b, c = (
            jax.lax.slice_in_dim(x, i, i + 2 * count - 1, stride=2, axis=axis) for i in range(3)
        )
        x = jnp.maximum(jnp.maximum(a, b), c)
    return x


LAX = ConvolutionForm(-1, _lax_enter, _lax_convolve, _lax_max_pool, lambda x: x)
BATCH_LAST = ConvolutionForm(0, _enter, _convolve, _max_pool, lambda x: x.transpose(3, 1, 2, 0))
