"""Auto-reset, fresh starts and NaN containment, on a task with known numbers."""

import functools
import itertools
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.stepping import KEY, begin

from purejaxppo.agents.advantages import gae
from purejaxppo.agents.normalize import discounted_returns
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.vectorize import VectorEnv, bounded, stride
from purejaxppo.envs.wrappers import TimeLimit
from purejaxppo.rollout import collect, init_rollout
from purejaxppo.spaces import LARGEST, Box, Dict, Discrete
from purejaxppo.types import PolicyStep

STAY, END, NAN_OBS, NAN_REWARD, INF_OBS, HUGE_OBS, HUGE_REWARD = range(7)


@dataclass(frozen=True)
class Clock:
    """A task that observes a random number of the episode and the steps since its start."""

    observation = Box((2,))
    action = Discrete(7)
    max_episode_steps: int = 1000
    cheap_reset = True

    def reset(self, key):
        """A new number."""
        state = jnp.stack([jax.random.uniform(key, minval=1.0, maxval=2.0), 0.0])
        return state, state

    def step(self, key, state, action):
        """Continue, end, or diverge, depending on the action. A diverged state stays diverged."""
        del key
        state = state + jnp.array([0.0, 1.0])
        state = jnp.where(action == NAN_OBS, jnp.nan, state)
        state = jnp.where(action == INF_OBS, jnp.inf, state)
        state = jnp.where(action == HUGE_OBS, 1.01 * LARGEST, state)
        reward = jnp.where(action == NAN_REWARD, jnp.nan, state[1])
        reward = jnp.where(action == HUGE_REWARD, -1.01 * LARGEST, reward)
        return state, TaskStep(state, reward, action == END, jnp.array(False))


@functools.cache
def compiled(num_envs, limit, fresh_every_step):
    """Return compiled reset, step and begin_rollout."""
    env = VectorEnv(TimeLimit(Clock(), limit), num_envs, fresh_every_step=fresh_every_step)
    return tuple(map(jax.jit, (env.reset, env.step, partial(begin, env))))


def run(actions, *, fresh_every_step=True, limit=1000, refresh_at=()):
    """Return the first observation and the rows, numpy [T, N], of `actions` [T, N]."""
    actions = jnp.asarray(actions)
    reset, step, refresh = compiled(actions.shape[1], limit, fresh_every_step)
    state, first = reset(jax.random.key(0))
    rows = []
    for t, action in enumerate(actions):
        if t in refresh_at:
            state = refresh(state)
        state, out = step(jax.random.key(t), state, action)
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


def test_an_end_on_a_reset_row_is_ignored():
    _, rows = run([[END], [END], [END], [END]])
    np.testing.assert_array_equal(rows.terminated[:, 0], [True, False, True, False])


def test_the_time_limit_truncates_unless_the_task_terminates_on_that_step():
    _, rows = run([[STAY, STAY], [STAY, STAY], [STAY, END], [STAY, STAY]], limit=3)
    np.testing.assert_array_equal(rows.truncated[2], [True, False])
    np.testing.assert_array_equal(rows.terminated[2], [False, True])
    assert not rows.truncated[[0, 1, 3]].any()


def test_starts_drawn_every_step_are_always_new():
    _, rows = run([[END]] * 10)
    assert len(np.unique(rows.obs[:, 0, 0])) == 6


@pytest.mark.parametrize("num_envs", [1, 2, 5, 8, 512])
def test_the_episodes_of_an_environment_take_all_starts_in_turn(num_envs):
    step = stride(num_envs)
    turns = (np.arange(num_envs) * step) % num_envs
    assert sorted(turns) == list(range(num_envs))
    assert num_envs < 5 or 1 < step < num_envs - 1


@pytest.mark.toy
def test_the_stride_of_16_million_environments_is_found_quickly():
    # 2**24 (sqrt(5) - 1) / 2 = 10368889.7; even numbers have a common divisor with 2**24.
    assert stride(2**24) == 10368889


