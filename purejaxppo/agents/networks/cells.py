"""Recurrent cells over a sequence of steps, reset where an episode starts.

A cell is a module (carry [N, ...], x [T, N, F], start bool [T, N], absent bool [T, N] or None) ->
(carry, y [T, N, H]). Its initial carry is zeros. The carry is reset where `start` is True, and does
not change where `absent` is True. The parts that do not depend on the previous step are computed
for all T steps in one matrix product. A single step (T = 1), as when a policy acts, does not need a
loop.
"""

from functools import partial
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
from purejaxppo.config.schema import NetworkConfig
from purejaxppo.parallel import platforms


def gate_biases(span: int, factors: tuple[float, ...]) -> Initializer:
    """Return an initialiser for the biases [k H] of k gates: H units with different memory spans.

    A gate with bias b keeps σ(b) of its content per step. With b = log(s - 1) it remembers for
    about s steps. s is uniform between 2 and `span` (chrono initialisation).

    Args:
        span: largest number of steps; 2 or less for biases of 0.
        factors: factor of b for each of the k gates.

    Reference: Tallec & Ollivier 2018, https://arxiv.org/abs/1804.11188, eq. 15.
    """

    def init(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        steps = jax.random.uniform(key, (shape[0] // len(factors),), dtype, 1.0, max(span - 1, 1))
        return jnp.concatenate([factor * jnp.log(steps) for factor in factors])

    return init


def input_layer(features: int, bias_init: Initializer) -> nn.Dense:
    """Return the dense layer for the inputs of a cell, applied to all steps in one product."""
    return nn.Dense(features, bias_init=bias_init, dot_general=products.dot_general, name="in")


def run_cell(
    cell: gated_scan.Cell,
    rows: gated_scan.SequenceInputs,
    absent: Array | None,
) -> tuple[gated_scan.Arrays, Array]:
    """Run a gated cell over time: (carry, h [T, N, H]). See `gated_scan`.

    Args:
        cell: function of one step.
        rows: inputs of the sequence.
        absent: True where the carry does not change, bool [T, N]; None: nowhere.
    """
    accelerated, length = platforms.is_accelerated(), len(rows.start)
    if accelerated and length > 1 and absent is None:
        config: Any = jax.config  # read here, because the gradient is traced later
        return gated_scan.scan(cell, config.jax_default_matmul_precision, rows)

    def step(
        before: gated_scan.Arrays, row: tuple[Array, Array, Array | None]
    ) -> tuple[gated_scan.Arrays, Array]:
        x, start, absent = row
        carry = gated_scan.reset_where(start, before)
        after = hold(absent, before, cell(carry, carry[-1] @ rows.kernel, x, rows.params))
        return after, after[-1]

    along = rows.inputs, rows.start, absent
    if length > 1:
        unroll = gated_scan.UNROLLED if accelerated else 1
        return jax.lax.scan(step, rows.carry, along, unroll=unroll)
    carry, out = step(rows.carry, jax.tree.map(lambda x: x[0], along))
    return carry, out[None]


class RecurrentCell(nn.Module):
    """Base class of cells with a carry h."""

    size: int
    span: int = 0

    @nn.nowrap
    def initial_carry(self, batch: tuple[int, ...]) -> Carry:
        """Return h, zeros [*batch, size]."""
        return jnp.zeros((*batch, self.size))


class GRU(RecurrentCell):
    """Gated recurrent unit.

        r, z = σ(W x + U h + b)    n = tanh(Wₙ x + bₙ + r (Uₙ h + cₙ))    h' = (1 - z) n + z h

    Reference: Cho et al. 2014, https://arxiv.org/abs/1406.1078, eq. 5 to 8, with the reset gate
    after the product, as in cuDNN and Flax.
    """

    @nn.compact
    def __call__(
        self, carry: Carry, x: Array, start: Array, absent: Array | None = None
    ) -> tuple[Carry, Array]:
        """Run the cell, see the module's docstring. The carry is h [N, H]."""
        biases = gate_biases(self.span, (0.0, 1.0, 0.0))
        inputs = input_layer(3 * self.size, biases)(x)
        kernel = self.param("recurrent", stacked_orthogonal(3), (self.size, 3 * self.size))
        bias = self.param("recurrent_bias", nn.initializers.zeros, (self.size,))
        rows = gated_scan.SequenceInputs(kernel, bias, (carry,), inputs, start)
        (end,), outputs = run_cell(gated_scan.gru, rows, absent)
        return end, outputs


class LSTM(RecurrentCell):
    """Long short-term memory.

        i, f, o = σ(W x + U h + b)    g = tanh(W_g x + U_g h + b_g)
        c' = f c + i g    h' = o tanh c'

    Reference: Hochreiter & Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735, with the
    forget gate of Gers et al. 2000, https://doi.org/10.1162/089976600300015015.
    """

    @nn.nowrap
    def initial_carry(self, batch: tuple[int, ...]) -> Carry:
        """Return (c, h), zeros [*batch, size] each."""
        return jnp.zeros((*batch, self.size)), jnp.zeros((*batch, self.size))

    @nn.compact
    def __call__(
        self, carry: Carry, x: Array, start: Array, absent: Array | None = None
    ) -> tuple[Carry, Array]:
        """Run the cell, see the module's docstring. The carry is (c, h), each [N, H]."""
        bias = gate_biases(self.span, (-1.0, 1.0, 0.0, 0.0))
        inputs = input_layer(4 * self.size, bias)(x)
        kernel = self.param("recurrent", stacked_orthogonal(4), (self.size, 4 * self.size))

        rows = gated_scan.SequenceInputs(kernel, (), carry, inputs, start)
        return run_cell(gated_scan.lstm, rows, absent)


class MinGRU(RecurrentCell):
    """A GRU whose gates depend on the input only, computed as one parallel scan.

        z = σ(W_z x + b_z)    h' = (1 - z) h + z (Wₕ x + bₕ)

    Each step is an affine map, and affine maps compose. This takes O(log T) steps instead of T. At
    the start of an episode, the map drops h.

    Reference: Feng et al. 2024, https://arxiv.org/abs/2410.01201, section 3.1, without their
    logarithms for half precision.
    """

    @nn.compact
    def __call__(
        self, carry: Carry, x: Array, start: Array, absent: Array | None = None
    ) -> tuple[Carry, Array]:
        """Run the cell, see the module's docstring. The carry is h [N, H]."""
        bias = gate_biases(self.span, (-1.0, 0.0))
        inputs = input_layer(2 * self.size, bias)(x)
        gate, candidate = jnp.split(inputs, 2, -1)
        z = nn.sigmoid(gate)
        keep, new = jnp.where(start[..., None], 0.0, 1.0 - z), z * candidate
        if absent is not None:
            keep, new = (jnp.where(absent[..., None], x, y) for x, y in ((1.0, keep), (0.0, new)))
        keep, new = jax.lax.associative_scan(recurrences.compose, (keep, new))
        h = keep * carry + new
        return h[-1], h


def stacked_orthogonal(parts: int) -> Initializer:
    """Return an initialiser of orthogonal square matrices next to each other, [H, parts * H]."""
    square = orthogonal(1.0)

    def init(key: Key, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        size = shape[0]
        keys = jax.random.split(key, parts)
        return jnp.concatenate([square(key, (size, size), dtype) for key in keys], axis=1)

    return init


class Stack(nn.Module):
    """Several recurrent cells; those after the first are residual blocks with layer norm.

        y₁ = cell₁(x)    yᵢ = yᵢ₋₁ + cellᵢ(norm(yᵢ₋₁))

    The carry is a tuple with the carry of each cell.

    Reference: Xiong et al. 2020, https://arxiv.org/abs/2002.04745, figure 1b, with a recurrent cell
    in place of attention and without hidden layers. https://github.com/lucidrains/minGRU-pytorch
    stacks minGRUs in the same blocks, with hidden layers.
    """

    cells: tuple[RecurrentCell, ...]

    @nn.nowrap
    def initial_carry(self, batch: tuple[int, ...]) -> Carry:
        """Return the carries of the cells."""
        return tuple(cell.initial_carry(batch) for cell in self.cells)

    @nn.compact
    def __call__(
        self, carry: Carry, x: Array, start: Array, absent: Array | None = None
    ) -> tuple[Carry, Array]:
        """Run the cells, see the module's docstring."""
        first, y = self.cells[0](carry[0], x, start, absent)
        after = [first]
        for i in range(1, len(self.cells)):
            normalized = nn.LayerNorm(dtype=y.dtype, name=f"norm_{i}")(y)
            cell_carry, change = self.cells[i](carry[i], normalized, start, absent)
            after.append(cell_carry)
            y = y + change
        return tuple(after), y


CELLS = {"gru": GRU, "lstm": LSTM, "mingru": MinGRU}
"""Recurrent cells by `network.rnn`."""


def make(config: NetworkConfig, **options: Any) -> RecurrentCell | Stack:
    """Return the cell of the config, or its stack of several.

    Args:
        config: settings of the network.
        options: `name` and `parent` of the module.
    """
    cell = partial(CELLS[config.rnn], config.rnn_size, config.rnn_timescale)
    if config.rnn_layers == 1:
        return cell(**options)
    return Stack(tuple(cell(parent=None) for _ in range(config.rnn_layers)), **options)
