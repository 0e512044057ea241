"""Records that rollout, estimation and update exchange.

Axis letters: T time, N environments (of one shard), D shards. Every array field states its shape
([]: scalar).
"""

from collections import namedtuple
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
from flax import struct

from purejaxppo.aliases import (
    Action,
    Carry,
    EnvAction,
    EnvState,
    Key,
    MetricDict,
    Obs,
    ObsBuffer,
    OptState,
    Params,
    StoredObs,
    Tree,
)
from purejaxppo.config.schema import TUNABLE, PPOConfig
from purejaxppo.spaces import Space

if TYPE_CHECKING:

    class Hyperparams(PPOConfig):
        """The tunable floats of `PPOConfig` as scalar arrays, which `vmap` can batch."""

        total_updates: jax.Array  # [] float: schedules end after this number of updates
        _fields: tuple[str, ...]

        @classmethod
        def _make(cls, values: Iterable[jax.Array]) -> "Hyperparams": ...
        def _replace(self, **changes: jax.Array) -> "Hyperparams": ...
else:
    Hyperparams = namedtuple(
        "Hyperparams", [*(name.removeprefix("ppo.") for name in TUNABLE), "total_updates"]
    )


class EnvSpaces(Protocol):
    """Spaces of an environment, as in its `EnvSpec`."""

    @property
    def observation(self) -> Space:
        """Space of one environment's observation."""
        ...

    @property
    def action(self) -> Space:
        """Space of its action."""
        ...


class Transition(NamedTuple):
    """One step of every environment; a rollout stacks T of them."""

    obs: StoredObs  # [N, ...] observation before the action, as `obs_storage` stores it
    action: Action  # [N, ...]
    log_prob: jax.Array  # [N] of the behaviour policy
    reward: jax.Array  # [N]
    terminated: jax.Array  # [N] bool
    truncated: jax.Array  # [N] bool
    valid: jax.Array  # [N] bool: False on the reset row after the end of an episode
    start: jax.Array  # [N] bool: obs is the first of an episode
    absent: jax.Array | None = None  # [N] bool: the agent needed no action; None: never
    at_once: jax.Array | None = None  # [N] bool: the next row is of the next episode; None: never
    ticks: jax.Array | None = None  # [N] game time until the next decision; None: not counted


class OpenDecision(NamedTuple):
    """Latest decision of agents that may be absent. Its outcome may still be unknown."""

    obs: Obs  # [N, ...]
    action: Action  # [N, ...] as the policy stores it
    log_prob: jax.Array  # [N]
    reward: jax.Array  # [N] since the decision
    valid: jax.Array  # [N] bool
    start: jax.Array  # [N] bool
    carry: Carry  # [N, ...] before the decision


class MetricSums(NamedTuple):
    """Sums of the environment's K metrics over episodes. They merge by addition."""

    total: jax.Array  # [K]
    count: jax.Array  # type: ignore[assignment]  # [K] int32: episodes that have the metric


class Episodes(NamedTuple):
    """Sums over the episodes that ended. They merge by addition."""

    count: jax.Array  # type: ignore[assignment]  # [] int32
    return_sum: jax.Array  # []
    length_sum: jax.Array  # [] int32
    diverged: jax.Array  # [] int32: episodes that diverged (see `EnvStep`), not counted above
    metrics: "MetricSums | None" = None  # of `EnvSpec.metrics`; None without metrics


class RolloutState(struct.PyTreeNode):
    """State of N environments between two steps."""

    env: EnvState
    obs: Obs  # [N, ...]
    start: jax.Array  # [N] bool
    carry: Carry  # [N, ...] recurrent carry, () for feed-forward networks
    episode_return: jax.Array  # [N] sum of `EnvStep.scores` of the running episode
    episode_length: jax.Array  # [N] int32
    discounted_return: jax.Array  # [N] for reward normalisation
    absent: jax.Array | None = None
    """[N] bool: the agent needs no action, and obs is stale. None: no agent is ever absent."""
    open: OpenDecision | None = None
    """None in evaluations, and if no agent is ever absent."""
    ticks: jax.Array | None = None
    """[N] game time since the latest decision; None unless `ppo.discount` is tick."""
    episode_metrics: Any = None
    """`EpisodeMetrics` of the running episode; None if the environment has no metrics."""


