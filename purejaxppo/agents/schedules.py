"""Schedules: factors as functions of the progress of a run, from 0 (start) to 1 (end).

They accept NumPy arrays, JAX arrays and numbers.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from purejaxppo.aliases import Array, Scalar
from purejaxppo.config import extensions
from purejaxppo.config.references import CodeRef, load
from purejaxppo.config.schema import Config, PPOConfig
from purejaxppo.types import Hyperparams

FINAL_FACTOR = 0.01
"""Final factor of an exponential schedule."""


def constant(progress: Array) -> Array:
    """Return 1."""
    return jnp.ones_like(progress)


def linear(progress: Array) -> Array:
    """Decrease linearly from 1 to 0."""
    return 1.0 - progress


def cosine(progress: Array) -> Array:
    """Decrease from 1 to 0 along half a cosine, (1 + cos(π progress)) / 2.

    Reference: Loshchilov & Hutter 2017, https://arxiv.org/abs/1608.03983, eq. 5, without restarts.
    """
    return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))


def exponential(progress: Array) -> Array:
    """Decrease exponentially from 1 to `FINAL_FACTOR`."""
    return FINAL_FACTOR**progress


def step(progress: Array) -> Array:
    """Return the factor at `progress`: 1 in the first half, 0.1 until three quarters, then 0.01."""
    return jnp.where(progress < 0.5, 1.0, jnp.where(progress < 0.75, 0.1, 0.01))


SCHEDULES: dict[str, Callable[[Array], Array]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "exponential": exponential,
    "step": step,
    "adaptive": constant,  # times the factor of `optimizers.adapted`
}


def factor(
    name: str | CodeRef, progress: Scalar, warmup: float = 0.0, stride: Scalar = 0.0
) -> Array:
    """Return the factor by which a schedule multiplies a setting, such as the learning rate.

    A second factor, for the warm-up, grows linearly to 1 over the first part `warmup` of the run.
    It is evaluated at the end of each update, so it is above 0 in the first update.

    Args:
        name: name of the schedule, or a reference to a custom one.
        progress: progress of the run, 0 to 1.
        warmup: part of the run, 0 to 1.
        stride: length of one update, as part of the run.
    """
    progress = jnp.clip(jnp.asarray(progress, jnp.float32), 0.0, 1.0)
    schedule = SCHEDULES[str(name)] if name in SCHEDULES else load(name, "a schedule")
    value = schedule(progress)
    return value * jnp.minimum(1.0, (progress + stride) / warmup) if warmup else value


def make_hyperparams(config: Config) -> Hyperparams:
    """Return the tunable floats of a run's config as arrays."""
    return hyperparams_of(config.ppo, config.num_updates)


def hyperparams_of(config: PPOConfig, num_updates: int) -> Hyperparams:
    """Return the tunable floats of a config as scalar arrays.

    Args:
        config: settings of the algorithm.
        num_updates: total number of updates of the run.
    """
    values = {name: getattr(config, name) for name in Hyperparams._fields[:-1]}
    values |= {"term_coefs": tuple(config.coefs), "total_updates": num_updates}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), Hyperparams(**values))


def check(config: PPOConfig) -> None:
    """Check custom schedules by tracing.

    Raises:
        ValueError: a schedule cannot be loaded, or does not map a number to a number.
    """
    zero = jnp.zeros(())
    for name in ("learning_rate", "clip", "ent", "intrinsic"):
        field = f"ppo.{name}_schedule"
        kind = getattr(config, f"{name}_schedule")
        if kind not in SCHEDULES:
            args = extensions.SCHEDULE, kind, zero
            extensions.load_function(*args, expected=zero, field=field, finite=True)


def scheduled(hp: Hyperparams, config: PPOConfig, update: Scalar) -> Hyperparams:
    """Return the hyperparameters of an update: coefficients times their schedules, and gamma.

    gamma changes linearly from `ppo.gamma` to `ppo.final_gamma`, unless that is 0.

    Args:
        hp: hyperparameters before their schedules are applied.
        config: names of the schedules, and `ppo.final_gamma`.
        update: number of completed updates, scalar; may be fractional, or exceed the total.
    """
    progress, stride = update / hp.total_updates, 1.0 / hp.total_updates
    warmup = config.learning_rate_warmup
    rate = factor(config.learning_rate_schedule, progress, warmup, stride)
    if config.final_gamma:
        part = jnp.clip(progress, 0.0, 1.0)
        hp = hp._replace(gamma=hp.gamma + (config.final_gamma - hp.gamma) * part)
    return hp._replace(
        learning_rate=hp.learning_rate * rate,
        clip_eps=hp.clip_eps * factor(config.clip_schedule, progress),
        ent_coef=hp.ent_coef * factor(config.ent_schedule, progress),
        intrinsic_coef=hp.intrinsic_coef * factor(config.intrinsic_schedule, progress),
    )
