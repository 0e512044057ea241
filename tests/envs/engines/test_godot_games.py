"""Scripted Godot games in processes: steps and ends by hand, parallel games, and failures."""

import re
import tempfile
import time

import numpy as np
import pytest
from support.godot import received, rewarded_actions, start

from purejaxppo.envs.engines.process import EngineError
from purejaxppo.envs.host.workers.errors import MakeError
from purejaxppo.spaces import Box

pytestmark = [pytest.mark.toy, pytest.mark.xdist_group("processes")]
STAY = np.ones(2, int)


@pytest.fixture(autouse=True)
def logs(tmp_path, monkeypatch):
    """The folder for the logs that failed games leave."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def flags(step):
    flags = step.terminated, step.truncated, step.diverged, step.at_once
    return [np.flatnonzero(x).tolist() for x in flags]


def test_the_first_observation_is_read_after_one_action_of_zeros(tmp_path):
    games = start(f"--record={tmp_path / 'record'}")
    # Agent 0's episode of three windows ends while the game catches up. It is not reported.
    assert games.reset(0)[:, 1:].tolist() == [[0, 0], [3, 1]]
    games.step(np.array([2, 0]))
    games.close()
    kinds = ["handshake", "env_info", "reset", "action", "action", "close"]
    messages = received(tmp_path / "record")
    assert [message["type"] for message in messages] == kinds
    assert [message["action"] for message in messages[3:5]] == [
        [{"move": 0}, {"move": 0}],
        [{"move": 2}, {"move": 0}],
    ]
    assert messages[0]["major_version"] == "0" and messages[0]["minor_version"] == "7"


def test_rewards_and_ends_equal_those_of_the_game(tmp_path):
    games = start()
    obs = games.reset(0)
    # Windows so far: 0 of 3, and 3 of 4. Each of 8 ticks gives 1/8 for the right action.
    ends = []
    for _ in range(5):
        step = games.step(rewarded_actions(obs))
        np.testing.assert_array_equal(step.reward, [1, 1])
        obs = step.obs
        assert not step.truncated.any() and not step.diverged.any()
        np.testing.assert_array_equal(step.terminated, step.at_once)
        np.testing.assert_array_equal(obs[step.terminated, 1], 0)  # of the next episode
        ends.append(np.flatnonzero(step.terminated).tolist())
    assert ends == [[1], [], [0], [], [1]]
    np.testing.assert_array_equal(games.step(STAY).reward, [0, 0])
    games.close()


def test_a_game_can_be_reset_in_the_middle_of_episodes():
    games = start("--cut=1")
    for steps in (
        1,
        3,
        5,
    ):  # after three steps an agent is truncated, and its next row would be skipped
        obs = games.reset(0)
        assert obs[:, 1:].tolist() == [[0, 0], [3, 1]]
        for _ in range(steps):
            step = games.step(rewarded_actions(obs))
            obs = step.obs
    games.close()


def test_a_time_limit_returns_the_last_observation_and_the_next_row_is_skipped(tmp_path):
    games = start("--cut=1", f"--record={tmp_path / 'record'}")
    obs = games.reset(0)
    for _ in range(3):
        step = games.step(rewarded_actions(obs))
        obs = step.obs
    assert flags(step) == [[], [0], [], []]
    assert obs[0].tolist()[1:] == [3, 0]  # three windows: the last observation of the old episode
    assert step.reward.tolist() == [1, 1]
    step = games.step(np.array([2, 2]))
    assert step.obs[0].tolist()[1:] == [1, 0]  # one window into the new one
    assert step.reward[0] == 0 and not any(flags(step)[:3])
    games.close()
    # The action of that agent is ignored, but not that of the other one.
    assert received(tmp_path / "record")[-2]["action"] == [{"move": 0}, {"move": 2}]


def test_games_step_in_parallel_with_their_own_seeds():
    games = start(count=2)
    first = [games.reset(0)]
    first += [games.step(np.ones(4, int)).obs for _ in range(12)]
    games.close()
    signs = np.stack(first)[:, :, 0]
    assert not np.array_equal(signs[:, :2], signs[:, 2:])
    again = start(count=2)
    second = [again.reset(0), *(again.step(np.ones(4, int)).obs for _ in range(12))]
    again.close()
    np.testing.assert_array_equal(first, second)


def test_mixed_actions_are_sent_in_the_order_of_the_game(tmp_path):
    games = start("--actions=mixed", "--obs=parts", f"--record={tmp_path / 'record'}")
    obs = games.reset(0)
    assert {name: part.shape for name, part in obs.items()} == {"obs": (2, 3), "phase": (2,)}
    action = {"brake": np.full((2, 1), 0.5), "jump": np.array([2, 1]), "turn": np.eye(2)}
    games.step(action)
    games.close()
    last = received(tmp_path / "record")[-2]["action"]
    assert [list(own.items()) for own in last] == [
        [("turn", [1, 0]), ("jump", 2), ("brake", [0.5])],
        [("turn", [0, 1]), ("jump", 1), ("brake", [0.5])],
    ]


def test_older_plugins_and_cameras_are_supported():
    games = start("--old=1")
    assert games.step(rewarded_actions(games.reset(0))).reward.tolist() == [1, 1]
    games.close()
    games = start("--obs=camera")
    assert games.layout.observation == Box((3, 4, 3), 0.0, 255.0, "uint8")
    image = games.reset(0)
    assert image.shape == (2, 3, 4, 3) and image.dtype == np.uint8
    assert {tuple(x) for x in image.reshape(-1, 3).tolist()} <= {
        *((0, 0, 0), (0, 1, 2), (4, 5, 6), (8, 9, 10))
    }
    games.close()


@pytest.mark.parametrize("fault", ["nan", "inf"])
def test_a_nonfinite_value_ends_only_the_episodes_of_its_game(fault):
    games = start(f"--fault={fault}@3", "--fault_seed=6", count=2)
    obs = games.reset(0)
    step = games.step(rewarded_actions(obs))
    assert flags(step)[3] == [1, 3]
    step = games.step(rewarded_actions(step.obs))
    assert flags(step) == [[2], [3], [2], []]
    assert step.obs[2].tolist() == [0, 0, 0] and step.reward.tolist() == [1, 1, 0, 1]
    assert games.diverged_value.endswith(f" = {fault}")
    step = games.step(rewarded_actions(step.obs))
    assert flags(step)[:3] == [[0], [], []]
    assert step.reward.tolist() == [1, 1, 0, 0]  # this row only returns first observations
    assert step.obs[2:, 1].tolist() == [0, 3]
    assert games.step(rewarded_actions(step.obs)).reward.tolist() == [1, 1, 1, 1]
    games.close()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "exit@2",
            r"game 0 ended with exit code 7 while it was supposed to step\. The end of its log, .*",
        ),
        ("crash@2", r"game 0 was killed by SIGABRT while it was supposed to step"),
        ("hang@2", r"game 0 did not reply within 2 s"),
        ("garbage@2", r"game 0 announced a message of 1,347,703,880 bytes"),
        ("count@2", r"step reply has 1 obs, 2 reward, 2 done, 2 info"),
        ("size@2", r"'obs' of agent 1 that does not match get_obs_space: 1 values, expected 3"),
        ("twice@2", r"sent a message without a request"),
    ],
)
def test_a_failed_game_is_reported_and_all_games_end(fault, words):
    games = start(f"--fault={fault}", timeout=2.0 if "hang" in fault else 8.0)
    began, action = time.monotonic(), STAY
    games.reset(0)
    with pytest.raises(EngineError, match=words) as caught:
        for _ in range(4):
            games.step(action)
            time.sleep(0.05)  # for unrequested messages of a game
    assert "a scripted game" in str(caught.value)  # its log
    with pytest.raises(EngineError, match=words):
        games.step(action)
    assert time.monotonic() - began < 10
    assert not any(game.engine.alive() for game in games.group.games)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (
            "never",
            EngineError,
            r"game 0 did not connect within 0\.7 s \(env\.options\.timeout\)\. The end of its log",
        ),
        (
            "exit at start",
            EngineError,
            r"exit code 3 while it was supposed to connect.*\n.*\n.*no main scene",
        ),
        ("version", MakeError, r"game 0: its env_info message has no action_space"),
        ("kind", MakeError, r"game 0: action_space must list a space for each of 2 agents"),
        ("nobody", MakeError, r"game 0: n_agents = 0"),
    ],
)
def test_an_unusable_game_is_reported_when_it_starts(fault, error, words):
    with pytest.raises(error, match=words):
        start(f"--fault={fault}", timeout=0.7 if fault == "never" else 8.0)


def test_a_failed_game_is_restarted_a_limited_number_of_times(caplog):
    games = start("--fault=exit@3", "--fault_seed=6", count=2, restarts=1)
    obs = games.reset(0)
    obs = games.step(rewarded_actions(obs)).obs
    step = games.step(rewarded_actions(obs))
    assert re.search(r"game 1 ended .* Restarting it \(1 of 1 restarts\)", caplog.text)
    assert flags(step) == [[2, 3], [], [2, 3], []]
    assert step.reward.tolist() == [1, 1, 0, 0] and not step.obs[2:].any()
    step = games.step(rewarded_actions(step.obs))
    assert step.reward.tolist() == [1, 1, 0, 0] and step.obs[2:, 1].tolist() == [0, 3]
    step = games.step(rewarded_actions(step.obs))  # it has another seed now, without the fault
    assert step.reward.tolist() == [1, 1, 1, 1]
    games.group.games[0].engine.kill()
    with pytest.raises(EngineError, match="game 0 was killed"):
        games.step(rewarded_actions(step.obs))


def test_a_game_that_cannot_restart_uses_up_its_restarts(caplog):
    games = start("--fault=crash@1", restarts=2)
    with pytest.raises(EngineError, match="game 0 was killed by SIGABRT"):
        games.reset(0)
    assert "Restarting it" in caplog.text
    assert games.group.restarts == 2


@pytest.mark.full
def test_ten_starts_and_kills_leave_no_processes():
    for turn in range(10):
        games = start(seed=turn)
        games.reset(0)
        (game,) = games.group.games
        if turn % 2:
            game.engine.kill()
        games.close()
        assert not game.engine.alive()
        assert game.engine.log.exists() == bool(turn % 2)
