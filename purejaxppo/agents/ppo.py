"""PPO's update: from a rollout with advantages to better parameters.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347, with the details on which the reference
implementations agree (Huang et al. 2022, https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from purejaxppo.agents import losses, optimizers, schedules
from purejaxppo.config import PPOConfig
from purejaxppo.types import Hyperparams, Losses

LANES = 64
"""Lengths of vectors are rounded up to a multiple of this."""


class Batch(NamedTuple):
    """A rollout as the update sees it: B units that are dealt into minibatches.

    A unit is a transition or, of recurrent networks, a stretch of them in one environment, [L].
    """

    obs: Any  # [B, (L,) ...] as `memory.py` keeps it
    carry: Any  # [B, ...] recurrent carry before the unit, () for feed-forward networks
    start: jax.Array  # [B, (L)] bool
    action: Any  # [B, (L,) ...]
    log_prob: jax.Array  # [B, (L)] of the behaviour policy
    value: jax.Array  # [B, (L)] prediction before the update
    target: jax.Array  # [B, (L)] advantage + value
    advantage: jax.Array  # [B, (L)]
    valid: jax.Array  # [B, (L)] bool
    shared: Any = ()  # what `evaluate` needs besides, the same for all units


class Evaluation(NamedTuple):
    """What the current parameters say of a batch's rows."""

    log_prob: jax.Array  # [B, (L)] of the stored actions
    entropy: jax.Array  # [B, (L)]
    value_loss: jax.Array  # [B, (L)]
    penalty: Any = 0.0  # [B, (L)] what else is added to the loss


def make_hyperparams(config: PPOConfig, total_updates: int) -> Hyperparams:
    """The tunable floats of a config as arrays."""
    values = [getattr(config, name) for name in Hyperparams._fields[:-1]]
    return Hyperparams(*(jnp.asarray(x, jnp.float32) for x in (*values, total_updates)))


def scheduled(hp: Hyperparams, config: PPOConfig, update) -> Hyperparams:
    """Hyperparameters at an update, of total_updates: each by its schedule."""
    progress, stride = update / hp.total_updates, 1.0 / hp.total_updates
    factor, warmup = schedules.factor, config.learning_rate_warmup
    rate = factor(config.learning_rate_schedule, progress, warmup, stride)
    return hp._replace(
        learning_rate=hp.learning_rate * rate,
        clip_eps=hp.clip_eps * factor(config.clip_schedule, progress),
        ent_coef=hp.ent_coef * factor(config.ent_schedule, progress),
        intrinsic_coef=hp.intrinsic_coef * factor(config.intrinsic_schedule, progress),
    )


def init_opt_state(config: PPOConfig, params: Any) -> Any:
    """The state of the config's optimiser, over the parameters as one flat vector."""
    flat, unravel = flatten(params)
    return optimizers.make(config, params, unravel).init(flat)


OBJECTIVES: dict[str, Callable[[Any, Any, Hyperparams], Any]] = {
    "clip": lambda ratio, advantage, hp: losses.clipped_surrogate(ratio, advantage, hp.clip_eps),
    "dual_clip": lambda ratio, advantage, hp: losses.dual_clipped_surrogate(
        ratio, advantage, hp.clip_eps, hp.dual_clip
    ),
    "spo": lambda ratio, advantage, hp: losses.simple_policy_optimization(
        ratio, advantage, hp.clip_eps
    ),
    "kl": lambda ratio, advantage, hp: (
        losses.unclipped_surrogate(ratio, advantage) + hp.kl_coef * losses.approx_kl(ratio)
    ),
    "clip_kl": lambda ratio, advantage, hp: (
        losses.clipped_surrogate(ratio, advantage, hp.clip_eps)
        + hp.kl_coef * losses.approx_kl(ratio)
    ),
    "imitate": lambda ratio, advantage, hp: -ratio,
}
"""(log ratio [B], advantage [B], hp) -> what is minimised [B], by `ppo.objective`."""


def flatten(params: Any) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    """All parameters as one vector [P], and the way back; P is rounded up to whole SIMD rows.

    One vector makes one reduction over the devices and one loop of Adam. XLA's CPU code for such
    a loop is scalar, and many times slower, where the length is odd.
    """
    flat, unravel = ravel_pytree(params)
    padded = jnp.pad(flat, (0, -flat.size % LANES))
    return padded, lambda padded: unravel(padded[: flat.size])


def projection(params: Any, limits: dict[str, tuple[float, float]]) -> Callable:
    """A function of the flat parameters that puts those with limits, by name, back within them."""
    ranges, start = [], 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = getattr(path[-1], "key", None)
        if name in limits:
            ranges.append((slice(start, start + leaf.size), limits[name]))
        start += leaf.size

    def project(flat):
        for where, (low, high) in ranges:
            flat = flat.at[where].set(jnp.clip(flat[where], low, high))
        return flat

    return project


