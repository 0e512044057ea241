"""Elo ratings: by hand, against a general optimiser, and for the saved agents of a small run."""

import csv
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from support.runs import error_of

from purejaxppo.cli.evaluate import main
from purejaxppo.cli.train import main as train
from purejaxppo.config.files import load_config
from purejaxppo.envs import registry
from purejaxppo.runs import elo
from purejaxppo.runs.checkpoint import restore
from purejaxppo.runs.library import load
from purejaxppo.runs.tournament import Match, game_of


def scores(pairs, size):
    """Return a table [P, P] of the games won, from {(i, j): (won by i, won by j)}."""
    score = np.zeros((size, size))
    for (i, j), (won, lost) in pairs.items():
        score[i, j], score[j, i] = won, lost
    return score


@pytest.mark.toy
def test_winning_three_of_four_games_gives_191_points():
    # 400 log10(75 / 25) = 190.85; the information is 100 * 0.75 * 0.25 = 18.75.
    found = elo.ratings(scores({(0, 1): (25, 75)}, 2))
    np.testing.assert_allclose(found.elo, [0, 400 * math.log10(3)], atol=1e-6)
    np.testing.assert_allclose(found.elo[1], 190.8485, atol=1e-4)
    np.testing.assert_allclose(found.error, [0, 173.7178 / math.sqrt(18.75)], atol=1e-3)
    assert found.bounded


@pytest.mark.toy
def test_draws_count_half():
    # 60 won, 30 drawn, 10 lost are 75 of 100.
    found = elo.ratings(scores({(0, 1): (10 + 15, 60 + 15)}, 2))
    np.testing.assert_allclose(found.elo[1], 400 * math.log10(3), atol=1e-6)


@pytest.mark.toy
def test_ratings_maximise_the_likelihood():
    rng = np.random.default_rng(0)
    strength = np.array([0.0, 0.5, 2.0, 1.2, 3.0])
    score = np.zeros((5, 5))
    for i, j in itertools.combinations(range(5), 2):
        chance = 1 / (1 + math.exp(strength[j] - strength[i]))
        score[i, j] = rng.binomial(40, chance) + 0.5
        score[j, i] = 41 - score[i, j]

    def loss(x):
        x = np.concatenate([[0.0], x])
        return sum(
            score[i, j] * np.logaddexp(0, x[j] - x[i])
            for i, j in itertools.permutations(range(5), 2)
        )

    best = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-8})
    found = elo.ratings(score)
    np.testing.assert_allclose(found.elo[1:], best.x * 400 / math.log(10), atol=0.01)
    step = 1e-3 * np.eye(4)
    curvature = [
        [
            sum(a * b * loss(best.x + a * u + b * v) for a in (-1, 1) for b in (-1, 1)) / 4e-6
            for u in step
        ]
        for v in step
    ]
    error = np.sqrt(np.diag(np.linalg.inv(curvature))) * 400 / math.log(10)
    np.testing.assert_allclose(found.error[1:], error, rtol=1e-3)


@pytest.mark.toy
def test_confidence_intervals_contain_the_true_rating_19_times_in_20():
    rng = np.random.default_rng(0)
    strength = np.array([0.0, 0.7, 1.5])
    inside = []
    for _ in range(400):
        score = np.zeros((3, 3))
        for i, j in itertools.combinations(range(3), 2):
            score[i, j] = rng.binomial(100, 1 / (1 + math.exp(strength[j] - strength[i])))
            score[j, i] = 100 - score[i, j]
        found = elo.ratings(score)
        away = np.abs(found.elo - elo.POINTS * strength) / np.maximum(found.error, 1e-9)
        inside.append(away[1:] < elo.CONFIDENT)
    assert 0.92 < np.mean(inside) < 0.98


@pytest.mark.toy
def test_winning_every_game_gives_a_finite_rating_by_adding_a_draw_to_each_pair():
    found = elo.ratings(scores({(0, 1): (0, 100)}, 2))
    assert not found.bounded
    np.testing.assert_allclose(found.elo[1], 400 * math.log10(100.5 / 0.5), atol=1e-3)
    # A chain of wins from the weakest to the strongest is enough.
    chain = {(0, 1): (1, 99), (0, 2): (0, 100), (1, 2): (1, 99)}
    assert elo.ratings(scores(chain, 3)).bounded


