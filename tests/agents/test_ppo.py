"""Functions of the update: minibatches, normalised advantages, schedules, a hand-worked loss."""

from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.agents import normalize, objectives, optimizers, ppo, schedules, sequences
from purejaxppo.config.schema import Config, PPOConfig

LENGTH, NUM_ENVS = 6, 8


def identity(x):
    return x


def hyperparams(config, updates=1):
    """Return the tunable floats of a run with this number of updates."""
    run = Config(ppo=config)
    return schedules.make_hyperparams(replace(run, total_timesteps=updates * run.steps_per_update))


@pytest.mark.toy
@pytest.mark.parametrize("shuffle", ["transitions", "trajectories"])
@pytest.mark.parametrize("num_minibatches", [1, 2, 4])
def test_an_epoch_sees_each_row_exactly_once(shuffle, num_minibatches, key):
    config = PPOConfig(shuffle=shuffle, num_minibatches=num_minibatches)
    index = sequences.minibatch_indices(key, config, LENGTH, NUM_ENVS)
    assert index.shape == (num_minibatches, LENGTH * NUM_ENVS // num_minibatches)
    np.testing.assert_array_equal(np.sort(index.ravel()), np.arange(LENGTH * NUM_ENVS))


@pytest.mark.toy
def test_trajectories_keep_whole_environments_together_in_time_order(key):
    config = PPOConfig(shuffle="trajectories", num_minibatches=4)
    index = np.asarray(sequences.minibatch_indices(key, config, LENGTH, NUM_ENVS))
    time, env = np.divmod(index.reshape(4, LENGTH, 2), NUM_ENVS)
    np.testing.assert_array_equal(time, np.broadcast_to(np.arange(LENGTH)[:, None], time.shape))
    np.testing.assert_array_equal(env, np.broadcast_to(env[:, :1], env.shape))


@pytest.mark.parametrize("shuffle", ["transitions", "trajectories"])
def test_minibatches_are_uniformly_random(shuffle):
    config = PPOConfig(shuffle=shuffle, num_minibatches=2)
    indices = jax.vmap(lambda key: sequences.minibatch_indices(key, config, LENGTH, NUM_ENVS))(
        jax.random.split(jax.random.key(0), 2000)
    )
    first_half = np.zeros((2000, LENGTH * NUM_ENVS))
    np.put_along_axis(first_half, np.asarray(indices[:, 0]), 1.0, axis=1)
    # Each row is in the first minibatch half of the time; five standard errors of 2000 coins.
    assert np.all(np.abs(first_half.mean(0) - 0.5) < 5 * 0.5 / np.sqrt(2000))


@pytest.mark.toy
def test_advantage_normalization_with_invalid_rows_by_hand():
    advantage = jnp.array([[1.0, 2.0, 3.0, 99.0], [5.0, -99.0, 5.0, 11.0]])
    valid = jnp.array([[True, True, True, False], [True, False, True, True]])
    out = np.asarray(normalize.normalize_advantages(advantage, valid, identity, axis=1))
    # 1 2 3: mean 2, sample deviation 1. 5 5 11: mean 7, sample deviation sqrt(24 / 2).
    np.testing.assert_allclose(out[0, :3], [-1, 0, 1], atol=1e-6)
    np.testing.assert_allclose(out[1, [0, 2, 3]], np.array([-2, -2, 4]) / np.sqrt(12), rtol=1e-6)


def test_batch_normalised_advantages_share_one_mean_and_standard_deviation():
    rng = np.random.default_rng(0)
    advantage, valid = rng.normal(3, 2, size=(4, 10)), rng.random((4, 10)) < 0.8
    out = normalize.normalize_advantages(
        jnp.asarray(advantage), jnp.asarray(valid), identity, axis=None
    )
    seen = advantage[valid]
    np.testing.assert_allclose(
        np.asarray(out)[valid], (seen - seen.mean()) / seen.std(ddof=1), rtol=1e-4, atol=1e-5
    )


@pytest.mark.toy
@pytest.mark.parametrize("axis", [1, None])
def test_a_single_valid_row_keeps_its_advantage(axis):
    advantage = jnp.array([[4.0, 1.0], [4.0, 1.0]])
    valid = jnp.array([[True, False], [False, False]])
    out = normalize.normalize_advantages(advantage, valid, identity, axis)
    assert np.all(np.isfinite(out)) and out[0, 0] == 4


@pytest.mark.toy
def test_rows_of_two_shards_are_normalised_together():
    advantage, valid = jnp.array([[[1.0]], [[3.0]]]), jnp.ones((2, 1, 1), bool)
    total = partial(jax.lax.psum, axis_name="shards")
    out = jax.vmap(
        lambda x, ok: normalize.normalize_advantages(x, ok, total, axis=1), axis_name="shards"
    )(advantage, valid)
    # Mean 2, sample deviation sqrt(2).
    np.testing.assert_allclose(np.ravel(out), np.array([-1, 1]) / np.sqrt(2), rtol=1e-6)


@pytest.mark.toy
def test_linear_schedules_fall_to_zero_and_constant_schedules_stay_constant():
    config = PPOConfig(
        learning_rate=0.1, clip_eps=0.2, ent_coef=0.3, learning_rate_schedule="linear"
    )
    hp = hyperparams(config, 10)
    for update, expected in [(0, 0.1), (5, 0.05), (10, 0.0), (12, 0.0)]:
        now = schedules.scheduled(hp, config, update)
        np.testing.assert_allclose(now.learning_rate, expected, rtol=1e-6)
        np.testing.assert_allclose([now.clip_eps, now.ent_coef], [0.2, 0.3], rtol=1e-6)
    config = replace(
        config, learning_rate_schedule="constant", clip_schedule="linear", ent_schedule="linear"
    )
    now = schedules.scheduled(hp, config, 5)
    np.testing.assert_allclose(
        [now.learning_rate, now.clip_eps, now.ent_coef], [0.1, 0.1, 0.15], rtol=1e-6
    )


@pytest.mark.toy
def test_gamma_changes_linearly_to_its_final_value():
    config = PPOConfig(gamma=0.99, final_gamma=0.998)
    hp = hyperparams(config, 10)
    # With absent agents, some seeds make more decisions than total_timesteps.
    gammas = [schedules.scheduled(hp, config, update).gamma for update in (0, 5, 10, 20)]
    np.testing.assert_allclose(gammas, [0.99, 0.994, 0.998, 0.998], rtol=1e-6)
    assert schedules.scheduled(hp, replace(config, final_gamma=0.0), 5).gamma == hp.gamma


@pytest.fixture
def three_rows():
    """Return outputs and batch of two valid rows and an invalid one."""
    evaluation = ppo.MinibatchOutputs(
        log_prob=jnp.log(jnp.array([0.5, 0.2, 0.9])),
        entropy=jnp.array([1.0, 2.0, 50.0]),
        value_loss=jnp.array([2.0, 0.125, 50.0]),
    )
    batch = ppo.Batch(
        obs=None,
        carry=(),
        start=None,
        action=None,
        log_prob=jnp.log(jnp.array([0.25, 0.2, 0.1])),
        value=jnp.array([0.0, 2.0, 0.0]),
        target=jnp.array([3.0, 2.5, 0.0]),
        advantage=jnp.array([2.0, -1.0, 50.0]),
        valid=jnp.array([True, True, False]),
    )
    return evaluation, batch


@pytest.mark.toy
def test_the_loss_and_its_parts_by_hand(three_rows):
    hp = hyperparams(PPOConfig(clip_eps=0.2, vf_coef=0.5, ent_coef=0.1))
    total, parts = ppo.ppo_loss(*three_rows, hp, objective=objectives.OBJECTIVES["clip"])
    # Policy: ratio 2 clipped to 1.2, times 2; ratio 1, times -1. Value: 2² / 2 and 0.5² / 2.
    np.testing.assert_allclose(parts.policy_loss, -2.4 + 1.0, rtol=1e-6)
    np.testing.assert_allclose(parts.value_loss, 2.0 + 0.125, rtol=1e-6)
    np.testing.assert_allclose(parts.entropy, 3.0, rtol=1e-6)
    np.testing.assert_allclose(parts.approx_kl, 1 - np.log(2), rtol=1e-5)
    np.testing.assert_allclose(parts.clipfrac, 1.0)
    np.testing.assert_allclose(total, -1.4 + 0.5 * 2.125 - 0.1 * 3.0, rtol=1e-6)


@pytest.mark.toy
def test_approx_kl_and_clipfrac_count_only_the_original_rows(three_rows):
    evaluation, batch = three_rows
    image = evaluation._replace(log_prob=evaluation.log_prob - 3.0)
    doubled = [
        jax.tree.map(lambda x, y: jnp.concatenate([x, y]), *pair)
        for pair in ((evaluation._replace(penalty=()), image._replace(penalty=())), (batch, batch))
    ]
    doubled[0] = doubled[0]._replace(penalty=0.0)
    hp = hyperparams(PPOConfig(clip_eps=0.2))
    _, parts = ppo.ppo_loss(*doubled, hp, objective=objectives.OBJECTIVES["clip"], copies=2)
    # Of two original rows one has ratio 2, the other 1. Divided by all four rows these are means.
    np.testing.assert_allclose(parts.approx_kl / 4, (1 - np.log(2)) / 2, rtol=1e-5)
    np.testing.assert_allclose(parts.clipfrac / 4, 1 / 2)
    # The policy's loss is of both: ratios 2 e^-3 and e^-3 of the images, times -2 and 1.
    expected = -1.4 - 2 * 2 * np.exp(-3) + 0.8
    np.testing.assert_allclose(parts.policy_loss, expected, rtol=1e-5)


@pytest.fixture
def line():
    """Return a network with one parameter w and the value w x, and a batch of 4 x 2 rows."""

    def evaluate(params, rows):
        zeros = jnp.zeros_like(rows.value)
        value_loss = 0.5 * jnp.square(params["w"] * rows.obs - rows.target)
        return ppo.MinibatchOutputs(rows.log_prob + zeros, zeros, value_loss)

    rows = jnp.arange(1.0, 9.0)
    batch = ppo.Batch(
        obs=rows,
        carry=(),
        start=rows < 0,
        action=rows,
        log_prob=jnp.zeros(8),
        value=jnp.zeros(8),
        target=2.0 * rows,
        advantage=jnp.zeros(8),
        valid=rows < 7,
    )
    return evaluate, batch


def make_loss(evaluate, config):
    """Return PPO's loss of the outputs of `evaluate`, as in `ppo.Update`."""
    hp, objective = hyperparams(config), objectives.OBJECTIVES[config.objective]
    return lambda params, rows: ppo.ppo_loss(evaluate(params, rows), rows, hp, objective=objective)


def improve(line, key, **overrides):
    evaluate, batch = line
    config = PPOConfig(
        **{
            "learning_rate": 0.1,
            "num_minibatches": 1,
            "num_epochs": 1,
            "vf_coef": 1.0,
            "adam_eps": 1.0,
            **overrides,
        }
    )
    params = {"w": jnp.zeros(())}
    return ppo.update_epochs(
        ppo.Update(make_loss(evaluate, config), identity),
        params,
        optimizers.init_state(config, params),
        batch,
        hyperparams(config),
        key,
        config=config,
        num_envs=2,
    )


# The gradient of mean (w x - 2 x)² / 2 over x = 1..6 at w = 0 is -2 * 91 / 6.
GRADIENT = -2 * 91 / 6


def test_max_grad_norm_zero_disables_clipping(line, key):
    params, _, parts = improve(line, key, max_grad_norm=0.0)
    np.testing.assert_allclose(parts.grad_norm, -GRADIENT, rtol=1e-6)
    # Adam's first step is lr * g / (|g| + eps).
    np.testing.assert_allclose(params["w"], 0.1 * -GRADIENT / (-GRADIENT + 1.0), rtol=1e-5)


def test_gradients_are_scaled_down_to_max_grad_norm(line, key):
    params, _, parts = improve(line, key, max_grad_norm=0.5)
    np.testing.assert_allclose(parts.grad_norm, -GRADIENT, rtol=1e-6)
    np.testing.assert_allclose(params["w"], 0.1 * 0.5 / (0.5 + 1.0), rtol=1e-5)


def test_small_gradients_are_not_scaled_up(line, key):
    params, _, _ = improve(line, key, max_grad_norm=1e4)
    np.testing.assert_allclose(params["w"], 0.1 * -GRADIENT / (-GRADIENT + 1.0), rtol=1e-5)


def test_each_epoch_takes_one_adam_step_per_minibatch(line, key):
    _, opt_state, parts = improve(line, key, num_minibatches=4, num_epochs=3)
    assert opt_state.count == 12
    assert parts.epochs == 3


@pytest.mark.parametrize("huge", [np.inf, np.nan, 1e30])
def test_a_gradient_step_without_a_finite_norm_is_skipped_and_counted(line, key, huge):
    evaluate, batch = line
    broken = batch._replace(target=batch.target.at[2].set(huge))
    params, opt_state, parts = improve((evaluate, broken), key, num_minibatches=4)
    assert opt_state.count == 3 and parts.skipped == 1 and parts.epochs == 1
    assert params["w"] > 0
    assert all(np.isfinite(x) for x in (params["w"], opt_state.mu[0], *jax.tree.leaves(parts)))
    params, opt_state, parts = improve((evaluate, broken), key, num_epochs=2)
    assert params["w"] == opt_state.count == opt_state.mu[0] == 0 and parts.skipped == 2
    assert np.isnan(parts.value_loss)  # of no step


def test_a_minibatch_without_valid_rows_takes_no_step_and_adds_no_loss(line, key):
    evaluate, batch = line
    empty = batch._replace(valid=jnp.zeros_like(batch.valid))
    params, opt_state, parts = improve((evaluate, empty), key, num_minibatches=4, num_epochs=2)
    assert params["w"] == opt_state.count == opt_state.mu[0] == 0
    assert all(x == 0 for x in jax.tree.leaves(parts))
    # One of two is skipped: the other step is taken, and the losses are those of the other.
    half = batch._replace(valid=batch.valid & (jnp.arange(len(batch.valid)) < 1))
    _, opt_state, parts = improve((evaluate, half), key, num_minibatches=2)
    assert opt_state.count == 1 and parts.epochs == 0.5 and parts.value_loss > 0


def test_two_shards_take_the_step_of_the_whole_batch(line, key):
    evaluate, batch = line
    whole, _, whole_parts = improve(line, key)
    # Rows are time-major: shard 0 is environment 0 and shard 1 is environment 1.
    halves = jax.tree.map(lambda x: x.reshape(4, 2).T, batch)
    config = PPOConfig(
        learning_rate=0.1, num_minibatches=1, num_epochs=1, vf_coef=1.0, adam_eps=1.0
    )

    params = {"w": jnp.zeros(())}

    def shard(rows):
        return ppo.update_epochs(
            ppo.Update(make_loss(evaluate, config), lambda x: jax.lax.psum(x, "shard")),
            params,
            optimizers.init_state(config, params),
            rows,
            hyperparams(config),
            key,
            config=config,
            num_envs=1,
        )

    params, _, parts = jax.vmap(shard, axis_name="shard")(halves)
    np.testing.assert_allclose(params["w"], np.full(2, whole["w"]), rtol=1e-6)
    np.testing.assert_allclose(parts.grad_norm, np.full(2, whole_parts.grad_norm), rtol=1e-6)
    np.testing.assert_allclose(parts.value_loss, np.full(2, whole_parts.value_loss), rtol=1e-6)


@pytest.mark.parametrize("size", [1, 63, 64, 65])
def test_flattened_parameters_are_padded_to_simd_rows_and_restored(size):
    params = {"b": jnp.arange(float(size)), "w": -jnp.arange(6.0).reshape(2, 3)}
    flat, unflatten = optimizers.flatten(params)
    assert flat.size % optimizers.LANES == 0
    assert size + 6 <= flat.size < size + 6 + optimizers.LANES
    chex.assert_trees_all_equal(unflatten(flat), params)


@pytest.mark.parametrize(("kl", "factor"), [(0.0, 1.0), (0.001, 1.5), (0.02, 1.0), (0.05, 1 / 1.5)])
def test_the_adaptive_rate_changes_once_per_update(line, key, kl, factor):
    """All gradient steps of an update have the rate that follows from earlier updates."""
    evaluate, batch = line

    def diverged(params, rows):  # ratio r with r - 1 - log r = kl, up to r - 1 = 0.33
        log_ratio = jnp.log1p(np.sqrt(2 * kl) * (1 + np.sqrt(2 * kl) / 3))
        out = evaluate(params, rows)
        return out._replace(log_prob=out.log_prob + log_ratio)

    sizes = {"num_epochs": 3, "num_minibatches": 2, "optimizer": "sgd", "learning_rate": 1e-3}
    plain, _, _ = improve((diverged, batch), key, learning_rate_schedule="constant", **sizes)
    config = PPOConfig(learning_rate_schedule="adaptive")
    params, opt_state, losses = improve(
        (diverged, batch), key, learning_rate_schedule="adaptive", **sizes
    )
    np.testing.assert_allclose(losses.approx_kl, kl, rtol=0.2, atol=1e-7)
    np.testing.assert_array_equal(params["w"], plain["w"])
    rate = optimizers.metrics(config, opt_state, jnp.float32(1e-3))[optimizers.RATE_FACTOR]
    np.testing.assert_allclose(rate, factor, rtol=1e-6)  # of the next update


def test_only_parameters_with_limits_are_projected():
    params = {
        "a": {"log_std": jnp.array([-9.0, 0.5, 9.0]), "bias": jnp.full((2, 2), 9.0)},
        "b": {"log_std": jnp.array([-2.0]), "z": jnp.array([-9.0])},
    }
    flat, unravel = optimizers.flatten(params)
    project = optimizers.projection(params, {"log_std": (-1.0, 2.0)})
    projected = unravel(jax.jit(project)(flat))
    np.testing.assert_array_equal(projected["a"]["log_std"], [-1.0, 0.5, 2.0])
    np.testing.assert_array_equal(projected["b"]["log_std"], [-1.0])
    for name, part in [("a", "bias"), ("b", "z")]:
        np.testing.assert_array_equal(projected[name][part], params[name][part])
    without = {"bias": jnp.zeros(70)}
    program = jax.make_jaxpr(optimizers.projection(without, {"log_std": (-1.0, 2.0)}))
    assert not program(optimizers.flatten(without)[0]).eqns


def test_every_gradient_step_ends_within_the_limits(line, key):
    """Steps of almost 0.1 go towards w = 2; the limit is 0.25."""
    evaluate, batch = line
    config = PPOConfig(
        learning_rate=0.1, num_minibatches=1, num_epochs=6, vf_coef=1.0, max_grad_norm=0.0
    )
    params = {"w": jnp.zeros(())}
    project = optimizers.projection(params, {"w": (-1.0, 0.25)})
    params, _, _ = ppo.update_epochs(
        ppo.Update(make_loss(evaluate, config), identity, project=project),
        params,
        optimizers.init_state(config, params),
        batch,
        hyperparams(config),
        key,
        config=config,
        num_envs=2,
    )
    assert params["w"] == 0.25
