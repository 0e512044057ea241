"""With reward 1, time limits and V = 1 / (1 - gamma), rollouts of games have no advantage."""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.godot import GAME
from support.unity import make_player

from purejaxppo import rollout
from purejaxppo.agents import advantages, decisions
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.types import PolicyStep

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(os.name != "posix", reason="games are started on Linux and macOS alone"),
]
GAMMA, T, ROLLOUTS = 0.75, 20, 4


def rollouts(env, choose):
    """One rollout after another, of actions by `choose` of observations."""

    def act(key, carry, obs, start):
        action = choose(obs)
        zeros = jnp.zeros(env.spec.num_envs)
        return PolicyStep(carry, action, zeros, action)

    state = jax.jit(partial(rollout.init_rollout, env, lambda batch: ()))(jax.random.key(0))
    step = jax.jit(lambda state: rollout.collect(env, act, state, jax.random.key(0), T))
    for _ in range(ROLLOUTS):
        found = jax.device_get(step(state))
        state = found.end
        yield found.transitions


def advantage_of(rows):
    """Advantages where V is right everywhere."""
    value = jnp.full(rows.reward.shape, 1 / (1 - GAMMA))
    after = value
    if rows.absent is not None:
        after = decisions.following(value, value[0], jnp.asarray(rows.absent))
    ends = rows.terminated | rows.truncated
    return advantages.gae(
        *map(jnp.asarray, (rows.reward, value, after, rows.terminated, ends, rows.valid)),
        gamma=GAMMA,
        gae_lambda=0.9,
        absent=rows.absent,
    ).advantage


@pytest.mark.parametrize(
    "asks", ["--period 1", "--period 5", "--period 5 --offset 2", "--offset 1 --period 3 --pause 4"]
)
def test_agents_of_a_unity_player(asks, tmp_path):
    pytest.importorskip("grpc")
    arguments = f"--agents 3 --cut --length 4 --parameter goal {asks}"
    options = {"arguments": arguments, "timeout": 20.0, "max_agents": 3, "parameters.goal": 0.0}
    config = EnvConfig(name=f"unity/{make_player(tmp_path)}", num_envs=3, options=options)
    env = registry.make(config, 3)
    try:
        found = list(rollouts(env, lambda obs: jnp.zeros((3, 2))))
    finally:
        env.close()
    absent = 0
    for rows in found:
        if "offset" not in asks:  # nor are first and last decisions shorter than others
            np.testing.assert_allclose(rows.reward[rows.valid], 1.0, rtol=1e-6)
        assert not rows.terminated.any()
        paid = rows._replace(reward=rows.valid.astype(np.float32))
        np.testing.assert_allclose(advantage_of(paid), 0.0, atol=1e-6)
        absent += rows.absent.sum()
    assert sum(rows.truncated.sum() for rows in found) >= 12
    assert (absent > 0) == ("offset" in asks)


def test_agents_of_a_godot_game():
    options = {"arguments": "--cut=2", "timeout": 10.0}
    env = registry.make(EnvConfig(name=f"godot/{GAME}", num_envs=4, options=options), 4)
    try:
        found = list(rollouts(env, lambda obs: jnp.where(obs[:, 0] > 0, 2, 0)))
    finally:
        env.close()
    for rows in found:
        np.testing.assert_array_equal(rows.reward[rows.valid], 1.0)
        assert not rows.terminated.any() and not rows.valid.all()
        np.testing.assert_array_equal(advantage_of(rows), 0.0)
    assert sum(rows.truncated.sum() for rows in found) >= 50
