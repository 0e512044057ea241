"""Flax modules of policy and critic: torsos, recurrent cells and heads."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from purejaxppo import spaces
from purejaxppo.agents.networks import action_masks, cells, distributions, encoders, torsos
from purejaxppo.agents.networks.encoders import ACTIVATIONS, Encoder, dense
from purejaxppo.aliases import Array, Carry, Obs, Params
from purejaxppo.config.schema import NetworkConfig
from purejaxppo.spaces import MASK

IMPOSSIBLE = -1e9
"""Logit of a forbidden action. Its probability is exactly 0 in float32, its gradient is finite."""


LOG_STD = "log_std"
"""Name of the parameter with log standard deviations that do not depend on the observation."""


class DenseResidual(nn.Module):
    """Residual block x + f(x), where f is a layer norm, a wide layer, a relu and a dense layer."""

    config: NetworkConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Map [..., F] to [..., F]."""
        initializer, dtype, width = self.config.initializer, self.config.compute_dtype, x.shape[-1]
        y = nn.LayerNorm(dtype=x.dtype, name="norm")(x)
        y = nn.relu(dense(4 * width, np.sqrt(2), "wide", initializer, dtype)(y))
        return x + dense(width, 1.0, "narrow", initializer, dtype)(y)


class BuiltinTorso(nn.Module):
    """Encoder and hidden layers."""

    space: spaces.Space
    config: NetworkConfig
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, obs: Obs) -> Array:
        """Map observations [..., *shape] to features [..., hidden[-1]]."""
        x = Encoder(self.space, self.config, name="encoder")(obs)
        return self.dense_layers(x) if self.config.block == "plain" else self.residual(x)

    def dense_layers(self, x: Array) -> Array:
        """Apply dense layers."""
        config = self.config
        for i, width in enumerate(self.hidden):
            layer = f"dense_{i}"
            x = dense(width, np.sqrt(2), layer, config.initializer, config.compute_dtype)(x)
            if config.layer_norm:
                x = nn.LayerNorm(dtype=x.dtype, name=f"norm_{i}")(x)
            x = ACTIVATIONS[config.activation](x)
        return x

    def residual(self, x: Array) -> Array:
        """Apply a linear layer, one residual block per width, and a layer norm."""
        config = self.config
        x = dense(self.hidden[0], 1.0, "enter", config.initializer, config.compute_dtype)(x)
        for i in range(len(self.hidden)):
            x = DenseResidual(config, name=f"block_{i}")(x)
        return nn.LayerNorm(dtype=x.dtype, name="norm")(x)


