"""A custom intrinsic reward: one over the square root of visits, counted by hashes.

Observations whose random projections have the same signs share a count (SimHash, Tang et al. 2017,
https://arxiv.org/abs/1611.04717).

In Python, in this folder:

    from own_bonus import count_bonus
    from purejaxppo import train

    changes = {"env.name": "gymnax/MountainCar-v0", "intrinsic.kind": count_bonus}
    run = train(total_timesteps=1_000_000, **changes, **{"ppo.intrinsic_coef": 0.1})
    print(run.metrics["intrinsic/seen"])

On the command line:

    purejaxppo train --env.name gymnax/MountainCar-v0 --intrinsic.kind own_bonus.py:count_bonus \
        --ppo.intrinsic_coef 0.1 --total_timesteps 1_000_000
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from purejaxppo import Intrinsic

BITS = 10
"""The number of counts is 2**BITS."""


def count_bonus(config, spec):
    """Return the bonus for environments of `spec`; `config` is the config of the run."""
    size = math.prod(spec.observation.shape)
    directions = jax.random.normal(jax.random.key(config.seed), (size, BITS))
    return Intrinsic(
        init=lambda key: jnp.zeros(2**BITS),  # the state: visits of each hash
        reward=partial(reward, directions),
        update=partial(update, directions),
        metric_names=("intrinsic/seen",),
    )


def hashes(directions, obs):
    """Hash observations [T, N, ...] to int32 [T, N]."""
    bits = obs.reshape((*obs.shape[:2], -1)) @ directions > 0
    return jnp.sum(bits * 2 ** jnp.arange(BITS), -1)


def reward(directions, counts, rows):
    """Return the bonus of each step [T, N], for its next observation; 0 in rows that reset."""
    visits = counts[hashes(directions, rows.next_obs)]
    return jnp.where(rows.valid, 1.0 / jnp.sqrt(visits + 1.0), 0.0)


def update(directions, counts, rows, key, psum):
    """Return (the counts after a rollout, metrics); `psum` sums over all shards of environments."""
    del key
    found = hashes(directions, rows.next_obs)
    new = jnp.zeros_like(counts).at[found].add(rows.valid.astype(counts.dtype))
    counts = counts + psum(new)
    return counts, {"intrinsic/seen": jnp.mean(counts > 0)}
