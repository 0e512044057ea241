"""Optimisers over one vector, schedules, and the effect of the KL divergence."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from purejaxppo.agents import epochs, optimizers, schedules
from purejaxppo.config.schema import Config, PPOConfig
from purejaxppo.types import Losses


@pytest.fixture
def params(key):
    keys = jax.random.split(key)
    return {"b": jax.random.normal(keys[0], (5,)), "w": jax.random.normal(keys[1], (4, 5))}


def step(params, gradient, steps=2, **config):
    """Return the updates of an optimiser of the package for gradients as trees."""
    config = PPOConfig(**config)
    flat, _ = optimizers.flatten(params)
    optimizer = optimizers.make(config, params)
    state = optimizer.init(flat)
    for _ in range(steps):
        updates, state = optimizer.update(optimizers.flatten(gradient)[0], state, flat)
    return optimizer.unravel(updates)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("adam", optax.adam(1.0, eps=1e-5)),
        ("nadam", optax.nadam(1.0, eps=1e-5)),
        ("adabelief", optax.adabelief(1.0)),
        ("lion", optax.lion(1.0, weight_decay=0.0)),
        ("rmsprop", optax.rmsprop(1.0, decay=0.99, eps=1e-5)),
        ("sgd", optax.sgd(1.0)),
    ],
)
def test_each_optimizer_equals_optax_with_a_step_size_of_one(params, name, theirs):
    gradient = jax.tree.map(jnp.sin, params)
    ours = step(params, gradient, optimizer=name)
    state = theirs.init(params)
    for _ in range(2):
        expected, state = theirs.update(gradient, state, params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, -b, rtol=1e-4, atol=1e-6), ours, expected
    )


def test_muon_makes_matrices_orthogonal_and_leaves_the_rest_to_nadam(params):
    gradient = jax.tree.map(jnp.sin, params)
    updates = step(params, gradient, steps=1, optimizer="muon")
    singular = np.linalg.svd(updates["w"], compute_uv=False)
    assert singular.max() / singular.min() < 2.0
    before = np.linalg.svd(gradient["w"], compute_uv=False)
    assert before.max() / before.min() > 2.5
    # Root mean square 0.2 per element: 0.2 sqrt(max(4, 5)) times an orthogonal matrix.
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(updates["w"]))), 0.2, rtol=0.3)
    expected = step(params, gradient, steps=1, optimizer="nadam", adam_eps=1e-8)
    np.testing.assert_allclose(updates["b"], expected["b"], rtol=1e-4)


def test_weight_decay_is_decoupled_and_applies_to_matrices_only(params):
    gradient = jax.tree.map(jnp.sin, params)
    plain = step(params, gradient, optimizer="adamw")
    decayed = step(params, gradient, optimizer="adamw", weight_decay=0.1)
    np.testing.assert_allclose(decayed["b"], plain["b"])
    np.testing.assert_allclose(decayed["w"], plain["w"] + 0.1 * params["w"], rtol=1e-5)


def rate_after(params, kls, rate=1e-3, **limits):
    """Return the step size, adapted to the mean KL divergences of several updates."""
    settings = {"learning_rate_schedule": "adaptive", "target_kl": 0.02}
    optimizer = optimizers.make(PPOConfig(**settings, **limits), params)
    state, rate = optimizer.init(optimizers.flatten(params)[0]), jnp.float32(rate)
    for kl in kls:
        state = optimizer.adapt(state, rate, jnp.float32(kl))
    return optimizer.rate(state, rate)


@pytest.mark.parametrize(
    ("kls", "factor"),
    [
        ([], 1.0),
        ([0.05], 1 / 1.5),
        ([0.05, 0.041], 1.5**-2),
        ([0.039, 0.02, 0.011], 1.0),
        ([0.009, 0.001, 0.001], 1.5**3),
        ([0.0], 1.0),  # no gradient step moved the policy
        ([np.nan], 1.0),
    ],
)
def test_the_adaptive_rate_follows_the_kl_of_updates(params, kls, factor):
    np.testing.assert_allclose(rate_after(params, kls), factor * 1e-3, rtol=1e-5)


@pytest.mark.parametrize(
    ("kls", "rate", "limits", "expected"),
    [
        ([0.001], 8e-3, {}, 1e-2),  # 1.5 x 8e-3 is above 1e-2
        ([0.001], 2e-3, {}, 3e-3),
        ([0.05], 1.2e-5, {}, 1e-5),  # 1.2e-5 / 1.5 is below 1e-5
        ([0.05], 1e-3, {"min_learning_rate": 9e-4}, 9e-4),
        ([0.001], 1e-3, {"max_learning_rate": 1.2e-3}, 1.2e-3),
        ([], 1.0, {}, 1e-2),  # a rate outside the limits starts at the nearest
        ([0.05], 1.0, {}, 1e-2 / 1.5),
        ([0.001], 0.0, {}, 0.0),
    ],
)
def test_adaptive_rate_stays_within_its_limits(params, kls, rate, limits, expected):
    np.testing.assert_allclose(rate_after(params, kls, rate, **limits), expected, rtol=1e-5)


def test_a_warm_up_does_not_change_the_rate_after_it(params):
    """The KL is always on target. The first rate, 3e-7, is below min_learning_rate."""
    settings = {"learning_rate_schedule": "adaptive", "target_kl": 0.02}
    optimizer = optimizers.make(PPOConfig(**settings), params)
    state = optimizer.init(optimizers.flatten(params)[0])
    for rate in jnp.array([0.0, 3e-7, 1e-5, 3e-4]):
        np.testing.assert_allclose(optimizer.rate(state, rate), rate)
        state = optimizer.adapt(state, rate, jnp.float32(0.02))


def test_the_kl_of_an_epoch_is_the_mean_over_the_gradient_steps_taken():
    """Minibatches 0 and 3 have no valid rows, and the gradient of 4 is not finite."""
    parts = Losses._make([jnp.zeros(5)] * len(Losses._fields))
    taken, kl = jnp.array([0.0, 1, 1, 0, 0]), jnp.array([0.0, 0.03, 0.05, 0.0, np.nan])
    found = epochs.mean_kl(None, parts._replace(epochs=taken, approx_kl=kl))
    np.testing.assert_allclose(found, 0.04, rtol=1e-6)


def test_epochs_stop_after_one_that_exceeds_the_kl_limit():
    divergence = jnp.array([0.001, 0.03, 0.001, 0.001])

    def epoch(state, key):
        del key
        parts = Losses._make([jnp.ones(2)] * len(Losses._fields))
        return state + 1, parts._replace(approx_kl=jnp.full(2, divergence[state]))

    run = partial(epochs.until_kl(0.02), epoch, jnp.int32(0))
    state, parts = jax.jit(run)(jax.random.split(jax.random.key(0), 4))
    assert state == 2
    np.testing.assert_array_equal(parts.epochs, [[1, 1], [1, 1], [0, 0], [0, 0]])
    other = epochs.until_kl(0.5, lambda state, losses: state / 4.0)
    state, parts = other(epoch, jnp.int32(0), jax.random.split(jax.random.key(0), 4))
    assert state == 3  # after 2 epochs it is 0.5, after 3 it is 0.75
    state, parts = epochs.scan(epoch, jnp.int32(0), jax.random.split(jax.random.key(0), 4))
    assert state == 4


@pytest.mark.toy
@pytest.mark.parametrize(
    ("name", "values"),
    [  # at 0, a quarter, a half, three quarters and the end
        ("constant", [1, 1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25, 0]),
        ("cosine", [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0]),
        ("exponential", [1, 0.01**0.25, 0.1, 0.01**0.75, 0.01]),
        ("step", [1, 1, 0.1, 0.01, 0.01]),
    ],
)
def test_schedules_by_hand(name, values):
    progress = jnp.linspace(0, 1, 5)
    np.testing.assert_allclose(schedules.factor(name, progress), values, atol=1e-6)
    warm = schedules.factor(name, progress, warmup=0.5)
    np.testing.assert_allclose(warm, np.array([0, 0.5, 1, 1, 1]) * values, atol=1e-6)
    assert schedules.factor(name, 1.5) == schedules.factor(name, 1.0)


def test_the_first_update_of_a_warm_up_has_a_nonzero_rate():
    """Ten updates with a warm-up of four have 1/4, 2/4, 3/4 and 4/4 of the rate, not 0 to 3/4."""
    config = PPOConfig(
        learning_rate=0.1, learning_rate_schedule="constant", learning_rate_warmup=0.4
    )
    run = Config(ppo=config)
    hp = schedules.make_hyperparams(replace(run, total_timesteps=10 * run.steps_per_update))
    rates = [schedules.scheduled(hp, config, update).learning_rate for update in range(6)]
    np.testing.assert_allclose(rates, [0.025, 0.05, 0.075, 0.1, 0.1, 0.1], rtol=1e-5)
