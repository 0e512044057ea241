"""Games of an engine as an environment: their options, the first game, and the batch of rows."""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.engines.images import first_image
from purejaxppo.envs.engines.process import EngineError
from purejaxppo.envs.host.bridge import HostEnv, Pool
from purejaxppo.envs.host.errors import MakeError, SimulatorError
from purejaxppo.envs.options import Option
from purejaxppo.envs.worlds import count_worlds
from purejaxppo.spaces import Space


def _arguments(name: str, value: Any) -> str:
    """Return command-line arguments of a game.

    Raises:
        ValueError: they are not a text, or a quote is not closed.
    """
    text: str = Option("", "").read(name, value)
    try:
        shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{name} = {text!r}: a quote is not closed") from error
    return text


OPTIONS = {
    "arguments": Option("", "Further arguments of the game's command line.", parse=_arguments),
    "show": Option(False, "Open a window, which needs a display."),
    "timeout": Option(60.0, "Seconds for a game to start, and for each answer.", low=1),
    "restarts": Option(3, "Number of times that games that fail are started again, in all.", low=0),
}
"""Options of all engines."""
NOT_OPTIONS = {
    "instances": (
        "unknown option. env.num_envs sets the number of games, and evaluations start at most as "
        "many more. If only one can run at a time, set eval.num_episodes = 0 and run purejaxppo "
        "evaluate after training"
    )
}


def port(default: int) -> Option:
    """Return the option of the port that the editor connects to."""
    return Option(default, "Port of the editor; games get free ones.", low=1, high=65_535)


class Agents(Protocol):
    """The agents of one game, as rows of common spaces."""

    @property
    def observation(self) -> Space:
        """Space of a row's observation."""

    @property
    def action(self) -> Space:
        """Space of a row's action."""

    @property
    def size(self) -> int:
        """The number of rows of a game, A."""

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, if rows observe which `agent` they are."""


class Closing(Protocol):
    """A game or games that run."""

    def close(self) -> None:
        """Ends them."""


G = TypeVar("G", bound=Closing)
L = TypeVar("L", bound=Agents)


class First(Generic[G, L]):
    """The first game of each kind, which is started to read its agents.

    An environment takes the game over if it needs it.
    """

    def __init__(self) -> None:
        """Starts no game yet."""
        self._agents: dict[Any, L] = {}
        self._editor: list[G] = []  # its game, while it is connected and no pool has it

    def read(
        self, key: Any, start: Callable[[], tuple[G, L]], *, editor: bool, keep: bool
    ) -> tuple[L, list[G]]:
        """Returns the agents of a game, and a list of the game if it runs unused.

        Args:
            key: of the kind of game, whose agents are read once.
            start: starts a game and reads its agents.
            editor: the game runs in the editor, and cannot be started again: it is always kept.
            keep: leave the game running.
        """
        unused: list[G] = self._editor if editor else []
        if key not in self._agents or (editor and not unused):
            game, self._agents[key] = start()
            if keep or editor:
                unused.append(game)
            else:
                game.close()
        return self._agents[key], unused


class GameEnv(HostEnv):
    """Agents of several games.

    Args:
        make_games: (number of games, see `HostEnv.continue_at`, a running game or None) -> pool.
        agents: of each game.
        count: number of games.
        unused: games that were started for a run's beginning, until a pool takes them over.
        editor: the game runs in the editor.
        absent: see `HostEnv`.
        channels_first: images that agents observe are [C, H, W].
    """

    def __init__(
        self,
        make_games: Callable[[int, int, Any], Pool],
        agents: Agents,
        count: int,
        unused: list[Any],
        *,
        editor: bool,
        absent: bool = False,
        channels_first: bool = False,
    ) -> None:
        """Prepares the batch."""
        self._unused, self._channels_first = unused, channels_first

        def make_pool(rows: int, update: int) -> Pool:
            if update and unused and not editor:  # other episodes than at the beginning
                unused.pop().close()
            return make_games(rows // agents.size, update, unused.pop() if unused else None)

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

    def shown(self, obs: Any) -> Any:
        """The first image that agent 0 observes, uint8 [H, W, 3], or else its observation."""
        image = first_image(obs, channels_first=self._channels_first)
        return obs if image is None else image

    def close(self) -> None:
        """Ends the games; programs that were compiled with them must not run again."""
        super().close()
        close_unused(self._unused)


def close_unused(unused: list[Any]) -> None:
    """Ends games that no pool has taken over."""
    while unused:
        unused.pop().close()


def count_games(
    config: EnvConfig, agents: Agents, unused: list[Any], num_envs: int, *, evaluation: bool
) -> int:
    """The number of games that have `num_envs` rows; ends the first game if there is none.

    Raises:
        ValueError: N rows are not a whole number of games.
    """
    try:
        return count_worlds(config, agents.size, num_envs, evaluation=evaluation)
    except ValueError:
        close_unused(unused)
        raise


@contextlib.contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Names the environment in errors of its games.

    Raises:
        SimulatorError: in place of an EngineError.
    """
    try:
        yield
    except EngineError as error:
        raise SimulatorError(f"{name}: {error}") from error
    except MakeError as error:
        raise MakeError(f"{name}: {error}") from error
