"""Unity builds, played by a scripted game: starts, steps, failures, training and ends."""

import math
import os
import re
import signal
import struct
import subprocess
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("grpc")
from support.paths import ROOT
from support.ports import free_port
from support.runs import train
from support.stepping import KEY
from support.unity import ENGINE, make_player

import purejaxppo as ppo
from purejaxppo.agents.decisions import starts_episode
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.engines.process import EngineError
from purejaxppo.envs.engines.unity import channels
from purejaxppo.envs.engines.unity.player import UnityGame, UnityLaunch
from purejaxppo.envs.engines.unity.players import UnityGames, read_layout
from purejaxppo.envs.host.workers.errors import SimulatorError

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(os.name != "posix", reason="games can only be started on Linux and macOS"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_player(tmp_path_factory.mktemp("unity"))


def play(path, arguments="", count=1, asked=None, restarts=0, **fields):
    """Return started builds. The layout comes from the first one."""
    spec = UnityLaunch(path, arguments=arguments, **{"timeout": 20.0, **fields})
    player = UnityGame(spec, 0)
    try:
        player.connect()
        layout = read_layout(player, asked or {"": 0})
    except BaseException:
        player.kill()
        raise
    return UnityGames(spec, layout, count, restarts=restarts, started=[player])


def zero_actions(players):
    """Return actions that move nothing."""
    return np.zeros((players.layout.size * len(players.games), 2), np.float32)


def have_ended(*groups, seconds=8.0):
    """Wait until no process of these groups is left, and return whether that is so."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        command = ["ps", "-eo", "pgid=,stat="]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows = (line.split() for line in listed.splitlines())
        if not {int(group) for group, stat in rows if not stat.startswith("Z")} & {*groups}:
            return True
        time.sleep(0.05)
    return False


def ended(players):
    """Wait until none of their processes is left, and return whether that is so."""
    return have_ended(*(player.engine.pid for player in players.games))


@pytest.mark.toy
def test_returns_are_correct_with_decisions_every_fifth_tick_and_ends_in_between(path):
    """Standing still gives (1 - |goal|) / 5 for each of an agent's 30, 29 or 28 ticks."""
    ends = {30: 0, 29: 0, 28: 0}
    players = play(path, "--agents 3 --period 5 --offset 2 --stagger 3", 2, {"": 3})
    try:
        obs, empty = players.reset(0)
        first = [None if none else row for row, none in zip(obs, empty, strict=True)]
        paid = np.zeros(6)
        for _ in range(60):
            out = players.step(zero_actions(players))
            paid += out.reward
            for row, seen in enumerate(out.obs):
                if first[row] is None:
                    assert paid[row] == 0
                    first[row] = None if out.absent[row] else seen
                elif out.terminated[row]:
                    goal, age = first[row]
                    ticks = round(seen[1] * 10)  # its age in the true last observation
                    asked = ticks - round(age * 10)  # without the ticks before its first decision
                    assert paid[row] == pytest.approx((1 - abs(goal)) * asked / 5, rel=1e-5)
                    ends[ticks] += 1
                    first[row], paid[row] = None, 0
    finally:
        players.close()
    assert min(ends.values()) >= 4, ends
    assert ended(players)


@pytest.mark.parametrize("sends", [False, True])
def test_ticks_come_from_a_statistic_of_the_game_or_count_its_messages(sends, path):
    """Agents decide at ticks 0, 5, 10, ... and 3, 8, 13, ...; both end after 30 ticks."""
    players = play(path, f"--agents 2 --period 5 --offset 2{' --ticks' * sends}", asked={"": 2})
    try:
        players.reset(0)
        rows = [players.step(zero_actions(players)) for _ in range(60)]
    finally:
        players.close()
    ticks = np.array([row.ticks for row in rows])
    np.testing.assert_array_equal(ticks[:, 0], ticks[:, 1])
    # The message with an end also has the next request of agent 0, which enters on the next row.
    waits = np.array([False, *(row.terminated.any() for row in rows[:-1])])
    assert not ticks[waits].any() and waits.sum() == 4
    assert {*ticks[~waits, 0]} == ({2, 3} if sends else {1})


@pytest.mark.toy
def test_settings_and_the_seed_reach_the_build(path, tmp_path):
    record = tmp_path / "heard"
    options = {
        "time_scale": 7.5,
        "parameters.gravity": -9.5,
        "max_agents": 1,
        "arguments": f"--record {record}",
    }
    env = registry.make(EnvConfig(name=f"unity/{path}", num_envs=1, options=options), 1, seed=3)
    jax.block_until_ready(jax.jit(env.reset)(jax.random.key(0)))
    env.close()
    heard = dict(line.split() for line in record.read_text().splitlines())
    engine = f"{channels.ENGINE}:"
    assert heard[engine + "02000000"] == struct.pack("<if", 2, 7.5).hex()
    assert heard[engine + "00000000"] == struct.pack("<3i", 0, 84, 84).hex()
    assert heard[f"{channels.PARAMETERS}:07000000"].endswith(struct.pack("<if", 0, -9.5).hex())
    assert int(heard["seed"]) == 6 * 100_003


@pytest.mark.toy
def test_a_pausing_agent_leaves_its_slot_empty_and_max_step_truncates(path):
    players = play(path, "--agents 2 --length 3 --stagger 2 --pause 3 --cut")
    try:
        players.reset(0)
        rows = [players.step(zero_actions(players)) for _ in range(8)]
    finally:
        players.close()
    assert not any(out.terminated.any() for out in rows)
    ends = np.argwhere([out.truncated for out in rows]).tolist()
    # Agent 1 decides twice, pauses and takes the slot of agent 0, which decides three times.
    assert ends == [[1, 1], [2, 0], [5, 0], [7, 1]]
    assert [out.absent[0] for out in rows] == [False, False, True, False, False, True, True, False]


@pytest.mark.toy
@pytest.mark.parametrize("cut", [False, True])
def test_a_new_episode_with_the_same_id_starts_with_an_empty_memory(cut, path):
    """Episodes of 3 decisions: rows 0, 1 and 2 decide, row 3 has the next first observation."""
    options = {"arguments": f"--agents 1 --length 3{' --cut' * cut}", "timeout": 20.0}
    env = registry.make(EnvConfig(name=f"unity/{path}", num_envs=1, options=options), 1, seed=3)
    valid, ended, age, start = [], [], [], []
    try:
        state, _ = jax.jit(env.reset)(jax.random.key(0))
        step, absent = jax.jit(partial(env.step, KEY)), jnp.zeros(1, bool)
        for _ in range(9):
            state, out = step(state, jnp.zeros((1, 2)))
            start += starts_episode(out.valid, out.diverged, absent, out.at_once).tolist()
            valid += out.valid.tolist()
            ended += (out.truncated if cut else out.terminated).tolist()
            age += [round(10 * float(out.obs[0, 1]))]
            absent = out.absent
    finally:
        env.close()
    no, yes = False, True
    assert valid == [yes, yes, yes, no, yes, yes, yes, no, yes]
    assert ended == [no, no, yes, no, no, no, yes, no, no]
    assert age == [1, 2, 3, 0, 1, 2, 3, 0, 1]  # the terminal rows have the true last observation
    assert start == [no, no, no, yes, no, no, no, yes, no]


@pytest.mark.toy
@pytest.mark.parametrize(
    ("arguments", "capacities"),
    [
        ("--agents 1", (1,)),
        ("--agents 5 --period 5 --offset 1", (5,)),  # one agent per tick
        ("--agents 3 --period 4 --offset 3 --behaviours A,B", (3, 3)),
        ("--agents 2 --period 3 --offset 1 --length 1 --stagger 2", (2,)),  # ends before agent 1
        ("--agents 2 --length 1 --pause 1", (2,)),  # new ids after each decision
    ],
)
def test_slots_are_counted_over_a_whole_decision_period(arguments, capacities, path):
    players = play(path, arguments)
    try:
        assert players.layout.capacities == capacities
        players.reset(0)
        for _ in range(12):
            players.step(zero_actions(players))
    finally:
        players.close()


@pytest.mark.toy
def test_images_are_observed_next_to_vectors(path):
    players = play(path, "--camera stacked")
    try:
        obs, _ = players.reset(0)
    finally:
        players.close()
    shade = round((float(obs["vector"][0, 0]) + 1) * 100)
    assert obs["camera"].shape == (1, 2, 8, 12) and obs["camera"].dtype == np.uint8
    assert obs["camera"][0, :, 5, 5].tolist() == [shade, 255 - shade]
    assert obs["camera"][0, 0, 0, 0] == 64  # of 0, 64, 128


@pytest.mark.toy
def test_a_behaviour_that_appears_later_has_the_configured_slots(path):
    players = play(path, "--behaviours Early?team=0,Late?team=1 --late 4", asked={"Late": 2})
    try:
        assert players.layout.names == ("Early?team=0", "Late?team=1")
        assert players.layout.capacities == (1, 2)
        obs, empty = players.reset(0)
        assert obs["agent"].tolist() == [0, 1, 1] and empty.tolist() == [False, True, True]
        rows = [players.step(zero_actions(players)) for _ in range(5)]
    finally:
        players.close()
    assert [out.absent[1] for out in rows] == [True, True, True, False, False]
    assert all(out.absent[2] for out in rows)


@pytest.mark.toy
def test_an_unconfigured_behaviour_that_appears_later_is_an_error(path):
    players = play(path, "--behaviours Early,Late --late 4", restarts=2)
    players.reset(0)
    with pytest.raises(EngineError, match="game 0 has agents of behaviour 'Late'"):
        for _ in range(5):
            players.step(zero_actions(players))
    assert players.group.restarts == 0  # a restart would fail in the same way
    assert ended(players)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("silent", r"game 0 did not connect within 1.5 s .*\. Its log is empty"),
        ("garbage", r"game 0 sent 14 bytes that are not an ML-Agents message"),
        ("version", r"game 0 uses version '9.0.0' of the ML-Agents protocol"),
        ("die", r"(?s)game 0 ended with exit code 7 while it was supposed to step.*NullReference"),
        ("hang", r"(?s)game 0 did not step within 1.5 s.*thinking"),
    ],
)
def test_a_failed_build_is_reported_with_the_end_of_its_log(fault, message, path):
    players = []
    with pytest.raises(EngineError, match=message):
        players.append(play(path, f"--fault {fault}", timeout=1.5 if fault != "die" else 20.0))
        players[0].reset(0)
        for _ in range(30):
            players[0].step(zero_actions(players[0]))
    assert not players or ended(players[0])


