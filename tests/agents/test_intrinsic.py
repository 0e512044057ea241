"""Intrinsic rewards: high for new observations, lower for known ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo import spaces
from purejaxppo.agents.extras import intrinsic
from purejaxppo.agents.extras.intrinsic.base import from_error
from purejaxppo.config.schema import Config, IntrinsicConfig
from purejaxppo.envs.base import EnvSpec

T, N = 32, 8
VECTOR = spaces.Box((3,))


def alone(x):
    return x


def make(kind, action=None, **settings):
    config = Config(intrinsic=IntrinsicConfig(kind=kind, num_minibatches=1, **settings))
    spec = EnvSpec(VECTOR, action or spaces.Discrete(2), num_envs=N)
    made = intrinsic.make(config, spec)
    return made._replace(
        init=jax.jit(made.init),
        reward=jax.jit(made.reward),
        update=jax.jit(made.update, static_argnums=3),
        track=jax.jit(made.track, static_argnums=3),
    )


def moves(key, shift=0.0):
    """Action 1 adds 1 to the first number, action 0 subtracts 1; the third number is noise."""
    keys = jax.random.split(key, 3)
    obs = jax.random.normal(keys[0], (T, N, 3)) + shift
    action = jax.random.randint(keys[1], (T, N), 0, 2)
    moved = obs.at[..., 0].add(2.0 * action - 1.0)
    next_obs = moved.at[..., 2].set(jax.random.normal(keys[2], (T, N)))
    return intrinsic.BonusRows(obs, next_obs, action, jnp.ones((T, N), bool))


def learn(made, state, rows, times=60):
    for i in range(times):
        state, figures = made.update(state, rows, jax.random.key(i), alone)
    return state, figures


def test_kind_none_adds_no_reward_and_learns_nothing(key):
    made = intrinsic.make(Config(), EnvSpec(VECTOR, spaces.Discrete(2), num_envs=N))
    state = made.init(key)
    assert state == () and made.metric_names == ()
    np.testing.assert_array_equal(made.reward(state, moves(key)), np.zeros((T, N)))
    assert made.update(state, moves(key), key, alone) == ((), {})


@pytest.mark.parametrize("kind", ["rnd", "icm"])
def test_seen_observations_get_a_smaller_bonus_than_new_ones(kind, key):
    made = make(kind)
    old, new = moves(key), moves(jax.random.key(1), shift=4.0)
    state, figures = learn(made, made.init(key), old)
    assert set(figures) == set(made.metric_names) == {"intrinsic/reward", "intrinsic/loss"}
    assert made.reward(state, new).mean() > 2 * made.reward(state, old).mean()


@pytest.mark.parametrize("kind", ["rnd", "icm"])
def test_a_bonus_does_not_depend_on_the_action_mask(kind, key):
    space = spaces.Dict({"obs": VECTOR, spaces.MASK: spaces.Box((2,), 0.0, 1.0, "uint8")})
    config = Config(intrinsic=IntrinsicConfig(kind=kind, num_minibatches=1))
    made = intrinsic.make(config, EnvSpec(space, spaces.Discrete(2), num_envs=N))

    def rows(mask):
        masks = jnp.broadcast_to(jnp.array(mask, jnp.uint8), (T, N, 2))
        plain = moves(key)
        obs, next_obs = ({"obs": x, spaces.MASK: masks} for x in (plain.obs, plain.next_obs))
        return plain._replace(obs=obs, next_obs=next_obs)

    state = made.init(key)
    one, other = (made.reward(state, rows(mask)) for mask in ([1, 1], [1, 0]))
    np.testing.assert_array_equal(one, other)
    assert np.ptp(one) > 0


@pytest.mark.parametrize("kind", ["rnd", "icm"])
def test_invalid_rows_do_not_affect_the_bonus(kind, key):
    made, rows = make(kind), moves(key)
    half = rows._replace(valid=rows.valid.at[:, N // 2 :].set(False))
    garbage = half._replace(next_obs=half.next_obs.at[:, N // 2 :].set(1e3))
    state, returns = made.init(key), jnp.ones(N)
    first = made.track(state, returns, half, alone)
    second = made.track(state, returns, garbage, alone)
    np.testing.assert_array_equal(first[1][N // 2 :], 1.0)
    first, second = (
        (made.update(state, rows, key, alone)[0], returns)
        for (state, returns), rows in ((first, half), (second, garbage))
    )
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(made.reward(first[0], garbage)[:, N // 2 :], 0.0)


def rows_of(errors, valid=None):
    """Return rows [T, N] of a bonus whose errors are the observations."""
    errors = jnp.asarray(errors, jnp.float32)
    valid = jnp.ones(errors.shape, bool) if valid is None else jnp.asarray(valid)
    return intrinsic.BonusRows(errors, errors, errors, valid)


@pytest.fixture(scope="module")
def error_of_observations():
    """Return a bonus whose errors are the observations."""
    return from_error(
        lambda key: {"w": jnp.zeros(1)},
        lambda params, rows: (rows.next_obs, rows.next_obs + params["w"]),
        IntrinsicConfig(num_minibatches=1),
    )


@pytest.mark.toy
def test_errors_are_divided_by_the_standard_deviation_of_their_returns(error_of_observations):
    """Returns are 1, 1.99 and 2.9701, with mean 1.9867 and variance 0.64689."""
    rows = rows_of([[1], [1], [1]])
    state, returns = error_of_observations.track(
        error_of_observations.init(jax.random.key(0)), jnp.zeros(1), rows, alone
    )
    np.testing.assert_allclose(returns, [2.9701], rtol=1e-6)
    np.testing.assert_allclose(state.stats.mean, 1.9867, rtol=1e-6)
    np.testing.assert_allclose(
        error_of_observations.reward(state, rows), np.full((3, 1), 1.24332), rtol=1e-5
    )
    _, figures = error_of_observations.update(state, rows, jax.random.key(0), alone)
    np.testing.assert_allclose(figures["intrinsic/reward"], 1.24332, rtol=1e-5)


def test_bonus_equals_a_loop_over_all_steps(error_of_observations):
    """Returns continue across rollouts. Invalid rows change nothing."""
    rng = np.random.default_rng(0)
    state, carried = error_of_observations.init(jax.random.key(0)), jnp.zeros(3)
    returns, seen = np.zeros(3), []
    for _ in range(3):
        errors, valid = rng.exponential(size=(5, 3)), rng.random((5, 3)) < 0.7
        for error, known in zip(errors, valid, strict=True):
            returns = np.where(known, 0.99 * returns + error, returns)
            seen += returns[known].tolist()
        rows = rows_of(np.where(valid, errors, np.nan), valid)
        state, carried = error_of_observations.track(state, carried, rows, alone)
        np.testing.assert_allclose(carried, returns, rtol=1e-5)
        bonus = np.where(valid, errors / np.std(seen), 0.0)
        np.testing.assert_allclose(error_of_observations.reward(state, rows), bonus, rtol=1e-4)


def test_the_target_network_of_rnd_never_changes(key):
    made = make("rnd")
    before = made.init(key)
    after, _ = learn(made, before, moves(key), times=5)
    jax.tree.map(np.testing.assert_array_equal, before.params["target"], after.params["target"])


@pytest.mark.toy
def test_icm_does_not_support_custom_distributions(make_config):
    """The form of their actions is not known."""
    network, kind = {"distribution": "x.py:Custom"}, {"kind": "icm"}
    config = make_config().replace(**{"network": network, "intrinsic": kind})
    spec = EnvSpec(VECTOR, spaces.Box((2,), -1.0, 1.0), num_envs=N)
    with pytest.raises(ValueError, match=r"icm does not support network\.distribution = x\.py:"):
        intrinsic.make(config, spec)
    assert intrinsic.make(config, EnvSpec(VECTOR, spaces.Discrete(2), num_envs=N))


@pytest.mark.parametrize("action", [spaces.Discrete(2), spaces.Box((2,), -1.0, 1.0)])
def test_icm_learns_to_predict_the_action(action, key):
    """The loss is 0.8 of the inverse model's, which starts near log 2 or the Gaussian's entropy."""
    made, rows = make("icm", action, num_epochs=4), moves(key)
    if isinstance(action, spaces.Box):
        continuous = 2.0 * rows.action[..., None] - jnp.ones(2)
        rows = rows._replace(action=continuous)
    state = made.init(key)
    _, first = made.update(state, rows, key, alone)
    _, last = learn(made, state, rows, times=100)
    gained = first["intrinsic/loss"] - last["intrinsic/loss"]
    assert gained > 0.4  # of at most 0.8 log 2 = 0.55, or 0.8 times a squared error of about 1
