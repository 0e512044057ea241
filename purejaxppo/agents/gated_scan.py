"""A gated recurrent unit over time in few kernels, for accelerators.

A step launches one matrix product and one elementwise kernel, forwards and backwards. Whatever
does not depend on the step after it is computed for all of T at once: the gates, again, from the
stored outputs, and the weights' gradient, one product. The numbers are those of `cells.GRU` up to
rounding.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import Array

UNROLLED = 8
"""Steps of a loop's turn; a turn stores its rows at once."""


class Rows(NamedTuple):
    """What a sequence is computed from; gates r, z and n, in this order."""

    kernel: Array  # [H, 3H] of h
    bias: Array  # [H] of n's term of h
    carry: Array  # [N, H] h before the first step
    inputs: Array  # [T, N, 3H] the terms of x, with their biases
    start: Array  # [T, N] bool; h before a start is 0


class Gates(NamedTuple):
    """Gates of a step, and n's term of h; [..., H] each."""

    r: Array
    z: Array
    n: Array
    term: Array


def gates(from_h: Array, from_x: Array, bias: Array) -> Gates:
    """Gates from the terms of h and x, [..., 3H] each."""
    xs, hs = jnp.split(from_x, 3, -1), jnp.split(from_h, 3, -1)
    r, z = (jax.nn.sigmoid(x + h) for x, h in zip(xs[:2], hs[:2], strict=True))
    term = hs[2] + bias
    return Gates(r, z, jnp.tanh(xs[2] + r * term), term)


def _kept(start: Array, x: Array) -> Array:
    """Numbers [..., N, F] with zeros where `start` [..., N]."""
    return jnp.where(start[..., None], 0.0, x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def scan(
    precision: Any, kernel: Array, bias: Array, carry: Array, inputs: Array, start: Array
) -> Array:
    """The outputs h [T, N, H] of all steps; see `Rows`. `precision` is that of all products."""

    def step(h: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        from_x, start = row
        gate = gates(_kept(start, jnp.matmul(h, kernel, precision=precision)), from_x, bias)
        h = (1.0 - gate.z) * gate.n + gate.z * _kept(start, h)
        return h, h

    return jax.lax.scan(step, carry, (inputs, start), unroll=UNROLLED)[1]


def _forward(precision: Any, *args: Array) -> tuple[Array, tuple[Rows, Array]]:
    outputs = scan(precision, *args)
    return outputs, (Rows(*args), outputs)


def _backward(precision: Any, stored: tuple[Rows, Array], gradient: Array) -> tuple[Any, ...]:
    """Gradients of the arguments of `scan`, from that of its outputs [T, N, H]."""
    rows, outputs = stored
    product = partial(jnp.matmul, precision=precision)
    before = _kept(rows.start, jnp.concatenate([rows.carry[None], outputs[:-1]]))
    gate = gates(product(before, rows.kernel), rows.inputs, rows.bias)
    of_n = (1.0 - gate.z) * (1.0 - jnp.square(gate.n))
    of_r = of_n * gate.term * gate.r * (1.0 - gate.r)
    of_z = (before - gate.n) * gate.z * (1.0 - gate.z)
    by_terms = jnp.concatenate([of_r, of_z, of_n * gate.r], -1)  # h' by the terms of h

    def step(later: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        gradient, z, by_terms, start = row
        total = gradient + later
        earlier = product(jnp.tile(total, 3) * by_terms, rows.kernel.T)
        return _kept(start, total * z + earlier), total

    first, totals = jax.lax.scan(
        step,
        jnp.zeros_like(rows.carry),
        (gradient, gate.z, by_terms, rows.start),
        reverse=True,
        unroll=UNROLLED,
    )
    of_terms = jnp.tile(totals, 3) * by_terms
    return (
        jnp.einsum("tnh,tng->hg", before, of_terms, precision=precision),
        jnp.sum(totals * of_n * gate.r, (0, 1)),
        first,
        jnp.concatenate([totals * x for x in (of_r, of_z, of_n)], -1),
        np.zeros(rows.start.shape, jax.dtypes.float0),
    )


scan.defvjp(_forward, _backward)
