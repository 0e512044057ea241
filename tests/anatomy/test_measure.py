"""The anatomy of small trainings: a simulator that sleeps, and simulators in JAX."""

import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from support.children import environment
from support.paths import OWN_CODE
from support.unity import make_player

import purejaxppo
from purejaxppo.anatomy import stages, timing
from purejaxppo.anatomy.__main__ import main, training_flags
from purejaxppo.anatomy.trainer import Trainer, measured_config
from purejaxppo.config.schema import Config
from purejaxppo.runs.rows import read_csv

SLEEP = 0.005
SLOW = f"""
import time

import gymnasium
import numpy as np


class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    max_episode_steps = 100

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {{}}

    def step(self, action):
        time.sleep({SLEEP})
        return np.zeros(2, np.float32), 1.0, False, False, {{}}
"""
SMALL = {
    "env.num_envs": 4,
    "ppo.rollout_length": 8,
    "ppo.num_minibatches": 2,
    "network.hidden": (4,),
    "logging.tensorboard": False,
}
OF_PPO = (
    "inference, sampling",
    "statistics",
    "values, advantages (GAE)",
    "update",
    "logging",
)


@pytest.fixture
def slow(tmp_path):
    """Return the config of a simulator whose 4 environments sleep one after another."""
    file = tmp_path / "slow.py"
    file.write_text(SLOW)
    options = {"env.options": {"workers": "thread", "num_workers": 1}}
    return Config().replace(**{"env.name": f"gymnasium/{file}:Slow", **options, **SMALL})


@pytest.fixture
def measure(monkeypatch):
    """A function config -> its anatomy, of short measurements that leave no time for others."""
    monkeypatch.setattr(timing, "ROUND_SECONDS", 0.02)

    def measured(config):
        return purejaxppo.anatomy(config, quiet=True, seconds=0.1)

    return measured


def names(result):
    return tuple(piece.name for piece in result.pieces)


def test_a_sleeping_simulator_is_the_largest_piece_and_more_workers_are_recommended(
    slow, monkeypatch
):
    monkeypatch.setattr(timing, "MAX_ROUNDS", timing.MIN_ROUNDS)
    result = purejaxppo.anatomy(slow, workers=[1, 4], quiet=True, seconds=600)
    assert names(result) == (
        "simulator",
        "pipes, shared memory",
        "transfer to the program",
        *OF_PPO,
    )
    seconds = {piece.name: piece.seconds.median for piece in result.pieces}
    assert max(seconds, key=seconds.get) == "simulator"
    # One thread sleeps in 4 x 8 steps. Doing nothing in a thread takes some of that time.
    asleep = 4 * 8 * SLEEP
    assert seconds["simulator"] + seconds["pipes, shared memory"] >= asleep
    assert seconds["simulator"] > 0.8 * asleep
    assert result.whole.median >= asleep
    assert result.total + result.rest == pytest.approx(result.whole.median)

    by_workers = {str(speed.workers): speed.gain.spread.median for speed in result.worker_speeds}
    assert list(by_workers) == ["1 process", "4 processes", "4 threads"]
    assert by_workers["4 threads"] > 1.3 and by_workers["4 processes"] > 1.3
    workers, asynchronous = result.advice[:2]
    assert workers.setting["env.options.num_workers"] == 4
    assert workers.gain.spread.median > 1.3
    assert asynchronous.setting == {"asynchronous": True}
    assert not result.interrupted


def test_pieces_of_a_simulator_in_jax_have_no_workers(tmp_path, monkeypatch, measure):
    monkeypatch.chdir(tmp_path)
    result = measure(Config().replace(**{"env.name": "gymnax/CartPole-v1", **SMALL}))
    assert names(result) == ("simulator", *OF_PPO)
    assert result.workers is None and result.worker_speeds == ()
    assert result.steps_per_update == 32
    assert not list(tmp_path.iterdir())  # no run folder, no plot


def test_recorded_steps_return_the_rows_of_the_simulator(tmp_path):
    config = Config().replace(**{"env.name": "gymnax/CartPole-v1", "num_shards": 1, **SMALL})
    trainer = Trainer(measured_config(config), jax.devices(), tmp_path / "metrics")
    parts, hp = trainer.programs.parts, trainer.hp
    state = trainer.programs.init()
    actions = stages.actions_of(parts, state)
    step = stages.Repeated(parts, stages.steps_alone, state, hp, (actions,))
    after, rows = stages.compile_all({"real": step})["real"](state, np.int32(1))
    replay, replay_state = stages.recorded(parts, after, rows)
    collect = stages.Repeated(replay, stages.PIECES_OF_PPO["no statistics"], replay_state, hp)
    program = stages.compile_all({"": collect})[""]
    for count in (1, 3):  # each rollout starts with the first row
        _, (transitions, _) = program(replay_state, np.int32(count))
        np.testing.assert_array_equal(transitions.reward, rows.reward)
        np.testing.assert_array_equal(transitions.terminated, rows.terminated)
        # The observation before a step is that after the one before it.
        np.testing.assert_array_equal(transitions.obs[:, :, 1:], rows.obs[:, :, :-1])
    trainer.close()


def test_training_keeps_its_parameters_while_it_is_measured(tmp_path):
    config = Config().replace(**{"env.name": "gymnax/CartPole-v1", **SMALL})
    trainer = Trainer(measured_config(config), jax.devices(), tmp_path / "metrics")
    before = jax.device_get(trainer._state.agent.params)
    trainer.work(3)
    jax.tree.map(np.testing.assert_array_equal, trainer._state.agent.params, before)
    assert int(trainer._state.update[0]) == 3
    trainer.close()


