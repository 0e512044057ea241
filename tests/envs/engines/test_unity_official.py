"""The scripted game compared with the package mlagents_envs: both return the same agents.

The environment variable `MLAGENTS_ENVS` names the folder where the package is installed:

    pip install --no-deps --ignore-requires-python --target DIR mlagents-envs-aai==1.0.0
"""

import json
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("grpc")
from engines.official_trainer import policy
from support.paths import ROOT
from support.ports import free_port
from support.unity import make_player

from purejaxppo.envs.engines.unity.player import UnityGame, UnityLaunch
from purejaxppo.envs.engines.unity.players import UnityGames, read_layout

FOLDER = os.environ.get("MLAGENTS_ENVS", "")
TRAINER = ROOT / "tests" / "engines" / "official_trainer.py"
STEPS, SEED = 120, 5
GAMES = {
    "one agent": "--agents 1",
    "ends between decisions": "--agents 3 --period 5 --stagger 3",
    "decisions in turns": "--agents 3 --period 5 --offset 2 --stagger 3",
    "pauses and time limits": "--agents 4 --stagger 3 --pause 3 --cut",
    "masks": "--agents 3 --actions discrete --masks --stagger 2",
    "both kinds of action in a group": "--agents 2 --actions hybrid --masks --group --period 2",
    "two behaviours": "--agents 2 --behaviours A?team=0,B?team=1 --period 3 --offset 1",
}

pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(not FOLDER, reason="MLAGENTS_ENVS names no folder with mlagents_envs"),
]


def official(path, arguments):
    """Return the episodes of the package, by (id, number of the episode)."""
    command = [sys.executable, TRAINER, FOLDER, path, SEED, STEPS, free_port(), *arguments.split()]
    out = subprocess.run(
        [*map(str, command)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout
    return {
        (int(number), k): episode
        for number, episodes in json.loads(out).items()
        for k, episode in enumerate(episodes)
    }


def actions(layout, obs):
    """Return the actions of our rows, equal to those of the package."""
    vectors = obs["obs"] if isinstance(obs, dict) else obs
    branches = layout.behaviours[0].branches
    continuous, discrete = policy(vectors, len(branches))
    if not branches:
        return continuous
    choice = discrete[:, 0]
    both = layout.behaviours[0].continuous
    return {"continuous": continuous, "discrete": choice} if both else choice


def ours(path, arguments):
    """Return the episodes of our rows, by (id, number of the episode)."""
    spec = UnityLaunch(path, arguments=arguments)
    player = UnityGame(spec, SEED)
    player.connect()
    players = UnityGames(spec, read_layout(player, {"": 6}), 1, started=[player])
    (world,) = players._slots
    seen, begun = {}, Counter()

    def note(obs, reward):
        vectors = obs["obs"] if isinstance(obs, dict) else obs
        mask = obs.get("action_mask") if isinstance(obs, dict) else None
        mask = mask["discrete"] if isinstance(mask, dict) else mask
        for number, slot in world.slot_by_id.items():
            if world.acting[slot]:
                key = number, begun[number]
                agent = seen.setdefault(key, {"decisions": [], "end": None})
                allowed = [] if mask is None else mask[slot].tolist()
                agent["decisions"].append([vectors[slot].tolist(), allowed, float(reward[slot])])

    try:
        obs, _ = players.reset(0)
        note(obs, np.zeros(world.layout.size))
        for _ in range(STEPS):
            before = dict(world.slot_by_id)
            out = players.step(actions(world.layout, obs))
            obs = out.obs
            vectors = obs["obs"] if isinstance(obs, dict) else obs
            for number, slot in before.items():
                if out.terminated[slot] or out.truncated[slot]:
                    last = vectors[slot].tolist(), float(out.reward[slot])
                    seen[number, begun[number]]["end"] = [*last, bool(out.truncated[slot])]
                    begun[number] += 1
            note(obs, out.reward)
    finally:
        players.close()
    return seen


@pytest.mark.parametrize("game", GAMES)
def test_the_official_package_gives_the_same_ids_rewards_masks_and_ends(game, tmp_path):
    path = make_player(tmp_path, "Game.x86_64")
    theirs, mine = official(path, GAMES[game]), ours(path, GAMES[game])
    both = [number for number in mine if number in theirs]
    ended = [number for number in both if mine[number]["end"] and theirs[number]["end"]]
    assert len(ended) >= 8 and len(both) >= len(mine) - 8
    for number in both:
        # Rewards before the first decision of an agent belong to no decision.
        rewards = [[x[2] for x in agent["decisions"]] for agent in (mine[number], theirs[number])]
        count = min(map(len, rewards))
        assert rewards[0][1:count] == rewards[1][1:count]
        assert mine[number]["decisions"][0][:2] == theirs[number]["decisions"][0][:2]
        seen = [
            [x[:2] for x in agent["decisions"][:count]] for agent in (mine[number], theirs[number])
        ]
        assert seen[0] == seen[1]
    for number in ended:
        assert len(mine[number]["decisions"]) == len(theirs[number]["decisions"])
        assert mine[number]["end"] == theirs[number]["end"]
