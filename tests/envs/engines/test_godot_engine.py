"""`tests/games` in a real engine: determinism, images, training, kills, corrupted answers."""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from envs.engines.test_godot_wire import frame, one_game, spoil
from support.godot import ENGINE, GAMES, launch
from support.paths import ROOT
from support.runs import train
from support.trees import assert_same

import purejaxppo as ppo
from purejaxppo.agents.advantages import gae
from purejaxppo.agents.policy import Policy
from purejaxppo.config.schema import Config, EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.engines.godot.games import GodotGames
from purejaxppo.envs.engines.godot.wire import Wire
from purejaxppo.envs.engines.process import EngineError
from purejaxppo.export.files import export
from purejaxppo.rollout import collect, init_rollout
from purejaxppo.runs.agent import Agent
from purejaxppo.spaces import Box
from purejaxppo.types import PolicyStep

pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(not ENGINE.exists(), reason="the engine is not there: make godot"),
]


@pytest.fixture(autouse=True)
def logs(tmp_path, monkeypatch):
    """The folder for the logs that failed games leave."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def game(request, tmp_path):
    """A copy of a folder of tests/games, because an import writes into it."""
    shutil.copytree(GAMES / request.param, tmp_path / request.param)
    return str(tmp_path / request.param)


chase = pytest.mark.parametrize("game", ["chase"], indirect=True)
catch = pytest.mark.parametrize("game", ["catch"], indirect=True)


def rollout_of(name, seed, steer=(0.0, 1.0), steps=150, **options):
    """Return a rollout of three hunters that dash in one direction."""
    options = {"godot": str(ENGINE), "timeout": 60.0, "arguments": "--arenas=3", **options}
    env = registry.make(EnvConfig(name=f"godot/{name}", num_envs=3, options=options), 3, seed=seed)

    def act(key, carry, obs, start):
        action = {"steer": jnp.tile(jnp.array(steer), (3, 1)), "dash": jnp.ones(3, jnp.int32)}
        return PolicyStep(carry, action, jnp.zeros(3), action)

    run = jax.jit(lambda key: collect(env, act, init_rollout(env, lambda b: (), key), key, steps))
    rows = jax.device_get(run(jax.random.key(0))).transitions
    env.close()
    return rows


PRESET = """
[preset.0]
name="linux"
platform="Linux"
runnable=true
export_filter="all_resources"
include_filter=""
exclude_filter=""
export_path=""

