"""Several Godot games that step together, with their agents as rows.

All games get their actions before any reply is read, so they run in parallel. This module does not
import JAX.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from purejaxppo.envs.engines.godot.game import GodotGame, GodotLaunch
from purejaxppo.envs.engines.godot.spaces import VALUE_ERRORS, GodotLayout
from purejaxppo.envs.engines.godot.wire import Message, WireError
from purejaxppo.envs.engines.process import EngineError, GameGroup, GameProcess
from purejaxppo.envs.step import EnvStep, bounded, diverged_value, end_diverged
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.spaces import LARGEST, short_number, tree_of

EAGER_SECONDS = 1e-3
"""Time to poll for a reply before sleeping, if there are more cores than games. To sleep and wake
up takes a large part of a small game's step."""
TRIES = 3  # resets until NaN is an error
TERMINAL = "terminal_observation"
"""With `truncated`, the key of an agent's info with the last observation of its episode."""


class GodotGames:
    """Games with the same agents; row = game * A + agent.

    Args:
        launch: settings to start each game.
        seed: seed of the first game; game i has seed + i.
        count: number of games.
        started: a list with a game that is already running, which this object takes over.

    Raises:
        EngineError: a game does not start.
        MakeError: its spaces are not supported.
    """

    def __init__(
        self, launch: GodotLaunch, seed: int, count: int = 1, started: list[GodotGame] | None = None
    ) -> None:
        """Start the games and wait for them."""

        def start(number: int, seed: int) -> GodotGame:
            return started.pop() if started else GodotGame(launch, number, seed)

        self.group = GameGroup(start, seed, launch.restarts)
        self._games = self.group.games
        with self.group.killed_after_error():
            self.group.extend(count)
            self.layout = self._games[0].connect()
            for game in self._games[1:]:
                self._connect(game)
        self.size = self.layout.size
        self._eager = EAGER_SECONDS if count < cpu_cores() else 0.0
        self._needs_reset = [True] * count  # also for new games
        self._skipped = np.zeros(count * self.size, bool)  # the row after a truncation
        self._all_running = False  # no game needs a reset, and no row is skipped
        self._failed: set[int] = set()
        self._first_obs: list[list[Message]] = [[] for _ in range(count)]
        self.diverged_value = ""
        """See `bridge.Pool`."""

    def reset(self, seed: int) -> Any:
        """Start new episodes: -> obs [N, ...]. The seed is ignored: games read theirs at start."""
        del seed
        self.group.check()
        self._needs_reset, self._all_running = [True] * len(self._games), False
        self._skipped[:] = False
        with self.group.killed_after_error():
            self._begin_resets()
            first = [self._finish_reset(index) for index in range(len(self._games))]
        self._needs_reset, self._all_running = [False] * len(self._games), True
        return self._tree(parse(self.layout, first).obs)

    def step(self, action: Any) -> EnvStep:
        """Step all games: actions [N, ...] -> EnvStep.

        A game that is reset ignores its agents' actions. The row after a truncation also ignores
        its action: the game gets zeros.
        """
        self.group.check()
        messages = self.layout.write(action)
        if not self._all_running:
            for row in np.flatnonzero(self._skipped):
                messages[row] = self.layout.zero_actions[row % self.size]
        with self.group.killed_after_error():
            self._send(messages)
            replies = [self._receive_step(index) for index in range(len(self._games))]
            if self._all_running and not self._failed:
                out = parse_running(self.layout, replies)
                if out is not None:
                    return out._replace(obs=self._tree(out.obs))
            out = self._parse_or_restart(replies)
        for flag in (out.terminated, out.truncated):
            flag[self._skipped] = False
        out.reward[self._skipped] = 0
        out = out._replace(diverged=~bounded(out), at_once=out.terminated.copy())
        self._needs_reset = [False] * len(self._games)
        self._skipped = out.truncated.copy()
        if self._failed or out.diverged.any():
            self._end_diverged(out)
        self._all_running = not (any(self._needs_reset) or self._skipped.any())
        return out._replace(obs=self._tree(out.obs))

    @property
    def groups(self) -> list[int]:
        """Process group ids of the games."""
        engines = (game.engine for game in self._games)
        return [engine.pid for engine in engines if isinstance(engine, GameProcess)]

    def render_frame(self) -> np.ndarray | None:
        """Return the first game's latest frame, uint8 [H, W, 3]; None if it is not recorded."""
        return self._games[0].render_frame()

    def close(self) -> None:
        """End the games. A second call does nothing."""
        self.group.close()

    def _connect(self, game: GodotGame) -> None:
        if game.connect() != self.layout:
            raise game.engine.error(
                "has different agents or spaces than game 0. Use the same in all games"
            )

    @contextlib.contextmanager
    def _restarting_after_error(self, index: int) -> Iterator[None]:
        """Restart a game that fails, if restarts are left. Its episodes end at this step.

        Raises:
            EngineError: no restarts are left.
        """
        try:
            yield
        except EngineError as error:
            self._restart(index, error)

    def _restart(self, index: int, error: EngineError) -> None:
        self.group.restart(index, error)
        self._failed.add(index)

    def _send(self, messages: list[Message]) -> None:
        """Send actions or a reset to each game, without waiting for replies."""
        self._begin_resets()
        for index, game in enumerate(self._games):
            if not self._needs_reset[index]:
                try:
                    game.send_actions(messages[index * self.size : (index + 1) * self.size])
                except EngineError as error:
                    self._restart(index, error)

    def _begin_resets(self) -> None:
        """Send a reset to games that need one."""
        for index, game in enumerate(self._games):
            if self._needs_reset[index] and game.layout is not None:
                with self._restarting_after_error(index):
                    game.send({"type": "reset"})

    def _finish_reset(self, index: int) -> Message:
        """Return a game's first observations; reset again while they are NaN or beyond ±LARGEST."""
        tries = 0
        while tries < TRIES:
            game = self._games[index]
            with self._restarting_after_error(index):
                if game.layout is None:
                    self._connect(game)
                    game.send({"type": "reset"})
                self._first_obs[index] = game.finish_reset()
                first = self._parse_one(index, self._placeholder(index))
                if bounded(first).all():
                    self._failed.discard(index)
                    return self._placeholder(index)
                tries += 1
                value = diverged_value(first, self.layout.leaves, bounded(first).argmin())
                game.send({"type": "reset"})
        raise self._games[index].engine.error(
            f"sent {value} after {TRIES} resets. Observations must be finite and within "
            f"±{short_number(LARGEST)}"
        )

    def _placeholder(self, index: int) -> Message:
        """Return a reply with a game's first observations, without rewards and ends."""
        size = self.size
        return {
            "obs": self._first_obs[index],
            "reward": [0.0] * size,
            "done": [False] * size,
            "info": [{}] * size,
        }

    def _receive_step(self, index: int) -> Message:
        """Return a game's reply; for a failed game a placeholder, which is not read."""
        if self._needs_reset[index]:
            return self._finish_reset(index)
        if index not in self._failed:
            try:
                return self._games[index].receive_step(self._eager)
            except EngineError as error:
                self._restart(index, error)
        return self._placeholder(index)

    def _parse_or_restart(self, replies: list[Message]) -> EnvStep:
        """Convert all replies to arrays. Restart games with values of the wrong type."""
        try:
            return parse(self.layout, replies, self._skipped)
        except (WireError, *VALUE_ERRORS):
            for index, reply in enumerate(replies):
                with self._restarting_after_error(index):
                    self._parse_one(index, reply)
                if index in self._failed:
                    replies[index] = self._placeholder(index)
            return parse(self.layout, replies, self._skipped)

    def _parse_one(self, index: int, reply: Message) -> EnvStep:
        """Parse one game's reply; errors name the game."""
        engine = self._games[index].engine
        try:
            return parse(self.layout, [reply])
        except WireError as error:
            raise engine.error(str(error)) from None
        except VALUE_ERRORS:
            raise engine.error(
                f"sent a reward that is not a number, or a done that is not true or false: "
                f"reward {str(reply['reward'])[:80]}, done {str(reply['done'])[:80]}"
            ) from None

    def _end_diverged(self, out: EnvStep) -> None:
        """End all episodes of games that failed or returned NaN. They are reset at the next step.

        Rows with NaN, and all rows of a failed game, have diverged. The other rows are truncated.
        """
        bad = out.diverged
        if bad.any():
            self.diverged_value = diverged_value(out, self.layout.leaves, bad.argmax())
        games = bad.reshape(-1, self.size)
        games[list(self._failed)] = True
        self._failed.clear()
        self._needs_reset = games.any(axis=1).tolist()
        over = np.repeat(self._needs_reset, self.size)
        end_diverged(out, self.layout.leaves)
        out.truncated[over] = ~out.terminated[over]
        out.at_once[over] = False
        self._skipped[over] = False

    def _tree(self, arrays: Sequence[np.ndarray]) -> Any:
        """Return arrays as the pytree of an observation."""
        return tree_of(self.layout.observation, arrays)