@pytest.mark.toy
def test_a_build_that_exits_is_restarted_and_its_episodes_diverge(path, caplog):
    players = play(path, "--fault die --agents 2", count=2, restarts=1)
    try:
        players.reset(0)
        for _ in range(25):
            out = players.step(zero_actions(players))
            if out.diverged.any():
                break
        assert out.diverged.tolist() in ([True] * 2 + [False] * 2, [False] * 2 + [True] * 2)
        mine = np.flatnonzero(out.diverged)
        assert out.absent[mine].all()
        assert re.search("ended with exit code 7.*Restarting it .1 of 1", caplog.text)
        out = players.step(zero_actions(players))  # the other build has the same fault soon
    except EngineError:
        assert players.group.restarts == 1
    finally:
        players.close()


@pytest.mark.toy
def test_a_build_that_fails_in_a_reset_and_at_its_next_start_is_restarted_twice(path, monkeypatch):
    players = play(path, "--fault reset --agents 2", restarts=3)
    connect, failed = UnityGame.connect, []

    def connect_at_the_second_attempt(game):
        if not failed:
            failed.append(game)
            raise game.error("did not connect")
        return connect(game)

    try:
        players.reset(0)
        monkeypatch.setattr(UnityGame, "connect", connect_at_the_second_attempt)
        while not failed:  # the build ends in its third reset
            _, absent = players.reset(0)
        assert players.group.restarts == 2
        assert not absent.any()
        assert not players.step(zero_actions(players)).diverged.any()
    finally:
        players.close()


