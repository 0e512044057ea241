"""Each part of an actor system alone, and together equal to the algorithm (docs/parts.md)."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.paths import ROOT
from support.stepping import KEY, begin

from purejaxppo import learner, load_config
from purejaxppo.agents import ppo
from purejaxppo.agents.schedules import make_hyperparams, scheduled
from purejaxppo.parts import make_parts
from purejaxppo.rollout import collect
from purejaxppo.streams import split_keys
from purejaxppo.types import AgentState

SMALL = {
    "env.num_envs": 4,
    "env.options": {"num_neurons": 20, "history": 10, "warmup": 10},
    "env.max_episode_steps": 7,
    "ppo.rollout_length": 16,
    "ppo.num_minibatches": 2,
    "ppo.normalize_reward": False,
}


@pytest.fixture(scope="module")
def parts():
    return make_parts(load_config("oscillator.yaml", SMALL))


@pytest.fixture
def state(parts, key):
    return jax.jit(partial(learner.init_state, parts))(key, 0)


def test_a_discount_per_tick_needs_decisions_at_irregular_times():
    with pytest.raises(ValueError, match=r"ppo\.discount = tick: agents of oscillator.* decide at"):
        make_parts(load_config("oscillator.yaml", {**SMALL, "ppo.discount": "tick"}))


def test_the_environment_alone_steps(parts, state):
    env_state, out = jax.jit(parts.env.step)(KEY, state.rollout.env, jnp.zeros((4, 1)))
    np.testing.assert_array_equal(out.obs[:, :-1], state.rollout.obs[:, 1:])
    assert out.valid.all()
    assert jax.tree.structure(env_state) == jax.tree.structure(state.rollout.env)


def test_inference_alone_samples_with_correct_log_probs(parts, state, key):
    obs, start = state.rollout.obs, state.rollout.start
    policy = parts.policy
    step = jax.jit(policy.act)(state.agent, key, (), obs, start)
    mean = jax.jit(policy.act_deterministically)(state.agent, key, (), obs, start).action
    std = parts.config.network.init_std
    noise = np.asarray(step.action - mean)[:, 0] / std
    expected = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(step.log_prob, expected, atol=1e-3)
    assert step.env_action.shape == (4, 1)


def test_the_collector_alternates_inference_and_environment_steps(parts, state, key):
    act = partial(parts.policy.act, state.agent)

    @jax.jit
    def collected(start):
        start = learner.begin_rollout(parts, start, key, 0.0)
        rollout = collect(parts.env, act, start, key, 16, storage=parts.storage)
        return rollout, parts.storage.read(rollout.stored, rollout.transitions.obs)

    rollout, seen = collected(state.rollout)
    last, transitions, episodes = rollout.end, rollout.transitions, rollout.episodes
    infer, step = jax.jit(act), jax.jit(parts.env.step)
    env_state, obs = begin(parts.env, state.rollout.env), state.rollout.obs
    start, returns = state.rollout.start, []
    total = np.zeros(4)
    for t, step_key in enumerate(jax.random.split(key, 16)):
        choice = infer(step_key, (), obs, start)
        env_state, out = step(KEY, env_state, choice.env_action)
        np.testing.assert_allclose(seen[t], obs, atol=1e-5)
        np.testing.assert_allclose(transitions.action[t], choice.action, atol=1e-4)
        np.testing.assert_allclose(transitions.log_prob[t], choice.log_prob, atol=1e-4)
        np.testing.assert_allclose(transitions.reward[t], out.reward, atol=1e-4)
        total += np.asarray(out.reward)
        for i in np.flatnonzero(out.truncated):
            returns.append(total[i])
            total[i] = 0.0
        obs, start = out.obs, ~out.valid
    assert episodes.count == len(returns) == 8
    np.testing.assert_allclose(episodes.return_sum, sum(returns), rtol=1e-4)
    np.testing.assert_allclose(last.obs, obs, atol=1e-5)


def test_collector_and_trainer_equal_train_step(parts, state):
    hp = make_hyperparams(parts.config)
    after, metrics = jax.jit(partial(learner.train_step, parts))(state, hp)
    keys = split_keys(state.key)
    now = scheduled(hp, parts.config.ppo, state.update)

    @jax.jit
    def by_parts(state, now):
        agent, stats = state.agent, state.value_stats
        act = partial(parts.policy.act, agent)
        start = learner.begin_rollout(parts, state.rollout, keys.act, 0.0)
        rollout = collect(parts.env, act, start, keys.act, 16, storage=parts.storage)
        reward = rollout.transitions.reward
        batch = learner.make_batch(parts, agent, rollout, reward, now, stats)
        params, _, losses = ppo.update_epochs(
            ppo.Update(
                loss=partial(learner.minibatch_loss, parts, agent, stats, now),
                psum=lambda x: x,
                prepare=partial(learner.read_minibatch, parts, rollout.stored),
            ),
            agent.params,
            state.opt_state,
            batch,
            now,
            keys.update,
            config=parts.config.ppo,
            num_envs=4,
        )
        return params, losses, rollout.transitions.valid.sum()

    params, losses, valid = by_parts(state, now)
    assert isinstance(after.agent, AgentState)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), params, state.agent.params)
    assert max(jax.tree.leaves(moved)) > 1e-4
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), params, after.agent.params
    )
    np.testing.assert_allclose(losses.value_loss, metrics.losses.value_loss, rtol=1e-2)
    assert int(metrics.env_steps) == int(valid)


@pytest.mark.full
def test_the_code_of_the_page_runs():
    page = (ROOT / "docs/parts.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["batch"].advantage.shape == (128 * 64,)
    assert names["out"].obs.shape == (64, 250)
    assert names["windows"].shape == (128, 64, 250)
