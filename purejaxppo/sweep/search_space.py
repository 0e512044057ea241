"""Settings of a sweep, from a grid or a search space.

A setting maps dotted names of config fields to values that override a base config.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml

from purejaxppo.config.checks import settings as settings_of
from purejaxppo.config.files import Loader, apply_overrides, flatten, from_dict, read_yaml
from purejaxppo.config.schema import HINTS, TUNABLE, Config, as_data
from purejaxppo.config.unknown import unknown

Values = dict[str, Any]

DEFAULTS = Config()

NOT_SWEPT = frozenset(
    name for name, metadata, _ in settings_of(DEFAULTS) if not metadata.get("swept", True)
)
"""Fields that a sweep cannot vary, such as seeds, evaluation and logging."""

ENTRY = "ppo.term_coefs."
"""Prefix of a single coefficient, as in ppo.term_coefs.0."""


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Uniform distribution from low to high, of whole numbers if `whole`."""

    low: float
    high: float
    whole: bool = False

    def draw(self, rng: np.random.Generator) -> float | int:
        """Sample a value."""
        if self.whole:
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        return float(rng.uniform(self.low, self.high))


class LogUniform(Uniform):
    """Log-uniform distribution from low to high, rounded to whole numbers if `whole`."""

    def draw(self, rng: np.random.Generator) -> float | int:
        """Sample a value."""
        value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return min(max(round(value), int(self.low)), int(self.high)) if self.whole else value


@dataclasses.dataclass(frozen=True)
class Choice:
    """Uniform distribution over a list of values."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Sample a value."""
        return self.values[int(rng.integers(len(self.values)))]


SearchRange = Uniform | Choice
"""A distribution over the values of a field."""


def parse_grid(texts: Sequence[str], base: Config = DEFAULTS) -> dict[str, list[Any]]:
    """Parse the values of fields from strings such as `ppo.learning_rate=1e-4,3e-4`.

    Raises:
        ValueError: a string, field or value is invalid.
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values_text = text.partition("=")
        if not equals or not values_text.strip():
            raise ValueError(
                f"--grid {text}: must be a field and values, such as ppo.gamma=0.98,0.99."
            )
        key = check_key(name.strip(), "--grid")
        if key in grid:
            raise ValueError(f"--grid {key}: the field is repeated. List all its values once.")
        try:
            values = yaml.load(f"[{values_text}]", Loader)
        except (yaml.YAMLError, ValueError) as error:
            raise ValueError(
                f"--grid {text}: invalid values. Use a list such as --grid ppo.gamma=0.98,0.99."
            ) from error
        values = [check_value(key, value, f"--grid {key}", base) for value in values]
        if len(set(map(repr, values))) < len(values):
            raise ValueError(f"--grid {text}: duplicate value. Remove it.")
        grid[key] = values
    return grid


def grid_settings(grid: Mapping[str, Sequence[Any]]) -> list[Values]:
    """Return all combinations, the last field varying fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def load_ranges(source: str | Path, base: Config = DEFAULTS) -> dict[str, SearchRange]:
    """Load a search space.

        ppo.learning_rate: {log_uniform: [1e-5, 1e-2]}
        ppo.ent_coef: {uniform: [0, 0.02]}
        network.activation: {choice: [tanh, relu]}

    Args:
        source: see `read_space`.
        base: config of the sweep.

    Raises:
        ValueError: see `read_space`, or an entry is invalid.
    """
    data, where = read_space(str(source))
    if not data:
        raise ValueError(
            f"{where}: the file is empty. Add a range such as ppo.gamma: {{uniform: [0.9, 0.999]}}."
        )
    return {
        key: _parse_range(where, check_key(str(key), where), value, base)
        for key, value in data.items()
    }


def read_space(source: str) -> tuple[dict[str, Any], str]:
    """Return the ranges of a search space by field, and their place, for messages.

    Args:
        source: a YAML file, or YAML in one line that starts with a brace.

    Raises:
        ValueError: the file does not exist, or is not YAML.
    """
    if source.startswith("{"):
        try:
            return yaml.load(source, Loader), "--search_space"
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ValueError(f"--search_space {source}: invalid YAML.") from error
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"--search_space {path}: no such file.")
    return read_yaml(path), path.name


KINDS = {"uniform": Uniform, "log_uniform": LogUniform, "choice": Choice}


