"""PPO: one update from top to bottom, as functions of the parts of a training run.

`train_step` is the algorithm. It collects a rollout, scales rewards, estimates values, advantages
and targets, runs epochs of minibatch steps, and finally updates the statistics. Replace a part to
use another network, objective, storage, intrinsic reward or collector.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from purejaxppo.agents import decisions, diagnostics, losses, normalize, optimizers, ppo
from purejaxppo.agents.advantages import Advantages
from purejaxppo.agents.critics import Critic
from purejaxppo.agents.decisions import has_next_obs, next_entries
from purejaxppo.agents.extras.auxiliary_losses import AuxiliaryLosses
from purejaxppo.agents.extras.intrinsic import BonusRows, Intrinsic
from purejaxppo.agents.extras.symmetry import Symmetry
from purejaxppo.agents.networks.distributions import stored_actions
from purejaxppo.agents.normalize import Rewards
from purejaxppo.agents.objectives import Objective
from purejaxppo.agents.obs_storage import ObsStorage, before_and_after
from purejaxppo.agents.policy import Policy
from purejaxppo.agents.schedules import scheduled
from purejaxppo.agents.sequences import UnitLayout
from purejaxppo.aliases import (
    Array,
    InitialCarry,
    Key,
    MetricDict,
    Obs,
    ObsBuffer,
    Params,
    Scalar,
    Tree,
)
from purejaxppo.config.schema import Config
from purejaxppo.envs.base import Env
from purejaxppo.envs.vectorize import bounded, select, zero_floats
from purejaxppo.parallel.shards import Shards
from purejaxppo.rollout import Collect, init_rollout
from purejaxppo.streams import (
    BEGIN_ROLLOUT,
    CURIOUS_NETWORKS,
    LEARNER,
    NEW_EPISODES,
    Keys,
    split_keys,
    stream,
)
from purejaxppo.types import (
    AgentAct,
    AgentState,
    Batch,
    Hyperparams,
    Losses,
    Predictions,
    Rollout,
    RolloutState,
    RunningStats,
    Trained,
    TrainState,
    ValueStats,
)


class Parts(NamedTuple):
    """Functions and objects of a training run. `parts.make_parts` selects them by the config."""

    config: Config
    """Config of the run, with `num_shards` resolved."""
    shards: Shards
    """Maps functions of one shard of environments over all shards, and over agents."""
    env: Env
    """The environments of one shard."""
    policy: Policy
    """The policy that learns: network, distribution, normalisation."""
    act: AgentAct
    """The policy that acts in a rollout."""
    initial_carry: InitialCarry
    """Recurrent carry of the policy that acts."""
    storage: ObsStorage
    """Storage of the observations of a rollout."""
    layout: UnitLayout
    """Units of minibatches: single steps or sequences."""
    critic: Critic
    """Critic head: decodes values and computes the value loss."""
    bonus: Intrinsic
    """Intrinsic reward."""
    symmetry: Symmetry
    """Mirrored rows, and a penalty on asymmetry."""
    auxiliary_losses: AuxiliaryLosses
    """Auxiliary losses."""
    start: Callable[["Parts", RolloutState, Key, Scalar], RolloutState]
    """(parts, state after the last rollout, key, progress of the run, 0 to 1) -> state before the
    next rollout."""
    collect: Collect
    """Collector, such as `rollout.collect`."""
    advantages: Advantages
    """Estimator of advantages and value targets."""
    before_epoch: ppo.BeforeEpoch | None
    """Batch of the next epoch; None: the same batch in all epochs."""
    epoch_kl: Callable[..., Array] | None
    """(parts, agent, rollout, parameters) -> KL for early stopping; None: the mean of an epoch."""
    objective: Objective
    """Policy loss."""
    learner: "Learner"
    """The update from a rollout. A custom one uses only the parts that it calls."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the columns of metrics.csv with the extras of `Metrics`."""
        return self.learner.metric_names(self)


