"""Generalised advantage estimation: hand-worked, in the limits of lambda, and against a loop."""

from types import SimpleNamespace
from typing import Any

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.agents.advantages import gae, off_policy
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import Config
from purejaxppo.types import Predictions, Transition

pytestmark = pytest.mark.toy


def arguments(reward, value, terminated, truncated, valid):
    """Return the arguments of `gae` from lists or arrays [T] or [T, N]; values have T + 1 rows."""
    columns = [
        np.asarray(x, dtype).reshape(len(x), -1)
        for x, dtype in [
            (reward, np.float32),
            (value, np.float32),
            (terminated, bool),
            (truncated, bool),
            (valid, bool),
        ]
    ]
    reward, value, terminated, truncated, valid = columns
    done = terminated | truncated
    return list(map(jnp.asarray, (reward, value[:-1], value[1:], terminated, done, valid)))


def unchanged(function):
    """Return the function."""
    return function


def run(reward, value, terminated, truncated, valid, gamma, gae_lambda, variant=unchanged):
    """Return the advantages of `gae` as an array."""
    rows = arguments(reward, value, terminated, truncated, valid)
    return np.asarray(variant(gae)(*rows, gamma=gamma, gae_lambda=gae_lambda)[0])


def run_vtrace(
    ratio, reward, value, terminated, truncated, valid, gamma, gae_lambda, variant=unchanged
):
    """Return advantages and targets of `off_policy` as arrays; ratios are current / behaviour."""
    rows = arguments(reward, value, terminated, truncated, valid)
    reward, value, next_value, terminated, done, valid = rows
    log_ratio = jnp.log(jnp.asarray(np.asarray(ratio, np.float32).reshape(reward.shape)))
    transitions = Transition(
        obs=None,
        action=None,
        log_prob=jnp.full_like(reward, -1.0),
        reward=reward,
        terminated=terminated,
        truncated=done & ~terminated,
        valid=valid,
        start=~valid,
    )
    distribution: Any = SimpleNamespace(log_prob=lambda params, action: params)
    hp = make_hyperparams(Config())._replace(gamma=gamma, gae_lambda=gae_lambda)
    given = Predictions(value, next_value, log_ratio - 1.0)
    out = variant(off_policy(distribution))(transitions, reward, given, hp)
    return tuple(map(np.asarray, out))


def targets(value, correction):
    """Return values [T + 1, N] plus advantages, in float32."""
    return np.asarray(value, np.float32)[:-1] + np.asarray(correction, np.float32)


def auto_reset_rows(rng, length, num_envs, p_terminated=0.1, p_truncated=0.1):
    """Return random flags [T, N] with next-step auto-reset: a reset row after each end."""
    terminated, truncated, valid = np.zeros((3, length, num_envs), bool)
    done = rng.random(num_envs) < 0.3
    for t in range(length):
        valid[t] = ~done
        u = rng.random(num_envs)
        terminated[t] = valid[t] & (u < p_terminated)
        truncated[t] = valid[t] & (u > 1 - p_truncated)
        done = terminated[t] | truncated[t]
    return terminated, truncated, valid


