"""Several Godot games that step together, with their agents as rows. Nothing here imports JAX.

All games get their actions before any answer is read, so that they compute side by side.
"""

import contextlib
import logging
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from purejaxppo.envs.host.engine import EngineError, close_all
from purejaxppo.envs.host.godot_game import Game, Launch, Reply
from purejaxppo.envs.host.godot_spaces import BAD, Message
from purejaxppo.envs.host.godot_steps import Parsed, bounded, parse, tree, uneventful
from purejaxppo.envs.host.godot_wire import WireError
from purejaxppo.envs.host.pool_step import PoolStep
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.spaces import LARGEST, MASK, diverged_value, plain

log = logging.getLogger("purejaxppo")

EAGER_SECONDS = 1e-3
"""For so long an answer is waited for awake where there are more cores than games: a process that
falls asleep and wakes up again takes a good part of a small game's step."""
TRIES = 3  # resets before one that returns NaN is an error


class Games:
    """Games with the same agents; row = game * A + agent.

    Args:
        launch: how they are started.
        seed: of the first; the others' follow.
        count: their number.

    Raises:
        EngineError: one does not start.
        MakeError: its spaces are not supported.
    """

    def __init__(self, launch: Launch, seed: int, count: int = 1) -> None:
        """Starts the games."""
        self._launch, self._seed = launch, seed
        self._restarts = 0
        self._failure: EngineError | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="purejaxppo-godot-"))
        self._logs = [self._folder]  # to remove
        self._games: list[Game] = []
        self._stop = weakref.finalize(self, _close, self._games, self._logs)
        self.extend(count)

    def extend(self, count: int) -> None:
        """Starts more games, so that there are `count`."""
        try:
            for number in range(len(self._games), count):
                self._games.append(self._start(number))
            self.layout = self._games[0].layout or self._games[0].connect()
            for game in self._games[1:]:
                self._connect(game)
        except BaseException:
            self._end()
            raise
        self.size = self.layout.size
        self._eager = EAGER_SECONDS if count < cpu_cores() else 0.0
        self._none = np.zeros(count * self.size, bool)
        self._calm = False  # no game is to be reset, and no row skipped
        self._over = [True] * count  # the game is to be reset, or is a new one
        self._skipped = np.zeros(count * self.size, bool)  # the row after `cut`
        self._broken: set[int] = set()
        self._first: list[list[Message]] = [[] for _ in range(count)]
        self.diverged_value = ""
        """See `bridge.Pool`."""

    def reset(self, seed: int) -> Any:
        """Starts all agents' episodes anew: -> obs [N, ...]; games are seeded when they start."""
        del seed
        self._check()
        self._over, self._calm = [True] * len(self._games), False
        self._skipped = np.zeros_like(self._none)
        with self._closing():
            self._begin_resets()
            first = [self._finish_reset(index) for index in range(len(self._games))]
        self._over, self._calm = [False] * len(self._games), True
        return tree(self.layout, parse(self.layout, first).obs)

    def step(self, action: Any) -> PoolStep:
        """Steps all games: actions [N, ...] -> PoolStep."""
        self.send(action)
        return self.recv()

    def send(self, action: Any) -> None:
        """The first half of `step`: returns while the games step.

        A game that is to be reset ignores its agents' actions, and so does the row after one that
        was `cut`: these are zeros.
        """
        self._check()
        size, messages = self.size, self.layout.write(action)
        if not self._calm:
            for row in np.flatnonzero(self._skipped):
                messages[row] = self.layout.nothing[row % size]
        with self._closing():
            self._begin_resets()
            for index, game in enumerate(self._games):
                if not self._over[index]:
                    try:
                        game.act(messages[index * size : (index + 1) * size])
                    except EngineError as error:
                        self._fail(index, error)

    def recv(self) -> PoolStep:
        """The second half of `step`: waits for the answers."""
        self._check()
        with self._closing():
            replies = [self._reply(index) for index in range(len(self._games))]
            if self._calm and not self._broken:
                quick = uneventful(self.layout, replies, self._none)
                if quick is not None:
                    return quick
            parsed = self._parse_surviving(replies)
        out = self._rows(parsed)
        self._over = [False] * len(self._games)
        self._skipped = parsed.cut & ~self._skipped
        self._contain(parsed, out)
        self._broken.clear()
        self._calm = not (any(self._over) or self._skipped.any())
        return out._replace(obs=tree(self.layout, parsed.obs))

    @property
    def groups(self) -> list[int]:
        """The games' process groups."""
        return [game.engine.pid for game in self._games]

    def picture(self) -> np.ndarray | None:
        """The first game's last frame, uint8 [H, W, 3]; None if it is not filmed."""
        return self._games[0].picture()

    def close(self) -> None:
        """Ends the games; a second call does nothing."""
        self._stop()

    def _start(self, number: int) -> Game:
        again = len(self._games) * self._restarts  # another seed than any before
        return Game(self._launch, number, self._seed + number + again, self._folder)

    def _connect(self, game: Game) -> None:
        if game.layout is None and game.connect() != self.layout:
            raise game.engine.error("has other agents or spaces than game 0")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._stop.alive:
            raise RuntimeError("the games are closed")

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        """Ends all games at any error, and keeps their logs."""
        try:
            yield
        except BaseException as error:
            self._failure = error if isinstance(error, EngineError) else None
            self._end()
            raise

    def _end(self) -> None:
        """Ends all games at once, without asking them to quit, and keeps their logs."""
        self._logs.clear()
        for game in self._games:
            game.close(kill=True)
        self.close()

    @contextlib.contextmanager
    def _surviving(self, index: int) -> Iterator[None]:
        """Lets a game fail, if it may be started again."""
        try:
            yield
        except EngineError as error:
            self._fail(index, error)

    def _fail(self, index: int, error: EngineError) -> None:
        """Ends a game that failed and starts it anew; its episodes end at this step.

        Raises:
            EngineError: the restarts are used up.
        """
        self._games[index].close(kill=True)
        if self._restarts >= self._launch.restarts:
            raise error
        self._restarts += 1
        log.warning(
            f"{error.summary} (started again, {self._restarts} of {self._launch.restarts} times)"
        )
        self._games[index] = self._start(index)
        self._broken.add(index)

    def _begin_resets(self) -> None:
        """Asks games that are over to reset."""
        if self._calm:
            return
        for index, game in enumerate(self._games):
            if self._over[index] and game.layout is not None:
                with self._surviving(index):
                    game.send({"type": "reset"})

    def _finish_reset(self, index: int) -> Reply:
        """First observations of a game, new or not; NaN, or beyond ±LARGEST, is reset again."""
        tries = 0
        while tries < TRIES:
            game = self._games[index]
            with self._surviving(index):
                if game.layout is None:
                    self._connect(game)
                    game.send({"type": "reset"})
                obs = game.finish_reset()
                reply = Reply(obs, [0.0] * self.size, [False] * self.size, [{}] * self.size)
                parsed = self._parse_one(index, reply)
                if bounded(parsed).all():
                    self._first[index] = obs
                    self._broken.discard(index)
                    return reply
                tries += 1
                game.send({"type": "reset"})
        raise self._games[index].engine.error(
            f"returned {self._value(parsed)} after {TRIES} resets; observations must be finite and "
            f"within ±{plain(LARGEST)}"
        )

    def _reply(self, index: int) -> Reply:
        """A game's answer; a stand-in, which is not looked at, of one that is broken."""
        if self._over[index]:
            return self._finish_reset(index)
        if index not in self._broken:
            try:
                return self._games[index].answer(self._eager)
            except EngineError as error:
                self._fail(index, error)
        size = self.size
        return Reply(self._first[index], [0.0] * size, [False] * size, [{}] * size)

    def _parse_surviving(self, replies: list[Reply]) -> Parsed:
        """All answers as arrays; games with values of the wrong kind are broken."""
        try:
            return parse(self.layout, replies, self._skipped)
        except (WireError, *BAD):
            for index, reply in enumerate(replies):
                with self._surviving(index):
                    self._parse_one(index, reply)
                if index in self._broken:
                    replies[index] = self._reply(index)
            return parse(self.layout, replies, self._skipped)

    def _parse_one(self, index: int, reply: Reply) -> Parsed:
        engine = self._games[index].engine
        try:
            return parse(self.layout, [reply])
        except WireError as error:
            raise engine.error(str(error)) from None
        except BAD:
            raise engine.error(
                f"sent rewards that are no numbers or ends that are not true or false: "
                f"{str(reply.reward)[:80]}, {str(reply.done)[:80]}"
            ) from None

    def _rows(self, parsed: Parsed) -> PoolStep:
        """Rewards and ends of all rows, of which none diverged yet."""
        counts = ~self._skipped
        terminated = parsed.done & ~parsed.cut & counts
        return PoolStep(
            obs=(),
            reward=np.where(counts, parsed.reward, np.float32(0)),
            terminated=terminated,
            truncated=parsed.cut & counts,
            diverged=np.zeros_like(terminated),
            at_once=terminated.copy(),
        )

    def _value(self, parsed: Parsed) -> str:
        """The first value of any agent that diverged."""
        row = bounded(parsed).argmin()
        paths = [leaf.path for leaf in self.layout.leaves]
        obs = zip(paths, (part[row] for part in parsed.obs), strict=True)
        return diverged_value(parsed.reward[row], obs)

    def _contain(self, parsed: Parsed, out: PoolStep) -> None:
        """Ends all episodes of games that broke or returned NaN, which are reset at the next step.

        Rows with NaN have diverged, as have all of a broken game; the others are cut.
        """
        ok = bounded(parsed)
        if ok.all() and not self._broken:
            return
        assert out.at_once is not None
        if not ok.all():
            self.diverged_value = self._value(parsed)
        games = ok.reshape(-1, self.size)
        games[list(self._broken)] = False
        over = np.repeat(~games.all(axis=1), self.size)
        self._over = over[:: self.size].tolist()
        for part, leaf in zip(parsed.obs, self.layout.leaves, strict=True):
            part[~ok] = MASK in leaf.path  # a mask must allow something
        out.reward[~ok] = 0
        out.diverged[:] = ~ok
        out.terminated[~ok] = True
        out.truncated[over & ~out.terminated] = True
        out.truncated[~ok] = False
        out.at_once[over] = False
        self._skipped[over] = False


def _close(games: list[Game], logs: list[Path]) -> None:
    """Ends all games at once, and removes their logs."""
    for game in games:
        game.hang_up()
    close_all([game.engine for game in games])
    for folder in logs:
        shutil.rmtree(folder, ignore_errors=True)