def test_starts_drawn_once_are_taken_with_a_stride_until_refreshed():
    # 17 environments that end together: stride 11. The first row has the first starts.
    end = [[END] * 17] * 12
    first, rows = run(end, fresh_every_step=False)
    starts = np.array([first[:, 0], *rows.obs[1::2, :, 0]])
    for k in range(7):
        np.testing.assert_array_equal(starts[k], starts[0][(np.arange(17) + 11 * k) % 17])
    # Starts after the third are new, and the order continues.
    first, rows = run(end, fresh_every_step=False, refresh_at=(6,))
    starts = np.array([first[:, 0], *rows.obs[1::2, :, 0]])
    assert not np.isin(starts[4:], starts[:4]).any()
    np.testing.assert_array_equal(starts[5], starts[4][(np.arange(17) + 11) % 17])


def test_five_environments_take_turns_at_twenty_starts():
    # ceil(16 / 5) = 4 starts for each; 20 (sqrt(5) - 1) / 2 = 12.4, and 12 has common divisors.
    end = [[END] * 5] * 42
    first, rows = run(end, fresh_every_step=False)
    starts = np.array([first[:, 0], *rows.obs[1::2, :, 0]])
    drawn = np.unique(starts)
    assert len(drawn) == 20
    for n in range(5):
        np.testing.assert_array_equal(np.unique(starts[:20, n]), drawn)
        np.testing.assert_array_equal(starts[20:, n], starts[:2, n])
    place = (np.arange(5) + 13 * np.arange(20)[:, None]) % 20
    by_place = np.empty(20, starts.dtype)
    by_place[place.ravel()] = starts[:20].ravel()
    np.testing.assert_array_equal(by_place[place], starts[:20])


def test_few_environments_draw_part_of_sixteen_starts_for_each_rollout():
    class Expensive(Clock):
        fresh_fraction = 0.25

    env = VectorEnv(Expensive(), 2, fresh_every_step=False)
    state, _ = env.reset(jax.random.key(0))
    known = [env.starts(state).obs[:, 0]]
    for _ in range(4):
        state = begin(env, state)
        known.append(env.starts(state).obs[:, 0])
    changed = [np.flatnonzero(np.asarray(a != b)) for a, b in itertools.pairwise(known)]
    np.testing.assert_array_equal(changed, np.arange(16).reshape(4, 4))


def test_starts_returns_the_first_observation_of_each_environment():
    env = VectorEnv(Clock(), 5, fresh_every_step=False)
    state, _ = env.reset(jax.random.key(0))
    state = begin(env, state)
    for _ in range(3):
        for action in (END, STAY):
            state, out = env.step(KEY, state, jnp.full(5, action))
        known, place = env.starts(state)
        np.testing.assert_array_equal(out.obs, known[place])


@dataclass(frozen=True)
class Counting:
    """A task with integer counts and rewards, and a float that is NaN from the third step on."""

    observation = Dict.of({"count": Box((1,)), "even": Box((1,), 0.0, 1.0, "bool"), "x": Box((1,))})
    action = Discrete(2)
    max_episode_steps: int = 50
    cheap_reset = False

    def reset(self, key):
        """Start at -1."""
        return jnp.int32(-1), self.see(jnp.int32(-1))

    def see(self, count):
        """Return the count, an integer that is a flag, and a float."""
        x = jnp.where(count < 2, 0.5, jnp.nan)
        return {"count": count[None], "even": 1 - abs(count[None]) % 2, "x": x[None]}

    def step(self, key, state, action):
        """Add 1. The reward is the count."""
        return state + 1, TaskStep(self.see(state + 1), state + 1, jnp.array(False), False)


