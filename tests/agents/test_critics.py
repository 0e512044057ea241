"""Critics: what their outputs mean, by hand, and that PopArt keeps its values."""

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
def test_symlog_and_its_inverse_by_hand():
    x = jnp.array([0.0, np.e - 1, -(np.e**2 - 1)])
    np.testing.assert_allclose(critics.symlog(x), [0.0, 1.0, -2.0], atol=1e-6)
    np.testing.assert_allclose(critics.symexp(critics.symlog(x)), x, rtol=1e-5)


@pytest.mark.toy
def test_the_scalar_critic_and_its_clipped_error_by_hand():
    outputs, old, target = jnp.array([[1.0], [2.0]]), jnp.array([0.0, 2.0]), jnp.array([3.0, 2.5])
    free = critics.make(PPOConfig())
    np.testing.assert_allclose(free.value(outputs, NEW), [1.0, 2.0])
    np.testing.assert_allclose(free.loss(outputs, old, target, NEW, hp()), [2.0, 0.125])
    clipped = critics.make(PPOConfig(value_clipping=True))
    # The first value went from 0 to 1 towards 3; clipped to 0.2 its error is 2.8.
    loss = clipped.loss(outputs, old, target, NEW, hp(vf_clip_eps=0.2))
    np.testing.assert_allclose(loss, [2.8**2 / 2, 0.125], rtol=1e-6)


@pytest.mark.toy
def test_the_symlog_critic_by_hand():
    critic = critics.make(PPOConfig(critic="symlog"))
    outputs = jnp.array([[1.0], [-2.0]])
    np.testing.assert_allclose(critic.value(outputs, NEW), [np.e - 1, 1 - np.e**2], rtol=1e-6)
    target = jnp.array([0.0, 1 - np.e**2])
    np.testing.assert_allclose(critic.loss(outputs, None, target, NEW, hp()), [0.5, 0.0], atol=1e-6)


@pytest.mark.parametrize("target", [-3000.0, -1.0, 0.0, 0.3, 20.0, 500.0])
def test_the_histogram_with_the_least_loss_has_the_targets_value(target):
    """The cross-entropy is convex, and its gradient is 0 at the target's own histogram."""
    critic = critics.make(PPOConfig(critic="hl_gauss"))
    width = 2 * critics.LIMIT / (critics.BINS - 1)
    edges = np.linspace(-critics.LIMIT - width / 2, critics.LIMIT + width / 2, critics.BINS + 1)
    centre = np.sign(target) * np.log1p(abs(target))
    mass = np.diff(scipy.stats.norm.cdf(edges, centre, 0.75 * width))
    outputs = jnp.asarray(np.log(mass + 1e-12), jnp.float32)[None]

    def loss(outputs):
        return critic.loss(outputs, None, jnp.array([target]), NEW, hp())[0]

    np.testing.assert_allclose(jax.grad(loss)(outputs), 0.0, atol=1e-5)
    assert loss(outputs + jax.random.normal(jax.random.key(0), outputs.shape)) > loss(outputs)
    np.testing.assert_allclose(critic.value(outputs, NEW)[0], target, rtol=2e-3, atol=3e-3)


def best_histogram(target):
    """Outputs [K] with the least mean loss over targets [B]: the mean of their histograms."""
    x = jnp.clip(critics.symlog(jnp.asarray(target)), -critics.LIMIT, critics.LIMIT)
    return jnp.log(jnp.mean(critics.histogram(x), axis=0) + 1e-12)


@pytest.mark.parametrize(
    "returns", [[0.0, 200.0], [-3.0, 0.0, 0.0, 9.0], [0.0] * 99 + [1e4], [-5e4, 1e4]]
)
def test_the_histograms_value_is_the_mean_of_returns_that_vary(returns):
    critic = critics.make(PPOConfig(critic="hl_gauss"))
    value = critic.value(best_histogram(returns), NEW)
    np.testing.assert_allclose(value, np.mean(returns), rtol=5e-3, atol=3e-3)


