"""NumPy and JAX numbers and whole floats as settings: converted to Python numbers."""

import re
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from purejaxppo import Config, load_config
from purejaxppo.config.files import from_dict, to_yaml
from purejaxppo.config.files import load_config as load
from purejaxppo.config.plain import MOST_STEPS, plain, time_limit, whole
from purejaxppo.config.schema import EnvConfig, EvalConfig, NetworkConfig, PPOConfig
from purejaxppo.envs.options import Option

pytestmark = pytest.mark.toy
EIGHTS = (8, 8.0, np.int64(8), np.uint8(8), np.float32(8), np.array(8), jnp.int32(8))
EIGHTS += (jnp.float32(8), jnp.bfloat16(8), Fraction(16, 2))
NOT_WHOLE = (8.5, "8", True, np.True_, None, np.nan, np.inf, np.array([8]), 8j, [8])


@pytest.mark.parametrize("value", EIGHTS, ids=repr)
def test_whole_numbers_of_any_type_become_int(value):
    assert (whole(value), type(whole(value))) == (8, int)
    assert (time_limit(value, "limit"), type(time_limit(value, "limit"))) == (8, int)
    for config in (
        load_config("cartpole.yaml", {"env.num_envs": value}),
        load_config("cartpole.yaml").replace(**{"env.num_envs": value}),
        Config(env=EnvConfig(num_envs=value)),
        from_dict({"env": {"num_envs": value}}),
    ):
        assert (config.env.num_envs, type(config.env.num_envs)) == (8, int)


@pytest.mark.parametrize("value", NOT_WHOLE, ids=repr)
def test_other_values_are_not_whole_numbers(value):
    assert whole(value) is None
    with pytest.raises(ValueError, match=r"env.num_envs = .*must be a whole number.$"):
        load_config("cartpole.yaml").replace(**{"env.num_envs": value})


@pytest.mark.parametrize("value", [0, -3, 20.5, "20", True, float("nan"), [20]], ids=repr)
def test_a_time_limit_is_a_whole_number_of_at_least_one(value):
    with pytest.raises(ValueError) as caught:
        time_limit(value, "x.max_episode_steps")
    assert str(caught.value) == (
        f"x.max_episode_steps = {value!r}: a time limit must be a whole number of steps, at least "
        f"1. Use None for no limit."
    )


def test_no_time_limit_and_an_unreachable_one_become_zero():
    assert time_limit(None, "x") == time_limit(0, "x", unlimited="0") == 0
    assert time_limit(MOST_STEPS, "x") == MOST_STEPS
    assert time_limit(2**63, "x") == 0


NUMPY = {
    "env.num_envs": np.int64(8),
    "env.options": {"length": np.float64(1.5), "count": np.int32(3), "flag": np.True_},
    "env.obs_indices": np.arange(3),
    "network.hidden": np.array([16, 16]),
    "ppo.gamma": np.float32(0.5),
    "ppo.num_minibatches": 2.0,
    "ppo.normalize_obs": np.False_,
    "eval.num_episodes": jnp.int32(4),
    "logging.interval": np.uint64(1000),
}


def test_a_config_holds_only_python_numbers():
    direct = Config(
        env=EnvConfig(
            num_envs=np.int64(8), options=NUMPY["env.options"], obs_indices=tuple(np.arange(3))
        ),
        network=NetworkConfig(hidden=tuple(np.array([16, 16]))),
        ppo=PPOConfig(gamma=np.float32(0.5), num_minibatches=2.0, normalize_obs=np.False_),
        eval=EvalConfig(num_episodes=jnp.int32(4)),
    )
    changed = Config().replace(**NUMPY)
    for config in (direct, changed):
        assert repr(config.env.options) == "{'length': 1.5, 'count': 3, 'flag': True}"
        assert repr((config.env.obs_indices, config.network.hidden)) == "((0, 1, 2), (16, 16))"
        assert repr((config.ppo.gamma, config.ppo.num_minibatches)) == "(0.5, 2)"
        assert repr((config.ppo.normalize_obs, config.eval.num_episodes)) == "(False, 4)"
    assert from_dict(yaml.safe_load(to_yaml(changed))) == changed


def test_numpy_grids_become_python_numbers():
    grid = [load("cartpole.yaml", {"ppo.gamma": x}).ppo.gamma for x in np.linspace(0.5, 1, 3)]
    assert repr(grid) == "[0.5, 0.75, 1.0]"
    grid = [load("cartpole.yaml", {"ppo.num_epochs": x}).ppo.num_epochs for x in np.arange(1.0, 4)]
    assert repr(grid) == "[1, 2, 3]"


def test_strings_and_objects_are_not_converted():
    thing = object()
    assert plain(thing) is thing
    assert plain({"a": ("x", np.int8(1)), "b": [np.float16(0.5)]}) == {"a": ("x", 1), "b": [0.5]}


def test_an_option_may_be_a_whole_float_where_its_default_is_an_int():
    assert repr(Option(3, "").read("a", 4.0)) == "4"
    assert repr(Option(0.5, "").read("a", 4)) == "4"
    assert repr(Option(False, "").read("a", True)) == "True"
    for value, default, words in [
        (4.5, 3, "4.5: must be a whole number"),
        ("4", 3, "'4': must be a whole number"),
        (True, 3, "True: must be a whole number"),
        (1, True, "1: must be true or false"),
        (True, 0.5, "True: must be a number"),
        (1, "x", "1: must be a string. Write '1'"),
        (1, [2], "1: must be a list, such as [2]"),
    ]:
        with pytest.raises(ValueError, match=rf"^env.options.a = {re.escape(words)}\.?$"):
            Option(default, "").read("env.options.a", value)
