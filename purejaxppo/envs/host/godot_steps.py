"""Answers of Godot games as the arrays of a step. Nothing here imports JAX."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.envs.host.godot_game import Reply
from purejaxppo.envs.host.godot_spaces import BAD, Layout
from purejaxppo.envs.host.godot_wire import WireError
from purejaxppo.envs.host.step import HostStep
from purejaxppo.spaces import LARGEST, tree_of

TERMINAL = "terminal_observation"
"""With `truncated`, the part of an agent's info that holds the last observation of its episode."""


class Parsed(NamedTuple):
    """Answers of whole games as arrays of their agents' rows."""

    obs: list[np.ndarray]  # [N, ...] each, in the order of `Layout.leaves`
    reward: np.ndarray  # [N] float32
    done: np.ndarray  # [N] bool
    cut: np.ndarray  # [N] bool: done by a time limit, with the true last observation


def uneventful(layout: Layout, replies: list[Reply], none: np.ndarray) -> HostStep | None:
    """The step of most answers: nobody's episode ends, and all is well. None of others.

    Args:
        layout: of each game.
        replies: of all games.
        none: False for each row, which becomes the step's flags.
    """
    obs, rewards, dones, _ = replies[0] if len(replies) == 1 else joined(replies)
    if len(dones) != len(none) or [done for done in dones if done is not False]:
        return None
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            reward, *arrays = np.array(rewards, np.float32), *layout.read(obs)
    except (WireError, *BAD):
        return None
    for part in (reward, *arrays):
        if part.dtype == np.float32 and not np.vdot(part, part) <= LARGEST**2:  # none is larger
            return None
    if reward.shape != none.shape:
        return None
    return HostStep(tree(layout, arrays), reward, none, none, diverged=none, at_once=none)


def parse(layout: Layout, replies: list[Reply], skipped: np.ndarray | None = None) -> Parsed:
    """Answers as arrays.

    Args:
        layout: of each game.
        replies: of all games.
        skipped: bool [N], rows that are no steps: their episodes go on, whatever they say.

    Raises:
        WireError: an observation is not in its space.
        ValueError: a reward is no number, or an end is neither true nor false; or another of `BAD`.
    """
    obs, rewards, dones, infos = joined(replies)
    with np.errstate(over="ignore", invalid="ignore"):  # contained like NaN
        reward, done = np.array(rewards, np.float32), np.array(dones)
        if reward.ndim != 1 or done.ndim != 1 or done.dtype.kind not in "biuf":
            raise ValueError("no numbers")
        done = done.astype(bool)
        cut = np.zeros_like(done)
        for row in np.flatnonzero(done).tolist():
            info = infos[row]
            if skipped is not None and skipped[row]:
                continue
            if isinstance(info, dict) and info.get("truncated") and TERMINAL in info:
                obs[row], cut[row] = info[TERMINAL], True
        return Parsed(list(layout.read(obs)), reward, done, cut)


def bounded(parsed: Parsed) -> np.ndarray:
    """True where observation and reward are not NaN or beyond ±LARGEST, bool [N]."""
    ok = np.abs(parsed.reward) <= LARGEST
    for part in parsed.obs:
        if part.dtype == np.float32:
            ok &= (np.abs(part) <= LARGEST).reshape(len(part), -1).all(axis=1)
    return ok


def tree(layout: Layout, arrays: list[np.ndarray]) -> Any:
    """Arrays as the pytree of an observation."""
    return arrays[0] if len(arrays) == 1 else tree_of(layout.observation, arrays)


def joined(replies: list[Reply]) -> list[list[Any]]:
    """The lists of all games' answers, one after the other."""
    return [list(itertools.chain(*lists)) for lists in zip(*replies, strict=True)]
