"""Custom environments of Brax and Playground: by reference, as objects, and randomised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("brax")
pytest.importorskip("mujoco_playground")

from brax.envs.wrappers import training
from mujoco_playground._src import mjx_env
from support import robots
from support.paths import ROOT
from support.stepping import KEY, first_env_steps

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.spaces import Box, Dict

FILE = ROOT / "tests/support/robots.py"


def make(name, num_envs=2, **fields):
    return registry.make(EnvConfig(name=name, num_envs=num_envs, **fields), num_envs)


@pytest.mark.parametrize(
    ("name", "options", "gain"),
    [
        (f"brax/{FILE}:Cart", {}, 1.0),
        (f"brax/{FILE}:Cart", {"gain": 0.5}, 0.5),
        ("brax/support.robots:Cart", {}, 1.0),
        (robots.Cart(gain=0.25), {}, 0.25),
        (robots.Cart, {"gain": 2.0}, 2.0),
    ],
)
def test_a_custom_brax_environment_is_a_reference_or_an_object(name, options, gain):
    start, outs = first_env_steps(make(name, options=options), [1, 1, -1])
    np.testing.assert_allclose(outs[:, 0], start + gain * np.array([1, 2, 1]), rtol=1e-5)
    assert outs[:, 1:3].sum() == 0


def test_done_of_brax_terminates_and_the_time_limit_truncates():
    start, outs = first_env_steps(make(robots.Cart(gain=4.0)), [1, 1, 0])
    assert outs[1].tolist() == pytest.approx([start + 8, 1, 0, 1], rel=1e-5)
    assert outs[2].tolist() == [0, 0, 0, 0]  # the reset row
    _, outs = first_env_steps(make(robots.Cart, max_episode_steps=2), [0, 0, 0])
    assert outs[:, 2].tolist() == [0, 1, 0] and not outs[:, 1].any()
    assert make(robots.Cart()).spec.max_episode_steps == 1000


def test_the_back_end_is_an_argument_of_a_custom_brax_environment():
    assert registry.make_task(EnvConfig(robots.Cart, backend="mjx")).env.backend == "mjx"
    with pytest.raises(ValueError, match=r"takes no options\. Remove backend"):
        make(robots.Cart(), backend="mjx")


@pytest.mark.parametrize("name", [robots.Cart, f"playground/{FILE}:Slide"])
def test_a_custom_function_randomises_the_model_of_every_episode(name):
    task = registry.make_task(
        EnvConfig(name, options={"domain_randomization": f"{FILE}:masses"}, randomize={})
    )
    env = VectorEnv(task, 3, fresh_every_step=False)
    state, obs = env.reset(jax.random.key(1))
    (drawn, _), _ = state.task
    mass = np.asarray(drawn["array mass"])
    assert mass.shape == (3, 2) and len(set(mass[:, 0].tolist())) == 3
    assert ((mass >= 2) & (mass <= 4)).all()
    _, out = env.step(KEY, state, jnp.ones((3, 1)))
    np.testing.assert_allclose((out.obs - obs)[:, 0], 1 / mass[:, 0], rtol=1e-5)


def test_the_model_inside_of_a_wrapper_is_randomised():
    options = {"domain_randomization": f"{FILE}:masses"}
    task = registry.make_task(EnvConfig(robots.make_parts(), options=options))
    assert task.observation == Dict.of({"state": Box((1,)), "privileged_state": Box((2,))})
    state, obs = task.reset(jax.random.key(1))
    (drawn, _), _ = state
    _, out = task.step(KEY, state, jnp.ones(1))
    moved = out.obs["state"] - obs["state"]
    np.testing.assert_allclose(moved, 1 / drawn["array mass"][:1], rtol=1e-5)
    np.testing.assert_allclose(out.obs["privileged_state"][1], 2 * out.obs["state"][0])


def test_options_of_a_playground_class_are_fields_of_its_configuration():
    task = registry.make_task(EnvConfig(f"playground/{FILE}:Slide"))
    assert (task.max_episode_steps, task.frame_rate, task.env._config.impl) == (50, 50.0, "jax")
    options = {"episode_length": 20, "action_repeat": 2, "reward.scale": 3.0}
    env = make(robots.Slide, options=options)
    assert env.spec.max_episode_steps == 10
    _, outs = first_env_steps(env, [1, 1])
    # positions 1, 2 and 3, 4 times 3
    assert outs[:, 0].tolist() == [9.0, 21.0]
    assert (robots.CONFIG.reward.scale, robots.CONFIG.episode_length) == (1.0, 50)


def test_the_episode_length_of_a_playground_object_is_its_time_limit():
    config = robots.default_config()
    config.update(impl="jax", episode_length=7, action_repeat=2)
    env = make(robots.Slide(config))
    assert env.spec.max_episode_steps == 4
    _, outs = first_env_steps(env, [1] * 5)
    assert outs[:, 2].tolist() == [0, 0, 0, 1, 0]
    with pytest.raises(ValueError, match="was created with jax"):
        make(robots.Slide(config), backend="warp")


class Measured(robots.Slide):
    """Reports its position."""

    def reset(self, rng):
        return super().reset(rng).replace(metrics={"position": jnp.zeros(())})

    def step(self, state, action):
        state = super().step(state, action)
        return state.replace(metrics={"position": state.obs[0]})


@pytest.mark.parametrize(
    ("metrics", "values"),
    [({}, [1 + 2, 3 + 4]), ({"position": "mean"}, [1.5, 3.5]), ({"position": "last"}, [2, 4])],
    ids=["default", "mean", "last"],
)
def test_repeated_steps_reduce_metrics_as_the_config_does(metrics, values):
    env = make(Measured, options={"action_repeat": 2}, metrics=metrics)
    state, _ = env.reset(KEY)
    for value in values:
        state, out = env.step(KEY, state, jnp.ones((2, 1)))
        assert out.metrics[0].tolist() == [value]


def sentence(name, **fields):
    with pytest.raises(ValueError) as caught:
        make(name, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        (robots.Cart, {"gian": 1}, "got an unexpected keyword argument 'gian'"),
        (robots.Slide, {"reward.scal": 1}, "has no such option. Did you mean 'reward.scale'?"),
        (robots.Slide, {"episode_length": 0}, "env.options.episode_length"),
        (robots.Cart(), {"gain": 1}, "an object takes no options. Remove gain"),
        (f"brax/{FILE}:default_config", {}, "It must be an object with reset, step, action_size"),
        (f"brax/{FILE}:None", {}, "has no 'None'"),
        (robots.Forgetful, {}, "step returns a state {}, but reset returns {metrics.pushed: float"),
        (
            training.EpisodeWrapper(robots.Cart(), 100, 1),
            {},
            "has the wrapper EpisodeWrapper. Pass",
        ),
        (
            robots.Parts(training.VmapWrapper(robots.Cart())),
            {},
            "has the wrapper VmapWrapper. Pass the environment without it",
        ),
    ],
)
def test_an_invalid_environment_gets_a_one_sentence_error(name, options, text):
    assert text in sentence(name, options=options)


@pytest.mark.parametrize("name", [robots.Cart, robots.Slide])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (f"{FILE}:without_axes", "returns a Model instead of (models, axes)"),
        (f"{FILE}:unbatched", "returns mass of shape [1] for one key instead of [1, 2]"),
        (f"{FILE}:default_config", "takes (). It must take (model, keys [N, 2])"),
        (f"{FILE}:none", "has no 'none'"),
        ("yes", "must be true, false, or a custom function"),
        (True, "no domain randomisation"),
    ],
)
def test_an_invalid_randomisation_gets_a_one_sentence_error(name, value, text):
    assert text in sentence(name, options={"domain_randomization": value})


def test_a_missing_robot_is_an_error_with_the_command_that_fetches_it(monkeypatch, tmp_path):
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(mjx_env, "MENAGERIE_PATH", type(mjx_env.MENAGERIE_PATH)(tmp_path / "none"))
    monkeypatch.setattr(mjx_env, "_clone_with_progress", lambda *args: pytest.fail("a clone"))
    text = sentence(robots.Legged)
    assert "needs the robot model unitree_go1. Run: " in text
    assert (
        "mujoco-menagerie prefetch unitree_go1. It is saved in " + str(tmp_path / "cache") in text
    )
    text = sentence(robots.Legged, options={"menagerie": str(tmp_path)})
    assert f"env.options.menagerie: {tmp_path} has no folder unitree_go1" in text


def folder_of(**fields):
    task = registry.make_task(EnvConfig(robots.Legged, **fields))
    return str(task.env.folder)


def test_robots_are_found_in_the_option_the_variable_and_the_cache(monkeypatch, tmp_path):
    cache, root, clone = tmp_path / "cache", tmp_path / "root", tmp_path / "clone"
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(cache))
    (cache / "models/unitree_go1-0123").mkdir(parents=True)  # an interrupted download
    (cache / "models/unitree_go1-abcd").mkdir()
    (cache / "models/unitree_go1-abcd/.complete").touch()
    (cache / "models/unitree_go1-x-ffff").mkdir()
    (cache / "models/unitree_go1-x-ffff/.complete").touch()
    assert folder_of() == str(cache / "models/unitree_go1-abcd/assets")
    (root / "unitree_go1").mkdir(parents=True)
    monkeypatch.setenv("MENAGERIE_ROOT", str(root))
    assert folder_of() == str(root / "unitree_go1/assets")
    (clone / "unitree_go1").mkdir(parents=True)
    assert folder_of(options={"menagerie": str(clone)}) == str(clone / "unitree_go1/assets")
    assert "Menagerie" not in type(mjx_env.MENAGERIE_PATH).__name__  # restored
