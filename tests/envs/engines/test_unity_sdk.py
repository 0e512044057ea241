"""A game of the real package com.unity.ml-agents, and recordings of it.

The game and stubs of the engine are in `tests/engines/unity_sdk`. They are compiled and played if
Mono is installed (`mono-mcs`, `mono-runtime-sgen`) and the environment variable `MLAGENTS_PACKAGE`
names the folder of the package, version 4.0.0. The messages of three games are recorded there, with
the episodes that the game counted itself, and are played in every run.
"""

import gzip
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

grpc = pytest.importorskip("grpc")
from support.paths import ROOT
from support.ports import free_port
from support.runs import train
from support.unity import make_program, play_randomly, read_sums

import purejaxppo as ppo
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.engines.unity import messages

SDK = ROOT / "tests" / "engines" / "unity_sdk"
EXCHANGE = "/communicator_objects.UnityToExternalProto/Exchange"
PACKAGE = os.environ.get("MLAGENTS_PACKAGE", "")


class Game(NamedTuple):
    """The arguments of a game."""

    agents: int
    behaviours: int
    more: str

    @property
    def rows(self) -> int:
        return self.agents * self.behaviours

    @property
    def arguments(self) -> str:
        return f"--agents {self.agents} --behaviours {self.behaviours} {self.more}"


RECORDED = {
    "turns": Game(4, 1, "--period 5 --offset 2 --max-step 24 --interrupt 1"),
    "hybrid": Game(3, 1, "--actions hybrid --masks 1 --period 3 --offset 1 --disable 2"),
    "everything": Game(
        3,
        2,
        "--period 5 --offset 2 --length 5 --spread 5 --max-step 7 --interrupt 1 --group 11 "
        "--disable 2",
    ),
}
GAMES = {
    **RECORDED,
    "alone": Game(1, 1, "--period 1"),
    "groups": Game(2, 2, "--period 1 --group 33 --disable 3"),
    "masks": Game(2, 1, "--actions discrete --masks 1 --period 2 --max-step 13 --spread 1"),
    "short": Game(3, 1, "--period 1 --length 1 --spread 2 --disable 2 --pause 1"),
    "shorter_than_a_period": Game(2, 1, "--period 4 --length 2 --spread 3"),
}

pytestmark = pytest.mark.xdist_group("processes")
with_package = [
    pytest.mark.full,
    pytest.mark.skipif(not PACKAGE, reason="MLAGENTS_PACKAGE is not set to a folder"),
    pytest.mark.skipif(not shutil.which("mcs"), reason="Mono's mcs is not installed"),
]


@pytest.fixture(scope="module")
def player(tmp_path_factory):
    """The compiled game."""
    folder = tmp_path_factory.mktemp("unity_sdk")
    subprocess.run(["bash", SDK / "build.sh", PACKAGE, folder], check=True, timeout=120)
    command = f'exec {sys.executable} {SDK / "relay.py"} {folder / "game.exe"} "$@"'
    return make_program(folder / "Game", f"#!/bin/sh\n{command}\n")


def make(name, num_envs, **options):
    options = {"timeout": 20.0, **options}
    return registry.make(EnvConfig(name=name, num_envs=num_envs, options=options), num_envs)


def replay(recording: Path, port: int, wrong: list[str]) -> None:
    """Send the messages of a recording to the adapter. `wrong` gets those with other actions."""
    call = grpc.insecure_channel(f"localhost:{port}").unary_unary(EXCHANGE)
    data = gzip.decompress(recording.read_bytes())
    while data:
        (length,) = struct.unpack_from("<i", data)
        message, data = data[4 : 4 + length], data[4 + length :]
        answer = messages.parse(call(message, wait_for_ready=True, timeout=30))
        if answer.header.status == messages.QUIT_STATUS:
            return
        rl_input = answer.unity_input.rl_input
        if rl_input.command == messages.STEP:
            infos = messages.parse(message).unity_output.rl_output.agentInfos
            asked = {name: [x.done for x in infos[name].value].count(False) for name in infos}
            sent = {name: len(rl_input.agent_actions[name].value) for name in infos}
            wrong += [f"{sent} actions for {asked}"] * (sent != asked)


def play_recording(recording: Path, game: Game):
    """Return the episodes of a recording: those of the environment, and those the game counted."""
    sums, port, wrong = read_sums(recording.with_suffix(".txt")), free_port(), []
    thread = threading.Thread(target=replay, args=(recording, port, wrong))
    thread.start()
    env = make("unity/editor", game.rows, port=port, max_agents=game.agents)
    try:
        return play_randomly(env, sums), sums
    finally:
        env.close()
        thread.join(30)
        assert not wrong


@pytest.mark.toy
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_games_of_the_package_have_the_counted_episodes(name):
    found, sums = play_recording(SDK / "recorded" / f"{name}.gz", RECORDED[name])
    assert found == sums
    assert len(sums) >= 40 and {x.end for x in sums.values()} >= {"terminated"}


class TestWithPackage:
    """Tests with the compiled game."""

    pytestmark = with_package

    @pytest.mark.parametrize("name", GAMES)
    def test_every_episode_has_the_return_length_and_end_that_the_game_counts(
        self, name, player, tmp_path
    ):
        game, file, sums = GAMES[name], tmp_path / f"{name}.gz", tmp_path / f"{name}.txt"
        arguments = f"{game.arguments} --sums {sums} --record {file}"
        env = make(f"unity/{player}", game.rows, arguments=arguments, max_agents=game.agents)
        try:
            found = play_randomly(env, rows=400)
        finally:
            env.close()
        assert found == read_sums(sums) and len(found) >= 10
        replayed, _ = play_recording(file, game)
        assert replayed == found

    def test_slots_are_counted_and_side_channels_arrive(self, player, tmp_path):
        game, sums = GAMES["everything"], tmp_path / "sums"
        masks = "--actions discrete --masks 1"
        arguments = f"{game.arguments} {masks} --sums {sums}"
        options = {"arguments": arguments, "parameters.goal": 0.5}
        env = make(f"unity/{player}", game.rows, **options)
        try:
            assert env.spec.num_agents == game.rows
            _, obs = env.reset(jax.random.key(0))
            assert np.asarray(obs["obs"])[0, 0] == 0.5
            assert env.games[0].stats["Game/Tick"].last > 1
        finally:
            env.close()
        assert "forbidden" not in sums.read_text()  # idle actions are allowed as well

    @pytest.mark.slow
    def test_training_reaches_a_minimum_return(self, player, tmp_path):
        file = tmp_path / "sdk.yaml"
        file.write_text(CONFIG.format(player=player))
        assert train(file, "--run_dir", str(tmp_path / "run")) == 0
        scores = ppo.load(tmp_path / "run").metrics["eval/return_mean"]
        assert scores[-1] > 36, scores


CONFIG = """
env:
  name: unity/{player}
  num_envs: 8
  options:
    arguments: "--agents 8 --actions hybrid --masks 1 --period 5 --spread 0 --anonymous 1"
    max_agents: 8
network: {{hidden: [32]}}
ppo: {{rollout_length: 64, num_minibatches: 4, learning_rate: 0.003}}
eval: {{num_episodes: 16}}
logging: {{tensorboard: false}}
total_timesteps: 20000
"""
"""The first episode after a reset has 19 ticks and a return of at most 38, about 17 at random."""
