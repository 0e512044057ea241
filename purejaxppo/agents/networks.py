"""Policy and value networks.

The rest of the library sees a `Network` of four functions over plain parameter dicts. flax.linen is
imported here, in `encoders.py` and in `cells.py` alone.
"""

import fnmatch
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from purejaxppo import spaces
from purejaxppo.agents import cells, distributions
from purejaxppo.agents.encoders import ACTIVATIONS, Encoder, dense
from purejaxppo.config.schema import NetworkConfig
from purejaxppo.spaces import MASK
from purejaxppo.types import Outputs

IMPOSSIBLE = -1e9
"""The logit of a forbidden action: its probability is exactly 0 in float32, its gradient finite."""
LOG_STD = "log_std"
"""The parameter that holds standard deviations which do not depend on the observation."""


class Network(NamedTuple):
    """A policy and its critic."""

    init: Callable[[Any], Any]
    """key -> parameters."""
    apply: Callable[[Any, Any, Any, Any], Outputs]
    """(params, carry, obs [N, *shape], start bool [N]) -> `Outputs`, arrays [N, ...]."""
    unroll: Callable[[Any, Any, Any, Any], Outputs]
    """The same for a sequence of steps, carry [N, ...], obs [T, N, *shape], start [T, N]: equals
    `apply` step after step, the carry reset where `start`."""
    initial_carry: Callable[[tuple[int, ...]], Any]
    """batch shape -> recurrent carry; () for feed-forward networks."""
    limits: dict[str, tuple[float, float]]
    """Names of parameters, and the range that each is clipped to after every gradient step."""


class Residual(nn.Module):
    """x + f(x), where f normalises, widens to 4 times x's width, applies a relu, projects back."""

    config: NetworkConfig

    @nn.compact
    def __call__(self, x):
        """[..., F] -> [..., F]."""
        initializer, dtype, width = self.config.initializer, self.config.compute_dtype, x.shape[-1]
        y = nn.LayerNorm(dtype=x.dtype, name="norm")(x)
        y = nn.relu(dense(4 * width, np.sqrt(2), "wide", initializer, dtype)(y))
        return x + dense(width, 1.0, "narrow", initializer, dtype)(y)


class Torso(nn.Module):
    """Encoder and hidden layers."""

    space: spaces.Space
    config: NetworkConfig
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, obs):
        """Observation pytree [..., *shape] -> [..., hidden[-1]]."""
        x = Encoder(self.space, self.config, name="encoder")(obs)
        return {"plain": self.plain, "residual": self.residual}[self.config.layers](x)

    def plain(self, x):
        """Dense layers one after the other."""
        config = self.config
        for i, width in enumerate(self.hidden):
            layer = f"dense_{i}"
            x = dense(width, np.sqrt(2), layer, config.initializer, config.compute_dtype)(x)
            if config.layer_norm:
                x = nn.LayerNorm(dtype=x.dtype, name=f"norm_{i}")(x)
            x = ACTIVATIONS[config.activation](x)
        return x

    def residual(self, x):
        """A linear layer, a residual block per width, and a normalisation at the end."""
        config = self.config
        x = dense(self.hidden[0], 1.0, "enter", config.initializer, config.compute_dtype)(x)
        for i in range(len(self.hidden)):
            x = Residual(config, name=f"block_{i}")(x)
        return nn.LayerNorm(dtype=x.dtype, name="norm")(x)