@pytest.mark.parametrize("fresh_every_step", [True, False])
def test_integer_observations_keep_their_dtype_and_float_parts_are_checked(fresh_every_step):
    env = VectorEnv(Counting(), 2, fresh_every_step=fresh_every_step)
    state, obs = env.reset(jax.random.key(0))
    state = begin(env, state)
    rows = [obs]
    for valid, reward in ((True, 0), (True, 1), (False, 0), (True, 0)):
        state, out = jax.jit(env.step)(KEY, state, jnp.zeros(2, jnp.int32))
        rows.append(out.obs)
        assert np.all(out.valid == valid) and np.all(out.reward == reward)
        assert out.reward.dtype == np.float32 and np.all(out.diverged != valid)
    for row, count in zip(rows, (-1, 0, 1, -1, 0), strict=True):
        assert {name: x.dtype for name, x in row.items()} == {
            name: np.dtype(part.dtype) for name, part in Counting.observation.spaces
        }
        assert np.all(row["count"] == count) and np.all(row["even"] == (count == 0))
    if not fresh_every_step:
        assert env.starts(state).obs["count"].dtype == np.float32


@dataclass(frozen=True)
class TwoKinds:
    """Episodes of 2 or of 50 steps, decided at the start, with reward 1 per step."""

    observation = Box(())
    action = Discrete(2)
    max_episode_steps: int = 50
    cheap_reset = False

    def reset(self, key):
        """Start either kind with equal probability."""
        length = jnp.where(jax.random.bernoulli(key), 50.0, 2.0)
        return (length, jnp.zeros(())), length

    def step(self, key, state, action):
        """Advance by one step."""
        length, steps = state[0], state[1] + 1
        return (length, steps), TaskStep(length, 1.0, steps >= length, jnp.array(False))


def renewal(rows):
    """Compute the expected (share of steps in long episodes, mean return) of rows of `TwoKinds`.

    An episode of L steps takes L + 1 rows; with r rows to go, the sums S(r) of (steps in long
    episodes, steps, episodes that ended, their returns) are what the first adds plus S(r - L - 1).
    """
    sums = np.zeros((rows + 1, 4))
    for r in range(1, rows + 1):
        for length in (2, 50):
            steps, ended = min(length, r), length <= r
            own = np.array([steps * (length == 50), steps, ended, length * ended])
            sums[r] += 0.5 * (own + sums[max(r - length - 1, 0)])
    long, steps, ended, returns = sums[rows]
    return long / steps, returns / ended


@pytest.mark.parametrize(
    ("num_envs", "fresh_every_step"),
    [(64, True), (64, False), (16, False), (5, False), (1, False), (1, True)],
)
def test_short_episodes_are_sampled_in_proportion(num_envs, fresh_every_step):
    env = VectorEnv(TwoKinds(), num_envs, fresh_every_step=fresh_every_step)

    def act(key, carry, obs, start):
        action = jnp.zeros(num_envs, jnp.int32)
        return PolicyStep(carry, action, jnp.zeros(num_envs), action)

    def run(key):
        def rollout(state, key):
            state = state.replace(env=begin(env, state.env))
            out = collect(env, act, state, key, 128)
            rows = out.transitions
            long = jnp.sum(rows.valid & (rows.obs == 50))
            return out.end, jnp.stack([long, jnp.sum(rows.valid), *out.episodes[:2]])

        state = init_rollout(env, lambda batch: (), key)
        return jax.lax.scan(rollout, state, jax.random.split(key, 10))[1].sum(0)

    runs = 2048 // num_envs
    sums = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), runs)).sum(0)
    share, mean_return = sums[0] / sums[1], sums[3] / sums[2]
    # One start per environment and rollout gave 0.64 and 5.2.
    np.testing.assert_allclose(renewal(1280), (0.9609, 25.55), atol=0.005)
    np.testing.assert_allclose((share, mean_return), renewal(1280), rtol=0.02)