def test_the_symlog_critics_value_is_not_the_mean_as_the_docs_say():
    critic = critics.make(PPOConfig(critic="symlog"))
    target = jnp.array([0.0, 200.0])

    def loss(output):
        outputs = jnp.broadcast_to(output, (2, 1))
        return jnp.sum(critic.loss(outputs, None, target, NEW, hp()))

    least = jnp.mean(critics.symlog(target))
    np.testing.assert_allclose(jax.grad(loss)(least), 0.0, atol=1e-5)
    np.testing.assert_allclose(critic.value(least[None], NEW), 13.18, rtol=1e-3)


def test_targets_beyond_the_histogram_count_as_its_ends_and_are_counted():
    critic = critics.make(PPOConfig(critic="hl_gauss"))
    end = float(np.expm1(critics.LIMIT))
    outputs = jax.random.normal(jax.random.key(0), (3, critics.BINS))
    beyond = critic.loss(outputs, None, jnp.array([1e9, -1e20, 3.0]), NEW, hp())
    ends = critic.loss(outputs, None, jnp.array([end, -end, 3.0]), NEW, hp())
    np.testing.assert_allclose(beyond, ends, rtol=1e-4)
    clipped = critic.figures[critics.CLIPPED]
    np.testing.assert_array_equal(clipped(jnp.array([1e9, -1e20, 3.0, -1e5])), [1, 1, 0, 0])
    assert not critics.make(PPOConfig()).figures


def test_what_all_bins_have_in_common_is_no_value():
    """Unlearned bins far out stand for 160,000: opposite ones cancel exactly."""
    critic = critics.make(PPOConfig(critic="hl_gauss"))
    assert critic.gain == 0.0
    outputs = jax.random.normal(jax.random.key(0), (critics.BINS,))
    np.testing.assert_array_equal(critic.value(outputs + outputs[::-1], NEW), 0.0)


@pytest.mark.toy
def test_popart_is_in_standard_deviations_of_the_targets():
    critic = critics.make(PPOConfig(critic="popart"))
    now = stats(mean=10.0, std=4.0)
    np.testing.assert_allclose(critic.value(jnp.array([[0.5]]), now), [12.0], rtol=1e-5)
    loss = critic.loss(jnp.array([[0.5]]), None, jnp.array([18.0]), now, hp())
    np.testing.assert_allclose(loss, [0.5 * 1.5**2], rtol=1e-5)


def test_popart_keeps_its_values_when_the_statistics_move(key):
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
def test_statistics_are_those_of_all_valid_targets():
    target = np.array([[1.0, 2.0, 99.0], [4.0, -7.0, 3.0]])
    valid = np.array([[True, True, False], [True, True, True]])
    now = NEW
    for t in range(2):
        same = lambda x: x  # noqa: E731
        now = critics.observe(now, jnp.asarray(target[t]), jnp.asarray(valid[t]), same, same)
    seen = target[valid]
    mean, std = critics.moments(now)
    np.testing.assert_allclose([mean, std], [seen.mean(), seen.std()], rtol=1e-5)
    assert (now.low, now.high) == (-7.0, 4.0)


@pytest.mark.toy
def test_bootstrapped_values_are_clipped_as_asked():
    value = jnp.array([-9.0, 0.5, 9.0])
    for settings, expected in [
        ({}, [-9.0, 0.5, 9.0]),
        ({"clip_bootstrap": "fixed", "bootstrap_limit": 2.0}, [-2.0, 0.5, 2.0]),
        ({"clip_bootstrap": "observed"}, [-1.0, 0.5, 5.0]),
    ]:
        clip = critics.make(PPOConfig(**settings)).clip_bootstrap
        np.testing.assert_allclose(clip(value, stats(0.0, 1.0)), expected)
    clip = critics.make(PPOConfig(clip_bootstrap="observed")).clip_bootstrap
    np.testing.assert_allclose(clip(value, NEW), value)  # nothing was seen yet