[preset.0.options]
custom_template/release="{template}"
binary_format/architecture="x86_64"
"""


@chase
def test_an_exported_game_behaves_like_its_project(game, tmp_path):
    root = ENGINE.parent.parent / "root"
    libraries = root / "usr/lib/x86_64-linux-gnu"
    template, program = root / "usr/bin/godot-template-release", tmp_path / "chase.x86_64"
    (Path(game) / "export_presets.cfg").write_text(PRESET.format(template=template))
    export = [str(ENGINE), "--headless", "--path", game, "--export-release", "linux", str(program)]
    subprocess.run(export, check=True, capture_output=True, timeout=100)
    # The program needs the C library of the engine's folder, and looks for its data, chase.pck,
    # under the name of the file that runs, which is the loader.
    loader = shutil.copy(libraries / "ld-linux-x86-64.so.2", tmp_path / "chase")
    run = tmp_path / "run.sh"
    paths = f"{libraries}:{libraries}/pulseaudio"
    run.write_text(f'#!/bin/sh\nexec {loader} --library-path {paths} {program} "$@"\n')
    run.chmod(0o755)
    rows = rollout_of(run, 1)
    assert_same(rows, rollout_of(game, 1))
    assert len(np.unique(rows.reward)) > 100


PLUGIN = os.environ.get("GODOT_RL_PLUGIN", "")


@pytest.mark.skipif(not PLUGIN, reason="GODOT_RL_PLUGIN is not set to a checkout of the plugin")
@pytest.mark.parametrize("game", ["walk"], indirect=True)
def test_a_game_with_the_official_plugin_equals_hand_worked_steps(game):
    shutil.copytree(Path(PLUGIN) / "addons", Path(game) / "addons")
    options = {"godot": str(ENGINE), "timeout": 60.0}
    env = registry.make(EnvConfig(name=f"godot/{game}", num_envs=2, options=options), 2)

    def first_and_rows(key):
        state, obs = env.reset(key)
        actions = jnp.array([[2, 2], [2, 2], [0, 1], [0, 0]])
        return obs, jax.lax.scan(partial(env.step, key), state, actions)[1]

    first, rows = jax.device_get(jax.jit(first_and_rows)(jax.random.key(0)))
    env.close()
    # A reset takes one tick. 23 ticks follow: the last 8 are steps to the left, action 0.
    np.testing.assert_array_equal(first, [[-8, 23], [-8, 23]])
    # Episodes of 24 and 32 ticks end in the first tick of a window, and 7 ticks of the next follow.
    np.testing.assert_array_equal(rows.obs[:, 0], [[7, 7], [15, 15], [7, 23], [-7, 7]])
    np.testing.assert_array_equal(rows.obs[:, 1], [[0, 31], [7, 7], [7, 15], [-1, 23]])
    np.testing.assert_array_equal(rows.reward, [[8, 8], [8, 8], [-8, 0], [-8, -8]])
    ends = [[True, False], [False, True], [False, False], [True, False]]
    np.testing.assert_array_equal(rows.terminated, ends)


def serve_policy(listener):
    """Run a policy for the plugin as its ONNXInference.cs does."""
    import onnxruntime

    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as file:

        def receive():
            size = file.read(4)
            return json.loads(file.read(int.from_bytes(size, "little"))) if size else None

        def send(message):
            data = json.dumps(message).encode()
            connection.sendall(len(data).to_bytes(4, "little") + data)

        start = receive()
        session = onnxruntime.InferenceSession(start["path"])
        shape = {port.name: port.shape for port in session.get_outputs()}["output"]
        send({"size": shape[1]})
        while message := receive():
            inputs = {"state_ins": np.full(start["batch_size"], message["state_ins"], np.float32)}
            for name, values in message["obs"].items():
                array = np.array(values, np.float32)
                inputs[name] = array.reshape(start["batch_size"], len(values))
            outputs = session.run(["output", "state_outs"], inputs)
            pairs = zip(("output", "state_outs"), outputs, strict=True)
            send({name: array.ravel().tolist() for name, array in pairs})


@pytest.mark.skipif(not PLUGIN, reason="GODOT_RL_PLUGIN is not set to a checkout of the plugin")
@pytest.mark.parametrize("game", ["turns"], indirect=True)
def test_the_official_plugin_plays_an_exported_policy_with_the_returns_of_evaluate(game, tmp_path):
    addons = Path(game) / "addons"
    shutil.copytree(Path(PLUGIN) / "addons", addons)
    options = {"godot": str(ENGINE), "timeout": 60.0, "action_repeat": 1}
    changes = {"env.name": f"godot/{game}", "env.num_envs": 2, "env.options": options}
    config = Config().replace(**changes, **{"network.hidden": (8,)})
    with contextlib.closing(registry.make(config.env, 2)) as env:
        policy = Policy(config, env.spec)
    rng = np.random.default_rng(0)
    state = policy.init(jax.random.key(0))
    params = jax.tree.map(lambda x: x + 0.5 * rng.standard_normal(x.shape), state.params)
    agent = Agent(config, state.replace(params=params))
    returns = np.asarray(ppo.evaluate(agent, episodes=8).returns)
    export(agent, tmp_path / "policy.onnx", engine="godot")

    wrapper = addons / "godot_rl_agents/onnx/wrapper/ONNX_wrapper.gd"
    script = "res://addons/godot_rl_agents/onnx/csharp/ONNXInference.cs"
    text = wrapper.read_text()
    assert script in text
    wrapper.write_text(text.replace(script, "res://inference.gd"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve_policy, args=(listener,))
        server.start()
        flags = [f"--onnx={tmp_path / 'policy.onnx'}", "--action_repeat=1"]
        port = f"--inference_port={listener.getsockname()[1]}"
        command = [str(ENGINE), "--headless", "--fixed-fps", "60", "--path", game, *flags, port]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as played:
            lines = (line for line in played.stdout if line.startswith("return"))
            printed = list(itertools.islice(lines, 8))
            played.kill()
        server.join(10)
    of_plugin = [float(line.split()[-1]) for line in printed]
    assert len(set(of_plugin)) == len(set(returns.tolist())) == 2
    np.testing.assert_allclose(sorted(set(returns.tolist())), sorted(set(of_plugin)), atol=1e-5)


@chase
def test_the_chase_is_deterministic(game):
    rows = rollout_of(game, 1)
    again, other = rollout_of(game, 1), rollout_of(game, 2)
    assert_same(rows, again)
    assert not np.array_equal(rows.obs, other.obs)
    assert rows.truncated.any() and (~rows.valid).sum() == rows.truncated[:-1].sum()
    # Dashing upwards, speed approaches 0.96 per second: by 3 / 60 of the difference in each tick.
    height, speeds = rows.obs[:9, :, 5], 0.96 * (1 - 0.95 ** np.arange(1, 65))
    risen = np.cumsum(speeds / 60)[7::8]  # after 1, 2, ... windows of 8 ticks
    free = height[8] < 1  # the wall
    assert free.any()
    for hunter in np.flatnonzero(free):
        np.testing.assert_allclose(height[1:, hunter] - height[0, hunter], risen, rtol=1e-3)


@chase
def test_a_correct_constant_value_gives_zero_advantage_except_before_a_catch(game):
    rows = rollout_of(game, 1, steps=240)
    assert rows.truncated.sum() >= 3  # time limits after 75 windows
    value = np.full(rows.reward.shape, 4.0, np.float32)  # 1 / (1 - gamma)
    reward = rows.valid.astype(np.float32)
    ends = rows.terminated | rows.truncated
    arrays = map(jnp.asarray, (reward, value, value, rows.terminated, ends, rows.valid))
    advantage = np.asarray(gae(*arrays, gamma=0.75, gae_lambda=1.0)[0])
    expected = np.zeros((len(value) + 1, 3), np.float32)
    for t in reversed(range(len(value))):  # a catch does not bootstrap
        later = np.where(ends[t], 0, np.float32(0.75) * expected[t + 1])
        expected[t] = np.where(rows.terminated[t], -3.0, later) * rows.valid[t]
    np.testing.assert_allclose(advantage, expected[:-1], rtol=1e-5)
    assert not advantage[rows.truncated].any() and not advantage[~rows.valid].any()


@catch
def test_a_rendered_image_of_a_game_is_observed(game):
    flags = ("--path", game, "--headless", "--fixed-fps", "60", "--action_repeat=1", "--players=2")
    with contextlib.closing(GodotGames(launch(*flags, program=ENGINE, timeout=60.0), 5)) as games:
        assert games.layout.observation == Box((8, 8, 3), 0.0, 255.0, "uint8")
        pictures, ends = games.reset(0), 0
        for _ in range(30):
            step = games.step(np.ones(2, int))
            for before, now, end in zip(pictures, step.obs, step.terminated, strict=True):
                (ball,), (then,) = np.argwhere(now[..., 0]), np.argwhere(before[..., 0])
                # A ball falls one row per step and starts in the first row.
                assert ball[0] == 0 if end else ball.tolist() == [then[0] + 1, then[1]]
                assert 2 <= len(np.argwhere(now[7, :, 1])) <= 3 and not now[..., 2].any()
            pictures, ends = step.obs, ends + step.terminated.sum()
    assert 6 <= ends <= 10


CONFIG = """
env: {{name: godot/{game}, num_envs: 4, options: {options}}}
network: {network}
ppo: {{rollout_length: 16, num_minibatches: 2, num_epochs: 1, bptt_length: {bptt}}}
eval: {{num_episodes: 2, interval: 128, max_steps: 80}}
logging: {{tensorboard: false}}
total_timesteps: 256
"""


def trained(folder, game, network, arguments):
    """Train four updates by the command, and return the finished run."""
    options = {"arguments": arguments, "timeout": 60.0, "restarts": 0, "godot": str(ENGINE)}
    bptt = 8 if "gru" in network else 0
    file = folder / "small.yaml"
    options = json.dumps(options)
    file.write_text(CONFIG.format(game=game, options=options, network=network, bptt=bptt))
    assert train(file, "--run_dir", str(folder / "run")) == 0
    run = ppo.load(folder / "run")
    assert np.isfinite(run.metrics["losses/policy_loss"]).all()
    assert np.isfinite(run.metrics["eval/return_mean"][-1])
    assert not run.metrics["charts/diverged"].any()
    return run


@chase
def test_the_chase_trains_with_a_memory(game, tmp_path):
    trained(tmp_path, game, "{hidden: [8], rnn: gru, rnn_size: 4}", "--arenas=4")


@chase
def test_hunters_and_prey_train_with_separate_policies(game, tmp_path):
    network = "{hidden: [8], policies: {'hunter_*': hunters, 'prey_*': prey}}"
    run = trained(tmp_path, game, network, "--arenas=2 --prey=learned")
    # The prey's reward is the negative reward of its hunter.
    returns = run.metrics["eval/return_mean"]  # NaN at updates without an evaluation
    np.testing.assert_allclose(returns[np.isfinite(returns)], 0.0, atol=1e-4)


@catch
def test_the_camera_game_trains_on_its_images(game, tmp_path):
    trained(tmp_path, game, "{hidden: [8]}", "--players=4 --action_repeat=1")


def broken(draw, step):
    """Return a corrupted answer to a step: the message or its bytes are wrong."""
    if draw.random() < 0.6:
        return frame(spoil(draw, step))
    data = bytearray(frame(step))
    kind = draw.randrange(4)
    if kind == 0:
        return bytes(data[: draw.randrange(len(data))])
    if kind == 1:
        return frame(bytes(data[4 : draw.randrange(4, len(data))]))
    if kind == 2:
        return draw.randbytes(4) + bytes(data[4:])
    for _ in range(draw.randrange(1, 8)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def read(games, layout, data):
    """Return the arrays of an answer that ends after `data`."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        game = games._games[0]
        games.layout = game.layout = layout
        game._wire = Wire(ours)
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        return games._parse_one(0, game.receive_step())


