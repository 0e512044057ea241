"""Metrics that an environment reports at its steps, such as terms of the reward.

Each metric is reduced over an episode: to the sum, the mean or the last of its values. NaN means
that a step has no value.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Self, get_args

import jax
import jax.numpy as jnp
from flax import struct

from purejaxppo.config.hints import did_you_mean
from purejaxppo.config.schema import Reduction

REDUCTIONS = get_args(Reduction)
Declared = tuple[tuple[str, str], ...]
"""Name and reduction of each metric, in the order of `EnvStep.metrics`."""
RESERVED = (
    *("return_mean", "return_std", "return_min", "return_max", "length_mean"),
    *("diverged", "cut", "success_rate"),
)
"""Names of other columns of evaluations, eval/NAME."""
TICKS = "ticks"
"""Name of the metric that `ppo.discount` = tick reads: the game time of a step."""


class EpisodeMetrics(struct.PyTreeNode):
    """Values of K metrics in the running episode of each environment."""

    total: jax.Array  # [..., K] sum of the values so far, or the last value
    count: jax.Array  # [..., K] int32: number of values so far
    reductions: tuple[str, ...] = struct.field(pytree_node=False)

    @classmethod
    def start(cls, declared: Declared, shape: tuple[int, ...]) -> Self | None:
        """Return the metrics before the first step; None without metrics."""
        if not declared:
            return None
        shape = (*shape, len(declared))
        return cls(jnp.zeros(shape), jnp.zeros(shape, jnp.int32), tuple(r for _, r in declared))

    def _is(self, reduction: Reduction) -> jax.Array:
        return jnp.array([r == reduction for r in self.reductions])

    def add(self, values: jax.Array) -> Self:
        """Add the values of a step, float [..., K]."""
        present = ~jnp.isnan(values)
        before = jnp.where(self._is("last") & present, 0.0, self.total)
        total = before + jnp.where(present, values, 0.0)
        return self.replace(total=total, count=self.count + present)

    def restarted(self, where: jax.Array) -> Self:
        """Return the metrics with those of new episodes `where`, bool [...]."""
        total, count = (jnp.where(where[..., None], 0, x) for x in (self.total, self.count))
        return self.replace(total=total, count=count)

    @property
    def reduced(self) -> jax.Array:
        """Metrics of the episodes so far, float [..., K].

        Without any values, a sum is 0, and a mean and a last value are NaN.
        """
        count = jnp.where(self._is("mean"), self.count, jnp.minimum(self.count, 1))
        return self.total / jnp.where(self._is("sum"), 1, count)


def packed(values: Mapping[str, Any] | None, declared: Declared, shape: tuple[int, ...]) -> Any:
    """Return the values of a step as an array, float32 [*shape, K]; None without metrics.

    Args:
        values: `TaskStep.metrics`, arrays that broadcast to `shape`. Missing metrics have no value.
        declared: names and reductions.
        shape: the leading axes.
    """
    if not declared:
        return None
    columns = [jnp.asarray((values or {}).get(name, jnp.nan), jnp.float32) for name, _ in declared]
    return jnp.stack([jnp.broadcast_to(x, shape) for x in columns], axis=-1)


def masked(values: Any, valid: jax.Array) -> Any:
    """Return metrics [N, ...] with NaN, no value, where a row is not `valid`, bool [N]."""
    if values is None:
        return None
    return jnp.where(valid.reshape(-1, *[1] * (values.ndim - 1)), values, jnp.nan)


def unpacked(values: jax.Array, declared: Declared) -> dict[str, jax.Array]:
    """Return an array [..., K] of metrics by name, [...] each."""
    return {name: values[..., i] for i, (name, _) in enumerate(declared)}


def column(values: jax.Array | None, declared: Declared, name: str) -> jax.Array | None:
    """Return a metric [...] of an array [..., K]; None if it is not declared."""
    by_name = {} if values is None else unpacked(values, declared)
    return by_name.get(name)


def declared(metrics: Any, where: str) -> Declared:
    """Return the names and reductions of a declaration, {name: reduction}.

    Raises:
        ValueError: it is not a mapping, a reduction is unknown, or a name is taken.
    """
    if not isinstance(metrics, Mapping):
        raise ValueError(
            f"{where} = {metrics!r}: must map names to {', '.join(REDUCTIONS)}, as in "
            f"{{'distance': 'mean'}}."
        )
    for name, reduction in metrics.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}: {name!r} must be a name.")
        if reduction not in REDUCTIONS:
            hint = did_you_mean(str(reduction), REDUCTIONS, f"Use {' or '.join(REDUCTIONS)}.")
            raise ValueError(f"{where}.{name} = {reduction!r}: unknown reduction. {hint}")
        if name in RESERVED:
            raise ValueError(
                f"{where}: the name {name!r} is taken by the column eval/{name}. Choose another "
                f"name."
            )
    return tuple(metrics.items())


def selected(
    metrics: Mapping[str, str], changes: Mapping[str, str], where: str
) -> Mapping[str, str]:
    """Return the metrics of a task with other reductions.

    Args:
        metrics: reductions by name that the task declares.
        changes: reductions by name of `env.metrics`.
        where: the task, for errors.

    Raises:
        ValueError: a change names an unknown metric.
    """
    for name in changes:
        check_name(name, metrics, where)
    return {**metrics, **changes}


def check_name(name: str, known_names: Iterable[str], where: str) -> None:
    """Raise ValueError if an environment does not report a metric."""
    names = sorted(known_names)
    if name not in names:
        hint = did_you_mean(name, names, f"It reports {', '.join(names)}.") if names else ""
        problem = "has no such metric." if names else "reports no metrics. Remove env.metrics."
        raise ValueError(f"env.metrics.{name}: {where} {problem} {hint}".rstrip())
