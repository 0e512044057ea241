"""Linear recurrences over time: step by step on a CPU, in O(log T) stages on GPUs and TPUs.

On GPUs and TPUs, a loop of T steps would launch a few kernels per step. Affine maps compose: stages
that combine maps 1, 2, 4, ... steps apart give the same results up to rounding (Hillis & Steele
1986, https://doi.org/10.1145/7902.7903).
"""

import chex
import jax
import jax.numpy as jnp

from purejaxppo.aliases import Array
from purejaxppo.parallel import platforms

Affine = tuple[Array, Array]
"""Maps x -> a x + b, as (a, b), each [T, ...]."""


def compose(first: Affine, second: Affine) -> Affine:
    """Return the composition x -> a₂ (a₁ x + b₁) + b₂ of two maps (a, b)."""
    (a1, b1), (a2, b2) = first, second
    return a2 * a1, a2 * b1 + b2


def backwards(b: Array, a: Array) -> Array:
    """Solve xₜ = bₜ + aₜ xₜ₊₁ backwards in time, with x_T = 0.

    Args:
        b: float [T, ...].
        a: float [T, ...].

    Returns:
        x, float [T, ...].
    """
    chex.assert_equal_shape([a, b])
    if not platforms.is_accelerated():
        return _in_steps(b, a, jnp.zeros_like(b[0]), reverse=True)
    stride = 1
    while stride < len(b):
        later = [jnp.concatenate([x[stride:], jnp.zeros_like(x[:stride])]) for x in (a, b)]
        a, b = compose((later[0], later[1]), (a, b))
        stride *= 2
    return b


def forwards(b: Array, a: Array, first: Array) -> Array:
    """Solve xₜ = bₜ + aₜ xₜ₋₁ forwards in time.

    Args:
        b: float [T, ...].
        a: float [T, ...].
        first: x before the first row, float [...].

    Returns:
        x, float [T, ...].
    """
    chex.assert_equal_shape([a, b])
    chex.assert_shape(first, b.shape[1:])
    if not platforms.is_accelerated():
        return _in_steps(b, a, first)
    b = b.at[0].add(a[0] * first)
    return backwards(b[::-1], a[::-1])[::-1]


def _in_steps(b: Array, a: Array, first: Array, *, reverse: bool = False) -> Array:
    def step(before: Array, row: Affine) -> tuple[Array, Array]:
        a, b = row
        after = b + a * before
        return after, after

    return jax.lax.scan(step, first, (a, b), reverse=reverse)[1]
