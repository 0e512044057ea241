"""Whole episodes of a trained agent: exactly the requested number, one per environment."""

import logging
from dataclasses import replace
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo import streams
from purejaxppo.agents.diagnostics import is_finite
from purejaxppo.agents.policy import Policy, at_matmul_precision
from purejaxppo.aliases import Array, Key, Scalar
from purejaxppo.config.hints import format_number
from purejaxppo.config.plain import whole
from purejaxppo.config.schema import Config, EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.base import EnvSpec
from purejaxppo.envs.host.bridge import HostEnv, simulator_errors
from purejaxppo.envs.vectorize import VmapEnv
from purejaxppo.envs.worlds import MultiAgentEnv
from purejaxppo.parallel import lapack, processes
from purejaxppo.parallel.settings import AHEAD_OF_TIME, check_settings
from purejaxppo.parallel.shards import Shards
from purejaxppo.runs.agent import Agent, act_function
from purejaxppo.runs.episodes import (
    MOST_DIVERGED,
    Outcome,
    has_agent,
    num_cut,
    of_undiverged,
    run_episodes,
    success_rate,
)
from purejaxppo.setup import Setup, resolve
from purejaxppo.types import AgentState

log = logging.getLogger("purejaxppo")

MAX_PARALLEL = 256
"""Episodes that run in parallel; more are run in turns."""
MOST_EPISODES = 2**30
"""Largest number of episodes: they are counted in int32."""
OTHER_STARTS = 10_007
"""Offset of host simulators' seeds, for other starts than those that the best save is chosen by."""


class Evaluation(NamedTuple):
    """The outcome of whole episodes; of many agents, with a leading axis of them."""

    returns: np.ndarray  # [episodes] undiscounted, of the environment's reward; NaN: it diverged
    lengths: np.ndarray  # [episodes] steps
    success_above: float | None = None  # a greater return is a success; None: no such number
    cut: np.ndarray | np.bool = np.False_
    """[episodes] bool: stopped by `eval.max_steps` before its end, with its return so far. With a
    NaN return: a slot that never had an agent, which is not counted as an episode."""

    def member(self, index: int) -> "Evaluation":
        """That of one agent of many."""
        cut = np.broadcast_to(self.cut, self.returns.shape)[index]
        return self._replace(returns=self.returns[index], lengths=self.lengths[index], cut=cut)

    @property
    def score(self) -> float | np.ndarray:
        """The mean return of the episodes that did not diverge; of many agents, of each.

        NaN where more than `episodes.MOST_DIVERGED` of an agent's episodes did.
        """
        if self.returns.ndim > 1:
            return np.array([self.member(i).score for i in range(len(self.returns))])
        return float(of_undiverged(self.returns, self.returns, self.cut).mean())

    @property
    def success_rate(self) -> float | None:
        """Share of the episodes that were a success, of all agents; None where none could be."""
        if self.success_above is None:
            return None
        return success_rate(self.returns, self.cut, self.success_above)

    def __str__(self) -> str:
        """One line: mean, standard deviation, range and length, or of many agents their means."""
        success = "" if self.success_rate is None else f", success {self.success_rate:.1%}"
        return self._statistics() + success

    def _statistics(self) -> str:
        r, agents = self.returns, has_agent(self.returns, self.cut)
        episodes, empty = int(agents.sum()), int((~agents).sum())
        diverged, cut = int(np.isnan(r[agents]).sum()), num_cut(r, self.cut)
        x = np.asarray(self.score) if r.ndim > 1 else of_undiverged(r, r, self.cut)
        if not episodes:
            return f"no episodes: no agent appeared in {r.size} slots within eval.max_steps steps"
        if np.isnan(x).any():
            of = f" of {len(r)} agents" if r.ndim > 1 else ""
            return (
                f"{_episodes(episodes)}{of}: {diverged} diverged, too many for a mean return "
                f"(more than {MOST_DIVERGED:.0%})"
            )
        parts = [f"{diverged} diverged"] if diverged else []
        parts += [f"{cut} cut"] if cut else []
        parts += [f"not counting {empty} slots without an agent"] if empty else []
        note = f" ({', '.join(parts)})" if parts else ""
        most = np.abs(x).max()
        mean, std, low, high = (
            format_number(y, most) for y in (x.mean(), x.std(), x.min(), x.max())
        )
        if r.ndim > 1:
            return (
                f"{len(r)} agents, {_episodes(r.shape[1])} each{note}: mean return {mean} ± {std} "
                f"over agents (min {low}, max {high})"
            )
        return (
            f"{_episodes(episodes)}{note}: return {mean} ± {std} (min {low}, max {high}), length "
            f"{of_undiverged(self.lengths, r, self.cut).mean():.1f}"
        )


