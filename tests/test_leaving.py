"""Agents that leave the library act on a simulator's own observations as in an evaluation."""

import os

import jax
import numpy as np
import pytest
from support import nested_envs

import purejaxppo as ppo
from purejaxppo.trained_agent import Agent
from purejaxppo.types import AgentState, RunningStats

FILE = os.path.abspath(nested_envs.__file__)


def random_agent(config):
    """An agent with random parameters, of which none is 0."""
    agent, rng = Agent(config, AgentState({}, None)), np.random.default_rng(0)
    shapes = jax.eval_shape(agent.policy.init, jax.random.key(0))

    def draw(x):
        return rng.standard_normal(x.shape).astype(np.float32)

    mean = jax.tree.map(draw, shapes.obs_stats.mean)
    m2 = jax.tree.map(lambda x: 50 + 1000 * np.square(x), mean)
    agent.state = AgentState(
        jax.tree.map(draw, shapes.params), RunningStats(np.float32(100), mean, m2)
    )
    return agent


@pytest.fixture
def make_agent(make_config):
    def make(name, **options):
        family = "pettingzoo" if name == "Pair" else "gymnasium"
        settings = {"workers": "thread", "num_workers": 1, **options}
        return random_agent(
            make_config(
                env={
                    "name": f"{family}/{FILE}:{name}",
                    "num_envs": 2 if name == "Pair" else 1,
                    "options": settings,
                },
                network={"hidden": (4,)},
            )
        )

    return make


def episode_return(env, seed, act):
    obs, _ = env.reset(seed=seed)
    rewards = []
    for _ in range(nested_envs.STEPS):
        obs, reward, *_ = env.step(act(obs))
        rewards.append(reward)
    return sum(rewards)


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 24))]
)
def test_raw_simulator_gives_the_returns_of_an_evaluation(number, make_agent, tmp_path):
    log = tmp_path / "seeds"
    agent = make_agent("Nested", number=number, log=str(log))
    expected = ppo.evaluate(agent, episodes=3).returns
    seeds = [int(line) for line in log.read_text().split()]
    assert np.ptp(expected) > 1e-3
    env, control = nested_envs.Nested(number), agent.controller()
    for act in (agent.act, lambda obs: control(jax.random.key(0), obs)):
        played = [episode_return(env, seed, act) for seed in seeds]
        np.testing.assert_allclose(played, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("boxes", [False, True])
def test_raw_world_gives_the_returns_of_an_evaluation(boxes, make_agent, tmp_path):
    log = tmp_path / "seeds"
    agent = make_agent("Pair", boxes=boxes, log=str(log))
    expected = ppo.evaluate(agent, episodes=4).returns
    seeds = [int(line) for line in log.read_text().split()]
    env, returns = nested_envs.Pair(boxes), []
    for seed in seeds:
        obs, _ = env.reset(seed)
        agent.reset()
        total = {"a": 0.0, "b": 0.0}
        while env.agents:
            obs, rewards, *_ = env.step(agent.act({name: obs[name] for name in env.agents}))
            total = {name: total[name] + rewards.get(name, 0.0) for name in total}
        returns += [total["a"], total["b"]]
    np.testing.assert_allclose(returns, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.toy
def test_row_of_a_world_gets_its_agents_own_action(make_agent):
    agent = make_agent("Pair", boxes=True)
    row = {"agent": 1, "obs": {"0": 2, "1": np.zeros(2)}}
    (action,) = agent.act(row)
    assert -7.0 <= action <= 0.0
    both = agent.act({"agent": [0, 1], "obs": {"0": [2, 2], "1": np.zeros((2, 2))}})
    assert [one.shape for one in both] == [(2,), (1,)] and both[0].dtype == np.float64
    assert both[0].min() >= 2.0 and both[1] == pytest.approx(action)
    for obs, said in (
        ({"c": (4, np.zeros(2))}, "a dict by agent, of a, b, or rows: a dict with agent, obs"),
        ({"a": (3, np.zeros(2))}, "agent a: observation.0 = 3: not in its space, the integers"),
        ([row], "a dict by agent"),
    ):
        with pytest.raises(ValueError, match=said):
            agent.act(obs)
