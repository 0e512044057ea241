"""Critic heads: decode a value and compute its loss.

A `Critic` is pure functions of outputs [..., K]. `ValueStats`, the statistics of the value targets
so far, are updated before an update's gradient steps, and only critics that need them use them.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents import losses, normalize
from purejaxppo.aliases import Array, Params, Reduce
from purejaxppo.config.schema import PPOConfig
from purejaxppo.types import Hyperparams, ValueStats

BINS = 101
"""Bins of the distributional critic."""
LIMIT = 12.0
"""Centres of its outermost bins, ±LIMIT in symlog units: values up to e^12 - 1, about 160,000."""
SMOOTHING = 0.75
"""Standard deviation of its target histogram in bins, as Farebrother et al. recommend."""
CLIPPED = "losses/clipped_targets"
"""The dashboard's name of the fraction of value targets that lie beyond its bins."""


class Critic(NamedTuple):
    """Functions of a network's critic outputs [..., K]."""

    num_outputs: int
    value: Callable[[Array, ValueStats], Array]
    """(outputs [..., K], stats) -> values [...]."""
    loss: Callable[[Array, Array, Array, ValueStats, Hyperparams], Array]
    """(outputs [B, K], values before the update [B], targets [B], stats, hp) -> [B]."""
    preserve: Callable[[Params, ValueStats, ValueStats], Params]
    """(params, old stats, new stats) -> params with the same values as before."""
    gain: float = 1.0
    """Gain of its layer's initial weights."""
    figures: Mapping[str, Callable[[Array], Array]] = MappingProxyType({})
    """Functions, targets [B] -> [B], whose means are reported, by dashboard name."""
    track: Callable[[ValueStats, Array, Array, Reduce, Reduce], ValueStats] = lambda stats, *_: (
        stats
    )
    """(stats, targets [*B], valid [*B], psum, pmax) -> stats that include these targets."""
    clip_bootstrap: Callable[[Array, ValueStats], Array] = lambda value, stats: value
    """(values [...], stats) -> values that a step may bootstrap from."""


def keep(params: Params, old: ValueStats, new: ValueStats) -> Params:
    """The parameters, unchanged: for critics whose values do not depend on the statistics."""
    del old, new
    return params


def scalar(value_clipping: bool) -> Critic:
    """The value itself, and half its squared error."""

    def loss(
        outputs: Array, old_value: Array, target: Array, stats: ValueStats, hp: Hyperparams
    ) -> Array:
        del stats
        value = outputs[..., 0]
        if value_clipping:
            return losses.clipped_squared_error(value, old_value, target, hp.vf_clip_eps)
        return losses.squared_error(value, target)

    return Critic(1, lambda outputs, stats: outputs[..., 0], loss, keep)