def _episodes(count: int) -> str:
    return f"{count} episode{'s' * (count != 1)}"


def warning_of_cut(returns: np.ndarray, cut: np.ndarray, max_steps: int) -> str:
    """Return a warning if an evaluation has cut episodes, or ""; see `Outcome`."""
    count = num_cut(returns, cut)
    if not count:
        return ""
    among = _episodes(int(has_agent(returns, cut).sum()))
    return (
        f"eval.max_steps = {max_steps}: {count} of {among} were cut after this number of steps. "
        f"The mean return includes their returns so far. Increase eval.max_steps to play them to "
        f"their end."
    )


def evaluation_env(config: Config) -> EnvConfig:
    """The environment of a run's evaluations: the run's own, with `eval.options`."""
    return replace(config.env, options={**config.env.options, **config.eval.options})


def _check_spaces(spec: EnvSpec, policy: Policy) -> None:
    """Raises ValueError if a policy does not fit the environment of its evaluations."""
    for what in ("observation", "action"):
        here, learned = getattr(spec, what), getattr(policy, what)
        if here != learned:
            raise ValueError(
                f"eval.options: with these options the task's {what} space is {here}, but the "
                f"policy's is {learned}. Evaluations need the same spaces as training."
            )


class Evaluator:
    """Runs whole episodes.

    There are at most as many simulators on the host as in training, and they play the episodes in
    turns. Other episodes are divided over the shards; if their number does not divide, it is
    rounded up and the rest is cut off by index, so that no episode is preferred for being short.
    Each has a key of its own, by its number among all, so that it does not depend on how they are
    divided.

    Args:
        setup: of the run or the evaluation.
        policy: of the agent.
        episodes: their number.
        deterministic: the distribution's mode, or samples of it; None: as the config says.
        shards: to divide the episodes over; one for simulators on the host.
        seed: of simulators that do not take a key.
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
        """Makes the environments."""
        self.config = config = setup.config
        self.on_host = setup.on_host
        self.episodes = episodes
        self.shards = shards or Shards(1)
        try:
            self.env = self._make(seed)
        except ValueError as error:
            if not config.eval.options:
                raise
            said = str(error).replace("env.options", "eval.options")
            raise ValueError(f"in evaluations: {said}") from error
        if config.eval.options:
            _check_spaces(self.env.spec, policy)
        size = self.env.spec.num_agents
        self.per_turn = self.env.spec.num_envs // size  # environments, or worlds of many agents
        self.count = -(-episodes // size)  # over all shards, without those cut off
        self.turns = -(-self.count // (self.per_turn * self.shards.num_shards))
        self.per_shard = self.turns * self.per_turn
        self.act = act_function(config, policy, deterministic, apart=True)
        self.initial_carry = policy.network.initial_carry
        self.mapped = self.shards.map(
            self._shard, (None, None, None, 0), 0, ((0, 0, None, None), 0)
        )

    def _make(self, seed: int) -> HostEnv | MultiAgentEnv | VmapEnv:
        """The environments of a shard; at most as many simulators on the host as in training."""
        config, shards = evaluation_env(self.config), self.shards.num_shards
        if self.on_host:
            config = replace(config, num_envs=max(1, config.num_envs // shards))
            local = -(-self.episodes // shards)
            first = processes.index() * local
            host = registry.make(config, local, seed=seed, first=first, evaluation=True)
            return cast("HostEnv | MultiAgentEnv", host)
        one = registry.make(config, 1, evaluation=True)
        count = -(-self.episodes // one.spec.num_agents)
        return VmapEnv(one, -(-count // shards))

    def close(self) -> None:
        """Closes simulators on the host."""
        self.env.close()

    @at_matmul_precision
    def _shard(self, agent: AgentState, key: Key, first: Array, shard_id: Array) -> Outcome:
        """A shard's episodes, in turns."""
        begin = first + shard_id * self.per_shard
        if self.turns == 1:
            return self._turn(agent, key, begin)
        firsts = begin + self.per_turn * jnp.arange(self.turns)
        outcome = jax.lax.map(lambda first: self._turn(agent, key, first), firsts)
        return Outcome(*map(jnp.ravel, outcome))

    def _turn(self, agent: AgentState, key: Key, first: Array) -> Outcome:
        """An episode of each environment, the first of which has the number `first`."""
        numbers = first + jnp.arange(self.per_turn)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
        env_keys, act_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        if isinstance(self.env, VmapEnv):
            begun = self.env.reset(env_keys)
        else:
            seed = jax.random.bits(jax.random.fold_in(key, 0), dtype=np.uint32) >> 1
            begun = self.env.begin(seed + numbers.astype(np.uint32))
        outcome = run_episodes(
            self.env,
            begun,
            lambda *args: self.act(agent, *args),
            self.initial_carry,
            act_keys,
            self.shards.any_member,
            max_steps=self.config.eval.max_steps,
        )
        # An agent that is not finite may still act, but its returns are meaningless.
        finite = is_finite(agent)
        returns = jnp.where(finite, outcome.returns, jnp.nan)
        return Outcome(returns, outcome.lengths, outcome.cut & finite)

    def evaluate(self, agent: AgentState, key: Key, first: Scalar = 0) -> Outcome:
        """All episodes of an agent, to be jitted.

        With members, agent, key and outcome have a leading axis of them. `first` is the number that
        the first episode (or world) has among all that belong to the key. Returns of episodes that
        diverged are NaN, and so are all those of an agent that is not finite, and those of slots
        that never had an agent.
        """
        outcome = self.mapped(agent, key, first, jnp.arange(self.shards.num_shards))
        leading = outcome.returns.shape[: self.shards.num_members > 0]
        return Outcome._make(x.reshape(*leading, -1)[..., : self.episodes] for x in outcome)


