"""Recurrent memories: they read a sequence of steps at once, and are reset where an episode starts.

A memory is a module (carry [N, ...], x [T, N, F], start bool [T, N]) -> (carry, y [T, N, H]), and
its initial carry is zeros. Where `start`, the carry is reset. Terms that do not depend on the
step before are computed for all of T in one product. One step (T = 1), as when a policy acts,
needs no loop.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from purejaxppo.agents import gru_scan, recurrences
from purejaxppo.agents.encoders import Initializer, orthogonal
from purejaxppo.aliases import Array, Carry, Key, Tree
from purejaxppo.parallel import platforms


def fresh(start: Array, carry: Carry) -> Carry:
    """The carry [N, ...] with zeros where `start` [N]."""
    return jax.tree.map(
        lambda x: jnp.where(start.reshape(start.shape + (1,) * (x.ndim - 1)), 0.0, x), carry
    )


def gate_biases(span: int, factors: tuple[float, ...]) -> Initializer:
    """Initial biases [k H] of k gates: each of H units forgets after 1 to `span` steps of its own.

    A gate with bias b retains σ(b) of its content, and with b = log(s - 1) some of it for about s
    steps. Tallec & Ollivier 2018, https://arxiv.org/abs/1804.11188, eq. 15.

    Args:
        span: the largest number of steps; 2 or less for biases of 0.
        factors: multipliers of b for each of the k gates.
    """

    def init(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        steps = jax.random.uniform(key, (shape[0] // len(factors),), dtype, 1.0, max(span - 1, 1))
        return jnp.concatenate([factor * jnp.log(steps) for factor in factors])

    return init


def over_time(
    step: Callable[[Carry, Tree], tuple[Carry, Array]], carry: Carry, rows: Tree
) -> tuple[Carry, Array]:
    """`jax.lax.scan(step, carry, rows)`, without a loop where there is one row."""
    if jax.tree.leaves(rows)[0].shape[0] > 1:
        unroll = gru_scan.UNROLLED if platforms.is_accelerated() else 1
        return jax.lax.scan(step, carry, rows, unroll=unroll)
    carry, out = step(carry, jax.tree.map(lambda x: x[0], rows))
    return carry, jax.tree.map(lambda x: x[None], out)


class Memory(nn.Module):
    """Base class of memories: their width, their initial time span, and the carry h."""

    size: int
    span: int = 0

    @staticmethod
    def initial_carry(batch: tuple[int, ...], size: int) -> Carry:
        """h, zeros [*batch, size]."""
        return jnp.zeros((*batch, size))


class GRU(Memory):
    """Gated recurrent unit.

        r, z = σ(W x + U h + b)    n = tanh(Wₙ x + bₙ + r (Uₙ h + cₙ))    h' = (1 - z) n + z h

    Cho et al. 2014, https://arxiv.org/abs/1406.1078, in the form of Chung et al. 2014,
    https://arxiv.org/abs/1412.3555, with the reset gate after the product, as in cuDNN and flax.
    """

    @nn.compact
    def __call__(self, carry: Carry, x: Array, start: Array) -> tuple[Carry, Array]:
        """See the module's docstring; the carry is h [N, H]."""
        biases = gate_biases(self.span, (0.0, 1.0, 0.0))
        inputs = nn.Dense(3 * self.size, bias_init=biases, name="in")(x)
        kernel = self.param("recurrent", stacked_orthogonal(3), (self.size, 3 * self.size))
        bias = self.param("recurrent_bias", nn.initializers.zeros, (self.size,))
        if platforms.is_accelerated() and len(start) > 1:
            config: Any = jax.config  # named here, since the gradient is traced later
            precision = config.jax_default_matmul_precision
            outputs = gru_scan.scan(precision, kernel, bias, carry, inputs, start)
            return outputs[-1], outputs

        def step(h: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            x, start = row
            h = fresh(start, h)
            from_x, from_h = jnp.split(x, 3, -1), jnp.split(h @ kernel, 3, -1)
            r = nn.sigmoid(from_x[0] + from_h[0])
            z = nn.sigmoid(from_x[1] + from_h[1])
            n = jnp.tanh(from_x[2] + r * (from_h[2] + bias))
            h = (1.0 - z) * n + z * h
            return h, h

        return over_time(step, carry, (inputs, start))


class LSTM(Memory):
    """Long short-term memory.

        i, f, o = σ(W x + U h + b)    g = tanh(W_g x + U_g h + b_g)
        c' = f c + i g    h' = o tanh c'

    Hochreiter & Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735, with the forget gate
    of Gers et al. 2000.
    """

    @staticmethod
    def initial_carry(batch: tuple[int, ...], size: int) -> Carry:
        """(c, h), zeros [*batch, size] each."""
        return jnp.zeros((*batch, size)), jnp.zeros((*batch, size))

    @nn.compact
    def __call__(self, carry: Carry, x: Array, start: Array) -> tuple[Carry, Array]:
        """See the module's docstring; the carry is (c, h), each [N, H]."""
        bias = gate_biases(self.span, (-1.0, 1.0, 0.0, 0.0))
        inputs = nn.Dense(4 * self.size, bias_init=bias, name="in")(x)
        kernel = self.param("recurrent", stacked_orthogonal(4), (self.size, 4 * self.size))

        def step(carry: Carry, row: tuple[Array, Array]) -> tuple[Carry, Array]:
            x, start = row
            c, h = fresh(start, carry)
            i, f, g, o = jnp.split(x + h @ kernel, 4, -1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return (c, h), h

        return over_time(step, carry, (inputs, start))


class MinGRU(Memory):
    """A GRU whose gates depend on the input alone, so that all of T is one parallel scan.

        z = σ(W_z x + b_z)    h' = (1 - z) h + z (Wₕ x + bₕ)

    Each step is an affine map, and affine maps compose: O(log T) steps instead of T. A start is the
    map that drops h. Feng et al. 2024, https://arxiv.org/abs/2410.01201, section 3.1; their form in
    logarithms is for half precision.
    """

    @nn.compact
    def __call__(self, carry: Carry, x: Array, start: Array) -> tuple[Carry, Array]:
        """See the module's docstring; the carry is h [N, H]."""
        bias = gate_biases(self.span, (-1.0, 0.0))
        inputs = nn.Dense(2 * self.size, bias_init=bias, name="in")(x)
        gate, candidate = jnp.split(inputs, 2, -1)
        z = nn.sigmoid(gate)
        keep = jnp.where(start[..., None], 0.0, 1.0 - z)
        keep, new = jax.lax.associative_scan(recurrences.compose, (keep, z * candidate))
        h = keep * carry + new
        return h[-1], h


def stacked_orthogonal(parts: int) -> Initializer:
    """Orthogonal square matrices side by side: [H, parts * H]."""
    one = orthogonal(1.0)

    def init(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        size = shape[0]
        keys = jax.random.split(key, parts)
        return jnp.concatenate([one(key, (size, size), dtype) for key in keys], axis=1)

    return init


CELLS = {"gru": GRU, "lstm": LSTM, "mingru": MinGRU}