@pytest.mark.parametrize("breakage", [NAN_OBS, NAN_REWARD, INF_OBS, HUGE_OBS, HUGE_REWARD])
@pytest.mark.parametrize("fresh_every_step", [True, False])
def test_only_the_diverged_environment_restarts_and_gets_zero_reward(breakage, fresh_every_step):
    calm = np.full((6, 3), STAY)
    broken = calm.copy()
    broken[2, 1] = breakage
    _, expected = run(calm, fresh_every_step=fresh_every_step)
    _, rows = run(broken, fresh_every_step=fresh_every_step)
    assert all(np.all(np.isfinite(x)) for x in (rows.obs, rows.reward))
    np.testing.assert_array_equal(rows.diverged.nonzero(), [[2], [1]])
    assert not rows.terminated.any() and not rows.truncated.any()
    assert rows.reward[2, 1] == 0
    # The others are bit-identical, and the next episode is valid.
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a[:, [0, 2]], b[:, [0, 2]]), rows, expected
    )
    np.testing.assert_array_equal(rows.valid[:, 1], [True, True, False, True, True, True])
    np.testing.assert_array_equal(rows.obs[2:, 1, 1], [0, 1, 2, 3])
    np.testing.assert_array_equal(rows.reward[2:, 1], [0, 1, 2, 3])


def test_large_values_within_the_limit_are_accepted():
    assert LARGEST == 1e10
    ok = bounded({"a": jnp.array([[0.0, -1e10], [0.0, 1.001e10], [jnp.nan, 0.0]])})
    np.testing.assert_array_equal(ok, [True, False, False])
    assert bounded(jnp.full((1, 2), 2**31 - 1)).all()
    half = jnp.array([60_000.0, jnp.inf, jnp.nan], jnp.float16)
    np.testing.assert_array_equal(bounded(half), [True, False, False])


def test_divergence_on_a_reset_row_is_not_counted():
    _, rows = run([[END], [NAN_OBS], [STAY]])
    assert not rows.diverged.any()
    np.testing.assert_array_equal(rows.obs[1:, 0, 1], [0, 1])


class BrokenStarts(Clock):
    """Three of four episodes start with a number that is NaN, infinite or too large."""

    def reset(self, key):
        state, obs = super().reset(key)
        kind = jax.random.randint(jax.random.fold_in(key, 1), (), 0, 4)
        bad = jnp.array([0.0, jnp.nan, jnp.inf, 2 * LARGEST])[kind]
        return state, obs + jnp.array([0.0, 1.0]) * bad


@pytest.mark.parametrize("num_envs", [5, 64])  # part of the starts are drawn, or all of them
def test_a_start_that_has_diverged_does_not_replace_an_old_one(num_envs):
    env = VectorEnv(BrokenStarts(), num_envs, fresh_every_step=False)
    state, _ = env.reset(KEY)
    good = jnp.zeros((env.num_starts, 2))
    state = state.replace(fresh=(good, good))
    refresh = jax.jit(partial(begin, env))
    changed = 0
    for _ in range(8):
        old, state = state.fresh[1], refresh(state)
        new = state.fresh[1]
        np.testing.assert_array_equal(new[:, 1], 0.0)
        np.testing.assert_array_equal(state.fresh[0], new)  # of the same episode
        changed += np.sum(old[:, 0] != new[:, 0])
    assert changed == pytest.approx(8 * env.fresh_per_rollout / 4, rel=0.35)


@pytest.mark.parametrize("fresh_every_step", [True, False])
def test_the_first_step_after_a_start_that_has_diverged_resets(fresh_every_step):
    env = VectorEnv(BrokenStarts(), 64, fresh_every_step=fresh_every_step)
    state, obs = env.reset(KEY)
    bad = np.asarray(obs)[:, 1] != 0
    assert 32 < bad.sum() < 60
    if not fresh_every_step:
        np.testing.assert_array_equal(state.fresh[1][:, 1], 0.0)
        np.testing.assert_array_equal(state.fresh[1][:64][~bad], obs[~bad])
    _, out = jax.jit(env.step)(KEY, state, jnp.full(64, STAY))
    np.testing.assert_array_equal(out.valid, ~bad)
    assert np.isfinite(out.obs).all()
    if not fresh_every_step:
        assert not out.diverged.any()


