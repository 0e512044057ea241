"""Random network distillation (RND): prediction error on a fixed random network as novelty bonus.

Burda et al. 2018, https://arxiv.org/abs/1810.12894. Here the intrinsic reward is added to the
reward, with one value function and one discount. The paper uses a second value head.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from purejaxppo import spaces
from purejaxppo.agents.extras.intrinsic.base import BonusRows, Intrinsic, from_error
from purejaxppo.agents.networks.actor_critic import input_space, select_parts
from purejaxppo.agents.networks.encoders import Encoder, dense
from purejaxppo.aliases import Array, Key, Obs, Params
from purejaxppo.config.schema import IntrinsicConfig, NetworkConfig


class Features(nn.Module):
    """An encoder, hidden layers, and a linear layer of features. An action mask is not an input."""

    space: spaces.Space
    network: NetworkConfig
    hidden: tuple[int, ...]
    features: int

    @nn.compact
    def __call__(self, obs: Obs) -> Array:
        """Map observations [..., *shape] to features [..., features]."""
        space = input_space(self.space)
        x = Encoder(space, self.network, name="encoder")(select_parts(obs, space))
        for i, width in enumerate(self.hidden):
            x = nn.relu(dense(width, np.sqrt(2), f"dense_{i}", "orthogonal")(x))
        return dense(self.features, np.sqrt(2), "features", "orthogonal")(x)


def make(observation: spaces.Space, network: NetworkConfig, config: IntrinsicConfig) -> Intrinsic:
    """Return the intrinsic reward of RND, |g(oₜ₊₁) - g_random(oₜ₊₁)|² / F.

    g is the trained network, g_random is fixed; both have F outputs.

    Args:
        observation: space of the observations.
        network: settings of the encoder.
        config: settings of the intrinsic reward.

    Reference: Burda et al. 2018, https://arxiv.org/abs/1810.12894, section 2.2.
    """
    target = Features(observation, network, config.hidden[:-1], config.features)
    predictor = Features(observation, network, config.hidden, config.features)

    def init(key: Key) -> Params:
        obs = spaces.example(observation)
        keys = jax.random.split(key)
        return {
            "target": target.init(keys[0], obs)["params"],
            "predictor": predictor.init(keys[1], obs)["params"],
        }

    def errors(params: Params, rows: BonusRows) -> tuple[Array, Array]:
        target_features: Any = target.apply(
            {"params": jax.lax.stop_gradient(params["target"])}, rows.next_obs
        )
        prediction = predictor.apply({"params": params["predictor"]}, rows.next_obs)
        error = jnp.mean(jnp.square(prediction - target_features), axis=-1)
        return error, error

    return from_error(init, errors, config)
