"""One step of acting, with the rows of two environments computed by hand."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.envs.base import Env, EnvSpec, EnvStep
from purejaxppo.envs.host.bridge import HostState
from purejaxppo.rollout import begin_episodes, collect, ended, init_rollout, step
from purejaxppo.runs.episodes import add_step, no_episodes_yet
from purejaxppo.spaces import Box, Discrete
from purejaxppo.streams import ENVIRONMENTS, stream
from purejaxppo.types import PolicyStep, named_leaves

pytestmark = pytest.mark.toy


METRICS = (("sum", "sum"), ("mean", "mean"), ("last", "last"))


class Playback(Env):
    """Replays given rows; the state is (row, key)."""

    def __init__(self, **columns):
        columns = {name: np.array(x) for name, x in columns.items()}
        length, n = columns["reward"].shape
        no, yes = np.zeros((length, n), bool), np.ones((length, n), bool)
        default = {"terminated": no, "truncated": no, "valid": yes, "diverged": no}
        obs = np.arange(1.0, 1 + length)[:, None, None] * np.ones((n, 1))
        self.rows = jax.tree.map(jnp.asarray, EnvStep(obs=obs, **{**default, **columns}))
        absent = "absent" in columns
        names = METRICS if "metrics" in columns else ()
        self.spec = EnvSpec(Box((1,)), Discrete(2), num_envs=n, absent=absent, metrics=names)

    def reset(self, key):
        return (0, key), jnp.zeros((self.spec.num_envs, 1))

    def step(self, key, state, action):
        row, _ = state
        return (row + 1, key), jax.tree.map(lambda x: x[row], self.rows)


def act(key, carry, obs, start):
    """Count the steps of an episode in the carry."""
    n = len(obs)
    carry = jnp.where(start, 0, carry) + 1
    return PolicyStep(carry, jnp.zeros(n, jnp.int32), jnp.zeros(n), jnp.zeros(n, jnp.int32))


def run_steps(env, length, first=None):
    """Return the states and rows of `length` steps, and the first episodes after them."""
    state = begin_episodes(env, env.reset(jax.random.key(0)), lambda batch: jnp.zeros(batch, int))
    first = no_episodes_yet(env.spec.num_envs, len(env.spec.metrics))
    states, rows = [], []
    for t in range(length):
        state, row = step(env, act, state, jax.random.key(t))
        first = add_step(first, row)
        states.append(state)
        rows.append(row)
    return states, rows, first


def columns(values, name):
    return np.array([getattr(value, name) for value in values])


def test_returns_sum_rewards_and_restart_after_an_end():
    # Column 0 ends at row 1, column 1 never.
    env = Playback(
        reward=[[1.0, 5.0], [2.0, 6.0], [0.0, 7.0], [4.0, 8.0]],
        terminated=[[False, False], [True, False], [False, False], [False, False]],
        valid=[[True, True], [True, True], [False, True], [True, True]],
    )
    states, rows, first = run_steps(env, 4)
    np.testing.assert_array_equal(
        columns(rows, "episode_return"), [[1, 5], [3, 11], [0, 18], [4, 26]]
    )
    np.testing.assert_array_equal(columns(rows, "episode_length"), [[1, 1], [2, 2], [0, 3], [1, 4]])
    np.testing.assert_array_equal(states[1].episode_return, [0, 11])
    assert tuple(ended(rows[1])) == (1, 3.0, 2, 0, None)
    assert tuple(ended(rows[0])) == (0, 0.0, 0, 0, None)
    np.testing.assert_array_equal(columns(states, "start")[:, 0], [False, False, True, False])
    np.testing.assert_array_equal(first.returns, [3, 26])
    np.testing.assert_array_equal(first.lengths, [2, 4])
    np.testing.assert_array_equal(first.finished, [True, False])


def test_metrics_are_reduced_over_an_episode_and_restart_after_it():
    # The episode ends at row 2, row 3 only resets, and row 1 has no value of "mean" and "last".
    nan = np.nan
    values = [[[1, 1, 1]], [[2, nan, nan]], [[4, 5, 7]], [[nan] * 3], [[8, 8, 8]]]
    over, valid = [[False], [False], [True], [False], [False]], [[True]] * 3 + [[False], [True]]
    env = Playback(reward=np.zeros((5, 1)), metrics=values, terminated=over, valid=valid)
    states, rows, first = run_steps(env, 5)
    reduced = [row.episode_metrics.reduced[0] for row in rows]
    expected = [[1, 1, 1], [3, 1, 1], [7, 3, 7], [0, nan, nan], [8, 8, 8]]
    np.testing.assert_array_equal(reduced, expected)
    np.testing.assert_array_equal(states[2].episode_metrics.reduced, [[0, nan, nan]])
    np.testing.assert_array_equal(first.metrics, [[7, 3, 7]])
    sums = ended(rows[2]).metrics
    assert sums.total.tolist() == [7, 3, 7] and sums.count.tolist() == [1, 1, 1]
    assert ended(rows[1]).metrics.count.tolist() == [0, 0, 0]


def test_metrics_of_random_episodes_equal_those_of_a_plain_loop():
    """Episodes end, are truncated, or diverge; some steps have no value."""
    random, (length, n) = np.random.default_rng(0), (200, 5)
    end = random.choice(4, (length, n), p=[0.85, 0.05, 0.05, 0.05])  # none, over, limit, diverged
    values = random.normal(size=(length, n, 3))
    values[random.random((length, n)) < 0.3] = np.nan
    valid = np.ones((length, n), bool)
    valid[1:] = ~np.isin(end[:-1], (1, 2))  # rows of resets
    end[~valid] = 0
    valid &= end != 3
    values[~valid] = np.nan
    env = Playback(
        reward=np.zeros((length, n)),
        metrics=values,
        terminated=end == 1,
        truncated=end == 2,
        diverged=end == 3,
        valid=valid,
    )

    def reduced(episode):
        sums, means, lasts = (x[~np.isnan(x)] for x in np.transpose(episode))
        mean, last = (means.mean(), lasts[-1]) if len(means) and len(lasts) else (np.nan, np.nan)
        return sums.sum(), mean, last

    expected = []
    for i in range(n):
        episode = []
        for t in range(length):
            episode += [values[t, i]] if valid[t, i] else []
            if end[t, i] in (1, 2):
                expected.append(reduced(episode))
            if end[t, i]:
                episode = []
    state = init_rollout(env, lambda batch: jnp.zeros(batch, int), jax.random.key(0))
    sums = collect(env, act, state, jax.random.key(0), length).episodes.metrics
    present = ~np.isnan(expected)
    np.testing.assert_array_equal(sums.count, present.sum(axis=0))
    assert 50 < present.sum(axis=0).min() < len(expected)
    np.testing.assert_allclose(sums.total, np.nansum(expected, axis=0), rtol=1e-5)


def test_reported_returns_sum_scores_until_the_end_of_the_game():
    # A life is lost at row 0, the game at row 1.
    env = Playback(
        reward=[[1.0], [1.0]],
        score=[[100.0], [50.0]],
        terminated=[[True], [True]],
        over=[[False], [True]],
    )
    _, rows, first = run_steps(env, 2)
    assert ended(rows[0]).count == 0 and ended(rows[1]).return_sum == 150
    assert (first.returns, first.finished) == (150, True)


def test_rewards_of_an_absent_agent_count_and_its_carry_is_held():
    # Decisions are at rows 0 and 2; the agent is absent at row 1, which has a reward.
    env = Playback(
        reward=[[1.0], [2.0], [4.0]],
        valid=[[True], [False], [True]],
        absent=[[True], [False], [False]],
    )
    states, rows, first = run_steps(env, 3)
    np.testing.assert_array_equal(columns(rows, "episode_return"), [[1], [3], [7]])
    np.testing.assert_array_equal(columns(rows, "episode_length"), [[1], [1], [2]])
    np.testing.assert_array_equal(columns(states, "carry"), [[1], [1], [2]])
    np.testing.assert_array_equal(columns(states, "absent"), [[True], [False], [False]])
    assert not columns(states, "start").any()
    assert (first.returns, first.lengths) == (7, 2)


def test_after_a_same_step_reset_the_next_episode_has_a_new_return_and_carry():
    # The observation of row 1 is the first of the next episode, and row 2 is valid.
    env = Playback(
        reward=[[1.0], [2.0], [4.0]],
        terminated=[[False], [True], [False]],
        at_once=[[False], [True], [False]],
    )
    states, rows, first = run_steps(env, 3)
    np.testing.assert_array_equal(columns(states, "start"), [[False], [True], [False]])
    np.testing.assert_array_equal(columns(states, "carry"), [[1], [2], [1]])
    np.testing.assert_array_equal(columns(rows, "episode_return"), [[1], [3], [4]])
    assert first.returns == 3


def test_a_diverged_step_ends_an_episode_without_a_return():
    env = Playback(
        reward=[[1.0], [0.0], [4.0]],
        valid=[[True], [False], [True]],
        diverged=[[False], [True], [False]],
    )
    states, rows, first = run_steps(env, 3)
    np.testing.assert_array_equal(columns(rows, "episode_return"), [[1], [1], [4]])
    np.testing.assert_array_equal(columns(states, "start"), [[False], [True], [False]])
    assert tuple(ended(rows[1])) == (0, 0.0, 0, 1, None)
    assert np.isnan(first.returns) and first.lengths == 1 and first.finished


def test_policy_and_environments_draw_from_different_keys_of_a_step():
    env, key, seen = Playback(reward=[[1.0]]), jax.random.key(5), []
    state = begin_episodes(env, env.reset(key), lambda batch: ())

    def watched(key, *now):
        seen.append(key)
        return act(key, jnp.zeros(1, int), *now[1:])

    after, _ = step(env, watched, state, key)
    assert seen == [key] and after.env[1] == stream(key, ENVIRONMENTS) != key
    keys = jax.random.split(key, 3)  # of three groups of rows
    grouped = step(env, watched, state, keys)[0].env[1]
    assert list(grouped) == [stream(k, ENVIRONMENTS) for k in keys]


def test_only_training_rollouts_have_open_decisions():
    env = Playback(reward=[[1.0], [1.0]], absent=[[False], [False]])
    assert run_steps(env, 2)[0][-1].open is None
    rollout = collect(env, act, init_rollout(env, lambda b: jnp.zeros(b, int), KEY), KEY, 2)
    assert rollout.end.open.reward == 1
    always = Playback(reward=[[1.0]])
    state = init_rollout(always, lambda batch: (), KEY)
    assert state.open is None and state.absent is None


def test_game_time_is_the_metric_ticks_and_1_in_steps_without_it():
    env = Playback(reward=[[1.0]] * 3, metrics=[[[7.0]], [[4.0]], [[np.nan]]])
    init = partial(init_rollout, env, lambda b: jnp.zeros(b, int), KEY)
    assert collect(env, act, init(), KEY, 3).transitions.ticks is None
    assert init().ticks is None
    env.spec = replace(env.spec, metrics=(("ticks", "sum"),))
    ticks = collect(env, act, init(count_ticks=True), KEY, 3).transitions.ticks
    np.testing.assert_array_equal(ticks, [[7], [4], [1]])


def test_a_state_without_absent_agents_stores_nothing_about_them():
    always, sparse = (
        named_leaves(init_rollout(env, lambda batch: (), KEY))
        for env in (Playback(reward=[[1.0]]), Playback(reward=[[1.0]], absent=[[False]]))
    )
    decision = ("obs", "action", "log_prob", "reward", "valid", "start")
    assert sparse.keys() - always.keys() == {"absent", *(f"open.{name}" for name in decision)}
    host = HostState(token=jnp.zeros(()), done=jnp.zeros(1), lost=jnp.zeros(1))
    assert named_leaves(host).keys() == {"token", "done", "lost"}


KEY = jax.random.key(0)
