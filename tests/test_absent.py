"""Agents that are absent between decisions, compared with the same computation per decision."""

from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.sparse import GARBAGE, SIZE, ScriptPool, script_env, write

from purejaxppo import learner, restore, rollout
from purejaxppo.agents import advantages, decisions, normalize, obs_storage
from purejaxppo.agents.networks.distributions import categorical
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import LoggingConfig
from purejaxppo.envs import registry
from purejaxppo.envs.host.bridge import HostEnv
from purejaxppo.envs.step import EnvStep
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
from purejaxppo.runs import evaluation, session
from purejaxppo.runs.rows import eval_row, read_csv
from purejaxppo.spaces import Box, Discrete
from purejaxppo.types import (
    OpenDecision,
    PolicyStep,
    Predictions,
    Rollout,
    RolloutState,
    Transition,
)

T, N, ROLLOUTS = 12, 6, 6
GAMMA, LAMBDA = 0.9, 0.8


@pytest.fixture(scope="module", params=[(1.0, 0.1), (3.0, 0.1), (8.0, 0.02)], ids=str)
def script(request):
    """Agents that decide at every step, at some steps, and less often than once per rollout."""
    period, end = request.param
    script = write(T * ROLLOUTS, N, period=period, end=end)
    decisions = [d for slot in script.episodes for episode in slot for d in episode]
    assert {d.terminated for d in decisions} == {d.truncated for d in decisions} == {False, True}
    assert any(d.lost for d in decisions)
    waits = [d.closed - d.row for d in decisions if d.closed >= 0]
    assert (max(waits) == 0) if period == 1 else (max(waits) > 2)
    return script


def act(key, carry, obs, start):
    """Return the first number of each observation as the action."""
    del key, start
    action = jnp.round(1000 * obs[:, 0]).astype(jnp.int32)
    return PolicyStep(carry, action, obs[:, 1], jnp.zeros(len(obs), jnp.int32))


def rollouts(env, *, count_ticks=False):
    """Return consecutive rollouts of a policy without a network, as numpy arrays."""
    init = partial(rollout.init_rollout, env, lambda batch: (), count_ticks=count_ticks)
    state = jax.jit(init)(jax.random.key(0))
    step = jax.jit(lambda state: rollout.collect(env, act, state, jax.random.key(0), T))
    found = []
    for _ in range(ROLLOUTS):
        found.append(jax.device_get(step(state)))
        state = found[-1].end
    return found


def row_in_rollout(decision, k):
    """Return the row of a decision in rollout k, or 0 if the decision was made before it."""
    return max(decision.row - k * T, 0)


