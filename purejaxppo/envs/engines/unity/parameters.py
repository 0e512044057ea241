"""Environment parameters of a Unity game: numbers, or distributions that Unity samples.

This module does not import JAX.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from purejaxppo.envs.engines.unity import channels

CONSTANT, UNIFORM, GAUSSIAN = "constant", "uniform", "gaussian"
SAMPLERS = {UNIFORM: 0, GAUSSIAN: 1}
"""Kinds of Unity's samplers, with their numbers in messages."""
LARGEST = 3.4e38
"""Messages contain float32 numbers."""


@dataclass(frozen=True)
class Parameter:
    """An environment parameter.

    Args:
        kind: `constant`, `uniform` or `gaussian`.
        numbers: the value; the minimum and maximum; or the mean and standard deviation.
        spread: x of a constant that is multiplied by uniform factors in [1 - x, 1 + x].
    """

    kind: str
    numbers: tuple[float, ...]
    spread: float = 0.0

    def with_value(self, value: float) -> "Parameter":
        """Return a constant with another value and the same spread."""
        return replace(self, numbers=(value,))

    def message(self, name: str, seed: int) -> bytes:
        """Return the side channel message that sets it; `seed` is for Unity's sampler."""
        if self.kind in SAMPLERS:
            return channels.sampler(name, SAMPLERS[self.kind], self.numbers, seed)
        (value,) = self.numbers
        if not self.spread:
            return channels.parameter(name, value)
        ends = sorted((value * (1 - self.spread), value * (1 + self.spread)))
        return channels.sampler(name, SAMPLERS[UNIFORM], ends, seed)


def parse(field: str, value: Any) -> Parameter:
    """Parse an option: a number, `uniform MIN MAX` or `gaussian MEAN STD`.

    Raises:
        ValueError: the value has another form.
    """
    kind, *arguments = (value.split() or [""]) if isinstance(value, str) else (CONSTANT, value)
    try:
        numbers = tuple(float(word) for word in arguments)
    except ValueError:
        numbers = ()
    is_valid = not isinstance(value, bool) and all(abs(x) <= LARGEST for x in numbers)
    if kind == CONSTANT and not isinstance(value, str) and is_valid:
        return Parameter(CONSTANT, numbers)
    if kind not in SAMPLERS or len(numbers) != 2 or not is_valid:
        raise ValueError(
            f"{field} = {value!r}: invalid parameter. Use a number, 'uniform MIN MAX' or 'gaussian "
            f"MEAN STD'."
        )
    if kind == UNIFORM and numbers[0] > numbers[1]:
        raise ValueError(f"{field} = {value!r}: MIN is larger than MAX. Use 'uniform MIN MAX'.")
    if kind == GAUSSIAN and numbers[1] < 0:
        raise ValueError(
            f"{field} = {value!r}: STD is negative. Use 'gaussian MEAN STD' with STD >= 0."
        )
    return Parameter(kind, numbers)


def varied(
    options: Mapping[str, Parameter], randomize: Mapping[str, float], start: Mapping[str, float]
) -> dict[str, Parameter]:
    """Add `env.randomize` and `env.curriculum` to parameters.

    Args:
        options: parameters from `env.options`.
        randomize: x of each randomised parameter, between 0 and 1.
        start: values of a curriculum.

    Raises:
        ValueError: a randomised parameter has no value or is random already, or a parameter has two
            values.
    """
    for name in start:
        if name in options:
            raise ValueError(
                f"env.curriculum.{name} and env.options.parameters.{name} both set the parameter. "
                f"Remove one of them."
            )
        _check_name(f"env.curriculum.{name}", name)
    parameters = {
        **options,
        **{name: Parameter(CONSTANT, (value,)) for name, value in start.items()},
    }
    for name, spread in randomize.items():
        field = f"env.randomize.{name}"
        if name not in parameters:
            raise ValueError(
                f"{field}: the parameter has no value. Also set env.options.parameters.{name} to "
                f"its usual value."
            )
        if parameters[name].kind != CONSTANT:
            raise ValueError(
                f"{field}: env.options.parameters.{name} is random already. Remove one of them."
            )
        if abs(parameters[name].numbers[0]) * (1 + spread) > LARGEST:
            raise ValueError(
                f"{field}: {parameters[name].numbers[0]:g} x {1 + spread:g} is too large for "
                f"float32. Use a smaller value."
            )
        parameters[name] = replace(parameters[name], spread=spread)
    return parameters


def from_option(field: str, value: Any) -> Parameter:
    """Parse the option `parameters.NAME`, whose full name is `field`.

    Raises:
        ValueError: see `parse`; or the name is not ASCII.
    """
    _check_name(field, field.removeprefix("env.options.parameters."))
    return parse(field, value)


def _check_name(field: str, name: str) -> None:
    if not name.isascii() or not name:
        raise ValueError(f"{field}: the name of a Unity parameter must be ASCII and not empty.")


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of a curriculum.

    Raises:
        ValueError: a value is not finite.
    """
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"env.curriculum.{name} returned {value}. Return a finite number.")
    return dict(values)