class ActorCritic(nn.Module):
    """Distribution parameters and a critic's outputs, from separate or shared torsos.

    Memories and heads are float32 for any dtype of the torsos: bfloat16's 8 bits would round a
    value of 500 to a multiple of 2.
    """

    observation: spaces.Space
    action: spaces.Space
    config: NetworkConfig
    critic_outputs: int
    critic_gain: float = 1.0

    @nn.compact
    def __call__(self, carry, obs, start):
        """One step or many of observations [..., *shape] -> (carry, params [..., P], [..., K]).

        With a memory, [...] is [T, N], as for `start`, and the carry's leading axis is N.
        """
        config = self.config
        actor_space = part_of(self.observation, config.actor_keys, "actor_keys")
        shared = config.torso == "shared"
        name = "torso" if shared else "actor_torso"
        features = [Torso(actor_space, config, config.hidden, name=name)(take(obs, actor_space))]
        if not shared:
            space = part_of(self.observation, config.critic_keys, "critic_keys")
            hidden = config.critic_hidden or config.hidden
            critic = Torso(space, config, hidden, name="critic_torso")
            features.append(critic(take(obs, space)))
        if config.memory != "none":
            carry, features = self.remember(carry, features, start)
        head = dense(self.critic_outputs, self.critic_gain, "critic", config.initializer)
        outputs = head(features[-1])
        params = self.head(features[0])
        if has_mask(self.observation):
            params = distributions.forbid(params, obs[MASK], self.action, IMPOSSIBLE)
        return carry, params, outputs

    def remember(self, carry, features, start):
        """Each torso's features through a memory of its own."""
        kind, names = cells.MEMORIES[self.config.memory], ("actor_memory", "critic_memory")
        outs = [
            kind(self.config.memory_size, self.config.memory_span, name=name)(
                h, x.astype(jnp.float32), start
            )
            for name, h, x in zip(names, carry, features, strict=False)
        ]
        return tuple(h for h, _ in outs), [y for _, y in outs]

    def head(self, features):
        """Distribution parameters [..., P] of `distributions.for_space(self.action)`."""
        config = self.config
        is_log_std = distributions.log_std_positions(self.action, config.distribution)
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
        # Gradient steps keep it within its limits; jnp.clip would halve its gradient there.
        log_std = jnp.where(log_std < low, low, jnp.where(log_std > high, high, log_std))
        log_std = jnp.broadcast_to(log_std, (*means.shape[:-1], log_std.shape[0]))
        params = jnp.concatenate([means, log_std], axis=-1)
        order = np.argsort(np.argsort(is_log_std, kind="stable"), kind="stable")
        in_order = bool(np.all(order == np.arange(len(order))))
        return params if in_order else params[..., order]


def log_std_limits(config: NetworkConfig) -> tuple[float, float]:
    """The smallest and the largest logarithm of a standard deviation."""
    return float(np.log(config.min_std)), float(np.log(config.max_std))


def has_mask(observation: spaces.Space) -> bool:
    """True if the observation has an action mask."""
    return isinstance(observation, spaces.Dict) and MASK in dict(observation.spaces)


def part_of(observation: spaces.Space, keys: tuple[str, ...], field: str) -> spaces.Space:
    """The input space of a torso: the named parts of a `Dict`, or all but the action mask.

    Raises:
        ValueError: a part that does not exist.
    """
    if not isinstance(observation, spaces.Dict):
        if keys:
            raise ValueError(
                f"network.{field} = {list(keys)} chooses parts of a Dict observation, and this "
                f"observation has no parts: leave it empty"
            )
        return observation
    names = [name for name, _ in observation.spaces if name != MASK]
    unknown = [key for key in keys if key not in names]
    if unknown:
        raise ValueError(f"network.{field}: {unknown[0]!r} is no part; there are {names}")
    chosen = [name for name in names if name in (keys or names)]
    return spaces.Dict(tuple((name, observation[name]) for name in chosen))


def take(obs, space: spaces.Space):
    """The parts of an observation that `space` has."""
    if isinstance(space, spaces.Dict):
        return {name: obs[name] for name, _ in space.spaces}
    return obs


def make_network(
    observation: spaces.Space,
    action: spaces.Space,
    config: NetworkConfig,
    critic_outputs: int = 1,
    critic_gain: float = 1.0,
) -> Network:
    """The actor-critic that a config describes.

    The critic has `critic_outputs` outputs, of a layer with the initial gain `critic_gain`.

    Raises:
        ValueError: the config's encoder cannot read the observations, its keys are not among their
            parts, or the action mask does not fit.
    """
    module = ActorCritic(observation, action, config, critic_outputs, critic_gain)
    if config.memory == "none":
        return feed_forward(module)
    return recurrent(module)