class ActorCritic(nn.Module):
    """Distribution parameters and critic outputs, from separate torsos or a shared one.

    Recurrent cells and heads use float32 for every dtype of the torsos. With its 8 bits, bfloat16
    would round a value of 500 to a multiple of 2.
    """

    observation: spaces.Space
    action: spaces.Space
    config: NetworkConfig
    critic_outputs: int
    critic_gain: float = 1.0
    torso: torsos.Torso | None = None
    """Custom torsos, instead of those of the config."""
    paired: bool = False
    """Compute policy and critic in one batch where their torsos or cells have the same shapes."""

    @property
    def shared(self) -> bool:
        """True if policy and critic share one torso."""
        return self.config.torso == "shared" if self.torso is None else self.torso.critic is None

    @nn.compact
    def __call__(
        self, carry: Carry, obs: Obs, start: Array | None, absent: Array | None = None
    ) -> tuple[Carry, Array, Array, Array]:
        """Compute the fields of `Outputs` for one step, or for several.

        Without a recurrent cell, [...] are any leading axes, and `carry` is (). With a cell, [...]
        is [T, N].

        Args:
            carry: recurrent carry before the first step, arrays [N, ...].
            obs: observations [..., *shape], as `spaces.network_input` describes them.
            start: True where the carry is reset, bool [T, N].
            absent: True where the carry does not change, bool [T, N]; None: nowhere.

        Returns:
            (carry, distribution parameters [..., P], critic outputs [..., K], features of the
            policy [..., F]).
        """
        config = self.config
        actor_space = input_space(self.observation, config.actor_keys, "actor_keys")
        name = "torso" if self.shared else "actor_torso"
        if self.shared:
            features = [self.features(name, actor_space, config.hidden, obs)]
        else:
            space = input_space(self.observation, config.critic_keys, "critic_keys")
            hidden = config.critic_hidden or config.hidden
            features = self.pair_of_features(actor_space, space, hidden, obs) or [
                self.features(name, actor_space, config.hidden, obs),
                self.features("critic_torso", space, hidden, obs),
            ]
        if config.rnn != "none":
            assert start is not None
            carry, features = self.apply_cells(carry, features, start, absent)
        head = dense(self.critic_outputs, self.critic_gain, "critic", config.initializer)
        outputs = head(features[-1])
        params = self.head(features[0])
        if has_mask(self.observation):
            kind = config.distribution
            params = action_masks.forbid(
                params, obs[MASK], self.action, IMPOSSIBLE, continuous=kind
            )
        return carry, params, outputs, features[0]

    def pair(self, *names: str) -> Params | None:
        """Return the parameters of two modules, stacked [2, ...]; None if they are not paired."""
        if not self.paired or self.is_initializing():
            return None
        first, second = (self.variables["params"][name] for name in names)
        if jax.tree.map(jnp.shape, first) != jax.tree.map(jnp.shape, second):
            return None
        return jax.tree.map(lambda *x: jnp.stack(x), first, second)

    def pair_of_features(
        self, space: spaces.Space, of_critic: spaces.Space, hidden: tuple[int, ...], obs: Obs
    ) -> list[Array]:
        """Return features of policy and critic, computed in one batch; [] if impossible."""
        config = self.config
        if space != of_critic or hidden != config.hidden or self.torso is not None:
            return []
        if encoders.has_images(space, config):
            return []  # convolutions with different weights for each image are slow
        params = self.pair("actor_torso", "critic_torso")
        if params is None:
            return []
        torso, obs = BuiltinTorso(space, config, hidden, parent=None), select_parts(obs, space)
        return list(jax.vmap(lambda params: torso.apply({"params": params}, obs))(params))

    def features(self, name: str, space: spaces.Space, hidden: tuple[int, ...], obs: Obs) -> Array:
        """Return the features [..., F] of a torso that reads an observation's parts in `space`."""
        obs = select_parts(obs, space)
        if self.torso is None:
            return BuiltinTorso(space, self.config, hidden, name=name)(obs)
        torso = self.torso.critic if name == "critic_torso" else self.torso.actor
        field = f"network.torso = {self.config.torso}"
        params = self.param(name, torsos.init(torso, space, field))
        return torsos.apply(torso, params, obs, space)

    def apply_cells(
        self, carry: Carry, features: list[Array], start: Array, absent: Array | None
    ) -> tuple[Carry, list[Array]]:
        """Pass the features of each torso through its recurrent cell; return (carry, features)."""
        names = ("actor_memory", "critic_memory")
        params = self.pair(*names) if len(features) == 2 else None
        if params is not None:
            memory = cells.make(self.config, parent=None)
            carries = jax.tree.map(lambda *x: jnp.stack(x), *carry)

            def run(params: Params, h: Carry, x: Array) -> Any:
                return memory.apply({"params": params}, h, x.astype(jnp.float32), start, absent)

            carries, ys = jax.vmap(run)(params, carries, jnp.stack(features))
            after = [jax.tree.map(lambda x, i=i: x[i], carries) for i in (0, 1)]
            return tuple(after), list(ys)
        outs = [
            cells.make(self.config, name=name)(h, x.astype(jnp.float32), start, absent)
            for name, h, x in zip(names, carry, features, strict=False)
        ]
        return tuple(h for h, _ in outs), [y for _, y in outs]

    def head(self, features: Array) -> Array:
        """Return the parameters [..., P] of the distribution over `self.action`."""
        config = self.config
        is_log_std = distributions.parameter_kinds(self.action, config.distribution) == "log_std"
        low, high = log_std_limits(config)
        start = np.log(config.init_std)
        if config.std == "dependent":
            params = dense(len(is_log_std), 0.01, "actor", config.initializer)(features)
            log_std = jnp.clip(params + start, low, high)
            return jnp.where(is_log_std, log_std, params)
        means = dense(int((~is_log_std).sum()), 0.01, "actor", config.initializer)(features)
        if not is_log_std.any():
            return means
        log_std = self.param(LOG_STD, nn.initializers.constant(start), (int(is_log_std.sum()),))
        # Gradient steps keep it within its limits. jnp.clip would halve its gradient at a limit.
        log_std = jnp.where(log_std < low, low, jnp.where(log_std > high, high, log_std))
        log_std = jnp.broadcast_to(log_std, (*means.shape[:-1], log_std.shape[0]))
        params = jnp.concatenate([means, log_std], axis=-1)
        order = np.argsort(np.argsort(is_log_std, kind="stable"), kind="stable")
        in_order = bool(np.all(order == np.arange(len(order))))
        return params if in_order else params[..., order]


def log_std_limits(config: NetworkConfig) -> tuple[float, float]:
    """Return the smallest and largest log standard deviation."""
    return float(np.log(config.min_std)), float(np.log(config.max_std))


def has_mask(observation: spaces.Space) -> bool:
    """Return True if the observation contains an action mask."""
    return isinstance(observation, spaces.Dict) and MASK in dict(observation.spaces)


def select_parts(obs: Obs, space: spaces.Space) -> Obs:
    """Return the parts of an observation that are in `space`."""
    if isinstance(space, spaces.Dict):
        return {name: obs[name] for name, _ in space.spaces}
    return obs


def limits_of(module: ActorCritic) -> dict[str, tuple[float, float]]:
    """Return the limits of a network's parameters, by name."""
    return {LOG_STD: log_std_limits(module.config)}


def input_space(
    observation: spaces.Space, keys: tuple[str, ...] = (), field: str = ""
) -> spaces.Space:
    """Return the input space of a torso: the named parts of a `Dict`, by default all but the mask.

    Args:
        observation: space of the observation.
        keys: names of the parts; () for all.
        field: config field of `keys`, for errors.

    Raises:
        ValueError: an unknown part, or keys for an observation that is not a `Dict`.
    """
    if not isinstance(observation, spaces.Dict):
        if keys:
            raise ValueError(
                f"network.{field} = {list(keys)} chooses parts of a Dict observation, but this "
                f"observation is not a Dict. Leave it empty."
            )
        return observation
    names = [name for name, _ in observation.spaces if name != MASK]
    unknown = [key for key in keys if key not in names]
    if unknown:
        raise ValueError(
            f"network.{field}: unknown part {unknown[0]!r}. Parts: {', '.join(names)}."
        )
    chosen = [name for name in names if name in (keys or names)]
    return spaces.Dict(tuple((name, observation[name]) for name in chosen))
