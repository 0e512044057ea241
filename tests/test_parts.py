"""Each part of an actor system alone, and that together they are the algorithm (docs/parts.md)."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo import load_config
from purejaxppo.agents import ppo
from purejaxppo.learner import Learner
from purejaxppo.rollout import collect
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
def learner():
    return Learner(load_config("oscillator.yaml", SMALL))


@pytest.fixture
def state(learner, key):
    return jax.jit(learner.init_shard)(key, 0)


def test_the_brain_alone(learner, state):
    env_state, out = jax.jit(learner.env.step)(state.rollout.env, jnp.zeros((4, 1)))
    np.testing.assert_array_equal(out.obs[:, :-1], state.rollout.obs[:, 1:])
    assert out.valid.all()
    assert jax.tree.structure(env_state) == jax.tree.structure(state.rollout.env)


def test_inference_alone(learner, state, key):
    obs, start = state.rollout.obs, state.rollout.start
    policy = learner.policy
    _, action, log_prob, env_action = jax.jit(policy.act)(state.agent, key, (), obs, start)
    mean = jax.jit(policy.act_deterministically)(state.agent, key, (), obs, start)[1]
    std = learner.config.network.init_std
    noise = np.asarray(action - mean)[:, 0] / std
    expected = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(log_prob, expected, atol=1e-3)
    assert env_action.shape == (4, 1)


def test_the_collector_is_brain_and_inference_in_turns(learner, state, key):
    def act(*args):
        return learner.policy.act(state.agent, *args)

    @jax.jit
    def collected(rollout):
        last, transitions, episodes = collect(
            learner.env, act, rollout, key, 16, memory=learner.memory
        )
        seen = learner.memory.look(transitions.memory, transitions.obs)
        return last, transitions, episodes, seen

    last, transitions, episodes, seen = collected(state.rollout)
    refresh, infer, step = map(jax.jit, (learner.env.refresh, act, learner.env.step))
    env_state, obs = refresh(state.rollout.env), state.rollout.obs
    start, returns = state.rollout.start, []
    total = np.zeros(4)
    for t, step_key in enumerate(jax.random.split(key, 16)):
        _, action, log_prob, env_action = infer(step_key, (), obs, start)
        env_state, out = step(env_state, env_action)
        np.testing.assert_allclose(seen[t], obs, atol=1e-5)
        np.testing.assert_allclose(transitions.action[t], action, atol=1e-4)
        np.testing.assert_allclose(transitions.log_prob[t], log_prob, atol=1e-4)
        np.testing.assert_allclose(transitions.reward[t], out.reward, atol=1e-4)
        total += np.asarray(out.reward)
        for i in np.flatnonzero(out.truncated):
            returns.append(total[i])
            total[i] = 0.0
        obs, start = out.obs, ~out.valid
    assert episodes.count == len(returns) == 8
    np.testing.assert_allclose(episodes.return_sum, sum(returns), rtol=1e-4)
    np.testing.assert_allclose(last.obs, obs, atol=1e-5)


def test_collector_and_trainer_are_train_step(learner, state):
    hp = learner.hyperparams()
    after, metrics = jax.jit(learner.train_step)(state, hp)
    _, act_key, improve_key = jax.random.split(state.key, 3)
    now = ppo.scheduled(hp, learner.config.ppo, state.update)

    @jax.jit
    def by_parts(state, now):
        rollout, transitions, _ = collect(
            learner.env,
            lambda *args: learner.policy.act(state.agent, *args),
            state.rollout,
            act_key,
            16,
            memory=learner.memory,
        )
        batch = learner.estimate(
            state.agent, rollout, transitions, transitions.reward, now, state.value_stats
        )
        params, _, losses = ppo.improve(
            ppo.Update(learner.evaluate_rows(now), lambda x: x),
            state.agent.params,
            state.opt_state,
            batch,
            now,
            improve_key,
            config=learner.config.ppo,
            num_envs=4,
        )
        return params, losses, transitions.valid.sum()

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
def test_the_page_runs():
    page = (Path(__file__).parent.parent / "docs/parts.md").read_text()
    code = "\n".join(line[4:] for line in page.splitlines() if re.match(r"^(    |$)", line))
    names: dict = {}
    exec(code, names)
    assert names["batch"].advantage.shape == (128 * 64,)
    assert names["out"].obs.shape == (64, 250)
    assert names["windows"].shape == (128, 64, 250)
