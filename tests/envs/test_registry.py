"""Names to environments, and what is said of names that are wrong."""

import importlib.util

import pytest

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry


def message(name, **options):
    with pytest.raises(ValueError) as error:
        registry.make(EnvConfig(name=name, **options), 2)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dummy/vektor", "did you mean 'dummy/vector'"),
        ("dumy/vector", "did you mean 'dummy'"),
        ("gymnax/Cartpole-v1", "did you mean 'gymnax/CartPole-v1'"),
        ("CartPole-v1", "did you mean 'gymnax/CartPole-v1'"),
        ("dummy/zzzzzzzz", "purejaxppo list envs"),
        ("zzzz/vector", "there are brax, craftax"),
    ],
)
def test_a_wrong_name_gets_the_nearest_right_one(name, hint):
    pytest.importorskip("gymnax")
    text = message(name)
    assert text.startswith("env.name")
    assert hint in text and name.partition("/")[0] in text


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *args: None if name == "mujoco_playground" else real(name, *args),
    )
    text = message("playground/CartpoleBalance")
    assert "mujoco_playground is not installed" in text
    assert "pip install 'purejaxppo[playground]'" in text


def test_suggestions_skip_families_that_are_not_installed(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *args: real(name, *args) if name == "jax" else None,
    )
    assert "did you mean 'dummy/constant'" in message("constant")


def test_wrong_back_ends_and_options_are_refused():
    pytest.importorskip("brax")
    pytest.importorskip("gymnax")
    pytest.importorskip("mujoco_playground")
    assert "spring, positional, generalized, mjx" in message("brax/hopper", backend="sprung")
    assert "env.options" in message("brax/hopper", options={"no_such_thing": 1})
    assert "env.options" in message("brax/ant", options={"use_contact_forces": True})
    text = message("gymnax/CartPole-v1", options={"gravitas": 1.0})
    assert "env.options.gravitas" in text and "gravity" in text
    assert "jax, warp" in message("playground/CartpoleBalance", backend="mjx")
    text = message("playground/CartpoleBalance", options={"no_such_thing": 1})
    assert "env.options.no_such_thing" in text and "episode_length" in text


@pytest.mark.parametrize("limit", [0, 7])
def test_the_time_limit_is_the_tasks_own_unless_it_is_given(limit):
    env = registry.make(EnvConfig(name="dummy/constant", max_episode_steps=limit), 2)
    assert env.spec.max_episode_steps == (limit or 10)
    assert env.spec.num_envs == 2


@pytest.mark.parametrize(
    ("reset", "name", "every_step"),
    [
        ("auto", "dummy/vector", True),
        ("every_rollout", "dummy/vector", False),
        ("every_step", "dummy/vector", True),
    ],
)
def test_when_fresh_starts_are_drawn(reset, name, every_step):
    config = EnvConfig(name=name, reset=reset)
    assert registry.make(config, 2).fresh_every_step is every_step
    assert not registry.make(config, 2, evaluation=True).fresh_every_step
