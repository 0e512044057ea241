"""Shuffles are random orders: all are equally likely, in both forms."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from purejaxppo.agents import sequences
from purejaxppo.config.schema import PPOConfig
from purejaxppo.parallel import platforms

pytestmark = pytest.mark.toy


@pytest.mark.parametrize(
    "n", [1, 2, 3, 5, 64, 1000, sequences.MAX_PACKED, sequences.MAX_PACKED + 1]
)
def test_every_row_appears_once(n):
    order = np.asarray(jax.jit(sequences.shuffled, static_argnums=1)(jax.random.key(n), n))
    assert order.dtype == np.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_every_order_is_equally_likely(platform):
    with platforms.tracing_for(platform):
        draw = jax.jit(jax.vmap(lambda key: sequences.shuffled(key, 4)))
        orders = np.asarray(draw(jax.random.split(jax.random.key(0), 24_000)))
    names = list(itertools.permutations(range(4)))
    counts = [int(np.all(orders == name, axis=1).sum()) for name in names]
    assert stats.chisquare(counts).pvalue > 1e-3


def test_rows_with_equal_random_bits_are_ordered_at_random(monkeypatch):
    bits = jax.random.bits
    monkeypatch.setattr(jax.random, "bits", lambda key, shape: bits(key, shape) & jnp.uint32(3))
    draw = jax.vmap(lambda key: sequences.shuffled(key, 4))
    with platforms.tracing_for("cpu"):
        orders = np.asarray(draw(jax.random.split(jax.random.key(0), 4_000)))
    places = np.argsort(orders, axis=1)
    for one, other in itertools.combinations(range(4), 2):
        first = int((places[:, one] < places[:, other]).sum())
        assert stats.binomtest(first, 4_000).pvalue > 1e-3


def chosen_units(config, valid, draws=2_000):
    """Return the minibatches of many epochs, [draws, M, K]."""
    draw = jax.vmap(lambda key: sequences.valid_minibatches(key, config, jnp.asarray(valid)))
    return np.asarray(draw(jax.random.split(jax.random.key(0), draws)))


@pytest.mark.parametrize("length", [1, 2])
def test_an_epoch_has_all_valid_units_once_and_divides_them_evenly(length):
    units, valid = [1, 5, 6, 13, 18], np.zeros((20, length), bool)
    valid[units] = True
    valid[13, 1:] = False  # a sequence with a single valid step
    valid = valid[:, 0] if length == 1 else valid
    units_of_epochs = chosen_units(PPOConfig(num_minibatches=2, epoch_fraction=0.35), valid)
    assert units_of_epochs.shape[1:] == (2, 4)
    is_valid = np.isin(units_of_epochs, units)
    assert (is_valid.sum(axis=2) == [3, 2]).all()
    assert (np.sort(units_of_epochs[is_valid].reshape(-1, 5)) == units).all()
    others = np.bincount(units_of_epochs[~is_valid], minlength=20)
    assert stats.chisquare(np.delete(others, units)).pvalue > 1e-3


def test_a_small_epoch_is_a_random_sample_of_the_valid_units():
    valid = np.arange(20) % 4 > 0
    units_of_epochs = chosen_units(PPOConfig(num_minibatches=2, epoch_fraction=0.3), valid)
    assert units_of_epochs.shape[1:] == (2, 3) and valid[units_of_epochs].all()
    assert all(len(np.unique(epoch)) == 6 for epoch in units_of_epochs)
    for minibatch in (0, 1):
        counts = np.bincount(units_of_epochs[:, minibatch].ravel(), minlength=20)[valid]
        assert stats.chisquare(counts).pvalue > 1e-3


def test_each_minibatch_is_equally_likely_for_a_row_of_a_large_rollout():
    n, draws = 4096, 256
    draw = jax.jit(jax.vmap(lambda key: sequences.shuffled(key, n)))
    orders = np.asarray(draw(jax.random.split(jax.random.key(1), draws)))
    minibatch = np.argsort(orders, axis=1) // (n // 8)
    counts = [(minibatch[:, : n // 2] == i).sum() for i in range(8)]
    assert stats.chisquare(counts).pvalue > 1e-3
    together = (minibatch[:, 0::2] == minibatch[:, 1::2]).mean()  # neighbours in time
    assert abs(together - (n / 8 - 1) / (n - 1)) < 4 * np.sqrt(0.125 * 0.875 / (draws * n / 2))
