"""Recurrent memories: they read a sequence of steps at once, and are reset where an episode starts.

A memory is a module (carry [N, ...], x [T, N, F], start bool [T, N]) -> (carry, y [T, N, H]), and
its initial carry is zeros. Where `start`, the carry is reset; where `absent`, if that is given, it
is held. Terms that do not depend on the
step before are computed for all of T in one product. One step (T = 1), as when a policy acts,
needs no loop.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from purejaxppo.agents import recurrences
from purejaxppo.agents.decisions import hold
from purejaxppo.agents.networks import gated_scan, products
from purejaxppo.agents.networks.encoders import Initializer, orthogonal
from purejaxppo.aliases import Array, Carry, Key
from purejaxppo.parallel import platforms


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


def in_layer(features: int, bias_init: Initializer) -> nn.Dense:
    """The product of a memory's inputs, for all steps at once."""
    return nn.Dense(features, bias_init=bias_init, dot_general=products.dot_general, name="in")


def over_time(
    cell: gated_scan.Cell,
    rows: gated_scan.SequenceInputs,
    absent: Array | None,
) -> tuple[gated_scan.Arrays, Array]:
    """(carry, h [T, N, H]) of a gated unit; see `gated_scan`. One row needs no loop."""
    accelerated, length = platforms.is_accelerated(), len(rows.start)
    if accelerated and length > 1 and absent is None:
        config: Any = jax.config  # named here, since the gradient is traced later
        return gated_scan.scan(cell, config.jax_default_matmul_precision, rows)

    def step(
        before: gated_scan.Arrays, row: tuple[Array, Array, Array | None]
    ) -> tuple[gated_scan.Arrays, Array]:
        x, start, absent = row
        carry = gated_scan.fresh(start, before)
        after = hold(absent, before, cell(carry, carry[-1] @ rows.kernel, x, rows.params))
        return after, after[-1]

    along = rows.inputs, rows.start, absent
    if length > 1:
        unroll = gated_scan.UNROLLED if accelerated else 1
        return jax.lax.scan(step, rows.carry, along, unroll=unroll)
    carry, out = step(rows.carry, jax.tree.map(lambda x: x[0], along))
    return carry, out[None]


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
    def __call__(
        self, carry: Carry, x: Array, start: Array, absent: Array | None = None
    ) -> tuple[Carry, Array]:
        """See the module's docstring; the carry is h [N, H]."""
        biases = gate_biases(self.span, (0.0, 1.0, 0.0))
        inputs = in_layer(3 * self.size, biases)(x)
        kernel = self.param("recurrent", stacked_orthogonal(3), (self.size, 3 * self.size))
        bias = self.param("recurrent_bias", nn.initializers.zeros, (self.size,))
        rows = gated_scan.SequenceInputs(kernel, bias, (carry,), inputs, start)
        (end,), outputs = over_time(gated_scan.gru, rows, absent)
        return end, outputs


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
    def __call__(
        self, carry: Carry, x: Array, start: Array, absent: Array | None = None
    ) -> tuple[Carry, Array]:
        """See the module's docstring; the carry is (c, h), each [N, H]."""
        bias = gate_biases(self.span, (-1.0, 1.0, 0.0, 0.0))
        inputs = in_layer(4 * self.size, bias)(x)
        kernel = self.param("recurrent", stacked_orthogonal(4), (self.size, 4 * self.size))

        rows = gated_scan.SequenceInputs(kernel, (), carry, inputs, start)
        return over_time(gated_scan.lstm, rows, absent)


class MinGRU(Memory):
    """A GRU whose gates depend on the input alone, so that all of T is one parallel scan.

        z = σ(W_z x + b_z)    h' = (1 - z) h + z (Wₕ x + bₕ)

    Each step is an affine map, and affine maps compose: O(log T) steps instead of T. A start is the
    map that drops h. Feng et al. 2024, https://arxiv.org/abs/2410.01201, section 3.1; their form in
    logarithms is for half precision.
    """

    @nn.compact
    def __call__(
        self, carry: Carry, x: Array, start: Array, absent: Array | None = None
    ) -> tuple[Carry, Array]:
        """See the module's docstring; the carry is h [N, H]."""
        bias = gate_biases(self.span, (-1.0, 0.0))
        inputs = in_layer(2 * self.size, bias)(x)
        gate, candidate = jnp.split(inputs, 2, -1)
        z = nn.sigmoid(gate)
        keep, new = jnp.where(start[..., None], 0.0, 1.0 - z), z * candidate
        if absent is not None:
            keep, new = (jnp.where(absent[..., None], x, y) for x, y in ((1.0, keep), (0.0, new)))
        keep, new = jax.lax.associative_scan(recurrences.compose, (keep, new))
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
"""By `network.rnn`."""
