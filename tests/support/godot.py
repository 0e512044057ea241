"""Scripted games in place of Godot."""

import json

import numpy as np

from purejaxppo.envs.engines.godot.game import GodotLaunch
from purejaxppo.envs.engines.godot.games import GodotGames
from support.paths import ROOT

GAME = ROOT / "tests/engines/godot_game.py"
ENGINE = ROOT / ".godot-engine/bin/godot"
GAMES = ROOT / "tests/games"


def launch(*flags, program=GAME, timeout=10.0, restarts=0):
    """Return the launch settings of a game, by default a scripted one; see its file for flags."""
    return GodotLaunch((str(program), *flags), timeout, restarts)


def start(*flags, count=1, seed=5, **settings):
    """Start `count` scripted games, which the caller closes."""
    return GodotGames(launch(*flags, **settings), seed, count)


def rewarded_actions(obs):
    """Return the actions with a reward, given observations [N, 3]."""
    return np.where(obs[:, 0] > 0, 2, 0)


def received(path):
    """Return the messages that a game received."""
    return [json.loads(line) for line in path.read_text().splitlines()]
