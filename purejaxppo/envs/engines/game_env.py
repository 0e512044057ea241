"""Games of an engine as an environment: their options, the first game, and the batch of rows."""

import contextlib
import functools
import shlex
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol, TypeVar

from purejaxppo.envs.engines.images import first_image
from purejaxppo.envs.engines.process import EngineError, Game
from purejaxppo.envs.host.bridge import HostEnv, Pool
from purejaxppo.envs.host.workers.errors import MakeError, SimulatorError
from purejaxppo.envs.options import Option
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
    "timeout": Option(60.0, "Time limit in seconds, of a game's start and of each answer.", low=1),
    "restarts": Option(3, "Largest number of restarts of failed games, over all games.", low=0),
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


G = TypeVar("G", bound=Game)
L = TypeVar("L", bound=Agents)


class GameEnv(HostEnv):
    """Agents of several games.

    Args:
        make_games: (number of games, see `HostEnv.continue_at`) -> pool.
        agents: of each game.
        count: number of games.
        waiting: the game in the editor while no pool uses it, otherwise empty; `close` ends it.
        absent: see `HostEnv`.
        channels_first: images that agents observe are [C, H, W].
    """

    def __init__(
        self,
        make_games: Callable[[int, int], Pool],
        agents: Agents,
        count: int,
        waiting: list[Any],
        *,
        absent: bool = False,
        channels_first: bool = False,
    ) -> None:
        """Prepares the batch."""
        self._waiting, self._channels_first = waiting, channels_first
        super().__init__(
            lambda rows, update: make_games(rows // agents.size, update),
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
        while self._waiting:
            self._waiting.pop().close()


def described(game: G, describe: Callable[[G], L]) -> L:
    """Return the agents of a started game; end the game if that fails."""
    try:
        return describe(game)
    except BaseException:
        game.kill()  # and keep its log
        raise


def in_editor(
    launch: Hashable, start: Callable[[], G], describe: Callable[[G], L]
) -> tuple[L, list[G]]:
    """The agents of the game in an engine's editor, and a list of that game.

    This process cannot start the editor. So its game stays connected until an environment takes it
    from the list.

    Args:
        launch: how games are started.
        start: begins to wait for the game.
        describe: reads its agents.
    """
    waiting = _waiting(launch)
    game = waiting.pop() if waiting else start()
    agents = described(game, describe)
    waiting.append(game)
    return agents, waiting


@functools.cache
def _waiting(launch: Hashable) -> list[Any]:
    """The game in the editor while no environment uses it: a list of at most one."""
    del launch
    return []


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
