"""PPO's update: from a rollout with advantages to better parameters.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347, with the details on which the reference
implementations agree (Huang et al. 2022, https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from purejaxppo.agents import losses
from purejaxppo.config import PPOConfig
from purejaxppo.types import Hyperparams, Losses

LANES = 64
"""Lengths of vectors are rounded up to a multiple of this."""


class Batch(NamedTuple):
    """A rollout as the update sees it; B rows."""

    obs: Any  # [B, ...] as `memory.py` keeps it
    carry: Any  # [B, ...] recurrent carry, () for feed-forward networks
    start: jax.Array  # [B] bool
    action: Any  # [B, ...]
    log_prob: jax.Array  # [B] of the behaviour policy
    value: jax.Array  # [B] prediction before the update
    target: jax.Array  # [B] advantage + value
    advantage: jax.Array  # [B]
    valid: jax.Array  # [B] bool
    shared: Any = ()  # what `evaluate` needs besides, the same for all rows


class Evaluation(NamedTuple):
    """What the current parameters say of a batch's rows."""

    log_prob: jax.Array  # [B] of the stored actions
    entropy: jax.Array  # [B]
    value: jax.Array  # [B]


def make_hyperparams(config: PPOConfig, total_updates: int) -> Hyperparams:
    """The tunable floats of a config as arrays."""
    values = [getattr(config, name) for name in Hyperparams._fields[:-1]]
    return Hyperparams(*(jnp.asarray(x, jnp.float32) for x in (*values, total_updates)))


def scheduled(hp: Hyperparams, config: PPOConfig, update) -> Hyperparams:
    """Hyperparameters at an update: linear ones fall from their value to 0 over total_updates."""
    remaining = jnp.clip(1.0 - update / hp.total_updates, 0.0, 1.0)

    def at(value, schedule: str):
        return value * remaining if schedule == "linear" else value

    return hp._replace(
        learning_rate=at(hp.learning_rate, config.learning_rate_schedule),
        clip_eps=at(hp.clip_eps, config.clip_schedule),
        ent_coef=at(hp.ent_coef, config.ent_schedule),
    )


def optimizer(config: PPOConfig) -> optax.GradientTransformation:
    """Adam without its step size, which stays a traced number."""
    return optax.scale_by_adam(eps=config.adam_eps)


def flatten(params: Any) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    """All parameters as one vector [P], and the way back; P is rounded up to whole SIMD rows.

    One vector makes one reduction over the devices and one loop of Adam. XLA's CPU code for such
    a loop is scalar, and many times slower, where the length is odd.
    """
    flat, unravel = ravel_pytree(params)
    padded = jnp.pad(flat, (0, -flat.size % LANES))
    return padded, lambda padded: unravel(padded[: flat.size])


def ppo_loss(
    evaluation: Evaluation, batch: Batch, hp: Hyperparams, *, value_clipping: bool
) -> tuple[jax.Array, Losses]:
    """Sum over valid rows of L = policy + vf_coef * value - ent_coef * entropy, and its parts.

    Sums, not means: shards add theirs up and divide by the rows of all.
    """
    log_ratio = evaluation.log_prob - batch.log_prob
    policy = losses.clipped_surrogate(log_ratio, batch.advantage, hp.clip_eps)
    if value_clipping:
        value = losses.clipped_squared_error(
            evaluation.value, batch.value, batch.target, hp.vf_clip_eps
        )
    else:
        value = losses.squared_error(evaluation.value, batch.target)
    total = policy + hp.vf_coef * value - hp.ent_coef * evaluation.entropy
    parts = (
        policy,
        value,
        evaluation.entropy,
        losses.approx_kl(log_ratio),
        losses.clipfrac(log_ratio, hp.clip_eps),
    )
    loss, *sums = (jnp.sum(x, where=batch.valid) for x in (total, *parts))
    return loss, Losses._make([*sums, jnp.zeros(())])  # the gradient's norm is not known here