@pytest.mark.parametrize("game", ["chase", "catch"], indirect=True)
def test_ten_thousand_corrupted_answers_are_parsed_or_rejected(game):
    flags = ("--path", game, "--headless", "--fixed-fps", "60", "--arenas=2", "--players=2")
    draw, refused, count = random.Random(1), 0, 10_000
    with contextlib.closing(GodotGames(launch(*flags, program=ENGINE, timeout=60.0), 5)) as games:
        games.reset(0)
        real, layout = games._games[0], games.layout
        stand_in, _ = one_game()
        for _ in range(count):
            real.send_actions(layout.zero_actions)
            data = broken(draw, real._receive("step", "step"))
            try:
                parsed = read(stand_in, layout, data)
            except EngineError as error:
                assert len(str(error)) < 500
                refused += 1
            else:
                shapes = [(2, *leaf.shape) for leaf in layout.leaves]
                assert [part.shape for part in parsed.obs] == shapes
                assert parsed.reward.shape == parsed.terminated.shape == (2,)
        assert real.engine.alive()
    assert 0.5 * count < refused < count


TRAINER = """
import sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from purejaxppo.envs.engines.godot.game import GodotLaunch
from purejaxppo.envs.engines.godot.games import GodotGames
games = GodotGames(GodotLaunch(tuple(sys.argv[3:]), 60.0, int(sys.argv[2])), 1, 2)
print("began", flush=True)
games.reset(0)
print("stepping", flush=True)
for _ in range(10**9):
    games.step(np.zeros(4, int))
"""


