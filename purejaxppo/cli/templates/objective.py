"""An objective of your own: PPO's clip, with more room upwards than downwards."""

import jax.numpy as jnp


def objective(log_ratio, advantage, hp):
    """The clipped surrogate with ratios from 1 - clip_eps to 1 + 1.4 clip_eps.

    Args:
        log_ratio: log of the new policy's probability of the action over the old one's, [B].
        advantage: normalised as configured, [B].
        hp: the numbers of the section ppo that may change while training, such as hp.clip_eps.

    Returns:
        The loss of each row, to be minimised, [B].
    """
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - hp.clip_eps, 1.0 + 1.4 * hp.clip_eps)
    return -jnp.minimum(ratio * advantage, clipped * advantage)