def test_a_start_that_has_diverged_is_sampled_again():
    """Each reset row is followed by another one until a start is finite."""
    env = VectorEnv(BrokenStarts(), 256, fresh_every_step=True)
    state, _ = env.reset(KEY)
    state = state.replace(done=jnp.zeros(256, bool))
    state, out = jax.jit(env.step)(KEY, state, jnp.full(256, END))
    resets, reported = [], np.zeros(256)
    for key in jax.random.split(KEY, 24):
        state, out = jax.jit(env.step)(key, state, jnp.full(256, STAY))
        assert np.isfinite(out.obs).all()
        resets.append(~np.asarray(out.valid))
        reported += out.diverged
    first = np.argmin(resets, axis=0)  # number of resets until the start is finite
    done = first > 0
    np.testing.assert_array_equal(np.sum(resets, axis=0)[done], first[done])
    np.testing.assert_array_equal(reported[done], first[done] - 1)  # all but the last
    assert first[done].mean() == pytest.approx(4, rel=0.25) and done.sum() > 250


def test_a_diverged_episode_is_followed_by_resets_until_a_start_is_finite():
    env = VectorEnv(BrokenStarts(), 256, fresh_every_step=True)
    state, _ = env.reset(KEY)
    state = state.replace(done=jnp.zeros(256, bool))
    state, out = jax.jit(env.step)(KEY, state, jnp.full(256, NAN_OBS))
    assert out.diverged.all() and np.isfinite(out.obs).all()
    again = np.asarray(state.done)
    assert again.mean() == pytest.approx(0.75, abs=0.1)
    state, out = jax.jit(env.step)(KEY, state, jnp.full(256, STAY))
    np.testing.assert_array_equal(out.valid, ~again)


def test_diverged_episodes_are_counted_in_the_rollout():
    env = VectorEnv(TimeLimit(Clock(), 1000), 3, fresh_every_step=True)

    def act(key, carry, obs, start):
        action = jnp.where(obs[:, 1] == jnp.array([99.0, 1.0, 2.0]), NAN_OBS, STAY)
        return PolicyStep(carry, action, jnp.zeros(3), action)

    state = init_rollout(env, lambda batch: (), jax.random.key(0))
    rollout = collect(env, act, state, jax.random.key(1), 6)
    rows, episodes = rollout.transitions, rollout.episodes
    # The second environment breaks on steps 2, 4 and 6, the third on steps 3 and 6.
    assert episodes.diverged == 5
    assert episodes.count == episodes.return_sum == episodes.length_sum == 0
    assert np.all(np.isfinite(rows.obs))


def test_the_step_before_a_divergence_bootstraps_from_the_last_finite_observation():
    # Values equal observations: the last finite observation 2 has value 2, then 1 again.
    _, rows = run([[STAY], [STAY], [NAN_OBS], [STAY], [END]])
    np.testing.assert_array_equal(rows.diverged[:, 0], [0, 0, 1, 0, 0])
    value = np.concatenate([[[0.0]], rows.obs[:, :, 1]])
    np.testing.assert_array_equal(value[:, 0], [0, 1, 2, 0, 1, 2])
    ends = rows.terminated, rows.terminated | rows.truncated, rows.valid
    decay = {"gamma": 0.5, "gae_lambda": 0.5}
    advantage, _ = gae(rows.reward, value[:-1], value[1:], *ends, **decay)
    # 2 + 2 / 2 - 1 before it, 1 + 1 / 2 - 0 + 2 / 4 before that, and 0 for the divergence.
    np.testing.assert_array_equal(advantage[:, 0], [2.0, 2.0, 0.0, 1.75, 1.0])


def test_a_divergence_resets_the_discounted_return():
    _, rows = run([[STAY], [STAY], [NAN_OBS], [STAY], [STAY]])
    done = rows.terminated | rows.truncated
    returns, carried = discounted_returns(rows.reward, done, rows.valid, jnp.zeros(1), 0.5)
    np.testing.assert_array_equal(np.asarray(returns)[rows.valid], [1, 2.5, 1, 2.5])
    assert carried == 2.5
