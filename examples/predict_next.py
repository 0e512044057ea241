"""A custom auxiliary loss with parameters: predict the next observation from the features.

An auxiliary loss changes the features of the policy. Its parameters are trained, saved and resumed
with those of the agent; its mean is the column losses/predict_next.

In Python, in this folder:

    from predict_next import predict_next
    from purejaxppo import train

    changes = {"ppo.terms": [predict_next], "ppo.term_coefs": [0.1]}
    run = train("cartpole.yaml", total_timesteps=500_000, **changes)
    print(run.metrics["losses/predict_next"])

On the command line; the coefficient is tunable, so the sweep is one program:

    purejaxppo train --config cartpole.yaml --ppo.terms predict_next.py:predict_next \
        --ppo.term_coefs 0.1
    purejaxppo sweep --config cartpole.yaml --ppo.terms predict_next.py:predict_next \
        --grid "ppo.term_coefs=[0.0],[0.1],[1.0]"
"""

import jax
import jax.numpy as jnp

from purejaxppo import AuxiliaryLoss

NUM_ACTIONS = 2
"""Number of actions of CartPole."""
WIDTH = 32


def joined(outputs, rows):
    """Return features and actions [B, F + NUM_ACTIONS]."""
    return jnp.concatenate([outputs.features, jax.nn.one_hot(rows.action, NUM_ACTIONS)], -1)


def init(key, outputs, rows):
    """Return the parameters of a network with one hidden layer."""
    keys = jax.random.split(key)
    inputs, size = joined(outputs, rows).shape[-1], rows.next_obs.shape[-1]
    return {
        "hidden": jax.random.normal(keys[0], (inputs, WIDTH)) / jnp.sqrt(inputs),
        "out": jax.random.normal(keys[1], (WIDTH, size)) / jnp.sqrt(WIDTH),
        "bias": jnp.zeros(size),
    }


def loss(params, outputs, rows):
    """Return the squared error of the predicted change of normalised observations, [B]."""
    hidden = jnp.tanh(joined(outputs, rows) @ params["hidden"])
    change = hidden @ params["out"] + params["bias"]
    return jnp.mean(jnp.square(rows.obs + change - rows.next_obs), -1)


predict_next = AuxiliaryLoss(loss, rows=("next_obs",), init=init, name="predict_next")
