"""Critics: decoded values and losses, hand-worked; PopArt does not change values."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from purejaxppo.agents import critics, normalize, schedules
from purejaxppo.config.schema import Config, PPOConfig
from purejaxppo.types import RunningStats, ValueStats

NEW = normalize.init_value_stats()


def stats(mean, std, count=10.0):
    moments = RunningStats(jnp.float32(count), jnp.float32(mean), jnp.float32(std**2 * count))
    return ValueStats(moments, jnp.float32(-1.0), jnp.float32(5.0))


def hp(**settings):
    return schedules.make_hyperparams(Config(ppo=PPOConfig(**settings)))


@pytest.mark.toy
class TestByHand(chex.TestCase):
    """Compiled and not, with arrays of JAX and of NumPy."""

    @chex.all_variants(with_pmap=False)
    def test_symlog_and_its_inverse_by_hand(self):
        x = jnp.array([0.0, np.e - 1, -(np.e**2 - 1)])
        np.testing.assert_allclose(self.variant(critics.symlog)(x), [0.0, 1.0, -2.0], atol=1e-6)
        np.testing.assert_allclose(
            self.variant(lambda x: critics.symexp(critics.symlog(x)))(x), x, rtol=1e-5
        )

    @chex.all_variants(with_pmap=False)
    def test_the_scalar_critic_and_its_clipped_error_by_hand(self):
        outputs, old, target = (
            jnp.array([[1.0], [2.0]]),
            jnp.array([0.0, 2.0]),
            jnp.array([3.0, 2.5]),
        )
        free = critics.make(PPOConfig())
        np.testing.assert_allclose(self.variant(free.value)(outputs, NEW), [1.0, 2.0])
        np.testing.assert_allclose(
            self.variant(free.loss)(outputs, old, target, NEW, hp()), [2.0, 0.125]
        )
        clipped = critics.make(PPOConfig(value_clipping=True))
        # The first value went from 0 to 1 towards 3; clipped to 0.2 its error is 2.8.
        loss = self.variant(clipped.loss)(outputs, old, target, NEW, hp(vf_clip_eps=0.2))
        np.testing.assert_allclose(loss, [2.8**2 / 2, 0.125], rtol=1e-6)

    @chex.all_variants(with_pmap=False)
    def test_the_symlog_critic_by_hand(self):
        critic = critics.make(PPOConfig(critic="symlog"))
        outputs = jnp.array([[1.0], [-2.0]])
        np.testing.assert_allclose(
            self.variant(critic.value)(outputs, NEW), [np.e - 1, 1 - np.e**2], rtol=1e-6
        )
        target = jnp.array([0.0, 1 - np.e**2])
        np.testing.assert_allclose(
            self.variant(critic.loss)(outputs, None, target, NEW, hp()), [0.5, 0.0], atol=1e-6
        )

    @chex.all_variants(with_pmap=False)
    def test_popart_outputs_are_in_standard_deviations_of_the_targets(self):
        critic = critics.make(PPOConfig(critic="popart"))
        now = stats(mean=10.0, std=4.0)
        np.testing.assert_allclose(
            self.variant(critic.value)(jnp.array([[0.5]]), now), [12.0], rtol=1e-5
        )
        loss = self.variant(critic.loss)(jnp.array([[0.5]]), None, jnp.array([18.0]), now, hp())
        np.testing.assert_allclose(loss, [0.5 * 1.5**2], rtol=1e-5)

    @chex.all_variants(with_pmap=False)
    def test_hl_gauss_centres_and_histogram_by_hand(self):
        """Bins of ±1 in symlog units are 0.02 apart.

        Halfway between two values it is half of each Gaussian.
        """
        (centres,), (values,) = critics.bins([1.0])
        np.testing.assert_allclose(
            centres[[0, 50, 51, 100]], [1 - np.e, 0, np.expm1(0.02), np.e - 1]
        )
        target = jnp.float32((centres[60] + centres[61]) / 2)
        mass = self.variant(critics.histogram)(target, jnp.asarray(centres, jnp.float32))
        edges = np.arange(102) - 0.5
        expected = np.diff(
            [scipy.stats.norm.cdf(edges, centre, 0.75) for centre in (60, 61)], axis=1
        ).mean(axis=0)
        np.testing.assert_allclose(mass, expected, atol=1e-4)
        np.testing.assert_allclose(values @ np.asarray(mass), target, rtol=1e-5)

    @chex.all_variants(with_pmap=False)
    def test_statistics_cover_all_valid_targets(self):
        target = np.array([[1.0, 2.0, 99.0], [4.0, -7.0, 3.0]])
        valid = np.array([[True, True, False], [True, True, True]])
        same = lambda x: x  # noqa: E731
        observe = self.variant(partial(critics.update_target_stats, psum=same, pmax=same))
        now = NEW
        for t in range(2):
            now = observe(now, jnp.asarray(target[t]), jnp.asarray(valid[t]))
        seen = target[valid]
        mean, std = critics.mean_and_std(now)
        np.testing.assert_allclose([mean, std], [seen.mean(), seen.std()], rtol=1e-5)
        assert (now.low, now.high) == (-7.0, 4.0)

    @chex.all_variants(with_pmap=False)
    def test_bootstrapped_values_are_clipped_as_configured(self):
        value = jnp.array([-9.0, 0.5, 9.0])
        for settings, expected in [
            ({}, [-9.0, 0.5, 9.0]),
            ({"clip_bootstrap": "fixed", "bootstrap_limit": 2.0}, [-2.0, 0.5, 2.0]),
            ({"clip_bootstrap": "observed"}, [-1.0, 0.5, 5.0]),
        ]:
            clip = critics.make(PPOConfig(**settings)).clip_bootstrap
            np.testing.assert_allclose(self.variant(clip)(value, stats(0.0, 1.0)), expected)
        clip = critics.make(PPOConfig(clip_bootstrap="observed")).clip_bootstrap
        np.testing.assert_allclose(self.variant(clip)(value, NEW), value)  # nothing was seen yet


def stats_after(low, high):
    """Return statistics after targets of this range."""
    return NEW._replace(low=jnp.float32(low), high=jnp.float32(high))


HL_GAUSS = {
    "all targets": (PPOConfig(critic="hl_gauss"), stats_after(-60_000.0, 60_000.0)),
    "given": (PPOConfig(critic="hl_gauss", value_limit=60_000.0), NEW),
}


def mean_histogram(targets, settings, stats):
    """Return the mean of targets' histograms, from the gradient of the loss at equal outputs."""
    critic, targets = critics.make(settings), jnp.array(targets, jnp.float32)
    gradient = jax.grad(lambda x: critic.loss(x, None, targets, stats, hp()).mean())
    return 1 / critics.BINS - gradient(jnp.zeros((len(targets), critics.BINS))).sum(axis=0)