@pytest.mark.toy
def test_the_number_of_slots_of_a_team_comes_before_that_of_its_behaviour(path):
    asked = {"A": 2, "A?team=1": 3}
    players = play(path, "--behaviours A?team=0,A?team=1", asked=asked)
    players.close()
    assert dict(zip(players.layout.names, players.layout.capacities, strict=True)) == {
        "A?team=0": 2,
        "A?team=1": 3,
    }


@pytest.mark.toy
def test_the_editor_connects_to_the_configured_port(path):
    del path
    port = free_port()
    editor = subprocess.Popen(
        [sys.executable, str(ENGINE), "--mlagents-port", str(port)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        players = play("editor", port=port)
        players.reset(0)
        assert players.step(zero_actions(players)).reward.shape == (1,)
        other = UnityLaunch("editor", port=port)
        with pytest.raises(EngineError, match=f"port {port} of 127.0.0.1 cannot be opened"):
            UnityGame(other, 0)
        players.close()
        assert editor.wait(10) == 0
    finally:
        editor.kill()


@pytest.mark.toy
def test_the_editor_is_one_build_that_training_does_not_share():
    options = {"port": free_port(), "timeout": 20.0}
    arguments = ["--mlagents-port", str(options["port"])]
    editor = subprocess.Popen(
        [sys.executable, str(ENGINE), *arguments], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        one, two = (EnvConfig(name="unity/editor", num_envs=n, options=options) for n in (1, 2))
        with pytest.raises(ValueError, match=r"needs 2 games, but the editor runs only one"):
            registry.make(two, 2)
        env = registry.make(one, 1)
        with pytest.raises(SimulatorError, match=r"eval.num_episodes = 0"):
            registry.make(one, 1, evaluation=True)
        env.close()
        assert editor.wait(10) == 0
    finally:
        editor.kill()


HOLD = """
import os, sys
from purejaxppo.envs.engines.unity.player import UnityGame, UnityLaunch
player = UnityGame(UnityLaunch(sys.argv[1]), 0)
player.connect()
print(player.engine.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.toy
def test_a_killed_trainer_leaves_no_unity_processes(path):
    trainer = subprocess.Popen(
        [sys.executable, "-c", HOLD, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    group = int(trainer.stdout.readline())
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdin.close(), trainer.stdout.close()
    assert have_ended(group)


OWN = """
class Echo:
    id = "00000000-0000-0000-0000-000000000007"
    heard = []

    def receive(self, payload):
        self.heard.append(payload)

    def send(self):
        return [b"hi"]
"""


@pytest.mark.toy
def test_a_custom_side_channel_receives_and_sends(path, tmp_path):
    (tmp_path / "echo.py").write_text(OWN)
    record = tmp_path / "heard"
    name = f"{tmp_path / 'echo.py'}:Echo"
    players = play(path, f"--record {record}", asked={"": 1}, custom_channels=name)
    try:
        players.reset(0)
        players.step(zero_actions(players))
        (echo,) = players.games[0]._channels.values()
        assert echo.heard[0] == b"hello"
        assert players.games[0].stats["Game/Exchanges"].last == 1.0
    finally:
        players.close()
    assert "00000000-0000-0000-0000-000000000007:6869 6869" in record.read_text()


@pytest.mark.toy
@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        ({"time_scal": 2.0}, {}, "no such option. Did you mean 'time_scale'"),
        ({"parameters.x": "fast"}, {}, "'fast': invalid parameter"),
        ({"max_agents.A": 0}, {}, "max_agents.A = 0: must be at least 1"),
        ({"timeout": 0.0}, {}, "timeout = 0.0: must be between 1 and "),
        ({"timeout": math.inf}, {}, "timeout = inf: must be between 1 and "),
        ({"width": 10**10}, {}, "width = 10000000000: must be between 1 and 100000"),
        ({"restarts": -1}, {}, "restarts = -1: must be at least 0"),
        ({}, {"max_episode_steps": 5}, "Set Max Step of the agents in Unity"),
        ({}, {"name": "unity/no/such/Game"}, "no/such/Game not found in "),
    ],
)
def test_wrong_unity_configs_are_rejected(options, more, message, path):
    config = EnvConfig(**{"name": f"unity/{path}", "num_envs": 2, "options": options, **more})
    with pytest.raises((ValueError, SimulatorError), match=message):
        registry.make(config, 2)


CONFIG = """
env:
  name: unity/{path}
  num_envs: 8
  options: {{arguments: "{arguments}", max_agents: {slots}}}
network: {{hidden: [16], rnn: {rnn}, rnn_size: 8}}
ppo: {{rollout_length: {length}, num_minibatches: 2, learning_rate: 0.01, bptt_length: {bptt}}}
eval: {{num_episodes: 8}}
logging: {{tensorboard: false}}
callbacks: [purejaxppo.envs.engines.unity.stats:Stats]
total_timesteps: {steps}
"""


def run(path, tmp_path, arguments, *, slots, rnn="none", length=16, steps=256):
    """Return a finished training run."""
    file = tmp_path / "unity.yaml"
    bptt = 8 if rnn != "none" else 0
    file.write_text(
        CONFIG.format(
            path=path,
            arguments=arguments,
            slots=slots,
            rnn=rnn,
            length=length,
            steps=steps,
            bptt=bptt,
        )
    )
    assert train(file, "--run_dir", str(tmp_path / "run")) == 0
    return ppo.load(tmp_path / "run")


def test_agents_with_alternating_decisions_train_with_a_memory_and_are_evaluated(path, tmp_path):
    arguments = "--agents 2 --behaviours A,B --period 3 --offset 1 --stagger 2 --nan"
    done = run(path, tmp_path, arguments, slots=2, rnn="gru", steps=160)
    metrics = done.metrics
    assert metrics["charts/diverged"].sum() > 0
    assert np.isfinite(metrics["losses/policy_loss"]).all()
    assert metrics["charts/episodes"].sum() > 0
    exchanges = metrics["Game/Exchanges"]  # the most recent number
    assert np.isfinite(exchanges).all() and (np.diff(exchanges) > 0).all()


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(
    "actions",
    [
        pytest.param("discrete", marks=pytest.mark.slow),
        pytest.param("hybrid", marks=pytest.mark.full),  # both kinds together
        pytest.param("continuous", marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_action_is_learned(actions, path, tmp_path):
    """Random decisions give 2 (discrete), 1.6 (continuous), or both; the best ones 6 each.

    If only one of both is learned, they give at most 8.
    """
    arguments = f"--agents 4 --actions {actions} --period 5 --stagger 3"
    done = run(path, tmp_path, arguments, slots=4, length=64, steps=12_000)
    returns = done.metrics["charts/episodic_return"]
    least = {"discrete": 4.5, "continuous": 3.0, "hybrid": 8.5}[actions]
    assert returns[-3:].mean() > least, returns
