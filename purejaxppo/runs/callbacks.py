"""Callbacks: users' code that a run calls on the host between two chunks of training."""

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
    """The run at a call of its callbacks."""

    config: Config
    run_dir: Path
    update: int
    """Updates so far."""
    env_steps: int
    """Environment steps of each agent so far."""
    state: TrainState
    """The state on the device; every array has a leading axis of agents. Not to be held: the next
    chunk donates it."""
    members: Sequence[Config]
    """The config of each agent."""
    rows: Sequence[Row] = ()
    """Metrics since the last row, of each agent, by their names in metrics.csv."""
    tensorboard: Any = None
    """The tensorboardX SummaryWriter of the first agent, None where there is none."""
    env: Any = None
    """The environments of training, an `envs.base.Env`."""
    reason: str = field(default="", init=False)

    def stop(self, reason: str) -> None:
        """Ends the run after this call, with a save; `reason` is printed."""
        self.reason = reason or "no reason given"

    @property
    def agent(self) -> Agent:
        """The agents now, as `restore` returns them."""
        steps = (self.env_steps,) * len(self.members)
        agents = Agent(self.config, self.state.agent, self.env_steps, tuple(self.members), steps)
        return agents if len(self.members) > 1 else agents.member(0)


Moment = CallbackContext
"""Its name before version 0.3, kept until 0.4."""


class Callback:
    """Base class of callbacks: override what is needed. A function is an `on_log`.

    A class need not derive from it; any of its methods makes a callback.

    A callback is called in the first process of a run, and keeps no state over a resume.
    """

    def on_start(self, context: CallbackContext) -> None:
        """Called before the first chunk, also of a resumed run."""

    def on_log(self, context: CallbackContext) -> Mapping[str, float | Sequence[float]] | None:
        """Called with each row of metrics; returns more metrics, a number for all agents or each.

        Their names contain a slash, as in "mine/entropy".
        """

    def on_evaluation(
        self, context: CallbackContext
    ) -> Mapping[str, float | Sequence[float]] | None:
        """Called after each evaluation, with its metrics in `context.rows`; returns as `on_log`."""

    def on_save(self, context: CallbackContext) -> None:
        """Called after a save has begun."""

    def on_end(self, context: CallbackContext) -> None:
        """Called after the last chunk, also of a run that was stopped."""


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class CallbackError(RuntimeError):
    """A callback raised an error or returned something that is no metric."""


class OnLog(Callback):
    """A function as a callback."""

    def __init__(self, function: Any) -> None:
        """Stores the function."""
        self.function = function

    def on_log(self, context: CallbackContext) -> Any:
        """Calls it."""
        return self.function(context)


def make_callbacks(config: Config) -> list[Any]:
    """Make the callbacks of a config: classes without arguments, instances and functions.

    Raises:
        ValueError: one cannot be loaded or made, or is none of these.
    """
    found = [extensions.make(extensions.CALLBACK, value) for value in config.callbacks]
    return [one if any(hasattr(one, event) for event in EVENTS) else OnLog(one) for one in found]


def call(callbacks: Sequence[Callback], event: str, context: CallbackContext) -> list[Row]:
    """Calls all callbacks; returns the metrics that they add to each agent's row.

    Raises:
        CallbackError: names the callback, its file and line.
    """
    added: list[Row] = [{} for _ in context.members]
    for callback in callbacks:
        try:
            returned = getattr(callback, event, nothing)(context)
        except Exception as error:
            where = references.described(error)
            raise CallbackError(f"{_name(callback)}.{event}: {where}") from error
        for name, values in _metrics(callback, event, returned).items():
            taken = name in added[0] or any(name in row for row in context.rows)
            if "/" not in name or taken:
                problem = "is a metric already" if taken else "has no slash, as in mine/entropy"
                raise CallbackError(f"{_name(callback)}.{event} returned {name!r}, which {problem}")
            each = values if isinstance(values, list) else [values] * len(added)
            if len(each) != len(added):
                raise CallbackError(
                    f"{_name(callback)}.{event} returned {len(each)} numbers {name!r}, and there "
                    f"are {len(added)} agents"
                )
            for row, value in zip(added, each, strict=True):
                row[name] = value
    return added


def nothing(context: CallbackContext) -> None:
    """Stands for an event that a callback does not take."""


def _metrics(callback: Callback, event: str, returned: Any) -> dict[str, float | list[float]]:
    """The metrics that a callback returned, as plain numbers."""
    if returned is None:
        return {}
    try:
        return {
            str(name): float(value) if not _is_list(value) else [float(x) for x in value]
            for name, value in returned.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise CallbackError(
            f"{_name(callback)}.{event} returned {textwrap.shorten(repr(returned), 100)}, which is "
            f"no mapping of names to numbers"
        ) from error


def _is_list(value: Any) -> bool:
    return hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0


def _name(callback: Callback) -> str:
    own = callback.function if isinstance(callback, OnLog) else type(callback)
    return f"callback {getattr(own, '__qualname__', own)}"
