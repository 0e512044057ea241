"""Environments by name, and errors for wrong names."""

import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.costs import flops
from support.stepping import KEY, begin

from purejaxppo.config.installation import install_extra
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.spaces import example


def message(name, **options):
    with pytest.raises(ValueError) as error:
        registry.make(EnvConfig(name=name, **options), 2)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dummy/vektor", "Did you mean 'dummy/vector'"),
        ("dumy/vector", "Did you mean 'dummy'"),
        ("gymnax/Cartpole-v1", "Did you mean 'gymnax/CartPole-v1'"),
        ("CartPole-v1", "Use envpool/CartPole-v1, gymnasium/CartPole-v1 or gymnax/CartPole-v1."),
        ("Hopper-v4", "Use envpool/Hopper-v4 or gymnasium/Hopper-v4."),
        ("CartPol-v1", "Did you mean 'envpool/CartPole-v1' or 'gymnasium/CartPole-v1'"),
        ("walk.py:Walk", "jax/walk.py:Walk for a Task, gymnasium/walk.py:Walk for an environment"),
        ("dummy/zzzzzzzz", "purejaxppo list envs"),
        ("zzzz/vector", "Families: brax, craftax"),
    ],
)
def test_a_wrong_name_suggests_the_nearest_valid_one(name, hint):
    pytest.importorskip("gymnax")
    text = message(name)
    assert text.startswith("env.name")
    assert hint in text and name.partition("/")[0] in text


@pytest.mark.parametrize(
    ("name", "module", "package", "extra"),
    [
        ("playground/CartpoleBalance", "mujoco_playground", "mujoco_playground", "playground"),
        ("unity/Walker.x86_64", "grpc", "grpcio", "unity"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    name, module, package, extra, monkeypatch
):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *args: None if name == module else real(name, *args),
    )
    text = message(name)
    assert text == f"{package} is not installed. Run: {install_extra(extra)}"


def test_a_second_missing_package_is_named_too(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("purejaxppo.envs.engines.unity")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)  # its import fails
    sentence = f"google.protobuf is not installed. Run: {install_extra('unity')}"
    assert message("unity/Walker.x86_64") == sentence


def test_suggestions_skip_families_that_are_not_installed(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *args: real(name, *args) if name == "jax" else None,
    )
    assert "Use dummy/constant." in message("constant")


def test_wrong_back_ends_and_options_are_rejected():
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
def test_max_episode_steps_overrides_the_time_limit_of_the_task(limit):
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
def test_the_reset_setting_decides_when_fresh_starts_are_drawn(reset, name, every_step):
    config = EnvConfig(name=name, reset=reset)
    assert registry.make(config, 2).fresh_every_step is every_step
    assert not registry.make(config, 2, evaluation=True).fresh_every_step


EXPENSIVE_RESETS = (
    "jaxmarl/MPE_simple_spread_v3",
    "jumanji/Snake-v1",
    "pgx/minatar-breakout",
    "xminigrid/MiniGrid-DoorKey-5x5",
)
CHEAP_RESETS = ("jaxmarl/overcooked_v2", "jumanji/PacMan-v1", "pgx/connect_four")


@pytest.mark.parametrize("name", EXPENSIVE_RESETS)
def test_expensive_starts_are_not_computed_inside_a_step(name, key):
    pytest.importorskip(name.partition("/")[0])
    steps = {}
    for reset in ("every_step", "auto"):
        env = registry.make(EnvConfig(name, num_envs=48, reset=reset), 48)
        state, action = jax.eval_shape(env.reset, key)[0], jnp.zeros(48, jnp.int32)
        steps[reset] = flops(env.step, key, state, action)
    # The rest is the cost of reading starts that were drawn before.
    assert steps["every_step"] - steps["auto"] > 0.5 * flops(env.reset, key)


@pytest.mark.parametrize("name", CHEAP_RESETS)
def test_cheap_starts_are_computed_at_every_reset(name):
    pytest.importorskip(name.partition("/")[0])
    assert registry.make_task(EnvConfig(name)).cheap_reset


def ends(name, count, stagger, limit=0, **options):
    """Return first observations [N, ...], truncated [T, N] and valid [T, N]."""
    config = EnvConfig(name, num_envs=12, max_episode_steps=limit, stagger=stagger, options=options)
    env = registry.make(config, 12)

    def run(key):
        state, obs = env.reset(key)
        action = jax.tree.map(lambda x: jnp.stack([x] * 12), example(env.spec.action))

        def step(state, _):
            state, out = env.step(KEY, begin(env, state), action)
            return state, (out.truncated, out.valid)

        return obs, *jax.lax.scan(step, state, None, count)[1]

    return jax.device_get(jax.jit(run)(jax.random.key(0)))


@pytest.mark.parametrize("name", ["dummy/constant", "particles/spread"])
def test_staggered_environments_start_together_and_end_at_different_steps(name):
    limit = 10
    first, truncated, valid = ends(name, 3 * limit, True, limit)
    jax.tree.map(np.testing.assert_array_equal, first, ends(name, 1, False, limit)[0])
    when = [np.flatnonzero(column) for column in truncated.T]
    begun = np.array([steps[0] for steps in when])
    assert (begun < limit).all() and len(np.unique(begun)) > 2
    # Between further ends there is a whole episode and its reset row.
    assert all((np.diff(steps) == limit + 1).all() for steps in when)
    assert (valid[0]).all() and (~valid.T).sum() == sum(len(s) - (s[-1] == 29) for s in when)
    if name == "particles/spread":  # agents of one environment end together
        assert (begun.reshape(-1, 3) == begun[::3, None]).all()


def test_without_stagger_time_limits_end_all_episodes_together():
    truncated = ends("dummy/constant", 12, False)[1]
    assert (np.flatnonzero(truncated.any(axis=1)) == [9]).all() and truncated[9].all()


def test_evaluations_are_not_staggered():
    env = registry.make(EnvConfig("dummy/constant", stagger=True), 4, evaluation=True)
    assert not env.stagger


@pytest.mark.parametrize(
    ("name", "expected_message"),
    [
        (
            "jaxmarl/hanabi",
            "env.stagger = true needs a time limit. Set env.max_episode_steps for jaxmarl/hanabi",
        ),
        ("gymnasium/CartPole-v1", "env.stagger needs a simulator in JAX"),
    ],
)
def test_environments_that_cannot_be_staggered_are_rejected(name, expected_message):
    pytest.importorskip(name.partition("/")[0])
    assert expected_message in message(name, stagger=True)
