"""A custom objective: PPO with rollback, which moves ratios outside of the clip range back.

In Python, in this folder:

    from own_objective import rollback
    from purejaxppo import train

    run = train("cartpole.yaml", total_timesteps=500_000, ppo={"objective": rollback})

On the command line; `clip_eps` is still tunable, and a sweep can vary it in one program:

    purejaxppo train --config cartpole.yaml --ppo.objective own_objective.py:rollback
    purejaxppo sweep --config cartpole.yaml --ppo.objective own_objective.py:rollback \
        --grid ppo.clip_eps=0.1,0.2,0.3
"""

import jax.numpy as jnp

SLOPE = 0.3
"""Magnitude of the negative slope outside of the clip range."""


def rollback(log_ratio, advantage, hp):
    """Return the loss of each row, -min(r A, f(r) A), to be minimised.

    f(r) is r from 1 - ε to 1 + ε, and has slope -`SLOPE` outside. Wang et al. 2019,
    https://arxiv.org/abs/1903.07940.

    Args:
        log_ratio: log of the probability of the action by the new policy over the old one, [B].
        advantage: advantage [B], normalised by the config.
        hp: tunable numbers of the section ppo, after schedules.
    """
    ratio = jnp.exp(log_ratio)
    inside = jnp.clip(ratio, 1.0 - hp.clip_eps, 1.0 + hp.clip_eps)
    pulled = inside - SLOPE * (ratio - inside)
    return -jnp.minimum(ratio * advantage, pulled * advantage)
