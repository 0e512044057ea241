"""Declarations of task options (`env.options`), for checks, lists and documentation.

An adapter declares its options by name:

    OPTIONS = {"view_size": Option(5, "Side of the square that the agent sees.", low=3)}

Options of the simulator itself, such as arguments of its classes, are read from it when a task is
created, and checked in the same way.
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
"""Placeholder for a name chosen by the user, as in `parameters.NAME`."""


@dataclass(frozen=True)
class Option:
    """One option: its default, help text and allowed values.

    Args:
        default: default value, which also sets the type; None keeps the simulator's default.
        help: one sentence for users.
        low: smallest allowed value.
        above: exclusive lower bound.
        high: largest allowed value.
        choices: allowed strings; () allows any.
        kind: type of an option without a default.
        parse: function (name, value) -> parsed value, if types and ranges are not enough. It raises
            ValueError for an invalid value.
        tasks: patterns of the tasks that have the option.
        nested: True if `parse` accepts lists, mappings and None.
        refers: what a string value names: "code" (references to custom code, separated by commas),
            "program" (a program to start) or "path" (another path).
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
    nested: bool = False
    refers: Literal["", "code", "program", "path"] = ""

    def read(self, name: str, value: Any) -> Any:
        """Check a value and return it in the type of the option.

        A whole float such as 2.0 is accepted as an int, and an int as a float.

        Args:
            name: full name of the option, for errors.
            value: value in `env.options`.

        Raises:
            ValueError: a wrong type, or a value that is not allowed.
        """
        if not self.nested and (value is None or isinstance(value, list | dict)):
            raise ValueError(f"{name} = {value!r}: must be a number, a string, true or false.")
        if self.parse is not None:
            return self.parse(name, value)
        if self.choices and not (isinstance(value, str) and value in self.choices):
            raise ValueError(f"{name} = {value!r}: must be one of {', '.join(self.choices)}")
        value = self._typed(name, value)
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if None not in (self.low, self.high) and not low <= value <= high:
            raise ValueError(f"{name} = {value}: must be between {low:g} and {high:g}")
        if self.low is not None and not value >= low:
            raise ValueError(f"{name} = {value}: must be at least {low:g}")
        if self.above is not None and not value > self.above:
            raise ValueError(f"{name} = {value}: must be above {self.above:g}")
        return value

    def _typed(self, name: str, value: Any) -> Any:
        kind = self.kind or type(self.default)
        number = whole(value) if kind is int else None
        if number is not None:
            return number
        is_text = isinstance(value, str) and kind is str  # includes code references
        if is_text or type(value) is kind or (kind is float and type(value) is int):
            return value
        if kind in KINDS:
            raise ValueError(wrong_type(name, value, kind))
        type_name = type(self.default).__name__
        raise ValueError(f"{name} = {value!r}: must be a {type_name}, such as {self.default!r}")


Options = Mapping[str, Option]
"""Options by name."""


def of_task(options: Options, task: str) -> dict[str, Option]:
    """Return the options of a task; its name is without the family."""
    return {
        name: option
        for name, option in options.items()
        if any(fnmatchcase(task, pattern) for pattern in option.tasks)
    }


def from_values(values: Mapping[str, Any]) -> dict[str, Option]:
    """Return options with the names and defaults of `values`."""
    return {name: Option(value, "") for name, value in values.items()}


def unchecked(names: Iterable[str]) -> dict[str, Option]:
    """Return options that accept any value; the simulator checks them."""
    return {name: Option(None, "", parse=lambda _, value: value, nested=True) for name in names}


def find(options: Options, name: str) -> Option | None:
    """Return an option by name. `parameters.gravity` matches the option `parameters.NAME`."""
    prefix, _, suffix = name.partition(".")
    return options.get(name) or (options.get(f"{prefix}.{PLACEHOLDER}") if suffix else None)


def split(values: Mapping[str, Any], options: Options) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split values into those of declared options and all others."""
    declared = {name: value for name, value in values.items() if find(options, name) is not None}
    return declared, {name: value for name, value in values.items() if name not in declared}


def checked(
    task: str, values: Mapping[str, Any], options: Options, others: Iterable[str] = ()
) -> dict[str, Any]:
    """Check values and return them in the types of their options.

    Args:
        task: full name, family/task.
        values: values by name.
        options: the declared options.
        others: names of options that are checked elsewhere, for hints.

    Raises:
        ValueError: an unknown option or an invalid value.
    """
    typed = {}
    for name, value in values.items():
        option = find(options, name)
        if option is None:
            known = [*options, *others]
            listed = f"It has {', '.join(known)}." if known else "It has no options."
            hint = did_you_mean(name, known, listed)
            raise ValueError(f"env.options.{name}: {task} has no such option. {hint}")
        typed[name] = option.read(f"env.options.{name}", value)
    return typed


def with_defaults(values: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return the values of all declared options, with defaults for missing ones."""
    return {name: values.get(name, option.default) for name, option in options.items()}
