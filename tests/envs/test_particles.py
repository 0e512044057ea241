"""Multi-agent particle environments: compared with mpe2, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.stepping import play

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.adapters.particles import ParticleState, Spread, Tag, edge_cost, start
from purejaxppo.spaces import Box, Discrete


def theirs(name, **options):
    pytest.importorskip("mpe2")
    from mpe2 import simple_spread_v3, simple_tag_v3

    module = {"spread": simple_spread_v3, "tag": simple_tag_v3}[name]
    env = module.env(**options)
    env.reset(seed=0)
    return env.unwrapped.world, env.unwrapped


def put(world, state):
    for agent, place, velocity in zip(world.agents, state.position, state.velocity, strict=True):
        agent.state.p_pos, agent.state.p_vel = np.array(place, float), np.array(velocity, float)
    for landmark, place in zip(world.landmarks, state.fixed, strict=True):
        landmark.state.p_pos = np.array(place, float)


def step_theirs(world, env, actions):
    for agent, action in zip(world.agents, actions, strict=True):
        env._set_action([int(action)], agent, env.action_spaces[agent.name])
    world.step()


@pytest.mark.parametrize(
    ("task", "name", "options"),
    [
        (Spread(num_agents=5), "spread", {"N": 5}),
        (Tag(num_prey=1), "tag", {"num_adversaries": 3, "num_good": 1, "num_obstacles": 2}),
    ],
)
def test_motion_and_contacts_equal_those_of_mpe2(task, name, options):
    world, env = theirs(name, **options)
    count = len(task.agents)
    reset, step = jax.jit(task.reset), jax.jit(task.step)
    rng = np.random.default_rng(0)
    touched = 0
    for episode in range(8):
        state, _ = reset(jax.random.key(episode))
        # Close together, to cause collisions with each other and with landmarks.
        state = state._replace(position=0.5 * state.position, fixed=0.5 * state.fixed)
        put(world, state)
        for _ in range(20):
            actions = rng.integers(0, 5, count)
            state, out = step(jax.random.key(0), state, tuple(jnp.asarray(actions)))
            if name == "tag" and bool(out.terminated.any()):
                break  # mpe2 continues after a prey is caught
            step_theirs(world, env, actions)
            position = np.array([agent.state.p_pos for agent in world.agents])
            velocity = np.array([agent.state.p_vel for agent in world.agents])
            np.testing.assert_allclose(state.position, position, atol=2e-3)
            np.testing.assert_allclose(state.velocity, velocity, atol=2e-2)
            put(world, state)  # float32 and stiff contacts diverge over several steps
            touched += int(task.bodies.touching(state.position).sum()) - count
    assert touched > 10


def test_the_reward_of_spread_is_shared_distances_and_collisions():
    task = Spread(num_agents=3, collision_penalty=2.0)
    state = ParticleState(
        position=jnp.array([[0.0, 0.0], [0.2, 0.0], [1.0, 1.0]]),
        velocity=jnp.zeros((3, 2)),
        fixed=jnp.array([[0.0, 0.5], [0.2, 0.0], [1.0, 0.0]]),
        alive=jnp.ones(3, bool),
    )
    # Positions move with the old velocities of 0: distances 0.5, 0, 0.8. One pair collides.
    _, out = jax.jit(task.step)(jax.random.key(0), state, (0, 0, 0))
    np.testing.assert_allclose(out.reward, [-0.5 - 0.0 - 0.8 - 2.0] * 3, rtol=1e-5)
    assert not out.terminated.any() and not out.truncated
    first = np.asarray(out.obs[0])
    np.testing.assert_allclose(first[2:10], [0, 0, 0, 0.5, 0.2, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(first[10:], [0.2, 0, 1, 1], atol=1e-6)
    assert first[0] < 0  # pushed away to the left


def make_two_catches():
    """Return a task and a state: the hunter touches one prey now and the other one later."""
    task = Tag(num_hunters=1, num_prey=2, num_obstacles=0)
    state = ParticleState(
        position=jnp.array([[0.0, 0.0], [0.1, 0.0], [0.5, 0.95]]),
        velocity=jnp.zeros((3, 2)),
        fixed=jnp.zeros((0, 2)),
        alive=jnp.ones(3, bool),
    )
    return task, state


def test_a_caught_prey_leaves_and_the_last_one_ends_the_episode():
    task, state = make_two_catches()
    step = jax.jit(task.step)
    state, out = step(jax.random.key(0), state, (0, 0, 0))
    # The second prey is 0.05 beyond 0.9 in y, which costs 0.5.
    np.testing.assert_allclose(out.reward, [10, -10, -0.5], rtol=1e-4)
    np.testing.assert_array_equal(out.terminated, [False, True, False])
    hunter = np.asarray(out.obs[0])
    np.testing.assert_array_equal(hunter[4:9], np.zeros(5))  # of the prey that was caught
    np.testing.assert_allclose(hunter[9:11], [0.5, 0.95], atol=0.02)
    assert hunter.shape == (14,) and hunter[-1] == 1
    away = state.position.at[0].set(jnp.array([0.5, 0.9]))
    state, out = step(jax.random.key(0), state._replace(position=away), (0, 0, 0))
    np.testing.assert_allclose(out.reward[:1], [10])
    np.testing.assert_array_equal(out.terminated, [True, True, True])


def test_a_caught_prey_does_not_collide():
    task, state = make_two_catches()
    gone = state._replace(alive=jnp.array([True, False, True]))
    step = jax.jit(task.step)
    moved, _ = step(jax.random.key(0), gone, (0, 0, 0))
    np.testing.assert_array_equal(moved.velocity[0], [0, 0])
    moved, _ = step(jax.random.key(0), state, (0, 0, 0))
    assert moved.velocity[0, 0] < -0.1


def test_rows_of_a_caught_prey_are_invalid_until_the_environment_resets():
    env = registry.make(
        EnvConfig(name="particles/tag", options={"num_hunters": 3, "num_prey": 2}), 100
    )
    actions = jax.random.randint(jax.random.key(1), (60, 100), 0, 5)

    def run(key):
        state, _ = env.reset(key)
        return play(env, state, actions)[1]

    out = jax.device_get(jax.jit(run)(jax.random.key(0)))
    done, valid = (x.reshape(60, 20, 5) for x in (out.terminated | out.truncated, out.valid))
    obs = out.obs["obs"].reshape(60, 20, 5, -1)
    some = 0
    for world in range(20):
        for t in range(58):
            if done[t, world, 3] and not done[t, world].all():
                alive = valid[t + 1, world, :3].all()
                assert not valid[t + 1, world, 3]
                assert out.reward.reshape(60, 20, 5)[t + 1, world, 3] == 0
                if alive:
                    np.testing.assert_array_equal(obs[t + 1, world, 3], obs[t, world, 3])
                    some += 1
    assert some > 3
    assert np.all(valid.all(axis=2) | (~valid[..., 0] | valid[..., :3].all(axis=2)))


def test_the_edge_cost_is_zero_inside_and_grows_outside():
    x = jnp.array([0.0, 0.89, 0.95, 1.5, 9.0])
    np.testing.assert_allclose(edge_cost(x), [0, 0, 0.5, np.e, 10], rtol=1e-5)


def test_wrong_particle_options_are_rejected():
    def message(name, **options):
        with pytest.raises(ValueError) as error:
            registry.make(EnvConfig(name=f"particles/{name}", options=options), 6)
        return str(error.value)

    assert "Did you mean 'num_agents'" in message("spread", agents=3)
    assert "env.options.num_agents = 0: must be at least 1" in message("spread", num_agents=0)
    assert "must be a whole number" in message("tag", num_hunters=1.5)
    assert "must be true or false" in message("tag", continuous=1)
    assert "global_state = 'yes': must be true or false" in message("tag", global_state="yes")


def test_the_global_state_holds_all_bodies():
    config = EnvConfig(name="particles/tag", options={"global_state": True, "continuous": True})
    env = registry.make(config, 5)
    assert env.spec.action == Box((2,), -1.0, 1.0)
    assert env.spec.observation["state"] == Box((29,))
    assert env.spec.observation["agent"] == Discrete(5)
    state, obs = jax.jit(env.reset)(jax.random.key(0))
    inner = jax.tree.map(lambda x: x[0], env.task.unwrap(state.task))
    np.testing.assert_array_equal(obs["state"][:, :10], [inner.position.ravel()] * 5)
    np.testing.assert_array_equal(obs["state"][:, 20:24], [inner.fixed.ravel()] * 5)
    np.testing.assert_array_equal(obs["state"][:, 24:], np.ones((5, 5)))


def test_starts_are_within_their_ranges():
    state = start(jax.random.key(0), 400, 300, 0.5)
    assert np.abs(state.position).max() > 0.9 and np.abs(state.position).max() <= 1
    assert 0.45 < np.abs(state.fixed).max() <= 0.5


def test_particle_environments_are_rendered():
    from purejaxppo.video.video import frames

    task = registry.make_task(EnvConfig(name="particles/tag"))
    state, _ = jax.jit(task.reset)(jax.random.key(0))
    (picture,) = frames(task, [jax.device_get(state)], 120, 160)
    assert picture.shape == (120, 160, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 4