class TestByHand(chex.TestCase):
    """Compiled and not, with arrays of JAX and of NumPy."""

    @chex.all_variants(with_pmap=False)
    def test_gae_of_three_steps_by_hand(self):
        # delta = 1 + 0.5 * 4 - 2 = 1;  2 + 0.5 * 6 - 4 = 1;  3 + 0.5 * 8 - 6 = 1; decay 0.25
        out = run([1, 2, 3], [2, 4, 6, 8], [0, 0, 0], [0, 0, 0], [1, 1, 1], 0.5, 0.5, self.variant)
        np.testing.assert_array_equal(out[:, 0], [1.3125, 1.25, 1.0])

    @chex.all_variants(with_pmap=False)
    def test_truncated_step_bootstraps_but_terminated_does_not(self):
        reward, value, valid = [1, 1, 0, 1], [2, 2, 8, 4, 2], [1, 1, 0, 1]
        terminated = run(reward, value, [0, 1, 0, 0], [0, 0, 0, 0], valid, 0.5, 0.5, self.variant)[
            :, 0
        ]
        truncated = run(reward, value, [0, 0, 0, 0], [0, 1, 0, 0], valid, 0.5, 0.5, self.variant)[
            :, 0
        ]
        # Row 1 ends the episode, row 2 is the reset, row 3 has delta = 1 + 0.5 * 2 - 4 = -2.
        # Terminated: 1 - 2 = -1. Truncated: 1 + 0.5 * 8 - 2 = 3. Row 0: 1 + 0.5 * 2 - 2 = 0.
        np.testing.assert_array_equal(terminated, [-0.25, -1, 0, -2])
        np.testing.assert_array_equal(truncated, [0.75, 3, 0, -2])

    @chex.all_variants(with_pmap=False)
    def test_the_next_episode_does_not_leak_into_the_previous(self):
        flags = ([0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 1])
        calm = run([1, 1, 0, 1], [1, 1, 5, 1, 1], *flags, 0.9, 0.9, self.variant)
        wild = run([1, 1, 0, 1e6], [1, 1, 5, -1e6, 1e6], *flags, 0.9, 0.9, self.variant)
        np.testing.assert_array_equal(calm[:2], wild[:2])

    @chex.all_variants(with_pmap=False)
    def test_invalid_rows_get_zero_advantage(self):
        out = run([3, 7, 3], [1, 2, 3, 4], [1, 0, 0], [0, 0, 0], [1, 0, 1], 0.9, 0.9, self.variant)
        assert out[1, 0] == 0
        assert np.all(out[[0, 2], 0] != 0)

    @chex.all_variants(with_pmap=False)
    def test_nan_rewards_and_values_of_reset_rows_do_not_spread(self):
        out = run(
            [1, 1, np.nan, 1],
            [1, 1, 1, 1, 1],
            [0, 1, 0, 0],
            [0] * 4,
            [1, 1, 0, 1],
            0.9,
            0.9,
            self.variant,
        )
        assert np.all(np.isfinite(out))

    @chex.all_variants(with_pmap=False)
    def test_vtrace_of_three_steps_by_hand(self):
        # delta = 1 in every row, as above; decay 0.25; rho = 0.5, 1 (2 is cut), 0.25.
        rows = [1, 2, 3], [2, 4, 6, 8], [0, 0, 0], [0, 0, 0], [1, 1, 1]
        advantage, target = run_vtrace([0.5, 2, 0.25], *rows, 0.5, 0.5, self.variant)
        np.testing.assert_allclose(
            advantage[:, 0], [1 + 0.25 * 1.0625, 1 + 0.25 * 0.25, 1], rtol=1e-6
        )
        expected = [2 + 0.5 * 1.265625, 4 + 1.0625, 6 + 0.25]
        np.testing.assert_allclose(target[:, 0], expected, rtol=1e-6)

    @chex.all_variants(with_pmap=False)
    def test_vtrace_gives_zero_advantage_to_invalid_rows(self):
        rows = [1, 1, np.nan, 1], [1, 1, 1, 1, 1], [0, 1, 0, 0], [0] * 4, [1, 1, 0, 1]
        advantage, target = run_vtrace([0.5, 0.5, np.nan, 2], *rows, 0.9, 0.9, self.variant)
        assert np.all(np.isfinite(advantage)) and advantage[2, 0] == 0
        assert np.all(np.isfinite(target)) and target[2, 0] == 1  # the value itself

    @chex.all_variants(with_pmap=False)
    def test_vtrace_ignores_actions_that_the_policy_no_longer_takes(self):
        # The action of row 0 now has probability 0. Its value target is its value; its advantage
        # does not change.
        rows = [5, 1], [2, 2, 2], [0, 0], [0, 0], [1, 1]
        advantage, target = run_vtrace([1e-30, 1], *rows, 0.5, 0.5, self.variant)
        np.testing.assert_allclose(target[:, 0], [2, 2], atol=1e-6)
        np.testing.assert_allclose(advantage[:, 0], [4, 0], rtol=1e-6)


@pytest.fixture
def random_rows():
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(40, 5)), rng.normal(size=(41, 5))
    flags = auto_reset_rows(rng, 40, 5)
    assert all(flag.any() for flag in flags) and not flags[2].all()
    return reward, value, *flags


def test_lambda_zero_is_the_td_error(random_rows):
    reward, value, terminated, _, valid = random_rows
    td_error = valid * (reward + 0.9 * ~terminated * value[1:] - value[:-1])
    np.testing.assert_allclose(run(*random_rows, 0.9, 0.0), td_error, rtol=1e-5, atol=1e-6)


