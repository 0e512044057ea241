"""An objective of your own: PPO with rollback, which pulls a ratio back that has left its range.

In Python, in this folder:

    from own_objective import rollback
    from purejaxppo import train

    run = train("cartpole.yaml", total_timesteps=500_000, **{"ppo.objective": rollback})

On the command line; `clip_eps` is still a number that a sweep may vary in one program:

    purejaxppo train --config cartpole.yaml --ppo.objective own_objective.py:rollback
    purejaxppo sweep --config cartpole.yaml --ppo.objective own_objective.py:rollback \
        --grid ppo.clip_eps=0.1,0.2,0.3
"""

import jax.numpy as jnp

SLOPE = 0.3
"""Strength of the pull."""


def rollback(log_ratio, advantage, hp):
    """The loss of each row, -min(r A, f(r) A), to be minimised.

    f(r) is r from 1 - ε to 1 + ε, and falls with `SLOPE` beyond. Wang et al. 2019,
    https://arxiv.org/abs/1903.07940.

    Args:
        log_ratio: log of the new policy's probability of the action over the old one's, [B].
        advantage: normalised as configured, [B].
        hp: the tunable numbers of the section ppo, scheduled.
    """
    ratio = jnp.exp(log_ratio)
    inside = jnp.clip(ratio, 1.0 - hp.clip_eps, 1.0 + hp.clip_eps)
    pulled = inside - SLOPE * (ratio - inside)
    return -jnp.minimum(ratio * advantage, pulled * advantage)