@pytest.mark.parametrize("case", HL_GAUSS)
@pytest.mark.parametrize("target", [-59_999.0, -3000.0, -1.0, 0.0, 0.3, 20.0, 512.3, 60_000.0])
def test_the_value_of_a_targets_histogram_is_the_target(target, case):
    mass = mean_histogram([target], *HL_GAUSS[case])
    assert mass.min() > -1e-6
    critic = critics.make(HL_GAUSS[case][0])
    value = critic.value(jnp.log(jnp.maximum(mass, 1e-12)), HL_GAUSS[case][1])
    np.testing.assert_allclose(value, target, rtol=2e-3, atol=2e-2)
    # Most of it is in the target's four bins: a Gaussian of 0.75 bins around two centres.
    assert np.sort(mass)[-4:].sum() > 0.9


@pytest.mark.parametrize(
    "returns", [[0.0, 200.0], [-3.0, 0.0, 0.0, 9.0], [0.0] * 99 + [1e4], [-5e4, 1e4]]
)
def test_the_value_of_a_mean_histogram_is_the_mean_return(returns):
    stats = stats_after(min(returns), max(returns))
    critic = critics.make(PPOConfig(critic="hl_gauss"))
    mean = mean_histogram(returns, PPOConfig(critic="hl_gauss"), stats)
    value = critic.value(jnp.log(jnp.maximum(mean, 1e-12)), stats)
    np.testing.assert_allclose(value, np.mean(returns), rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize(
    ("low", "high", "limit"),
    [(-1.7, 0.5, 1), (0.0, 1.8, 2), (-6.3, 0.0, 2), (-6.4, 0, 4), (0, 54, 8), (0, 3000, 16)],
)
def test_bins_have_the_smallest_range_that_holds_all_targets(low, high, limit):
    critic = critics.make(PPOConfig(critic="hl_gauss"))
    last = critic.value(jnp.zeros(critics.BINS).at[-1].set(100.0), stats_after(low, high))
    # The last bin decodes to a little more than its centre: half of its Gaussian is below that.
    assert np.expm1(limit) < last < np.expm1(limit * 1.02)


def test_values_stay_almost_the_same_when_the_range_grows(key):
    critic, old = critics.make(PPOConfig(critic="hl_gauss")), stats_after(-50.0, 50.0)
    target = jax.random.uniform(key, (40,), minval=-40.0, maxval=40.0)
    centres = jnp.asarray(critics.bins(critics.LIMITS)[0][2], jnp.float32)
    kernel = jnp.log(critics.histogram(target, centres) + 1e-6)  # of features that are one-hot
    params = {"one": {"critic": {"kernel": kernel, "bias": jnp.full(critics.BINS, 0.3)}, "x": 1}}

    def values(params, stats):
        head = params["one"]["critic"]
        return critic.value(head["kernel"] + head["bias"], stats)

    before = values(params, old)
    np.testing.assert_allclose(before, target, atol=0.1)
    for high, tolerance in ((53.0, 0.0), (60.0, 0.5), (1e4, 5.0)):
        moved = critic.preserve(params, old, stats_after(-50.0, high))
        np.testing.assert_allclose(values(moved, stats_after(-50.0, high)), before, atol=tolerance)
        assert moved["one"]["x"] == 1
    unmoved = values(params, stats_after(-50.0, 60.0))
    assert np.abs(unmoved - before).max() > 100


@pytest.mark.toy
def test_the_critic_head_is_rearranged_under_any_policy_name():
    critic, head = critics.make(PPOConfig(critic="hl_gauss")), jnp.arange(float(critics.BINS))
    policy = {"actor": {}, "critic": {"kernel": head[None], "bias": head}}
    others = {"own": {"kernel": head}, "terms": policy}  # parameters of an auxiliary loss
    params = dict.fromkeys(("torso", "critic"), policy) | others
    moved = critic.preserve(params, stats_after(-1.0, 1.0), stats_after(-1.0, 5.0))
    for name in ("torso", "critic"):  # each new bin has the logit of the one it is at
        np.testing.assert_array_equal(moved[name]["critic"]["kernel"][0, 25:76], head[::2])
    np.testing.assert_array_equal(moved["own"]["kernel"], head)
    np.testing.assert_array_equal(moved["terms"]["critic"]["bias"], head)


def test_the_first_targets_leave_all_bins_equal():
    critic, params = critics.make(PPOConfig(critic="hl_gauss")), {"kernel": jnp.zeros((3, 101))}
    params = {"critic": params | {"bias": jnp.zeros(101)}}
    moved = critic.preserve(params, NEW, stats_after(0.0, 1e3))
    np.testing.assert_array_equal(moved["critic"]["bias"], 0.0)


def test_the_symlog_critic_underestimates_the_mean_as_documented():
    critic = critics.make(PPOConfig(critic="symlog"))
    target = jnp.array([0.0, 200.0])

    def loss(output):
        outputs = jnp.broadcast_to(output, (2, 1))
        return jnp.sum(critic.loss(outputs, None, target, NEW, hp()))

    least = jnp.mean(critics.symlog(target))
    np.testing.assert_allclose(jax.grad(loss)(least), 0.0, atol=1e-5)
    np.testing.assert_allclose(critic.value(least[None], NEW), 13.18, rtol=1e-3)


def test_targets_beyond_the_histogram_are_clipped_to_its_ends_and_counted():
    outputs = jax.random.normal(jax.random.key(0), (3, critics.BINS))
    for limit, end in ((0.0, np.expm1(16)), (300.0, 300.0)):
        critic = critics.make(PPOConfig(critic="hl_gauss", value_limit=limit))
        stats = stats_after(0, 1e9)
        beyond = critic.loss(outputs, None, jnp.array([1e9, -1e20, 3.0]), stats, hp())
        ends = critic.loss(outputs, None, jnp.array([end, -end, 3.0]), stats, hp())
        np.testing.assert_allclose(beyond, ends, rtol=1e-4)
        clipped = critic.metrics[critics.CLIPPED]
        targets = jnp.array([1e9, -1e20, 3.0, -0.99 * end])
        np.testing.assert_array_equal(clipped(targets), [1, 1, 0, 0])
    assert not critics.make(PPOConfig()).metrics


def test_opposite_bins_cancel_exactly_in_the_value():
    """Outer bins represent 160,000. Before learning, opposite bins cancel exactly."""
    critic = critics.make(PPOConfig(critic="hl_gauss"))
    assert critic.gain == 0.0
    outputs = jax.random.normal(jax.random.key(0), (critics.BINS,))
    np.testing.assert_array_equal(critic.value(outputs + outputs[::-1], NEW), 0.0)


def test_popart_keeps_its_values_when_the_statistics_change(key):
    critic = critics.make(PPOConfig(critic="popart"))
    features = jax.random.normal(key, (20, 6))
    params = {
        "critic": {"kernel": jax.random.normal(key, (6, 1)), "bias": jnp.array([0.3])},
        "x": 1,
    }
    old, new = stats(mean=1.0, std=0.5), stats(mean=-30.0, std=12.0)

    def values(params, stats):
        head = params["critic"]
        return critic.value(features @ head["kernel"] + head["bias"], stats)

    before = values(params, old)
    moved = critic.preserve(params, old, new)
    np.testing.assert_allclose(values(moved, new), before, rtol=1e-4, atol=1e-4)
    assert not np.allclose(values(params, new), before, atol=1.0)
    assert moved["x"] == 1


@pytest.mark.toy
@pytest.mark.parametrize("name", ["scalar", "symlog", "popart", "hl_gauss"])
def test_outputs_that_do_not_fit_the_targets_are_rejected(name):
    critic = critics.make(PPOConfig(critic=name))
    outputs, target = jnp.zeros((4, critic.num_outputs)), jnp.zeros((4, 1))
    with pytest.raises(AssertionError):
        critic.loss(outputs, target, target, NEW, hp())
