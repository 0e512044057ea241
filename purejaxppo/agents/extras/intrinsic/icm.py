"""Intrinsic curiosity module (ICM): error in predicting the next features from features and action.

The features are learned by predicting the action from the observations before and after it. Parts
of an observation that the agent cannot influence therefore add no error.

Pathak et al. 2017, https://arxiv.org/abs/1705.05363.
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

FORWARD_WEIGHT = 0.2
"""Weight β of the forward model's loss. The weight of the inverse model's loss is 1 - β."""


class Curiosity(nn.Module):
    """Features, a forward model and an inverse model."""

    observation: spaces.Space
    action: spaces.Space
    network: NetworkConfig
    config: IntrinsicConfig
    num_params: int

    @nn.compact
    def __call__(self, obs: Obs, next_obs: Obs, action: Action) -> tuple[Array, Array]:
        """Compute the error of the forward model and the prediction of the inverse model.

        Args:
            obs: observations before the step [..., *shape].
            next_obs: observations after it.
            action: actions [..., *shape].

        Returns:
            (half the mean squared error of the features [...], distribution parameters of the
            predicted action [..., P]).
        """
        config = self.config
        features = Features(
            self.observation, self.network, config.hidden, config.features, name="features"
        )
        before, after = features(obs), features(next_obs)
        encoded_action = Encoder(self.action, self.network, name="action")(action)
        forward = [jax.lax.stop_gradient(before), encoded_action]
        prediction = self.model(forward, config.features, "forward")
        error = 0.5 * jnp.mean(jnp.square(prediction - jax.lax.stop_gradient(after)), axis=-1)
        return error, self.model([before, after], self.num_params, "inverse")

    def model(self, inputs: list[Array], size: int, name: str) -> Array:
        """Apply one hidden layer and a linear layer of `size` outputs."""
        x = jnp.concatenate(inputs, axis=-1)
        x = nn.relu(dense(self.config.hidden[-1], np.sqrt(2), f"{name}_dense", "orthogonal")(x))
        return dense(size, 1.0, name, "orthogonal")(x)


def make(
    observation: spaces.Space,
    action: spaces.Space,
    network: NetworkConfig,
    config: IntrinsicConfig,
) -> Intrinsic:
    """Return the intrinsic reward of ICM: the error of the forward model.

    The losses are L = (1 - β) L_inverse + β L_forward, with

        L_forward = |f(φ(oₜ), aₜ) - φ(oₜ₊₁)|² / (2 F)        L_inverse = -log p(aₜ | φ(oₜ), φ(oₜ₊₁))

    L_forward has no gradient for the features φ [F]. Otherwise constant features would minimise it.

    Args:
        observation: space of the observations.
        action: space of the actions.
        network: settings of the encoder.
        config: settings of the intrinsic reward.

    Raises:
        ValueError: the policy has a custom distribution, whose actions may have any form.

    Reference: Pathak et al. 2017, https://arxiv.org/abs/1705.05363, eq. 2 to 7.
    """
    distribution = distributions.for_space(action)
    log_std = distributions.parameter_kinds(action) == "log_std"
    if np.any(log_std) and network.distribution not in distributions.CONTINUOUS:
        *first, last = distributions.CONTINUOUS
        raise ValueError(
            f"intrinsic.kind = icm does not support network.distribution = {network.distribution}. "
            f"Use network.distribution = {', '.join(first)} or {last}, or intrinsic.kind = rnd."
        )
    module = Curiosity(observation, action, network, config, distribution.num_params)

    def init(key: Key) -> Params:
        obs = spaces.example(observation)
        return module.init(key, obs, obs, spaces.example(action))["params"]

    def errors(params: Params, rows: BonusRows) -> tuple[Array, Array]:
        out: Any = module.apply({"params": params}, rows.obs, rows.next_obs, rows.action)
        error, dist_params = out
        dist_params = jnp.where(log_std, 0.0, dist_params)  # squared error for continuous actions
        inverse = -distribution.log_prob(dist_params, rows.action)
        return error, (1.0 - FORWARD_WEIGHT) * inverse + FORWARD_WEIGHT * error

    return from_error(init, errors, config)
