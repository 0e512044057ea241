"""Grid worlds by hand: ends, rewards, observations and rulesets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import rulesets

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.vectorize import strong_types
from purejaxppo.spaces import Dict, Discrete, MultiDiscrete
from purejaxppo.video import video

pytest.importorskip("xminigrid")

FORWARD, RIGHT, PICK_UP = 0, 1, 3
EMPTY = "xminigrid/MiniGrid-Empty-5x5"  # from the upper left corner to the lower right
TO_THE_GOAL = (FORWARD, FORWARD, RIGHT, FORWARD, FORWARD)
"""Positions in a room of 3 x 3 squares, facing right."""


def make(name=EMPTY, limit=0, **options):
    return registry.make_task(EnvConfig(name, max_episode_steps=limit, options=options))


def walk(task, actions, key):
    """Return (last state, results of all steps)."""
    state, _ = jax.jit(task.reset)(key)
    step, outs = jax.jit(task.step), []
    for action in actions:
        state, out = step(key, state, jnp.int32(action))
        outs.append(out)
    return state, outs


def test_the_goal_terminates_and_gives_less_reward_when_reached_later(key):
    outs = walk(make(limit=10), TO_THE_GOAL, key)[1]
    assert [bool(out.terminated) for out in outs] == [False] * 4 + [True]
    assert not any(out.truncated for out in outs)
    assert [float(out.reward) for out in outs[:4]] == [0] * 4
    assert outs[-1].reward == pytest.approx(1 - 0.9 * 5 / 10)
    later = walk(make(limit=10), (RIGHT,) * 4 + TO_THE_GOAL, key)[1][-1]
    assert later.terminated and later.reward == pytest.approx(1 - 0.9 * 9 / 10)


def test_the_last_step_within_the_limit_is_truncated_and_not_terminated(key):
    outs = walk(make(limit=3), (RIGHT,) * 3, key)[1]
    assert [bool(out.truncated) for out in outs] == [False, False, True]
    assert not any(out.terminated for out in outs)


def test_a_goal_on_the_last_step_terminates(key):
    env = registry.make(EnvConfig(EMPTY, max_episode_steps=5), 1)
    state, _ = jax.jit(lambda key: strong_types(env.reset(key)))(key)
    step = jax.jit(lambda *args: strong_types(env.step(key, *args)))
    for action in TO_THE_GOAL:
        state, out = step(state, jnp.array([action]))
    assert out.terminated[0] and not out.truncated[0]
    assert out.reward[0] == pytest.approx(1 - 0.9)


def test_max_episode_steps_overrides_the_limit_of_the_simulator():
    assert make().max_episode_steps == 4 * 5 * 5
    assert make("xminigrid/MiniGrid-DoorKey-8x8").max_episode_steps == 10 * 8 * 8
    assert make(limit=7).max_episode_steps == 7


def test_the_observation_holds_tile_and_colour_ids_in_front_of_the_agent(key):
    task = make(view_size=3)
    assert task.observation == MultiDiscrete((13,) * 18)
    obs = jax.jit(task.reset)(key)[1].reshape(3, 3, 2)
    # The agent is in the corner and looks right: the wall is to its left.
    wall, floor = (2, 6), (1, 7)
    np.testing.assert_array_equal(obs, [[wall, floor, floor]] * 3)


def test_direction_and_pocket_are_optional_parts(key):
    task = make("xminigrid/MiniGrid-DoorKey-5x5", direction=True, pocket=True)
    assert isinstance(task.observation, Dict)
    assert task.observation["direction"] == Discrete(4)
    state, obs = jax.jit(task.reset)(key)
    assert obs["direction"] == task.unwrap(state).state.agent.direction
    np.testing.assert_array_equal(obs["pocket"], [0, 0])
    # Put the key in front of the agent, then pick it up.
    timestep, steps = state
    agent = timestep.state.agent.replace(position=jnp.array([1, 1]), direction=jnp.int32(2))
    grid = timestep.state.grid.at[2, 1].set(jnp.array([7, 5], jnp.uint8))
    timestep = timestep.replace(state=timestep.state.replace(grid=grid, agent=agent))
    _, out = jax.jit(task.step)(key, (timestep, steps), jnp.int32(PICK_UP))
    np.testing.assert_array_equal(out.obs["pocket"], [7, 5])
    assert out.obs["direction"] == 2


@pytest.fixture
def benchmark_file(tmp_path):
    return rulesets.write(tmp_path)


XLAND = "xminigrid/XLand-MiniGrid-R1-9x9"


def test_each_episode_of_xland_draws_a_ruleset_unless_one_is_set(benchmark_file, key):
    task = make(XLAND, benchmark=benchmark_file, rules=True)
    _, obs = jax.jit(jax.vmap(task.reset))(jax.random.split(key, 40))
    assert obs["rules"].shape == (40, 5 + 7)
    drawn = {tuple(map(int, row[:3])) for row in obs["rules"]}
    assert drawn == {(1, *tile) for tile in rulesets.TILES}
    task = make(XLAND, benchmark=benchmark_file, ruleset=1)
    state, _ = jax.jit(task.reset)(key)
    np.testing.assert_array_equal(task.unwrap(state).state.goal_encoding, [1, 7, 3, 0, 0])


def test_reaching_the_goal_of_a_ruleset_gives_a_reward(benchmark_file, key):
    task = make(XLAND, benchmark=benchmark_file, ruleset=0)
    (timestep, steps), _ = jax.jit(task.reset)(key)
    inner = timestep.state
    agent = inner.agent.replace(position=jnp.array([1, 1]), direction=jnp.int32(2))
    grid = inner.grid.at[2, 1].set(jnp.array([3, 1], jnp.uint8))
    timestep = timestep.replace(state=inner.replace(grid=grid, agent=agent))
    _, out = jax.jit(task.step)(key, (timestep, steps), jnp.int32(PICK_UP))
    assert out.terminated and out.reward == pytest.approx(1 - 0.9 / (3 * 9 * 9))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (EMPTY, {"speed": 3}, "has no such option. It has direction, pocket, view_size"),
        (EMPTY, {"rules": True}, "has no such option"),
        (EMPTY, {"view_size": 4}, r"view_size = 4: must be an odd number"),
        (EMPTY, {"pocket": "yes"}, "pocket = 'yes': must be true or false"),
        (XLAND, {}, "needs a file of rulesets"),
        (XLAND, {"benchmark": "/no/such"}, "file not found"),
        (XLAND, {"benchmark": __file__}, "not a file of XLand-MiniGrid rulesets"),
    ],
)
def test_wrong_xminigrid_options_get_a_one_sentence_error(name, options, message):
    with pytest.raises(ValueError, match=message) as error:
        make(name, **options)
    assert "\n" not in str(error.value)


def test_a_ruleset_beyond_the_file_is_rejected(benchmark_file):
    with pytest.raises(ValueError, match=r"ruleset = 3: .* has the rulesets 0 to 2"):
        make(XLAND, benchmark=benchmark_file, ruleset=3)


def test_videos_use_the_simulators_renderer(key):
    pytest.importorskip("PIL")
    task = make()
    state, _ = jax.jit(task.reset)(key)
    after, _ = walk(task, (FORWARD,), key)
    frames = video.frames(task, jax.device_get([state, after]), height=120, width=160)
    assert [(f.shape, f.dtype) for f in frames] == 2 * [((120, 160, 3), np.uint8)]
    assert (frames[0] != frames[1]).any()
    red, green, blue = np.moveaxis(frames[0].astype(int), -1, 0)
    assert ((green > 2 * red) & (green > 2 * blue)).sum() > 50  # the goal
