"""Critic heads: decode values from network outputs and compute the value loss.

A `Critic` is a set of pure functions of outputs [..., K]. `ValueStats` are running statistics of
the value targets. The learner updates them before the gradient steps of an update. Only some
critics use them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents import losses, normalize
from purejaxppo.agents.extras.auxiliary_losses import PARAMS
from purejaxppo.aliases import Array, Params, Reduce
from purejaxppo.config.schema import PPOConfig
from purejaxppo.types import Hyperparams, ValueStats

BINS = 101
"""Number of bins of the distributional critic."""
LIMITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Ranges of the bins, ±limit in symlog units: values up to 1.7, 6.4, 54, 2,980 and 8.9 million."""
SMOOTHING = 0.75
"""Standard deviation of the target histogram, in bins, as Farebrother et al. recommend."""
CLIPPED = "losses/clipped_targets"
"""Metric: fraction of value targets outside of the range of the bins."""


class Critic(NamedTuple):
    """Functions of a network's critic outputs [..., K]."""

    num_outputs: int
    value: Callable[[Array, ValueStats], Array]
    """(outputs [..., K], stats) -> values [...]."""
    loss: Callable[[Array, Array, Array, ValueStats, Hyperparams], Array]
    """(outputs [B, K], values before the update [B], targets [B], stats, hp) -> loss per row [B].
    """
    preserve: Callable[[Params, ValueStats, ValueStats], Params]
    """(params, old stats, new stats) -> params that give the same values under the new stats."""
    gain: float = 1.0
    """Gain of the initial weights of the critic's layer."""
    metrics: Mapping[str, Callable[[Array], Array]] = MappingProxyType({})
    """Metrics by name: functions, targets [B] -> [B], whose mean over valid rows is logged."""
    track: Callable[[ValueStats, Array, Array, Reduce, Reduce], ValueStats] = lambda stats, *_: (
        stats
    )
    """(stats, targets [*B], valid [*B], psum, pmax) -> stats that include these targets."""
    clip_bootstrap: Callable[[Array, ValueStats], Array] = lambda value, stats: value
    """(values [...], stats) -> values to bootstrap from."""


def unchanged_params(params: Params, old: ValueStats, new: ValueStats) -> Params:
    """Return the parameters unchanged, for critics whose values do not depend on the statistics."""
    del old, new
    return params


def scalar(value_clipping: bool) -> Critic:
    """Return a critic that predicts the value itself, with the loss (v - target)² / 2.

    Args:
        value_clipping: use `losses.clipped_squared_error` instead.
    """

    def loss(
        outputs: Array, old_value: Array, target: Array, stats: ValueStats, hp: Hyperparams
    ) -> Array:
        del stats
        value = outputs[..., 0]
        if value_clipping:
            return losses.clipped_squared_error(value, old_value, target, hp.vf_clip_eps)
        return losses.squared_error(value, target)

    return Critic(1, lambda outputs, stats: outputs[..., 0], loss, unchanged_params)


