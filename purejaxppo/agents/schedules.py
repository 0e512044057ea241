"""Schedules: factors as functions of a run's progress, 0 at the start and 1 at the end.

They accept NumPy arrays, JAX arrays and plain numbers.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from purejaxppo.aliases import Array, Scalar
from purejaxppo.config import extensions
from purejaxppo.config.references import CodeRef, load
from purejaxppo.config.schema import Config, PPOConfig
from purejaxppo.types import Hyperparams

LAST = 0.01
"""The final factor of an exponential schedule."""


def constant(progress: Array) -> Array:
    """Factor 1."""
    return jnp.ones_like(progress)


def linear(progress: Array) -> Array:
    """From 1 to 0 in a straight line."""
    return 1.0 - progress


def cosine(progress: Array) -> Array:
    """From 1 to 0 along half a cosine (Loshchilov & Hutter 2017, eq. 5, without restarts)."""
    return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))


def exponential(progress: Array) -> Array:
    """From 1 to `LAST`, with a logarithm that is linear in progress."""
    return LAST**progress


def step(progress: Array) -> Array:
    """From 1 to a tenth at the middle and a hundredth at three quarters, in two steps."""
    return jnp.where(progress < 0.5, 1.0, jnp.where(progress < 0.75, 0.1, 0.01))


SCHEDULES: dict[str, Callable[[Array], Array]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "exponential": exponential,
    "step": step,
    "adaptive": constant,  # times the factor of `optimizers.adaptive_rate`
}


def factor(
    name: str | CodeRef, progress: Scalar, warmup: float = 0.0, stride: Scalar = 0.0
) -> Array:
    """The multiplier of a value at `progress`, 0 to 1.

    A warm-up multiplies the schedule by a factor that grows linearly to 1 over the first `warmup`
    of the run. Each update is the fraction `stride` of the run, and the k-th update, from 1 on,
    counts as k strides, so that the first one does not have a factor of 0.
    """
    progress = jnp.clip(jnp.asarray(progress, jnp.float32), 0.0, 1.0)
    schedule = SCHEDULES[str(name)] if name in SCHEDULES else load(name, "a schedule")
    value = schedule(progress)
    return value * jnp.minimum(1.0, (progress + stride) / warmup) if warmup else value


def make_hyperparams(config: Config) -> Hyperparams:
    """The tunable floats of a run's config as arrays."""
    return hyperparams_of(config.ppo, config.num_updates)


def hyperparams_of(config: PPOConfig, num_updates: int) -> Hyperparams:
    """The tunable floats of a config, for a run of so many updates, as arrays [] each."""
    values = {name: getattr(config, name) for name in Hyperparams._fields[:-1]}
    values |= {"term_coefs": tuple(config.coefs), "total_updates": num_updates}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), Hyperparams(**values))


def check(config: PPOConfig) -> None:
    """Checks users' own schedules by tracing.

    Raises:
        ValueError: one cannot be loaded, or does not map a number to a number.
    """
    zero = jnp.zeros(())
    for name in ("learning_rate", "clip", "ent", "intrinsic"):
        field = f"ppo.{name}_schedule"
        kind = getattr(config, f"{name}_schedule")
        if kind not in SCHEDULES:
            args = extensions.SCHEDULE, kind, zero
            extensions.function(*args, gives=zero, field=field, finite=True)


def scheduled(hp: Hyperparams, config: PPOConfig, update: Array) -> Hyperparams:
    """Hyperparameters at an update of `total_updates`, each multiplied by its schedule."""
    progress, stride = update / hp.total_updates, 1.0 / hp.total_updates
    warmup = config.learning_rate_warmup
    rate = factor(config.learning_rate_schedule, progress, warmup, stride)
    return hp._replace(
        learning_rate=hp.learning_rate * rate,
        clip_eps=hp.clip_eps * factor(config.clip_schedule, progress),
        ent_coef=hp.ent_coef * factor(config.ent_schedule, progress),
        intrinsic_coef=hp.intrinsic_coef * factor(config.intrinsic_schedule, progress),
    )
