"""Unity builds for tests, and the episodes of their environments."""

import stat
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents.decisions import hold, starts_episode
from purejaxppo.spaces import MASK, Box, Dict
from support.stepping import KEY

ENGINE = Path(__file__).resolve().parents[1] / "engines" / "unity_engine.py"


def make_player(folder: Path, name: str = "Game") -> str:
    """Write an executable that runs the scripted game, and return its path."""
    root = ENGINE.parents[2]
    return make_program(
        folder / name,
        f"#!{sys.executable}\n"
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(root)!r})\n"
        f"runpy.run_path({str(ENGINE)!r}, run_name='__main__')\n",
    )


def make_program(path: Path, text: str) -> str:
    """Write an executable file, and return its path."""
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


class Episode(NamedTuple):
    """An episode of an agent, counted by a game or by its rows."""

    total: float
    decisions: int
    end: str


def read_sums(path: Path) -> dict[tuple[int, int], Episode]:
    """Return the recorded episodes after the last reset of the game of `unity_sdk`.

    Keys are (number of the agent, number of the episode). Any other line is an error.
    """
    found = {}
    for line in path.read_text().split("reset\n")[-1].splitlines():
        agent, episode, total, decisions, end = line.split()
        found[int(agent), int(episode)] = Episode(float(total), int(decisions), end)
    return found


def play_randomly(env, expected=None, rows=10_000) -> dict[tuple[int, int], Episode]:
    """Return the episodes that end within `rows` rows, or until all `expected` ones have ended.

    The agents of `unity_sdk` observe their number and that of the episode. A carry that counts
    decisions is held and reset as in a rollout: at the end of an episode it is their number.
    """
    rng, n = np.random.default_rng(0), env.spec.num_envs

    @jax.jit
    def step(state, action, absent, start, carry, total, valid):
        state, out = env.step(KEY, state, action)
        carry = hold(absent, carry, jnp.where(start, 0, carry) + 1)
        start = starts_episode(out.valid, out.diverged, absent, out.at_once)
        return state, out, out.absent, start, carry, total + out.reward, valid + out.valid

    state, obs = jax.jit(env.reset)(jax.random.key(0))
    zeros = jnp.zeros(n, int)
    memory = jnp.zeros(n, bool), jnp.ones(n, bool), zeros, jnp.zeros(n), zeros
    found: dict[tuple[int, int], Episode] = {}
    for _ in range(rows):
        action = draw_action(rng, env.spec.action, obs, n)
        state, out, *memory = step(state, action, *memory)
        obs, ended = out.obs, np.asarray(out.terminated | out.truncated)
        vector = np.asarray(obs["obs"] if isinstance(obs, dict) else obs)
        _, _, carry, total, valid = map(np.asarray, memory)
        for row in np.flatnonzero(ended):
            agent, number = np.rint(vector[row, 2:4] * (100, 10_000)).astype(int).tolist()
            assert carry[row] == valid[row] and (agent, number) not in found
            end = "truncated" if out.truncated[row] else "terminated"
            found[agent, number] = Episode(float(total[row]), int(valid[row]), end)
        memory[3:] = np.where(ended, 0, total), np.where(ended, 0, valid)
        if expected is not None and len(found) >= len(expected):
            break
    return found


def draw_action(rng, space, obs, n):
    """Return a random action for each row, among those that its mask allows."""
    if isinstance(space, Dict):
        return {name: draw_action(rng, part, obs, n) for name, part in space.spaces}
    if isinstance(space, Box):
        return rng.uniform(-1, 1, (n, *space.shape)).astype(np.float32)
    mask = obs[MASK]["discrete"] if isinstance(obs[MASK], dict) else obs[MASK]
    return np.argmax(rng.uniform(size=(n, space.n)) * np.asarray(mask), axis=1)