class Learner(NamedTuple):
    """The update of an agent from a rollout."""

    learn: Callable[[Parts, TrainState, Rollout, Hyperparams], Trained]
    """(parts, state, rollout, hp before schedules) -> (state, metrics); see `learn`."""
    init: Callable[[Parts, AgentState, Key], Tree] = lambda parts, agent, key: ()
    """(parts, initial agent, key) -> initial `TrainState.learner`, such as other networks. Called
    again for the agent of a warm start or of pretraining."""
    metric_names: Callable[[Parts], tuple[str, ...]] = lambda parts: ()
    """Parts -> names of the metrics in `Metrics.extras`."""


def init_state(parts: Parts, key: Key, shard_id: Array) -> TrainState:
    """Return the state of one shard before the first update.

    Args:
        parts: functions and objects of the run.
        key: random key of the run, the same for all shards.
        shard_id: index of the shard, int32 scalar.
    """
    agent_key, shard_key = jax.random.split(key)
    env_key, key = jax.random.split(jax.random.fold_in(shard_key, shard_id))
    agent = parts.policy.init(agent_key)
    return TrainState(
        agent=agent,
        opt_state=optimizers.init_state(parts.config.ppo, agent.params),
        reward_stats=normalize.init_stats(jnp.zeros(())),
        value_stats=normalize.init_value_stats(),
        intrinsic=parts.bonus.init(stream(agent_key, CURIOUS_NETWORKS)),
        bonus_return=jnp.zeros(parts.env.spec.num_envs) if parts.bonus.track else (),
        learner=parts.learner.init(parts, agent, stream(agent_key, LEARNER)),
        update=jnp.zeros((), jnp.int32),
        rollout=new_episodes(parts, env_key),
        key=key,
    )


def new_episodes(parts: Parts, key: Key) -> RolloutState:
    """Return the state of the environments before the first rollout."""
    action = stored_actions(parts.policy.distribution, (parts.env.spec.num_envs,))
    ticks = parts.config.ppo.discount == "tick"
    return init_rollout(parts.env, parts.initial_carry, key, count_ticks=ticks, action=action)


def continue_episodes(
    parts: Parts, state: RolloutState, key: Key, progress: Scalar
) -> RolloutState:
    """Start a rollout in the running episodes."""
    del parts, key, progress
    return state


def reset_all(parts: Parts, state: RolloutState, key: Key, progress: Scalar) -> RolloutState:
    """Start a rollout with new episodes (`ppo.reset_each_rollout`)."""
    del state, progress
    first = new_episodes(parts, stream(key, NEW_EPISODES))
    # Networks must not see NaN. The first step of such an environment only resets it.
    obs = select(bounded(first.obs), first.obs, zero_floats(first.obs))
    return first.replace(obs=obs)


def train_chunk(parts: Parts, state: TrainState, hp: Hyperparams, num_updates: Array) -> Trained:
    """Run several updates.

    Args:
        parts: functions and objects of the run.
        state: training state before the updates.
        hp: hyperparameters before their schedules are applied.
        num_updates: number of updates, traced int32 scalar.

    Returns:
        (state, sums of the metrics).
    """

    def body(_: Array, carried: Trained) -> Trained:
        state, total = carried
        state, metrics = train_step(parts, state, hp)
        diagnostics.check_extras(metrics, parts.metric_names)
        return state, jax.tree.map(jnp.add, total, metrics)

    zeros = diagnostics.zero_metrics(parts.metric_names, len(parts.env.spec.metrics))
    return jax.lax.fori_loop(0, num_updates, body, (state, zeros))


def train_step(parts: Parts, state: TrainState, hp: Hyperparams) -> Trained:
    """Run one PPO update: collect a rollout, then learn from it.

    Args:
        parts: functions and objects of the run.
        state: training state before the update.
        hp: hyperparameters before their schedules are applied.

    Returns:
        (state, metrics).
    """
    keys = split_keys(state.key)
    progress = state.update / hp.total_updates
    rollout = collect(parts, state.agent, state.rollout, keys.act, progress)
    return parts.shards.in_turn(partial(parts.learner.learn, parts))(state, rollout, hp)


