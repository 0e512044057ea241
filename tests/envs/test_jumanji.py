"""Jumanji tasks: ends, masks, and the conversion of observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.adapters import jumanji as adapter
from purejaxppo.parts import make_parts
from purejaxppo.rollout import collect, init_rollout
from purejaxppo.spaces import Box, Dict, Discrete, MultiDiscrete

jumanji = pytest.importorskip("jumanji")

FULL = pytest.mark.full
NAMES = adapter.task_names()


def make(name, limit=0, **options):
    """Return the adapter's task without wrappers."""
    config = EnvConfig(f"jumanji/{name}", max_episode_steps=limit, options=options)
    return adapter.make(name, config)


def walk(name, actions, limit=0):
    """Return (terminated, truncated) at each step of the wrapped task."""
    task = registry.make_task(EnvConfig(f"jumanji/{name}", max_episode_steps=limit))
    state, _ = jax.jit(task.reset)(jax.random.key(0))
    step, ends = jax.jit(task.step), []
    for action in actions:
        state, out = step(jax.random.key(0), state, jnp.asarray(action, jnp.int32))
        ends.append((bool(out.terminated), bool(out.truncated)))
    return ends


def test_the_limit_truncates_and_hitting_a_wall_terminates():
    on, cut, dead = (False, False), (False, True), (True, False)
    row = int(make("Snake-v1").reset(jax.random.key(0))[0].head_position.row)
    assert row > 0
    assert walk("Snake-v1", [0] * (row + 1)) == [on] * row + [dead]
    assert walk("Snake-v1", [0] * row, limit=row) == [on] * (row - 1) + [cut]
    # Hitting the wall at the step of the limit is a termination.
    assert walk("Snake-v1", [0] * (row + 1), limit=row + 1)[-1][0]


@pytest.mark.parametrize("name", ["Snake-v1", "Cleaner-v0"])
def test_the_raw_simulator_reports_its_limit_as_a_termination(name):
    # The adapter therefore sets the simulator's limit one step after ours.
    env = jumanji.make(name, time_limit=1)
    state, first = jax.jit(env.reset)(jax.random.key(0))
    action = jnp.argmax(first.observation.action_mask, axis=-1).astype(jnp.int32)
    _, out = jax.jit(env.step)(state, action)
    assert out.last() and out.discount == 0
    assert walk(name, [action], limit=1) == [(False, True)]
    assert make(name, limit=7).env.time_limit == 8


def test_a_combined_action_is_discrete_with_a_mask_entry_per_combination():
    task = make("Tetris-v0")
    assert task.action == Discrete(40)
    state, obs = jax.jit(task.reset)(jax.random.key(0))
    np.testing.assert_array_equal(task._to_jumanji(jnp.int32(23)), [2, 3])
    np.testing.assert_array_equal(obs["action_mask"].reshape(4, 10), state.action_mask)
    assert obs["action_mask"].min() == 0


def test_several_choices_with_one_mask_each_are_multidiscrete():
    task = make("Connector-v3")
    assert task.action == MultiDiscrete((5,) * 10)
    _, obs = jax.jit(task.reset)(jax.random.key(0))
    _, raw = jax.jit(task.env.reset)(jax.random.key(0))
    np.testing.assert_array_equal(obs["action_mask"].reshape(10, 5), raw.observation.action_mask)


def test_an_empty_mask_allows_everything():
    task = make("Tetris-v0")
    assert np.all(task._mask(jnp.zeros((4, 10), bool)) == 1)
    some = jnp.zeros((4, 10), bool).at[1, 2].set(True)
    np.testing.assert_array_equal(np.flatnonzero(task._mask(some)), [12])
    several = make("Cleaner-v0")
    np.testing.assert_array_equal(
        several._mask(jnp.array([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]], bool)),
        [1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 0, 0],
    )


def test_boards_are_one_hot_planes():
    task = make("Game2048-v1")
    state, obs = jax.jit(task.reset)(jax.random.key(0))
    assert obs["board"].shape == (4, 4, 18) and obs["board"].dtype == bool
    np.testing.assert_array_equal(np.argmax(obs["board"], axis=-1), state.board)
    np.testing.assert_array_equal(np.sum(obs["board"], axis=-1), 1)


def test_numbers_are_boxes_and_categories_are_discrete():
    spaces = dict(make("MultiCVRP-v0").observation.spaces)
    assert spaces["nodes_demands"] == Box((21,), 0.0, 1.0)  # of 0 to 60
    spaces = dict(make("Maze-v0").observation.spaces)
    assert spaces["agent_position_row"] == Discrete(10)
    assert spaces["walls"] == Box((100,), 0.0, 1.0, "bool")
    assert "step_count" not in spaces
    task = make("TSP-v1")
    assert task.observation["position"] == Discrete(21)
    state, obs = jax.jit(task.reset)(jax.random.key(0))
    assert state.position == -1 and obs["position"] == 0


def test_rewards_of_several_agents_are_summed():
    task = make("LevelBasedForaging-v0")
    state, _ = jax.jit(task.reset)(jax.random.key(0))
    env = task.env

    class Paid:
        """An environment with rewards 1 and 2 that ends for the first agent only."""

        def step(self, state, action):
            state, out = env.step(state, action)
            return state, out.replace(reward=jnp.array([1.0, 2.0]), discount=jnp.array([0.0, 1.0]))

    task.env = Paid()
    _, out = jax.jit(task.step)(jax.random.key(0), state, jnp.zeros(2, jnp.int32))
    assert out.reward == 3 and not out.terminated and not out.truncated


