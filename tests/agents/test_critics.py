"""Critics: what their outputs mean, by hand, and that PopArt keeps its values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from purejaxppo.agents import critics, ppo
from purejaxppo.config import PPOConfig
from purejaxppo.types import RunningStats, ValueStats

NEW = critics.init_stats()


def stats(mean, std, count=10.0):
    moments = RunningStats(jnp.float32(count), jnp.float32(mean), jnp.float32(std**2 * count))
    return ValueStats(moments, jnp.float32(-1.0), jnp.float32(5.0))


def hp(**settings):
    return ppo.make_hyperparams(PPOConfig(**settings), 1)


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
    edges = np.linspace(-critics.LIMIT, critics.LIMIT, critics.BINS + 1)
    centre, width = np.sign(target) * np.log1p(abs(target)), edges[1] - edges[0]
    mass = np.diff(scipy.stats.norm.cdf(edges, centre, 0.75 * width))
    outputs = jnp.asarray(np.log(mass + 1e-12), jnp.float32)[None]

    def loss(outputs):
        return critic.loss(outputs, None, jnp.array([target]), NEW, hp())[0]

    np.testing.assert_allclose(jax.grad(loss)(outputs), 0.0, atol=1e-5)
    assert loss(outputs + jax.random.normal(jax.random.key(0), outputs.shape)) > loss(outputs)
    np.testing.assert_allclose(critic.value(outputs, NEW)[0], target, rtol=0.02, atol=0.02)


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
        clip = critics.bootstrap_clip(PPOConfig(**settings))
        np.testing.assert_allclose(clip(value, stats(0.0, 1.0)), expected)
    clip = critics.bootstrap_clip(PPOConfig(clip_bootstrap="observed"))
    np.testing.assert_allclose(clip(value, NEW), value)  # nothing was seen yet