def test_rows_have_the_metrics_of_the_environment_and_of_each_seed(tmp_path):
    """TensorBoard has a folder per seed. An episode of one step has a pay, and a count of 1."""
    seeds = {"env.name": f"jax/{OWN_CODE}:Paid", "env.max_episode_steps": 1, "num_seeds": 2}
    config = Config().replace(**{**SMALL, **seeds, "logging.tensorboard": True})
    trainer = Trainer(measured_config(config), jax.devices(), tmp_path / "metrics")
    trainer.work(trainer.updates_per_row)
    trainer.close()
    rows = read_csv(tmp_path / "metrics" / "metrics.csv")
    assert [(row["member"], row["env/steps"]) for row in rows] == [(0, 1), (1, 1)]
    assert rows[0]["env/pay"] == rows[0]["env/last_pay"] != rows[1]["env/pay"]


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {"env.name": "gymnax/CartPole-v1", "num_seeds": 2, "num_shards": 2},
        {
            "env.name": "gymnax/CartPole-v1",
            "network.rnn": "gru",
            "ppo.normalize_reward": True,
            "ppo.reset_each_rollout": True,
        },
        pytest.param({"env.name": "particles/spread", "env.num_envs": 6}, marks=pytest.mark.slow),
        pytest.param({"env.name": "pgx/tic_tac_toe"}, marks=pytest.mark.slow),
    ],
    ids=lambda changes: " ".join(map(str, changes.values())),
)
def test_pieces_of_several_kinds_of_training(changes, measure):
    result = measure(Config().replace(**SMALL | changes))
    assert names(result) == ("simulator", *OF_PPO)


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "pieces"),
    [
        ({"asynchronous": True}, ("simulator", "pipes, shared memory", "transfer to the program")),
        ({"num_seeds": 2}, ("simulator", "pipes, shared memory", "transfer to the program")),
        (
            {"env.name": "envpool/CartPole-v1", "env.options": {}},
            ("simulator, transfer to the program",),
        ),
    ],
    ids=["asynchronous", "seeds", "envpool"],
)
def test_pieces_of_host_simulators(slow, changes, pieces, measure):
    result = measure(slow.replace(**changes))
    assert names(result) == (*pieces, *OF_PPO)
    seeds = changes.get("num_seeds", 1)
    assert result.steps_per_update == 32 * seeds
    compared = [a.verdict for a in result.advice if "env.options.num_workers" in a.setting]
    if "pipes, shared memory" in pieces:
        assert compared and all("no time left" in verdict for verdict in compared)


@pytest.mark.full
@pytest.mark.xdist_group("processes")
def test_pieces_of_a_game_have_no_workers(tmp_path, measure):
    config = Config().replace(**SMALL | {"env.name": f"unity/{make_player(tmp_path)}"})
    result = measure(config.replace(env={"num_envs": 2}))
    assert names(result) == ("simulator", "transfer to the program", *OF_PPO)
    with pytest.raises(ValueError, match="is one game per environment"):
        purejaxppo.anatomy(config, workers=[2], quiet=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "env.name is missing"),
        (["--config", "cartpole.yaml", "--workers", "0"], "workers = [0]: each number must be"),
        (["--config", "cartpole.yaml", "--workers", "2"], "but gymnax/CartPole-v1 runs in JAX"),
        (
            ["--config", "cartpole.yaml", "--seconds", "0"],
            "--seconds = 0.0: must be greater than 0",
        ),
        (["--config", "cartpole.yaml", "--plot", "a.pdf"], "the file must end in .png"),
        (["--config", "cartpole.yaml", "--json", "no/a.json"], "the folder no does not exist"),
        (["--config", "cartpole.yaml", "--worker", "2"], "Did you mean --workers?"),
        (["--config", "cartpol.yaml"], "cartpole.yaml"),
        (["--config", "cartpole.yaml", "--ppo.learner", "a.py:b"], "anatomy measures PPO's update"),
    ],
)
def test_wrong_flags_get_one_message(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert message in error


def test_the_printed_command_has_the_flags_of_training():
    words = "--config a.yaml --workers 1 2 --seed 3 --seconds=9 --plot x.png --no_asynchronous"
    kept = "--config a.yaml --seed 3 --no_asynchronous"
    assert training_flags(words.split()) == kept.split()


@pytest.mark.full
@pytest.mark.xdist_group("processes")
def test_ctrl_c_prints_the_pieces_that_were_measured(slow, tmp_path):
    flags = [f"--{name}={value}" for name, value in SMALL.items() if "." in name]
    flags = [flag for flag in flags if "hidden" not in flag and "tensorboard" not in flag]
    command = [sys.executable, "-m", "purejaxppo", "anatomy", "--env.name", str(slow.env.name)]
    with subprocess.Popen(
        [*command, *flags, "--seconds", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=environment(),
    ) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("stepping the simulator alone"):
                time.sleep(1.0)
                process.send_signal(signal.SIGINT)
    text = "".join(lines)
    assert process.wait(60) == 130, text
    assert "stopping after the current measurement" in text
    assert re.search(r"^whole +[\d.]+ +100.0%", text, re.M), text
    assert (tmp_path / "anatomy.png").is_file()
