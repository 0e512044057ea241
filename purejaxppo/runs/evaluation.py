"""Evaluation of trained agents over whole episodes."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo import streams
from purejaxppo.agents.diagnostics import is_finite
from purejaxppo.agents.networks.build import policy_of
from purejaxppo.agents.policy import Policy, at_matmul_precision
from purejaxppo.aliases import Array, Key, Scalar
from purejaxppo.config.hints import format_number
from purejaxppo.config.plain import seed_of, whole
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.base import EnvSpec
from purejaxppo.envs.host.bridge import HostEnv, simulator_errors
from purejaxppo.envs.vectorize import VmapEnv
from purejaxppo.envs.worlds import MultiAgentEnv
from purejaxppo.parallel import lapack, processes
from purejaxppo.parallel.settings import AHEAD_OF_TIME, check_settings
from purejaxppo.parallel.shards import Shards
from purejaxppo.runs.agent import Agent, HasBest, act_function, agent_of
from purejaxppo.runs.conditions import describe, evaluation_env
from purejaxppo.runs.episodes import (
    MOST_DIVERGED,
    Outcome,
    has_agent,
    num_cut,
    of_undiverged,
    run_episodes,
    success_rate,
)
from purejaxppo.runs.rows import mean_row, metric_means
from purejaxppo.setup import Setup, resolve
from purejaxppo.types import AgentState

log = logging.getLogger("purejaxppo")

MAX_PARALLEL = 256
"""Largest number of episodes that run in parallel. More episodes run in several turns."""
MOST_EPISODES = 2**30
"""Largest number of episodes, which are counted in int32."""
OTHER_STARTS = 10_007
"""Offset of host simulators' seeds. Evaluations during training, which select the best checkpoint,
use other first states."""


class Evaluation(NamedTuple):
    """Results of whole episodes. With several agents, each array has a leading axis of agents.

    An episode diverges if an observation or reward is NaN, infinite or beyond ±`spaces.LARGEST`.
    """

    returns: np.ndarray  # [episodes] undiscounted sums of rewards; NaN if the episode diverged
    lengths: np.ndarray  # [episodes] steps
    success_above: float | None = None  # a greater return is a success; None if not defined
    cut: np.ndarray | np.bool = np.False_
    """[episodes] bool: True if `eval.max_steps` stopped the episode before its end. With a NaN
    return: the slot never had an agent, and is not counted as an episode."""
    metrics: Mapping[str, np.ndarray] = MappingProxyType({})
    """[episodes] each: the environment's metrics by name, and the returns of each policy of
    `network.policies` as `return_mean/NAME`; NaN if an episode has no value."""
    conditions: Mapping[str, Any] = MappingProxyType({})
    """Settings of the environment that differ from the run's, by dotted name; see `evaluate`."""

    def member(self, index: int) -> "Evaluation":
        """Return the results of one of several agents."""
        return self._replace(
            returns=self.returns[index],
            lengths=self.lengths[index],
            cut=np.broadcast_to(self.cut, self.returns.shape)[index],
            metrics={name: x[index] for name, x in self.metrics.items()},
        )

    @property
    def metric_means(self) -> dict[str, float]:
        """Mean of each of the environment's metrics over the episodes that did not diverge.

        Of several agents, the mean over agents. Metrics without any value are left out.
        """
        if self.returns.ndim == 1:
            return metric_means(self.returns, self.cut, self.metrics)
        return mean_row([self.member(i).metric_means for i in range(len(self.returns))])

    @property
    def score(self) -> float | np.ndarray:
        """Mean return of the episodes that did not diverge; one number per agent.

        NaN if more than `episodes.MOST_DIVERGED` of an agent's episodes diverged.
        """
        if self.returns.ndim > 1:
            return np.array([self.member(i).score for i in range(len(self.returns))])
        return float(of_undiverged(self.returns, self.returns, self.cut).mean())

    @property
    def success_rate(self) -> float | None:
        """Share of successful episodes over all agents; None if the task defines no success."""
        if self.success_above is None:
            return None
        return success_rate(self.returns, self.cut, self.success_above)

    def __repr__(self) -> str:
        """Return the description; the arrays would fill the screen."""
        return f"<{self}>"

    def __str__(self) -> str:
        """Describe the returns and lengths in one line; of several agents, their mean returns."""
        success = "" if self.success_rate is None else f", success {self.success_rate:.1%}"
        conditions = f"with {describe(self.conditions)}: " if self.conditions else ""
        return conditions + self._statistics() + success

    def _statistics(self) -> str:
        r, agents = self.returns, has_agent(self.returns, self.cut)
        episodes, empty = int(agents.sum()), int((~agents).sum())
        diverged, cut = int(np.isnan(r[agents]).sum()), num_cut(r, self.cut)
        x = np.asarray(self.score) if r.ndim > 1 else of_undiverged(r, r, self.cut)
        if not episodes:
            return f"no episodes: all {r.size} agent slots stayed empty for eval.max_steps steps"
        if np.isnan(x).any():
            of = f" of {len(r)} agents" if r.ndim > 1 else ""
            return (
                f"{_episodes(episodes)}{of}: {diverged} diverged, too many for a mean return "
                f"(more than {MOST_DIVERGED:.0%})"
            )
        parts = [f"{diverged} diverged"] if diverged else []
        parts += [f"{cut} stopped by eval.max_steps"] if cut else []
        parts += [f"not counting {empty} slots without an agent"] if empty else []
        note = f" ({', '.join(parts)})" if parts else ""
        most = np.abs(x).max()
        spread = x.std(ddof=1 if r.ndim > 1 and len(r) > 1 else 0)
        mean, std, low, high = (
            format_number(y, most) for y in (x.mean(), spread, x.min(), x.max())
        )
        if r.ndim > 1:
            return (
                f"{len(r)} agents, {_episodes(r.shape[1])} each{note}: mean return {mean} ± {std} "
                f"over agents (min {low}, max {high})"
            )
        length = of_undiverged(self.lengths, r, self.cut).mean()
        if x.size == 1:
            return f"{_episodes(episodes)}{note}: return {mean}, length {length:.1f}"
        return (
            f"{_episodes(episodes)}{note}: return {mean} ± {std} (min {low}, max {high}), length "
            f"{length:.1f}"
        )


