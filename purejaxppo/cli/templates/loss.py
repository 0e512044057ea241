"""A term of the loss of your own: predict the next observation, with parameters of its own."""

import jax
import jax.numpy as jnp

from purejaxppo import AuxiliaryLoss


def init(key, outputs, rows):
    """The term's parameters, any pytree of arrays; they are trained with the agent's."""
    sizes = outputs.features.shape[-1], rows.next_obs.shape[-1]
    return {"w": 0.1 * jax.random.normal(key, sizes), "b": jnp.zeros(sizes[1])}


def loss(params, outputs, rows):
    """The loss of each row of a minibatch, [B]; only valid rows count in its mean.

    Args:
        params: as `init` makes them; a term without `init` takes the other two alone.
        outputs: the network's: `features` [B, F], `dist_params`, `critic`.
        rows: `obs` (as the network sees it), `action`, `log_prob`, `value`, `target`, `advantage`,
            `valid`, and those that the term asks for.
    """
    predicted = outputs.features @ params["w"] + params["b"]
    return jnp.mean(jnp.square(predicted - rows.next_obs), axis=-1)


# `rows` may name next_obs, reward, terminated and truncated; others are not stored. Its mean is the
# column losses/predict_next, its coefficient an entry of --ppo.term_coefs.
predict_next = AuxiliaryLoss(loss, rows=("next_obs",), init=init, name="predict_next")
