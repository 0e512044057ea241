"""Templates that `purejaxppo init` writes."""

import runpy
import shlex
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from support.stepping import KEY

from purejaxppo import CallbackContext, Config, Run
from purejaxppo.__main__ import main
from purejaxppo.cli.init import TEMPLATES
from purejaxppo.config import copies
from purejaxppo.config.schema import HINTS
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.envs.wrappers import TimeLimit, UnitActions
from purejaxppo.spaces import Box


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_template(kind, file, name):
    """Write a template with `init`, and return an object in its file."""
    assert main(["init", kind, file]) == 0
    return runpy.run_path(file)[name]


@pytest.mark.toy
@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_template_is_written_once_and_its_printed_command_refers_to_it(kind, folder, capsys):
    file = TEMPLATES[kind].file
    assert main(["init", kind, file]) == 0
    about, command = capsys.readouterr().out.splitlines()
    written = ", ".join((file, *TEMPLATES[kind].data))
    assert about.startswith(f"wrote {written}: ")
    words = shlex.split(command.removeprefix("to train with it: "))
    reference = next(word for word in words if file in word)
    path, _, name = reference.removeprefix("jax/").removeprefix("gymnasium/").partition(":")
    assert path == file and runpy.run_path(file)[name]
    text = (folder / file).read_text()
    (folder / file).write_text(text + "# mine\n")
    assert main(["init", kind, file]) == 2
    assert f"{file} already exists. Choose another file name." in capsys.readouterr().err
    assert (folder / file).read_text() == text + "# mine\n"


@pytest.mark.toy
def test_no_file_of_the_robot_template_is_overwritten(folder, capsys):
    (folder / "chassis.obj").write_text("mine")
    assert main(["init", "robot", "robot.py"]) == 2
    assert "chassis.obj already exists. Choose another folder." in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["chassis.obj"]


@pytest.mark.toy
@pytest.mark.parametrize("file", ["gymnasium.py", "random.py"])
def test_no_file_gets_the_name_of_an_installed_module(file, folder, capsys):
    assert main(["init", "gymnasium", file]) == 2
    assert "is the name of an installed module" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_the_robot_template_accelerates_and_falls_as_the_equations_of_motion():
    pytest.importorskip("mujoco")
    robot = write_template("robot", "robot.py", "Balancer")(fastest=2.0)
    state, obs = jax.jit(robot.reset)(jax.random.key(0))
    assert abs(float(obs[0])) <= 0.1 and abs(float(obs[3])) <= 2.0
    data = state["data"].replace(qpos=jnp.zeros(2))
    state, out = jax.jit(robot.step)(KEY, {"data": data, "command": 0.0}, jnp.array([0.1]))
    # An upright cart with a pole: 0.6 kg wheels, a 2 kg chassis whose mass is above the axle.
    mass, (body,) = robot.mj_model.body_mass[1:], robot.mj_model.body_ipos[2:]
    inertia = robot.mj_model.body_inertia[2][1] + mass[1] * body[2] ** 2
    lever = mass[1] * body[2]
    acceleration = 1.0 / (mass.sum() - lever**2 / inertia)  # a force of 1 N, for 0.02 s
    np.testing.assert_allclose(out.obs[2], 0.02 * acceleration, rtol=0.05)
    np.testing.assert_allclose(out.obs[1], -lever / inertia * out.obs[2], rtol=0.05)
    expected = 0.5 + 0.5 * np.exp(-4 * out.obs[2] ** 2) - 0.05 * 0.1**2
    np.testing.assert_allclose(out.reward, expected, rtol=1e-5)
    assert not out.terminated
    fallen = state["data"].replace(qpos=jnp.array([0.0, 0.9]))
    _, out = jax.jit(robot.step)(KEY, state | {"data": fallen}, jnp.zeros(1))
    assert out.terminated and not out.truncated
    heavy = robot.adjusted({"mass": 2.0})
    np.testing.assert_allclose(heavy.model.body_mass, 2 * robot.model.body_mass)


@pytest.mark.toy
def test_the_environment_template_by_hand():
    task = write_template("env", "walk.py", "Walk")()
    state, obs = task.reset(jax.random.key(0))
    goal = float(obs[2])
    np.testing.assert_array_equal(obs[:2], 0.0)
    assert -1.0 <= goal <= 1.0
    state, out = task.step(jax.random.key(1), state, jnp.array([1.0]))
    np.testing.assert_allclose(out.obs, [0.1, 0.1, goal], rtol=1e-6)
    np.testing.assert_allclose(out.reward, 1.0 - abs(0.1 - goal), rtol=1e-6)
    assert not out.terminated and not out.truncated


