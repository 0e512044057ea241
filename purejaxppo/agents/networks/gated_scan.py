"""Gated recurrent units over time in few kernels, for GPUs and TPUs.

A step launches one matrix product and few elementwise kernels, forwards and backwards. Everything
that does not depend on the other steps is computed for all T steps in one kernel: the gates
(computed again from the stored carries), their derivatives, and the gradient of the weights. The
results equal those of a plain loop up to rounding.

A cell is a function (carry, from_h, from_x, params) -> carry. A carry is a tuple of arrays [...,
H], the last one of which is h. from_h and from_x are the contributions of h and x to G gates, [...,
G H]. params are arrays [H]. Each unit of the result depends on the same unit of the arguments only.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents.decisions import expand
from purejaxppo.aliases import Array, Tree

UNROLLED = 8
"""Number of steps per iteration of a loop. Each iteration stores its rows together."""

Arrays = tuple[Array, ...]
Cell = Callable[[Arrays, Array, Array, Tree], Arrays]


class SequenceInputs(NamedTuple):
    """Inputs of a sequence."""

    kernel: Array  # [H, G H], multiplies h
    params: Tree  # parameters of the cell
    carry: Arrays  # [N, H] each, before the first step
    inputs: Array  # [T, N, G H] contributions of x, with biases
    start: Array  # [T, N] bool: the carry is reset to 0


class Slopes(NamedTuple):
    """Derivatives of one array of a carry, per unit."""

    carry: Arrays  # [T, N, H] with respect to each array of the previous carry
    from_h: Array  # [T, N, G H] with respect to the contributions of h


def gru(carry: Arrays, from_h: Array, from_x: Array, bias: Array) -> Arrays:
    """Compute a step of a gated recurrent unit with gates r, z and n; see `cells.GRU`.

    Args:
        carry: (h [..., H],).
        from_h: contributions of h to the gates [..., 3 H].
        from_x: contributions of x [..., 3 H].
        bias: bias of n's contribution of h, [H].
    """
    (h,) = carry
    (r, z, n), (rh, zh, nh) = jnp.split(from_x, 3, -1), jnp.split(from_h, 3, -1)
    r, z = jax.nn.sigmoid(r + rh), jax.nn.sigmoid(z + zh)
    n = jnp.tanh(n + r * (nh + bias))
    return ((1.0 - z) * n + z * h,)


def lstm(carry: Arrays, from_h: Array, from_x: Array, none: Tree) -> Arrays:
    """Compute a step of a long short-term memory with gates i, f, g and o; see `cells.LSTM`.

    Args:
        carry: (c, h), [..., H] each.
        from_h: contributions of h to the gates [..., 4 H].
        from_x: contributions of x [..., 4 H].
        none: ().
    """
    del none
    i, f, g, o = jnp.split(from_x + from_h, 4, -1)
    c = jax.nn.sigmoid(f) * carry[0] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


def reset_where(start: Array, xs: Tree) -> Tree:
    """Return arrays [*B, ...] with zeros where `start`, bool [*B]."""
    return jax.tree.map(lambda x: jnp.where(expand(start, x), 0.0, x), xs)


def _run(cell: Cell, precision: Any, rows: SequenceInputs) -> tuple[Arrays, Arrays]:
    """Return the carry after the last step, and the carries after all steps, [T, N, H] each."""

    def step(carry: Arrays, row: tuple[Array, Array]) -> tuple[Arrays, Arrays]:
        from_x, start = row
        from_h = reset_where(start, jnp.matmul(carry[-1], rows.kernel, precision=precision))
        carry = cell(reset_where(start, carry), from_h, from_x, rows.params)
        return carry, carry

    return jax.lax.scan(step, rows.carry, (rows.inputs, rows.start), unroll=UNROLLED)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def scan(cell: Cell, precision: Any, rows: SequenceInputs) -> tuple[Arrays, Array]:
    """Return the carry after the last step, and h after all steps [T, N, H].

    Args:
        cell: see the module's docstring.
        precision: precision of all matrix products.
        rows: inputs of the sequence.
    """
    end, carries = _run(cell, precision, rows)
    return end, carries[-1]


def _forward(
    cell: Cell, precision: Any, rows: SequenceInputs
) -> tuple[tuple[Arrays, Array], tuple[SequenceInputs, Arrays]]:
    end, carries = _run(cell, precision, rows)
    return (end, carries[-1]), (rows, carries)


def _slopes(pull: Callable[[Arrays], tuple[Any, ...]], carries: Arrays) -> list[Slopes]:
    """Return the derivatives of each array of a carry. They are per unit: units are independent."""
    slopes = []
    for i in range(len(carries)):
        cotangent = tuple(
            (jnp.ones_like if i == j else jnp.zeros_like)(x) for j, x in enumerate(carries)
        )
        by_carry, by_from_h, *_ = pull(cotangent)
        slopes.append(Slopes(by_carry, by_from_h))
    return slopes


def _backward(
    cell: Cell,
    precision: Any,
    stored: tuple[SequenceInputs, Arrays],
    gradients: tuple[Arrays, Array],
) -> tuple[SequenceInputs]:
    """Return the gradient of the rows of `scan`, from the gradients of its results."""
    rows, carries = stored
    d_end, d_outputs = gradients
    product = partial(jnp.matmul, precision=precision)
    before = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs[:-1]]), rows.carry, carries)
    before = reset_where(rows.start, before)
    from_h = product(before[-1], rows.kernel)
    _, pull = jax.vjp(cell, before, from_h, rows.inputs, rows.params)
    num_gates = rows.kernel.shape[1] // rows.kernel.shape[0]

    def step(later: Arrays, row: tuple[Array, list[Slopes], Array]) -> tuple[Arrays, Arrays]:
        gradient, slopes, start = row
        totals = (*later[:-1], later[-1] + gradient)
        pairs = list(zip(totals, slopes, strict=True))
        d_gates = sum(jnp.tile(total, num_gates) * slope.from_h for total, slope in pairs)
        earlier = [sum(t * s.carry[i] for t, s in pairs) for i in range(len(later))]
        earlier[-1] += product(d_gates, rows.kernel.T)
        return reset_where(start, tuple(earlier)), totals

    row = d_outputs, _slopes(pull, carries), rows.start
    first, totals = jax.lax.scan(step, d_end, row, reverse=True, unroll=UNROLLED)
    _, d_from_h, d_inputs, d_params = pull(totals)
    d_kernel = jnp.einsum("tnh,tng->hg", before[-1], d_from_h, precision=precision)
    d_start: Any = np.zeros(rows.start.shape, jax.dtypes.float0)
    return (SequenceInputs(d_kernel, d_params, first, d_inputs, d_start),)


scan.defvjp(_forward, _backward)