def symlog(x: Array) -> Array:
    """Compute sign(x) log(1 + |x|), which is about x near 0 and logarithmic far from 0.

    Args:
        x: float, any shape.

    Reference: Hafner et al. 2023, https://arxiv.org/abs/2301.04104, eq. 9.
    """
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: Array) -> Array:
    """Compute the inverse of `symlog`, sign(x) (exp|x| - 1). Any shape."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


def symlog_critic() -> Critic:
    """Return a critic that predicts symlog(v), with the loss (symlog(v) - symlog(target))² / 2.

    Use it for returns of unknown scale. The prediction converges to symexp(E[symlog(G)]), not to
    the mean of random returns G: for 0 and 200 with equal probability it is 13.2, not 100.

    Reference: Hafner et al. 2023, https://arxiv.org/abs/2301.04104, eq. 9.
    """

    def loss(
        outputs: Array, old_value: Array, target: Array, stats: ValueStats, hp: Hyperparams
    ) -> Array:
        del old_value, stats, hp
        return losses.squared_error(outputs[..., 0], symlog(target))

    return Critic(1, lambda outputs, stats: symexp(outputs[..., 0]), loss, unchanged_params)


def hl_gauss(limits: Sequence[float]) -> Critic:
    """Return a critic that learns a histogram over symlog values by cross-entropy (HL-Gauss).

    The bins are equally spaced in symlog units. The value is the mean of the bins' values under the
    histogram. The target histogram (`histogram`) has the target as its mean. Therefore the value
    that minimises the loss is the mean of the returns. Targets outside of the range are clipped to
    the outermost bins.

    The bins use the smallest range that contains all targets so far. When the range grows, the last
    layer is rearranged: each new bin gets the logit of the old bin at its centre. Bins outside of
    the old range start with almost no probability. Values stay almost the same when the range
    doubles. When it grows more at once, peaks of the histogram can fall between the new bins, and
    values differ until they are trained again.

    The initial weights of the layer are 0. Bins of opposite sign are subtracted before they are
    weighted, to prevent that their common part adds up to a large value.

    Args:
        limits: ranges of the bins in symlog units; each is twice the previous one.

    Reference: Farebrother et al. 2024, https://arxiv.org/abs/2403.03950, section 3.1 and appendix
    A. Mean of the bins' values: Hafner et al. 2023, https://arxiv.org/abs/2301.04104, section
    "critic learning".
    """
    ends = jnp.asarray(limits[:-1], jnp.float32)
    centres, values = (jnp.asarray(x, jnp.float32) for x in bins(limits))

    def level(stats: ValueStats) -> Array:
        return jnp.sum(symlog(jnp.maximum(stats.high, -stats.low)) > ends)

    def loss(
        outputs: Array, old_value: Array, target: Array, stats: ValueStats, hp: Hyperparams
    ) -> Array:
        del old_value, hp
        chex.assert_shape(outputs, (*target.shape, BINS))
        target_mass = histogram(target, centres[level(stats)])
        return -jnp.sum(target_mass * jax.nn.log_softmax(outputs), axis=-1)

    def value(outputs: Array, stats: ValueStats) -> Array:
        mass = jax.nn.softmax(outputs)
        return jnp.sum((mass - mass[..., ::-1]) * (0.5 * values[level(stats)]), axis=-1)

    def preserve(params: Params, old: ValueStats, new: ValueStats) -> Params:
        middle, ratio = BINS // 2, 2 ** (level(new) - level(old))
        offset = ratio * (jnp.arange(BINS) - middle)
        column = jnp.clip(offset, -middle, middle) + middle
        beyond = jnp.maximum(jnp.abs(offset) - middle, 0) / ratio
        # Before the first targets, nothing is learned and all bins stay equal.
        less = jnp.where(old.low <= old.high, jnp.minimum(2.0 * beyond, 16.0), 0.0)
        return change_head(params, lambda kernel: kernel[:, column], lambda x: x[column] - less)

    metrics = {CLIPPED: lambda target: jnp.abs(symlog(target)) > limits[-1]}
    if len(limits) == 1:
        return Critic(BINS, value, loss, unchanged_params, gain=0.0, metrics=metrics)
    return Critic(BINS, value, loss, preserve, gain=0.0, metrics=metrics, track=update_target_stats)


def change_head(
    params: Params, kernel: Callable[[Array], Array], bias: Callable[[Array], Array]
) -> Params:
    """Return parameters with changed kernels [F, K] and biases [K] of the critics' last layers.

    With `network.policies`, each policy has a critic. Parameters of auxiliary losses are not
    changed.

    Args:
        params: the agent's parameters.
        kernel: old kernel [F, K] -> new kernel [F, K].
        bias: old bias [K] -> new bias [K].
    """
    if has_critic(params):
        head = params["critic"]
        return {
            **params,
            "critic": {"kernel": kernel(head["kernel"]), "bias": bias(head["bias"])},
        }
    return {
        name: change_head(policy_params, kernel, bias)
        if name != PARAMS and has_critic(policy_params)
        else policy_params
        for name, policy_params in params.items()
    }


def has_critic(params: Params) -> bool:
    """Return True for the parameters of a single policy."""
    head = params.get("critic")
    return isinstance(head, Mapping) and "kernel" in head


def smoothing() -> np.ndarray:
    """Return the mass in each bin of a Gaussian around each bin's centre, float64 [K, K]."""
    edges = np.arange(BINS + 1) - 0.5
    z = (edges - np.arange(BINS)[:, None]) / SMOOTHING
    mass = np.diff(np.vectorize(math.erf)(z / math.sqrt(2)), axis=-1)
    return mass / mass.sum(axis=-1, keepdims=True)


