"""Products of dense layers, whose gradients a CPU computes without strides.

XLA's fast products on a CPU take a left factor by rows. The gradient of a weight, xᵀ dy, has its
left factor by columns, and takes up to three times as long unless x is transposed before; only
large weights are worth less than that transpose costs.
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
"""Elements of a weight up to which a transpose saves time: 128 x 128."""

Dimensions = Any
"""Dimension numbers of `jax.lax.dot_general`."""


def dot_general(
    x: Array, weight: Array, dimension_numbers: Dimensions, precision: Any = None
) -> Array:
    """`jax.lax.dot_general` of a dense layer, x [..., I] and weight [I, O] -> [..., O].

    To be handed to `flax.linen.Dense`. Accelerators have products of either layout.
    """
    as_it_is = weight.shape[-1] == 1 or weight.size > LARGEST_WEIGHT  # a vector's product is fast
    if platforms.is_accelerated() or as_it_is:
        return lax.dot_general(x, weight, dimension_numbers, precision)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return _product(rows, weight, precision).reshape(*x.shape[:-1], weight.shape[-1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _product(x: Array, weight: Array, precision: Any) -> Array:
    """[B, I] x [I, O] -> [B, O]."""
    return jnp.matmul(x, weight, precision=precision)


@functools.partial(_product.defjvp, symbolic_zeros=True)
def _product_jvp(precision: Any, primals: Any, tangents: Any) -> tuple[Array, Array]:
    """The sum dx W + x dW, with x in the layout with which the transpose of x dW is fast."""
    (x, weight), (dx, d_weight) = primals, tangents
    y = jnp.matmul(x, weight, precision=precision)
    parts = []
    if not isinstance(dx, jax.custom_derivatives.SymbolicZero):
        parts.append(jnp.matmul(dx, weight, precision=precision))
    if not isinstance(d_weight, jax.custom_derivatives.SymbolicZero):
        # The barrier keeps the compiler from undoing the transpose.
        by_columns = lax.optimization_barrier(x.T)
        parts.append(jnp.matmul(by_columns.T, d_weight, precision=precision))
    return y, sum(parts[1:], parts[0]) if parts else jnp.zeros_like(y)
