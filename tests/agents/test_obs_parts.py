"""Parts of vector observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.agents.networks.obs_parts import dict_space, split
from purejaxppo.agents.policy import Policy
from purejaxppo.cli import parser
from purejaxppo.cli.flags import TrainFlags
from purejaxppo.config.files import load_config, to_yaml
from purejaxppo.envs.base import EnvSpec
from purejaxppo.parts import make_parts
from purejaxppo.runs.agent import Agent
from purejaxppo.spaces import Box, Dict, Discrete

PARTS = {"pos": (0, 1, 2, 3), "vel": (1, 2, 3, 4)}
"""Entries 0 and 2, and entries 1 and 3."""


def policy_of(make_config, observation, parts, **network):
    """Return a policy for three actions, with layers for each part."""
    config = make_config(
        env={"obs_parts": parts},
        network={"hidden": (8,), "input_hidden": (5,), **network},
        ppo={"normalize_obs": False},
    )
    return Policy(config, EnvSpec(observation, Discrete(3), num_envs=2))


def test_a_vector_is_divided_into_ranges_and_its_bounds_too():
    space = Box((5,), (0.0, 1.0, 2.0, 3.0, 4.0), 9.0)
    parts = {"b": (0, 2, 4, 5), "a": (2, 4)}
    expected = {"a": Box((2,), (2.0, 3.0), 9.0), "b": Box((3,), (0.0, 1.0, 4.0), 9.0)}
    assert dict_space(space, parts) == Dict.of(expected)
    obs = split(jnp.arange(10.0).reshape(2, 5), parts)
    np.testing.assert_array_equal(obs["a"], [[2, 3], [7, 8]])
    np.testing.assert_array_equal(obs["b"], [[0, 1, 4], [5, 6, 9]])


@pytest.mark.parametrize("rnn", ["none", "gru"])
def test_a_network_of_parts_equals_that_of_a_dict_observation(rnn, make_config, key):
    settings = {"rnn": rnn, "rnn_size": 4, "actor_keys": ("pos",)}
    vectors = policy_of(make_config, Box((4,)), PARTS, **settings)
    dicts = policy_of(make_config, Dict.of({"pos": Box((2,)), "vel": Box((2,))}), {}, **settings)
    agent, same = jax.jit(vectors.init)(key), jax.jit(dicts.init)(key)
    jax.tree.map(np.testing.assert_array_equal, agent.params, same.params)
    obs = jax.random.normal(key, (6, 2, 4))
    obs_dict = {"pos": obs[..., [0, 2]], "vel": obs[..., [1, 3]]}
    carry, start = vectors.network.initial_carry((2,)), jnp.zeros((6, 2), bool)
    one = jax.jit(vectors.unroll)(agent, carry, obs, start)
    other = jax.jit(dicts.unroll)(same, carry, obs_dict, start)
    jax.tree.map(np.testing.assert_array_equal, one, other)

    # The policy sees `pos` only, the critic both.
    moved = jax.jit(vectors.unroll)(agent, carry, obs.at[..., 1].add(1.0), start)
    np.testing.assert_array_equal(moved.dist_params, one.dist_params)
    assert not np.allclose(moved.critic, one.critic)


@pytest.mark.parametrize("name", ["gymnax/CartPole-v1", "gymnasium/CartPole-v1"])
def test_agents_take_the_vector_of_the_environment(name, make_config, key):
    pytest.importorskip(name.partition("/")[0])
    network = {"hidden": (8,), "input_hidden": (5,), "actor_keys": ("pos",)}
    config = make_config(env={"name": name, "num_envs": 4, "obs_parts": PARTS}, network=network)
    parts = make_parts(config)
    state = jax.jit(parts.policy.init)(key)
    assert state.params["actor_torso"]["encoder"].keys() == {"obs_pos_dense_0"}
    assert state.obs_stats.mean[0].shape == (4,)
    agent = Agent(config, state)
    obs = np.array([[0.1, 0.2, 0.03, -0.4], [0.0, -1.0, 0.1, 1.0]], np.float32)
    assert agent.act(obs).shape == (2,)
    parts.env.close()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": [0, 3], "b": [2, 4]}, r"env\.obs_parts: entry 2 is in a and in b\."),
        ({"a": [0, 1], "b": [2, 4]}, r"env\.obs_parts: entry 1 is in no part\."),
        ({"a": [1, 4]}, r"entry 0 is in no part"),
        ({"a": [0]}, r"env\.obs_parts\.a = \[0\]: must be \[first, last \+ 1\]"),
        ({"a": [3, 1]}, r"env\.obs_parts\.a = \[3, 1\]: must be"),
        ({"a": []}, r"must be \[first, last \+ 1\]"),
        ({"a": 3}, r"env\.obs_parts\.a = 3: must be a list"),
        ({"action_mask": [0, 4]}, "the name action_mask is reserved"),
        ({"a": [0, 3]}, r"has 3 entries, but the observation has 4\."),
        ({"a": [0, 5]}, r"has 5 entries, but the observation has 4\."),
    ],
)
def test_parts_that_do_not_divide_the_observation_are_rejected(parts, message, make_config):
    config = make_config(env={"name": "gymnax/CartPole-v1"})
    with pytest.raises(ValueError, match=message):
        make_parts(config.replace(**{"env.obs_parts": parts}))


def test_parts_need_a_vector_and_layers_of_parts_need_parts(make_config):
    config = make_config(env={"name": "dummy/pixels", "obs_parts": {"a": (0, 4)}})
    with pytest.raises(ValueError, match=r"env\.obs_parts needs a vector observation\. The task"):
        make_parts(config)
    flat = make_config(env={"name": "dummy/vector"}, network={"input_hidden": (5,)})
    with pytest.raises(
        ValueError, match=r"network\.input_hidden = \[5\] needs an observation with"
    ):
        make_parts(flat)
    make_parts(flat.replace(**{"ppo.obs_preprocessing": "by_dtype"}))  # a run of version 0.2


def test_parts_are_read_from_flags_and_files(tmp_path):
    words = ["--env.obs_parts", "pos", "[0, 2]", "vel", "[2,4]", "--env.obs_parts.rest", "4", "9"]
    config = parser.parse_over_config(TrainFlags, words).config
    assert config.env.obs_parts == {"pos": (0, 2), "vel": (2, 4), "rest": (4, 9)}
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert load_config(path) == config
    (tmp_path / "short.yaml").write_text("env: {obs_parts: {body: [0, 27], contact: [27, 105]}}")
    loaded = load_config(tmp_path / "short.yaml")
    assert loaded.env.obs_parts == {"body": (0, 27), "contact": (27, 105)}