def trained_decisions(script, k):
    """Yield (slot, episode, the decisions of the episode that rollout k is trained on)."""
    for n, episodes in enumerate(script.episodes):
        for episode in episodes:
            yield n, episode, [d for d in episode if d.closed // T == k and not d.lost]


def estimate_per_decision(script, k, value, gamma=GAMMA, lam=LAMBDA):
    """Return (valid, advantages) [T, N] of rollout k, computed per decision.

    `value` is a function (slot, episode, index of a decision or of the last observation) -> v.
    """
    valid, advantage = np.zeros((T, N), bool), np.zeros((T, N))
    for n, episode, closed in trained_decisions(script, k):
        later = 0.0
        for d in reversed(closed):
            i = episode.index(d)
            bootstrap = 0.0 if d.terminated else value(n, episode, i + 1)
            later = d.reward + gamma * bootstrap - value(n, episode, i) + gamma * lam * later
            assert not valid[row_in_rollout(d, k), n]
            valid[row_in_rollout(d, k), n], advantage[row_in_rollout(d, k), n] = True, later
    return valid, advantage


def obs_of(episode, i):
    """Return the i-th observation of an episode, the last of which belongs to no decision."""
    return episode[i].obs if i < len(episode) else episode[-1].next_obs


def test_advantages_with_absent_rows_by_hand():
    # Decisions at rows 0, 3 and 4 with rewards 1 + 2 + 3 = 6, 4 and 5; row 5 is absent,
    # and a time limit ends the episode, with v = 8 of the last observation, on the reset row 6.
    # 5 + 0.5 * 8 - 2 = 7;  4 + 0.5 * 2 - 3 + 0.25 * 7 = 3.75;
    # 6 + 0.5 * 3 - 1 + 0.25 * 3.75 = 7.4375.
    absent = np.array([0, 1, 1, 0, 0, 1, 0], bool)[:, None]
    start = np.array([1, 0, 0, 0, 0, 0, 0], bool)[:, None]
    valid = np.array([1, 0, 0, 1, 1, 0, 0], bool)[:, None]
    truncated = np.array([0, 0, 0, 0, 0, 1, 0], bool)[:, None]
    rows = join_decisions([1, 2, 3, 4, 2, 3, 0], truncated, absent, start, valid)
    value = np.array([1, 99, 99, 3, 2, 99, 8], np.float32)[:, None]
    out = estimate(rows, value, np.zeros(1, np.float32), 0.5, 0.5)
    np.testing.assert_array_equal(out.advantage[:, 0], [7.4375, 0, 0, 3.75, 7, 0, 0])
    np.testing.assert_array_equal(np.asarray(out.target)[valid], [8.4375, 6.75, 9])


def test_advantages_per_tick_by_hand():
    # The rows of the test above, in which row 2 takes no time, and row 4 takes two ticks.
    # Row 4: three ticks, reward 12 (1 + 0.5 + 0.25) / 3 = 7;  7 + 0.125 * 8 - 2 = 6.
    # Row 3: one tick;  4 + 0.5 * 2 - 3 + 0.5 * 0.5 * 6 = 3.5.
    # Row 0: two ticks, reward 6 (1 + 0.5) / 2 = 4.5;  4.5 + 0.25 * 3 - 1 + 0.25 * 0.5 * 3.5.
    absent = np.array([0, 1, 1, 0, 0, 1, 0], bool)[:, None]
    start = np.array([1, 0, 0, 0, 0, 0, 0], bool)[:, None]
    valid = np.array([1, 0, 0, 1, 1, 0, 0], bool)[:, None]
    truncated = np.array([0, 0, 0, 0, 0, 1, 0], bool)[:, None]
    ticks = [1, 1, 0, 1, 2, 1, 1]
    rows = join_decisions([1, 2, 3, 4, 5, 7, 0], truncated, absent, start, valid, ticks=ticks)
    np.testing.assert_array_equal(np.asarray(rows.ticks)[valid], [2, 1, 3])
    value = np.array([1, 99, 99, 3, 2, 99, 8], np.float32)[:, None]
    out = estimate(rows, value, np.zeros(1, np.float32), 0.5, 0.5)
    np.testing.assert_allclose(out.advantage[:, 0], [4.6875, 0, 0, 3.5, 6, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_advantages_per_tick_at_periods_1_5_and_mixed_equal_a_loop_over_decisions(gamma):
    rng, length = np.random.default_rng(0), 40
    asks = np.stack(
        [np.ones(length, bool), np.arange(length) % 5 == 0, rng.random(length) < 0.3], axis=1
    )
    asks[0] = True
    reward, value = rng.normal(size=(2, length, 3)).astype(np.float32)
    last, ticks = rng.normal(size=3).astype(np.float32), np.float32([1, 2, 0, 1] * 10)
    no, start = np.zeros_like(asks), np.arange(length)[:, None] == np.zeros(3)
    rows = join_decisions(reward, no, ~asks, start, asks, ticks=ticks)
    out = estimate(rows, value, last, gamma, LAMBDA)
    for n in range(3):
        at, advantage = [*np.flatnonzero(asks[:, n]), length], 0.0
        for begin, end in reversed(list(pairwise(at))):
            time = int(ticks[begin:end].sum())
            weights = [gamma**k for k in range(max(time, 1))]
            paid = reward[begin:end, n].sum() * np.mean(weights)
            after = last[n] if end == length else value[end, n]
            delta = paid + gamma**time * after - value[begin, n]
            advantage = delta + gamma**time * LAMBDA * advantage
            np.testing.assert_allclose(out.advantage[begin, n], advantage, rtol=2e-5, atol=2e-5)


def test_values_per_tick_do_not_depend_on_the_period():
    """A chain pays x at each tick in state x, and terminates: v = x + gamma v of the next tick."""
    pays = np.repeat(np.random.default_rng(0).normal(size=8), 5).astype(np.float32)
    true = np.zeros(len(pays) + 1)
    for tick in reversed(range(len(pays))):
        true[tick] = pays[tick] + GAMMA * true[tick + 1]
    every = np.arange(len(pays))[:, None]
    asks = np.concatenate([every % 1 == 0, every % 5 == 0, (every % 5 == 0) | (every > 20)], axis=1)
    rows = join_decisions(
        np.stack([pays] * 3, axis=1),
        np.zeros_like(asks),
        ~asks,
        np.concatenate([every == 0] * 3, axis=1),
        asks,
        ticks=np.ones(len(pays)),
    )
    value = np.stack([true[:-1]] * 3, axis=1).astype(np.float32)
    out = estimate(rows, value, np.zeros(3, np.float32), GAMMA, LAMBDA)
    np.testing.assert_allclose(out.advantage, 0.0, atol=1e-5)
    per_decision = estimate(rows._replace(ticks=None), value, value[0], GAMMA, LAMBDA)
    assert np.abs(per_decision.advantage[:, 1]).max() > 0.5


def test_ticks_of_decisions_continue_in_the_next_rollout(script):
    ticks_found = set()
    for k, rows in enumerate(rollouts(script_env(script), count_ticks=True)):
        for n, _, closed in trained_decisions(script, k):
            for d in closed:
                ticks = rows.transitions.ticks[row_in_rollout(d, k), n]
                assert ticks == d.closed - d.row + 1
                ticks_found.add(int(ticks))
        assert not np.any(rows.transitions.ticks[rows.transitions.absent])
    assert 1 in ticks_found


def test_rows_hold_decisions_with_all_their_rewards_and_their_next_observations(script):
    for k, rows in enumerate(rollouts(script_env(script))):
        transitions = rows.transitions
        valid, _ = estimate_per_decision(script, k, lambda n, episode, i: 0.0)
        np.testing.assert_array_equal(transitions.valid, valid)
        obs, after = map(np.asarray, obs_storage.before_and_after(rollout.FULL_OBS, rows))
        assert np.all(np.abs(obs[valid]) < GARBAGE) and np.all(np.abs(after[valid]) < GARBAGE)
        assert not np.any(transitions.reward[~valid])
        for n, episode, closed in trained_decisions(script, k):
            for d in closed:
                at = row_in_rollout(d, k), n
                np.testing.assert_array_equal(obs[at], d.obs)
                np.testing.assert_array_equal(after[at], d.next_obs)
                np.testing.assert_allclose(transitions.reward[at], d.reward, atol=1e-5)
                assert transitions.action[at] == np.round(np.float32(1000) * d.obs[0])
                assert transitions.log_prob[at] == d.obs[1]
                ends = transitions.terminated[at], transitions.truncated[at]
                assert ends == (d.terminated, d.truncated)
                assert transitions.start[at] == (d is episode[0])


def test_a_custom_distribution_may_store_actions_in_another_form(script, make_config, monkeypatch):
    """One index per row stands for a vector of two numbers."""

    def corners(size):
        grid = 2.0 * (jnp.arange(2**size)[:, None] // 2 ** jnp.arange(size) % 2) - 1.0
        return categorical(2**size)._replace(to_env=lambda a: grid[a])

    config = make_config(
        env={"name": "gymnax/CartPole-v1", "num_envs": N},
        network={"hidden": (4,), "distribution": corners},
        ppo={"rollout_length": T, "num_minibatches": 2},
    )
    env = HostEnv(
        lambda n, u: ScriptPool(script),
        Box((SIZE,)),
        Box((2,), -1.0, 1.0),
        num_envs=N,
        max_episode_steps=0,
        absent=True,
    )
    monkeypatch.setattr(registry, "make", lambda *_, **__: env)
    parts = make_parts(config)
    state = jax.eval_shape(partial(learner.init_state, parts), jax.random.key(0), 0)
    assert state.rollout.open.action.shape == (N,)
    after, _ = jax.eval_shape(partial(learner.train_step, parts), state, make_hyperparams(config))
    jax.tree.map(
        lambda a, b: np.testing.assert_equal((a.shape, a.dtype), (b.shape, b.dtype)), state, after
    )


def test_returns_count_all_rewards_and_lengths_all_decisions(script):
    ended = [
        episode
        for episodes in script.episodes
        for episode in episodes
        if episode[-1].terminated or episode[-1].truncated
    ]
    lost = [e for episodes in script.episodes for e in episodes if e[-1].lost]
    episodes = [rows.episodes for rows in rollouts(script_env(script))]
    total = jax.tree.map(lambda *xs: sum(xs), *episodes)
    assert total.count == len(ended) and total.diverged == len(lost)
    assert total.length_sum == sum(map(len, ended))
    np.testing.assert_allclose(total.return_sum, sum(d.reward for e in ended for d in e), atol=1e-3)


@pytest.mark.parametrize(
    "rnn", ["none", "gru", *(pytest.param(x, marks=pytest.mark.full) for x in ("lstm", "mingru"))]
)
def test_advantages_equal_those_computed_per_decision(script, rnn, make_config, monkeypatch):
    monkeypatch.setattr(registry, "make", lambda *args, **kwargs: script_env(script))
    config = make_config(
        env={"name": "dummy/vector", "num_envs": N},
        network={"rnn": rnn, "rnn_size": 4},
        ppo={
            "rollout_length": T,
            "num_minibatches": 1,
            "bptt_length": T // 2 if rnn != "none" else 0,
            "normalize_obs": False,
        },
    )
    parts = make_parts(config)
    hp = make_hyperparams(config)._replace(gamma=GAMMA, gae_lambda=LAMBDA)
    state = learner.init_state(parts, jax.random.key(0), jnp.int32(0))
    value = network_values(parts, state.agent)

    @jax.jit
    def update(before, key):
        """Return a rollout, its batch, and the loss of the batch with the same parameters."""
        rows = learner.collect(parts, state.agent, before, key, 0.0)
        args = parts, state.agent
        reward = rows.transitions.reward
        batch = learner.make_batch(*args, rows, reward, hp, state.value_stats)
        read = learner.read_minibatch(parts, rows.stored, batch)
        losses = learner.minibatch_loss(*args, state.value_stats, hp, state.agent.params, read)[1]
        return rows.end, batch, losses

    before = state.rollout
    for k, key in enumerate(jax.random.split(jax.random.key(1), ROLLOUTS)):
        before, batch, losses = update(before, key)
        valid, advantage = estimate_per_decision(script, k, value)
        np.testing.assert_array_equal(to_rows(batch.valid, config), valid)
        ours = np.where(valid, to_rows(batch.advantage, config), 0.0)
        np.testing.assert_allclose(ours, advantage, atol=2e-4)
        assert losses.clipfrac == 0
        # The log-probabilities equal those of acting, so the observations and carries do, too.
        assert abs(losses.approx_kl) < 1e-8


def test_with_a_constant_value_every_advantage_is_zero(script):
    env = constant_reward_env(script)
    value = 1 / (1 - GAMMA)
    for rows in rollouts(env):
        transitions = rows.transitions
        ends = transitions.terminated | transitions.truncated
        transitions = transitions._replace(
            terminated=np.zeros_like(ends), truncated=ends, reward=transitions.reward
        )
        same = np.full((T, N), value, np.float32)
        out = estimate(transitions, same, same[0], GAMMA, 0.95)
        np.testing.assert_allclose(out.advantage, 0.0, atol=1e-5)
        assert transitions.valid.any()


def test_vtrace_weights_the_next_decision():
    # Decisions are at rows 0 and 3. With values 0 and gamma = lambda = 1:
    # row 3: 4;  row 0: 1 + 0.25 * 4 = 2.
    column = lambda x, kind=np.float32: jnp.asarray(np.array(x, kind)[:, None])  # noqa: E731
    out = advantages.gae(
        column([1, 0, 0, 4]),
        *[column([0, 0, 0, 0])] * 2,
        *[column([0, 0, 0, 0], bool)] * 2,
        column([1, 0, 0, 1], bool),
        gamma=1.0,
        gae_lambda=1.0,
        rho=column([0.5, 9, 9, 0.25]),
        absent=column([0, 1, 1, 0], bool),
    )
    np.testing.assert_array_equal(out.advantage[:, 0], [2, 0, 0, 4])
    np.testing.assert_array_equal(out.target[jnp.array([0, 3]), 0], [1, 1])


@pytest.mark.parametrize("discount", ["decision", "tick"])
def test_rewards_are_scaled_by_the_returns_of_decisions(discount, script, make_config):
    ppo = {"normalize_reward": True, "discount": discount}
    config = make_config(env={"name": "dummy/vector", "num_envs": N}, ppo=ppo)
    hp = make_hyperparams(config)._replace(gamma=GAMMA)
    parts: Any = SimpleNamespace(config=config, shards=SimpleNamespace(psum=lambda x: x))
    stats, carried = normalize.init_stats(jnp.zeros(())), jnp.zeros(N)
    for rows in rollouts(script_env(script), count_ticks=discount == "tick"):
        before: Any = SimpleNamespace(discounted_return=carried)
        state: Any = SimpleNamespace(reward_stats=stats, rollout=before)
        stats, carried = learner.scale_rewards(parts, state, rows, hp)[1:]
    seen = []
    for episodes in script.episodes:
        for episode in episodes:
            running = 0.0
            for d in episode:
                if d.closed >= 0 and not d.lost:
                    time = d.closed - d.row + 1 if discount == "tick" else 1
                    paid = d.reward * np.mean(GAMMA ** np.arange(time))
                    running = GAMMA**time * running + paid
                    seen.append(running)
    assert stats.count == len(seen)
    np.testing.assert_allclose(stats.mean, np.mean(seen), atol=1e-5)
    np.testing.assert_allclose(normalize.variance(stats), np.var(seen), rtol=1e-4)


def test_evaluations_sum_all_rewards_of_each_slots_first_episode(script):
    env = script_env(script)
    run = jax.jit(
        lambda key: evaluation.run_episodes(
            env,
            env.reset(key),
            lambda keys, *args: act(None, *args),
            lambda batch: (),
            key[None],
            max_steps=T * ROLLOUTS,
        )
    )
    out = run(jax.random.key(0))
    for n, episodes in enumerate(script.episodes):
        first = episodes[0]
        if first[-1].lost:
            assert np.isnan(out.returns[n])
            assert out.lengths[n] == len(first) - (first[-1].closed == first[-1].row)
        else:
            np.testing.assert_allclose(out.returns[n], sum(d.reward for d in first), atol=1e-4)
            assert out.lengths[n] == len(first)


def test_a_slot_without_an_agent_has_no_return_and_does_not_end_an_episode():
    """Slot 0 has a reward of 1 in 3 decisions, slot 1 starts after 2 rows, slot 2 stays empty."""
    env = slots_env()

    def run(key):
        first = rollout.init_rollout(env, lambda batch: (), key)
        trained = rollout.collect(env, act, first, key, 5).episodes
        begun = env.reset(key)
        outcome = evaluation.run_episodes(
            env,
            begun,
            lambda keys, *args: act(None, *args),
            lambda batch: (),
            key[None],
            max_steps=5,
        )
        return trained, outcome

    trained, (returns, lengths, cut, _) = jax.device_get(jax.jit(run)(jax.random.key(0)))
    assert (trained.count, trained.return_sum, trained.length_sum) == (1, 3.0, 3)
    np.testing.assert_array_equal(returns, [3.0, 2.0, np.nan])
    assert (lengths.tolist(), cut.tolist()) == ([3, 2, 0], [False, True, True])
    row = eval_row(returns, lengths, cut, success_above=2.5)
    assert (row["eval/return_mean"], row["eval/length_mean"]) == (2.5, 2.5)
    assert (row["eval/diverged"], row["eval/cut"], row["eval/success_rate"]) == (0, 1, 0.5)
    result = evaluation.Evaluation(returns, lengths, 2.5, cut)
    assert (result.score, result.success_rate) == (2.5, 0.5)
    assert str(result).startswith(
        "2 episodes (1 stopped by eval.max_steps, not counting 1 slots without an agent): "
    )


@pytest.mark.parametrize(("rnn", "fraction"), [("none", 1.0), ("gru", 1.0), ("none", 0.35)])
def test_an_agent_learns_from_rewards_that_come_while_it_is_absent(
    rnn, fraction, make_config, monkeypatch
):
    monkeypatch.setattr(registry, "make", lambda config, n, **kwargs: late_env(n))
    config = make_config(
        env={"name": "dummy/vector", "num_envs": 32},
        network={"rnn": rnn, "rnn_size": 8, "hidden": (16,)},
        ppo={
            "rollout_length": 16,
            "num_minibatches": 4,
            "num_epochs": 4,
            "learning_rate": 1e-2,
            "epoch_fraction": fraction,
        },
        total_timesteps=40 * 32 * 16,
    )
    parts, hp = make_parts(config), make_hyperparams(config)
    state = learner.init_state(parts, jax.random.key(0), jnp.int32(0))
    chunk = jax.jit(partial(learner.train_chunk, parts))
    returns = []
    for _ in range(2):
        state, metrics = chunk(state, hp, jnp.int32(20))
        returns.append(metrics.episodes.return_sum / metrics.episodes.count)
        assert metrics.env_steps < 20 * 32 * 16 / 2  # decisions, not rows
    # The best return is 4, from four decisions, and the mean without learning is 0.
    assert returns[0] < returns[1] and returns[1] > 3


def make_run_config(total_timesteps, make_config, **ppo):
    """Return a config of 4 agents that decide 4 times in 13 rows: 16 decisions per update."""
    return make_config(
        env={"name": "dummy/vector", "num_envs": 4},
        network={"hidden": (4,)},
        ppo={"rollout_length": 13, "num_minibatches": 1, "num_epochs": 1, **ppo},
        total_timesteps=total_timesteps,
        eval={"num_episodes": 0},
        logging=LoggingConfig(interval=1, tensorboard=False),
    )


def test_a_run_ends_after_its_decisions_and_schedules_follow_them(
    make_config, monkeypatch, tmp_path, capsys
):
    """100 decisions are 7 updates of 16 decisions, each 0.16 of the run, and not 2 of 52 rows."""
    monkeypatch.setattr(registry, "make", lambda config, n, **kwargs: late_env(n))
    config = make_run_config(100, make_config, learning_rate=0.1, learning_rate_schedule="linear")
    assert session.train(config, tmp_path / "run") == 0
    rows = read_csv(tmp_path / "run" / "metrics.csv")
    assert [row["global_step"] for row in rows] == [16, 32, 48, 64, 80, 96, 112]
    rates = 0.1 * (1 - 0.16 * np.arange(7))
    np.testing.assert_allclose([row["charts/learning_rate"] for row in rows], rates, rtol=1e-6)
    parts = make_parts(make_run_config(100, make_config, learning_rate_schedule="constant"))
    state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
    step = jax.jit(train_program(parts))
    for rate in rates:
        hp = make_hyperparams(parts.config)._replace(learning_rate=jnp.float32(rate))
        state, _ = step(state, hp, 1)
    trained = restore(tmp_path / "run", "last").state.params
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, trained, state.agent.params)
    capsys.readouterr()
    assert session.train(config, tmp_path / "run") == 0
    assert "is finished: 112 steps" in capsys.readouterr().out


def test_a_run_of_agents_that_never_decide_ends(make_config, monkeypatch, tmp_path, capsys):
    script = write(13, 4, empty=1.0)
    monkeypatch.setattr(registry, "make", lambda config, n, **kwargs: script_env(script))
    assert session.train(make_run_config(50, make_config), tmp_path / "run") == 0
    out = capsys.readouterr().out
    assert (
        "total_timesteps = 50: the agents decide too rarely. The run ended after 0 decisions in "
        "5,200 rows. Increase total_timesteps to continue it.\n" in out
    )


@pytest.mark.parametrize("valid", [True, False])
def test_an_open_decision_of_another_agent_is_not_resumed(valid):
    no, one = np.zeros((3, 1), bool), np.ones(1, np.float32)
    absent, asked = no.copy(), ~no
    absent[0], asked[0] = True, False
    before = OpenDecision(5 * one, 0 * one, 0 * one, 2 * one, one == valid, one == 0, ())
    rows = join_decisions([1, 1, 1], no, absent, no, asked, before)
    assert rows.valid[:, 0].tolist() == [valid, True, True]
    assert rows.absent[:, 0].tolist() == [not valid, False, False]
    assert rows.reward[:, 0].tolist() == [3.0 * valid, 1.0, 1.0]
    assert rows.obs[0, 0] == 5 * valid


# Helpers and environments of the tests above.


def join_decisions(reward, truncated, absent, start, valid, before=None, ticks=None):
    """Join rows [T, N] into decisions, after an open decision or none.

    Args:
        reward: [T, N], or [T] for one column.
        ticks: game time of each row, [T]; None: not counted.
    """
    reward = np.array(reward, np.float32).reshape(truncated.shape)
    zero = np.zeros_like(reward)
    if ticks is not None:
        ticks = np.broadcast_to(np.array(ticks, np.float32)[:, None], reward.shape)
    rows: Any = Transition(
        *(zero, zero, zero, reward, np.zeros_like(truncated), truncated, valid, start, absent),
        ticks=ticks,
    )
    end: Any = RolloutState(
        env=(),
        obs=zero[0],
        start=~absent[-1],
        carry=(),
        episode_return=zero[0],
        episode_length=zero[0],
        discounted_return=zero[0],
        absent=np.zeros_like(absent[0]),
        open=before,
    )
    rows = jax.tree.map(jnp.asarray, rows)
    return decisions.join(end, Rollout(rows, (), (), end, None)).transitions


def estimate(rows, value, last, gamma, lam):
    """Return the advantages and targets of rows."""
    rows = decisions.spread_rewards(jax.tree.map(jnp.asarray, rows), gamma)
    after = decisions.next_entries(jnp.asarray(value), jnp.asarray(last), rows.absent)
    hp: Any = SimpleNamespace(gamma=gamma, gae_lambda=lam)
    return advantages.of_rollout(rows, rows.reward, Predictions(value, after, None), hp)


def network_values(parts, agent):
    """Return a function (slot, episode, index) -> v, which applies a network to each decision."""
    apply = jax.jit(parts.policy.apply)
    known = {}

    def value(n, episode, i):
        if (n, id(episode)) not in known:
            carry, values = parts.initial_carry((1,)), []
            length = len(episode) + (episode[-1].next_obs is not None)
            for j in range(length):
                out = apply(
                    agent, carry, jnp.asarray(obs_of(episode, j))[None], jnp.array([j == 0])
                )
                carry = out.carry
                values.append(float(out.critic[0, 0]))
            known[n, id(episode)] = values
        return known[n, id(episode)][i]

    return value


def to_rows(units, config):
    """Reshape an array of units to rows [T, N]."""
    if config.network.rnn == "none":
        return np.asarray(units).reshape(T, N)
    length = config.ppo.sequence_length
    return np.asarray(units).reshape(T // length, N, length).swapaxes(1, 2).reshape(T, N)


def half_slots(script, which):
    """Return one half of the slots of a script."""
    mine = slice(which * N // 2, (which + 1) * N // 2)
    rows = [jax.tree.map(lambda x: x[mine], row) for row in script.rows]
    first = tuple(x[mine] for x in script.first)
    return type(script)(rows, first, script.episodes[mine])


def constant_reward_env(script):
    """Return the environments of a script in two parts, with a reward of 1 for each decision."""
    rows = [row._replace(reward=np.zeros_like(row.reward)) for row in script.rows]
    for n, episodes in enumerate(script.episodes):
        for d in (d for episode in episodes for d in episode if d.closed >= 0 and not d.lost):
            rows[d.row].reward[n] += 0.25
            rows[d.closed].reward[n] += 0.75
    return script_env(type(script)(rows, script.first, script.episodes))


class SlotsPool:
    """Three slots: an episode of 3 decisions, an agent from row 2 on, and no agent."""

    failure = None

    def reset(self, key):
        empty = jnp.array([False, True, True])
        return jnp.zeros((), jnp.int32), (jnp.ones((3, 3)), empty)

    def step(self, row, action):
        del action
        playing = jnp.array([row < 3, row >= 3, False])
        ends = jnp.array([row == 2, False, False])
        asks = jnp.array([row < 2, row >= 2, False])
        out = EnvStep(
            jnp.ones((3, 3)), jnp.where(playing, 1.0, 0.0), ends, ends & False, absent=~asks
        )
        return row + 1, out

    def close(self):
        pass


def slots_env():
    """Return the environments of `SlotsPool`."""
    return HostEnv(
        lambda n, update: SlotsPool(),
        Box((3,)),
        Discrete(2),
        num_envs=3,
        max_episode_steps=0,
        absent=True,
    )


class LatePool:
    """The reward, two steps later, is 1 for an action equal to the observation, and else -1.

    Decisions are at rows 0, 3, 6 and 9 of an episode, which ends at the absent row 11.
    """

    failure = None

    def __init__(self, num_envs):
        self.num_envs = num_envs

    def reset(self, key):
        key, obs_key = jax.random.split(key)
        seen = jax.random.bernoulli(obs_key, shape=(self.num_envs,))
        token = key, jnp.zeros((), jnp.int32), seen, jnp.zeros(self.num_envs, bool)
        return token, (self.show(seen), jnp.zeros(self.num_envs, bool))

    def show(self, seen):
        return jnp.where(seen, 1.0, -1.0)[:, None] * jnp.ones(3)

    def step(self, token, action):
        key, row, seen, right = token
        key, obs_key = jax.random.split(key)
        right = jnp.where(row % 3 == 0, action == seen, right)
        pays, ends = (row % 3 == 2), row == 11
        reward = jnp.where(pays, jnp.where(right, 1.0, -1.0), 0.0)
        absent = jnp.full(self.num_envs, (row + 1) % 3 != 0) & (row < 12)
        new = jax.random.bernoulli(obs_key, shape=(self.num_envs,))
        seen = jnp.where(pays | (row == 12), new, seen)
        flag = jnp.zeros(self.num_envs, bool)
        out = EnvStep(self.show(seen), reward, flag, flag | ends, absent=absent)
        return (key, (row + 1) % 13, seen, right), out

    def close(self):
        pass


def late_env(num_envs):
    """Return the environments of `LatePool`."""
    return HostEnv(
        lambda n, update: LatePool(n),
        Box((3,)),
        Discrete(2),
        num_envs=num_envs,
        max_episode_steps=0,
        absent=True,
    )
