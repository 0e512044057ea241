"""The warp implementation of MJX for Playground tasks. Its kernels also run on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.packages import skip_without
from support.stepping import begin, play

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.adapters import playground

skip_without("mujoco_playground")
skip_without("warp")

pytestmark = pytest.mark.full
NUM_ENVS, LIMIT = 3, 5


def rollout(backend):
    """Return a function: key -> rows of steps, across ends of episodes."""
    config = EnvConfig("playground/CartpoleBalance", backend=backend, max_episode_steps=LIMIT)
    env = registry.make(config, NUM_ENVS)

    def run(key):
        state, _ = env.reset(key)
        action = jnp.full((NUM_ENVS, 1), 0.3)
        return play(env, begin(env, state), jnp.broadcast_to(action, (13, *action.shape)))[1]

    return run


def test_warp_episodes_equal_jax_episodes_also_for_several_seeds(monkeypatch, key):
    monkeypatch.setattr(playground, "_check_warp", lambda *args: None)
    expected = jax.jit(rollout("jax"))(key)
    keys = jnp.stack([jax.random.key(1), key])
    found = jax.tree.map(lambda x: x[1], jax.jit(jax.vmap(rollout("warp")))(keys))
    assert found.truncated.sum() == 2 * NUM_ENVS
    np.testing.assert_array_equal(found.valid, expected.valid)
    np.testing.assert_allclose(found.obs, expected.obs, atol=1e-5)
    np.testing.assert_allclose(found.reward, expected.reward, atol=1e-5)
