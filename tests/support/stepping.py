"""Steps of environments outside of training."""

import jax
import jax.numpy as jnp
import numpy as np

KEY = jax.random.key(7)
"""Key of steps whose random numbers are irrelevant."""


def play(env, state, actions):
    """Return (the state after actions [T, N, ...], their steps [T, N, ...])."""
    keys = jax.random.split(KEY, len(jax.tree.leaves(actions)[0]))
    return jax.lax.scan(lambda state, now: env.step(now[0], state, now[1]), state, (keys, actions))


def begin(env, state, progress=0.0):
    """Return the state at the start of a rollout."""
    return env.begin_rollout(state, KEY, progress)


def first_env_steps(env, actions):
    """Return the first observation of environment 0, and its rewards, ends and valid rows.

    Args:
        env: environments with vectors as observations.
        actions: numbers; every environment takes each of them in turn.
    """
    state, obs = env.reset(jax.random.key(0))
    shape = (env.spec.num_envs, *getattr(env.spec.action, "shape", ()))
    outs = []
    for action in actions:
        state, out = env.step(KEY, state, jnp.full(shape, action))
        outs.append([x[0] for x in (out.reward, out.terminated, out.truncated, out.valid)])
    return float(obs[0, 0]), np.array(outs, float)
