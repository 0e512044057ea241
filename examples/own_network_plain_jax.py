"""A custom network in plain JAX: any object with `init(key, obs)` and `apply(params, obs)`.

In Python, in this folder:

    from own_network_plain_jax import Fourier
    from purejaxppo import train

    run = train("cartpole.yaml", total_timesteps=500_000, network={"torso": Fourier})

On the command line:

    purejaxppo train --config cartpole.yaml --network.torso own_network_plain_jax.py:Fourier
"""

import jax
import jax.numpy as jnp


class Fourier:
    """Sines and cosines of learned frequencies, and a dense layer.

    Li & Pathak 2021, https://arxiv.org/abs/2112.03257.
    """

    def __init__(self, frequencies: int = 32, width: int = 64, scale: float = 0.5):
        """Set sizes, and the standard deviation of the initial frequencies."""
        self.frequencies, self.width, self.scale = frequencies, width, scale

    def init(self, key, obs):
        """Return parameters, as any pytree of arrays, for observations [B, D]."""
        keys = jax.random.split(key)
        rows = 2 * self.frequencies
        return {
            "frequencies": self.scale
            * jax.random.normal(keys[0], (obs.shape[-1], self.frequencies)),
            "w": jax.random.normal(keys[1], (rows, self.width)) / jnp.sqrt(rows),
            "b": jnp.zeros(self.width),
        }

    def apply(self, params, obs):
        """Return features [B, F] of observations [B, D]."""
        angle = obs @ params["frequencies"]
        waves = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
        return jnp.tanh(waves @ params["w"] + params["b"])
