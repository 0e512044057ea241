"""Steps of environments outside of training."""

import jax

KEY = jax.random.key(7)
"""Key of steps whose random numbers are irrelevant."""


def play(env, state, actions):
    """Return (the state after actions [T, N, ...], their steps [T, N, ...])."""
    keys = jax.random.split(KEY, len(jax.tree.leaves(actions)[0]))
    return jax.lax.scan(lambda state, now: env.step(now[0], state, now[1]), state, (keys, actions))


def begin(env, state, progress=0.0):
    """Return the state at the start of a rollout."""
    return env.begin_rollout(state, KEY, progress)
