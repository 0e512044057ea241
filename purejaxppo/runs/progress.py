"""Counters of a run on the host."""

import dataclasses
from typing import Any

import jax
import numpy as np

from purejaxppo.types import Metrics, named_leaves


@dataclasses.dataclass
class Progress:
    """Host counters of a run, saved beside its state; lists have an entry per member."""

    update: int = 0
    train_seconds: float = 0.0
    """Training alone, without compiling, evaluating and saving."""
    member_steps: list[int] = dataclasses.field(default_factory=list)
    """Environment steps."""
    member_best: list[float | None] = dataclasses.field(default_factory=list)
    """Best evaluations."""
    member_best_steps: list[int] = dataclasses.field(default_factory=list)
    """Environment steps at the best evaluations."""
    eval_settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the best evaluations, by dotted name; {} before the first one."""
    unlogged: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    """Metrics [M] since the last row, by name; {} without any."""

    @classmethod
    def of(cls, size: int) -> "Progress":
        """The counters of `size` members before the first update."""
        return cls(0, 0.0, [0] * size, [None] * size, [0] * size)

    @classmethod
    def read(cls, saved: dict[str, Any]) -> "Progress":
        """Read the counters of a checkpoint; version 0.2 had no `eval_settings` and `unlogged`."""
        saved = {"eval_settings": {}, "unlogged": {}} | saved
        return cls(**{field.name: saved[field.name] for field in dataclasses.fields(cls)})

    def add(self, updates: int, env_steps: np.ndarray, seconds: float) -> None:
        """Count a chunk of updates with `env_steps` [M] of each member."""
        self.update += updates
        self.train_seconds += seconds
        self.member_steps = [
            old + int(new) for old, new in zip(self.member_steps, env_steps, strict=True)
        ]

    @property
    def env_steps(self) -> int:
        """Environment steps of each member, their mean."""
        return sum(self.member_steps) // len(self.member_steps)

    @property
    def best_return(self) -> float | None:
        """The best evaluation, the mean of the members that have one; None if none has."""
        known = [score for score in self.member_best if score is not None]
        return sum(known) / len(known) if known else None

    def with_unlogged(self, metrics: Metrics | None) -> "Progress":
        """Return the counters with the metrics [M] since the last row; None: without any."""
        numbers = {name: np.asarray(x).tolist() for name, x in named_leaves(metrics).items()}
        return dataclasses.replace(self, unlogged=numbers)

    def restored_metrics(self, like: Metrics) -> Metrics | None:
        """Return the saved metrics since the last row, typed like `like`; None without any."""
        leaves = named_leaves(like)
        if self.unlogged.keys() != leaves.keys():  # none, or of a version with other metrics
            return None
        arrays = [np.asarray(self.unlogged[name], x.dtype) for name, x in leaves.items()]
        metrics: Metrics = jax.tree.unflatten(jax.tree.structure(like), arrays)
        return metrics