def processes(mark):
    """Return (process id, command line) of the processes with a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = path.read_bytes().decode(errors="replace")
            if mark in text:
                found.append((int(path.parent.name), text))
    return found


def strike(who, number, trainer, mark):
    """Send a signal to the trainer, or to all games or their supervisors."""
    if who == "trainer":
        trainer.send_signal(number)
    for process, text in processes(mark):
        if process != trainer.pid and ("supervisor.py" in text) == (who == "supervisors"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


KILL, TERM = signal.SIGKILL, signal.SIGTERM
MOMENTS = ("at the start", "once games are connected", "while games step")
ORDERS = (
    [("trainer", KILL)],
    [("trainer", TERM)],
    [("games", KILL)],
    [("supervisors", KILL)],
    [("games", TERM), ("trainer", KILL)],
    [("trainer", KILL), ("games", KILL)],
    [("supervisors", TERM), ("trainer", TERM)],
    [("trainer", TERM), ("supervisors", KILL)],
)


@pytest.mark.timeout(900)
@catch
def test_fifty_starts_and_kills_in_every_order_leave_no_processes(game, tmp_path):
    subprocess.run([ENGINE, "--headless", "--path", game, "--import"], check=True, timeout=120)
    turns = list(itertools.product(MOMENTS, ORDERS, (0, 1)))
    assert len(turns) == 48
    for turn, (moment, order, restarts) in enumerate([*turns, *turns[-2:]]):
        mark = f"--mark={tmp_path.name}-{turn}-"
        flags = ("--path", game, "--headless", "--fixed-fps", "60", "--players=2", mark)
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(ROOT), str(restarts), str(ENGINE), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            if moment != "at the start":
                assert trainer.stdout.readline() == "began\n"
            if moment == "while games step":
                assert trainer.stdout.readline() == "stepping\n"
            for who, number in order:
                strike(who, number, trainer, mark)
            alone = all(
                who == "games" for who, _ in order
            )  # games continue without their supervisors
            if alone and not restarts and moment == "while games step":
                assert trainer.wait(90) == 1  # an EngineError
        finally:
            trainer.kill()
            trainer.wait()
            trainer.stdout.close()
        wait_for(lambda: not processes(mark))  # noqa: B023 - called at once


def wait_for(condition, seconds=60.0):
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