def _episodes(count: int) -> str:
    return f"{count} episode{'s' * (count != 1)}"


def warning_of_cut(returns: np.ndarray, cut: np.ndarray, max_steps: int) -> str:
    """Return a warning if an evaluation stopped episodes before their end, or ""."""
    count = num_cut(returns, cut)
    if not count:
        return ""
    total = _episodes(int(has_agent(returns, cut).sum()))
    return (
        f"eval.max_steps = {max_steps}: {count} of {total} were stopped after this number of "
        f"steps. The mean return includes their returns so far. Increase eval.max_steps to play "
        f"them to their end."
    )


def _check_spaces(spec: EnvSpec, policy: Policy) -> None:
    """Raise ValueError if a policy does not fit the spaces of its evaluation environment."""
    for name in ("observation", "action"):
        evaluated, trained = getattr(spec, name), getattr(policy, name)
        if evaluated != trained:
            raise ValueError(
                f"eval.options: with these options the task's {name} space is {evaluated}, but the "
                f"policy's is {trained}. Evaluations need the same spaces as training."
            )


class Evaluator:
    """Runs a fixed number of whole episodes, one per environment.

    Host simulators are at most as many as in training, and run the episodes in several turns. With
    JAX simulators, the episodes are divided over the shards. If their number is not divisible, it
    is rounded up, and the surplus is dropped by index, which does not prefer short episodes. Each
    episode has its own key, which depends on its index and not on the number of shards.

    Args:
        setup: setup of the run or the evaluation.
        policy: the agent's policy.
        episodes: number of episodes; rounded up to a multiple of the number of agents.
        deterministic: True for the distribution's mode, False for samples, None for the config's
            setting.
        shards: shards to divide the episodes over; one shard for host simulators.
        seed: seed of simulators that do not take a key.
    """

    def __init__(
        self,
        setup: Setup,
        policy: Policy,
        episodes: int,
        *,
        deterministic: bool | None = None,
        shards: Shards | None = None,
        seed: int = 0,
    ) -> None:
        """Make the environments."""
        self.config = config = setup.config
        self.on_host = setup.on_host
        self.shards = shards or Shards(1)
        try:
            self.env = self._make(episodes, seed)
        except ValueError as error:
            if not config.eval.options:
                raise
            reason = str(error).replace("env.options", "eval.options")
            raise ValueError(f"in evaluations: {reason}") from error
        if config.eval.options:
            _check_spaces(self.env.spec, policy)
        size = self.env.spec.num_agents
        self.per_turn = self.env.spec.num_envs // size  # environments, or multi-agent environments
        self.count = -(-episodes // size)  # over all shards, without the surplus
        self.episodes = self.count * size
        self.turns = -(-self.count // (self.per_turn * self.shards.num_shards))
        self.per_shard = self.turns * self.per_turn
        self.act = act_function(config, policy, deterministic, grouped=True)
        self.initial_carry = policy.network.initial_carry
        self.mapped = self.shards.map(
            self._shard, (None, None, None, 0), 0, ((0, 0, None, None), 0)
        )

    def _make(self, episodes: int, seed: int) -> HostEnv | MultiAgentEnv | VmapEnv:
        """Make the environments of a shard, at most as many host simulators as in training."""
        config, shards = evaluation_env(self.config), self.shards.num_shards
        if self.on_host:
            config = replace(config, num_envs=max(1, config.num_envs // shards))
            local = -(-episodes // shards)
            first = processes.index() * local
            host = registry.make(config, local, seed=seed, first=first, evaluation=True)
            return cast("HostEnv | MultiAgentEnv", host)
        single = registry.make(config, 1, evaluation=True)
        count = -(-episodes // single.spec.num_agents)
        return VmapEnv(single, -(-count // shards))

    def close(self) -> None:
        """Close host simulators."""
        self.env.close()

    @at_matmul_precision
    def _shard(self, agent: AgentState, key: Key, first: Array, shard_id: Array) -> Outcome:
        """Run the episodes of a shard, in several turns if needed."""
        begin = first + shard_id * self.per_shard
        if self.turns == 1:
            return self._turn(agent, key, begin)
        firsts = begin + self.per_turn * jnp.arange(self.turns)
        outcome = jax.lax.map(lambda first: self._turn(agent, key, first), firsts)
        joined: Outcome = jax.tree.map(jnp.ravel, outcome)
        return joined

    def _turn(self, agent: AgentState, key: Key, first: Array) -> Outcome:
        """Run one episode in each environment. `first` is the index of the first episode."""
        numbers = first + jnp.arange(self.per_turn)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
        env_keys, act_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        if isinstance(self.env, VmapEnv):
            reset_result = self.env.reset(env_keys)
        else:
            seed = jax.random.bits(jax.random.fold_in(key, 0), dtype=np.uint32) >> 1
            reset_result = self.env.begin(seed + numbers.astype(np.uint32))
        outcome = run_episodes(
            self.env,
            reset_result,
            lambda *args: self.act(agent, *args),
            self.initial_carry,
            act_keys,
            self.shards.any_member,
            max_steps=self.config.eval.max_steps,
        )
        # An agent with parameters that are not finite may still act, but its returns mean nothing.
        finite = is_finite(agent)
        returns = jnp.where(finite, outcome.returns, jnp.nan)
        by_policy = returns_by_policy(returns, self.env.spec.agents, self.config)
        metrics = outcome.metrics | by_policy
        return outcome._replace(returns=returns, cut=outcome.cut & finite, metrics=metrics)

    def evaluate(self, agent: AgentState, key: Key, first: Scalar = 0) -> Outcome:
        """Run all episodes of an agent. Call it inside of `jax.jit`.

        Args:
            agent: parameters and statistics of the agent.
            key: random key of the evaluation.
            first: index of the first episode, or of the first multi-agent environment, among all
                episodes of this key.

        Returns:
            The outcome of [episodes]. Returns are NaN for episodes that diverged, for agents with
            parameters that are not finite, and for slots that never had an agent. With several
            agents, `agent`, `key` and the outcome have a leading axis of agents.
        """
        outcome = self.mapped(agent, key, first, jnp.arange(self.shards.num_shards))
        leading = outcome.returns.shape[: self.shards.num_members > 0]
        episodes: Outcome = jax.tree.map(
            lambda x: x.reshape(*leading, -1)[..., : self.episodes], outcome
        )
        return episodes


def returns_by_policy(returns: Array, agents: Sequence[str], config: Config) -> dict[str, Array]:
    """Return the returns of the agents of each policy by metric, NaN for others, [episodes] each.

    Args:
        returns: returns [episodes], where row = copy * A + agent.
        agents: names of the A agents.
        config: settings of the run. Without `network.policies`, there are no metrics.
    """
    policies = config.network.policies
    names = np.array([policy_of(agent, policies) for agent in agents]) if policies else np.array([])
    copies = returns.shape[0] // max(len(names), 1)
    return {
        f"return_mean/{name}": jnp.where(np.tile(names == name, copies), returns, jnp.nan)
        for name in dict.fromkeys(names.tolist())
    }


def evaluation_shards(setup: Setup, episodes: int) -> Shards:
    """Return shards that divide agents and episodes over devices; one for host simulators.

    With several processes, the shards are on all devices, because each process has to take part.
    """
    devices, num_members = list(setup.devices), len(setup.members)
    if setup.on_host and not processes.is_distributed():
        return Shards(1, num_members=num_members)
    left = len(devices) // Shards(1, devices, num_members).num_devices
    enough = episodes >= left or processes.is_distributed()
    return Shards(left if enough else 1, devices, num_members)


def evaluate(
    agent: Agent | HasBest,
    episodes: int = 100,
    *,
    seed: int = 0,
    deterministic: bool | None = None,
    env: Any = None,
    **changes: Any,
) -> Evaluation:
    """Evaluate an agent over `episodes` whole episodes.

    Each agent of a multi-agent environment has its own episode: with A agents, `episodes` is
    rounded up to a multiple of A.

        ppo.evaluate(run, env={"max_episode_steps": 500}, **{"env.options.length": 2.0})

    Args:
        agent: an agent, or a run for its best agent. With several agents, each is evaluated.
        episodes: number of episodes of each agent.
        seed: seed of the first states of episodes and of sampled actions.
        deterministic: True for the distribution's mode, False for samples, None for the setting of
            the run's evaluations.
        env: another environment, or other settings of the section env, as for `Agent.with_env`.
            The result lists them as `conditions`.
        changes: such settings by dotted name.

    Raises:
        ValueError: `episodes` is below 1 or above `MOST_EPISODES`, or a setting of JAX is not
            supported.
    """
    if (count := whole(episodes)) is None:
        raise ValueError(f"episodes = {episodes!r}: must be a whole number")
    episodes = count
    if episodes < 1:
        raise ValueError(f"episodes = {episodes}: must be at least 1")
    if episodes > MOST_EPISODES:
        raise ValueError(f"episodes = {episodes}: must be at most {MOST_EPISODES}")
    seed = seed_of(seed)
    agent = agent_of(agent).with_env(env, **changes)
    check_settings(AHEAD_OF_TIME)
    if not agent.members:  # several agents are evaluated together, but not seeds of jax.vmap
        agent.check_single("evaluate", "this agent")
    setup = replace(resolve(agent.config, members=agent.members), devices=tuple(jax.devices()))
    try:
        return _evaluate(agent, setup, episodes, seed, deterministic)
    except lapack.TooFewThreadsError as error:
        log.warning("%s", error)
        on_one_device = replace(setup, devices=setup.devices[:1])
        return _evaluate(agent, on_one_device, episodes, seed, deterministic)


def _evaluate(
    agent: Agent, setup: Setup, episodes: int, seed: int, deterministic: bool | None
) -> Evaluation:
    """Evaluate on the devices of a setup; see `evaluate`.

    Raises:
        TooFewThreadsError: the program could hang on them.
    """
    per_turn = min(episodes, MAX_PARALLEL)
    shards = evaluation_shards(setup, per_turn)
    evaluator = Evaluator(
        setup,
        agent.policy,
        per_turn,
        deterministic=deterministic,
        shards=shards,
        seed=seed + OTHER_STARTS,
    )
    state = jax.device_get(agent.state)  # training may have sharded it differently
    key = streams.stream(jax.random.key(seed), streams.EVALUATE)
    if agent.members:  # the same first states for all agents
        key = jnp.broadcast_to(key, (len(agent.members),))
    count = evaluator.count
    firsts = range(0, -(-episodes // per_turn) * count, count)
    try:
        with simulator_errors(agent.config.env.name, evaluator.env):
            lowered = jax.jit(evaluator.evaluate).lower(state, key, np.int32(0))
            lapack.check(lowered, shards.devices)
            run = lowered.compile()
            results = [jax.device_get(run(state, key, np.int32(first))) for first in firsts]
    finally:
        evaluator.close()
    size = evaluator.env.spec.num_agents
    rows = -(-episodes // size) * size
    outcome = jax.tree.map(lambda *parts: np.concatenate(parts, axis=-1)[..., :rows], *results)
    returns, lengths, cut, metrics = outcome
    if warning := warning_of_cut(returns, cut, agent.config.eval.max_steps):
        log.warning("%s", warning)
    above = evaluator.env.spec.success_above
    return Evaluation(returns, lengths, above, cut, metrics, agent.conditions)
