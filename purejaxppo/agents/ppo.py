"""PPO's update: from a rollout with advantages to new parameters.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347, with the details that the reference
implementations share (Huang et al. 2022,
https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from purejaxppo.agents import epochs, losses, normalize, optimizers, sequences
from purejaxppo.agents.objectives import Objective
from purejaxppo.agents.optimizers import LANES
from purejaxppo.aliases import Array, Key, OptState, Params, Reduce, Scalar, T, Tree
from purejaxppo.config.schema import PPOConfig
from purejaxppo.parallel import platforms
from purejaxppo.types import Batch, Estimate, Hyperparams, Losses, Updated

Loss = Callable[[Params, Batch], tuple[Array, Losses]]
"""(params, rows of a minibatch) -> (scalar loss, its components), sums over valid rows."""

BeforeEpoch = Callable[[Estimate, Params, Batch], Batch]
"""(estimate, params, batch) -> batch of the next epoch."""

NextBatch = Callable[[Params, Batch], Batch]
"""(params, batch) -> batch of the next epoch."""


class MinibatchOutputs(NamedTuple):
    """Outputs of the current parameters for the rows of a batch."""

    log_prob: Array  # [B, (L)] of the stored actions
    entropy: Array  # [B, (L)]
    value_loss: Array  # [B, (L)]
    penalty: Scalar = 0.0  # [B, (L)] additional loss
    auxiliary_losses: Tree = ()  # [B, (L)] each, by name, in the order of hp.term_coefs


def ppo_loss(
    outputs: MinibatchOutputs,
    batch: Batch,
    hp: Hyperparams,
    *,
    objective: Objective,
    copies: int = 1,
) -> tuple[Array, Losses]:
    """Compute PPO's loss and its components, as sums over valid rows.

        L = L_policy + vf_coef L_value - ent_coef H + penalty + Σ term_coefs L_auxiliary

    Sums, not means: `mean_gradient` adds them over shards and divides by the number of rows.

    Args:
        outputs: outputs for the rows with the current parameters.
        batch: the rows, [B, (L)].
        hp: hyperparameters.
        objective: policy loss.
        copies: number of equal parts of the rows. The first part contains the rows of the rollout,
            the others are computed from it, such as mirror images. KL divergence and clip fraction
            are those of the first part, multiplied by `copies`.

    Returns:
        (scalar loss, its components).

    Reference: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, eq. 9.
    """
    chex.assert_equal_shape([*outputs[:3], batch.log_prob, batch.advantage, batch.valid])
    log_ratio = outputs.log_prob - batch.log_prob
    policy = objective(log_ratio, batch.advantage, hp)
    value = outputs.value_loss
    total = policy + hp.vf_coef * value - hp.ent_coef * outputs.entropy + outputs.penalty
    auxiliary = dict(outputs.auxiliary_losses)
    for coef, auxiliary_loss in zip(hp.term_coefs, auxiliary.values(), strict=True):
        total = total + coef * auxiliary_loss
    loss, policy, value, entropy = (
        jnp.sum(x, where=batch.valid) for x in (total, policy, value, outputs.entropy)
    )
    acted, valid = (x[: len(x) // copies] for x in (log_ratio, batch.valid))
    approx_kl, clipfrac = (
        copies * jnp.sum(x, where=valid)
        for x in (losses.approx_kl(acted), losses.clipfrac(acted, hp.clip_eps))
    )
    unknown = jnp.zeros(())  # `gradient_step` replaces these
    return loss, Losses(
        policy_loss=policy,
        value_loss=value,
        entropy=entropy,
        approx_kl=approx_kl,
        clipfrac=clipfrac,
        grad_norm=unknown,
        epochs=unknown,
        skipped=unknown,
        terms={name: jnp.sum(x, where=batch.valid) for name, x in auxiliary.items()},
    )


def mean_gradient(
    loss: Loss, params: Params, rows: Batch, psum: Reduce
) -> tuple[Array, Losses, Array]:
    """Compute the mean gradient of a loss over the valid rows of all shards.

    Args:
        loss: (parameters, rows) -> (sum over valid rows, sums of its components).
        params: network parameters.
        rows: rows of one minibatch.
        psum: sum over shards; called once.

    Returns:
        (gradient [P], means of the components, number of valid rows).
    """
    (_, components), gradients = jax.value_and_grad(loss, has_aux=True)(params, rows)
    count = jnp.sum(rows.valid, dtype=jnp.float32)
    summed = platforms.in_separate_kernels((count, components, gradients))
    count, components, gradients = summed
    gradient, _ = optimizers.flatten(gradients)
    leaves, tree = jax.tree.flatten(components)
    sums = jnp.pad(jnp.stack([count, *leaves]), (0, LANES - 1 - len(leaves)))
    total = psum(jnp.concatenate([sums, gradient]))
    mean = total / jnp.maximum(total[0], 1.0)
    return mean[LANES:], jax.tree.unflatten(tree, mean[1 : 1 + len(leaves)]), total[0]


def clip_norm(gradient: Array, limit: Scalar) -> tuple[Array, Array]:
    """Scale a gradient down to a norm of at most `limit`, g min(1, limit / |g|).

    Args:
        gradient: gradient g over all parameters [P].
        limit: largest norm; 0: no limit.

    Returns:
        (clipped gradient [P], norm before clipping, a scalar).
    """
    chex.assert_rank(gradient, 1)
    norm = jnp.sqrt(jnp.sum(jnp.square(gradient)))
    limit = jnp.where(limit > 0, limit, jnp.inf)
    return gradient * jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-12)), norm


def recompute_advantages(estimate: Estimate, params: Params, batch: Batch) -> Batch:
    """Return the next epoch's batch, with advantages and targets of the current critic.

    Args:
        estimate: parameters -> batch with their advantages and targets.
        params: current parameters.
        batch: batch of the previous epoch.

    Reference: Andrychowicz et al. 2021, https://arxiv.org/abs/2006.05990, appendix B.1.
    """
    current = estimate(params)
    return batch._replace(advantage=current.advantage, target=current.target, carry=current.carry)


def unchanged(x: T) -> T:
    """Return the argument."""
    return x


class Update(NamedTuple):
    """Functions that `update_epochs` composes."""

    loss: Loss
    """Loss of the rows of a minibatch."""
    psum: Reduce
    """Sum over shards. A gradient step calls it once, with one flat vector."""
    before_epoch: NextBatch | None = None
    """(params, batch) -> batch of the next epoch; None: the same batch in all epochs."""
    prepare: Callable[[Batch], Batch] = unchanged
    """Rows of a minibatch -> rows for the loss."""
    epoch_kl: Callable[[Params], Array] | None = None
    """Parameters -> KL for early stopping after an epoch; None: the mean KL of the epoch."""
    project: Callable[[Array], Array] = unchanged
    """Flat parameters after a gradient step -> parameters within their limits."""


class GradientState(NamedTuple):
    """State that each gradient step updates: parameters and optimiser state."""

    flat: Array  # [P] all parameters
    opt_state: OptState


def gradient_step(
    update: Update,
    optimizer: optimizers.Optimizer,
    hp: Hyperparams,
    batch: Batch,
    state: GradientState,
    minibatch: tuple[Array, Array],
) -> tuple[GradientState, Losses]:
    """Take one gradient step on a minibatch.

    The step is skipped if the norm of the gradient is not finite, or if no row of the minibatch is
    valid.

    Args:
        update: functions of the update.
        optimizer: over the flat parameters.
        hp: hyperparameters, scheduled.
        batch: all units of the rollout, time-major.
        state: parameters and optimiser state before the step.
        minibatch: (indices of its units, their advantages) [B].

    Returns:
        (state after the step, losses and metrics of the step).
    """
    index, advantage = minibatch
    rows = jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), batch)
    rows = update.prepare(rows._replace(advantage=advantage))
    params = optimizer.unravel(state.flat)
    gradient, step_losses, count = mean_gradient(update.loss, params, rows, update.psum)
    gradient, norm = clip_norm(gradient, hp.max_grad_norm)
    change, opt_state = optimizer.update(gradient, state.opt_state, state.flat)
    stepped = GradientState(update.project(state.flat - hp.learning_rate * change), opt_state)
    finite = jnp.isfinite(norm)
    usable = finite & (count > 0)
    taken, skipped = (x.astype(norm.dtype) for x in (usable, ~finite))
    step_losses = step_losses._replace(grad_norm=norm, epochs=taken, skipped=skipped)
    return jax.tree.map(partial(jnp.where, usable), stepped, state), step_losses


def update_epochs(
    update: Update,
    params: Params,
    opt_state: OptState,
    batch: Batch,
    hp: Hyperparams,
    key: Key,
    *,
    config: PPOConfig,
    num_envs: int,
) -> Updated:
    """Run epochs of minibatch gradient steps on one rollout.

    Args:
        update: functions of the update.
        params: network parameters.
        opt_state: state of the optimiser of `optimizers.make`, over the flat parameters.
        batch: all units of the rollout, time-major.
        hp: hyperparameters, scheduled.
        key: random key; the caller must not use it again.
        config: settings of the algorithm.
        num_envs: N of this shard.

    Returns:
        New parameters and optimiser state, and the mean losses.
    """
    optimizer = optimizers.make(config, params)
    normalized = normalize.NORMALIZATIONS[config.advantage_normalization](update.psum)
    length = batch.valid.shape[0] // num_envs
    scheduled = jnp.asarray(hp.learning_rate)
    hp = hp._replace(learning_rate=optimizer.rate(opt_state, scheduled))

    def make_minibatches(batch: Batch, key: Key) -> tuple[Array, Array]:
        if config.epoch_fraction < 1:
            index = sequences.valid_minibatches(key, config, batch.valid)
        else:
            index = sequences.minibatch_indices(key, config, length, num_envs)
        return index, normalized(batch.advantage[index], batch.valid[index])

    def epoch(
        state: GradientState, minibatches: tuple[Array, Array]
    ) -> tuple[GradientState, Losses]:
        return epochs.scan(partial(gradient_step, update, optimizer, hp, batch), state, minibatches)

    def recomputed_epoch(
        next_batch: NextBatch, state: GradientState, key: Key
    ) -> tuple[GradientState, Losses]:
        current = next_batch(optimizer.unravel(state.flat), batch)
        step = partial(gradient_step, update, optimizer, hp, current)
        return epochs.scan(step, state, make_minibatches(current, key))

    def kl_of_state(state: GradientState, step_losses: Losses) -> Array:
        del step_losses
        assert update.epoch_kl is not None
        return update.epoch_kl(optimizer.unravel(state.flat))

    state = GradientState(optimizers.flatten(params)[0], opt_state)
    keys, before_epoch = jax.random.split(key, config.num_epochs), update.before_epoch
    run_epochs = epochs.make(config, update.epoch_kl and kl_of_state)
    if before_epoch is None:  # one sum over shards normalises the minibatches of all epochs
        minibatches = jax.vmap(partial(make_minibatches, batch))(keys)
        state, step_losses = run_epochs(epoch, state, minibatches)
    else:
        state, step_losses = run_epochs(partial(recomputed_epoch, before_epoch), state, keys)
    means = mean_losses(step_losses, config.num_minibatches)
    opt_state = optimizer.adapt(state.opt_state, scheduled, means.approx_kl)
    return Updated(optimizer.unravel(state.flat), opt_state, means)


def mean_losses(step_losses: Losses, num_minibatches: int) -> Losses:
    """Return the means of losses over the gradient steps taken.

    Args:
        step_losses: losses of all steps, [E, M].
        num_minibatches: number of minibatches, M.
    """
    taken, skipped = jnp.sum(step_losses.epochs), jnp.sum(step_losses.skipped)
    steps = jnp.where(taken + skipped > 0, taken, 1.0)
    means = jax.tree.map(lambda x: jnp.sum(x, where=step_losses.epochs > 0) / steps, step_losses)
    return means._replace(epochs=(taken + skipped) / num_minibatches, skipped=skipped)
