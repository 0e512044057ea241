"""`godot/` environments: names and options, rows, evaluations, training, and kills."""

import concurrent.futures
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.godot import GAME
from support.ports import free_port

import purejaxppo.cli.train as train_command
from purejaxppo import restore
from purejaxppo.agents.decisions import has_next_obs
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.engines.godot import adapter
from purejaxppo.envs.engines.godot.adapter import SEED_STRIDE
from purejaxppo.envs.host.bridge import HostEnv
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.envs.step import EnvStep
from purejaxppo.rollout import collect, init_rollout
from purejaxppo.runs.evaluation import evaluate, run_episodes
from purejaxppo.runs.rows import read_csv
from purejaxppo.spaces import Box, Dict, Discrete
from purejaxppo.types import PolicyStep

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(autouse=True)
def logs(tmp_path, monkeypatch):
    """The folder for the logs that failed games leave."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def config(num_envs=4, **options):
    arguments = options.pop("arguments", "")
    options = {"timeout": 10.0, "arguments": arguments, **options}
    return EnvConfig(name=f"godot/{GAME}", num_envs=num_envs, options=options)


@pytest.mark.toy
def test_wrong_names_and_options_get_a_one_sentence_error(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "game.x86_64").write_text("")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/project.godot").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("GODOT", raising=False)
    for name, options, words in [
        ("godot/nothing", {}, "env.name: nothing not found in"),
        ("godot/folder", {}, "the folder godot/folder does not contain project.godot"),
        ("godot/game.x86_64", {}, "game.x86_64 is not executable. Run: chmod +x game.x86_64"),
        (
            "godot/project",
            {},
            "PATH does not contain godot or godot4. Set env.options.godot",
        ),
        ("godot/project", {"godot": "g4"}, "g4 was not found"),
        (
            "godot/nothing",
            {"instances": 1},
            "set eval.num_episodes = 0 and run",
        ),
        (
            "unity/nothing",
            {"instances": 1},
            "set eval.num_episodes = 0 and run",
        ),
        ("godot/nothing", {"restart": 1}, "has no such option. Did you mean 'restarts'?"),
        (
            "godot/nothing",
            {"speedup": "fast"},
            "speedup = 'fast': must be a number",
        ),
        ("godot/nothing", {"timeout": 0}, "env.options.timeout = 0: must be between 1 and 1e+06"),
        ("godot/editor", {"port": 99999}, "env.options.port = 99999: must be between 1 and 65535"),
        ("unity/editor", {"port": 0}, "env.options.port = 0: must be between 1 and 65535"),
        ("godot/game.x86_64", {"arguments": '"a'}, "'\"a': a quote is not closed"),
        ("unity/nothing", {"arguments": '"a'}, "'\"a': a quote is not closed"),
    ]:
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            registry.make(EnvConfig(name=name, num_envs=4, options=options), 4)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"env.max_episode_steps = 9 is not supported by godot/x"):
        registry.make(EnvConfig(name="godot/x", num_envs=4, max_episode_steps=9), 4)


@pytest.mark.toy
def test_rows_must_be_whole_games_and_evaluations_use_no_more_games_than_training():
    with pytest.raises(ValueError, match=r"multiple of 2 .*Try env.num_envs = 4"):
        registry.make(config(num_envs=5), 5)
    for episodes, rows in [(1, 2), (3, 4), (9, 4)]:
        env = registry.make(config(), episodes, evaluation=True)
        env.close()
        assert env.spec.num_envs == rows
    assert env.spec.num_agents == 2 and env.spec.agents == ()
    assert (env.spec.observation, env.spec.action) == (Box((3,)), Discrete(3))
    env = registry.make(config(arguments="--policies=a,b --actions=mixed"), 4)
    env.close()
    assert env.spec.agents == ("a_0", "b_0")
    assert dict(env.spec.observation.spaces)["obs"] == Box((4,))
    assert isinstance(env.spec.action, Dict)


@pytest.mark.toy
def test_a_game_that_was_exported_again_is_read_again(tmp_path):
    program = tmp_path / "game.sh"

    def reset(flags):
        program.write_text(f'#!/bin/sh\nexec {GAME} "$@" {flags}\n')
        program.chmod(0o755)
        env = registry.make(EnvConfig(name=f"godot/{program}", num_envs=2), 2)
        try:
            return env.reset(jax.random.key(0))[1]
        finally:
            env.close()

    assert reset("").shape == (2, 3)
    with pytest.raises(SimulatorError, match=r"If you have changed the game, run the same"):
        reset("--obs=vectors")
    assert isinstance(reset("--obs=vectors"), dict)


@pytest.mark.toy
def test_an_externally_started_game_is_awaited():
    port = free_port()
    name, options = "godot/editor", {"port": port, "timeout": 10.0}
    game = subprocess.Popen(
        ["sh", "-c", f"sleep 0.3; exec {GAME} --port={port}"], stdout=subprocess.DEVNULL
    )
    env = registry.make(EnvConfig(name=name, num_envs=2, options=options), 2)
    assert env.spec.num_envs == 2
    with pytest.raises(SimulatorError, match=rf"port {port} .* set eval.num_episodes = 0"):
        registry.make(EnvConfig(name=name, num_envs=2, options=options), 2, evaluation=True)
    env.close()
    assert game.wait(5.0) == 0
    with pytest.raises(
        SimulatorError, match=rf"the game on port {port} did not connect within 1 s"
    ):
        registry.make(EnvConfig(name=name, num_envs=2, options=options | {"timeout": 1}), 2)


STRANGERS = {
    "silent": b"",
    "short": b"\x05\x00",
    "other protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "half a message": b"\xff\x00\x00\x00{",
    "no JSON": b"\x02\x00\x00\x00{{",
    "other message": b'\x10\x00\x00\x00{"type":"reset"}',
}


@pytest.mark.toy
def test_connections_from_other_programs_are_dropped(caplog):
    port = free_port()
    config = EnvConfig(
        name="godot/editor", num_envs=2, options={"port": port, "timeout": 20.0, "restarts": 3}
    )
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor() as pool:
        made = pool.submit(registry.make, config, 2)
        strangers = []
        for sent in (*STRANGERS.values(), None):
            deadline = time.monotonic() + 10.0
            while True:
                try:
                    stranger = socket.create_connection(("127.0.0.1", port))
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            stack.enter_context(stranger)
            if sent is None:
                stranger.close()
            else:
                strangers.append(stranger)
                stranger.sendall(sent)
        time.sleep(0.3)
        assert not made.done()
        game = subprocess.Popen([str(GAME), f"--port={port}"], stdout=subprocess.DEVNULL)
        env = made.result(20.0)
        for stranger in strangers:  # all are closed and get only our two messages
            stranger.settimeout(5.0)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass
    out = jax.jit(lambda key: env.step(key, env.reset(key)[0], jnp.zeros(2, jnp.int32)))(
        jax.random.key(0)
    )[1]
    assert np.asarray(out.valid).all()
    env.close()
    assert game.wait(10.0) == 0
    dropped = [
        x.getMessage()
        for x in caplog.records
        if "disconnected another program from the game" in x.getMessage()
    ]
    assert len(dropped) == 4
    assert all(
        f"the game on port {port}: disconnected another program from the game's port" in text
        for text in dropped
    )
    for reason in (
        "announced a message of 542,393,671 bytes",
        "sent invalid JSON: '{{'",
        "sent {'type': 'reset'}",
        "closed its end",
    ):
        assert any(reason in text for text in dropped)


@pytest.mark.toy
def test_connections_from_other_programs_do_not_delay_the_timeout(caplog):
    port = free_port()
    config = EnvConfig(name="godot/editor", num_envs=2, options={"port": port, "timeout": 2.0})

    def connect():
        time.sleep(0.5)
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.settimeout(10.0)
            while stranger.recv(4096):
                pass

    with concurrent.futures.ThreadPoolExecutor() as pool:
        stranger = pool.submit(connect)
        with pytest.raises(SimulatorError, match=r"did not describe itself within 2 s"):
            registry.make(config, 2)
        stranger.result(20.0)


class AtOnce:
    """A pool of one environment: reward 1, ends at steps 2, 4 and 5, NaN at step 3."""

    failure = None

    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.zeros((1, 1))

    def step(self, token, action):
        token = token + 1
        obs = jnp.where(token == 3, jnp.nan, token.astype(jnp.float32)).reshape(1, 1)
        end = jnp.isin(token, jnp.array([2, 4, 5]))[None]
        return token, EnvStep(obs, jnp.ones(1), end, jnp.zeros(1, bool), at_once=end)

    def close(self):
        pass


def test_the_row_after_an_end_with_at_once_is_valid_and_starts_an_episode():
    env = HostEnv(
        lambda count, update: AtOnce(), Box((1,)), Discrete(2), num_envs=1, max_episode_steps=0
    )

    def act(key, carry, obs, start):
        return PolicyStep(carry, jnp.zeros(1, jnp.int32), jnp.zeros(1), jnp.zeros(1, jnp.int32))

    def run(key):
        state = init_rollout(env, lambda batch: (), key)
        rollout = collect(env, act, state, key, 8)
        finished = run_episodes(env, env.reset(key), act, lambda batch: (), key[None], max_steps=8)
        return rollout, finished

    rollout, finished = jax.jit(run)(jax.random.key(0))
    env.close()
    rows = jax.tree.map(lambda x: np.asarray(x).ravel().astype(int).tolist(), rollout.transitions)
    #                      step 1  2  3  4  5  6  7  8
    assert rows.valid == [1, 1, 0, 0, 1, 1, 1, 1]  # step 3 diverges, and its episode ends at step 4
    assert rows.start == [1, 0, 1, 1, 1, 1, 0, 0]
    assert rows.terminated == [0, 1, 0, 0, 1, 0, 0, 0]
    assert rows.reward == [1, 1, 0, 0, 1, 1, 1, 1]
    assert rows.obs == [0, 1, 2, 0, 4, 5, 6, 7]
    # Observations 2 and 5 belong to the next episode. 3 is NaN and is not returned.
    assert has_next_obs(rollout.transitions).ravel().tolist() == [1, 0, 0, 0, 0, 1, 1, 1]
    episodes = jax.device_get(rollout.episodes)
    assert (episodes.count, episodes.return_sum, episodes.length_sum) == (2, 3, 3)
    assert episodes.diverged == 1
    assert finished.returns.tolist() == [2] and finished.lengths.tolist() == [2]


def test_a_random_rollout_follows_the_protocol():
    env = registry.make(config(arguments="--cut=1 -- --length=7"), 4, seed=3)

    def act(key, carry, obs, start):
        action = jax.random.randint(key, (4,), 0, 3)
        return PolicyStep(carry, action, jnp.zeros(4), action)

    run = jax.jit(lambda key: collect(env, act, init_rollout(env, lambda b: (), key), key, 24))
    rollout = jax.device_get(run(jax.random.key(0)))
    rows = rollout.transitions
    after = np.concatenate([rows.obs[1:], rollout.end.obs[None]])
    env.close()
    # The game ignores what follows `--`. Agents 0 are truncated: their last observation, then an
    # invalid row.
    assert rows.truncated[:, ::2].sum() > 4 and not rows.truncated[:, 1::2].any()
    assert (after[rows.truncated][:, 1] == 3).all()
    lost = np.argwhere(~rows.valid)
    assert [tuple(x) for x in lost] == [(t + 1, n) for t, n in np.argwhere(rows.truncated[:-1])]
    assert not rows.reward[~rows.valid].any() and not rows.start[~rows.valid].any()
    # The others terminate and start again in the same row.
    assert rows.terminated[:, 1::2].sum() > 4 and not rows.terminated[:, ::2].any()
    assert (after[rows.terminated][:, 1] == 0).all()
    begins = [(t + 1, n) for t, n in np.argwhere(rows.terminated | ~rows.valid) if t < 23]
    assert [tuple(x) for x in np.argwhere(rows.start[1:])] == [(t - 1, n) for t, n in begins]
    assert rows.start[0].all() and not rollout.episodes.diverged


def write_config(path, steps, fault="", rnn="none"):
    """Write a config with mixed actions to a file."""
    arguments = f"--actions=mixed --obs=parts {fault}"
    options = {"arguments": arguments, "timeout": 20.0, "restarts": 0}
    path.write_text(f"""
