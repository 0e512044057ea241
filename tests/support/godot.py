"""Scripted games in place of an engine, for the tests of `godot/`."""

import json

import numpy as np

from purejaxppo.envs.engines.godot.game import GodotLaunch
from purejaxppo.envs.engines.godot.games import GodotGames
from support.paths import ROOT

GAME = ROOT / "tests/engines/godot_game.py"
ENGINE = ROOT / ".godot-engine/bin/godot"
GAMES = ROOT / "tests/games"


def launch(*flags, program=GAME, timeout=10.0, restarts=0):
    """How a game is started, by default a scripted one; see its file for the flags."""
    return GodotLaunch((str(program), *flags), timeout, restarts)


def start(*flags, count=1, seed=5, **settings):
    """So many scripted games; to be closed."""
    return GodotGames(launch(*flags, **settings), seed, count)


def right(obs):
    """Actions that are paid for, given observations [N, 3]."""
    return np.where(obs[:, 0] > 0, 2, 0)


def received(path):
    """The messages that a game was sent."""
    return [json.loads(line) for line in path.read_text().splitlines()]
