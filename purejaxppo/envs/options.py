"""Options of tasks, `env.options`, as data: checks, lists and documentation derive from these.

An adapter declares its options by name, as in

    OPTIONS = {"view_size": Option(5, "Side of the square that the agent sees.", low=3)}

Options that belong to a simulator, such as the arguments of its classes, are read from it when a
task is made, and checked in the same way.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from purejaxppo.config.hints import KINDS, did_you_mean, wrong_type
from purejaxppo.config.plain import whole
from purejaxppo.config.schema import Scalar

PLACEHOLDER = "NAME"
"""Placeholder for a name that users choose, as in `parameters.NAME`."""


@dataclass(frozen=True)
class Option:
    """One option: its default, its meaning and the values that it takes.

    Args:
        default: the default, which also gives the type of values; None: the simulator's default.
        help: its meaning, in a sentence.
        low: the smallest value.
        above: values are greater than this.
        high: the largest value.
        choices: allowed texts; empty: any text.
        kind: type of the values of an option without a default.
        parse: (name, value) -> the value as the adapter reads it, where types and ranges are not
            enough; raises ValueError for a wrong value.
        tasks: patterns of the tasks that have the option.
        refers: what a text names: references to custom code, separated by commas, a program that is
            started, or another path.
    """

    default: Scalar | None
    help: str
    low: float | None = None
    above: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    kind: type | None = None
    parse: Callable[[str, Any], Any] | None = None
    tasks: tuple[str, ...] = ("*",)
    refers: Literal["", "code", "program", "path"] = ""

    def read(self, name: str, value: Any) -> Any:
        """Return a value in the option's type.

        A whole float such as 2.0 may replace an int, and an int a float.

        Args:
            name: full name of the option, for messages.
            value: from `env.options`.

        Raises:
            ValueError: a wrong type, or a value that is not allowed.
        """
        if self.parse is not None:
            return self.parse(name, value)
        if self.choices and not (isinstance(value, str) and value in self.choices):
            raise ValueError(f"{name} = {value!r} must be one of {', '.join(self.choices)}")
        value = self._typed(name, value)
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if None not in (self.low, self.high) and not low <= value <= high:
            raise ValueError(f"{name} = {value} must be between {low:g} and {high:g}")
        if self.low is not None and not value >= low:
            raise ValueError(f"{name} = {value} must be at least {low:g}")
        if self.above is not None and not value > self.above:
            raise ValueError(f"{name} = {value} must be above {self.above:g}")
        return value

    def _typed(self, name: str, value: Any) -> Any:
        kind = self.kind or type(self.default)
        number = whole(value) if kind is int else None
        if number is not None:
            return number
        is_text = isinstance(value, str) and kind is str  # also a reference
        if is_text or type(value) is kind or (kind is float and type(value) is int):
            return value
        if kind in KINDS:
            raise ValueError(wrong_type(name, value, kind))
        raise ValueError(f"{name} = {value!r} must have the type of {self.default!r}")


Options = Mapping[str, Option]
"""Options by name."""


def of_task(options: Options, task: str) -> dict[str, Option]:
    """Return the options that a task has; its name is without the family."""
    return {
        name: option
        for name, option in options.items()
        if any(fnmatchcase(task, pattern) for pattern in option.tasks)
    }


def from_values(values: Mapping[str, Any]) -> dict[str, Option]:
    """Return the options of a simulator whose defaults are `values`."""
    return {name: Option(value, "") for name, value in values.items()}


def unchecked(names: Iterable[str]) -> dict[str, Option]:
    """Return the options of a simulator that checks their values itself."""
    return {name: Option(None, "", parse=lambda _, value: value) for name in names}


def find(options: Options, name: str) -> Option | None:
    """Return an option by its name; of `parameters.gravity` that is `parameters.NAME`."""
    prefix, dot, own = name.partition(".")
    return options.get(name) or (options.get(f"{prefix}.{PLACEHOLDER}") if dot and own else None)


def split(given: Mapping[str, Any], options: Options) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of `given` that are declared, and those that belong to the simulator."""
    ours = {name: value for name, value in given.items() if find(options, name) is not None}
    return ours, {name: value for name, value in given.items() if name not in ours}


def checked(
    task: str, given: Mapping[str, Any], options: Options, others: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the options that are given, in the types of their declarations.

    Args:
        task: full name, family/task.
        given: values by name.
        options: all options that are checked here.
        others: names of options that are checked elsewhere, for the hint about an unknown one.

    Raises:
        ValueError: an unknown option, or a wrong value.
    """
    values = {}
    for name, value in given.items():
        option = find(options, name)
        if option is None:
            known = [*options, *others]
            listed = f"It has {', '.join(known)}." if known else "It has no options."
            hint = did_you_mean(name, known, listed)
            raise ValueError(f"env.options.{name}: {task} has no such option. {hint}")
        values[name] = option.read(f"env.options.{name}", value)
    return values


def with_defaults(given: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return the values of all declared options, with defaults for those that are not given."""
    return {name: given.get(name, option.default) for name, option in options.items()}