def make_networks(
    spec: Any, config: NetworkConfig, critic_outputs: int = 1, critic_gain: float = 1.0
) -> Network:
    """The network of an environment's agents: one for all, or one per policy of the config.

    Args:
        spec: of the environment: `observation`, `action`, and `agents` if it has several.
        config: of the network.
        critic_outputs: number of a critic's outputs.
        critic_gain: of its last layer's initial weights.

    Raises:
        ValueError: see `make_network`; or `policies` that do not name every agent once.
    """
    if not config.policies:
        return make_network(spec.observation, spec.action, config, critic_outputs, critic_gain)
    names = [policy_of(agent, config.policies) for agent in getattr(spec, "agents", ())]
    if not names:
        raise ValueError("network.policies is for several agents, and this environment has one")
    unused = set(config.policies.values()) - set(names)
    if unused:
        raise ValueError(
            f"network.policies: no agent has policy {min(map(str, unused))!r}; the agents are "
            f"{list(spec.agents)}"
        )
    one = make_network(spec.observation, spec.action, config, critic_outputs, critic_gain)
    return side_by_side(one, tuple(names))


def policy_of(agent: str, policies: dict[str, Any]) -> str:
    """The policy of the first pattern that matches an agent's name.

    Raises:
        ValueError: no pattern matches.
    """
    for pattern, name in policies.items():
        if fnmatch.fnmatchcase(agent, pattern):
            return str(name)
    raise ValueError(f"network.policies: no pattern fits agent {agent!r}; there are {[*policies]}")


def side_by_side(one: Network, names: tuple[str, ...]) -> Network:
    """A network per policy; each row uses its agent's; all are computed for all rows.

    Args:
        one: the network of each policy.
        names: of the agents' policies; an agent's number is the part `agent` of its observation.
    """
    policies = tuple(dict.fromkeys(names))
    table = np.array([policies.index(name) for name in names])

    def init(key):
        keys = jax.random.split(key, len(policies))
        return {name: one.init(k) for name, k in zip(policies, keys, strict=True)}

    def choose(apply):
        def chosen(params, carry, obs, start):
            outs = [apply(params[name], carry, obs, start) for name in policies]
            which = jnp.asarray(table)[obs["agent"]]
            last = which[-1] if which.ndim > 1 else which
            picked = pick(which, [out._replace(carry=()) for out in outs])
            return picked._replace(carry=pick(last, [out.carry for out in outs]))

        return chosen

    return one._replace(init=init, apply=choose(one.apply), unroll=choose(one.unroll))


def pick(which, trees: list[Any]):
    """Per row, the tree of its number: `which` [*B], leaves [*B, ...]."""

    def leaf(*xs):
        mask = which.reshape(which.shape + (1,) * (xs[0].ndim - which.ndim))
        return functools.reduce(
            lambda out, i: jnp.where(mask == i, xs[i], out), range(1, len(xs)), xs[0]
        )

    return jax.tree.map(leaf, *trees)


def feed_forward(module: ActorCritic) -> Network:
    """A network without a memory: time is one more axis of a batch."""
    example = zeros(module.observation)

    def init(key):
        return module.init(key, (), example, None)["params"]

    def apply(params, carry, obs, start):
        del start
        return Outputs(*module.apply({"params": params}, carry, obs, None))

    jax.eval_shape(init, jax.random.key(0))
    return Network(init, apply, apply, lambda batch: (), limits_of(module))


def recurrent(module: ActorCritic) -> Network:
    """A network with a memory behind each torso; the carry is a tuple of theirs."""
    config = module.config
    kind: Any = cells.MEMORIES[config.memory]
    torsos = 1 if config.torso == "shared" else 2

    def initial_carry(batch: tuple[int, ...]):
        return tuple(kind.initial_carry(batch, config.memory_size) for _ in range(torsos))

    def init(key):
        obs = jax.tree.map(lambda x: x[None, None], zeros(module.observation))
        return module.init(key, initial_carry((1,)), obs, jnp.ones((1, 1), bool))["params"]

    def unroll(params, carry, obs, start):
        return Outputs(*module.apply({"params": params}, carry, obs, start))

    def apply(params, carry, obs, start):
        row = jax.tree.map(lambda x: x[None], (obs, start))
        out = unroll(params, carry, *row)
        return Outputs(out.carry, out.dist_params[0], out.critic[0])

    jax.eval_shape(init, jax.random.key(0))
    return Network(init, apply, unroll, initial_carry, limits_of(module))


def limits_of(module: ActorCritic) -> dict[str, tuple[float, float]]:
    """Limits of a network's parameters, by name."""
    return {LOG_STD: log_std_limits(module.config)}


def zeros(space: spaces.Space):
    """An observation of zeros, without a batch axis."""
    return jax.tree.map(jnp.asarray, spaces.example(space))
