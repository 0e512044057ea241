"""Built-in mirror lists: mirrored states and actions give mirrored observations and rewards.

States of MuJoCo models are mirrored by the geometry of the model, independently of the lists.
"""

import brax.envs
import envpool
import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from mujoco import mjx

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


LANDER = "LunarLander-v3"


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_distribution_of_lunar_lander_is_symmetric():
    """Terrain and engines are random: compare means, with actions that are not symmetric."""
    lists, num_envs = LISTS[f"envpool/{LANDER}"], 2000
    means, errors = [], []
    for seed, image in ((1, False), (2, True)):
        pool = envpool.make_gymnasium(LANDER, num_envs=num_envs, seed=seed)
        rng = np.random.default_rng(0)
        pool.reset()
        landed = np.zeros((num_envs, 2), bool)
        for _ in range(60):
            action = rng.choice(4, num_envs, p=[0.2, 0.4, 0.25, 0.15])
            chosen = np.array(lists.action)[action] - 1 if image else action
            obs, *_ = pool.step(chosen.astype(np.int32))
            landed |= obs[:, 6:] > 0
        values = np.concatenate([obs[:, :6], landed], axis=1)
        means.append(values.mean(0))
        errors.append(values.std(0) / np.sqrt(num_envs))
    expected = mirrored(means[0], lists.obs)
    assert (np.abs(means[1] - expected) < 4 * np.hypot(*errors) + 1e-9).all()
    assert np.abs(means[1] - means[0])[[0, 2, 4, 5, 6, 7]].min() > 0.01


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
@pytest.mark.parametrize(
    "name", sorted({x[8:] for x in LISTS if x.startswith("envpool/")} - {LANDER})
)
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
        ({"name": "gymnax/MountainCar-v0"}, "Tasks of gymnax/ with lists: gymnax/CartPole"),
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


def random_state(model, mirror, rng, qpos, scale):
    """Return (qpos, qvel) of a random state of a model, and those of its mirror image."""
    qpos = qpos + scale * rng.uniform(-1, 1, model.nq)
    qvel = rng.normal(size=model.nv)
    return (qpos, qvel), (mirrored(qpos, mirror.qpos), mirrored(qvel, mirror.qvel))


def doubles(tree):
    """Return a pytree with float64 instead of float32."""
    return jax.tree.map(
        lambda x: x.astype(np.float64) if getattr(x, "dtype", None) == np.float32 else x, tree
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["ant", "humanoid", pytest.param("humanoidstandup", marks=pytest.mark.slow)]
)
def test_robots_of_brax_are_symmetric(name):
    """Humanoids are not stepped, because they are only nearly symmetric."""
    rng, sides = np.random.default_rng(0), ([], [])
    with jax.enable_x64(True):
        env = brax.envs.get_environment(name, backend="generalized")
        env.sys = doubles(env.sys)
        model = env.sys.mj_model
        mirror = model_mirror(model, normal=1)
        assert mirror.ctrl == list(LISTS[f"brax/{name}"].action)
        step, init = jax.jit(env.step), jax.jit(env.pipeline_init)
        state = doubles(jax.jit(env.reset)(jax.random.PRNGKey(0)))
        for _ in range(4):
            starts = random_state(model, mirror, rng, np.asarray(env.sys.init_q), 0.1)
            action = rng.uniform(-1, 1, model.nu)
            actions = action, mirrored(action, mirror.ctrl)
            for side, start, chosen in zip(sides, starts, actions, strict=True):
                at = state.replace(pipeline_state=init(*map(jnp.asarray, start)))
                if name == "ant":
                    out = step(at, jnp.asarray(chosen))
                    side.append((out.obs, out.reward, out.done))
                else:
                    side.append((env._get_obs(at.pipeline_state, jnp.asarray(chosen)), 0, 0))
        assert_mirrored(f"brax/{name}", *sides, atol=1e-6)


def as_mjx(model, data):
    """Return the poses, velocities and sensors of MuJoCo's data as data of MJX."""
    empty = mjx.make_data(model, impl="jax")
    names = ("qpos", "qvel", "qacc", "ctrl", "xpos", "xmat", "xipos", "site_xpos", "site_xmat")
    names += ("geom_xpos", "sensordata", "actuator_force", "subtree_com", "cvel")
    arrays = {name: (getattr(data, name), getattr(empty, name).shape) for name in names}
    return empty.replace(**{k: jnp.asarray(x.reshape(shape)) for k, (x, shape) in arrays.items()})