env: {{name: godot/{GAME}, num_envs: 4, options: {json.dumps(options)}}}
network: {{hidden: [8], rnn: {rnn}, rnn_size: 4}}
ppo: {{rollout_length: 16, num_minibatches: 2, num_epochs: 1, bptt_length: 8}}
eval: {{num_episodes: 7, interval: 64}}
logging: {{tensorboard: false}}
total_timesteps: {steps}
""")
    return path


def train(config_file, run_dir, *flags):
    return train_command.main(["--config", str(config_file), "--run_dir", str(run_dir), *flags])


def test_a_run_trains_is_evaluated_in_turns_and_resumes(tmp_path, capsys, logs):
    config_file, run_dir = write_config(tmp_path / "small.yaml", 128, rnn="gru"), tmp_path / "run"
    assert train(config_file, run_dir) == 0
    assert not list(logs.glob("purejaxppo-game-*"))
    before = restore(run_dir, "last")
    assert read_csv(run_dir / "metrics.csv")[-1]["eval/return_mean"] != ""
    flags = ("--total_timesteps", "256", "--env.options", "restarts", "2", "timeout", "30")
    flags += ("--eval.num_episodes", "0")
    assert train(config_file, run_dir, *flags) == 0
    assert "The simulator starts new episodes" in capsys.readouterr().out
    after = restore(run_dir, "last")
    assert before.env_steps == 128 and after.env_steps == 256
    # Two games of two agents play eight episodes in two rounds. A reset takes three windows, which
    # is the length of agents' first episodes 0, and all but one window of agents' 1.
    assert evaluate(after, 7).lengths.tolist() == [3, 1] * 4


@pytest.mark.toy
def test_each_game_is_started_once_and_unused_games_are_ended(tmp_path):
    starts = tmp_path / "starts"
    game = tmp_path / "game.x86_64"
    game.write_text(f'#!/bin/sh\necho "$@" >> {starts}\nexec {GAME} "$@"\n')
    game.chmod(0o755)
    settings = EnvConfig(name=f"godot/{game}", num_envs=4)

    def started(number):
        """Return the seeds of the games started since the last call, and check their number."""
        seeds = [
            int(re.search(r"env_seed=(\d+)", line)[1]) for line in starts.read_text().splitlines()
        ]
        assert len(seeds) == number
        starts.write_text("")
        return sorted(seeds)

    env = registry.make(settings, 4, seed=1)
    described = started(1)
    beside = registry.make(settings, 4, seed=1, evaluation=True)
    assert started(0) == []
    beside.pool(4)
    evaluated = started(2)
    env.pool(4)
    trained = started(1)
    assert described == [2 * SEED_STRIDE] and trained == [2 * SEED_STRIDE + 1]
    assert evaluated == [3 * SEED_STRIDE, 3 * SEED_STRIDE + 1]
    beside.close()
    env.close()

    again = registry.make(replace(settings, options={"timeout": 30.0}), 4, seed=1)
    (waiting,) = again._started
    again.continue_at(7, 0.5)  # other episodes than at the start
    again.pool(4)
    assert not waiting.engine.alive() and len(set(started(3))) == 3
    again.close()
    unused = registry.make(replace(settings, options={"timeout": 31.0}), 4, seed=1)
    (waiting,) = unused._started
    assert waiting.engine.alive()
    unused.close()
    assert not waiting.engine.alive()


EDITOR = """#!{python}
import os, sys, time
project = sys.argv[sys.argv.index("--path") + 1]
os.mkdir(project + "/.godot")
time.sleep({seconds})
print("no texture")
sys.exit({code})
"""


@pytest.mark.parametrize(
    ("code", "seconds", "words"),
    [(1, 0, "importing its assets failed:\nno texture"), (0, 60, "Raise env.options.timeout")],
)
def test_an_import_that_fails_is_repeated(code, seconds, words, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text(EDITOR.format(python=sys.executable, seconds=seconds, code=code))
    editor.chmod(0o755)
    for _ in range(2):
        with pytest.raises(SimulatorError, match=re.escape(words)):
            adapter._import(str(editor), tmp_path, "godot/mine", 5.0 if code else 1.0)
    editor.write_text(EDITOR.format(python=sys.executable, seconds=0, code=0))
    adapter._import(str(editor), tmp_path, "godot/mine", 5.0)
    assert (tmp_path / ".godot").is_dir()


@pytest.mark.parametrize("name", ["godot/editor", "unity/editor"])
def test_evaluations_in_an_editor_that_trains_are_rejected_before_waiting(name, tmp_path, capsys):
    config_file = tmp_path / "editor.yaml"
    config_file.write_text(f"env: {{name: {name}, num_envs: 1}}\n")
    assert train(config_file, tmp_path / "run", "--num_shards", "1") == 2
    message = f"eval.num_episodes = 32: {name} is one game, and training uses it. Set"
    output = capsys.readouterr()
    assert message in output.err and "press Play" not in output.out + output.err
    assert not (tmp_path / "run").exists()


def test_a_game_that_exits_ends_the_run_with_its_log_and_the_run_is_saved(tmp_path, capsys):
    config_file = write_config(
        tmp_path / "small.yaml", 4000, fault="--fault=exit@90 --fault_seed=1"
    )
    assert train(config_file, tmp_path / "run", "--eval.num_episodes", "0") == 2
    error = capsys.readouterr().err
    assert "game 1 ended with exit code 7 while it was supposed to step" in error
    assert "ERROR: out of enemies" in error and "Traceback" not in error
    saved = int(re.search(r"Saved at ([\d,]+) steps", error)[1].replace(",", ""))
    assert 0 < saved < 4 * 90


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_killed_trainer_leaves_no_game(tmp_path):
    config_file = write_config(tmp_path / "small.yaml", 10_000_000, fault=f"--mark={tmp_path.name}")
    command = [sys.executable, "-m", "purejaxppo.train", "--config", str(config_file)]
    trainer = subprocess.Popen(
        [*command, "--run_dir", str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    for line in trainer.stdout:
        if "steps/s" in line:
            break
    assert games_with(tmp_path.name)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    end = time.monotonic() + 10
    while games_with(tmp_path.name) and time.monotonic() < end:
        time.sleep(0.1)
    assert not games_with(tmp_path.name)


def games_with(argument):
    """Return the processes of scripted games, or of their supervisors, with an argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = path.read_bytes().decode(errors="replace")
            if argument in text and GAME.name in text:
                found.append(text)
    return found
