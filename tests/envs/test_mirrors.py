"""Built-in mirror lists: mirrored states and actions give mirrored observations and rewards.

States of MuJoCo models are mirrored by the geometry of the model, independently of the lists.
"""

import envpool
import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from purejaxppo.cli import train
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import families, mirrors, registry
from purejaxppo.parts import make_parts
from purejaxppo.spaces import Box
from tests.support.mirrored import mirrored, model_mirror

LISTS = mirrors.table()


def assert_mirrored(name, first, second, atol):
    """Compare sequences of (obs, reward, terminated) of an environment and its mirror image."""
    obs, reward, terminated = (np.array(x, float) for x in zip(*first, strict=True))
    image, *others = (np.array(x, float) for x in zip(*second, strict=True))
    np.testing.assert_allclose(image, mirrored(obs, LISTS[name].obs), rtol=atol, atol=atol)
    np.testing.assert_allclose(others[0], reward, rtol=atol, atol=atol)
    np.testing.assert_array_equal(others[1], terminated)
    assert np.abs(image - obs).max() > 0.01  # these states are not symmetric


def mirrored_action(name, action):
    """Return the mirror image of an action, discrete or continuous."""
    entries = LISTS[name].action
    if np.ndim(action) == 0:
        return entries[action] - 1
    return mirrored(action, entries).astype(action.dtype)


def negated(state):
    """Return a state of gymnax with its floats negated."""
    is_float = lambda x: jnp.issubdtype(jnp.result_type(x), jnp.floating)  # noqa: E731
    return jax.tree.map(lambda x: -x if is_float(x) else x, state)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_classic_control_of_gymnax_is_symmetric(name):
    name = f"gymnax/{name}"
    task = registry.make_task(EnvConfig(name=name))
    while hasattr(task, "task"):
        task = task.task
    step, sides = jax.jit(task.step), ([], [])
    rng = np.random.default_rng(0)
    for i in range(20):
        key = jax.random.key(i)
        state, _ = task.reset(key)
        if isinstance(task.action, Box):
            action = rng.uniform(-2, 2, 1).astype(np.float32)
        else:
            action = rng.integers(task.action.n)
        images = (state, action), (negated(state), mirrored_action(name, action))
        for side, (before, chosen) in zip(sides, images, strict=True):
            _, out = step(key, before, chosen)
            side.append((out.obs, out.reward, out.terminated))
    assert_mirrored(name, *sides, atol=1e-5)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_classic_control_of_gymnasium_is_symmetric(name):
    env = gymnasium.make(name).unwrapped
    env.action_space.seed(0)
    sides = ([], [])
    for i in range(20):
        env.reset(seed=i)
        start, action = np.array(env.state), env.action_space.sample()
        images = (start, action), (-start, mirrored_action(f"gymnasium/{name}", action))
        for side, (before, chosen) in zip(sides, images, strict=True):
            env.state = before
            side.append(env.step(chosen)[:3])
    assert_mirrored(f"gymnasium/{name}", *sides, atol=1e-9)


def make_symmetric(model):
    """Remove the known asymmetry of a humanoid; let the solver converge."""
    names = [model.joint(i).name for i in range(model.njnt)]
    if "left_hip_y" in names:
        model.jnt_stiffness[names.index("left_knee")] = 0
        model.dof_armature[model.joint("right_hip_y").dofadr] = 0.01
        model.opt.solver, model.opt.tolerance = mujoco.mjtSolver.mjSOL_NEWTON, 1e-14
        mujoco.mj_setConst(model, mujoco.MjData(model))


@pytest.mark.parametrize("name", ["Ant", "Walker2d", "Humanoid", "HumanoidStandup"])
def test_robots_of_gymnasium_are_symmetric(name):
    env = gymnasium.make(f"{name}-v5").unwrapped
    name, model = f"gymnasium/{name}-v5", env.model
    make_symmetric(model)
    mirror = model_mirror(model, normal=1)
    assert mirror.ctrl == list(LISTS[name].action)
    rng, sides = np.random.default_rng(0), ([], [])
    for _ in range(5):
        env.reset(seed=0)
        qpos = env.data.qpos + 0.05 * rng.uniform(-1, 1, model.nq)
        qvel = rng.normal(size=model.nv)
        actions = rng.uniform(-1, 1, (5, model.nu)) * env.action_space.high
        for side, image in zip(sides, (False, True), strict=True):
            env.reset(seed=0)
            env.set_state(
                mirrored(qpos, mirror.qpos) if image else qpos,
                mirrored(qvel, mirror.qvel) if image else qvel,
            )
            for action in actions:
                out = env.step(mirrored(action, mirror.ctrl) if image else action)
                side.append(out[:3])
    assert_mirrored(name, *sides, atol=1e-6)