def parse_running(layout: GodotLayout, replies: list[Message]) -> EnvStep | None:
    """Parse a step without ends and divergence, as `parse` does; return None for other steps.

    This is a fast path for most steps: 10 us instead of 50.
    """
    obs, rewards, dones = concatenated(replies, "obs", "reward", "done")
    if any(done is not False for done in dones):
        return None
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            reward, arrays = np.array(rewards, np.float32), list(layout.read(obs))
    except (WireError, *VALUE_ERRORS):
        return None
    for part in (reward, *arrays):
        if (
            part.dtype == np.float32 and not np.vdot(part, part) <= LARGEST**2
        ):  # then all are within
            return None
    if reward.ndim != 1:
        return None
    none = np.zeros(len(reward), bool)
    return EnvStep(arrays, reward, none, none, diverged=none, at_once=none)


def parse(
    layout: GodotLayout, replies: list[Message], skipped: np.ndarray | None = None
) -> EnvStep:
    """Convert replies to arrays; `obs` is a list in the order of `GodotLayout.leaves`.

    Args:
        layout: layout of each game.
        replies: replies of all games, from `GodotGame.receive_step`.
        skipped: bool [N], rows that are not steps; their ends are ignored.

    Raises:
        WireError: an observation is not in its space.
        ValueError: a reward or an end has the wrong type; or another of `VALUE_ERRORS`.
    """
    obs, rewards, dones, infos = concatenated(replies, "obs", "reward", "done", "info")
    with np.errstate(over="ignore", invalid="ignore"):  # handled like NaN
        reward, done = np.array(rewards, np.float32), np.array(dones)
        if reward.ndim != 1 or done.ndim != 1 or done.dtype.kind not in "biuf":
            raise ValueError("not numbers")
        terminated = done.astype(bool)
        truncated = np.zeros_like(terminated)
        for row in np.flatnonzero(terminated).tolist():
            info = infos[row]
            if skipped is not None and skipped[row]:
                continue
            if isinstance(info, dict) and info.get("truncated") and TERMINAL in info:
                obs[row], truncated[row], terminated[row] = info[TERMINAL], True, False
        return EnvStep(list(layout.read(obs)), reward, terminated, truncated)


def concatenated(replies: list[Message], *keys: str) -> list[list[Any]]:
    """Concatenate the lists of all games' replies, for each key."""
    return [[value for reply in replies for value in reply[key]] for key in keys]
