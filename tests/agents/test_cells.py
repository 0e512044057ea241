"""Recurrent cells against Flax, a numpy loop, and separately computed episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import flax_cells

from purejaxppo.agents.networks import cells
from purejaxppo.config.schema import NetworkConfig

T, N, F, H = 7, 3, 4, 5
KINDS = sorted(cells.CELLS)
STACKS = ["lstm x 2", "mingru x 3"]


def make_module(kind):
    """Return a cell or a stack of several, such as `mingru x 3`."""
    name, _, layers = kind.partition(" x ")
    config = NetworkConfig(rnn=name, rnn_size=H, rnn_timescale=0, rnn_layers=int(layers or 1))
    return cells.make(config, parent=None)


def make(kind, key):
    """Return (apply, params, carry of nonzero numbers, x [T, N, F])."""
    module = make_module(kind)
    x = jax.random.normal(key, (T, N, F))
    zeros = module.initial_carry((N,))
    params = jax.jit(module.init)(key, zeros, x, jnp.zeros((T, N), bool))
    leaves, tree = jax.tree.flatten(zeros)
    keys = jax.random.split(key, len(leaves))
    carry = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.jit(module.apply), params, tree.unflatten(carry), x


@pytest.mark.parametrize("kind", flax_cells.CELLS)
def test_gated_units_equal_flax_cells(kind, key):
    apply, params, carry, x = make(kind, key)
    theirs = flax_cells.params_of(kind, params["params"])
    last, out = apply(params, carry, x, jnp.zeros((T, N), bool))
    flax = jax.jit(flax_cells.CELLS[kind](H).apply)
    for t in range(T):
        carry, y = flax({"params": theirs}, carry, x[t])
        np.testing.assert_allclose(out[t], y, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), last, carry)


def mingru_step(params, h, x, start):
    """Return h [N, H] after one step of a minGRU, in NumPy with 64 bits."""
    gate, candidate = np.split(x @ params["in"]["kernel"] + params["in"]["bias"], 2, -1)
    z = 1 / (1 + np.exp(-gate))
    return (1 - z) * np.where(start[:, None], 0.0, h) + z * candidate


def in_64_bits(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def test_mingru_equals_a_plain_loop(key):
    apply, params, carry, x = make("mingru", key)
    start = np.zeros((T, N), bool)
    start[3, 1] = start[0, 2] = True
    last, out = apply(params, carry, x, jnp.asarray(start))
    params, h, x = in_64_bits((params["params"], carry, x))
    for t in range(T):
        h = mingru_step(params, h, x[t], start[t])
        np.testing.assert_allclose(out[t], h, atol=1e-5)
    np.testing.assert_allclose(last, h, atol=1e-5)


def test_cells_of_a_stack_after_the_first_are_residual_blocks_with_a_norm(key):
    """y₁ = cell₁(x), yᵢ = yᵢ₋₁ + cellᵢ(norm(yᵢ₋₁)), in a plain loop."""
    apply, params, carry, x = make("mingru x 3", key)
    start = np.zeros((T, N), bool)
    start[3, 1] = start[0, 2] = True
    noise = jax.random.normal(key, (2, 2, H))  # other scales and biases than 1 and 0
    for i in (1, 2):
        params["params"][f"norm_{i}"] = {"scale": noise[0, i - 1], "bias": noise[1, i - 1]}
    last, out = apply(params, carry, x, jnp.asarray(start))
    params, carry, x = in_64_bits((params["params"], list(carry), x))
    assert sorted(params) == ["cells_0", "cells_1", "cells_2", "norm_1", "norm_2"]
    for t in range(T):
        y = carry[0] = mingru_step(params["cells_0"], carry[0], x[t], start[t])
        for i in (1, 2):
            norm = params[f"norm_{i}"]
            standard = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-6)
            inputs = standard * norm["scale"] + norm["bias"]
            carry[i] = mingru_step(params[f"cells_{i}"], carry[i], inputs, start[t])
            y = y + carry[i]
        np.testing.assert_allclose(out[t], y, atol=1e-5)
    for after, expected in zip(last, carry, strict=True):
        np.testing.assert_allclose(after, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS + STACKS)
def test_single_steps_equal_the_unrolled_sequence(kind, key):
    apply, params, carry, x = make(kind, key)
    start = jax.random.bernoulli(key, 0.3, (T, N))
    last, out = apply(params, carry, x, start)
    for t in range(T):
        carry, y = apply(params, carry, x[t : t + 1], start[t : t + 1])
        np.testing.assert_allclose(out[t], y[0], atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), last, carry)


@pytest.mark.parametrize("kind", KINDS + STACKS)
def test_outputs_and_gradients_equal_those_of_separate_episodes(kind, key):
    """Environment 0 starts episodes at steps 0 and 3, environment 1 at 5, environment 2 never."""
    apply, params, carry, x = make(kind, key)
    start = np.zeros((T, N), bool)
    start[0, 0] = start[3, 0] = start[5, 1] = True
    weights = jax.random.normal(jax.random.key(1), (T, N, H))

    def together(params, x):
        _, y = apply(params, carry, x, jnp.asarray(start))
        return jnp.sum(y * weights), y

    zeros = make_module(kind).initial_carry((1,))
    pieces = [(0, 0, 3, True), (0, 3, 7, True), (1, 0, 5, False), (1, 5, 7, True), (2, 0, 7, False)]

    def apart(params, x):
        total, out = 0.0, jnp.zeros((T, N, H))
        for env, begin, end, fresh in pieces:
            own = zeros if fresh else jax.tree.map(lambda c, env=env: c[env : env + 1], carry)
            part = x[begin:end, env : env + 1]
            _, y = apply(params, own, part, jnp.zeros((end - begin, 1), bool))
            total += jnp.sum(y[:, 0] * weights[begin:end, env])
            out = out.at[begin:end, env].set(y[:, 0])
        return total, out

    gradient, out = jax.jit(jax.grad(together, (0, 1), has_aux=True))(params, x)
    expected, apart_out = jax.jit(jax.grad(apart, (0, 1), has_aux=True))(params, x)
    np.testing.assert_allclose(out, apart_out, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), gradient, expected)
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(gradient)) > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_initial_gates_remember_up_to_the_span(kind, key):
    """Without input, the carry decays as σ(b)ᵗ: to 1 / e after 1 to `span` steps."""
    module = cells.CELLS[kind](64, 100)
    x, start = jnp.zeros((1, 1, F)), jnp.zeros((1, 1), bool)
    carry = jax.tree.map(jnp.ones_like, module.initial_carry((1,)))
    params = jax.jit(module.init)(key, carry, x, start)
    params["params"]["recurrent" if kind != "mingru" else "none"] = jnp.zeros((64, 64 * 4))
    if kind == "gru":
        params["params"]["recurrent"] = jnp.zeros((64, 64 * 3))
    after, _ = jax.jit(module.apply)(params, carry, x, start)
    kept = np.asarray(jax.tree.leaves(after)[0])[0]
    steps = -1 / np.log(kept)
    assert steps.min() > 0.5 and 60 < steps.max() < 101
    assert len(np.unique(kept.round(6))) > 50