def test_rewards_and_observations_of_pac_man_equal_the_simulators():
    task = make("PacMan-v1")
    raw = task.env

    @jax.jit
    def both(state, action):
        own = raw.step(jax.tree.map(lambda x: x, state), action)[1]
        state, out = task.step(jax.random.key(0), state, action)
        return state, out, own

    state, _ = jax.jit(task.reset)(jax.random.key(0))
    paid = 0
    for action in np.random.default_rng(0).integers(4, size=40):
        state, out, own = both(state, action)
        assert out.reward == own.reward and out.reward.dtype == np.int32
        for name in ("pellet_locations", "ghost_locations", "grid"):
            np.testing.assert_array_equal(
                out.obs[name].ravel(), getattr(own.observation, name).ravel()
            )
        paid += out.reward
    assert paid >= 10


@pytest.mark.parametrize("name", ["Minesweeper-v0", "Cleaner-v0"])
def test_sampled_actions_are_allowed_by_the_mask(name, make_config):
    config = make_config(
        env={"name": f"jumanji/{name}", "num_envs": 64}, network={"encoder": "mlp"}
    )
    parts = make_parts(config)
    policy, env = parts.policy, parts.env

    @jax.jit
    def run(key):
        agent = policy.init(key)
        state = init_rollout(env, policy.network.initial_carry, key)
        return collect(env, lambda *now: policy.act(agent, *now), state, key, 100).transitions

    rows = jax.device_get(run(jax.random.key(0)))
    n = 100 if isinstance(env.spec.action, Discrete) else 4
    mask = rows.obs["action_mask"].reshape(100, 64, -1, n)
    taken = rows.action.reshape(100, 64, -1, 1)
    assert np.all(np.take_along_axis(mask, taken, -1) == 1) and not np.all(mask)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Snake-v1", {"time_limit": 5}, "has no such option. It has num_rows, num_cols"),
        ("Maze-v0", {"generator": "mine"}, "has no such option. It has num_rows, num_cols"),
        ("MMST-v0", {"num_nodes": 9}, "has no such option. It has no options."),
        ("LevelBasedForaging-v0", {"grid_size": 6}, "Values: grid_size 6, .* fov 8"),
        ("RobotWarehouse-v0", {"num_agents": 500}, "sample .size 500.*Values: num_agents 500"),
        ("JobShop-v0", {"num_jobs": 0, "limit": 9}, "index is out of bounds"),
        ("BinPack-v2", {"max_num_ems": 20, "limit": 99}, "reshape.*Values: max_num_ems 20"),
        ("RobotWarehouse-v0", {"request_queue_size": 200}, "Values: request_queue_size 200"),
        ("JobShop-v0", {"num_jobs": 1, "num_machines": 2, "limit": 9}, "2 x 2 actions is ambig"),
        ("TSP-v1", {"num_cities": 50}, "the default limit of jumanji/TSP-v1, 100 steps, may be"),
        ("Snake-v1", {"num_rows": 5.5}, "5.5: must be a whole number"),
        ("LevelBasedForaging-v0", {"penalty": "high"}, "'high': must be a number"),
    ],
)
@pytest.mark.toy
def test_wrong_jumanji_options_are_rejected(name, options, message):
    with pytest.raises(ValueError, match=message):
        make(name, **options)


@pytest.mark.toy
def test_options_are_arguments_of_the_environment_class():
    task = make("Snake-v1", num_rows=6, num_cols=7)
    assert task.observation["grid"] == Box((6, 7, 5), 0.0, 1.0)
    assert isinstance(make("Game2048-v1", board_size=3).observation, Dict)
    assert make("Game2048-v1", board_size=3).observation["board"].shape == (3, 3, 11)


@pytest.mark.toy
def test_options_are_arguments_of_the_generator():
    task = make("LevelBasedForaging-v0", num_agents=3, force_coop=False, penalty=0.5)
    assert task.action == MultiDiscrete((6, 6, 6)) and task.env.penalty == 0.5
    assert task.observation["agents_view"].nvec == (10,) * 3 * 15  # positions -1 to 8, levels
    assert make("Maze-v0", num_rows=5, num_cols=6).max_episode_steps == 30
    # Jumanji derives the length of paths from the size.
    assert make("Connector-v3", grid_size=20).env._generator.max_steps == 30
    task = make("TSP-v1", limit=60, num_cities=50)
    assert task.action == Discrete(50) and task.max_episode_steps == 60


@pytest.mark.toy
def test_task_names_equal_those_of_jumanji_except_tasks_that_download():
    assert set(NAMES) == jumanji.registered_environments() - {"Sokoban-v0"}


@pytest.mark.toy
def test_expensive_resets_are_not_computed_at_every_step():
    dearest, dear, cheap = map(make, ("Maze-v0", "Snake-v1", "PacMan-v1"))
    assert not dearest.cheap_reset and dearest.fresh_fraction == 0.25
    assert not dear.cheap_reset and dear.fresh_fraction == 1.0
    assert cheap.cheap_reset


def video_mark(name):
    """The mark of a video: MMST takes long to compile, and two tasks are easier forms of others."""
    if name == "MMST-v0" or "partly" in name or "easy" in name:
        return pytest.mark.slow
    return [] if name == "Snake-v1" else FULL


@pytest.mark.parametrize("name", [pytest.param(n, marks=video_mark(n)) for n in NAMES])
def test_videos_are_rendered_by_the_simulator_without_a_display(name):
    task = make(name)
    states = [jax.device_get(jax.jit(task.reset)(jax.random.key(i))[0]) for i in (0, 1)]
    frames = list(task.draw(states, height=240, width=320))
    assert [frame.shape for frame in frames] == [(240, 320, 3)] * 2
    assert all(frame.dtype == np.uint8 and frame.std() > 1 for frame in frames)
