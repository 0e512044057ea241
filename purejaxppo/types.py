"""Data types that rollout, estimation and update pass to each other.

Axis letters: T time, N environments (of one shard), D shards. Every array field states its shape.
"""

from collections import namedtuple
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from flax import struct

from purejaxppo.config.schema import TUNABLE, PPOConfig

Obs = Any
"""An observation: one array [N, ...], or a dict of them for `Dict` spaces."""

Action = Any
"""An action as the policy stores it: one array [N, ...], or a dict of them for products."""


if TYPE_CHECKING:

    class Hyperparams(PPOConfig):
        """The tunable floats of `PPOConfig` as arrays [], so that a grid is one more `vmap`."""

        total_updates: Any  # [] float: schedules reach their end after so many updates
        _fields: tuple[str, ...]

        @classmethod
        def _make(cls, values: Iterable[Any]) -> "Hyperparams": ...
        def _replace(self, **changes: Any) -> "Hyperparams": ...
else:
    Hyperparams = namedtuple(
        "Hyperparams", [*(name.removeprefix("ppo.") for name in TUNABLE), "total_updates"]
    )


class Transition(NamedTuple):
    """One step of every environment; a rollout stacks T of them."""

    obs: Any  # [N, ...] the observation before the action, as a row of `obs_storage`
    action: Action  # [N, ...]
    log_prob: jax.Array  # [N] of the behaviour policy
    reward: jax.Array  # [N]
    terminated: jax.Array  # [N] bool
    truncated: jax.Array  # [N] bool
    valid: jax.Array  # [N] bool: False on the reset row that follows an episode's end
    start: jax.Array  # [N] bool: obs is an episode's first


class Episodes(NamedTuple):
    """Returns and lengths of the episodes that ended, as sums that merge by addition."""

    count: jax.Array  # type: ignore[assignment]  # [] int32
    return_sum: jax.Array  # []
    length_sum: jax.Array  # [] int32
    diverged: jax.Array  # [] int32: episodes that diverged, not counted above


class RolloutState(struct.PyTreeNode):
    """State of N environments between two rollouts."""

    env: Any  # the environment's own state
    obs: Obs  # [N, ...]
    start: jax.Array  # [N] bool
    carry: Any  # [N, ...] recurrent carry, () for feed-forward networks
    episode_return: jax.Array  # [N] reward so far in the running episode
    episode_length: jax.Array  # [N] int32
    discounted_return: jax.Array  # [N] for reward normalisation


class RunningStats(NamedTuple):
    """Count, mean and sum of squared deviations of everything seen (Chan et al. 1983)."""

    count: jax.Array  # type: ignore[assignment]  # []
    mean: Any  # pytree of arrays, one entry per feature
    m2: Any  # as mean


class ValueStats(NamedTuple):
    """Statistics of a run's value targets so far."""

    moments: RunningStats  # [] each
    low: jax.Array  # [] the smallest; infinity before there were any
    high: jax.Array  # [] the largest; minus infinity before there were any


class PolicyStep(NamedTuple):
    """Actions that a policy chose for N environments."""

    carry: Any  # [N, ...] recurrent carry after it, () for feed-forward networks
    action: Action  # [N, ...] as the policy stores it
    log_prob: jax.Array  # [N]
    env_action: Any  # [N, ...] as the environment receives it


class Outputs(NamedTuple):
    """Outputs of a network for N rows, or T x N of them."""

    carry: Any  # [N, ...] after the last row, () for feed-forward networks
    dist_params: jax.Array  # [(T,) N, P] of the distribution over actions
    critic: jax.Array  # [(T,) N, K] outputs that `Critic.value` decodes


class Rollout(NamedTuple):
    """T steps of N environments, with the data needed to learn from them."""

    transitions: Transition  # [T, N]
    stored: Any  # storage behind the rows transitions.obs; () if these are the observations
    carry: Any  # [N, ...] recurrent carry before the first row
    end: RolloutState  # after the last row
    episodes: Episodes
    obs_stats: Any = ()  # RunningStats that the policy's observations were normalised by


class AgentState(struct.PyTreeNode):
    """The part of a training state that acting needs, and that evaluation restores."""

    params: Any  # network parameters
    obs_stats: RunningStats  # of observations, frozen during a rollout and its update


def state_field(*, local: bool = False, own: str = "", untaught: str = "") -> Any:
    """A field of a training state, with metadata on how it is sharded and copied.

    Args:
        local: each shard has its own (a leading axis of D outside of a shard's functions), or all
            have the same.
        own: reason why a member of a population does not copy it from another member; "": it does.
        untaught: reason why it is not copied from the imitation of a teacher; "": it is.
    """
    return struct.field(metadata={"local": local, "own": own, "untaught": untaught})


class TrainState(struct.PyTreeNode):
    """The complete state of a training run; a run resumes exactly from a saved one."""

    agent: AgentState = state_field()
    opt_state: Any = state_field(  # optax state over the parameters as one flat vector
        untaught="its moments are of another loss, and of another optimiser under kl_rate"
    )
    reward_stats: RunningStats = state_field()  # of discounted returns
    value_stats: ValueStats = state_field()  # of value targets, for critics that use them
    intrinsic: Any = state_field(  # state of the intrinsic reward; () for none
        untaught="a student is not curious"
    )
    update: jax.Array = state_field(  # [] int32: PPO iterations done
        own="all members' are the same", untaught="the run begins"
    )
    rollout: RolloutState = state_field(
        local=True,
        own="environments go on; a recurrent carry, which is the old network's, begins anew",
        untaught="its carry is the teacher's",
    )
    key: jax.Array = state_field(  # a PRNG key
        local=True, own="or parent and child would draw the same", untaught="the run's own"
    )


def state_axes(kind: Any = TrainState) -> Any:
    """A state of a class whose fields are 0 where shards have their own, None elsewhere."""
    return kind(**{f.name: 0 if f.metadata["local"] else None for f in fields(kind)})


class Losses(NamedTuple):
    """Diagnostics of one minibatch update, the first five means over the minibatch's valid rows."""

    policy_loss: jax.Array  # []
    value_loss: jax.Array  # []
    entropy: jax.Array  # []
    approx_kl: jax.Array  # []
    clipfrac: jax.Array  # []
    grad_norm: jax.Array  # [] before clipping
    epochs: jax.Array  # [] passes over the data, fewer than configured where KL stopped them
    skipped: jax.Array  # [] gradient steps not taken, since the gradient's norm was not finite


class Metrics(NamedTuple):
    """Sums over the updates of a chunk; `runs.rows` divides them on the host."""

    updates: jax.Array  # [] int32
    env_steps: jax.Array  # [] int32: valid rows only
    episodes: Episodes
    losses: Losses
    explained: jax.Array  # [] int32: updates whose value targets varied
    explained_variance: jax.Array  # [] summed over those
    finite: jax.Array  # [] int32: updates with a finite agent before and after them
    learned: jax.Array  # [] int32: updates that skipped not all of their gradient steps
    extras: dict[str, jax.Array]  # [] each, by dashboard name; {} unless an extra reports
