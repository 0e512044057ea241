"""Environments passed from Python, as the settings of a config."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformReward
from mpe2 import simple_spread_v3
from support import example_envs, own_code
from support.example_envs import Counter

from purejaxppo import Config, load_config
from purejaxppo.config.env_objects import NOT_SUPPORTED, POOL_OPTIONS, family_of
from purejaxppo.config.files import to_yaml
from purejaxppo.config.references import CodeRef
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.host import gymnasium as host
from purejaxppo.envs.host import pettingzoo as host_pettingzoo
from purejaxppo.parts import with_env


def cartpole(**arguments):
    return gymnasium.make("CartPole-v1", **arguments)


def make_counter(length=3):
    return Counter(length)


IDS = [
    (cartpole(), "CartPole-v1", {}, 0),
    (gymnasium.spec("CartPole-v1"), "CartPole-v1", {}, 0),
    (
        cartpole(sutton_barto_reward=True, max_episode_steps=50, render_mode="rgb_array"),
        "CartPole-v1",
        {"sutton_barto_reward": True},
        50,
    ),
    (
        FrameStackObservation(cartpole(), 4),
        "CartPole-v1",
        {"wrappers": [{"FrameStackObservation": {"stack_size": 4, "padding_type": "reset"}}]},
        0,
    ),
    (TimeLimit(cartpole(), 30), "CartPole-v1", {}, 30),
    (
        gymnasium.make("FrozenLake-v1", desc=["SF", "HG"]),
        "FrozenLake-v1",
        {"desc": ["SF", "HG"]},
        0,
    ),
]


@pytest.mark.toy
@pytest.mark.parametrize(("env", "name", "options", "limit"), IDS)
def test_an_environment_with_an_id_becomes_its_id_and_arguments(env, name, options, limit):
    config = EnvConfig(name=env)
    assert type(config.name) is str and config.name == f"gymnasium/{name}"
    assert (config.options, config.max_episode_steps) == (options, limit)


REFERENCES = [
    (Counter, f"gymnasium/{Counter.__module__}:Counter"),
    (Counter(4), "gymnasium/object of support.example_envs:Counter"),
    (lambda: Counter(4), "gymnasium/object of support.example_envs:Counter"),
    (TimeLimit(Counter(4), 5), "gymnasium/object of support.example_envs:Counter"),
    (make_counter, f"gymnasium/{__name__}:make_counter"),
    (lambda: cartpole(max_episode_steps=9), "gymnasium/object of gymnasium:CartPole-v1"),
    (TransformReward(cartpole(), abs), "gymnasium/object of gymnasium:CartPole-v1"),
    (example_envs.Times(cartpole()), "gymnasium/object of gymnasium:CartPole-v1"),
    (cartpole(max_episode_steps=-1), "gymnasium/object of gymnasium:CartPole-v1"),
    (
        gymnasium.make("FrozenLake-v1", desc=("SF", "HG")),
        "gymnasium/object of gymnasium:FrozenLake",
    ),
    (simple_spread_v3.parallel_env(), "pettingzoo/object of mpe2.simple_spread"),
    (simple_spread_v3.parallel_env, "pettingzoo/object of mpe2"),
    (own_code.Walk, "jax/support.own_code:Walk"),
    (own_code.Walk(0.5), "jax/object of support.own_code:Walk"),
    (own_code.make_walk, "jax/support.own_code:make_walk"),
]


@pytest.mark.toy
@pytest.mark.parametrize(("env", "text"), REFERENCES)
def test_another_environment_becomes_a_reference_with_the_object(env, text):
    name = EnvConfig(name=env).name
    assert str(name).replace(f"{__file__}:", f"{__name__}:").startswith(text)
    assert isinstance(name, CodeRef) and name.object is env
    # Configs are built again when a setting changes.
    assert Config(env=EnvConfig(name=name)).replace(seed=3).env.name.object is env


@pytest.mark.toy
def test_options_are_added_to_the_arguments_of_an_environment():
    env = cartpole(sutton_barto_reward=True)
    config = with_env(Config(), env, {"env.options": {"num_workers": 2}, "seed": 5})
    assert config.env.options == {"sutton_barto_reward": True, "num_workers": 2}
    assert config.seed == 5
    config = with_env(Config(), env, {"env.options.sutton_barto_reward": False})
    assert config.env.options == {"sutton_barto_reward": False}
    with pytest.raises(ValueError, match=r"already has wrappers\. Wrap the environment in Python"):
        with_env(Config(), FrameStackObservation(env, 2), {"env.options.wrappers": "ClipReward"})


@pytest.mark.toy
def test_an_environment_replaces_the_options_of_the_config():
    config = Config(env=EnvConfig(name="gymnax/Catch-bsuite", options={"max_steps_in_episode": 9}))
    assert with_env(config, "gymnasium/CartPole-v1").env.options == {}
    assert with_env(config, None, {"seed": 2}).env.options == {"max_steps_in_episode": 9}


class OldEnv:
    """As in the package gym."""


OldEnv.__module__, OldEnv.__qualname__ = "gym.core", "Env"


@pytest.mark.toy
@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ([cartpole], "env.name is a list. Pass one environment"),
        (gymnasium.make_vec("CartPole-v1", 2), "this is a vector environment. Pass one"),
        (lambda: gymnasium.make_vec("CartPole-v1", 2), "this is a vector environment"),
        (simple_spread_v3.env(), "this is a turn-based environment. Pass a parallel one"),
        (type("Old", (OldEnv,), {}), "this is an environment of the package gym. Use its"),
        (lambda: gymnasium.make("CartPol-v1"), "raises NameNotFound: "),
    ],
)
def test_an_unsupported_environment_is_an_error_with_a_remedy(env, problem):
    with pytest.raises(ValueError, match=r"^config: env.name") as caught:
        with_env(Config(), env)
    assert problem in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.toy
def test_reserved_options_are_those_of_the_families():
    assert set(POOL_OPTIONS) == {*host.OPTIONS, *host_pettingzoo.OPTIONS}
    assert all(family_of(value) is None for value in (own_code.Walk, 3, np.zeros(2), spaces.Dict()))
    assert all(len(remedy) == 2 for remedy in NOT_SUPPORTED.values())


@pytest.mark.toy
def test_lists_and_mappings_in_options_survive_yaml(tmp_path):
    options = {"config": {"lanes": (3, 4), "speed": {"max": np.float32(0.5)}, 2: None}, "on": True}
    config = Config().replace(**{"env.name": "gymnasium/X-v0", "env.options": options})
    plain = {"config": {"lanes": [3, 4], "speed": {"max": 0.5}, 2: None}, "on": True}
    assert config.env.options == plain
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert load_config(str(tmp_path / "config.yaml")).env.options == plain
    with pytest.raises(ValueError, match=r"env.options.a\[1\].b = <object.*: must be a number"):
        Config().replace(**{"env.options.a": [1, {"b": object()}]})
