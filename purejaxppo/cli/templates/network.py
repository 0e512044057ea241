"""A custom network: a flax.linen module from observations to features.

Policy and critic each use one. The library normalises observations before it, and adds the
recurrent cell, action masks and the output layers after it.
"""

from flax import linen as nn


class Net(nn.Module):
    """Two hidden layers with a skip connection from the observation."""

    width: int = 64

    @nn.compact
    def __call__(self, obs):
        """Return features [B, F] of observations [B, ...]."""
        obs = obs.reshape((obs.shape[0], -1))
        hidden = nn.swish(nn.Dense(self.width)(obs))
        joined = nn.LayerNorm()(hidden) + nn.Dense(self.width)(obs)
        return nn.swish(nn.Dense(self.width)(joined))
