"""The intrinsic curiosity module: the prediction error of an action's effect on learned features.

Features are learned by predicting the action from the observations before and after it, so that
parts of an observation without influence of the agent add no error. Pathak et al. 2017,
https://arxiv.org/abs/1705.05363.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from purejaxppo import spaces
from purejaxppo.agents.extras.intrinsic.base import BonusRows, Intrinsic, from_error
from purejaxppo.agents.extras.intrinsic.rnd import Features
from purejaxppo.agents.networks import distributions
from purejaxppo.agents.networks.encoders import Encoder, dense
from purejaxppo.aliases import Action, Array, Key, Obs, Params
from purejaxppo.config.schema import IntrinsicConfig, NetworkConfig

FORWARD = 0.2
"""Weight of the forward model's loss, β; the inverse model's is 1 - β."""


class Curiosity(nn.Module):
    """Features, a forward and an inverse model."""

    observation: spaces.Space
    action: spaces.Space
    network: NetworkConfig
    config: IntrinsicConfig
    num_params: int

    @nn.compact
    def __call__(self, obs: Obs, next_obs: Obs, action: Action) -> tuple[Array, Array]:
        """-> (forward model's squared error [...], parameters of the predicted action [..., P])."""
        config = self.config
        features = Features(
            self.observation, self.network, config.hidden, config.features, name="features"
        )
        before, after = features(obs), features(next_obs)
        did = Encoder(self.action, self.network, name="action")(action)
        forward = [jax.lax.stop_gradient(before), did]
        guess = self.model(forward, config.features, "forward")
        error = 0.5 * jnp.mean(jnp.square(guess - jax.lax.stop_gradient(after)), axis=-1)
        return error, self.model([before, after], self.num_params, "inverse")

    def model(self, parts: list[Array], size: int, name: str) -> Array:
        """One hidden layer."""
        x = jnp.concatenate(parts, axis=-1)
        x = nn.relu(dense(self.config.hidden[-1], np.sqrt(2), f"{name}_dense", "orthogonal")(x))
        return dense(size, 1.0, name, "orthogonal")(x)


def make(
    observation: spaces.Space,
    action: spaces.Space,
    network: NetworkConfig,
    config: IntrinsicConfig,
) -> Intrinsic:
    """The bonus from the forward model's error.

    The forward model's loss has no gradient for the features: its error would else be smallest for
    constant features.
    """
    distribution = distributions.for_space(action)
    log_std = distributions.parameter_kinds(action) == "log_std"
    module = Curiosity(observation, action, network, config, distribution.num_params)

    def init(key: Key) -> Params:
        obs = spaces.example(observation)
        return module.init(key, obs, obs, spaces.example(action))["params"]

    def errors(params: Params, rows: BonusRows) -> tuple[Array, Array]:
        out: Any = module.apply({"params": params}, rows.obs, rows.next_obs, rows.action)
        error, guess = out
        guess = jnp.where(log_std, 0.0, guess)  # the squared error of continuous actions
        inverse = -distribution.log_prob(guess, rows.action)
        return error, (1.0 - FORWARD) * inverse + FORWARD * error

    return from_error(init, errors, config)