def evaluation_shards(setup: Setup, episodes: int) -> Shards:
    """Shards that divide members and episodes over devices; one for simulators on the host.

    With several processes they are always on all devices: each process has to take part.
    """
    devices, num_members = list(setup.devices), len(setup.members)
    if setup.on_host and not processes.is_distributed():
        return Shards(1, num_members=num_members)
    left = len(devices) // Shards(1, devices, num_members).num_devices
    enough = episodes >= left or processes.is_distributed()
    return Shards(left if enough else 1, devices, num_members)


def evaluate(
    agent: Agent, episodes: int = 100, *, seed: int = 0, deterministic: bool | None = None
) -> Evaluation:
    """Runs exactly `episodes` whole episodes; of many agents, this number of each.

    Args:
        agent: from `restore`, or `Agent(config, result.agent)` of a TrainResult.
        episodes: their number.
        seed: of the environments' starts (and of the actions' noise).
        deterministic: the distribution's mode, or samples of it; None: as the run's evaluations.

    Raises:
        ValueError: `episodes` is below 1 or above `MOST_EPISODES`, or a setting of JAX cannot be
            used.
    """
    if (count := whole(episodes)) is None:
        raise ValueError(f"episodes = {episodes!r} must be a whole number")
    episodes = count
    if episodes < 1:
        raise ValueError(f"episodes = {episodes} must be at least 1")
    if episodes > MOST_EPISODES:
        raise ValueError(f"episodes = {episodes} must be at most {MOST_EPISODES}")
    check_settings(AHEAD_OF_TIME)
    setup = replace(resolve(agent.config, members=agent.members), devices=tuple(jax.devices()))
    try:
        return _evaluate(agent, setup, episodes, seed, deterministic)
    except lapack.TooFewThreadsError as error:
        log.warning("%s", error)
        one = replace(setup, devices=setup.devices[:1])
        return _evaluate(agent, one, episodes, seed, deterministic)


def _evaluate(
    agent: Agent, setup: Setup, episodes: int, seed: int, deterministic: bool | None
) -> Evaluation:
    """Evaluates on the devices of a setup; see `evaluate`.

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
    state = jax.device_get(agent.state)  # wherever it was trained: here it may be sharded otherwise
    key = streams.stream(jax.random.key(seed), streams.EVALUATE)
    if agent.members:  # the same starts for all
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
    returns, lengths, cut = (
        np.concatenate(parts, axis=-1)[..., :episodes] for parts in zip(*results, strict=True)
    )
    if warning := warning_of_cut(returns, cut, agent.config.eval.max_steps):
        log.warning("%s", warning)
    return Evaluation(returns, lengths, evaluator.env.spec.success_above, cut)