def playground_env(name, **options):
    """Return an environment of Playground and its model."""
    task = registry.make_task(EnvConfig(name=f"playground/{name}", options=options))
    return task.env, task.env.mj_model


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "normal"),
    [
        *[(f"{x}Swingup", 0) for x in ("Cartpole", "Pendulum", "Acrobot")],
        ("BallInCup", 0),
        *[(x, 1) for x in ("WalkerRun", "HumanoidRun")],
    ],
)
def test_control_tasks_of_playground_are_symmetric(name, normal):
    """MuJoCo steps the model, in double precision. Playground computes observations."""
    env, model = playground_env(name)
    mirror = model_mirror(model, normal)
    assert mirror.ctrl == list(LISTS[f"playground/{name}"].action)
    data, rng, sides = mujoco.MjData(model), np.random.default_rng(0), ([], [])
    for _ in range(3):
        starts = random_state(model, mirror, rng, model.qpos0, 0.3)
        actions = rng.uniform(-1, 1, (4, model.nu))
        for side, start, chosen in zip(
            sides, starts, (actions, mirrored(actions, mirror.ctrl)), strict=True
        ):
            mujoco.mj_resetData(model, data)
            data.qpos, data.qvel = start
            for action in chosen:
                data.ctrl = action
                mujoco.mj_step(model, data, env.n_substeps)
                mujoco.mj_forward(model, data)
                seen = as_mjx(model, data)
                reward = env._get_reward(seen, jnp.asarray(action), {}, {})
                side.append((env._get_obs(seen, {}), reward, 0))
    assert_mirrored(f"playground/{name}", *sides, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "feet"),
    [("Go1", [2, 1, 4, 3]), pytest.param("G1", [2, 1], marks=pytest.mark.slow)],
)
def test_joystick_tasks_of_playground_are_symmetric(menagerie, name, feet):
    """The robots are not stepped, because they are only nearly symmetric."""
    name = f"{name}JoystickFlatTerrain"
    options = {"menagerie": str(menagerie), "noise_config.level": 0.0}
    env, model = playground_env(name, **options)
    for site in range(model.nsite):
        if "imu" in model.site(site).name:  # that of Go1 is 67 mm off the middle
            model.site_pos[site, 1] = 0
    mirror = model_mirror(model, normal=1)
    assert mirror.ctrl == list(LISTS[f"playground/{name}"].action)
    pose = np.asarray(env._default_pose)
    np.testing.assert_allclose(mirrored(pose, mirror.ctrl), pose, atol=1e-6)
    data, rng, sides = mujoco.MjData(model), np.random.default_rng(0), ([], [])
    for _ in range(4):
        starts = random_state(model, mirror, rng, np.asarray(env._init_q), 0.1)
        per_foot = {
            "feet_air_time": rng.uniform(0, 1, len(feet)),
            "swing_peak": rng.uniform(0, 0.1, len(feet)),
            "last_contact": rng.random(len(feet)) < 0.5,
            "phase": rng.uniform(-3, 3, 2),
        }
        per_joint = {
            x: rng.uniform(-1, 1, model.nu) for x in ("action", "last_act", "last_last_act")
        }
        command = np.array([0.7, 0.05, -0.3])
        for side, (qpos, qvel), image in zip(sides, starts, (False, True), strict=True):
            joints, by_foot = dict(per_joint), dict(per_foot)
            if image:
                joints = {k: mirrored(x, mirror.ctrl) for k, x in per_joint.items()}
                by_foot = {k: x[np.array(feet[: len(x)]) - 1] for k, x in per_foot.items()}
            mujoco.mj_resetData(model, data)
            data.qpos, data.qvel = qpos, qvel
            data.ctrl = pose + joints["action"] * env._config.action_scale
            mujoco.mj_forward(model, data)
            seen = as_mjx(model, data)
            info = {
                **jax.tree.map(jnp.asarray, {**by_foot, **joints}),
                "rng": jax.random.PRNGKey(0),
                "command": command * (np.array([1, -1, -1]) if image else 1),
                "steps_since_last_pert": 0,
                "steps_until_next_pert": 1,
            }
            contact = jnp.asarray(by_foot["last_contact"])
            obs = env._get_obs(seen, info, *([contact] if name[:2] == "G1" else []))
            reward = env._get_reward(seen, info["action"], info, {}, False, contact, contact)
            reward.pop("dof_acc", None)
            obs = np.concatenate(jax.tree.leaves(obs))
            # Accelerations depend on the masses, which are only nearly symmetric.
            after_gyro = env.observation_size["state"][0] + 3
            obs[after_gyro : after_gyro + 3] /= 1000
            side.append((obs, sum(reward.values()), env._get_termination(seen)))
    assert_mirrored(f"playground/{name}", *sides, atol=1e-3)