def test_lambda_one_is_return_minus_value(random_rows):
    reward, value, terminated, truncated, valid = random_rows
    expected = np.zeros_like(reward)
    for n in range(reward.shape[1]):
        for t in np.flatnonzero(valid[:, n]):
            total, discount, u = 0.0, 1.0, t
            while True:
                total += discount * reward[u, n]
                discount *= 0.9
                if terminated[u, n]:
                    break
                if truncated[u, n] or u + 1 == len(reward):
                    total += discount * value[u + 1, n]
                    break
                u += 1
            expected[t, n] = total - value[t, n]
    np.testing.assert_allclose(run(*random_rows, 0.9, 1.0), expected, rtol=1e-4, atol=1e-5)


def test_gae_equals_a_plain_loop(random_rows):
    reward, value, terminated, truncated, valid = random_rows
    gamma, gae_lambda = 0.97, 0.9
    expected, later = np.zeros_like(reward), np.zeros(reward.shape[1])
    for t in reversed(range(len(reward))):
        for n in range(reward.shape[1]):
            if not valid[t, n]:
                later[n] = 0.0
                continue
            delta = reward[t, n] - value[t, n]
            if not terminated[t, n]:
                delta += gamma * value[t + 1, n]
            trace = 0.0 if terminated[t, n] or truncated[t, n] else gamma * gae_lambda * later[n]
            later[n] = expected[t, n] = delta + trace
    out = run(*random_rows, gamma, gae_lambda)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gamma", [0.5, 0.75])
def test_a_correct_constant_value_gives_zero_advantage_under_time_limits(gamma):
    _, truncated, valid = auto_reset_rows(np.random.default_rng(1), 50, 4, 0.0, 0.3)
    assert truncated.any()
    value = np.full((51, 4), 1 / (1 - gamma))
    out = run(valid.astype(float), value, np.zeros_like(valid), truncated, valid, gamma, 0.95)
    np.testing.assert_array_equal(out, np.zeros_like(out))


def test_targets_are_values_plus_advantages(random_rows):
    advantage, target = gae(*arguments(*random_rows), gamma=0.97, gae_lambda=0.9)
    np.testing.assert_array_equal(target, targets(random_rows[1], advantage))


def test_vtrace_of_the_acting_policy_equals_gae(random_rows):
    advantage, target = run_vtrace(np.ones(random_rows[0].shape), *random_rows, 0.97, 0.9)
    expected = run(*random_rows, 0.97, 0.9)
    np.testing.assert_array_equal(advantage, expected)
    np.testing.assert_array_equal(target, targets(random_rows[1], expected))


def test_vtrace_clips_ratios_above_one(random_rows):
    ratio = np.random.default_rng(1).uniform(1, 5, random_rows[0].shape)
    expected = targets(random_rows[1], run(*random_rows, 0.97, 0.9))
    np.testing.assert_array_equal(run_vtrace(ratio, *random_rows, 0.97, 0.9)[1], expected)


def test_vtrace_targets_equal_the_sum_in_the_paper(random_rows):
    """Equation 1: v + sum over s of gamma^(s-t) (product of c) rho delta."""
    reward, value, terminated, truncated, valid = random_rows
    ratio = np.random.default_rng(2).uniform(0.2, 2, reward.shape)
    gamma, gae_lambda, rho = 0.97, 0.9, np.minimum(ratio, 1)
    expected = np.zeros_like(reward)
    for n in range(reward.shape[1]):
        for t in np.flatnonzero(valid[:, n]):
            weight = 1.0
            for s in range(t, len(reward)):
                last = 0.0 if terminated[s, n] else value[s + 1, n]
                delta = rho[s, n] * (reward[s, n] + gamma * last - value[s, n])
                expected[t, n] += weight * delta
                weight *= gamma * gae_lambda * rho[s, n]
                if terminated[s, n] or truncated[s, n]:
                    break
    _, target = run_vtrace(ratio, *random_rows, gamma, gae_lambda)
    np.testing.assert_allclose(target - value[:-1], expected, rtol=1e-4, atol=1e-5)


def test_arrays_of_wrong_shapes_or_types_are_rejected():
    rows = arguments([1, 2], [1, 2, 3], [0, 0], [0, 0], [1, 1])
    wrong = {0: rows[0][:, 0], 2: rows[2][:1], 3: rows[0], 5: rows[5].astype(int)}
    for place, array in wrong.items():
        with pytest.raises(AssertionError):
            gae(*rows[:place], array, *rows[place + 1 :], gamma=0.9, gae_lambda=0.9)
