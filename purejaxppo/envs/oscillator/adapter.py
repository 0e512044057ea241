"""The family `oscillator/`: its tasks, and the report that `evaluate` adds."""

from purejaxppo.envs.oscillator.report import report
from purejaxppo.envs.oscillator.task import make, task_names

__all__ = ["make", "report", "task_names"]
