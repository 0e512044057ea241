"""Callbacks: custom code that a run calls on the host between two chunks of training."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from purejaxppo.config import extensions, references
from purejaxppo.config.schema import Config
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.rows import Row
from purejaxppo.types import TrainState


@dataclass
class CallbackContext:
    """The state of a run, as its callbacks receive it."""

    config: Config
    run_dir: Path
    update: int
    """Number of updates so far."""
    env_steps: int
    """Mean number of environment steps of an agent so far."""
    state: TrainState
    """The state on the device. Every array has a leading axis of agents. Do not store it: the next
    chunk of training overwrites its memory."""
    members: Sequence[Config]
    """The config of each agent."""
    rows: Sequence[Row] = ()
    """Metrics of each agent since the last row, by their column in metrics.csv."""
    tensorboard: Any = None
    """The tensorboardX SummaryWriter of the first agent; None without TensorBoard."""
    env: Any = None
    """The training environments, an `envs.base.Env`."""
    member_steps: tuple[int, ...] = ()
    """Environment steps of each agent so far. Empty: `env_steps` for all."""
    reason: str = field(default="", init=False)

    def stop(self, reason: str) -> None:
        """End the run after this call with a checkpoint, and print the reason."""
        self.reason = reason or "no reason given"

    @property
    def agent(self) -> Agent:
        """The current agent or agents, as `restore` returns them."""
        steps = self.member_steps or (self.env_steps,) * len(self.members)
        agents = Agent(self.config, self.state.learned, self.env_steps, tuple(self.members), steps)
        return agents if len(self.members) > 1 else agents.member(0)


Moment = CallbackContext
"""Its name before version 0.3, kept until 0.4."""


class Callback:
    """Base class of callbacks. Override the methods that you need.

    Any object with one of these methods is a callback. A function is called as `on_log`. With
    several processes, only the first one calls callbacks. Their state is not saved in checkpoints.
    """

    def on_start(self, context: CallbackContext) -> None:
        """Run before the first chunk of training, also when a run is resumed."""

    def on_log(self, context: CallbackContext) -> Mapping[str, float | Sequence[float]] | None:
        """Run when metrics are logged. `context.rows` has a row for each agent.

        Returns:
            More metrics by name, each one number for all agents or a list with one per agent. The
            names contain a slash, such as "mine/entropy".
        """

    def on_evaluation(
        self, context: CallbackContext
    ) -> Mapping[str, float | Sequence[float]] | None:
        """Run after each evaluation, whose metrics are in `context.rows`; return as `on_log`."""

    def on_save(self, context: CallbackContext) -> None:
        """Run after each checkpoint, which may still be written in the background."""

    def on_end(self, context: CallbackContext) -> None:
        """Run after the last chunk, even if the run was stopped early."""


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class CallbackError(RuntimeError):
    """A callback raised an error or returned an invalid metric."""


class OnLog(Callback):
    """A function as a callback."""

    def __init__(self, function: Any) -> None:
        """Store the function."""
        self.function = function

    def on_log(self, context: CallbackContext) -> Any:
        """Call the function."""
        return self.function(context)


def make_callbacks(config: Config) -> list[Any]:
    """Make the callbacks of a config: classes without arguments, instances and functions.

    Raises:
        ValueError: a callback cannot be loaded or made, or has another type.
    """
    objects = [extensions.make(extensions.CALLBACK, value) for value in config.callbacks]
    return [x if any(hasattr(x, event) for event in EVENTS) else OnLog(x) for x in objects]


def call(callbacks: Sequence[Callback], event: str, context: CallbackContext) -> list[Row]:
    """Call all callbacks, and return the metrics that they add to each agent's row.

    Raises:
        CallbackError: names the callback, its file and line.
    """
    added: list[Row] = [{} for _ in context.members]
    for callback in callbacks:
        try:
            returned = getattr(callback, event, nothing)(context)
        except Exception as error:
            reason = references.described(error)
            raise CallbackError(f"{_name(callback)}.{event}: {reason}") from error
        for name, values in _metrics(callback, event, returned).items():
            exists = name in added[0] or any(name in row for row in context.rows)
            if "/" not in name or exists:
                problem = (
                    "an existing metric. Use another name."
                    if exists
                    else "a name without a slash. Use a name such as mine/entropy."
                )
                raise CallbackError(
                    f"{_name(callback)}.{event} returned the metric {name!r}, {problem}"
                )
            numbers = values if isinstance(values, list) else [values] * len(added)
            if len(numbers) != len(added):
                raise CallbackError(
                    f"{_name(callback)}.{event} returned {len(numbers)} numbers for {name!r}. "
                    f"Return one number, or one for each of the {len(added)} agents (seeds)."
                )
            for row, value in zip(added, numbers, strict=True):
                row[name] = value
    return added


def nothing(context: CallbackContext) -> None:
    """Ignore an event that a callback does not define."""


def _metrics(callback: Callback, event: str, returned: Any) -> dict[str, float | list[float]]:
    """Convert the metrics that a callback returned to floats."""
    if returned is None:
        return {}
    try:
        return {
            str(name): float(value) if not _is_list(value) else [float(x) for x in value]
            for name, value in returned.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise CallbackError(
            f"{_name(callback)}.{event} returned {textwrap.shorten(repr(returned), 100)}. Return "
            f"a mapping of names to numbers, or None."
        ) from error


def _is_list(value: Any) -> bool:
    return hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0


def _name(callback: Callback) -> str:
    code = callback.function if isinstance(callback, OnLog) else type(callback)
    return f"callback {getattr(code, '__qualname__', code)}"
