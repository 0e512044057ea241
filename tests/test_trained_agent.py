"""An agent that is asked for actions: numpy in and out, batched or not, with its memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.envs import registry
from purejaxppo.spaces import Box, Dict, Discrete
from purejaxppo.trained_agent import Agent, batched
from purejaxppo.types import AgentState

pytestmark = pytest.mark.toy


@pytest.fixture
def make_agent(make_config):
    def make(name, **network):
        agent = Agent(
            make_config(env={"name": name}, network={"hidden": (8,), **network}),
            AgentState({}, None),
        )
        agent.state = jax.jit(agent.policy.init)(jax.random.key(3))
        return agent

    return make


def test_one_observation_and_a_batch_get_the_mode_in_the_simulators_own_bounds(make_agent):
    agent = make_agent("gymnax/Pendulum-v1")
    obs = np.random.default_rng(0).normal(0, 1, (5, 3))  # float64, as users have
    actions = agent.act(obs)
    env = registry.make(agent.config.env, 1)
    _, params, *_ = agent.policy.apply(
        agent.state, (), jnp.asarray(obs, jnp.float32), jnp.zeros(5, bool)
    )
    mode = agent.policy.distribution.mode(params)
    expected = env.to_simulator(agent.policy.distribution.to_env(mode))
    assert isinstance(actions, np.ndarray) and actions.shape == (5, 1)
    np.testing.assert_allclose(actions, expected, rtol=1e-6)
    assert np.abs(actions).max() <= 2.0
    agent.reset()
    one = agent.act(obs[2].tolist())
    assert one.shape == (1,)
    np.testing.assert_allclose(one, actions[2], rtol=1e-5)


def test_samples_differ_from_call_to_call_and_the_mode_does_not(make_agent):
    agent = make_agent("dummy/vector", std="dependent")
    obs = np.zeros(agent.policy.observation.shape)
    assert (agent.act(obs) == agent.act(obs)).all()
    drawn = [agent.act(obs, deterministic=False) for _ in range(4)]
    assert not all((a == drawn[0]).all() for a in drawn)


def test_a_memory_lasts_from_call_to_call_until_an_episode_starts(make_agent):
    agent = make_agent("gymnax/Pendulum-v1", rnn="gru", rnn_size=4)
    obs = np.random.default_rng(1).normal(0, 1, (3, 2, 3)).astype(np.float32)
    _, params, *_ = agent.policy.unroll(
        agent.state,
        agent.policy.network.initial_carry((2,)),
        jnp.asarray(obs),
        jnp.asarray([[True, True], [False, False], [False, True]]),
    )
    modes = agent.policy.distribution.to_env(agent.policy.distribution.mode(params))
    given = [agent.act(obs[0]), agent.act(obs[1]), agent.act(obs[2], start=np.array([False, True]))]
    np.testing.assert_allclose(np.stack(given), 2.0 * np.asarray(modes), rtol=1e-3, atol=3e-7)
    first = given[0]
    assert np.abs(agent.act(obs[0]) - first).max() > 0.1 * np.abs(first).max()
    agent.reset()
    np.testing.assert_allclose(agent.act(obs[0]), first, atol=3e-7)


def test_observations_that_do_not_fit_get_one_sentence(make_agent):
    agent = make_agent("gymnax/Pendulum-v1")
    with pytest.raises(ValueError, match=r"one or a batch of them, and this has shapes \(4,\)"):
        agent.act(np.zeros(4))
    agent.act(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="a batch of 3 observations after one of 2: call reset"):
        agent.act(np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"are Box\(.*\), and this is {'obs': \(3,\)}"):
        agent.act({"obs": np.zeros(3)})
    with pytest.raises(ValueError, match="shapes"):
        agent.act(np.array(["a", "b", "c"]))


def test_parts_of_an_observation_are_batched_alike():
    space = Dict.of({"a": Box((2,)), "b": Discrete(3)})
    batch, single = batched(space, {"a": [0.0, 1.0], "b": 2})
    assert single and batch["a"].shape == (1, 2) and batch["b"].tolist() == [2]
    batch, single = batched(space, {"a": np.zeros((4, 2)), "b": np.arange(4)})
    assert not single and batch["b"].dtype == np.int32
    with pytest.raises(ValueError, match="shapes"):
        batched(space, {"a": np.zeros((4, 2)), "b": 2})
    with pytest.raises(ValueError, match="shapes"):
        batched(space, {"a": np.zeros((4, 2)), "b": np.arange(3)})
