"""Curricula: parameters as functions of the progress of a run."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.stepping import begin

from purejaxppo import learner
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.cli import train as train_module
from purejaxppo.config.files import from_dict, to_yaml
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import curriculum, registry
from purejaxppo.envs.curriculum import CurriculumEnv
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program

PENDULUM = {"name": "gymnax/Pendulum-v1", "max_episode_steps": 7}


@pytest.mark.toy
@pytest.mark.parametrize(
    ("text", "progress", "value"),
    [
        ("0.5 to 1.0", [0.0, 0.25, 1.0], [0.5, 0.625, 1.0]),
        ("1 to -1 until 0.5", [0.0, 0.25, 0.5, 0.75], [1.0, 0.0, -1.0, -1.0]),
        ("2e1 to .5", [0.0, 1.0], [20.0, 0.5]),
    ],
)
def test_ramps_by_hand(text, progress, value):
    ramp = curriculum.parse("x", text)
    np.testing.assert_allclose([ramp(p) for p in progress], value, rtol=1e-6)


def test_a_curriculum_can_be_a_function_in_a_file(tmp_path):
    file = tmp_path / "steps.py"
    file.write_text(
        "import jax.numpy as jnp\n"
        "def gravity(progress):\n    return 5.0 + (4 * progress).astype(int)\n"
        "def branch(progress):\n    return 1.0 if progress > 0.5 else 2.0\n"
        "def two(progress):\n    return jnp.stack([progress, progress])\n"
    )
    values = curriculum.schedule({"g": f"{file}:gravity"})
    assert [float(jax.jit(values)(p)["g"]) for p in (0.0, 0.3, 1.0)] == [5.0, 6.0, 9.0]
    env = registry.make(
        EnvConfig(name="gymnax/Pendulum-v1", curriculum={"g": f"{file}:gravity"}), 2
    )
    assert env.reset(jax.random.key(0))[0].values["g"] == 5.0
    for text, message in (
        (f"{file}:gravitas", "has no 'gravitas'. Did you mean 'gravity'?"),
        (f"{file}:branch", "jnp.where instead of if"),
        (f"{file}:two", "returns float32 [2]. It must return float32 []"),
        (f"{file}x.py:two", "no such file"),
        ("from 1 to 2", "must be a ramp"),
        ("1 to 2 until 0", "a fraction of the run"),
    ):
        with pytest.raises(ValueError, match=r"env\.curriculum\.g") as error:
            curriculum.parse("g", text)
        assert message in str(error.value)


def speeds(obs, action, g):
    """Compute theta-dot after a step of Pendulum-v1 with gravity g, from obs [.., 3] and torque."""
    return np.clip(obs[..., 2] + (1.5 * g * obs[..., 1] + 3.0 * action) * 0.05, -8, 8)


@pytest.mark.parametrize("randomize", [{}, pytest.param({"l": 0.0}, marks=pytest.mark.full)])
def test_each_update_uses_the_curriculum_value_at_its_progress(make_config, randomize):
    # 4 environments x 12 steps an update, 5 updates: gravity 10, 8, 6, 4, 2, read off the motion.
    config = make_config(
        env={**PENDULUM, "curriculum": {"g": "10 to 0"}, "randomize": randomize},
        total_timesteps=5 * 48,
    )
    parts = make_parts(config)
    hp, chunk = make_hyperparams(config), jax.jit(train_program(parts))
    collect = jax.jit(partial(learner.collect, parts))
    state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
    for update in range(5):
        # Repeat the rollout of the update from the same state.
        rollout, key = jax.tree.map(lambda x: x[0], (state.rollout, state.key))
        rows = collect(state.agent, rollout, key, state.update / hp.total_updates).transitions
        obs, went_on = np.asarray(rows.obs), np.asarray(rows.valid)[:-1]
        torque = 2.0 * np.clip(np.asarray(rows.action)[..., 0], -1, 1)
        expected = speeds(obs, torque, 10.0 - 2.0 * update)[:-1]
        np.testing.assert_allclose(obs[1:, :, 2][went_on], expected[went_on], rtol=1e-4, atol=1e-4)
        state, _ = chunk(state, hp, jnp.int32(1))
        np.testing.assert_allclose(state.rollout.env.values["g"], [10.0 - 2.0 * update], rtol=1e-6)
    assert chunk._cache_size() == 1


def test_a_run_with_a_curriculum_resumes_exactly(make_config):
    config = make_config(
        env={**PENDULUM, "curriculum": {"m": "0.5 to 1.0 until 0.8"}, "randomize": {"g": 0.1}},
        total_timesteps=5 * 48,
    )
    parts, hp = make_parts(config), make_hyperparams(config)
    chunk = jax.jit(train_program(parts))
    state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
    whole, _ = chunk(state, hp, jnp.int32(5))
    saved = jax.device_get(chunk(state, hp, jnp.int32(2))[0])
    resumed, _ = chunk(saved, hp, jnp.int32(3))
    jax.tree.map(np.testing.assert_array_equal, whole.agent, resumed.agent)
    np.testing.assert_allclose(whole.rollout.env.values["m"], [1.0])


def test_evaluations_use_the_end_of_the_curriculum(key):
    config = EnvConfig("gymnax/MemoryChain-bsuite", curriculum={"memory_length": "2 to 9"})
    env = registry.make(config, 3, evaluation=True)
    assert not isinstance(env, CurriculumEnv)
    # Observation 0 is 1 - time / memory_length: whole numbers stay whole.
    step = jax.jit(partial(env.step, key))
    state, _ = jax.jit(env.reset)(key)
    state, _ = step(state, jnp.zeros(3, jnp.int32))
    _, out = step(state, jnp.zeros(3, jnp.int32))
    np.testing.assert_allclose(out.obs.reshape(3, -1)[:, 0], 1 - 1 / 9, rtol=1e-6)
    training = registry.make(config, 3)
    step = jax.jit(partial(training.step, key))
    start, _ = jax.jit(training.reset)(key)
    halfway = begin(training, start, 0.5)
    for first, length in ((start, 2), (halfway, 6)):  # 5.5, rounded to even
        state, _ = step(first, jnp.zeros(3, jnp.int32))
        _, out = step(state, jnp.zeros(3, jnp.int32))
        np.testing.assert_allclose(out.obs.reshape(3, -1)[:, 0], 1 - 1 / length, rtol=1e-6)


def test_unknown_parameters_are_rejected(make_config):
    for name, message in (
        ("dummy/vector", "has no parameters"),
        ("gymnax/Pendulum-v1", "It has max_speed"),
        ("gymnasium/CartPole-v1", "runs on the host"),
    ):
        with pytest.raises(ValueError, match=message):
            registry.make(EnvConfig(name, curriculum={"gravitas": "1 to 2"}), 2)
    config = from_dict({"env": {"curriculum": {"g": "1 to 2"}, "randomize": {"m": 1}}})
    assert config.env.randomize == {"m": 1.0}
    assert "g: 1 to 2" in to_yaml(config)
    for field, value in (("curriculum", 3), ("randomize", "much")):
        with pytest.raises(ValueError, match=f"env.{field}.g = "):
            from_dict({"env": {field: {"g": value}}})


@pytest.mark.full
def test_a_curriculum_can_be_set_on_the_command_line(tmp_path):
    run = [
        "--config", "pendulum.yaml", "--env.curriculum", "g", "5 to 10 until 0.5",
        "--env.randomize", "m", "0.2", "--env.num_envs", "4", "--ppo.rollout_length", "16",
        "--ppo.num_minibatches", "2", "--ppo.num_epochs", "1", "--total_timesteps", "256",
        "--eval.num_episodes", "2", "--run_dir", str(tmp_path / "run"), "--logging.no_tensorboard",
    ]  # fmt: skip
    assert train_module.main(run) == 0
    assert "5 to 10 until 0.5" in (tmp_path / "run" / "config.yaml").read_text()
    assert (tmp_path / "run" / "metrics.csv").read_text().count("\n") > 2


def test_environments_with_a_curriculum_report_their_starts(key):
    env = registry.make(EnvConfig(**PENDULUM, curriculum={"g": "1 to 2"}, reset="every_rollout"), 3)
    state, obs = env.reset(key)
    known, place = env.starts(state)
    np.testing.assert_array_equal(known[place], obs)
    assert env.spec.known_starts and not np.array_equal(env.starts(begin(env, state)).obs, known)