def bins(limits: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bins' values: (at their centres, for decoding a histogram), [L, K] each.

    The decoding values are close to the values at the centres. With them, a Gaussian around a
    centre has the value at the centre as its mean. With the values at the centres its mean would be
    too large.

    Args:
        limits: L ranges in symlog units.
    """
    bin_centres = np.outer(limits, np.linspace(-1.0, 1.0, BINS))
    centres = np.sign(bin_centres) * np.expm1(np.abs(bin_centres))
    return centres, np.linalg.solve(smoothing(), centres.T).T


def histogram(target: Array, centres: Array) -> Array:
    """Return a smooth histogram whose mean is the target; [*B] -> [*B, K].

    It is a weighted mean of the Gaussians around the two centres next to the target. The same
    weights give the target as the mean of the two centres.

    Args:
        target: float [*B].
        centres: values at the bins' centres, float [K].
    """
    chex.assert_shape(centres, (BINS,))
    chex.assert_type([target, centres], float)
    target = jnp.clip(target, centres[0], centres[-1])
    left = jnp.clip(jnp.searchsorted(centres, target, side="right") - 1, 0, BINS - 2)
    low, high = centres[left], centres[left + 1]
    weight = ((target - low) / (high - low))[..., None]
    mass = jnp.asarray(smoothing(), jnp.float32)
    return (1.0 - weight) * mass[left] + weight * mass[left + 1]


def popart() -> Critic:
    """Return a critic that predicts normalised values, (value - μ) / σ (PopArt).

    μ and σ are the mean and the standard deviation of all value targets so far. The loss is half
    the squared error in these units. When the statistics change, the last layer is rescaled and the
    values stay the same.

    Reference: van Hasselt et al. 2016, https://arxiv.org/abs/1602.07714, eq. 4 to 9.
    """

    def loss(
        outputs: Array, old_value: Array, target: Array, stats: ValueStats, hp: Hyperparams
    ) -> Array:
        del old_value, hp
        mean, std = mean_and_std(stats)
        return losses.squared_error(outputs[..., 0], (target - mean) / std)

    def value(outputs: Array, stats: ValueStats) -> Array:
        mean, std = mean_and_std(stats)
        return mean + std * outputs[..., 0]

    def preserve(params: Params, old: ValueStats, new: ValueStats) -> Params:
        (old_mean, old_std), (mean, std) = mean_and_std(old), mean_and_std(new)
        return change_head(
            params,
            lambda kernel: kernel * (old_std / std),
            lambda bias: (old_std * bias + old_mean - mean) / std,
        )

    return Critic(1, value, loss, preserve)


def mean_and_std(stats: ValueStats) -> tuple[Array, Array]:
    """Return mean and standard deviation (at least 1e-4) of the value targets so far, scalars."""
    variance = normalize.variance(stats.moments)
    return stats.moments.mean, jnp.sqrt(jnp.maximum(variance, 1e-8))


def update_target_stats(
    stats: ValueStats, target: Array, valid: Array, psum: Reduce, pmax: Reduce
) -> ValueStats:
    """Return statistics of value targets, updated with the valid rows of these targets.

    Args:
        stats: statistics so far.
        target: float [*B].
        valid: bool [*B].
        psum: sum over shards.
        pmax: maximum over shards.
    """
    chex.assert_equal_shape([target, valid])
    low = -pmax(jnp.max(-target, where=valid, initial=-jnp.inf))
    high = pmax(jnp.max(target, where=valid, initial=-jnp.inf))
    return ValueStats(
        normalize.update_stats(stats.moments, target, valid, psum),
        jnp.minimum(stats.low, low),
        jnp.maximum(stats.high, high),
    )


def clip_to_targets(value: Array, stats: ValueStats) -> Array:
    """Clip values to the range of all targets so far; without any targets, return them unchanged.

    Args:
        value: float [...].
        stats: statistics of the targets.
    """
    return jnp.where(stats.low <= stats.high, jnp.clip(value, stats.low, stats.high), value)


def make(config: PPOConfig) -> Critic:
    """Return the critic of the config, with its clipping of bootstrapped values."""
    limit = config.value_limit
    kinds: dict[str, Callable[[], Critic]] = {
        "scalar": partial(scalar, config.value_clipping),
        "symlog": symlog_critic,
        "hl_gauss": partial(hl_gauss, (math.log1p(limit),) if limit else LIMITS),
        "popart": popart,
    }
    critic = kinds[config.critic]()
    if config.clip_bootstrap == "fixed":
        limit = config.bootstrap_limit
        critic = critic._replace(clip_bootstrap=lambda value, _: jnp.clip(value, -limit, limit))
    if config.clip_bootstrap == "observed":
        critic = critic._replace(clip_bootstrap=clip_to_targets)
    if config.critic == "popart" or config.clip_bootstrap == "observed":
        critic = critic._replace(track=update_target_stats)
    return critic
