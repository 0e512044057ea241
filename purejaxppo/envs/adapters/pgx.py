"""`pgx/`: MinAtar, 2048 and turn-based board games, https://github.com/sotetsuk/pgx.

A game of several players is a multi-agent task. At each step one agent moves. A waiting agent has
one allowed action, which is ignored. Without `network.policies`, all agents share one policy, which
learns by self-play. With the option `opponent`, the environment has one agent, on a random side for
each episode. The other players move at random or by a custom function, such as a trained agent.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.config import extensions
from purejaxppo.config.references import is_reference
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import MultiStep, TaskStep
from purejaxppo.envs.families import Family
from purejaxppo.envs.options import Option
from purejaxppo.envs.quiet import quiet
from purejaxppo.envs.teams import Team
from purejaxppo.spaces import MASK, Box, Dict, Discrete, Space, example

OPPONENT = "opponent"
"""Name of the option that trains one agent against other players."""
RANDOM = "random"
TIME_LIMITS = {
    "2048": 5_000,
    "minatar-asterix": 2_500,
    "minatar-breakout": 2_500,
    "minatar-freeway": 2_500,
    "minatar-seaquest": 2_500,
    "minatar-space_invaders": 2_500,
}
"""Time limits of single-player games."""
MAX_MOVES = {
    "animal_shogi": 256,
    "backgammon": 5_000,
    "chess": 512,
    "connect_four": 42,
    "gardner_chess": 256,
    "go_19x19": 722,
    "go_9x9": 162,
    "hex": 122,
    "kuhn_poker": 3,
    "leduc_holdem": 8,
    "othello": 128,
    "shogi": 512,
    "sparrow_mahjong": 30,
    "tic_tac_toe": 9,
}
"""Maximum number of moves of all players by the rules. For backgammon it is a time limit."""
EXPENSIVE_RESETS = frozenset(
    {"2048", "animal_shogi", "backgammon", "minatar-breakout", "minatar-freeway", "tic_tac_toe"}
)
"""Games whose reset costs a large part of a move. Others have a constant start or few moves."""
SHORT_GAMES = frozenset({"kuhn_poker", "leduc_holdem"})
"""Games of a few moves: each episode gets a fresh deal."""


def _opponent(name: str, value: Any) -> Any:
    """Return a value of the option `opponent`.

    Raises:
        ValueError: the value is neither `random` nor a reference.
    """
    if value != RANDOM and not is_reference(str(value)):
        raise ValueError(
            f"{name} = {value!r}: must be random, or a custom function as file.py:name"
        )
    return value


OPTIONS = {
    "use_minimal_action_set": Option(
        True, "MinAtar: offer only the actions that the game uses.", tasks=("minatar-*",)
    ),
    "sticky_action_prob": Option(
        0.1,
        "MinAtar: probability of repeating the last action.",
        low=0,
        high=1,
        tasks=("minatar-*",),
    ),
    OPPONENT: Option(
        None,
        "Multiplayer games: train one agent against this opponent, `random` or a function "
        "(key, obs [N, ...]) -> action [N] as file.py:name.",
        parse=_opponent,
        tasks=tuple(MAX_MOVES),
        refers="code",
    ),
}


def task_names() -> list[str]:
    """Return the task names."""
    return sorted(TIME_LIMITS | MAX_MOVES)


def make(name: str, config: EnvConfig) -> "SinglePlayer | MultiplayerGame | AgainstOpponent":
    """Create the game `name` from `config.options`; see `OPTIONS`.

    Raises:
        ValueError: the opponent cannot be loaded, or has another signature.
    """
    with quiet(("", Warning)):
        import pgx

        env = pgx.make(name)
    if name in TIME_LIMITS:
        env = type(env)(**config.options) if config.options else env
        return SinglePlayer(env, TIME_LIMITS[name])
    game = MultiplayerGame(env, MAX_MOVES[name])
    if OPPONENT not in config.options:
        return game
    opponent: Any = config.options[OPPONENT]
    if opponent == RANDOM:
        return AgainstOpponent(game)
    return AgainstOpponent(game, opponent)


def without_observation(state: Any) -> Any:
    """Return a pgx state without its observation, which every step recomputes."""
    return state.replace(observation=())


def _board(env: Any) -> Box:
    """Return the observation space of the board."""
    board = jax.eval_shape(env.init, jax.random.key(0)).observation
    bounds = (0.0, 1.0) if board.dtype == bool else (-np.inf, np.inf)
    return Box(tuple(board.shape), *bounds, str(board.dtype))


def _seen(env: Any, state: Any, player: jax.Array) -> jax.Array:
    """Return the board as a player sees it. In pgx, backgammon's is always that of the mover."""
    if env.id == "backgammon":
        from pgx.backgammon import _flip_board

        board = jnp.where(state.current_player == player, state._board, _flip_board(state._board))
        state = state.replace(_board=board)
    return env._observe(state, player)