def normalize_advantages(advantage, valid, psum: Callable, axis: int | None):
    """Mean 0 and (sample) standard deviation 1 over the valid rows of all shards.

    Args:
        advantage: [M, B].
        valid: bool [M, B].
        psum: sum over shards.
        axis: 1 for each minibatch by itself, None for the whole batch.
    """

    def total(x):
        return jnp.sum(x, axis, where=valid, keepdims=True)

    count = psum(total(jnp.ones_like(advantage)))
    mean = psum(total(advantage)) / jnp.maximum(count, 1.0)
    centred = advantage - mean
    std = jnp.sqrt(psum(total(jnp.square(centred))) / jnp.maximum(count - 1.0, 1.0))
    return centred / (std + 1e-8)


def deal(key, config: PPOConfig, length: int, num_envs: int):
    """Row numbers of a flattened [T, N] rollout dealt into minibatches, int32 [M, B].

    `shuffle` decides whether single steps or whole environments are dealt.
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


def improve(
    evaluate: Callable[[Any, Batch], Evaluation],
    params: Any,
    opt_state: Any,
    batch: Batch,
    hp: Hyperparams,
    key,
    *,
    config: PPOConfig,
    num_envs: int,
    psum: Callable,
) -> tuple[Any, Any, Losses]:
    """Several epochs of minibatch gradient steps on one rollout.

    Args:
        evaluate: (params, rows) -> Evaluation.
        params: network parameters.
        opt_state: of `optimizer`, over the raveled parameters.
        batch: T x N rows, time-major.
        hp: already scheduled.
        key: consumed.
        config: sizes and kinds.
        num_envs: N of this shard.
        psum: sum over shards. One gradient step needs one, of one flat vector.

    Returns:
        (params, opt_state, losses averaged over all gradient steps).
    """
    flat, unravel = flatten(params)
    adam = optimizer(config)
    length = batch.valid.shape[0] // num_envs

    def loss(flat, rows: Batch):
        return ppo_loss(
            evaluate(unravel(flat), rows), rows, hp, value_clipping=config.value_clipping
        )

    def gradient_step(state, minibatch):
        flat, opt_state = state
        index, advantage = minibatch
        rows = jax.tree.map(
            lambda x: x.at[index].get(mode="promise_in_bounds"), batch._replace(shared=())
        )
        rows = rows._replace(advantage=advantage, shared=batch.shared)
        (_, parts), gradient = jax.value_and_grad(loss, has_aux=True)(flat, rows)
        count = jnp.sum(rows.valid, dtype=flat.dtype)
        sums = jnp.pad(jnp.stack([count, *parts]), (0, LANES - 1 - len(parts)))
        total = psum(jnp.concatenate([sums, gradient]))
        mean = total / jnp.maximum(total[0], 1.0)
        gradient, parts = mean[LANES:], Losses(*mean[1 : 1 + len(parts)])
        norm = jnp.sqrt(jnp.sum(jnp.square(gradient)))
        limit = jnp.where(hp.max_grad_norm > 0, hp.max_grad_norm, jnp.inf)
        gradient = gradient * jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-12))
        updates, opt_state = adam.update(gradient, opt_state)
        return (flat - hp.learning_rate * updates, opt_state), parts._replace(grad_norm=norm)

    def epoch(state, key):
        index = deal(key, config, length, num_envs)
        advantage, valid = batch.advantage[index], batch.valid[index]
        if config.advantage_normalization == "minibatch":
            advantage = normalize_advantages(advantage, valid, psum, axis=1)
        elif config.advantage_normalization == "batch":
            advantage = normalize_advantages(advantage, valid, psum, axis=None)
        return jax.lax.scan(gradient_step, state, (index, advantage))

    keys = jax.random.split(key, config.num_epochs)
    (flat, opt_state), parts = jax.lax.scan(epoch, (flat, opt_state), keys)
    return unravel(flat), opt_state, jax.tree.map(jnp.mean, parts)
