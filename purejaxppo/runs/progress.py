"""Counters of a run on the host."""

import dataclasses
from typing import Any

import jax
import numpy as np

from purejaxppo.types import Metrics, named_leaves


@dataclasses.dataclass
class Progress:
    """Host counters of a run, saved with its state. Lists have one entry per agent."""

    update: int = 0
    train_seconds: float = 0.0
    """Seconds of training, without compilation, evaluations and checkpoints."""
    member_steps: list[int] = dataclasses.field(default_factory=list)
    """Environment steps of each agent."""
    member_best: list[float | None] = dataclasses.field(default_factory=list)
    """Score of each agent's best evaluation; None before the first one."""
    member_best_steps: list[int] = dataclasses.field(default_factory=list)
    """Environment steps at each agent's best evaluation."""
    eval_settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the best evaluations, by dotted name; {} before the first one."""
    unlogged: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    """Metrics [M] since the last row, by name; {} if empty."""
    env_metrics: list[list[str]] | None = None
    """Name and reduction of each metric of the environment; None in checkpoints up to version
    0.3.0."""
    stopped: str = ""
    """Reason why a callback ended the run; "" otherwise."""
    before_failure: int | None = None
    """`Intervals.done` before the last chunk, if a hook such as an evaluation failed after it."""

    @classmethod
    def of(cls, size: int) -> "Progress":
        """Return the counters of `size` agents before the first update."""
        return cls(0, 0.0, [0] * size, [None] * size, [0] * size)

    @classmethod
    def read(cls, saved: dict[str, Any]) -> "Progress":
        """Read the counters of a checkpoint. Earlier versions lack some of them."""
        later: dict[str, Any] = {
            "eval_settings": {},
            "unlogged": {},
            "env_metrics": None,
            "stopped": "",
            "before_failure": None,
        }
        saved = later | saved
        saved["eval_settings"] = _with_code_as_text(saved["eval_settings"])
        return cls(**{field.name: saved[field.name] for field in dataclasses.fields(cls)})

    def add(self, updates: int, env_steps: np.ndarray, seconds: float) -> None:
        """Count a chunk of updates with `env_steps` [M], the steps of each agent."""
        self.update += updates
        self.train_seconds += seconds
        self.member_steps = [
            old + int(new) for old, new in zip(self.member_steps, env_steps, strict=True)
        ]

    @property
    def env_steps(self) -> int:
        """Mean number of environment steps of an agent."""
        return sum(self.member_steps) // len(self.member_steps)

    @property
    def best_return(self) -> float | None:
        """Mean of the agents' best evaluations; None before the first evaluation."""
        known = [score for score in self.member_best if score is not None]
        return sum(known) / len(known) if known else None

    def with_unlogged(self, metrics: Metrics) -> "Progress":
        """Return the counters with the metrics [M] since the last row."""
        numbers = {name: np.asarray(x).tolist() for name, x in named_leaves(metrics).items()}
        return dataclasses.replace(self, unlogged=numbers)

    def restored_metrics(self, like: Metrics) -> Metrics | None:
        """Return the saved metrics since the last row with types as in `like`; None without any."""
        leaves = named_leaves(like)
        if self.unlogged.keys() != leaves.keys():  # empty, or from a version with other metrics
            return None
        arrays = [np.asarray(self.unlogged[name], x.dtype) for name, x in leaves.items()]
        shapes = zip(arrays, leaves.values(), strict=True)
        if any(array.shape != x.shape for array, x in shapes):  # other metrics of the environment
            return None
        metrics: Metrics = jax.tree.unflatten(jax.tree.structure(like), arrays)
        return metrics


def _with_code_as_text(settings: Any) -> Any:
    """Return settings with custom code as text, which version 0.3.0 stored as three fields."""
    if not isinstance(settings, dict):
        return settings
    if settings.keys() == {"text", "object", "files"}:
        return settings["text"]
    return {name: _with_code_as_text(value) for name, value in settings.items()}