@pytest.mark.toy
def test_the_environment_template_terminates_and_truncates_in_a_batch():
    walk = write_template("env", "walk.py", "Walk")
    env = VectorEnv(UnitActions(TimeLimit(walk(), 100)), 2, fresh_every_step=True)
    assert isinstance(env.spec.observation, Box) and env.spec.max_episode_steps == 100
    state, obs = env.reset(jax.random.key(0))
    assert obs.shape == (2, 3)
    actions = jnp.array([[1.0], [0.0]])  # the first one leaves the line, the second one stays

    def step(state, _):
        return env.step(KEY, state, actions)

    _, rows = jax.lax.scan(step, state, length=100)
    ends = np.argmax(rows.terminated[:, 0])
    # position after n steps of full push: sum of velocities 1 - 0.9^k, first above 2 at n = 7
    positions = np.cumsum(1.0 - 0.9 ** np.arange(1, 20))
    assert ends == np.argmax(positions > 2.0) and rows.obs[ends, 0, 0] > 2.0
    assert not rows.terminated[:, 1].any()
    np.testing.assert_array_equal(np.flatnonzero(rows.truncated[:, 1]), [99])
    assert not rows.diverged.any()


@pytest.mark.toy
def test_the_gymnasium_template_by_hand():
    env = write_template("gymnasium", "my_env.py", "Corridor")(length=0.25)
    obs, _ = env.reset(seed=3)
    assert env.observation_space.contains(obs)
    goal = float(obs["goal"][0])
    obs, reward, terminated, truncated, _ = env.step(np.array([1.0], np.float32))
    np.testing.assert_allclose(obs["cart"], [0.1, 0.1], rtol=1e-6)
    assert reward == pytest.approx(1.0 - abs(0.1 - goal)) and not (terminated or truncated)
    # velocity 0.9 * 0.1 + 0.1 = 0.19, position 0.29 > 0.25
    assert env.step(np.array([1.0], np.float32))[2]
    check_env(env, skip_render_check=True)


@pytest.mark.toy
def test_the_network_template_returns_features_for_every_row():
    net = write_template("network", "net.py", "Net")()
    obs = jnp.ones((5, 2, 3))
    params = net.init(jax.random.key(0), obs)
    assert net.apply(params, obs).shape == (5, 64)


@pytest.mark.toy
def test_the_objective_template_has_a_wider_clip_range_upwards():
    objective = write_template("objective", "mine.py", "objective")
    hp = type("Hyperparams", (), {"clip_eps": 0.2})
    ratio, advantage = jnp.array([1.5, 0.5, 1.1, 0.5]), jnp.array([2.0, -1.0, 1.0, 1.0])
    np.testing.assert_allclose(
        objective(jnp.log(ratio), advantage, hp), [-2.56, 0.8, -1.1, -0.5], rtol=1e-6
    )


@pytest.mark.toy
def test_the_loss_template_is_the_squared_error_of_each_row():
    term = write_template("loss", "mine.py", "predict_next")
    outputs = type("Outputs", (), {"features": jnp.array([[1.0], [0.0]])})
    rows = type("Rows", (), {name: jnp.array([[1.0, 0.0], [3.0, 1.0]]) for name in term.rows})
    shapes = jax.tree.map(jnp.shape, term.init(jax.random.key(0), outputs, rows))
    assert shapes == {"w": (1, 2), "b": (2,)}
    params = {"w": jnp.array([[1.0, 1.0]]), "b": jnp.array([0.0, 1.0])}
    # predictions [1, 2] and [0, 1]
    np.testing.assert_allclose(term.loss(params, outputs, rows), [2.0, 4.5])


@pytest.mark.toy
def test_the_callback_template_stops_at_a_return():
    watch = write_template("callback", "mine.py", "Watch")()

    def context(*returns):
        rows = [{"eval/return_mean": value} for value in returns]
        return CallbackContext(Config(), None, 1, 64, None, [Config()] * len(rows), rows)

    before = context(449.0, 500.0)
    assert watch.on_evaluation(before) == {"mine/missing": [1.0, 0.0]}
    assert not before.reason
    after = context(450.0, 500.0)
    watch.on_evaluation(after)
    assert after.reason == "an evaluation reached 450.0"


SMALL = ("--env.num_envs=4", "--ppo.rollout_length=16", "--ppo.num_minibatches=2")


@pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=[pytest.mark.full] * (x != "loss")) for x in TEMPLATES]
)
def test_the_printed_command_trains(kind, folder, capsys):
    file = TEMPLATES[kind].file
    assert main(["init", kind, file]) == 0
    printed = capsys.readouterr().out.splitlines()[-1].removeprefix("to train with it: ")
    words = shlex.split(printed)
    words = words[words.index(next(x for x in words if x.endswith("train"))) + 1 :]
    if kind != "callback":  # the callback stops at a return of an evaluation
        words.append("--eval.num_episodes=0")
    assert main(["train", *words, *SMALL, "--num_shards=1", "--total_timesteps=128"]) == 0
    run = Run(folder / "runs" / Path(file).stem)
    column = {"loss": "losses/predict_next", "callback": "mine/missing"}.get(kind, "update")
    assert run.metrics[column][-1] > 0
    (entry,) = copies.index(run.run_dir)
    assert entry == file


@pytest.mark.toy
def test_the_flag_of_the_environment_template_is_a_field():
    assert TEMPLATES["env"].flags[0].removeprefix("--") in HINTS
