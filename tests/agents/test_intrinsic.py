"""Curiosity: surprised by what is new, less and less by what is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo import spaces
from purejaxppo.agents import intrinsic
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
    )


def moves(key, shift=0.0):
    """Action 1 adds 1 to the first number, action 0 takes 1 off; the third is noise."""
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


def test_none_adds_nothing_and_learns_nothing(key):
    made = intrinsic.make(Config(), EnvSpec(VECTOR, spaces.Discrete(2), num_envs=N))
    state = made.init(key)
    assert state == () and made.figures == ()
    np.testing.assert_array_equal(made.reward(state, moves(key)), np.zeros((T, N)))
    assert made.update(state, moves(key), key, alone) == ((), {})


@pytest.mark.parametrize("kind", ["rnd", "icm"])
def test_what_was_seen_surprises_less_than_what_was_not(kind, key):
    made = make(kind)
    old, new = moves(key), moves(jax.random.key(1), shift=4.0)
    state, figures = learn(made, made.init(key), old)
    assert set(figures) == set(made.figures) == {"intrinsic/reward", "intrinsic/loss"}
    assert made.reward(state, new).mean() > 2 * made.reward(state, old).mean()


@pytest.mark.parametrize("kind", ["rnd", "icm"])
def test_rows_that_are_not_valid_have_no_part(kind, key):
    made, rows = make(kind), moves(key)
    half = rows._replace(valid=rows.valid.at[:, N // 2 :].set(False))
    garbage = half._replace(next_obs=half.next_obs.at[:, N // 2 :].set(1e3))
    state = made.init(key)
    first, _ = made.update(state, half, key, alone)
    second, _ = made.update(state, garbage, key, alone)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(made.reward(first, garbage)[:, N // 2 :], 0.0)


@pytest.mark.parametrize("kind", ["rnd", "icm"])
def test_the_bonus_is_in_standard_deviations_of_the_errors(kind, key):
    made, rows = make(kind, learning_rate=1e-30), moves(key)
    state, _ = learn(made, made.init(key), rows, times=3)
    bonus = np.asarray(made.reward(state, rows))
    np.testing.assert_allclose(bonus.std(), 1.0, rtol=0.01)


def test_rnds_target_never_learns(key):
    made = make("rnd")
    before = made.init(key)
    after, _ = learn(made, before, moves(key), times=5)
    jax.tree.map(np.testing.assert_array_equal, before.params["target"], after.params["target"])


@pytest.mark.parametrize("action", [spaces.Discrete(2), spaces.Box((2,), -1.0, 1.0)])
def test_icm_learns_to_tell_the_action(action, key):
    """Its loss is 0.8 of the inverse model's, which starts near log 2 or the Gaussian's own."""
    made, rows = make("icm", action, num_epochs=4), moves(key)
    if isinstance(action, spaces.Box):
        continuous = 2.0 * rows.action[..., None] - jnp.ones(2)
        rows = rows._replace(action=continuous)
    state = made.init(key)
    _, first = made.update(state, rows, key, alone)
    _, last = learn(made, state, rows, times=100)
    gained = first["intrinsic/loss"] - last["intrinsic/loss"]
    assert gained > 0.4  # of at most 0.8 log 2 = 0.55, or 0.8 times a squared error of about 1
