"""Settings of a sweep, from a grid or drawn from ranges.

A setting is a flat mapping from dotted names of config fields to values, over a base config.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import yaml

from purejaxppo.config.checks import settings as settings_of
from purejaxppo.config.files import Loader, apply_overrides, flatten, from_dict, read_yaml
from purejaxppo.config.schema import HINTS, TUNABLE, Config, as_data
from purejaxppo.config.unknown import unknown

Setting = dict[str, Any]

DEFAULTS = Config()

NOT_SWEPT = frozenset(
    name for name, about, _ in settings_of(DEFAULTS) if not about.get("swept", True)
)
"""Fields that a sweep cannot vary: seeds, and fields of running, evaluating and saving."""

ENTRY = "ppo.term_coefs."
"""Prefix of the number of one coefficient, as in ppo.term_coefs.0."""


class SearchRange(Protocol):
    """Values that one field may take."""

    def draw(self, rng: np.random.Generator) -> Any:
        """Draws a value."""
        ...


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Values from low to high, each as likely; whole numbers for a field of whole numbers."""

    low: float
    high: float
    whole: bool = False

    def draw(self, rng: np.random.Generator) -> float | int:
        """Draws a value."""
        if self.whole:
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        return float(rng.uniform(self.low, self.high))


@dataclasses.dataclass(frozen=True)
class LogUniform:
    """Values from low to high, each order of magnitude as likely."""

    low: float
    high: float
    whole: bool = False

    def draw(self, rng: np.random.Generator) -> float | int:
        """Draws a value."""
        value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return min(max(round(value), int(self.low)), int(self.high)) if self.whole else value


@dataclasses.dataclass(frozen=True)
class Choice:
    """Values of a list, each as likely."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Draws a value."""
        return self.values[int(rng.integers(len(self.values)))]


