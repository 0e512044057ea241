"""A custom auxiliary loss with parameters: predict the next observation."""

import jax
import jax.numpy as jnp

from purejaxppo import AuxiliaryLoss


def init(key, outputs, rows):
    """Return the initial parameters, any pytree of arrays. They are trained with the agent's."""
    sizes = outputs.features.shape[-1], rows.next_obs.shape[-1]
    return {"w": 0.1 * jax.random.normal(key, sizes), "b": jnp.zeros(sizes[1])}


def loss(params, outputs, rows):
    """Compute the loss of each row of a minibatch, [B]. Its mean is over the valid rows.

    Args:
        params: parameters from `init`. An auxiliary loss without `init` has the arguments
            (outputs, rows) only.
        outputs: outputs of the network: `features` [B, F], `dist_params`, `critic`.
        rows: `obs` (after preprocessing), `action`, `log_prob`, `value`, `target`, `advantage`,
            `valid`, and the requested rows (below).
    """
    predicted = outputs.features @ params["w"] + params["b"]
    return jnp.mean(jnp.square(predicted - rows.next_obs), axis=-1)


# `rows` requests next_obs, reward, terminated or truncated. The mean loss is the metric
# losses/predict_next, and its weight is set by --ppo.term_coefs.
predict_next = AuxiliaryLoss(loss, rows=("next_obs",), init=init, name="predict_next")
