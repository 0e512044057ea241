"""Options of Playground tasks."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.rail import Model, Rail

from purejaxppo import load_config
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.adapters import playground as adapter
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.spaces import Dict

playground = pytest.importorskip("mujoco_playground")


@pytest.fixture
def make(monkeypatch):
    """A function that makes the rail task with Playground's options for CartpoleBalance."""
    monkeypatch.setattr(playground.registry, "load", lambda *args, **kwargs: Rail())

    def make(**options):
        return registry.make_task(EnvConfig("playground/CartpoleBalance", options=options))

    return make


@pytest.mark.parametrize(("name", "drawn"), [("CartpoleBalance", 64), ("CheetahRun", 4)])
def test_tasks_with_a_settling_phase_draw_part_of_the_starts_per_rollout(name, drawn, monkeypatch):
    monkeypatch.setattr(playground.registry, "load", lambda *args, **kwargs: Rail())
    task = registry.make_task(EnvConfig(f"playground/{name}"))
    assert VectorEnv(task, 64, fresh_every_step=False).fresh_per_rollout == drawn


def test_action_repeat_takes_the_action_several_times_in_one_step(make, key):
    task = make(action_repeat=3)
    step = jax.jit(task.step)
    (state, _), out = step(key, task.reset(key)[0], jnp.ones(1))
    assert (state.info["steps"], out.obs[0], out.reward) == (3, 3, 1 + 2 + 3)
    assert not out.terminated
    (state, steps), out = step(key, (state, jnp.int32(1)), jnp.ones(1))
    assert (state.info["steps"], out.obs[0], out.reward) == (6, 6, 4 + 5 + 6)
    assert out.terminated and steps == 2
    # Repeats after the end add no reward.
    state = state.replace(obs=jnp.array([4.5]), done=jnp.zeros(()))
    (state, _), out = step(key, (state, jnp.int32(1)), jnp.ones(1))
    assert (state.info["steps"], out.obs[0], out.reward) == (7, 5.5, 5.5)


def test_episode_length_counts_repeated_steps(make):
    # Like Playground's wrapper: the episode ends at the end of the step that reaches the limit.
    assert make(action_repeat=1, episode_length=10).max_episode_steps == 10
    assert make(action_repeat=4, episode_length=10).max_episode_steps == 3
    assert make(action_repeat=4).frame_rate == make().frame_rate / 4


def test_the_raw_task_never_reaches_its_limit(monkeypatch):
    """AlohaHandOver restarts its count at the limit, before it makes the last observation."""
    told = {}
    monkeypatch.setattr(
        playground.registry,
        "load",
        lambda name, config_overrides: told.update(config_overrides) or Rail(),
    )
    for steps, options, limit in (
        (0, {}, 1001),
        (0, {"episode_length": 10, "action_repeat": 4}, 14),
        (5000, {"action_repeat": 2}, 10_002),
    ):
        config = EnvConfig("playground/CartpoleBalance", max_episode_steps=steps, options=options)
        registry.make_task(config)
        assert told["episode_length"] == limit


@pytest.mark.parametrize("repeats", [0, -1, 1.5, True])
def test_action_repeat_must_be_a_positive_whole_number(make, repeats):
    with pytest.raises(ValueError, match=r"env\.options\.action_repeat = .* at least 1"):
        make(action_repeat=repeats)


@pytest.mark.full
def test_two_repeats_equal_two_steps_of_cartpole(key):
    def task(**options):
        return registry.make_task(EnvConfig("playground/CartpoleBalance", options=options))

    single, double = task(), task(action_repeat=2)
    assert (single.max_episode_steps, double.max_episode_steps) == (1000, 500)
    action = jnp.full(1, 0.3)
    state, _ = jax.jit(single.reset)(key)
    step = jax.jit(single.step)
    middle, first = step(key, state, action)
    _, second = step(key, middle, action)
    _, both = jax.jit(double.step)(key, state, action)
    np.testing.assert_allclose(both.obs, second.obs, rtol=1e-5)
    np.testing.assert_allclose(both.reward, first.reward + second.reward, rtol=1e-5)


