"""A custom network as a flax.linen module: observations [B, ...] -> features [B, F].

Observations are normalised; the library provides the heads for actions and values, action masks,
recurrent cells and the export. A field `config` gets the section `network`.

In Python, in this folder:

    from own_network import Residual
    from purejaxppo import train

    run = train("cartpole.yaml", total_timesteps=500_000, network={"torso": Residual})

On the command line; an exported policy does not need this file:

    purejaxppo train --config cartpole.yaml --network.torso own_network.py:Residual
    purejaxppo train --config cartpole.yaml --network.torso own_network.py:shared --run_dir runs/net
    purejaxppo export --run runs/net --to policy.onnx
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from purejaxppo import Torso


class Residual(nn.Module):
    """A layer of width `network.hidden[0]`, and a residual block for each further width."""

    config: Any

    @nn.compact
    def __call__(self, obs):
        """Return features [B, F] of observations [B, ...]."""
        obs = obs.reshape((obs.shape[0], -1))
        first, *others = self.config.hidden
        x = nn.Dense(first)(obs)
        for width in others:
            hidden = nn.Dense(width, kernel_init=nn.initializers.orthogonal(jnp.sqrt(2.0)))(x)
            x = x + nn.Dense(first, kernel_init=nn.initializers.zeros)(nn.swish(hidden))
        return nn.LayerNorm()(x)


def shared(config):
    """Return one network for policy and critic; `own_network.py:Residual` makes separate ones."""
    return Torso(Residual(config))
