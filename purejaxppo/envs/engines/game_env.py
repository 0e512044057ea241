"""Games of an engine as an environment: options, the first game, and the batch of rows."""

import contextlib
import functools
import shlex
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.engines.images import first_image
from purejaxppo.envs.engines.process import EngineError, Game
from purejaxppo.envs.host.bridge import HostEnv, Pool
from purejaxppo.envs.host.workers.errors import MakeError, SimulatorError
from purejaxppo.envs.options import Option
from purejaxppo.envs.worlds import count_worlds
from purejaxppo.spaces import Space


def _arguments(name: str, value: Any) -> str:
    """Return command-line arguments of a game.

    Raises:
        ValueError: the value is not a string, or a quote is not closed.
    """
    text: str = Option("", "").read(name, value)
    try:
        shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{name} = {text!r}: a quote is not closed. Close it.") from error
    return text


OPTIONS = {
    "arguments": Option("", "Additional command-line arguments of the game.", parse=_arguments),
    "show": Option(False, "Show the game in a window. Needs a display."),
    "timeout": Option(
        60.0,
        "Seconds to wait until a game starts, and for each of its replies.",
        low=1,
        high=1_000_000,
    ),
    "restarts": Option(3, "Maximum number of restarts of failed games, in total.", low=0),
}
"""Options of all engines."""
FREE_OPTIONS = ("port", "restarts", "show", "timeout")
"""Options of all engines that do not affect results."""
NOT_OPTIONS = {
    "instances": (
        "unknown option. env.num_envs sets the number of games. Evaluations start at most as many "
        "more games. If only one game can run at a time, set eval.num_episodes = 0 and run "
        "purejaxppo evaluate after training."
    )
}


def port(default: int) -> Option:
    """Return the option for the port that the editor connects to."""
    return Option(
        default, "Port for the editor. Games that are started get free ports.", low=1, high=65_535
    )


class Agents(Protocol):
    """Agents of one game as rows with common spaces."""

    @property
    def observation(self) -> Space:
        """Observation space of one agent."""

    @property
    def action(self) -> Space:
        """Action space of one agent."""

    @property
    def size(self) -> int:
        """Number of rows of a game, A."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the agents if rows observe the index `agent`."""


G = TypeVar("G", bound=Game)
L = TypeVar("L", bound=Agents)


class GameEnv(HostEnv):
    """Agents of several games.

    Args:
        make_games: (number of games, update as in `HostEnv.continue_at`) -> pool.
        agents: the agents of each game.
        count: number of games.
        started: a list with the first game, until a pool takes it; `close` ends it.
        editor: the game runs in the editor.
        absent: see `HostEnv`.
        channels_first: observed images are [C, H, W].
    """

    def __init__(
        self,
        make_games: Callable[[int, int], Pool],
        agents: Agents,
        count: int,
        started: list[Any],
        *,
        editor: bool,
        absent: bool = False,
        channels_first: bool = False,
    ) -> None:
        """Store the description."""
        self.agents_of_game = agents
        self._started, self._channels_first = started, channels_first

        def make_pool(rows: int, update: int) -> Pool:
            if update and not editor:  # a continued run starts other episodes
                close_games(started)
            return make_games(rows // agents.size, update)

        super().__init__(
            make_pool,
            agents.observation,
            agents.action,
            num_envs=count * agents.size,
            max_episode_steps=0,
            num_agents=agents.size,
            agents=agents.names,
            absent=absent,
        )

    def observation_frame(self, obs: Any) -> Any:
        """Return the first image in the observation of agent 0, uint8 [H, W, 3].

        Return the observation itself if it contains no image.
        """
        image = first_image(obs, channels_first=self._channels_first)
        return obs if image is None else image

    def close(self) -> None:
        """End the games. Programs compiled with them must not run again."""
        super().close()
        close_games(self._started)


@dataclass
class KnownGame:
    """Information of this process about games that are started with the same command."""

    agents: Any = None
    """Agents of each of these games; None until a game was read."""
    editor: list[Any] = field(default_factory=list)
    """The connected game in the editor until an environment takes it; at most one."""


@functools.cache
def _known_game(launch: Hashable) -> KnownGame:
    """Return the shared record of a game. Its agents are read once per process."""
    del launch
    return KnownGame()


def forget_agents(launch: Hashable) -> None:
    """Read the agents of a game again at the next call of `read_agents`."""
    _known_game(launch).agents = None


def read_agents(
    launch: Hashable,
    start: Callable[[], G],
    describe: Callable[[G], L],
    *,
    editor: bool,
    keep: bool,
) -> tuple[L, list[G]]:
    """Return the agents of a game, and a list with the game that was started to read them.

    The list is empty if the agents were known. The first pool of the caller's environment takes the
    game from it. The editor's game cannot be restarted from here. It stays connected, in a list
    that environments share, until one of them takes over the game.

    Args:
        launch: settings to start games.
        start: starts a game, or begins to wait for the editor.
        describe: reads the agents of a game.
        editor: the game runs in the editor.
        keep: return the game; False: end it, unless it is the editor's.
    """
    record = _known_game(launch)
    started: list[G] = record.editor if editor else []
    if record.agents is None or (editor and not started):
        game = start()
        try:
            record.agents = describe(game)
        except BaseException:
            game.kill()  # and keep its log
            raise
        if keep or editor:
            started.append(game)
        else:
            game.close()
    return record.agents, started


def count_games(
    config: EnvConfig,
    agents: Agents,
    started: list[Any],
    num_envs: int,
    *,
    evaluation: bool,
    editor: bool,
) -> int:
    """Return the number of games with `num_envs` rows. End the first game if N is invalid.

    Raises:
        ValueError: N is not a multiple of the rows of a game, or needs several games of an editor.
    """
    try:
        count = count_worlds(config, agents.size, num_envs, evaluation=evaluation)
    except ValueError:
        close_games(started)
        raise
    if editor and count > 1:  # the editor's game stays for the next call
        raise ValueError(
            f"env.num_envs = {config.num_envs} needs {count} games, but the editor runs only one. "
            f"Use env.num_envs = {config.num_envs // count}."
        )
    return count


def close_games(started: list[Any]) -> None:
    """Close games that were started but never handed to a pool."""
    while started:
        started.pop().close()


@contextlib.contextmanager
def game_errors(name: str) -> Iterator[None]:
    """Add the environment's name to errors of its games.

    Raises:
        SimulatorError: the block raised an EngineError.
    """
    try:
        yield
    except EngineError as error:
        raise SimulatorError(f"{name}: {error}") from error
    except MakeError as error:
        raise MakeError(f"{name}: {error}") from error