def unlimited(flat):
    """Parameters without limits."""
    return flat


def ppo_loss(
    evaluation: Evaluation, batch: Batch, hp: Hyperparams, *, objective: str
) -> tuple[jax.Array, Losses]:
    """Sum over valid rows of L = policy + vf_coef value - ent_coef entropy + penalty, and parts.

    Sums, not means: shards add theirs up and divide by the rows of all.
    """
    log_ratio = evaluation.log_prob - batch.log_prob
    policy = OBJECTIVES[objective](log_ratio, batch.advantage, hp)
    value = evaluation.value_loss
    total = policy + hp.vf_coef * value - hp.ent_coef * evaluation.entropy + evaluation.penalty
    parts = (
        policy,
        value,
        evaluation.entropy,
        losses.approx_kl(log_ratio),
        losses.clipfrac(log_ratio, hp.clip_eps),
    )
    loss, *sums = (jnp.sum(x, where=batch.valid) for x in (total, *parts))
    return loss, Losses._make([*sums, *[jnp.zeros(())] * 3])  # the last three are not known here


def normalize_advantages(advantage, valid, psum: Callable, axis: int | None):
    """Mean 0 and (sample) standard deviation 1 over the valid rows of all shards.

    Args:
        advantage: [M, B, (L)].
        valid: bool [M, B, (L)].
        psum: sum over shards.
        axis: 1 for each minibatch by itself, None for the whole batch.
    """
    axes = None if axis is None else tuple(range(axis, advantage.ndim))

    def total(x):
        return jnp.sum(x, axes, where=valid, keepdims=True)

    count = psum(total(jnp.ones_like(advantage)))
    mean = psum(total(advantage)) / jnp.maximum(count, 1.0)
    centred = advantage - mean
    std = jnp.sqrt(psum(total(jnp.square(centred))) / jnp.maximum(count - 1.0, 1.0))
    return centred / (std + 1e-8)


NORMALIZATIONS: dict[str, Callable[[Callable], Callable[[Any, Any], Any]]] = {
    "minibatch": lambda psum: partial(normalize_advantages, psum=psum, axis=1),
    "batch": lambda psum: partial(normalize_advantages, psum=psum, axis=None),
    "none": lambda psum: lambda advantage, valid: advantage,
}
"""psum -> (advantage, valid) [M, B, (L)] -> advantage, by `ppo.advantage_normalization`."""


def mean_gradient(
    loss: Callable, flat: jax.Array, rows: Batch, psum: Callable
) -> tuple[jax.Array, Losses, jax.Array]:
    """The gradient [P] of a loss, its parts, and how many valid rows of all shards these are over.

    Args:
        loss: (flat, rows) -> (sum over valid rows, sums of its parts).
        flat: all parameters [P].
        rows: of one minibatch.
        psum: sum over shards; called once.
    """
    (_, parts), gradient = jax.value_and_grad(loss, has_aux=True)(flat, rows)
    count = jnp.sum(rows.valid, dtype=flat.dtype)
    sums = jnp.pad(jnp.stack([count, *parts]), (0, LANES - 1 - len(parts)))
    total = psum(jnp.concatenate([sums, gradient]))
    mean = total / jnp.maximum(total[0], 1.0)
    return mean[LANES:], Losses(*mean[1 : 1 + len(parts)]), total[0]


def clip_norm(gradient: jax.Array, limit) -> tuple[jax.Array, jax.Array]:
    """(a gradient scaled down to a norm of at most `limit`, its norm before); 0 is no limit."""
    norm = jnp.sqrt(jnp.sum(jnp.square(gradient)))
    limit = jnp.where(limit > 0, limit, jnp.inf)
    return gradient * jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-12)), norm


def deal(key, config: PPOConfig, length: int, num_envs: int):
    """Numbers of a rollout's units, flattened from [T, N], dealt into minibatches, int32 [M, B].

    `shuffle` decides whether single units or whole environments are dealt.
    """
    m = config.num_minibatches
    if m == 1:
        return jnp.arange(length * num_envs)[None]
    if config.shuffle == "trajectories":
        envs = shuffled(key, num_envs).reshape(m, 1, num_envs // m)
        return (jnp.arange(length)[None, :, None] * num_envs + envs).reshape(m, -1)
    return shuffled(key, length * num_envs).reshape(m, -1)


def shuffled(key, n: int):
    """A random order of 0..n-1: one sort by random bits (ties are as good as never)."""
    return jnp.argsort(jax.random.bits(key, (n,)))


def every_epoch(epoch: Callable, state, keys):
    """(state, parts [E, ...]) of all epochs."""
    return jax.lax.scan(epoch, state, keys)


def until_kl(limit: float) -> Callable:
    """Epochs until one of them has moved the policy by more than `limit`, by its mean KL.

    As in Spinning Up (Achiam 2018) and Stable-Baselines3, per epoch. Later epochs take no time.
    """

    def run(epoch: Callable, state, keys):
        def body(carried, key):
            state, going = carried

            def skip(state):
                nothing = jax.eval_shape(epoch, state, key)[1]
                return state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), nothing)

            state, parts = jax.lax.cond(going, lambda state: epoch(state, key), skip, state)
            below = jnp.mean(parts.approx_kl) <= limit
            return (state, going & below), parts

        (state, _), parts = jax.lax.scan(body, (state, jnp.ones((), bool)), keys)
        return state, parts

    return run