class RunningStats(NamedTuple):
    """Count, mean and sum of squared deviations of all rows so far (Chan et al. 1983)."""

    count: jax.Array  # type: ignore[assignment]  # []
    mean: Tree  # pytree of arrays, one entry per feature
    m2: Tree  # pytree of arrays, one entry per feature


class ValueStats(NamedTuple):
    """Statistics of all value targets of a run so far."""

    moments: RunningStats  # [] each
    low: jax.Array  # [] smallest target; infinity before the first one
    high: jax.Array  # [] largest target; minus infinity before the first one


class PolicyStep(NamedTuple):
    """Output of a policy for one step of N environments."""

    carry: Carry  # [N, ...] recurrent carry after the step, () for feed-forward networks
    action: Action  # [N, ...] as the policy stores it
    log_prob: jax.Array  # [N]
    env_action: EnvAction  # [N, ...]


class Outputs(NamedTuple):
    """Outputs of a network for N rows, or T x N rows."""

    carry: Carry  # [N, ...] after the last row, () for feed-forward networks
    dist_params: jax.Array  # [(T,) N, P] of the distribution over actions
    critic: jax.Array  # [(T,) N, K] decoded by `Critic.value`
    features: Any = ()  # [(T,) N, F] inputs of the policy's head


class Rollout(NamedTuple):
    """T steps of N environments, with the data needed to learn from them."""

    transitions: Transition  # [T, N]
    stored: ObsBuffer  # data from which the storage reads transitions.obs
    carry: Carry  # [N, ...] recurrent carry before the first row
    end: RolloutState  # state after the last row
    episodes: Episodes
    obs_stats: Tree = ()  # RunningStats that normalised the observations of the policy


class Batch(NamedTuple):
    """A rollout's data for the update: B units that are divided into minibatches.

    A unit is a transition. For recurrent networks it is a sequence of L transitions of one
    environment.
    """

    obs: Obs  # [B, (L,) ...] as `obs_storage` stores them; read before a gradient step
    carry: Carry  # [B, ...] before the unit
    start: jax.Array  # [B, (L)] bool
    action: Action  # [B, (L,) ...]
    log_prob: jax.Array  # [B, (L)] of the behaviour policy
    value: jax.Array  # [B, (L)] prediction before the update
    target: jax.Array  # [B, (L)] of the value
    advantage: jax.Array  # [B, (L)]
    valid: jax.Array  # [B, (L)] bool
    absent: jax.Array | None = None  # [B, (L)] bool: the carry does not change
    extra: Any = ()  # [B, (L) ...] each, by name: optional rows of auxiliary losses


class Predictions(NamedTuple):
    """Predictions of a network for the rows of a rollout."""

    value: jax.Array  # [T, N] of the observation
    next_value: jax.Array  # [T, N] of the next one; of another episode where `at_once`
    dist_params: jax.Array  # [T, N, P] of the distribution over actions


class Estimates(NamedTuple):
    """Estimates from the rewards and values of a rollout."""

    advantage: jax.Array  # [T, N] 0 where not valid
    target: jax.Array  # [T, N] of the value


class AgentState(struct.PyTreeNode):
    """The part of a training state needed to act. Evaluation restores only this part."""

    params: Params
    obs_stats: RunningStats  # statistics of observations; constant until the end of an update


STATISTICS = ("reward_stats.", "value_stats.")
"""Start of the names of the arrays that a `LearnedState` adds to an `AgentState`."""


class LearnedState(AgentState):
    """An agent with the statistics on which its critic's values depend.

    Another run can start from it (`runs.warm_start`).
    """

    reward_stats: RunningStats  # statistics of discounted returns
    value_stats: ValueStats  # statistics of value targets

    @property
    def agent(self) -> AgentState:
        """The part needed to act."""
        return AgentState(self.params, self.obs_stats)


def state_field(*, local: bool = False, not_inherited: str = "", not_taught: str = "") -> Any:
    """Return a field of a training state, with metadata on how it is sharded and copied.

    Args:
        local: True if each shard has its own value, with a leading axis D outside of a shard's
            functions. False if all shards have the same value.
        not_inherited: reason why a population member does not copy it from another; "": it does.
        not_taught: reason why a student does not copy it from its teacher; "": it does.
    """
    return struct.field(
        metadata={"local": local, "not_inherited": not_inherited, "not_taught": not_taught}
    )


