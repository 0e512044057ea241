"""JaxMARL tasks by hand: ends, masks, rewards, options, and a silent import."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.packages import skip_without
from support.stepping import play

from purejaxppo import learner
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.adapters import jaxmarl
from purejaxppo.parts import make_parts
from purejaxppo.spaces import Box

skip_without("jaxmarl")
FULL = pytest.mark.full
STOP = 4
"""The action of SMAX that is always allowed."""


def make(name, limit=0, **options):
    config = EnvConfig(name=f"jaxmarl/{name}", max_episode_steps=limit, options=options)
    return jaxmarl.make(name, config)


def steps(name, action, count, limit=0, **options):
    """Return the rows [T, N] of one environment whose agents always take `action`."""
    config = EnvConfig(name=f"jaxmarl/{name}", max_episode_steps=limit, options=options)
    env = registry.make(config, len(registry.make_task(config).agents))

    def run(key):
        state, _ = env.reset(key)
        actions = jnp.full((count, env.spec.num_envs), action)
        return play(env, state, actions)[1]

    return jax.device_get(jax.jit(run)(jax.random.key(0)))


def test_importing_jaxmarl_prints_nothing_and_keeps_the_streams():
    program = """
import sys
streams = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
registry.make(EnvConfig(name="jaxmarl/overcooked"), 2)
assert streams == (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
assert "jaxmarl" in sys.modules and "brax" not in sys.modules
assert "jaxmarl.environments.mabrax" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_task_names_equal_those_of_jaxmarl():
    from jaxmarl import registered_envs
    from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

    assert set(jaxmarl.SMAX_MAPS) == set(MAP_NAME_TO_SCENARIO)
    left_out = set(registered_envs) - set(jaxmarl.CLASSES)
    prefixes = ("JaxRobotarium", "storm", "SMAX", "HeuristicEnemySMAX", "LearnedPolicyEnemySMAX")
    brax = {"ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3"}
    assert set(jaxmarl.CLASSES) <= set(registered_envs)
    assert {name for name in left_out if not name.startswith(prefixes)} == brax


def test_mpe_is_truncated_after_exactly_25_steps():
    out = steps("MPE_simple_spread_v3", 0, 27)
    assert not out.terminated.any()
    np.testing.assert_array_equal(out.truncated.all(axis=1), np.arange(27) == 24)
    np.testing.assert_array_equal(out.valid.all(axis=1), np.arange(27) != 25)


def test_the_limit_of_overcooked_truncates_and_its_last_40_steps_are_observed():
    # JaxMARL sets `done` at the limit, and plane 25 when fewer than 40 steps are left.
    out = steps("overcooked", 4, 43, limit=42)
    assert not out.terminated.any()
    np.testing.assert_array_equal(out.truncated.all(axis=1), np.arange(43) == 41)
    urgent = out.obs["obs"][..., 25].all(axis=(1, 2, 3))
    np.testing.assert_array_equal(urgent[:42], 42 - (np.arange(42) + 1) < 40)


def test_the_switch_riddle_terminates_on_an_answer_and_truncates_at_its_limit():
    told = steps("switch_riddle", 2, 1)
    assert told.terminated.all() and not told.truncated.any()
    np.testing.assert_array_equal(told.reward, [[-1, -1, -1]])  # one of three has been in the room
    waited = steps("switch_riddle", 0, 6)
    assert not waited.terminated.any()
    np.testing.assert_array_equal(waited.truncated.all(axis=1), np.arange(6) == 5)


def test_the_limit_of_coin_game_covers_all_its_games():
    assert make("coin_game").max_episode_steps == 100
    assert make("coin_game", num_inner_steps=4, num_outer_steps=2).max_episode_steps == 8
    out = steps("coin_game", 4, 9, num_inner_steps=4, num_outer_steps=2)
    assert not out.terminated.any()
    np.testing.assert_array_equal(out.truncated.all(axis=1), np.arange(9) == 7)


@pytest.fixture(scope="module")
def battle():
    """Return (SMAX's step, a state): ally 1 and two enemies are dead, one enemy has health 1."""
    task = make("SMAX-3m")
    state, _ = jax.jit(task.reset)(jax.random.key(0))
    units = state.state.replace(
        unit_positions=jnp.array([[8, 8], [1, 1], [8, 20], [10, 8], [30, 30], [30, 31]], float),
        unit_health=jnp.array([45.0, 0.0, 45.0, 1.0, 0.0, 0.0]),
        unit_alive=jnp.array([True, False, True, True, False, False]),
    )
    return jax.jit(task.step), state.replace(state=units)


def test_dead_smax_units_can_only_stop_and_get_the_reward_of_their_allies(battle):
    step, state = battle
    # The enemy's weapon is not ready, and no unit shoots at it.
    cold = state.state.unit_weapon_cooldowns.at[3].set(9.0)
    state = state.replace(state=state.state.replace(unit_weapon_cooldowns=cold))
    after, out = step(jax.random.key(1), state, (STOP, STOP, STOP))
    assert not out.terminated.any() and not out.truncated
    np.testing.assert_array_equal(out.reward, [0, 0, 0])
    masks = [np.asarray(one["action_mask"]) for one in out.obs]
    np.testing.assert_array_equal(masks[0], [1, 1, 1, 1, 1, 1, 0, 0])  # the enemy is 2 away
    np.testing.assert_array_equal(masks[1], [0, 0, 0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(masks[2], [1, 1, 1, 1, 1, 0, 0, 0])  # beyond 5
    np.testing.assert_array_equal(out.obs[1]["obs"], 0)
    assert np.any(out.obs[0]["obs"] != 0)
    # Ally 0 shoots: 1 of 45 health of one of three enemies, and 1 for the battle.
    _, out = step(jax.random.key(1), after, (5, STOP, STOP))
    assert out.terminated.all() and not out.truncated
    np.testing.assert_allclose(out.reward, [1 + 1 / 135] * 3, rtol=1e-5)


def test_success_in_smax_is_a_return_that_only_a_won_battle_reaches():
    """Damage to all units gives 1 (0 in self-play), and a won battle gives the bonus."""

    def success_above(**options):
        return make("SMAX-3m", **options).success_above

    assert success_above() == 1.5
    assert success_above(won_battle_bonus=4.0) == 3.0
    assert success_above(use_self_play_reward=True) == 0.5
    assert success_above(won_battle_bonus=0.0) is None
    assert make("MPE_simple_spread_v3").success_above is None


def test_an_undecided_battle_is_truncated_at_the_limit():
    out = steps("SMAX-3m", STOP, 4, limit=3)
    assert not out.terminated.any()
    np.testing.assert_array_equal(out.truncated.all(axis=1), np.arange(4) == 2)
    assert make("SMAX-3m").max_episode_steps == 100


@pytest.mark.parametrize("name", ["SMAX-3m", pytest.param("hanabi", marks=FULL)])
def test_a_policy_never_takes_an_action_that_jaxmarl_forbids(name, make_config, key):
    rollout = {"rollout_length": 112, "num_minibatches": 1}
    env = {"name": f"jaxmarl/{name}", "num_envs": 180}
    parts = make_parts(make_config(env=env, ppo=rollout))

    @jax.jit
    def play(key):
        state = learner.init_state(parts, key, jnp.int32(0))
        return learner.collect(parts, state.agent, state.rollout, key, jnp.float32(0)).transitions

    rows = jax.device_get(play(key))
    masks = np.asarray(rows.obs["action_mask"])
    allowed = np.take_along_axis(masks, np.asarray(rows.action)[..., None], axis=-1)
    assert allowed.size > 20_000 and allowed.all()
    assert not masks.all() and masks.any(axis=-1).all()
    assert (masks.sum(axis=-1) == 1).any()  # dead or waiting agents


def test_a_waiting_hanabi_player_has_one_action():
    task = make("hanabi")
    state, obs = jax.jit(task.reset)(jax.random.key(0))
    masks = np.stack([one["action_mask"] for one in obs])
    np.testing.assert_array_equal(masks[1], np.arange(21) == 20)
    assert (
        masks[0, -1] == 0 and masks[0, :5].sum() == 0
    )  # all hints are left, so no card can be dropped
    assert masks[0, 5:10].all()
    _, out = jax.jit(task.step)(jax.random.key(1), state, (5, 20))
    np.testing.assert_array_equal(np.stack([one["action_mask"] for one in out.obs])[0], masks[1])
    assert not out.terminated.any()
    assert task.max_episode_steps == 0


def onion_at_pot(task):
    """Return a state of cramped_room in which agent 0 faces the pot with an onion."""
    state, _ = jax.jit(task.reset)(jax.random.key(0))
    return state.replace(
        agent_pos=jnp.array([[2, 1], [3, 1]], jnp.uint32),
        agent_dir=jnp.array([[0, -1], [0, 1]], state.agent_dir.dtype),
        agent_dir_idx=jnp.array([0, 1], jnp.int32),
        agent_inv=jnp.array([3, 1], state.agent_inv.dtype),  # an onion, nothing
    )


def test_a_curriculum_can_lower_the_weight_of_the_shaped_reward():
    interact, stay = 5, 4
    for weight in (0.0, 0.5):
        task = make("overcooked", shaped_reward=weight)
        assert task.parameters == {"shaped_reward": weight}
        step = jax.jit(task.step)
        _, out = step(jax.random.key(1), onion_at_pot(task), (interact, stay))
        np.testing.assert_allclose(out.reward, [3 * weight, 0])  # 3 for an onion in the pot
    other = task.adjusted({"shaped_reward": jnp.float32(0.25)})
    _, out = jax.jit(other.step)(jax.random.key(1), onion_at_pot(task), (interact, stay))
    np.testing.assert_allclose(out.reward, [0.75, 0])
    lowered = EnvConfig(name="jaxmarl/overcooked", curriculum={"shaped_reward": "1 to 0"})
    env = registry.make(lowered, 4)
    assert float(env.values(0.25)["shaped_reward"]) == 0.75
    assert float(registry.make(lowered, 4, evaluation=True).task.task.task.task.weight) == 0
    with pytest.raises(ValueError, match="has no parameters to vary"):
        mpe = EnvConfig(name="jaxmarl/MPE_simple_v3", curriculum={"shaped_reward": "1 to 0"})
        registry.make(mpe, 1)


def test_overcooked_observations_have_the_longer_side_first():
    task = make("overcooked")
    assert task.observation == (Box((5, 4, 26), dtype="int8"),) * 2
    state, obs = jax.jit(task.reset)(jax.random.key(0))
    np.testing.assert_array_equal(obs[0][..., 10].nonzero(), [[2], [0]])  # the pot: x = 2, y = 0
    shared = jax.jit(task.global_state)(state)
    np.testing.assert_array_equal(shared, np.concatenate([obs[0].ravel(), obs[1].ravel()]))
    other = make("overcooked_v2", layout="test_time_wide")
    assert other.observation[0].shape[:2] == (7, 6)


def test_the_global_state_is_the_tasks_own_or_all_observations():
    def state_of(name, num_envs):
        config = EnvConfig(name=f"jaxmarl/{name}", options={"global_state": True})
        return registry.make(config, num_envs).spec.observation["state"]

    assert state_of("SMAX-3m", 3) == Box((6 * 12,))  # 10 features, side and type of 6 units
    assert state_of("MPE_simple_tag_v3", 4) == Box((4 * 16,))  # prey see 14 numbers, padded
    assert state_of("overcooked", 2) == Box((2 * 5 * 4 * 26,))


def test_agents_of_each_kind_can_have_their_own_policy(make_config, key):
    parts = make_parts(
        make_config(
            env={"name": "jaxmarl/MPE_simple_tag_v3", "num_envs": 8},
            network={"policies": {"adversary_*": "adversaries", "agent_*": "agents"}},
        )
    )
    assert parts.env.spec.agents == ("adversary_0", "adversary_1", "adversary_2", "agent_0")
    assert set(parts.policy.network.init(key)) == {"adversaries", "agents"}


def test_wrong_jaxmarl_options_get_a_one_sentence_error():
    def message(name, **options):
        with pytest.raises(ValueError) as error:
            registry.make(EnvConfig(name=f"jaxmarl/{name}", options=options), 6)
        assert "\n" not in str(error.value)
        return str(error.value)

    text = message("MPE_simple_spread_v3", agents=3)
    assert text == (
        "env.options.agents: jaxmarl/MPE_simple_spread_v3 has no such option. "
        "Did you mean 'num_agents'?"
    )
    assert "use env.max_episode_steps" in message("SMAX-3m", max_steps=3)
    assert "has no such option. It has" in message("SMAX-3m", num_allies=3)
    assert "local_ratio = 'x': must be a number" in message("MPE_simple_spread_v3", local_ratio="x")
    assert "must be true or false" in message("SMAX-3m", enemy_shoots=1)
    assert "Did you mean 'cramped_room'" in message("overcooked", layout="cramped")
    assert "Layouts: cramped_room, asymm" in message("overcooked", layout="zzz")
    assert "The minimum number of agents" in message("switch_riddle", num_agents=2)
    with pytest.raises(ValueError, match="Did you mean 'jaxmarl/SMAX-3m'"):
        registry.make(EnvConfig(name="jaxmarl/SMAX-3n"), 3)


@pytest.mark.parametrize(
    "name",
    [
        "MPE_simple_tag_v3",
        "SMAX-3m",
        "overcooked",
        pytest.param("hanabi", marks=FULL),
        pytest.param("jaxnav", marks=FULL),
        pytest.param("overcooked_v2", marks=FULL),
    ],
)
def test_jaxmarl_environments_are_rendered(name):
    from purejaxppo.video.video import frames

    task = registry.make_task(EnvConfig(name=f"jaxmarl/{name}"))
    state, _ = jax.jit(task.reset)(jax.random.key(0))
    (picture,) = frames(task, [jax.device_get(state)], 120, 160)
    assert picture.shape == (120, 160, 3) and picture.dtype == np.uint8
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 3


@pytest.mark.toy
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("jaxnav", {"normalise_obs": False}, "env.options for jaxmarl/jaxnav: "),
        ("jaxnav", {"lidar_num_beams": 0}, "env.options for jaxmarl/jaxnav: "),
        ("jaxnav", {"map_id": "nonsense"}, "env.options for jaxmarl/jaxnav: Map: nonsense not"),
        ("jaxnav", {"act_type": "discrete"}, "env.options.act_type = 'discrete': must be one of"),
        ("hanabi", {"max_info_tokens": 0}, "env.options for jaxmarl/hanabi: "),
        ("coin_game", {"num_outer_steps": 0}, "num_inner_steps and num_outer_steps must be at"),
        (
            "SMAX-3m",
            {"attack_mode": "randm"},
            "attack_mode = 'randm': must be one of closest, random",
        ),
        ("SMAX-3m", {"observation_type": "x"}, "SMAX-3m: Unknown observation_type: 'x'"),
    ],
)
def test_invalid_options_are_found_when_the_task_is_made(name, options, words):
    with pytest.raises(ValueError, match=r"^env\.options") as caught:
        registry.make_task(EnvConfig(f"jaxmarl/{name}", options=options))
    assert words in str(caught.value)
