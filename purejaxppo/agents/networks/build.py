"""Policy and value networks as functions over parameter dicts.

The rest of the package uses the record `Network`. The Flax modules are in `actor_critic.py`,
`encoders.py` and `cells.py`.
"""

import fnmatch
import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo import spaces
from purejaxppo.agents.decisions import expand
from purejaxppo.agents.networks import cells, torsos
from purejaxppo.agents.networks.actor_critic import ActorCritic, limits_of
from purejaxppo.agents.optimizers import CUSTOM_ENTRIES
from purejaxppo.aliases import Array, Carry, InitialCarry, Key, Obs, Params, Tree
from purejaxppo.config.schema import NetworkConfig
from purejaxppo.parallel import platforms
from purejaxppo.types import EnvSpaces, Outputs

Apply = Callable[..., Outputs]
"""(params, carry [N, ...], obs [(T,) N, ...], start bool [(T,) N]) -> outputs [(T,) N, ...].
`unroll` also takes `absent`, bool [T, N] or None."""


class Network(NamedTuple):
    """Functions of the policy and value networks: initialise and apply."""

    init: Callable[[Key], Params]
    """key -> initial parameters."""
    apply: Apply
    """(params, carry, obs [N, *shape], start bool [N]) -> `Outputs`, arrays [N, ...]."""
    unroll: Apply
    """(params, carry [N, ...], obs [T, N, *shape], start bool [T, N], absent bool [T, N]) ->
    `Outputs`, arrays [T, N, ...]. Equals `apply` step after step. The carry is reset where `start`
    is True and does not change where `absent` is True."""
    initial_carry: InitialCarry
    """Batch shape -> recurrent carry at the start of an episode."""
    limits: dict[str, tuple[float, float]]
    """Names of parameters, and the range to which each is clipped after every gradient step."""


def make_network(
    observation: spaces.Space,
    action: spaces.Space,
    config: NetworkConfig,
    critic_outputs: int = 1,
    critic_gain: float = 1.0,
) -> Network:
    """Return the actor-critic network of the config.

    Args:
        observation: space of the observation, as `spaces.network_input` returns it.
        action: space of the action.
        config: settings of the network.
        critic_outputs: number of outputs of the critic.
        critic_gain: gain of the initial weights of the critic's last layer.

    Raises:
        ValueError: the encoder does not support the observation, a key is not one of its parts, the
            action mask does not match the actions, or a custom torso is invalid (see `torsos`).
    """
    torso = torsos.make(config)
    module = ActorCritic(observation, action, config, critic_outputs, critic_gain, torso)
    if config.critic_keys and module.shared:
        raise ValueError(
            "network.critic_keys is not supported with a torso that policy and critic share. Use "
            "separate torsos."
        )
    if config.rnn == "none":
        return feed_forward(module)
    return recurrent(module)


def make_networks(
    spec: EnvSpaces,
    observation: spaces.Space,
    config: NetworkConfig,
    critic_outputs: int = 1,
    critic_gain: float = 1.0,
) -> Network:
    """Return the network of an environment's agents: one for all, or one per policy.

    Args:
        spec: spaces of the environment, and its `agents` if it is a multi-agent environment.
        observation: space of an agent's observation, as `spaces.network_input` returns it.
        config: settings of the network.
        critic_outputs: number of outputs of a critic.
        critic_gain: gain of the initial weights of its last layer.

    Raises:
        ValueError: see `make_network`; or `policies` does not assign a policy to every agent.
    """
    if not config.policies:
        return make_network(observation, spec.action, config, critic_outputs, critic_gain)
    names = [policy_of(agent, config.policies) for agent in getattr(spec, "agents", ())]
    if not names:
        raise ValueError(
            "network.policies needs a multi-agent environment, but this one has one agent. Remove "
            "network.policies."
        )
    if reserved := sorted(CUSTOM_ENTRIES.intersection(names)):
        raise ValueError(
            f"network.policies: a policy cannot be named {reserved[0]!r}, because the library uses "
            f"this name. Use another name."
        )
    unused = set(map(str, config.policies.values())) - set(names)
    if unused:
        raise ValueError(
            f"network.policies: no agent has policy {min(unused)!r}. The first pattern "
            f"that matches an agent counts. Patterns: {', '.join(config.policies)}. Agents: "
            f"{', '.join(getattr(spec, 'agents', ()))}."
        )
    network = make_network(observation, spec.action, config, critic_outputs, critic_gain)
    return side_by_side(network, tuple(names))


def policy_of(agent: str, policies: Mapping[str, object]) -> str:
    """Return the policy of the first pattern that matches the name of an agent.

    Raises:
        ValueError: no pattern matches.
    """
    for pattern, name in policies.items():
        if fnmatch.fnmatchcase(agent, pattern):
            return str(name)
    raise ValueError(
        f"network.policies: no pattern matches agent {agent!r}. Patterns: {', '.join(policies)}."
    )


