"""The nouns of the library: what flows between rollout, estimation and update.

Axis letters: T time, N environments (of one shard), D shards. Every array field states its shape.
"""

from typing import Any, NamedTuple

import jax
from flax import struct

Obs = Any
"""An observation: one array [N, ...], or a dict of them for `Dict` spaces."""

Action = Any
"""An action as the policy stores it: one array [N, ...], or a dict of them for products."""


class Hyperparams(NamedTuple):
    """The tunable floats of PPO as arrays, so that a grid of them is one more `vmap`."""

    learning_rate: jax.Array  # []
    gamma: jax.Array  # []
    gae_lambda: jax.Array  # []
    clip_eps: jax.Array  # []
    vf_clip_eps: jax.Array  # []
    vf_coef: jax.Array  # []
    ent_coef: jax.Array  # []
    max_grad_norm: jax.Array  # []
    kl_coef: jax.Array  # []
    dual_clip: jax.Array  # []
    intrinsic_coef: jax.Array  # []
    symmetry_coef: jax.Array  # []
    total_updates: jax.Array  # [] float: schedules reach their end after so many updates


class Transition(NamedTuple):
    """One step of every environment; a rollout stacks T of them."""

    obs: Any  # [N, ...] what the action was chosen from, as `memory.py` keeps it
    action: Action  # [N, ...]
    log_prob: jax.Array  # [N] of the behaviour policy
    reward: jax.Array  # [N]
    terminated: jax.Array  # [N] bool
    truncated: jax.Array  # [N] bool
    valid: jax.Array  # [N] bool: False on the reset row that follows an episode's end
    start: jax.Array  # [N] bool: obs is an episode's first
    memory: Any = ()  # what the rows of obs refer to, without time, if it is not whole
    carry: Any = ()  # [N, ...] recurrent carry before the first row, without time


class Episodes(NamedTuple):
    """Returns and lengths of the episodes that ended, as sums that merge by addition."""

    count: jax.Array  # type: ignore[assignment]  # [] int32
    return_sum: jax.Array  # []
    length_sum: jax.Array  # [] int32
    diverged: jax.Array  # [] int32: episodes that a simulator broke, none of those above


class RolloutState(struct.PyTreeNode):
    """Where N environments stand between two rollouts."""

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
    """What the value targets of a run were like so far."""

    moments: RunningStats  # [] each
    low: jax.Array  # [] the smallest; infinity before there were any
    high: jax.Array  # [] the largest; minus infinity before there were any


class Experience(NamedTuple):
    """A rollout, and what it takes to learn from it."""

    rollout: RolloutState  # where the environments stand after it
    transitions: Transition  # [T, N]
    episodes: Episodes
    obs_stats: RunningStats  # what the policy's observations were normalised by


class AgentState(struct.PyTreeNode):
    """All that acting needs: what evaluation restores."""

    params: Any  # network parameters
    obs_stats: RunningStats  # of observations, frozen during a rollout and its update


class TrainState(struct.PyTreeNode):
    """The whole of a training run; saving and restoring it is exact resume.

    `rollout` and `key` are local to a shard (leading axis D outside `train_chunk`), the rest is
    shared by all shards.
    """

    agent: AgentState
    opt_state: Any  # optax state over the parameters as one flat vector
    reward_stats: RunningStats  # of discounted returns
    value_stats: ValueStats  # of value targets, for critics that look at them
    intrinsic: Any  # what an intrinsic reward has learned; () for none
    update: jax.Array  # [] int32: PPO iterations done
    rollout: RolloutState
    key: jax.Array  # a PRNG key


class Losses(NamedTuple):
    """Diagnostics of one minibatch update, the first five means over the minibatch's valid rows."""

    policy_loss: jax.Array  # []
    value_loss: jax.Array  # []
    entropy: jax.Array  # []
    approx_kl: jax.Array  # []
    clipfrac: jax.Array  # []
    grad_norm: jax.Array  # [] before clipping
    epochs: jax.Array  # [] passes over the data, fewer than asked for where KL stopped them
    skipped: jax.Array  # [] gradient steps not taken, since the gradient's norm was not finite


class Metrics(NamedTuple):
    """Sums over the updates of a chunk; `reporting` divides them on the host."""

    updates: jax.Array  # [] int32
    env_steps: jax.Array  # [] int32: valid rows only
    episodes: Episodes
    losses: Losses
    explained: jax.Array  # [] int32: updates whose value targets varied
    explained_variance: jax.Array  # [] summed over those
    finite: jax.Array  # [] int32: updates with a finite agent before and after them
    learned: jax.Array  # [] int32: updates that skipped not all of their gradient steps
    extras: dict[str, jax.Array]  # [] each, by dashboard name; {} unless an extra reports
