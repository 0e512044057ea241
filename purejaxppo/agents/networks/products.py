"""Matrix products of dense layers with fast gradients on CPUs.

XLA's fast matrix products on a CPU need a row-major left factor. In the gradient of a weight, xᵀ
dy, the left factor is column-major. The product then takes up to three times as long, unless x is
transposed first. For large weights, the transpose costs more than it saves.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from purejaxppo.aliases import Array
from purejaxppo.parallel import platforms

LARGEST_WEIGHT = 2**14
"""Largest size of a weight for which a transpose saves time: 128 x 128 elements."""

Dimensions = Any
"""Dimension numbers of `jax.lax.dot_general`."""


def dot_general(
    x: Array, weight: Array, dimension_numbers: Dimensions, precision: Any = None
) -> Array:
    """Compute `jax.lax.dot_general` of a dense layer: x [..., I], weight [I, O] -> [..., O].

    It is an argument of `flax.linen.Dense`. GPUs and TPUs multiply both layouts equally fast.

    Args:
        x: inputs [..., I].
        weight: [I, O].
        dimension_numbers: contracted and batch axes, as in `lax.dot_general`.
        precision: precision, as in `lax.dot_general`.
    """
    is_vector = weight.shape[-1] == 1  # such products are fast
    if platforms.is_accelerated() or is_vector or weight.size > LARGEST_WEIGHT:
        return lax.dot_general(x, weight, dimension_numbers, precision)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return _product(rows, weight, precision).reshape(*x.shape[:-1], weight.shape[-1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _product(x: Array, weight: Array, precision: Any) -> Array:
    """Multiply [B, I] x [I, O] -> [B, O]."""
    return jnp.matmul(x, weight, precision=precision)


@functools.partial(_product.defjvp, symbolic_zeros=True)
def _product_jvp(precision: Any, primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Return dx W + x dW, with a layout of x for which the transpose of x dW is fast."""
    (x, weight), (dx, d_weight) = primals, tangents
    y = jnp.matmul(x, weight, precision=precision)
    parts = []
    if not isinstance(dx, jax.custom_derivatives.SymbolicZero):
        parts.append(jnp.matmul(dx, weight, precision=precision))
    if not isinstance(d_weight, jax.custom_derivatives.SymbolicZero):
        # The barrier prevents the compiler from removing the transpose.
        by_columns = lax.optimization_barrier(x.T)
        parts.append(jnp.matmul(by_columns.T, d_weight, precision=precision))
    return y, sum(parts[1:], parts[0]) if parts else jnp.zeros_like(y)