def _frames(
    env: Any, states: Iterable[Any], height: int, width: int, player: int = 0
) -> Iterator[np.ndarray]:
    """Yield frames of pgx states: the planes of the board that a player observes."""
    from purejaxppo.video import charts

    observe = jax.jit(lambda state: _seen(env, state, jnp.int32(player)))
    boards = [jax.device_get(observe(state)) for state in states]
    return charts.frames(boards, height=height, width=width)


class SinglePlayer(BaseTask):
    """MinAtar or 2048. 2048 also observes a mask of allowed moves."""

    frame_rate = 10.0

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        """Wrap a single-player pgx environment."""
        self.env = env
        self.max_episode_steps = max_episode_steps
        self.cheap_reset = env.id not in EXPENSIVE_RESETS
        self.masked = not env.id.startswith("minatar-")
        self.action = Discrete(int(env.num_actions))
        self.observation: Space = _board(env)
        if self.masked:
            mask = Box((self.action.n,), 0.0, 1.0, "uint8")
            self.observation = Dict.of({"obs": self.observation, MASK: mask})

    def _obs(self, state: Any) -> Obs:
        if not self.masked:
            return state.observation
        return {"obs": state.observation, MASK: state.legal_action_mask.astype(jnp.uint8)}

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Start an episode; return (pgx state without its observation, obs)."""
        state = self.env.init(key)
        if self.env.id == "minatar-freeway":  # the time limit is outside, as in the other games
            state = state.replace(_terminate_timer=jnp.int32(2**30))
        return without_observation(state), self._obs(state)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Take a move."""
        state = self.env.step(state, action, key)
        reward = state.rewards[0].astype(jnp.int32)  # integers in all games: no divergence
        return without_observation(state), TaskStep(
            self._obs(state), reward, state.terminated, jnp.zeros((), bool)
        )

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames: the planes of the observation in colours."""
        return _frames(self.env, states, height, width)


class MultiplayerGame(BaseTask):
    """A game of A players as a multi-agent task of A agents; see the module docstring.

    An agent observes the board from the view of its player, and whether it is its turn. All agents
    get their reward at the last move. A draw by the number of moves is a termination, because it
    follows from the rules. In chess, the number is observed; in go and shogi it is not.
    """

    frame_rate = 2.0

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        """Wrap a multiplayer pgx environment."""
        self.env = env
        self.cheap_reset = env.id not in EXPENSIVE_RESETS
        self.max_episode_steps = max_episode_steps
        self.size = int(env.num_players)
        self.agents = tuple(f"player_{i}" for i in range(self.size))
        moves = Discrete(int(env.num_actions))
        parts: dict[str, Space] = {
            "board": _board(env),
            "turn": Discrete(2),
            MASK: Box((moves.n,), 0.0, 1.0, "uint8"),
        }
        self.action = (moves,) * self.size
        self.observation = (Dict.of(parts),) * self.size

    def observe(self, state: Any, player: jax.Array) -> dict[str, Any]:
        """Return the observation of a player, with its action mask."""
        turn = state.current_player == player
        only_first = jnp.zeros_like(state.legal_action_mask).at[0].set(True)
        return {
            "board": _seen(self.env, state, player),
            "turn": turn.astype(jnp.int32),
            MASK: jnp.where(turn, state.legal_action_mask, only_first).astype(jnp.uint8),
        }

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Start an episode; return (pgx state without its observation, A observations)."""
        state = without_observation(self.env.init(key))
        return state, tuple(self.observe(state, jnp.int32(i)) for i in range(self.size))

    def move(self, key: Key, state: Any, action: jax.Array) -> Any:
        """Return the pgx state after a move of the current player."""
        return without_observation(self.env.step(state, action, key))

    def step(
        self, key: Key, state: EnvState, action: tuple[EnvAction, ...]
    ) -> tuple[EnvState, MultiStep]:
        """Take the move of the current agent; the actions of the others are ignored."""
        state = self.move(key, state, jnp.stack(action)[state.current_player])
        obs = tuple(self.observe(state, jnp.int32(i)) for i in range(self.size))
        over = jnp.broadcast_to(state.terminated, (self.size,))
        return state, MultiStep(obs, state.rewards, over, jnp.zeros((), bool))

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames: the planes of the board, seen by the first player, in colours."""
        return _frames(self.env, states, height, width)


class Seated(NamedTuple):
    """State of a game with one agent."""

    game: Any  # the pgx state
    seat: jax.Array  # [] int32 player of the agent


class AgainstOpponent(BaseTask):
    """A game with one agent; an opponent, or random moves, plays the others.

    One step is one move of any player. Observations have the form of the multi-agent task, so a
    policy of self-play can also act here.
    """

    frame_rate = MultiplayerGame.frame_rate
    success_above = 0.0  # a win

    def __init__(self, game: MultiplayerGame, opponent: str = RANDOM) -> None:
        """Wrap a game.

        Args:
            game: the multi-agent task.
            opponent: reference to a function (key, obs [1, ...]) -> action [1], or `random` for
                random allowed moves.

        Raises:
            ValueError: the opponent cannot be loaded, or has another signature.
        """
        self.game = game
        self.cheap_reset = game.env.id in SHORT_GAMES  # a side is sampled for each start
        self.max_episode_steps = game.max_episode_steps
        team = Team.of(game.agents, game.observation, game.action)
        self.observation = team.row
        self.action = team.action
        self.opponent = None
        if opponent != RANDOM:
            self.opponent = extensions.load_function(
                extensions.OPPONENT,
                opponent,
                *(jax.random.key(0), example(self.observation, (1,))),
                expected=jax.ShapeDtypeStruct((1,), jnp.int32),
                field=f"env.options.{OPPONENT}",
            )

    def _row(self, game: Any, player: jax.Array) -> dict[str, Any]:
        """Return a player's view as the observation dict of one agent (agent, obs, action_mask)."""
        obs = self.game.observe(game, player)
        return {"agent": player, MASK: obs.pop(MASK), "obs": obs}

    def _others(self, key: Key, game: Any) -> jax.Array:
        """Return the move of the current player if it is not the agent."""
        if self.opponent is None:
            return jax.random.categorical(key, jnp.where(game.legal_action_mask, 0.0, -jnp.inf))
        row = self._row(game, game.current_player)
        return self.opponent(key, jax.tree.map(lambda x: x[None], row))[0]

    def reset(self, key: Key) -> tuple[Seated, dict[str, Any]]:
        """Start a game with the agent on a random side; return (state, obs)."""
        game_key, seat_key = jax.random.split(key)
        seat = jax.random.randint(seat_key, (), 0, self.game.size)
        game = without_observation(self.game.env.init(game_key))
        return Seated(game, seat), self._row(game, seat)

    def step(self, key: Key, state: Seated, action: EnvAction) -> tuple[Seated, TaskStep]:
        """Take a move of the agent or of another player."""
        move_key, others_key = jax.random.split(key)
        game, seat = state
        others = self._others(others_key, game)
        game = self.game.move(
            move_key, game, jnp.where(game.current_player == seat, action, others)
        )
        return Seated(game, seat), TaskStep(
            self._row(game, seat), game.rewards[seat], game.terminated, jnp.zeros((), bool)
        )

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames: the planes of the board, seen by the agent, in colours."""
        states = list(states)
        games, seat = [state.game for state in states], int(states[0].seat)
        return _frames(self.game.env, games, height, width, seat)


FAMILY = Family(
    about="MinAtar, 2048, board games in self-play",
    tasks=task_names,
    make_task=make,
    requires="pgx",
    options=OPTIONS,
)