def rejection(name, *, backend="", **options):
    config = EnvConfig(name, backend=backend, options=options)
    with pytest.raises(ValueError) as caught:
        registry.make_task(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_without_the_robot_gets_a_one_sentence_error(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        text = rejection("playground/Go1Getup", menagerie=str(folder))
        assert f"env.options.menagerie: {folder} has no folder unitree_go1" in text


def test_models_are_never_downloaded(monkeypatch, tmp_path):
    from mujoco_playground._src import mjx_env

    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(mjx_env, "MENAGERIE_PATH", tmp_path / "none")
    monkeypatch.setattr(mjx_env, "_clone_with_progress", lambda *args: pytest.fail("a clone"))
    text = rejection("playground/Go1Getup")
    assert "playground/Go1Getup needs the robot model unitree_go1. Run: " in text
    assert "mujoco-menagerie prefetch unitree_go1. It is saved in" in text
    rejection("playground/Go1Getup", menagerie=str(tmp_path))
    assert tmp_path / "none" == mjx_env.MENAGERIE_PATH


def test_warp_needs_a_gpu_and_its_package(monkeypatch):
    name, real = "playground/CartpoleBalance", importlib.util.find_spec
    if jax.default_backend() != "gpu":
        assert "env.backend = warp needs an NVIDIA GPU" in rejection(name, backend="warp")
    text = rejection(name, backend="warp", domain_randomization=True)
    assert "Use env.backend = jax" in text
    assert "AeroCubeRotateZAxis supports only jax" in rejection(
        "playground/AeroCubeRotateZAxis", backend="warp"
    )
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda x, *rest: None if x == "warp" else real(x, *rest)
    )
    assert "warp-lang is not installed" in rejection(name, backend="warp")


def test_domain_randomization_is_rejected_for_a_task_without_it(make):
    with pytest.raises(ValueError, match="no domain randomisation for playground/Cartpole"):
        make(domain_randomization=True)


def test_domain_randomization_draws_a_model_for_every_episode(make, monkeypatch, key):
    def randomize(model, keys):
        friction = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
        axes = Model(mass=None, geom_friction=0)
        return model.replace(geom_friction=friction), axes

    monkeypatch.setattr(playground.registry, "get_domain_randomizer", lambda name: randomize)
    env = VectorEnv(make(domain_randomization=True), 3, fresh_every_step=False)
    state, _ = jax.jit(env.reset)(key)
    (drawn, _), _ = state.task
    assert {name: x.shape for name, x in drawn.items()} == {"geom_friction": (3, 2)}
    _, out = jax.jit(env.step)(key, state, jnp.ones((3, 1)))
    # The rail moves by its action times the friction of its environment.
    np.testing.assert_allclose(out.obs[:, 0], drawn["geom_friction"][:, 0], rtol=1e-6)
    assert len(set(out.obs[:, 0].tolist())) == 3


ROBOTS = [
    name
    for name in playground.registry.locomotion.ALL_ENVS + playground.registry.manipulation.ALL_ENVS
    if name not in adapter.BROKEN
]


@pytest.mark.parametrize("name", adapter.BROKEN)
def test_broken_tasks_are_rejected(name):
    assert "fails with JAX" in rejection(f"playground/{name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", adapter.BROKEN)
def test_broken_tasks_still_fail(menagerie, monkeypatch, name, key):
    name = f"playground/{name}"
    monkeypatch.setattr(adapter, "BROKEN", ())
    task = registry.make_task(EnvConfig(name, options={"menagerie": str(menagerie)}))
    state, _ = jax.eval_shape(task.reset, key)
    with pytest.raises(TypeError, match="a_max"):
        jax.eval_shape(task.step, key, state, jnp.zeros(task.action.shape))


AGAIN = ("Rough", "Getup", "Footstand", "Handstand", "SpotJoystick", "Apollo", "Berkeley")
"""Parts of the names of tasks whose robot, or one like it, is covered by another task."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.slow if any(y in x for y in AGAIN) else pytest.mark.full)
        for x in ROBOTS
    ],
)
def test_tuned_configs_name_existing_parts_of_the_observation(menagerie, name):
    config = load_config(f"playground/{name}", {"env.options": {"menagerie": str(menagerie)}})
    task, network = registry.make_task(config.env), config.network
    keys = [*network.actor_keys, *network.critic_keys]
    parts = dict(task.observation.spaces) if isinstance(task.observation, Dict) else {}
    assert set(keys) <= set(parts) and bool(keys) == bool(parts)


RANDOMISATIONS = {}
"""A task for each randomisation of Playground."""
for robot in ROBOTS:
    RANDOMISATIONS.setdefault(playground.registry.get_domain_randomizer(robot), []).append(robot)
RANDOMISATIONS.pop(None, None)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if i else pytest.mark.full)
        for names in RANDOMISATIONS.values()
        for i, name in enumerate(names)
    ],
)
def test_every_domain_randomization_of_playground_is_traced(menagerie, name, key, capsys):
    options = {"menagerie": str(menagerie), "domain_randomization": True}
    task = registry.make_task(EnvConfig(f"playground/{name}", options=options))
    state, _ = jax.eval_shape(task.reset, key)
    (drawn, _), _ = state
    model = task.env.mjx_model
    assert "qpos0" in drawn
    assert {x: drawn[x].shape for x in drawn} == {x: getattr(model, x).shape for x in drawn}
    action = jax.ShapeDtypeStruct(task.action.shape, jnp.float32)
    after, _ = jax.eval_shape(task.step, key, state, action)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert not isinstance(task.env.mjx_model.body_mass, jax.core.Tracer)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"impl": "warp"}, "env.options.impl: use env.backend = jax or warp instead."),
        ({"vision": True}, "env.options.vision = true needs env.backend = warp."),
        ({"sim_dt": 0.0}, "env.options for playground/CartpoleBalance: float division by zero"),
        ({"ctrl_dt": 0.001}, "CartpoleBalance: ctrl_dt must be at least sim_dt."),
    ],
)
def test_invalid_fields_of_the_configuration_are_errors(options, words):
    with pytest.raises(ValueError, match=r"^env\.options") as caught:
        registry.make_task(EnvConfig("playground/CartpoleBalance", options=options))
    assert words in str(caught.value)
