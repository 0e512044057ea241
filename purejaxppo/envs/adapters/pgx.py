"""`pgx/`: MinAtar, 2048, and games that players take turns in, https://github.com/sotetsuk/pgx.

A game of several players is a world of agents, of which one moves at each step; those who wait
have one allowed action, which nothing looks at. All agents share one policy unless
`network.policies` says otherwise, so that it learns from playing against itself. With the option
`opponent` the environment has one agent, in a seat drawn anew for each episode, and the others move
at random or as a user's function says, such as a saved agent.
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
"""The option that seats one agent among other players."""
RANDOM = "random"
TIME_LIMITS = {
    "2048": 5_000,
    "minatar-asterix": 2_500,
    "minatar-breakout": 2_500,
    "minatar-freeway": 2_500,
    "minatar-seaquest": 2_500,
    "minatar-space_invaders": 2_500,
}
"""Of single players. The simulator has one for freeway only, which it reports as a termination."""
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
"""The most moves of a game by its own rules, those of all players counted. Those of backgammon have
no such number: it has a time limit."""
EXPENSIVE_RESETS = frozenset(
    {"2048", "animal_shogi", "backgammon", "minatar-breakout", "minatar-freeway", "tic_tac_toe"}
)
"""Games whose start costs a good part of a move. All others' boards are set up alike, or their
games last for a few moves."""
SHORT_GAMES = frozenset({"kuhn_poker", "leduc_holdem"})
"""Games of a few moves, of which a rollout has many: each has a deal of its own."""


def _opponent(name: str, value: Any) -> Any:
    """Return a value of the option `opponent`.

    Raises:
        ValueError: it is neither `random` nor a reference.
    """
    if value != RANDOM and not is_reference(str(value)):
        raise ValueError(f"{name} = {value!r} must be random, or a custom function as file.py:name")
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
    """The game called `name`, with `OPTIONS`.

    Raises:
        ValueError: an opponent that cannot be loaded, or that does not fit.
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
    chosen: Any = config.options[OPPONENT]
    if chosen == RANDOM:
        return AgainstOpponent(game)
    return AgainstOpponent(game, chosen)


def _kind(env: Any) -> Any:
    """Shapes and dtypes of a game's state."""
    return jax.eval_shape(env.init, jax.random.key(0))


def without_observation(state: Any) -> Any:
    """A pgx state without its observation, which every step makes anew and nothing has to carry."""
    return state.replace(observation=())


def _board(env: Any) -> Box:
    """Space of what a player sees of the board."""
    seen = _kind(env).observation
    bounds = (0.0, 1.0) if seen.dtype == bool else (-np.inf, np.inf)
    return Box(tuple(seen.shape), *bounds, str(seen.dtype))


def _frames(
    env: Any, states: Iterable[Any], height: int, width: int, player: int = 0
) -> Iterator[np.ndarray]:
    """Frames of pgx states, which do not hold what a player observes of them."""
    from purejaxppo.video import charts

    observe = jax.jit(lambda state: env._observe(state, jnp.int32(player)))
    boards = [jax.device_get(observe(state)) for state in states]
    return charts.frames(boards, height=height, width=width)


