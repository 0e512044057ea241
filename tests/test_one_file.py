"""`examples/ppo_in_one_file.py` has the numbers of the library, and learns."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.paths import ROOT

from purejaxppo import learner, streams
from purejaxppo.agents import sequences
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.parts import make_parts

PPO = {"normalize_obs": False, "normalize_reward": False, "learning_rate_schedule": "constant"}
SHARED = {"rollout_length": 24, "num_minibatches": 3, "num_epochs": 2, "ent_coef": 0.02}


@pytest.fixture(scope="module")
def one():
    spec = importlib.util.spec_from_file_location("one", ROOT / "examples/ppo_in_one_file.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain_params(params):
    """Return the parameters of the library as lists of (w, b), each torso with its head."""

    def layers(torso, head):
        dense = [layer for _, layer in sorted(params[torso].items())]
        return [(x["kernel"], x["bias"]) for x in (*dense, params[head])]

    return {name: layers(f"{name}_torso", name) for name in ("actor", "critic")}


def assert_close(found, expected):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), found, expected
    )


@pytest.fixture(scope="module")
def learned(one, make_config):
    """(the config of the file, first parameters, rollout, minibatches, batch, state, losses)."""
    env = {"name": "gymnax/CartPole-v1", "num_envs": 6, "max_episode_steps": 15}
    config = make_config(env=env, network={"hidden": (8, 8)}, ppo={**PPO, **SHARED})
    parts, hp = make_parts(config), make_hyperparams(config)
    own = one.Config(num_envs=6, hidden=(8, 8), learning_rate=config.ppo.learning_rate, **SHARED)

    @jax.jit
    def run(key):
        state, _ = learner.train_step(parts, learner.init_state(parts, key, jnp.int32(0)), hp)
        state = state.replace(opt_state=jax.tree.map(jnp.zeros_like, state.opt_state))
        keys = streams.split_keys(state.key)
        rollout = learner.collect(parts, state.agent, state.rollout, keys.act, 0.5)
        reward = rollout.transitions.reward
        batch = learner.make_batch(parts, state.agent, rollout, reward, hp, state.value_stats)
        indices = [
            sequences.minibatch_indices(key, config.ppo, own.rollout_length, own.num_envs)
            for key in jax.random.split(keys.update, own.num_epochs)
        ]
        after, metrics = learner.learn(parts, state, rollout, hp)
        return state.agent.params, rollout, jnp.concatenate(indices), batch, after, metrics.losses

    return own, *run(jax.random.key(1))


def test_an_update_of_the_one_file_ppo_equals_that_of_the_library(one, learned):
    own, before, rollout, indices, batch, after, losses = learned
    t = rollout.transitions
    assert t.terminated.any() and t.truncated.any() and not t.valid.all()
    rows = one.Rows(t.obs, t.action, t.log_prob, t.reward, t.terminated, t.truncated, t.valid)
    params = plain_params(before)
    made = jax.jit(one.make_batch, static_argnums=0)(own, params, rows, rollout.end.obs)
    assert_close(jnp.where(made.valid, made.advantage, 0.0), batch.advantage)
    assert_close(made.target, batch.target)
    opt_state = one.make_optimizer(own).init(params)
    update = jax.jit(one.update, static_argnums=0)
    found, _, parts = update(own, params, opt_state, made, indices)
    assert_close(found, plain_params(after.agent.params))
    assert_close(parts, [losses.policy_loss, losses.value_loss, losses.entropy])
    moved = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), found, params)
    assert min(jax.tree.leaves(moved)) > 1e-4  # the parameters have changed


def test_the_one_file_rollout_resets_at_the_next_step(one):
    """The row after an end is not valid, and the rows of an episode belong only to it."""
    config = one.Config(num_envs=3, rollout_length=60, hidden=(4,))
    env, env_params = one.gymnax.make("CartPole-v1")
    env_params = env_params.replace(max_steps_in_episode=30)
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "actor": one.init_layers(keys[0], (4, 4, 2), 0.01),
        "critic": one.init_layers(keys[1], (4, 4, 1), 1.0),
    }
    obs, state = jax.vmap(env.reset_env, (0, None))(keys, env_params)
    envs = state, obs, jnp.zeros(3, bool)
    _, rows = jax.jit(one.collect, static_argnums=(0, 1))(
        config, env, env_params, params, envs, keys[2]
    )
    done = np.asarray(rows.terminated | rows.truncated)
    assert done.any()
    np.testing.assert_array_equal(~np.asarray(rows.valid)[1:], done[:-1])
    np.testing.assert_array_equal(np.asarray(rows.reward), np.asarray(rows.valid))
    after_reset = np.asarray(rows.obs)[2:][~np.asarray(rows.valid)[1:-1]]
    assert np.abs(after_reset).max() <= 0.05  # the starts of CartPole


@pytest.mark.full
@pytest.mark.usefixtures("optimized")
def test_the_one_file_ppo_learns_cartpole(one):
    _, lengths = one.train(one.Config(num_updates=100), seed=0)
    assert lengths[:5].mean() < 50 and lengths[-10:].mean() > 200
