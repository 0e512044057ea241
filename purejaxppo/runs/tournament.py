"""Elo ratings of a run's checkpoints, from games against each other and a random player."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo import streams
from purejaxppo.agents.policy import Policy, at_matmul_precision
from purejaxppo.aliases import Array, Carry, Key, Obs
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.adapters.pgx import OPPONENT
from purejaxppo.envs.vectorize import VmapEnv
from purejaxppo.runs import elo
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.checkpoint import restore_all
from purejaxppo.runs.episodes import run_episodes
from purejaxppo.runs.folder import RATINGS
from purejaxppo.spaces import MASK
from purejaxppo.types import AgentState, PolicyStep

RANDOM = "random"
"""Name of the player that chooses allowed moves with equal probability."""
FAMILY = "pgx/"


def game_of(config: Config) -> Config:
    """Return a run's config in which agents play all sides of the game.

    Raises:
        ValueError: the task is not a game of two players.
    """
    name = str(config.env.name)
    options = {key: x for key, x in config.env.options.items() if key != OPPONENT}
    config = replace(config, env=replace(config.env, options=options))
    if name.startswith(FAMILY):
        players = registry.make(config.env, 1, evaluation=True).spec.num_agents
        if players == 2:
            return config
        name = f"{name}, which has {players} player{'s' if players > 1 else ''}"
    raise ValueError(
        f"--elo requires a pgx/ game of two players, such as pgx/connect_four, not {name}."
    )


class Match:
    """Games of two players. Each player moves first in half of the games.

    Actions are sampled, because all games of two deterministic players would be the same.

    Args:
        config: config of the run, from `game_of`.
        policy: policy of the agents.
        games: number of games, even.
    """

    def __init__(self, config: Config, policy: Policy, games: int) -> None:
        """Make the games. Nothing is compiled yet."""
        self.config = config
        self.policy = policy
        self.env = VmapEnv(registry.make(config.env, 1, evaluation=True), games)

    @at_matmul_precision
    def play(self, players: tuple[AgentState, AgentState], random: Array, key: Key) -> Array:
        """Return the number of games that player 0 has won, draws as halves, scalar.

        Args:
            players: the two agents.
            random: True for a player that moves at random instead, bool [2].
            key: random key; must not be reused by the caller.
        """
        games = self.env.count
        env_keys, keys = jax.random.split(key, (2, games))
        reset_result = self.env.reset(env_keys)
        first = reset_result[1]["obs"]["turn"] == 1
        # Rows are the sides 0 and 1 of a game, of the next game, and so on.
        even = jnp.arange(2 * games) // 2 % 2 == 0
        is_first_player = jnp.where(even, first, ~first)

        def act(keys: Key, carry: Carry, obs: Obs, start: Array) -> PolicyStep:
            player_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
            steps = [
                self._moves(agent, moves_at_random, *key_and_carry, obs, start)
                for agent, moves_at_random, *key_and_carry in zip(
                    players, random, player_keys, carry, strict=True
                )
            ]
            first_action, second_action = (step.env_action for step in steps)
            chosen = jnp.where(is_first_player, first_action, second_action)
            return steps[0]._replace(carry=tuple(s.carry for s in steps), env_action=chosen)

        def initial_carry(batch: tuple[int, ...]) -> Carry:
            return (self.policy.network.initial_carry(batch),) * 2

        returns = run_episodes(self.env, reset_result, act, initial_carry, keys).returns
        return jnp.sum(jnp.where(is_first_player, (jnp.sign(returns) + 1) / 2, 0.0))

    def _moves(self, agent: AgentState, random: Array, keys: Key, *inputs: Any) -> PolicyStep:
        """Choose the moves of one player for all rows."""
        step = self.policy.act_in_groups(agent, keys, *inputs)
        allowed = inputs[1][MASK].reshape(len(keys), 2, -1) > 0
        drawn = jax.vmap(jax.random.categorical)(keys, jnp.where(allowed, 0.0, -jnp.inf))
        return step._replace(env_action=jnp.where(random, drawn.ravel(), step.env_action))


def play_all(config: Config, agents: list[Agent], games: int, seed: int) -> np.ndarray:
    """Play the games of all pairs of players.

    Args:
        config: config of the run, from `game_of`.
        agents: P - 1 agents. Player 0 moves at random.
        games: number of games of each pair, even.
        seed: seed of games and moves.

    Returns:
        Games that player i has won against player j, draws as halves, float [P, P].
    """
    match = Match(config, agents[0].policy, games)
    play = jax.jit(match.play)
    states = [jax.device_get(agent.state) for agent in (agents[0], *agents)]
    key = streams.stream(jax.random.key(seed), streams.EVALUATE)
    score = np.zeros((len(states), len(states)))
    for number, (i, j) in enumerate(itertools.combinations(range(len(states)), 2)):
        random = np.array([i == 0, j == 0])
        pair_key = jax.random.fold_in(key, number)
        score[i, j] = play((states[i], states[j]), random, pair_key)
        score[j, i] = games - score[i, j]
    return score


def rate(
    run: str | Path,
    *,
    games: int = 100,
    member: int = -1,
    seed: int = 0,
    print_line: Callable[[str], object] = lambda line: None,
) -> str:
    """Rate the checkpoints of a run, and write elo.csv and elo.png into its folder.

    Args:
        run: the run folder.
        games: number of games of each pair of players, even.
        member: index of the agent to rate, in a run of several agents.
        seed: seed of games and moves.
        print_line: called with a line before the games.

    Returns:
        A table, as a string.

    Raises:
        ValueError: the run's task is not a game of two players, the run has no checkpoint, or it
            has several agents and none is selected.
    """
    folder = Path(run).absolute()
    agents = restore_all(folder)
    config = game_of(agents[0].config)
    agents = [agent if member == -1 else agent.member(member) for agent in agents]
    agents[0].check_single("--elo", str(run))
    count = len(agents)
    print_line(
        f"{config.env.name}: {count} checkpoints and a random player, {games} games for each of "
        f"{count * (count + 1) // 2} pairs, with sampled actions"
    )
    score = play_all(config, agents, games, seed)
    ratings = elo.ratings(score)
    steps = [agent.env_steps for agent in agents]
    rows = elo.table([RANDOM, *map(str, steps)], ratings, score)
    table, plot = (folder / name for name in RATINGS)
    elo.write_csv(rows, table)
    elo.plot(steps, ratings, plot, f"{config.env.name}: {games} games per pair")
    return "\n".join([elo.aligned(rows), *_notes(ratings, len(agents), run)])


def _notes(ratings: elo.Ratings, num_checkpoints: int, run: str | Path) -> Iterator[str]:
    """Yield the lines below the table."""
    yield "Elo points above the random player, with 95 % intervals. A draw counts as half a win."
    if not ratings.bounded:
        yield "One draw was added to each pair, because a player won all its games."
    if num_checkpoints < 3:
        flags = "a smaller --checkpoint.interval and --checkpoint.keep 20"
        yield f"The run has {num_checkpoints} checkpoints. Train with {flags} for more."
    yield f"written: {run}/elo.csv, {run}/elo.png"