def collect(
    parts: Parts, agent: AgentState, state: RolloutState, key: Key, progress: Scalar
) -> Rollout:
    """Collect a rollout of T steps of N environments.

    Args:
        parts: functions and objects of the run.
        agent: the agent that acts.
        state: rollout state after the previous rollout.
        key: random key; the caller must not use it again.
        progress: progress of the run, 0 to 1, scalar.
    """
    rollout = parts.collect(
        parts.env,
        partial(parts.act, agent),
        begin_rollout(parts, state, key, progress),
        key,
        parts.config.ppo.rollout_length,
        parts.storage,
    )
    return rollout._replace(obs_stats=agent.obs_stats)


def begin_rollout(parts: Parts, state: RolloutState, key: Key, progress: Scalar) -> RolloutState:
    """Return the state before the first step of a rollout.

    Args:
        parts: functions and objects of the run.
        state: rollout state after the previous rollout.
        key: random key of the rollout.
        progress: progress of the run, 0 to 1, scalar.
    """
    state = parts.start(parts, state, key, progress)
    env_state = parts.env.begin_rollout(state.env, stream(key, BEGIN_ROLLOUT), progress)
    return state.replace(env=env_state)


def learn(parts: Parts, state: TrainState, rollout: Rollout, hp: Hyperparams) -> Trained:
    """Update the agent from a rollout.

    Observations are normalised with the statistics that were used to act. The statistics are
    updated last. Therefore the first probability ratio is exactly 1.

    Args:
        parts: functions and objects of the run.
        state: training state before the update.
        rollout: T steps of N environments.
        hp: hyperparameters before their schedules are applied.

    Returns:
        (state, metrics).
    """
    keys = split_keys(state.key)
    hp = scheduled(hp, parts.config.ppo, state.update)
    agent = AgentState(state.agent.params, rollout.obs_stats)
    scaled = scale_rewards(parts, state, rollout, hp)
    bonus = add_bonus(parts, state, rollout, scaled.reward, hp, keys)

    def estimate(value_stats: ValueStats, params: Params) -> Batch:
        return make_batch(
            parts, agent.replace(params=params), rollout, bonus.reward, hp, value_stats
        )

    batch = estimate(state.value_stats, agent.params)
    params, value_stats = track_targets(parts, agent.params, state.value_stats, batch)
    before_epoch = parts.before_epoch and partial(
        parts.before_epoch, partial(estimate, value_stats)
    )
    updated = ppo.update_epochs(
        ppo.Update(
            loss=partial(minibatch_loss, parts, agent, value_stats, hp),
            psum=parts.shards.psum,
            before_epoch=before_epoch,
            epoch_kl=parts.epoch_kl and partial(parts.epoch_kl, parts, agent, rollout),
            prepare=partial(read_minibatch, parts, rollout.stored),
            project=optimizers.projection(params, parts.policy.network.limits),
        ),
        params,
        state.opt_state,
        batch,
        hp,
        keys.update,
        config=parts.config.ppo,
        num_envs=parts.env.spec.num_envs,
    )
    agent = AgentState(updated.params, update_obs_stats(parts, state.agent.obs_stats, rollout))
    metrics = diagnostics.summarise(agent, rollout, batch, updated.losses, parts.shards.psum)
    extras = bonus.metrics | diagnostics.mean_of_targets(
        parts.critic.metrics, batch, parts.shards.psum
    )
    extras |= optimizers.metrics(parts.config.ppo, state.opt_state, jnp.asarray(hp.learning_rate))
    state = state.replace(
        agent=agent,
        opt_state=updated.opt_state,
        reward_stats=scaled.stats,
        value_stats=value_stats,
        intrinsic=bonus.state,
        bonus_return=bonus.returns,
        update=state.update + 1,
        rollout=rollout.end.replace(discounted_return=scaled.discounted_return),
        key=keys.next,
    )
    return state, metrics._replace(extras=metrics.extras | extras)


def metrics_of_ppo(parts: Parts) -> tuple[str, ...]:
    """Return the names of the metrics in the extras of `learn`."""
    return (
        *parts.bonus.metric_names,
        *parts.critic.metrics,
        *parts.auxiliary_losses.metric_names,
        *optimizers.metric_names(parts.config.ppo),
    )


PPO = Learner(learn, metric_names=metrics_of_ppo)