def symlog(x: Array) -> Array:
    """sign(x) log(1 + |x|): x near 0, its logarithm far from it. Any shape.

    Hafner et al. 2023, https://arxiv.org/abs/2301.04104, eq. 9.
    """
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: Array) -> Array:
    """The inverse of `symlog`. Any shape."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


def symlog_critic() -> Critic:
    """The value's symlog, and half the squared error there: for returns of unknown size.

    It learns symexp E[symlog G], which is not the mean of returns G that vary: of 0 and 200, each
    as likely, 13.2.
    """

    def loss(
        outputs: Array, old_value: Array, target: Array, stats: ValueStats, hp: Hyperparams
    ) -> Array:
        del old_value, stats, hp
        return losses.squared_error(outputs[..., 0], symlog(target))

    return Critic(1, lambda outputs, stats: symexp(outputs[..., 0]), loss, keep)


def hl_gauss() -> Critic:
    """A histogram over symlog values, and the cross-entropy to the target's, a narrow Gaussian.

    Farebrother et al. 2024, https://arxiv.org/abs/2403.03950, section 3.1 and appendix A, over bins
    that are equally wide in symlog units. The value is the mean of the bins' values, as in
    Hafner et al. 2023, https://arxiv.org/abs/2301.04104, section "critic learning", and so the
    mean of the returns: the bins' values, from `decode`, are such that the histogram of a target at
    a bin's centre has the target as its mean; for targets in between the mean is exact to 0.003
    near 0 and to 1.3 % elsewhere. Targets beyond the outermost bins count as these.

    Its layer's initial weights are 0, and bins of opposite sign are subtracted before they are
    weighted, so that their common part does not add up to a large value.
    """

    def loss(
        outputs: Array, old_value: Array, target: Array, stats: ValueStats, hp: Hyperparams
    ) -> Array:
        del old_value, stats, hp
        goal = histogram(jnp.clip(symlog(target), -LIMIT, LIMIT))
        return -jnp.sum(goal * jax.nn.log_softmax(outputs), axis=-1)

    def value(outputs: Array, stats: ValueStats) -> Array:
        del stats
        mass = jax.nn.softmax(outputs)
        return jnp.sum((mass - mass[..., ::-1]) * (0.5 * decoded), axis=-1)

    decoded = jnp.asarray(decode(), jnp.float32)
    figures = {CLIPPED: lambda target: jnp.abs(symlog(target)) > LIMIT}
    return Critic(BINS, value, loss, keep, gain=0.0, figures=figures)


def histogram(x: Array) -> Array:
    """The mass in each bin of a Gaussian around x, truncated to the bins; [*B] -> [*B, K]."""
    width = 2 * LIMIT / (BINS - 1)
    edges = np.linspace(-LIMIT - width / 2, LIMIT + width / 2, BINS + 1)
    z = (jnp.asarray(edges, jnp.float32) - x[..., None]) / (SMOOTHING * width)
    mass = jnp.diff(jax.scipy.special.ndtr(z), axis=-1)
    return mass / jnp.sum(mass, axis=-1, keepdims=True)


def decode() -> np.ndarray:
    """The bins' values, [K]: such that the histogram of a bin's centre has symexp(centre) as mean.

    They are near symexp of the centres, but not equal: a Gaussian around the symlog of a large
    number has a mean that is larger by a factor.
    """
    centres = np.linspace(-LIMIT, LIMIT, BINS)
    with jax.ensure_compile_time_eval():
        masses = np.asarray(histogram(jnp.asarray(centres, jnp.float32)), np.float64)
    return np.linalg.solve(masses, np.sign(centres) * np.expm1(np.abs(centres)))


def popart() -> Critic:
    """The value in standard deviations of the targets so far, and half the squared error there.

    When the statistics change, the last layer is rescaled so that the values stay the same.
    van Hasselt et al. 2016, https://arxiv.org/abs/1602.07714, eq. 4 to 9.
    """

    def loss(
        outputs: Array, old_value: Array, target: Array, stats: ValueStats, hp: Hyperparams
    ) -> Array:
        del old_value, hp
        mean, std = moments(stats)
        return losses.squared_error(outputs[..., 0], (target - mean) / std)

    def value(outputs: Array, stats: ValueStats) -> Array:
        mean, std = moments(stats)
        return mean + std * outputs[..., 0]

    def preserve(params: Params, old: ValueStats, new: ValueStats) -> Params:
        (old_mean, old_std), (mean, std) = moments(old), moments(new)
        head = params["critic"]
        bias = (old_std * head["bias"] + old_mean - mean) / std
        return {**params, "critic": {"kernel": head["kernel"] * (old_std / std), "bias": bias}}

    return Critic(1, value, loss, preserve)


def moments(stats: ValueStats) -> tuple[Array, Array]:
    """Mean and standard deviation of the targets so far, the latter at least 1e-4; [] each."""
    variance = normalize.variance(stats.moments)
    return stats.moments.mean, jnp.sqrt(jnp.maximum(variance, 1e-8))


def observe(
    stats: ValueStats, target: Array, valid: Array, psum: Reduce, pmax: Reduce
) -> ValueStats:
    """Statistics updated by the valid rows of these targets, arrays [*B]."""
    low = -pmax(jnp.max(-target, where=valid, initial=-jnp.inf))
    high = pmax(jnp.max(target, where=valid, initial=-jnp.inf))
    return ValueStats(
        normalize.update_stats(stats.moments, target, valid, psum),
        jnp.minimum(stats.low, low),
        jnp.maximum(stats.high, high),
    )


def clip_observed(value: Array, stats: ValueStats) -> Array:
    """Values clipped to the range of all targets so far; unchanged before there are any."""
    return jnp.where(stats.low <= stats.high, jnp.clip(value, stats.low, stats.high), value)


def make(config: PPOConfig) -> Critic:
    """The critic that a config names, with its clipping of bootstrapped values."""
    if config.critic == "scalar":
        critic = scalar(config.value_clipping)
    else:
        kinds = {"symlog": symlog_critic, "hl_gauss": hl_gauss, "popart": popart}
        critic = kinds[config.critic]()
    if config.clip_bootstrap == "fixed":
        limit = config.bootstrap_limit
        critic = critic._replace(clip_bootstrap=lambda value, _: jnp.clip(value, -limit, limit))
    if config.clip_bootstrap == "observed":
        critic = critic._replace(clip_bootstrap=clip_observed)
    if config.critic == "popart" or config.clip_bootstrap == "observed":
        critic = critic._replace(track=observe)
    return critic
