"""Translation of settings of other PPO libraries.

The table is names.yaml, from which docs/names.md is generated.
"""

import functools
import math
import typing
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from purejaxppo.config.hints import show
from purejaxppo.config.schema import HINTS, Config


class Sizes(NamedTuple):
    """Sizes of a run, which the formulas read."""

    num_envs: int
    rollout_length: int
    total_timesteps: int

    @property
    def rows(self) -> int:
        """Return the number of rows of a rollout."""
        return self.num_envs * self.rollout_length


class Meaning(NamedTuple):
    """Translation of a setting of another library.

    Attributes:
        field: our setting by its dotted name, or a flag; "" without equivalent.
        value: a key of `FORMULAS`; or a mapping from their values to ours, in which True is also
            for unlisted values; or None if our value cannot be computed.
        remark: additional sentences, or "".
    """

    field: str = ""
    value: str | dict[Any, Any] | None = "x"
    remark: str = ""


FORMULAS: dict[str, Callable[[Any, Sizes], Any]] = {
    "x": lambda x, sizes: x,
    "2 x": lambda x, sizes: 2 * x,
    "1.5 x": lambda x, sizes: 1.5 * x,
    "exp(x)": lambda x, sizes: math.exp(x),
    "not x": lambda x, sizes: not x,
    "rows x": lambda x, sizes: sizes.rows * x,
    "rows / x": lambda x, sizes: sizes.rows / x,
    "total_timesteps / (x - 1)": lambda x, sizes: sizes.total_timesteps / (x - 1),
}
"""Formulas for our value, from the other library's value x and the sizes of the run."""


@functools.cache
def libraries() -> dict[str, dict[str, Meaning]]:
    """Load names.yaml: for each library, the meanings of its names."""
    path = Path(__file__).with_name("names.yaml")
    tables = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {
        library: {
            name: Meaning(field=entry) if isinstance(entry, str) else Meaning(**entry)
            for name, entry in names.items()
        }
        for library, names in tables.items()
    }


def meanings(name: str) -> dict[str, Meaning]:
    """Return the meanings of a name by library, ignoring dashes, capitals and sections."""
    leaf = name.replace("-", "_").lower().rpartition(".")[2]
    return {library: names[leaf] for library, names in libraries().items() if leaf in names}


def describe(
    name: str, value: Any = None, *, known: Container[str], sizes: Sizes, dashes: str = ""
) -> str | None:
    """Describe the equivalent of another library's setting.

    Args:
        name: the setting's name in the other library, without leading dashes. Capitals, dashes
            for underscores and a prefix such as `ppo.` make no difference.
        value: the other library's value; None if unknown.
        known: the names of our settings.
        sizes: sizes of the run (`sizes_of`).
        dashes: prefix of names in the result, "--" for flags.

    Returns:
        A sentence such as "Use ppo.num_minibatches = 512."; None if no library in names.yaml has a
        setting of this name.
    """
    descriptions: dict[str, list[str]] = {}
    for library, meaning in meanings(name).items():
        if (meaning.field or "env.name") not in known:
            continue
        sentences = [meaning.remark] if meaning.remark else []
        if meaning.field:
            ours = assignment(meaning.field, our_value(meaning, value, sizes), dashes)
            sentences.insert(0, f"Use {ours}.")
        descriptions.setdefault(" ".join(sentences), []).append(library)
    if len(descriptions) <= 1:
        return next(iter(descriptions), None)
    return " ".join(f"{' and '.join(names)}: {text}" for text, names in descriptions.items())


def assignment(field: str, value: Any, dashes: str) -> str:
    """Return "field = value" as in a config, or "--field value" with dashes.

    Args:
        field: the name of our setting.
        value: our value; None or a mapping: only the name is returned.
        dashes: "--" for flags.
    """
    if value is None or isinstance(value, Mapping):
        return f"{dashes}{field}"
    if not dashes:
        return f"{field} = {show(value)}"
    return f"{dashes}{field} {' '.join(map(show, value if isinstance(value, tuple) else [value]))}"


def sizes_of(values: Mapping[str, Any]) -> Sizes:
    """Return the sizes of a run, with defaults for missing settings.

    Args:
        values: values by our dotted names, or by other libraries' names.
    """
    config = Config()
    sizes = Sizes(config.env.num_envs, config.ppo.rollout_length, config.total_timesteps)
    for field in ("env.num_envs", "ppo.rollout_length", "total_timesteps"):
        for name, value in values.items():
            candidates = [Meaning(field)] if name == field else meanings(name).values()
            for meaning in candidates:
                ours = our_value(meaning, value, sizes) if meaning.field == field else None
                if ours is not None:
                    sizes = sizes._replace(**{field.rpartition(".")[2]: ours})
    return sizes


def our_value(meaning: Meaning, value: Any, sizes: Sizes) -> Any:
    """Return our value of a setting; None if it cannot be computed or has the wrong type.

    Args:
        meaning: meaning of the other library's name.
        value: the other library's value; None if unknown.
        sizes: sizes of the run.
    """
    from purejaxppo.config.files import convert  # avoids a circular import

    if isinstance(meaning.value, dict):
        is_listed = isinstance(value, bool | int | str) and value in meaning.value
        return meaning.value.get(value if is_listed else True)
    if value is None or meaning.value is None:
        return None
    hint = HINTS.get(meaning.field)
    if typing.get_origin(hint) is tuple and not isinstance(value, list | tuple):
        value = [value]
    try:
        ours = FORMULAS[meaning.value](value, sizes)
        if isinstance(ours, float):
            ours = float(f"{ours:.10g}")  # 0.105 for 1.5 x 0.07
        return ours if hint is None else convert(ours, hint, meaning.field)
    except (TypeError, ValueError, ArithmeticError):
        return None
