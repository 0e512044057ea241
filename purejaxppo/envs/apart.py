"""Environments in JAX with a key each, independent of the number of environments."""

from dataclasses import replace

import jax

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.envs.base import Env, EnvStep


class Apart:
    """G times one environment, or one world of A agents, as a batch of G x A rows.

    Args:
        env: one environment or world.
        count: G.
    """

    failure = None  # nothing runs on the host

    def __init__(self, env: Env, count: int) -> None:
        """Stores the environment and its facts."""
        self.env = env
        self.count = count
        self.spec = replace(env.spec, num_envs=count * env.spec.num_envs)

    def close(self) -> None:
        """Does nothing: nothing runs on the host."""

    def reset(self, keys: Key) -> tuple[EnvState, Obs]:
        """Keys [G] -> (state, obs [N, ...])."""
        state, obs = jax.vmap(self.env.reset)(keys)
        return state, _joined(obs)

    def with_key(self, state: EnvState, keys: Key) -> EnvState:
        """See `Env.with_key`; keys [G]."""
        return jax.vmap(self.env.with_key)(state, keys)

    def step(self, state: EnvState, action: EnvAction) -> tuple[EnvState, EnvStep]:
        """(state, action [N, ...]) -> (state, EnvStep); see `Env`."""
        apart = jax.tree.map(lambda x: x.reshape(self.count, -1, *x.shape[1:]), action)
        state, out = jax.vmap(self.env.step)(state, apart)
        return state, _joined(out)


def _joined(tree):
    """Arrays [G, A, ...] as [G * A, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)
