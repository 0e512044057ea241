"""A custom policy objective: PPO's clip with a larger upper bound of the ratio."""

import jax.numpy as jnp


def objective(log_ratio, advantage, hp):
    """Compute the surrogate with the ratio clipped to 1 - clip_eps and 1 + 1.4 clip_eps.

    Args:
        log_ratio: log probability of the action under the new policy minus the old one, [B].
        advantage: advantage, normalised as configured, [B].
        hp: tunable numbers of the section ppo, such as hp.clip_eps.

    Returns:
        Loss of each row, [B].
    """
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - hp.clip_eps, 1.0 + 1.4 * hp.clip_eps)
    return -jnp.minimum(ratio * advantage, clipped * advantage)
