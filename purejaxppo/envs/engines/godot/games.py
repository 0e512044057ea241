"""Several Godot games that step together, with their agents as rows. Nothing here imports JAX.

All games get their actions before any answer is read, so that they compute side by side.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.envs.engines.godot.game import Game, Launch, Reply
from purejaxppo.envs.engines.godot.spaces import BAD, Layout, Message
from purejaxppo.envs.engines.godot.wire import WireError
from purejaxppo.envs.engines.process import EngineError, Fleet
from purejaxppo.envs.step import EnvStep
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.spaces import LARGEST, MASK, diverged_value, plain, tree_of

EAGER_SECONDS = 1e-3
"""For so long an answer is waited for awake where there are more cores than games: a process that
falls asleep and wakes up again takes a good part of a small game's step."""
TRIES = 3  # resets before one that returns NaN is an error


TERMINAL = "terminal_observation"
"""With `truncated`, the part of an agent's info that holds the last observation of its episode."""


class Parsed(NamedTuple):
    """Answers of whole games as arrays of their agents' rows."""

    obs: list[np.ndarray]  # [N, ...] each, in the order of `Layout.leaves`
    reward: np.ndarray  # [N] float32
    done: np.ndarray  # [N] bool
    cut: np.ndarray  # [N] bool: done by a time limit, with the true last observation


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

        def start(number: int, seed: int) -> Game:
            return Game(launch, number, seed)

        self.fleet = Fleet(start, seed, launch.restarts)
        self._games = self.fleet.games
        self.extend(count)

    def extend(self, count: int) -> None:
        """Starts more games, so that there are `count`."""
        with self.fleet.ended_after_error():
            self.fleet.extend(count)
            self.layout = self._games[0].layout or self._games[0].connect()
            for game in self._games[1:]:
                self._connect(game)
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
        self.fleet.check()
        self._over, self._calm = [True] * len(self._games), False
        self._skipped = np.zeros_like(self._none)
        with self.fleet.ended_after_error():
            self._begin_resets()
            first = [self._finish_reset(index) for index in range(len(self._games))]
        self._over, self._calm = [False] * len(self._games), True
        return tree(self.layout, parse(self.layout, first).obs)

    def step(self, action: Any) -> EnvStep:
        """Steps all games: actions [N, ...] -> EnvStep.

        A game that is to be reset ignores its agents' actions, and so does the row after one that
        was `cut`: these are zeros.
        """
        self.fleet.check()
        messages = self.layout.write(action)
        with self.fleet.ended_after_error():
            self._send(messages)
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

    def _send(self, messages: list[Message]) -> None:
        """Sends all games their rows' actions or a reset, and returns while they step."""
        size = self.size
        if not self._calm:
            for row in np.flatnonzero(self._skipped):
                messages[row] = self.layout.nothing[row % size]
        self._begin_resets()
        for index, game in enumerate(self._games):
            if not self._over[index]:
                try:
                    game.act(messages[index * size : (index + 1) * size])
                except EngineError as error:
                    self._fail(index, error)

    @property
    def groups(self) -> list[int]:
        """The games' process groups."""
        return [game.engine.pid for game in self._games]

    def picture(self) -> np.ndarray | None:
        """The first game's last frame, uint8 [H, W, 3]; None if it is not filmed."""
        return self._games[0].picture()

    def close(self) -> None:
        """Ends the games; a second call does nothing."""
        self.fleet.close()

    def _connect(self, game: Game) -> None:
        if game.layout is None and game.connect() != self.layout:
            raise game.engine.error("has other agents or spaces than game 0")

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
        self.fleet.restart(index, error)
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

    def _rows(self, parsed: Parsed) -> EnvStep:
        """Rewards and ends of all rows, of which none diverged yet."""
        counts = ~self._skipped
        terminated = parsed.done & ~parsed.cut & counts
        return EnvStep(
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

    def _contain(self, parsed: Parsed, out: EnvStep) -> None:
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


def uneventful(layout: Layout, replies: list[Reply], none: np.ndarray) -> EnvStep | None:
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
    return EnvStep(tree(layout, arrays), reward, none, none, diverged=none, at_once=none)


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