def parse_grid(texts: Sequence[str], base: Config = DEFAULTS) -> dict[str, list[Any]]:
    """Parses values per field from texts such as `ppo.learning_rate=1e-4,3e-4`, over a base config.

    Raises:
        ValueError: one sentence about the first text that is wrong.
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        if not equals or not listed.strip():
            raise ValueError(
                f"--grid {text}: expected a field and values, as in ppo.gamma=0.98,0.99"
            )
        key = check_key(name.strip(), "--grid")
        if key in grid:
            raise ValueError(f"--grid {key} is given twice; list all its values in one")
        try:
            values = yaml.load(f"[{listed}]", Loader)
        except (yaml.YAMLError, ValueError) as error:
            raise ValueError(f"--grid {text}: the values are not a list such as 1,2,3") from error
        values = [check_value(key, value, f"--grid {key}", base) for value in values]
        if len(set(map(repr, values))) < len(values):
            raise ValueError(f"--grid {text}: a value is there twice")
        grid[key] = values
    return grid


def grid_settings(grid: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Every combination, the last field varying fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def load_ranges(path: Path, base: Config = DEFAULTS) -> dict[str, SearchRange]:
    """Loads ranges from a YAML file, over a base config.

        ppo.learning_rate: {log_uniform: [1e-5, 1e-2]}
        ppo.ent_coef: {uniform: [0, 0.02]}
        network.activation: {choice: [tanh, relu]}

    Raises:
        ValueError: one sentence about the first entry that is wrong.
    """
    if not path.is_file():
        raise ValueError(f"--search_space {path}: no such file")
    data = read_yaml(path)
    if not data:
        raise ValueError(f"{path}: names no field to vary")
    return {
        key: _parse_range(path.name, check_key(str(key), path.name), value, base)
        for key, value in data.items()
    }


KINDS = {"uniform": Uniform, "log_uniform": LogUniform, "choice": Choice}


def _parse_range(where: str, key: str, given: Any, base: Config) -> SearchRange:
    place = f"{where}: {key}"
    if not isinstance(given, Mapping) or len(given) != 1 or next(iter(given)) not in KINDS:
        raise ValueError(
            f"{place} = {given!r} is not a range; expected one of {{uniform: [low, high]}}, "
            f"{{log_uniform: [low, high]}}, {{choice: [a, b]}}"
        )
    ((kind, values),) = given.items()
    if not isinstance(values, list) or not values:
        raise ValueError(f"{place}: {kind} needs a list of values, not {values!r}")
    checked = [check_value(key, value, place, base) for value in values]
    if kind == "choice":
        return Choice(tuple(checked))
    if len(checked) != 2 or any(isinstance(x, bool | str | tuple | dict) for x in checked):
        raise ValueError(f"{place}: {kind} needs two numbers, [low, high], not {values!r}")
    low, high = cast(list[float], checked)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"{place}: {kind} from {low} to {high} has no end")
    if not low < high:
        raise ValueError(f"{place}: {kind} from {low} to {high} is empty; low must be below high")
    if kind == "log_uniform" and low <= 0:
        raise ValueError(f"{place}: log_uniform starts at {low}; it must start above 0")
    return KINDS[kind](low, high, whole=all(isinstance(x, int) for x in checked))


def random_settings(ranges: Mapping[str, SearchRange], count: int, seed: int) -> list[Setting]:
    """Draws `count` settings from ranges; the same for the same seed."""
    rng = np.random.default_rng(seed)
    return [{key: range_.draw(rng) for key, range_ in ranges.items()} for _ in range(count)]


def check_key(key: str, where: str) -> str:
    """Checks that a sweep may vary the field of a dotted name; returns the name.

    Raises:
        ValueError: there is none of this name, or a sweep may not vary it.
    """
    if key not in HINTS and entry_of(key) is None:
        raise ValueError(f"{where}: {unknown(key, HINTS)}")
    if key in NOT_SWEPT:
        hint = "; --num_seeds says how many seeds each setting gets" * (key == "seed")
        raise ValueError(f"{where}: {key} is not a setting that learning depends on{hint}")
    return key


def check_value(key: str, value: Any, where: str, base: Config) -> Any:
    """Converts a value to its field's type.

    Raises:
        ValueError: it does not fit.
    """
    try:
        config = from_dict(apply_overrides(as_data(base), whole({key: value}, base)))
    except ValueError as error:
        message = str(error).removeprefix("config: ")
        if message.startswith(key):
            raise ValueError(f"{where}: {message}") from error
        return value  # does not fit the defaults' sizes: checked with the config of the sweep
    place = entry_of(key)
    return flatten(config)[key] if place is None else config.ppo.coefs[place]


def entry_of(key: str) -> int | None:
    """The number of a coefficient in ppo.term_coefs, as 0 in ppo.term_coefs.0; else None."""
    place = key.removeprefix(ENTRY)
    return int(place) if place != key and place.isdecimal() else None


def whole(setting: Mapping[str, Any], config: Config) -> Setting:
    """A setting with single coefficients put into the list of a config's.

    Raises:
        ValueError: the config has fewer terms.
    """
    plain = {key: value for key, value in setting.items() if entry_of(key) is None}
    coefs = list(plain.get(ENTRY[:-1], config.ppo.coefs))
    for key, value in setting.items():
        place = entry_of(key)
        if place is None:
            continue
        if place >= len(coefs):
            raise ValueError(f"{key}: there are {len(coefs)} ppo.terms, counted from 0")
        coefs[place] = value
    return plain if plain == dict(setting) else plain | {ENTRY[:-1]: coefs}


def apply(config: Config, setting: Setting) -> Config:
    """Applies a setting to a config.

    Raises:
        ValueError: its fields do not go together.
    """
    plain = apply_overrides(as_data(config), whole(setting, config))
    named = ", ".join(f"{key} = {value}" for key, value in setting.items())
    return from_dict(plain, where=f"setting {named}" if named else "config")


def structure(config: Config) -> tuple[tuple[str, Any], ...]:
    """The structure of a compiled program: every field but tunable ones and the seed."""
    flat = flatten(config)
    return tuple((k, repr(v)) for k, v in flat.items() if k not in TUNABLE and k != "seed")


def exact(value: Any) -> str:
    """Formats a setting's value in full, so that it can be given again."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def show(value: Any) -> str:
    """Formats a setting's value, shortened."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return exact(value)