def _parse_range(where: str, key: str, entry: Any, base: Config) -> SearchRange:
    place = f"{where}: {key}"
    if not isinstance(entry, Mapping) or len(entry) != 1 or next(iter(entry)) not in KINDS:
        raise ValueError(
            f"{place} = {entry!r}: must be {{uniform: [low, high]}}, {{log_uniform: [low, high]}} "
            f"or {{choice: [a, b]}}."
        )
    ((kind, values),) = entry.items()
    if not isinstance(values, list) or not values:
        raise ValueError(f"{place}: {kind} requires a list of values, not {values!r}.")
    checked = [check_value(key, value, place, base) for value in values]
    if kind == "choice":
        return Choice(tuple(checked))
    if len(checked) != 2 or any(isinstance(x, bool | str | tuple | dict) for x in checked):
        raise ValueError(f"{place}: {kind} requires two numbers, [low, high], not {values!r}.")
    low, high = cast(list[float], checked)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"{place}: {kind} from {low} to {high} must be finite.")
    if not low < high:
        raise ValueError(
            f"{place}: {kind} from {low} to {high} is empty. low must be less than high."
        )
    if kind == "log_uniform" and low <= 0:
        raise ValueError(f"{place}: log_uniform from {low}: must start above 0.")
    return KINDS[kind](low, high, whole=all(isinstance(x, int) for x in checked))


def random_settings(ranges: Mapping[str, SearchRange], count: int, seed: int) -> list[Values]:
    """Sample `count` settings; the same seed gives the same settings."""
    rng = np.random.default_rng(seed)
    return [{key: range_.draw(rng) for key, range_ in ranges.items()} for _ in range(count)]


def check_key(key: str, where: str) -> str:
    """Return the dotted name of a field that a sweep may vary.

    Raises:
        ValueError: the field is unknown, or a sweep may not vary it.
    """
    if key not in HINTS and entry_of(key) is None:
        raise ValueError(f"{where}: {unknown(key, HINTS)}")
    if key in NOT_SWEPT:
        hint = " Use --num_seeds for several seeds of each setting." if key == "seed" else ""
        raise ValueError(f"{where}: a sweep cannot vary {key}.{hint}")
    return key


def check_value(key: str, value: Any, where: str, base: Config) -> Any:
    """Convert a value to its field's type.

    Raises:
        ValueError: the value is invalid.
    """
    try:
        config = from_dict(apply_overrides(as_data(base), with_coefs({key: value}, base)))
    except ValueError as error:
        message = str(error).removeprefix("config: ")
        names_another = any(f"{name} = " in message for name in HINTS.keys() - {key})
        if message.startswith(key) and not names_another:
            raise ValueError(f"{where}: {message}") from error
        return value  # conflicts with another setting; checked with the settings of the sweep
    place = entry_of(key)
    return flatten(config)[key] if place is None else config.ppo.coefs[place]


def entry_of(key: str) -> int | None:
    """Return the index of a single coefficient, such as 0 for ppo.term_coefs.0, else None."""
    place = key.removeprefix(ENTRY)
    return int(place) if place != key and place.isdecimal() else None


def with_coefs(setting: Mapping[str, Any], config: Config) -> Values:
    """Replace `ppo.term_coefs.i` in a setting by the whole list `ppo.term_coefs`.

    Raises:
        ValueError: auxiliary loss i does not exist.
    """
    plain = {key: value for key, value in setting.items() if entry_of(key) is None}
    if plain == dict(setting):
        return plain
    coefs = list(plain.get(ENTRY[:-1], config.ppo.coefs))
    for key, value in setting.items():
        place = entry_of(key)
        if place is None:
            continue
        if place >= len(coefs):
            raise ValueError(f"{key}: ppo.terms has {len(coefs)} auxiliary losses, counted from 0.")
        coefs[place] = value
    return plain | {ENTRY[:-1]: coefs}


def apply(config: Config, setting: Values) -> Config:
    """Apply a setting to a config.

    Raises:
        ValueError: the resulting config is invalid.
    """
    plain = apply_overrides(as_data(config), with_coefs(setting, config))
    text = ", ".join(f"{key} = {value}" for key, value in setting.items())
    return from_dict(plain, where=f"setting {text}" if text else "config")


def structure(config: Config) -> tuple[tuple[str, Any], ...]:
    """Return all fields that determine the compiled program: not the tunable ones and the seed."""
    flat = flatten(config)
    return tuple((k, repr(v)) for k, v in flat.items() if k not in TUNABLE and k != "seed")


def exact(value: Any) -> str:
    """Format a value in full precision."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def show(value: Any) -> str:
    """Format a value with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return exact(value)