class SinglePlayer(BaseTask):
    """MinAtar or 2048: an observation of the board, with a mask where not all moves are allowed."""

    frame_rate = 10.0

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        """Adapt a pgx environment of one player."""
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
        """A key -> (pgx state without its observation, obs)."""
        state = self.env.init(key)
        return without_observation(state), self._obs(state)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """One move; freeway's end is a time limit, and all others are the game's own."""
        state = self.env.step(state, action, key)
        timed = jnp.asarray(self.env.id == "minatar-freeway")
        reward = state.rewards[0].astype(jnp.int32)  # whole in all of them: nothing can diverge
        return without_observation(state), TaskStep(
            self._obs(state), reward, state.terminated & ~timed, state.terminated & timed
        )

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Frames: the planes of the observation in colours."""
        return _frames(self.env, states, height, width)


class MultiplayerGame(BaseTask):
    """A game of A players as a world of A agents; see the module.

    An agent observes the board as its player sees it, and whether it is its turn. The reward is
    paid to all agents at the move that ends the game. A draw by the number of moves, as in chess,
    is an end by the game's rules: a termination. Players of chess see the count; those of go and
    shogi do not.
    """

    frame_rate = 2.0

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        """Adapt a pgx environment of several players."""
        self.env = env
        self.cheap_reset = env.id not in EXPENSIVE_RESETS
        self.max_episode_steps = max_episode_steps
        self.size = int(env.num_players)
        self.agents = tuple(f"player_{i}" for i in range(self.size))
        moves = Discrete(int(env.num_actions))
        own: dict[str, Space] = {
            "board": _board(env),
            "turn": Discrete(2),
            MASK: Box((moves.n,), 0.0, 1.0, "uint8"),
        }
        self.action = (moves,) * self.size
        self.observation = (Dict.of(own),) * self.size

    def observe(self, state: Any, player: jax.Array) -> dict[str, Any]:
        """Observation of a pgx state by a player, and its mask."""
        turn = state.current_player == player
        only_first = jnp.zeros_like(state.legal_action_mask).at[0].set(True)
        return {
            "board": self.env._observe(state, player),
            "turn": turn.astype(jnp.int32),
            MASK: jnp.where(turn, state.legal_action_mask, only_first).astype(jnp.uint8),
        }

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """A key -> (pgx state without its observation, A observations)."""
        state = without_observation(self.env.init(key))
        return state, tuple(self.observe(state, jnp.int32(i)) for i in range(self.size))

    def move(self, key: Key, state: Any, action: jax.Array) -> Any:
        """The pgx state after the move of the player whose turn it is."""
        return without_observation(self.env.step(state, action, key))

    def step(
        self, key: Key, state: EnvState, action: tuple[EnvAction, ...]
    ) -> tuple[EnvState, MultiStep]:
        """One move, by the agent whose turn it is; the others' actions are not looked at."""
        state = self.move(key, state, jnp.stack(action)[state.current_player])
        obs = tuple(self.observe(state, jnp.int32(i)) for i in range(self.size))
        over = jnp.broadcast_to(state.terminated, (self.size,))
        return state, MultiStep(obs, state.rewards, over, jnp.zeros((), bool))

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Frames: the board's planes as the first player sees them, in colours."""
        return _frames(self.env, states, height, width)


class Seated(NamedTuple):
    """A game with one agent in it."""

    game: Any  # the pgx state
    seat: jax.Array  # [] int32 the agent's player


class AgainstOpponent(BaseTask):
    """A game of which the agent is one player, and another policy or chance is all others.

    One step is one move of anybody, and observations are those of a row of the world, so that a
    policy plays here as it does against itself.
    """

    frame_rate = MultiplayerGame.frame_rate
    success_above = 0.0  # a game that is won

    def __init__(self, game: MultiplayerGame, opponent: str = RANDOM) -> None:
        """Seat an agent in a game.

        Args:
            game: the world.
            opponent: reference to a function (key, obs [1, ...]) -> action [1]; random: allowed
                moves at random.

        Raises:
            ValueError: the opponent cannot be loaded, or is not such a function.
        """
        self.game = game
        self.cheap_reset = game.env.id in SHORT_GAMES  # a seat is drawn for each start
        self.max_episode_steps = game.max_episode_steps
        team = Team(
            game.agents,
            tuple(Dict(tuple(x for x in own.spaces if x[0] != MASK)) for own in game.observation),
            game.action,
            masked=True,
        )
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
        """A player's observation as a row of the world has it."""
        seen = self.game.observe(game, player)
        return {"agent": player, MASK: seen.pop(MASK), "obs": seen}

    def _others(self, key: Key, game: Any) -> jax.Array:
        """The move of the player whose turn it is, who is not the agent."""
        if self.opponent is None:
            return jax.random.categorical(key, jnp.where(game.legal_action_mask, 0.0, -jnp.inf))
        row = self._row(game, game.current_player)
        return self.opponent(key, jax.tree.map(lambda x: x[None], row))[0]

    def reset(self, key: Key) -> tuple[Seated, dict[str, Any]]:
        """A key -> (state, obs), in a seat drawn at random."""
        game_key, seat_key = jax.random.split(key)
        seat = jax.random.randint(seat_key, (), 0, self.game.size)
        game = without_observation(self.game.env.init(game_key))
        return Seated(game, seat), self._row(game, seat)

    def step(self, key: Key, state: Seated, action: EnvAction) -> tuple[Seated, TaskStep]:
        """One move: the agent's, or another player's."""
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
        """Frames of an episode: the board's planes as the agent sees them, in colours."""
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