FLAGS = [
    *["--config", "connect_four", "--env.name", "pgx/tic_tac_toe", "--env.num_envs", "16"],
    *["--network.hidden", "8", "--ppo.rollout_length", "16", "--ppo.num_minibatches", "2"],
    *["--total_timesteps", "1024", "--eval.num_episodes", "2", "--logging.no_tensorboard"],
    *["--checkpoint.interval", "256", "--checkpoint.keep", "10"],
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run of tic-tac-toe against itself."""
    pytest.importorskip("pgx")
    folder = tmp_path_factory.mktemp("elo") / "ttt"
    assert train([*FLAGS, "--run_dir", str(folder)]) == 0
    return folder


def test_the_saved_agents_of_a_run_are_rated(run, capsys):
    assert main(["--run", str(run), "--elo", "--episodes", "20"]) == 0
    out = capsys.readouterr().out
    with open(run / "elo.csv") as file:
        rows = list(csv.DictReader(file))
    saved = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    assert len(saved) >= 4
    assert [row["player"] for row in rows] == ["random", *map(str, saved)]
    assert {row["games"] for row in rows} == {str(20 * len(saved))}
    assert float(rows[0]["elo"]) == 0
    assert all(float(r["low"]) <= float(r["elo"]) <= float(r["high"]) for r in rows)
    np.testing.assert_allclose(np.mean([float(row["score"]) for row in rows]), 0.5, atol=1e-3)
    assert all(row["elo"] in out for row in rows)
    assert (run / "elo.png").stat().st_size > 1000


def test_equal_players_win_equally_often_and_each_starts_half_of_the_games(run):
    agent = restore(run, "last")
    match = Match(game_of(agent.config), agent.policy, 400)
    play = jax.jit(match.play)
    key = jax.random.key(0)
    random, never = np.array([True, True]), np.array([False, False])
    both = agent.state, agent.state
    # A game's points have a standard deviation of at most 0.5: 400 games 10.
    assert abs(play(both, random, key) - 200) < 35
    assert abs(play(both, never, key) - 200) < 35
    assert play(both, random, key) != play(both, random, jax.random.key(1))


def test_a_player_who_looks_one_move_ahead_beats_a_random_one(run, monkeypatch):
    agent = restore(run, "last")
    policy = agent.policy
    match = Match(game_of(agent.config), policy, 100)
    apart = policy.act_in_groups

    def wins(state, keys, carry, obs, start):
        """Complete a row of three if possible, otherwise move as the agent."""
        step = apart(state, keys, carry, obs, start)
        board, allowed = obs["obs"]["board"], obs["action_mask"] > 0
        own = board[..., 0].reshape(-1, 9)
        lines = jnp.array(
            [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]]
        )
        after = own[:, None, :] | jnp.eye(9, dtype=bool)
        done = allowed & jnp.any(jnp.all(after[:, :, lines], axis=-1), axis=-1)
        action = jnp.where(done.any(-1), jnp.argmax(done, -1), step.env_action)
        return step._replace(env_action=action)

    monkeypatch.setattr(policy, "act_in_groups", wins)
    won = jax.jit(match.play)((agent.state,) * 2, np.array([False, True]), jax.random.key(0))
    assert won > 65
    lost = jax.jit(match.play)((agent.state,) * 2, np.array([True, False]), jax.random.key(0))
    assert lost < 35


def test_an_impossible_rating_gets_a_one_sentence_error(run, capsys, tmp_path):
    def message(*flags):
        assert main([*map(str, flags)]) == 2
        return error_of(capsys)

    assert "must be even" in message("--run", run, "--elo", "--episodes", 3)
    for games in (0, 3, 2.5, "4"):
        with pytest.raises(ValueError, match=r"^games = .*: must be even and at least 2, because"):
            load(run).elo(games)
    assert "Remove --checkpoint" in message("--run", run, "--elo", "--checkpoint", "last")
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    assert "no checkpoint has been saved yet" in message("--run", tmp_path, "--elo")
    for name, players in (
        ("gymnax/CartPole-v1", "gymnax/CartPole-v1"),
        ("pgx/2048", "not pgx/2048, which has 1 player"),
    ):
        config = load_config(run / "config.yaml", {"env.name": name}, saved=True)
        with pytest.raises(ValueError, match=r"game of two players.*" + players):
            game_of(config)


def test_rating_games_ignore_the_opponent_of_training(run):
    overrides = {"env.options": {"opponent": "random"}}
    config = load_config(run / "config.yaml", overrides, saved=True)
    spec = registry.make(game_of(config).env, 1, evaluation=True).spec
    assert spec.num_agents == 2
