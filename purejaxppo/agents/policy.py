"""The policy: functions from an agent's parameters and observations to actions."""

import contextlib
import functools
from typing import Any, cast

import jax
import jax.numpy as jnp

from purejaxppo.agents import critics, normalize
from purejaxppo.agents.extras import auxiliary_losses
from purejaxppo.agents.networks import distributions, obs_parts
from purejaxppo.agents.networks.build import make_networks
from purejaxppo.aliases import Action, Array, Carry, EnvAction, F, Key, Obs
from purejaxppo.config.schema import Config
from purejaxppo.spaces import MASK, Dict, example, network_input
from purejaxppo.types import AgentState, EnvSpaces, Outputs, PolicyStep, RunningStats


def at_matmul_precision(method: F) -> F:
    """Trace a method under `self.config.matmul_precision`.

    A product and its gradient keep the precision with which they were traced. The config sets it,
    instead of the backend's default: TF32 on NVIDIA GPUs, bfloat16 on TPUs.
    """

    @functools.wraps(method)
    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision(self.config.matmul_precision):
            return method(self, *args, **kwargs)

    return cast(F, traced)


class Policy:
    """A network, a distribution over actions, and the normalisation of observations.

    Args:
        config: settings of the run.
        spec: an environment's `EnvSpec`, or any object with `observation` and `action` spaces.

    Raises:
        ValueError: the network does not support the observations, or the distribution does not
            support the actions.
    """

    def __init__(self, config: Config, spec: EnvSpaces) -> None:
        """Build network and distribution, without computing anything."""
        self.config = config
        self.observation, self.action = spec.observation, spec.action
        self.network_input = network_input(
            spec.observation,
            normalize_obs=config.ppo.normalize_obs,
            by_dtype=config.ppo.obs_preprocessing == "by_dtype",
        )
        self.distribution = distributions.for_space(spec.action, config.network.distribution)
        critic = critics.make(config.ppo)
        parts = config.env.obs_parts
        read = obs_parts.dict_space(self.network_input, parts) if parts else self.network_input
        network = make_networks(spec, read, config.network, critic.num_outputs, critic.gain)
        if parts:
            network = obs_parts.reading_vectors(network, parts)
        self.auxiliary_losses = auxiliary_losses.make(config.ppo, network, self)
        self.network = auxiliary_losses.add_params(self.auxiliary_losses, network)
        self.recurrent = config.network.rnn != "none"

    @property
    def unused_keys(self) -> frozenset[str]:
        """Keys of a dict observation that do not affect actions, because only the critic sees them.

        Parts in `env.obs_parts` are not keys: the whole vector is an input.
        """
        network = self.config.network
        if not network.actor_keys or not isinstance(self.observation, Dict):
            return frozenset()
        used = {*network.actor_keys, MASK}
        if network.policies:
            used.add("agent")  # it selects the policy
        return frozenset(name for name, _ in self.observation.spaces if name not in used)

    def init(self, key: Key) -> AgentState:
        """Return initial network parameters, and observation statistics of zero rows."""
        return AgentState(params=self.network.init(key), obs_stats=self.init_obs_stats())

    def init_obs_stats(self) -> RunningStats:
        """Return statistics of zero rows, for the arrays of an observation that are normalised."""
        return normalize.init_stats(self.normalizable(example(self.observation)))

    def normalizable(self, obs: Obs) -> list[Array]:
        """Return the arrays of an observation that will be normalised, as float32."""
        pairs = zip(jax.tree.leaves(obs), self.is_normalized(), strict=True)
        return [x.astype(jnp.float32) for x, yes in pairs if yes]

    def is_normalized(self) -> list[bool]:
        """Return True for each array of an observation that is normalised; see `network_input`."""
        return [
            self.config.ppo.normalize_obs
            and jnp.issubdtype(x.dtype, jnp.floating)
            and x.ndim < 3
            and not (path and path[0] == jax.tree_util.DictKey(MASK))
            for path, x in jax.tree.leaves_with_path(example(self.network_input))
        ]

    def normalize_obs(self, stats: RunningStats, obs: Obs) -> Obs:
        """Normalise the vectors of an observation with the running statistics, if configured.

        Args:
            stats: statistics of the arrays that `normalizable` returns.
            obs: observations [..., *shape].
        """
        if not self.config.ppo.normalize_obs:
            return obs
        vectors = iter(normalize.normalize(stats, self.normalizable(obs), self.config.ppo.clip_obs))
        leaves, tree = jax.tree.flatten(obs)
        pairs = zip(leaves, self.is_normalized(), strict=True)
        return jax.tree.unflatten(tree, [next(vectors) if yes else x for x, yes in pairs])

    def apply(self, agent: AgentState, carry: Carry, obs: Obs, start: Array) -> Outputs:
        """Apply the network to one step of N environments.

        Args:
            agent: parameters and statistics.
            carry: recurrent carry [N, ...].
            obs: observations [N, ...], not normalised.
            start: True where an observation is the first of an episode, bool [N].
        """
        obs = self.normalize_obs(agent.obs_stats, obs)
        with self.network_precision():
            return self.network.apply(agent.params, carry, obs, start)

    def unroll(
        self,
        agent: AgentState,
        carry: Carry,
        obs: Obs,
        start: Array,
        absent: Array | None = None,
    ) -> Outputs:
        """Apply the network to T steps of N environments; see `types.Unroll`.

        Args:
            agent: parameters and statistics.
            carry: recurrent carry before the first step [N, ...].
            obs: observations [T, N, ...], not normalised.
            start: True where an observation is the first of an episode, bool [T, N].
            absent: True where the carry does not change, bool [T, N]; None: nowhere.
        """
        obs = self.normalize_obs(agent.obs_stats, obs)
        with self.network_precision():
            return self.network.unroll(agent.params, carry, obs, start, absent)

    def network_precision(self) -> contextlib.AbstractContextManager[None]:
        """Return a context with the network's matrix product precision."""
        precision = self.config.network.matmul_precision
        unchanged: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        return unchanged if precision == "same" else jax.default_matmul_precision(precision)

    def choose(self, carry: Carry, params: Array, action: Action) -> PolicyStep:
        """Return a policy step with the given action.

        Args:
            carry: recurrent carry after the step [N, ...].
            params: distribution parameters [N, P].
            action: actions as the policy stores them [N, ...].
        """
        log_prob = self.distribution.log_prob(params, action)
        return PolicyStep(carry, action, log_prob, self.distribution.to_env(action))

    @at_matmul_precision
    def act(self, agent: AgentState, key: Key, carry: Carry, obs: Obs, start: Array) -> PolicyStep:
        """Sample actions of N environments.

        Args:
            agent: parameters and statistics.
            key: random key; the caller must not use it again.
            carry: recurrent carry [N, ...].
            obs: observations [N, ...], not normalised.
            start: True where an observation is the first of an episode, bool [N].
        """
        carry, params, *_ = self.apply(agent, carry, obs, start)
        return self.choose(carry, params, self.distribution.sample(params, key))

    @at_matmul_precision
    def act_in_groups(
        self, agent: AgentState, keys: Key, carry: Carry, obs: Obs, start: Array
    ) -> PolicyStep:
        """Sample actions of N environments in G equal groups, with one key per group.

        Args:
            agent: parameters and statistics.
            keys: random keys [G]; the caller must not use them again.
            carry: recurrent carry [N, ...].
            obs: observations [N, ...], not normalised.
            start: True where an observation is the first of an episode, bool [N].
        """
        carry, params, *_ = self.apply(agent, carry, obs, start)
        groups = jax.tree.map(lambda x: x.reshape(len(keys), -1, *x.shape[1:]), params)
        action = jax.vmap(self.distribution.sample)(groups, keys)
        action = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), action)
        return self.choose(carry, params, action)

    @at_matmul_precision
    def act_deterministically(
        self, agent: AgentState, key: Key, carry: Carry, obs: Obs, start: Array
    ) -> PolicyStep:
        """Return the mode of the distribution as actions of N environments; see `act`."""
        del key
        carry, params, *_ = self.apply(agent, carry, obs, start)
        return self.choose(carry, params, self.distribution.mode(params))

    @at_matmul_precision
    def mode(
        self, agent: AgentState, carry: Carry, obs: Obs, start: Array
    ) -> tuple[Carry, EnvAction]:
        """Return the recurrent state and the deterministic actions in the environment's units."""
        carry, params, *_ = self.apply(agent, carry, obs, start)
        return carry, self.distribution.to_env(self.distribution.mode(params))
