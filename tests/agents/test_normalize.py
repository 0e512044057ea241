"""Running statistics against numpy over all rows."""

import itertools
from functools import partial

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.agents import normalize

pytestmark = pytest.mark.toy

RNG = np.random.default_rng(0)


def identity(x):
    return x


update = partial(normalize.update_stats, psum=identity)


def merged(data, valid, split, variant=identity):
    stats = normalize.init_stats(jnp.zeros(data.shape[1:]))
    ends = [0, *split, len(data)]
    for start, end in itertools.pairwise(ends):
        rows = slice(start, end)
        stats = variant(update)(stats, data[rows], jnp.asarray(valid[rows]))
    return stats


@pytest.mark.parametrize("split", [(), (1,), (50, 51), tuple(range(10, 100, 10))])
def test_statistics_equal_numpy_over_all_valid_rows_for_any_split(split):
    data = RNG.normal(100.0, [1.0, 30.0, 0.01], size=(100, 3)).astype(np.float32)
    valid = RNG.random(100) < 0.7
    stats = merged(data, valid, split)
    seen = data[valid].astype(np.float64)
    assert stats.count == valid.sum()
    np.testing.assert_allclose(stats.mean, seen.mean(0), rtol=1e-6)
    # float32 numbers around 100 have steps of 8e-6, so a deviation of 0.01 is known to 1e-3.
    np.testing.assert_allclose(normalize.variance(stats), seen.var(0), rtol=2e-3)


