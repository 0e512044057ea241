"""The auto-reset, fresh starts and NaN containment, on a task whose every number is known."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.envs.wrappers import TimeLimit
from purejaxppo.spaces import Box, Discrete

STAY, END, NAN_OBS, NAN_REWARD, INF_OBS = range(5)


@dataclass(frozen=True)
class Clock:
    """Shows a random number that the episode keeps, and the steps since its start."""

    observation = Box((2,))
    action = Discrete(5)
    max_episode_steps: int = 1000
    cheap_reset = True

    def reset(self, key):
        """A new number."""
        state = jnp.stack([jax.random.uniform(key, minval=1.0, maxval=2.0), 0.0])
        return state, state

    def step(self, key, state, action):
        """Goes on, ends, or breaks, as the action says. What breaks stays broken."""
        del key
        state = state + jnp.array([0.0, 1.0])
        state = jnp.where(action == NAN_OBS, jnp.nan, state)
        state = jnp.where(action == INF_OBS, jnp.inf, state)
        reward = jnp.where(action == NAN_REWARD, jnp.nan, state[1])
        return state, TaskStep(state, reward, action == END, jnp.array(False))


@functools.cache
def compiled(num_envs, limit, fresh_every_step):
    """reset, step and refresh."""
    env = VectorEnv(TimeLimit(Clock(), limit), num_envs, fresh_every_step=fresh_every_step)
    return tuple(map(jax.jit, (env.reset, env.step, env.refresh)))


def run(actions, *, fresh_every_step=True, limit=1000, refresh_at=()):
    """Rows of steps, numpy [T, N], of `actions` [T, N]."""
    actions = jnp.asarray(actions)
    reset, step, refresh = compiled(actions.shape[1], limit, fresh_every_step)
    state, first = reset(jax.random.key(0))
    rows = []
    for t, action in enumerate(actions):
        if t in refresh_at:
            state = refresh(state)
        state, out = step(state, action)
        rows.append(out)
    return first, jax.tree.map(lambda *xs: np.stack(xs), *rows)


def test_an_episode_by_hand():
    first, rows = run([[STAY, STAY], [END, STAY], [STAY, STAY], [STAY, STAY]])
    np.testing.assert_array_equal(rows.obs[:, 0, 1], [1, 2, 0, 1])
    np.testing.assert_array_equal(rows.reward[:, 0], [1, 2, 0, 1])
    np.testing.assert_array_equal(rows.terminated[:, 0], [False, True, False, False])
    np.testing.assert_array_equal(rows.valid[:, 0], [True, True, False, True])
    tags = rows.obs[:, 0, 0]
    assert tags[0] == tags[1] == first[0, 0] and tags[2] == tags[3] != first[0, 0]
    np.testing.assert_array_equal(rows.obs[:, 1, 1], [1, 2, 3, 4])
    np.testing.assert_array_equal(rows.obs[:, 1, 0], np.full(4, first[1, 0]))
    assert not rows.truncated.any() and not rows.diverged.any()


def test_ending_again_on_the_reset_row_means_nothing():
    _, rows = run([[END], [END], [END], [END]])
    np.testing.assert_array_equal(rows.terminated[:, 0], [True, False, True, False])


def test_the_time_limit_truncates_unless_the_task_ends_by_itself_on_that_step():
    _, rows = run([[STAY, STAY], [STAY, STAY], [STAY, END], [STAY, STAY]], limit=3)
    np.testing.assert_array_equal(rows.truncated[2], [True, False])
    np.testing.assert_array_equal(rows.terminated[2], [False, True])
    assert not rows.truncated[[0, 1, 3]].any()


def test_starts_drawn_every_step_are_always_new():
    _, rows = run([[END]] * 10)
    assert len(np.unique(rows.obs[:, 0, 0])) == 6


def test_starts_drawn_once_are_used_again_until_refreshed():
    first, rows = run([[END]] * 10, fresh_every_step=False, refresh_at=(4,))
    starts = rows.obs[1::2, 0, 0]
    assert starts[0] == starts[1] and starts[2] == starts[3] == starts[4]
    assert len(np.unique([first[0, 0], *starts])) == 2
    first, rows = run([[END]] * 10, fresh_every_step=False, refresh_at=(0, 4))
    starts = rows.obs[1::2, 0, 0]
    assert len(np.unique([first[0, 0], *starts])) == 3


@pytest.mark.parametrize("breakage", [NAN_OBS, NAN_REWARD, INF_OBS])
@pytest.mark.parametrize("fresh_every_step", [True, False])
def test_a_broken_environment_ends_alone(breakage, fresh_every_step):
    calm = np.full((6, 3), STAY)
    broken = calm.copy()
    broken[2, 1] = breakage
    _, expected = run(calm, fresh_every_step=fresh_every_step)
    _, rows = run(broken, fresh_every_step=fresh_every_step)
    assert all(np.all(np.isfinite(x)) for x in (rows.obs, rows.reward))
    np.testing.assert_array_equal(rows.diverged.nonzero(), [[2], [1]])
    np.testing.assert_array_equal(rows.terminated, rows.diverged)
    assert rows.reward[2, 1] == 0
    # The others, bit for bit, and the episode that follows.
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a[:, [0, 2]], b[:, [0, 2]]), rows, expected
    )
    np.testing.assert_array_equal(rows.valid[:, 1], [True, True, True, False, True, True])
    np.testing.assert_array_equal(rows.obs[3:, 1, 1], [0, 1, 2])
    np.testing.assert_array_equal(rows.reward[3:, 1], [0, 1, 2])
    assert not rows.truncated.any()


def test_breaking_on_a_reset_row_is_not_counted():
    _, rows = run([[END], [NAN_OBS], [STAY]])
    assert not rows.diverged.any()
    np.testing.assert_array_equal(rows.obs[1:, 0, 1], [0, 1])


def test_diverged_episodes_are_counted_in_the_rollout():
    from purejaxppo.rollout import collect, init_rollout

    env = VectorEnv(TimeLimit(Clock(), 1000), 3, fresh_every_step=True)

    def act(key, carry, obs, start):
        action = jnp.where(obs[:, 1] == jnp.array([99.0, 1.0, 2.0]), NAN_OBS, STAY)
        return carry, action, jnp.zeros(3), action

    state = init_rollout(env, lambda batch: (), jax.random.key(0))
    _, rows, episodes = collect(env, act, state, jax.random.key(1), 6)
    # Steps 1 to 6: the second environment breaks on steps 2 and 5, the third on step 3.
    assert episodes.diverged == episodes.count == 3
    assert episodes.return_sum == 1 + 1 + (1 + 2)
    assert np.all(np.isfinite(rows.obs))