def side_by_side(network: Network, names: tuple[str, ...]) -> Network:
    """Return a network per policy as one `Network`. Each row uses the network of its agent.

    All networks are computed for all rows.

    Args:
        network: the network that each policy has.
        names: policy of each agent. The observation's part `agent` is the index of the agent.
    """
    policies = tuple(dict.fromkeys(names))
    table = np.array([policies.index(name) for name in names])

    def init(key: Key) -> Params:
        keys = jax.random.split(key, len(policies))
        return {name: network.init(k) for name, k in zip(policies, keys, strict=True)}

    def choose(apply: Apply) -> Apply:
        def chosen(params: Params, carry: Carry, obs: Obs, *rows: Array | None) -> Outputs:
            outs = [apply(params[name], carry, obs, *rows) for name in policies]
            index = jnp.asarray(table)[obs["agent"]]
            last = index[-1] if index.ndim > 1 else index
            picked = select_rows(index, [out._replace(carry=()) for out in outs])
            return picked._replace(carry=select_rows(last, [out.carry for out in outs]))

        return chosen

    return network._replace(init=init, apply=choose(network.apply), unroll=choose(network.unroll))


def select_rows(index: Array, trees: list[Tree]) -> Tree:
    """Select a tree per row: leaves [*B, ...] of the tree number `index`, int [*B]."""

    def leaf(*xs: Array) -> Array:
        mask = expand(index, xs[0])
        return functools.reduce(
            lambda out, i: jnp.where(mask == i, xs[i], out), range(1, len(xs)), xs[0]
        )

    return jax.tree.map(leaf, *trees)


def feed_forward(module: ActorCritic) -> Network:
    """Return a network without a recurrent cell. Time is a batch axis."""
    example = zeros(module.observation)

    def init(key: Key) -> Params:
        return module.init(key, (), example, None)["params"]

    def apply(params: Params, carry: Carry, obs: Obs, start: Array) -> Outputs:
        del start
        return Outputs(*module.apply({"params": params}, carry, obs, None))

    def unroll(
        params: Params, carry: Carry, obs: Obs, start: Array, absent: Array | None = None
    ) -> Outputs:
        del absent
        return Outputs(*for_update(module, start.size).apply({"params": params}, carry, obs, None))

    jax.eval_shape(init, jax.random.key(0))
    return Network(init, apply, unroll, lambda batch: (), limits_of(module))


MANY_ROWS = 2**18
"""Rows of an unroll (all agents and shards of a device) from which policy and critic are computed
in two batches. It was chosen between 2**17 rows, where one batch is faster on an H100, and 2**20.
"""


def for_update(module: ActorCritic, num_rows: int) -> ActorCritic:
    """Return the module for updates, with policy and critic in one or two batches.

    On GPUs and TPUs, one batch needs fewer kernel launches. From MANY_ROWS rows, copying the rows
    into one batch costs more than it saves: on an H100, 2,048 seeds of cartpole.yaml train 1.22
    times as fast in two batches. Recurrent networks always use one batch, with one loop over time.
    Acting uses two: it needs only the policy, and the compiler removes the critic.

    Args:
        module: policy and critic.
        num_rows: rows of one agent and shard. Seeds of `jax.vmap(make_train(config))` are not
            counted.
    """
    few = num_rows * platforms.num_vmapped() < MANY_ROWS
    return module.clone(paired=platforms.is_accelerated() and (few or module.config.rnn != "none"))


def recurrent(module: ActorCritic) -> Network:
    """Return a network with a recurrent cell after each torso; the carries form a tuple."""
    cell, count = cells.make(module.config, parent=None), 1 if module.shared else 2

    def initial_carry(batch: tuple[int, ...]) -> Carry:
        return tuple(cell.initial_carry(batch) for _ in range(count))

    def init(key: Key) -> Params:
        obs = zeros(module.observation, (1, 1))
        return module.init(key, initial_carry((1,)), obs, jnp.ones((1, 1), bool))["params"]

    def unroll(
        params: Params, carry: Carry, obs: Obs, start: Array, absent: Array | None = None
    ) -> Outputs:
        unrolled = for_update(module, start.size)
        return Outputs(*unrolled.apply({"params": params}, carry, obs, start, absent))

    def apply(params: Params, carry: Carry, obs: Obs, start: Array) -> Outputs:
        row = jax.tree.map(lambda x: x[None], (obs, start))
        out = Outputs(*module.apply({"params": params}, carry, *row))
        return Outputs(out.carry, *(x[0] for x in out[1:]))

    jax.eval_shape(init, jax.random.key(0))
    return Network(init, apply, unroll, initial_carry, limits_of(module))


def zeros(space: spaces.Space, batch: tuple[int, ...] = ()) -> Obs:
    """Return an observation of zeros, arrays [*batch, ...]."""
    return jax.tree.map(jnp.asarray, spaces.example(space, batch))