class TestStatistics(chex.TestCase):
    """Compiled and not, with arrays of JAX and of NumPy."""

    @chex.all_variants(with_pmap=False)
    def test_invalid_rows_may_hold_any_value(self):
        data = RNG.normal(size=(10, 2)).astype(np.float32)
        valid = np.arange(10) % 3 != 0
        dirty = np.where(valid[:, None], data, np.nan)
        clean = merged(data, valid, (4,), self.variant)
        np.testing.assert_array_equal(merged(dirty, valid, (4,), self.variant).m2, clean.m2)

    @chex.all_variants(with_pmap=False)
    def test_a_batch_without_valid_rows_changes_nothing(self):
        data = RNG.normal(size=(10, 2)).astype(np.float32)
        stats = merged(data, np.ones(10, bool), (), self.variant)
        again = self.variant(update)(stats, jnp.full((5, 2), 9.0), jnp.zeros(5, bool))
        for before, after in zip(stats, again, strict=True):
            np.testing.assert_array_equal(before, after)

    @chex.all_variants(with_pmap=False)
    def test_rollouts_and_pytrees_are_flattened(self):
        data = {"a": RNG.normal(size=(6, 4, 3)), "b": RNG.normal(size=(6, 4))}
        data = {name: x.astype(np.float32) for name, x in data.items()}
        valid = RNG.random((6, 4)) < 0.5
        stats = normalize.init_stats({"a": jnp.zeros(3), "b": jnp.zeros(())})
        stats = self.variant(update)(stats, data, jnp.asarray(valid))
        variance = self.variant(normalize.variance)(stats)
        for name, x in data.items():
            np.testing.assert_allclose(stats.mean[name], x[valid].mean(0), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(variance[name], x[valid].var(0), rtol=1e-5)

    @chex.all_variants(with_pmap=False)
    def test_observations_are_not_scaled_before_the_first_update(self):
        stats = normalize.init_stats(jnp.zeros(2))
        x = jnp.array([[0.5, -3.0]])
        np.testing.assert_allclose(self.variant(normalize.normalize)(stats, x, 10.0), x, rtol=1e-6)

    @chex.all_variants(with_pmap=False)
    def test_normalised_rows_have_zero_mean_and_unit_variance_and_are_clipped(self):
        data = np.append(RNG.normal(7.0, 3.0, size=999), 1e4).astype(np.float32)[:, None]
        stats = merged(data[:-1], np.ones(999, bool), (500,), self.variant)
        out = np.asarray(self.variant(normalize.normalize)(stats, jnp.asarray(data), 5.0))
        np.testing.assert_allclose(out[:-1].mean(), 0.0, atol=1e-5)
        np.testing.assert_allclose(out[:-1].std(), 1.0, rtol=1e-4)
        assert out[-1] == 5.0

    @chex.all_variants(with_pmap=False)
    def test_discounted_returns_equal_a_loop_over_two_rollouts(self):
        length, num_envs, gamma = 20, 3, 0.9
        reward = RNG.normal(size=(length, num_envs)).astype(np.float32)
        done = RNG.random((length, num_envs)) < 0.2
        valid = ~np.vstack([np.zeros((1, num_envs), bool), done[:-1]])
        done &= valid
        expected, running = np.zeros((length, num_envs)), np.zeros(num_envs)
        for t in range(length):
            for n in range(num_envs):
                if valid[t, n]:
                    running[n] = gamma * running[n] + reward[t, n]
                expected[t, n] = running[n]
                if done[t, n]:
                    running[n] = 0.0
        carried, parts = jnp.zeros(num_envs), []
        for rows in (slice(0, 7), slice(7, None)):
            out, carried = self.variant(normalize.discounted_returns)(
                reward[rows], done[rows], valid[rows], carried, gamma
            )
            parts.append(out)
        np.testing.assert_allclose(
            np.concatenate(parts)[valid], expected[valid], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(carried, running, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("huge", [1e6, 1e10])
def test_one_huge_value_does_not_dominate_the_statistics(huge):
    data = RNG.normal(3.0, 2.0, size=(20_000, 1)).astype(np.float32)
    stats = merged(data, np.ones(20_000, bool), ())
    rows = data[:1000].copy()
    rows[7] = huge
    after = update(stats, jnp.asarray(rows), jnp.ones(1000, bool))
    # It enters as 100 deviations: to a variance of 4, it adds at most 4 * 100² / 21,000 = 1.9.
    assert abs(after.mean[0] - 3.0) < 0.1
    assert 4.0 < normalize.variance(after)[0] < 6.5
    assert np.ptp(normalize.normalize(after, jnp.asarray(data), 10.0)) > 5.0


def test_the_statistics_follow_a_lasting_change():
    stats = merged(np.zeros((normalize.WARM_UP, 1), np.float32), np.ones(10_000, bool), ())
    batch = RNG.normal(50.0, 5.0, size=(2000, 1)).astype(np.float32)
    for _ in range(20):
        stats = update(stats, jnp.asarray(batch), jnp.ones(2000, bool))
    np.testing.assert_allclose(stats.mean, [50.0 * 40_000 / 50_000], rtol=0.2)
    assert normalize.variance(stats)[0] > 300  # of all these rows: 50² * 0.8 * 0.2 + 0.8 * 25


def test_outliers_are_not_limited_during_the_warm_up():
    data = np.array([0.0, 0.0, 1e6, 0.0], np.float32)[:, None]
    stats = merged(data, np.ones(4, bool), (1, 2, 3))
    np.testing.assert_allclose(stats.mean, data.mean(0), rtol=1e-6)


def test_arrays_that_do_not_fit_the_statistics_are_rejected():
    stats, valid = normalize.init_stats(jnp.zeros(2)), jnp.ones(5, bool)
    for wrong in (
        lambda: update(stats, jnp.zeros((4, 2)), valid),
        lambda: update(stats, jnp.zeros((5, 2)), jnp.ones(5)),
        lambda: normalize.normalize(stats, jnp.zeros((5, 1)), 10.0),
        lambda: normalize.normalize_advantages(jnp.zeros((2, 5)), valid, identity, 1),
        lambda: normalize.discounted_returns(jnp.zeros((5, 1)), valid, valid, jnp.zeros(1), 0.9),
    ):
        with pytest.raises(AssertionError):
            wrong()