def scale_rewards(parts: Parts, state: TrainState, rollout: Rollout, hp: Hyperparams) -> Rewards:
    """Scale the rewards of a rollout, if configured (`ppo.normalize_reward`, `ppo.reward_scale`).

    Args:
        parts: functions and objects of the run.
        state: training state before the update.
        rollout: T steps of N environments.
        hp: hyperparameters.
    """
    config, stats = parts.config.ppo, state.reward_stats
    carried = state.rollout.discounted_return
    rows = decisions.spread_rewards(rollout.transitions, hp.gamma)
    scaled = Rewards(rows.reward, stats, carried)
    if config.normalize_reward:
        psum, clip = parts.shards.psum, config.clip_reward
        gamma = decisions.discount(hp.gamma, rows.ticks)
        scaled = normalize.scale_rewards(stats, carried, rows, gamma, clip, psum=psum)
    if config.reward_scale != 1:
        scaled = scaled._replace(reward=config.reward_scale * scaled.reward)
    return scaled


class Bonus(NamedTuple):
    """Rewards of a rollout plus intrinsic rewards, and the new state of the intrinsic reward."""

    reward: Array  # [T, N]
    state: Tree  # new TrainState.intrinsic
    returns: Tree  # new TrainState.bonus_return
    metrics: MetricDict


def add_bonus(
    parts: Parts, state: TrainState, rollout: Rollout, reward: Array, hp: Hyperparams, keys: Keys
) -> Bonus:
    """Return `reward` + `intrinsic_coef` x the intrinsic rewards of a rollout.

    Also update the model of the intrinsic reward.

    Args:
        parts: functions and objects of the run.
        state: training state before the update.
        rollout: T steps of N environments.
        reward: scaled rewards, float [T, N].
        hp: hyperparameters.
        keys: random keys of the update.
    """
    rows, intrinsic, returns = rollout.transitions, state.intrinsic, state.bonus_return
    normalized = partial(parts.policy.normalize_obs, rollout.obs_stats)
    obs, after = before_and_after(parts.storage, rollout)
    bonus_rows = BonusRows(normalized(obs), normalized(after), rows.action, has_next_obs(rows))
    if parts.bonus.track:
        intrinsic, returns = parts.bonus.track(intrinsic, returns, bonus_rows, parts.shards.psum)
    bonus = parts.bonus.reward(intrinsic, bonus_rows)
    intrinsic, metrics = parts.bonus.update(intrinsic, bonus_rows, keys.bonus, parts.shards.psum)
    return Bonus(reward + hp.intrinsic_coef * bonus, intrinsic, returns, metrics)


def make_batch(
    parts: Parts,
    agent: AgentState,
    rollout: Rollout,
    reward: Array,
    hp: Hyperparams,
    value_stats: ValueStats,
) -> Batch:
    """Compute values, advantages and targets of a rollout, and divide its rows into units.

    Args:
        parts: functions and objects of the run.
        agent: the parameters to evaluate, and the statistics used to act.
        rollout: T steps of N environments.
        reward: scaled rewards plus intrinsic rewards, float [T, N].
        hp: hyperparameters.
        value_stats: statistics of the value targets so far.
    """
    rows, end = rollout.transitions, rollout.end
    out = parts.layout.evaluate_rollout(partial(parts.policy.unroll, agent), rollout, parts.storage)
    last = parts.policy.apply(agent, out.carry, end.obs, end.start).critic
    value, last = (parts.critic.value(x, value_stats) for x in (out.critic, last))
    next_value = parts.critic.clip_bootstrap(next_entries(value, last, rows.absent), value_stats)
    predictions = Predictions(value, next_value, out.dist_params)
    advantage, target = parts.advantages(rows, reward, predictions, hp)
    batch = Batch(
        obs=rows.obs,
        carry=(),
        start=rows.start,
        action=rows.action,
        log_prob=rows.log_prob,
        value=value,
        target=target,
        advantage=advantage,
        valid=rows.valid,
        absent=rows.absent,
        extra=parts.auxiliary_losses.rows_to_store(parts.storage, rollout),
    )
    return parts.layout.split(batch)._replace(carry=out.carries)