class TrainState(struct.PyTreeNode):
    """Complete state of a training run. A run resumes exactly from its checkpoint."""

    agent: AgentState = state_field()
    opt_state: OptState = state_field(not_taught="its moments are those of another loss")
    reward_stats: RunningStats = state_field()  # statistics of discounted returns
    value_stats: ValueStats = state_field()  # statistics of value targets, for some critics
    intrinsic: Tree = state_field(  # state of the intrinsic reward; () without one
        not_taught="a student has no intrinsic reward"
    )
    bonus_return: Tree = state_field(  # [N] discounted intrinsic returns; () if not used
        local=True,
        not_inherited="environments continue",
        not_taught="a student has no intrinsic reward",
    )
    learner: Tree = state_field(  # state of a custom update (`ppo.learner`); () without one
        not_taught="its networks are trained with rewards"
    )
    update: jax.Array = state_field(  # [] int32: PPO updates done
        not_inherited="all agents have the same value", not_taught="the run starts at 0"
    )
    rollout: RolloutState = state_field(
        local=True,
        not_inherited="environments continue, with the recurrent state of their policy",
        not_taught="its recurrent state comes from the teacher, not from this policy",
    )
    key: jax.Array = state_field(  # a PRNG key
        local=True,
        not_inherited="parent and child need different random numbers",
        not_taught="the run has its own seed",
    )

    @property
    def learned(self) -> LearnedState:
        """The agent, and the statistics of its rewards and value targets."""
        agent = self.agent
        return LearnedState(agent.params, agent.obs_stats, self.reward_stats, self.value_stats)


def state_axes(kind: Any = TrainState) -> Any:
    """Return a state whose fields are 0 where shards have their own values, else None."""
    return kind(**{f.name: 0 if f.metadata["local"] else None for f in fields(kind)})


class Losses(NamedTuple):
    """Losses and metrics of a gradient step.

    `policy_loss`, `value_loss`, `entropy`, `approx_kl` and `clipfrac` are means over valid rows.
    """

    policy_loss: jax.Array  # []
    value_loss: jax.Array  # []
    entropy: jax.Array  # []
    approx_kl: jax.Array  # []
    clipfrac: jax.Array  # []
    grad_norm: jax.Array  # [] before clipping
    epochs: jax.Array  # [] passes over the data; fewer than configured after early stopping
    skipped: jax.Array  # [] gradient steps skipped because the norm was not finite
    terms: Any = ()  # [] each, by name: auxiliary losses; () in `Metrics`, which has them in extras


class Updated(NamedTuple):
    """Result of the gradient steps on one rollout."""

    params: Params
    opt_state: OptState
    losses: Losses  # means over the steps taken; NaN if all were skipped, 0 if none was taken


class Metrics(NamedTuple):
    """Sums over the updates of a chunk. `runs.rows` divides them on the host."""

    updates: jax.Array  # [] int32
    env_steps: jax.Array  # [] int32: valid rows only
    episodes: Episodes
    losses: Losses
    explained: jax.Array  # [] int32: updates whose value targets varied
    explained_variance: jax.Array  # [] summed over these
    trained: jax.Array  # [] int32: updates with gradient steps, also skipped ones
    finite: jax.Array  # [] int32: updates with a finite agent before and after them
    learned: jax.Array  # [] int32: updates that did not skip all of their gradient steps
    extras: MetricDict  # {} without extras


Trained = tuple[TrainState, Metrics]
"""(state after some updates, sums of their metrics)."""

Act = Callable[[Key, Carry, Obs, jax.Array], PolicyStep]
"""(key, carry [N, ...], obs [N, ...], start bool [N]) -> actions of N environments. The carry is
reset where `start` is True."""

AgentAct = Callable[[AgentState, Key, Carry, Obs, jax.Array], PolicyStep]
"""(agent, key, carry, obs, start) -> `PolicyStep`; see `Act`."""

Unroll = Callable[[Carry, Obs, jax.Array, jax.Array | None], Outputs]
"""(carry [N, ...], obs [T, N, ...], start bool [T, N], absent bool [T, N] or None) -> network
outputs [T, N, ...], with the carry after them. The carry is reset where `start` is True, and does
not change where `absent` is True."""

Estimate = Callable[[Params], Batch]
"""Network parameters -> batch of a rollout, with the advantages and targets of their critic."""


def named_leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by name, such as term_coefs.0."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
