"""Games of pgx by hand: turns, rewards and ends."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.stepping import KEY

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.adapters import pgx as adapter
from purejaxppo.parts import make_parts
from purejaxppo.rollout import collect, init_rollout
from purejaxppo.runs.evaluation import Evaluator, evaluation_env
from purejaxppo.setup import resolve
from purejaxppo.video import canvas

pgx = pytest.importorskip("pgx")

FULL = pytest.mark.full
GAMES = 32


def make(name, rows=2, **options):
    return registry.make(EnvConfig(name, num_envs=rows, options=options), rows)


@pytest.fixture(scope="module")
def tic_tac_toe():
    """Return (reset, step) of one game of two rows."""
    env = make("pgx/tic_tac_toe")
    return jax.jit(env.reset), jax.jit(partial(env.step, KEY))


def play(game, moves, key):
    """Return (first player, last step) of a game with these moves. Both rows get the move."""
    reset, step = game
    state, obs = reset(key)
    begins = int(jnp.argmax(obs["obs"]["turn"]))
    out = None
    for i, move in enumerate(moves):
        if out is not None:
            assert not np.any(out.reward) and not np.any(out.terminated)
            obs = out.obs
        mover = (begins + i) % 2
        np.testing.assert_array_equal(obs["obs"]["turn"], np.arange(2) == mover)
        np.testing.assert_array_equal(obs["action_mask"][1 - mover], np.arange(9) == 0)
        assert obs["action_mask"][mover, move] == 1
        # The action of the waiting player is ignored, even if it is illegal.
        actions = np.where(np.arange(2) == mover, move, moves[0])
        state, out = step(state, jnp.asarray(actions, jnp.int32))
        assert np.all(out.valid)
    _, reset_row = step(state, jnp.zeros(2, jnp.int32))
    assert not np.any(reset_row.valid) and not np.any(reset_row.obs["obs"]["board"])
    return begins, out


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_three_in_a_row_gives_1_to_the_winner_and_minus_1_to_the_other(tic_tac_toe, seed):
    begins, out = play(tic_tac_toe, [0, 3, 1, 4, 2], jax.random.key(seed))
    np.testing.assert_array_equal(out.reward, np.where(np.arange(2) == begins, 1, -1))
    assert np.all(out.terminated) and not np.any(out.truncated)
    own, others = out.obs["obs"]["board"][begins].reshape(9, 2).T
    np.testing.assert_array_equal(np.flatnonzero(own), [0, 1, 2])
    np.testing.assert_array_equal(np.flatnonzero(others), [3, 4])


def test_the_second_player_can_win_and_each_player_sees_its_own_side(tic_tac_toe):
    begins, out = play(tic_tac_toe, [0, 3, 1, 4, 8, 5], jax.random.key(0))
    np.testing.assert_array_equal(out.reward, np.where(np.arange(2) == begins, -1, 1))
    boards = out.obs["obs"]["board"]
    np.testing.assert_array_equal(boards[0], boards[1][..., ::-1])


def test_a_full_board_is_a_draw_that_terminates(tic_tac_toe):
    _, out = play(tic_tac_toe, [0, 1, 2, 4, 3, 5, 7, 6, 8], jax.random.key(0))
    assert not np.any(out.reward)
    assert np.all(out.terminated) and not np.any(out.truncated)


def test_either_agent_may_move_first(tic_tac_toe):
    first = [tic_tac_toe[0](jax.random.key(i))[1] for i in range(8)]
    assert {int(jnp.argmax(obs["obs"]["turn"])) for obs in first} == {0, 1}


@pytest.fixture(scope="module")
def rollout(make_config):
    """Rows [T, N] of `GAMES` games of Connect Four of an untrained policy against itself."""
    config = make_config(
        env={"name": "pgx/connect_four", "num_envs": 2 * GAMES}, network={"encoder": "mlp"}
    )
    parts = make_parts(config)
    policy, env = parts.policy, parts.env

    @jax.jit
    def run(key):
        agent = policy.init(key)
        state = init_rollout(env, policy.network.initial_carry, key)
        return collect(env, lambda *now: policy.act(agent, *now), state, key, 100).transitions

    return jax.device_get(run(jax.random.key(0)))


def test_sampled_moves_are_legal_and_waiting_has_probability_1(rollout):
    mask, turn = rollout.obs["action_mask"], rollout.obs["obs"]["turn"] == 1
    assert np.all(np.take_along_axis(mask, rollout.action[..., None], -1) == 1)
    waits = rollout.valid & ~turn
    assert waits.sum() > 1000
    assert np.all(mask[waits].sum(-1) == 1)
    assert np.all(rollout.action[waits] == 0)
    np.testing.assert_array_equal(rollout.log_prob[waits], 0.0)
    assert np.all(rollout.log_prob[rollout.valid & turn & (mask.sum(-1) > 1)] < 0)


def test_one_of_two_agents_has_the_turn_and_rewards_sum_to_zero(rollout):
    by_game = [x.reshape(-1, GAMES, 2) for x in (rollout.obs["obs"]["turn"], rollout.reward)]
    over = rollout.terminated.reshape(-1, GAMES, 2)
    before = rollout.valid.reshape(-1, GAMES, 2)[..., 0]
    assert np.all(by_game[0].sum(-1)[before] == 1)
    np.testing.assert_array_equal(by_game[1].sum(-1), 0)
    assert np.abs(by_game[1]).sum() > 0
    np.testing.assert_array_equal(over[..., 0], over[..., 1])
    assert np.all(by_game[1][~over] == 0) and not np.any(rollout.truncated)


def test_a_random_opponent_makes_legal_moves_from_either_side():
    task = registry.make_task(EnvConfig("pgx/connect_four", options={"opponent": "random"}))

    @jax.jit
    @jax.vmap
    def games(key):
        state, obs = task.reset(key)

        def step(now, key):
            state, obs, over = now
            first_free = jnp.argmax(obs["action_mask"])
            state, out = task.step(key, state, first_free)
            row = obs["obs"]["turn"], obs["obs"]["board"].sum(), ~over, out.reward, out.terminated
            return (state, out.obs, over | out.terminated), row

        keys = jax.random.split(key, 43)
        return obs["agent"], jax.lax.scan(step, (state, obs, jnp.bool_(False)), keys)[1]

    seat, (turn, stones, going, reward, over) = jax.device_get(
        games(jax.random.split(jax.random.key(0), 50))
    )
    assert set(seat) == {0, 1} and set(turn[:, 0]) == {0, 1}
    for n in range(50):
        length = going[n].sum()
        assert length <= 42 and over[n, length - 1]
        # One stone per move, in turns: in pgx an illegal move loses without placing a stone.
        np.testing.assert_array_equal(stones[n, :length], np.arange(length))
        np.testing.assert_array_equal(turn[n, :length], (turn[n, 0] + np.arange(length)) % 2)
        assert not np.any(reward[n, : length - 1])
    won = [reward[n, going[n].sum() - 1] for n in range(50)]
    assert set(won) >= {-1.0, 1.0}


def last_allowed(key, obs):
    """Return the legal move with the highest number, as a custom opponent."""
    mask = obs["action_mask"]
    return (mask.shape[-1] - 1 - jnp.argmax(mask[..., ::-1], axis=-1)).astype(jnp.int32)


@pytest.fixture
def own():
    """Return a function: the name of an opponent in this file -> its reference."""
    return lambda name: f"{__file__}:{name}"


def test_a_custom_function_can_be_the_opponent(own):
    config = EnvConfig("pgx/tic_tac_toe", options={"opponent": own("last_allowed")})
    task = registry.make_task(config)
    step, first = jax.jit(task.step), []
    state, obs = jax.jit(task.reset)(jax.random.key(0))
    while True:
        turn, free = int(obs["obs"]["turn"]), np.flatnonzero(~obs["obs"]["board"].any(-1).ravel())
        before = obs["obs"]["board"]
        state, out = step(jax.random.key(0), state, jnp.argmax(obs["action_mask"]))
        (placed,) = np.flatnonzero((out.obs["obs"]["board"] != before).any(-1).ravel())
        assert placed == (free[0] if turn else free[-1])
        first.append(turn)
        obs = out.obs
        if out.terminated:
            break
    # From the ends: 0, 8, 1, 7, 2 for the first player.
    assert len(first) == 5 and abs(out.reward) == 1 and (out.reward == 1) == bool(first[0])


def three(key):
    """A function that is not a valid opponent."""


@pytest.mark.parametrize(
    ("name", "message"),
    [("three", r"takes \(key\). It must take"), ("nobody", "nobody"), ("GAMES", "is a int")],
)
def test_an_invalid_opponent_is_rejected(own, name, message):
    with pytest.raises(ValueError, match=message):
        registry.make_task(EnvConfig("pgx/tic_tac_toe", options={"opponent": own(name)}))


def test_evaluations_can_have_their_own_opponent(make_config):
    env = {"name": "pgx/tic_tac_toe", "num_envs": 4}
    config = make_config(env=env, eval={"options": {"opponent": "random"}})
    assert config.env.options == {}
    assert evaluation_env(config).options == {"opponent": "random"}
    parts = make_parts(config)
    assert parts.env.spec.num_agents == 2
    evaluator = Evaluator(resolve(config), parts.policy, 6)
    assert evaluator.env.spec.num_agents == 1
    agent = jax.jit(parts.policy.init)(jax.random.key(0))
    returns, lengths, *_ = jax.jit(evaluator.evaluate)(agent, jax.random.key(1))
    assert returns.shape == (6,) and set(np.asarray(returns)) <= {-1.0, 0.0, 1.0}
    assert np.all((lengths >= 5) & (lengths <= 9))


@pytest.mark.toy
def test_errors_of_evaluation_options_name_eval_options(make_config):
    env = {"name": "pgx/tic_tac_toe", "num_envs": 4}
    config = make_config(env=env, eval={"options": {"opponent": "nobody"}})
    with pytest.raises(ValueError, match=r"in evaluations: eval\.options\.opponent"):
        Evaluator(resolve(config), make_parts(config).policy, 2)


@pytest.mark.toy
def test_evaluation_options_must_keep_the_spaces_of_training(make_config):
    config = make_config(
        env={"name": "dummy/choices", "options": {"kind": "discrete"}},
        eval={"options": {"kind": "hybrid"}},
    )
    with pytest.raises(ValueError, match=r"eval\.options: with these options the task's action"):
        Evaluator(resolve(config), make_parts(config).policy, 2)


def test_the_limit_of_freeway_is_that_of_the_config_and_a_lost_ball_terminates():
    key = jax.random.key(0)
    env = registry.make(EnvConfig("pgx/minatar-freeway", num_envs=1, max_episode_steps=2600), 1)

    @jax.jit
    def run(key):
        def step(state, key):
            state, out = env.step(key, state, jnp.zeros(1, jnp.int32))
            return state, (out.terminated[0], out.truncated[0])

        return jax.lax.scan(step, env.reset(key)[0], jax.random.split(key, 2600))[1]

    terminated, truncated = run(key)
    assert not terminated.any() and np.flatnonzero(truncated).tolist() == [2599]

    config = EnvConfig("pgx/minatar-breakout", options={"sticky_action_prob": 0.0})
    task = adapter.make("minatar-breakout", config)
    state, _ = task.reset(key)
    step = jax.jit(task.step)
    for _ in range(30):
        state, out = step(key, state, 0)
        if out.terminated:
            break
    assert out.terminated and not out.truncated


def test_each_player_of_backgammon_sees_the_board_from_its_own_side():
    """White men are positive: those of the observer."""
    task = adapter.make("backgammon", EnvConfig("pgx/backgammon"))
    key = jax.random.key(3)
    state, obs = task.reset(key)
    step = jax.jit(task.step)
    movers = set()
    for i in range(12):
        mover = int(state.current_player)
        movers.add(mover)
        boards = [np.asarray(x["board"])[:28] for x in obs]
        np.testing.assert_array_equal(boards[mover], state._board)
        other = np.asarray(state._board)
        # 24 points from the other end, then bar and off of both players, with other signs.
        expected = np.concatenate([-other[23::-1], -other[[25, 24]], -other[[27, 26]]])
        np.testing.assert_array_equal(boards[1 - mover], expected)
        action = jnp.int32(np.flatnonzero(state.legal_action_mask)[0])
        state, out = step(jax.random.key(i), state, (action, action))
        obs = out.obs
    assert movers == {0, 1}


def test_legal_moves_of_2048_have_no_penalty():
    env = make("pgx/2048", GAMES)

    @jax.jit
    def run(key):
        def step(now, key):
            state, obs = now
            logits = jnp.where(obs["action_mask"] == 1, 0.0, -jnp.inf)
            state, out = env.step(KEY, state, jax.random.categorical(key, logits))
            tiles = out.obs["obs"][..., 1:].any((-3, -2, -1))
            return (state, out.obs), (out.reward, out.terminated, tiles, obs["action_mask"])

        return jax.lax.scan(step, env.reset(key), jax.random.split(key, 250))[1]

    reward, over, tiles, mask = jax.device_get(run(jax.random.key(0)))
    assert np.all(reward >= 0) and reward.max() >= 64 and over.any() and np.all(tiles)
    assert np.all(mask.any(-1)) and not np.all(mask)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "connect_four",
            {"opponent": "perfect"},
            "must be random, or a custom function",
        ),
        ("connect_four", {"size": 8}, "has no such option. It has opponent"),
        ("2048", {"opponent": "random"}, "has no such option. It has no options."),
        ("minatar-asterix", {"sticky_action_prob": 2}, "must be between 0 and 1"),
        ("minatar-asterix", {"use_minimal_action_set": 1}, "must be true or false"),
        ("minatar-asterix", {"ramping": True}, "It has use_minimal_action_set, sticky"),
    ],
)
@pytest.mark.toy
def test_wrong_pgx_options_are_rejected(name, options, message):
    with pytest.raises(ValueError, match=message):
        registry.make_task(EnvConfig(f"pgx/{name}", options=options))


@pytest.mark.toy
def test_task_names_equal_those_of_pgx():
    assert set(adapter.task_names()) == set(pgx.available_envs())


@pytest.mark.parametrize(
    "name", ["hex", "kuhn_poker", "leduc_holdem", "othello", "sparrow_mahjong", "tic_tac_toe"]
)
@FULL
def test_no_game_reaches_its_maximum_number_of_moves(name):
    task = registry.make_task(EnvConfig(f"pgx/{name}", options={"opponent": "random"}))

    @jax.jit
    @jax.vmap
    def cut(key):
        def step(now, key):
            state, obs, over = now
            logits = jnp.where(obs["action_mask"] == 1, 0.0, -jnp.inf)
            state, out = task.step(key, state, jax.random.categorical(key, logits))
            cut = ~over & out.truncated & ~out.terminated
            return (state, out.obs, over | out.terminated | out.truncated), cut

        keys = jax.random.split(key, task.max_episode_steps)
        (_, _, over), cut = jax.lax.scan(step, (*task.reset(key), jnp.bool_(False)), keys)
        return over, cut.any()

    over, cut = cut(jax.random.split(jax.random.key(0), 200))
    assert np.all(over) and not np.any(cut)


@pytest.mark.parametrize("name", ["connect_four", "tic_tac_toe"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_videos_show_the_agents_stones_in_blue_on_either_side(name, seed):
    task = registry.make_task(EnvConfig(f"pgx/{name}", options={"opponent": "random"}))
    state, obs = jax.jit(task.reset)(jax.random.key(seed))
    after, _ = jax.jit(task.step)(jax.random.key(0), state, 3)
    states = [task.unwrap(jax.device_get(x)) for x in (state, after)]
    before, now = task.draw(states, height=120, width=160)
    assert now.shape == (120, 160, 3) and now.dtype == np.uint8
    own, others = canvas.SERIES[:2] if obs["obs"]["turn"] else canvas.SERIES[1::-1]
    assert np.any(np.all(now == own, axis=-1)) and not np.any(np.all(now == others, axis=-1))
    assert not np.any(np.all(before == own, axis=-1))