def episode_kl(parts: Parts, agent: AgentState, rollout: Rollout, params: Params) -> Array:
    """Estimate the KL divergence of the episodes of a rollout from the policy that acted.

    Args:
        parts: functions and objects of the run.
        agent: statistics of observations.
        rollout: T steps of N environments.
        params: network parameters.
    """
    unroll, rows = partial(parts.policy.unroll, agent.replace(params=params)), rollout.transitions
    out = parts.layout.evaluate_rollout(unroll, rollout, parts.storage)
    log_prob = parts.policy.distribution.log_prob(out.dist_params, rows.action)
    log_ratio = log_prob - rows.log_prob
    return losses.episode_kl(log_ratio, rows.start, rows.valid, parts.shards.psum)


def track_targets(
    parts: Parts, params: Params, stats: ValueStats, batch: Batch
) -> tuple[Params, ValueStats]:
    """Return parameters and value statistics, updated by the targets of a batch.

    The values of the critic stay the same.

    Args:
        parts: functions and objects of the run.
        params: network parameters.
        stats: statistics of the value targets so far.
        batch: rows with value targets.
    """
    new = parts.critic.track(stats, batch.target, batch.valid, parts.shards.psum, parts.shards.pmax)
    return parts.critic.preserve(params, stats, new), new


def read_minibatch(parts: Parts, buffer: ObsBuffer, rows: Batch) -> Batch:
    """Return a minibatch with its observations and, if configured, its mirror images.

    Args:
        parts: functions and objects of the run.
        buffer: buffer of the observations of the rollout.
        rows: rows of the minibatch, with observations as the storage stores them.
    """
    return parts.symmetry.augment(rows._replace(obs=parts.storage.read(buffer, rows.obs)))


def minibatch_loss(
    parts: Parts, agent: AgentState, stats: ValueStats, hp: Hyperparams, params: Params, rows: Batch
) -> tuple[Array, Losses]:
    """Compute the loss of a minibatch and its components, as sums over valid rows.

    The arguments are those of `evaluate_minibatch`.

    Returns:
        (scalar loss, its components).
    """
    outputs = evaluate_minibatch(parts, agent, stats, hp, params, rows)
    copies = parts.symmetry.copies
    return ppo.ppo_loss(outputs, rows, hp, objective=parts.objective, copies=copies)


def evaluate_minibatch(
    parts: Parts, agent: AgentState, stats: ValueStats, hp: Hyperparams, params: Params, rows: Batch
) -> ppo.MinibatchOutputs:
    """Compute log-probabilities, entropies, value losses and penalties of a minibatch.

    Args:
        parts: functions and objects of the run.
        agent: statistics of observations.
        stats: statistics of the value targets.
        hp: hyperparameters.
        params: network parameters.
        rows: rows of the minibatch.
    """
    unroll = partial(parts.policy.unroll, agent.replace(params=params))
    forward = partial(parts.layout.evaluate_units, unroll)
    out = forward(rows.carry, rows.obs, rows.start, rows.absent)
    return ppo.MinibatchOutputs(
        log_prob=parts.policy.distribution.log_prob(out.dist_params, rows.action),
        entropy=parts.policy.distribution.entropy(out.dist_params),
        value_loss=parts.critic.loss(out.critic, rows.value, rows.target, stats, hp),
        penalty=parts.symmetry.penalty(forward, rows, out.dist_params, hp),
        auxiliary_losses=parts.auxiliary_losses.losses(params, out, rows, agent.obs_stats),
    )


def update_obs_stats(parts: Parts, stats: RunningStats, rollout: Rollout) -> RunningStats:
    """Return statistics of observations, updated with the valid rows of a rollout.

    Args:
        parts: functions and objects of the run.
        stats: statistics so far.
        rollout: T steps of N environments.
    """
    if not parts.config.ppo.normalize_obs:
        return stats
    transitions = rollout.transitions

    def total(function: normalize.RowMap) -> Tree:
        def sums(obs: Obs, valid: Array) -> Tree:
            return normalize.sum_rows(function(parts.policy.normalizable(obs)), valid)

        return parts.storage.sum_rows(sums, rollout.stored, transitions.obs, transitions.valid)

    return normalize.merge_stats(stats, total, jnp.sum(transitions.valid), parts.shards.psum)