def start_from_obs(env, obs):
    """Set the state of a Gymnasium environment that an observation describes."""
    match env.spec.id.split("-")[0]:
        case "CartPole":
            env.state = obs
        case "Pendulum":
            env.state = np.array([np.arctan2(obs[1], obs[0]), obs[2]])
        case "Acrobot":
            angles = np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2])
            env.state = np.array([*angles, obs[4], obs[5]])
        case _:
            hidden = {15: 2, 24: 2, 9: 1}[env.model.nq]  # positions that are not observed
            values = np.concatenate([np.zeros(hidden), obs])
            env.set_state(*np.split(values[: env.model.nq + env.model.nv], [env.model.nq]))


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize("name", [x[8:] for x in LISTS if x.startswith("envpool/")])
def test_envpool_has_the_observations_and_actions_of_gymnasium(name):
    pool, env = envpool.make_gymnasium(name, num_envs=1, seed=3), gymnasium.make(name).unwrapped
    env.action_space.seed(0)
    env.reset(seed=0)
    obs, _ = pool.reset()
    start_from_obs(env, np.asarray(obs[0], float))
    for _ in range(3):
        action = env.action_space.sample()
        obs, reward, terminated, *_ = pool.step(np.asarray(action)[None])
        expected = env.step(action)
        np.testing.assert_allclose(obs[0], expected[0], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(reward[0], expected[1], rtol=1e-3, atol=1e-3)
        assert terminated[0] == expected[2]
    assert LISTS[f"envpool/{name}"] == LISTS[f"gymnasium/{name}"]


CARTPOLE = "gymnax/CartPole-v1"


def test_a_task_with_lists_needs_no_lists_in_the_config(make_config):
    parts = make_parts(make_config(env={"name": CARTPOLE}, ppo={"symmetry": "augment"}))
    config = mirrors.with_lists(parts.config, parts.env.spec)
    assert (config.env.mirror_obs, config.env.mirror_action) == LISTS[CARTPOLE]
    assert parts.symmetry.copies == 2


def test_lists_of_the_config_have_priority(make_config):
    env = {"name": CARTPOLE, "mirror_obs": (1, 2, 3, 4), "mirror_action": (1, 2)}
    config = make_config(env=env, ppo={"symmetry": "augment"})
    assert mirrors.with_lists(config, make_parts(config).env.spec) == config


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"name": "gymnax/MountainCar-v0"}, "has no built-in mirror lists. Set env.mirror_obs"),
        ({"name": "gymnax/MountainCar-v0"}, "Tasks with lists: gymnax/CartPole-v1, envpool/"),
        ({"name": CARTPOLE, "obs_indices": (0, 2)}, "do not support env.obs_indices. Set env"),
        (
            {"name": "gymnasium/Ant-v5", "options": {"include_cfrc_ext_in_observation": False}},
            "are for 105 values of an observation and 8 of an action, but with these env.options "
            "there are 27 and 8. Set env.mirror_obs and env.mirror_action.",
        ),
    ],
)
def test_tasks_without_matching_lists_are_rejected(make_config, env, message):
    with pytest.raises(ValueError, match=r"^ppo\.symmetry = loss: ") as error:
        make_parts(make_config(env={**env, "num_envs": 2}, ppo={"symmetry": "loss"}))
    assert message in str(error.value)


def test_the_command_line_reports_a_task_without_lists(tmp_path, capsys):
    flags = ["--env.name", "gymnax/MountainCar-v0", "--ppo.symmetry", "augment"]
    assert train.main([*flags, "--run_dir", str(tmp_path / "run")]) == 2
    assert "gymnax/MountainCar-v0 has no built-in mirror lists" in capsys.readouterr().err


@pytest.mark.parametrize("name", LISTS)
def test_lists_belong_to_tasks_and_are_their_own_inverse(name):
    family, _, task = name.partition("/")
    assert families.load(family).has_task(task)
    for entries in LISTS[name]:
        places = np.arange(1, len(entries) + 1)
        np.testing.assert_array_equal(mirrored(mirrored(places, entries), entries), places)
