"""Hidden layers of your own: a flax.linen module from observations to features.

Policy and critic have one each. What follows them (outputs for actions and values, masks, memory)
and what precedes them (normalised observations) stays as it is.
"""

from flax import linen as nn


class Net(nn.Module):
    """Two layers, of which the second one sees the observation again."""

    width: int = 64

    @nn.compact
    def __call__(self, obs):
        """Observations [B, ...] -> features [B, F]."""
        obs = obs.reshape((obs.shape[0], -1))
        hidden = nn.swish(nn.Dense(self.width)(obs))
        joined = nn.LayerNorm()(hidden) + nn.Dense(self.width)(obs)
        return nn.swish(nn.Dense(self.width)(joined))