def unchanged(flat, batch: Batch) -> Batch:
    """A batch whose advantages hold for all epochs."""
    del flat
    return batch


def unchanged_rows(rows: Batch) -> Batch:
    """A minibatch that is learned from as it is."""
    return rows


class Update(NamedTuple):
    """How one update is made: what `improve` composes."""

    evaluate: Callable[[Any, Batch], Evaluation]
    """(params, units) -> Evaluation."""
    psum: Callable
    """Sum over shards. One gradient step needs one, of one flat vector."""
    before_epoch: Callable[[Any, Batch], Batch] = unchanged
    """(params, batch) -> the batch of the next epoch."""
    augment: Callable[[Batch], Batch] = unchanged_rows
    """The rows of a minibatch -> those that a gradient step sees."""
    project: Callable[[jax.Array], jax.Array] = unlimited
    """Flat parameters after a gradient step -> those that may be."""


def improve(
    how: Update,
    params: Any,
    opt_state: Any,
    batch: Batch,
    hp: Hyperparams,
    key,
    *,
    config: PPOConfig,
    num_envs: int,
) -> tuple[Any, Any, Losses]:
    """Several epochs of minibatch gradient steps on one rollout.

    A step whose gradient has a norm that is not finite is skipped, and changes nothing; neither
    does one of a minibatch without a valid row.

    Args:
        how: what to compose.
        params: network parameters.
        opt_state: of `optimizers.make`, over the raveled parameters.
        batch: T x N units, time-major.
        hp: already scheduled.
        key: consumed.
        config: sizes and kinds.
        num_envs: N of this shard.

    Returns:
        (params, opt_state, losses averaged over all gradient steps that were made, NaN if all were
        skipped, 0 if there was nothing to learn from).
    """
    flat, unravel = flatten(params)
    optimizer = optimizers.make(config, params, unravel)
    length = batch.valid.shape[0] // num_envs
    normalized = NORMALIZATIONS[config.advantage_normalization](how.psum)

    def loss(flat, rows: Batch):
        evaluation = how.evaluate(unravel(flat), rows)
        return ppo_loss(evaluation, rows, hp, objective=config.objective)

    def gradient_step(batch, state, minibatch):
        flat, opt_state, moved = state
        index, advantage = minibatch
        rows = jax.tree.map(
            lambda x: x.at[index].get(mode="promise_in_bounds"), batch._replace(shared=())
        )
        rows = how.augment(rows._replace(advantage=advantage, shared=batch.shared))
        gradient, parts, count = mean_gradient(loss, flat, rows, how.psum)
        gradient, norm = clip_norm(gradient, hp.max_grad_norm)
        updates, after = optimizer.update(
            gradient, opt_state, flat, kl=parts.approx_kl, first=~moved
        )
        known = jnp.isfinite(norm)
        usable = known & (count > 0)
        made, skipped = (x.astype(norm.dtype) for x in (usable, ~known))
        parts = parts._replace(grad_norm=norm, epochs=made, skipped=skipped)
        stepped = how.project(flat - hp.learning_rate * updates), after, jnp.ones_like(moved)
        return jax.tree.map(partial(jnp.where, usable), stepped, state), parts

    def epoch(state, key):
        current = how.before_epoch(unravel(state[0]), batch)
        index = deal(key, config, length, num_envs)
        advantage = normalized(current.advantage[index], current.valid[index])
        return jax.lax.scan(partial(gradient_step, current), state, (index, advantage))

    run = until_kl(config.target_kl) if config.kl_stop else every_epoch
    keys, moved = jax.random.split(key, config.num_epochs), jnp.zeros((), bool)
    (flat, opt_state, _), parts = run(epoch, (flat, opt_state, moved), keys)
    made, skipped = jnp.sum(parts.epochs), jnp.sum(parts.skipped)
    steps = jnp.where(made + skipped > 0, made, 1.0)
    means = jax.tree.map(lambda x: jnp.sum(x, where=parts.epochs > 0) / steps, parts)
    epochs = (made + skipped) / config.num_minibatches
    return unravel(flat), opt_state, means._replace(epochs=epochs, skipped=skipped)
