"""Parsing of command lines: flags of a command, and flags that override config fields."""

import itertools
import logging
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import yaml

from purejaxppo.config import renamed
from purejaxppo.config.checks import check_ranges
from purejaxppo.config.files import (
    Loader,
    apply_overrides,
    build,
    field_of,
    flatten,
    from_dict,
    load_config,
)
from purejaxppo.config.schema import HINTS, Config, OptionValue, as_data, flat_hints
from purejaxppo.config.unknown import check_known
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.runs.console import Stopped, fail

F = TypeVar("F")


class Parsed(NamedTuple, Generic[F]):
    """A parsed command line: the command's flags, and the config."""

    flags: F
    config: Config


class Words(NamedTuple):
    """Values of a command line, by dotted name.

    Unknown flags have their name as written, without leading dashes.
    """

    known: dict[str, Any]
    unknown: dict[str, Any]


def run(
    command: Callable[[Sequence[str]], int],
    args: Sequence[str] | None,
    *,
    interrupted: str = "interrupted",
) -> int:
    """Run a command, and print errors as one line on stderr.

    Args:
        command: function from the arguments to the exit code.
        args: the arguments; None: those of this process.
        interrupted: the message after Ctrl-C.

    Returns:
        The exit code: 2 for an error, 130 after Ctrl-C.
    """
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        return command(sys.argv[1:] if args is None else args)
    except (ValueError, OSError, SimulatorError, Stopped) as error:
        return fail(error)
    except KeyboardInterrupt:
        return fail(interrupted, code=130)


def parse(flags: type[F], words: Sequence[str], section: str = "") -> tuple[F, dict[str, Any]]:
    """Parse the command line of a command without a config.

    Args:
        flags: a frozen dataclass with a field per flag.
        words: the command-line arguments.
        section: a section of the config whose fields are flags, too.

    Returns:
        The command's flags, and the values of the section by dotted name.

    Raises:
        ValueError: a flag is unknown, or a value is invalid.
    """
    of_section = {key: x for key, x in HINTS.items() if section and key.startswith(f"{section}.")}
    hints = of_section | flat_hints(flags)
    parsed = read(words, hints)
    check_known(parsed.unknown, hints, {}, dashes="--")
    return build_flags(flags, parsed), _only(parsed.known, of_section)


def parse_over_config(flags: type[F], words: Sequence[str]) -> Parsed[F]:
    """Parse a command line whose flags override the config of --config, or the defaults.

    Args:
        flags: a frozen dataclass of the command's flags, including `config`.
        words: the command-line arguments.

    Raises:
        ValueError: a flag is unknown, or a value is invalid.
    """
    flag_hints = flat_hints(flags)
    parsed = read(words, HINTS | flag_hints)
    command = build_flags(flags, parsed)
    name = parsed.known.get("config", "")
    config = load_config(name) if name else Config()
    overrides = _only(parsed.known, HINTS)
    check_known(parsed.unknown, HINTS | flag_hints, flatten(config) | overrides, dashes="--")
    data = apply_overrides(as_data(config), overrides)
    return Parsed(command, from_dict(data, "command line"))


def command_flags(flags: type[F], words: Sequence[str]) -> F:
    """Parse a command's flags; ignore flags of the config and unknown ones.

    Raises:
        ValueError: a value is invalid.
    """
    return build_flags(flags, read(words, HINTS | flat_hints(flags)))


def build_flags(flags: type[F], parsed: Words) -> F:
    """Return a command's flags from the values of a command line.

    Raises:
        ValueError: a value is invalid.
    """
    hints = flat_hints(flags)
    command: F = build(flags, apply_overrides({}, _only(parsed.known, hints), hints), "--")
    check_ranges(command, "--")
    return command


def _only(values: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields in `hints`, and of their entries."""
    return {name: value for name, value in values.items() if field_of(name, hints)[0] in hints}


def check_task(config: Config) -> None:
    """Raise ValueError if the config has no environment."""
    if not config.env.name:
        raise ValueError(
            "env.name is missing. Give a task, as in --env.name gymnax/CartPole-v1, or a config, "
            "as in --config hopper.yaml."
        )


def read(words: Sequence[str], hints: Mapping[str, Any]) -> Words:
    """Split a command line into flags and their values.

    `--a.b=VALUE` and `--a.b VALUE` are the same, except that a value after = may start with "--".

    Args:
        words: the command-line arguments.
        hints: the type of each known field by dotted name.

    Raises:
        ValueError: an argument precedes all flags, or a flag has too few or too many values.
    """
    parsed = Words({}, {})
    starts = [i for i, word in enumerate(words) if word.startswith("--")]
    if words and 0 not in starts:
        flag = next((name for name in ("run", "config") if name in hints), "seed")
        is_short_flag = words[0].startswith("-")
        hint = "--help lists them." if is_short_flag else f"Did you mean --{flag} {words[0]}?"
        raise ValueError(f"{words[0]!r}: flags start with --. {hint}")
    for start, end in itertools.pairwise([*starts, len(words)]):
        name, equals, inline = words[start][2:].partition("=")
        name = renamed.FLAGS.get(name.replace("-", "_"), name)
        values = [inline] * bool(equals) + list(words[start + 1 : end])
        _add(parsed, name, values, hints)
    return parsed


def _add(parsed: Words, name: str, words: list[str], hints: Mapping[str, Any]) -> None:
    """Add a flag with its values. `name` is as written, without leading dashes."""
    key = name.replace("-", "_")
    section, dot, leaf = key.rpartition(".")
    positive = f"{section}{dot}{leaf.removeprefix('no_')}"
    field, entry = field_of(key, hints)
    hint = hints.get(field)
    if entry:
        item = typing.get_args(hint)[1]
        parsed.known[f"{field}.{name[len(field) + 1 :]}"] = value_of(words, item, name)
    elif typing.get_origin(hint) is dict:
        pairs = pairs_of(words, hint, name)
        parsed.known.update({f"{key}.{entry}": value for entry, value in pairs.items()})
        if not pairs:
            parsed.known[key] = {}
    elif hint is not None:
        value = value_of(words, hint, name)
        is_repeatable = isinstance(value, list) and key not in HINTS  # --grid a=1 --grid b=2
        parsed.known[key] = [*parsed.known.get(key, ()), *value] if is_repeatable else value
    elif hints.get(positive) is bool:
        if words:
            raise ValueError(f"--{name} takes no value. Remove {words[0]!r}.")
        parsed.known[positive] = False
    else:
        values = [scalar(word) for word in words]
        parsed.unknown[name] = values if len(values) > 1 else values[0] if values else True


def pairs_of(words: list[str], hint: Any, name: str) -> dict[str, Any]:
    """Read a mapping from alternating names and values, or from a mapping in YAML."""
    if len(words) == 1 and isinstance(mapping := collection(words[0]), dict):
        return mapping
    if len(words) % 2:
        raise ValueError(
            f"--{name} requires pairs of names and values. {words[-1]!r} has no value."
        )
    item = typing.get_args(hint)[1]
    if typing.get_origin(item) is tuple:
        return {
            key: value_of([word], item, name)
            for key, word in zip(words[::2], words[1::2], strict=True)
        }
    return dict(zip(words[::2], map(reader(item), words[1::2]), strict=True))


def value_of(words: list[str], hint: Any, name: str) -> Any:
    """Read the value of a field of type `hint`: a list, a scalar, or True without arguments."""
    if typing.get_origin(hint) is tuple:
        if len(words) == 1 and isinstance(listed := collection(words[0]), list):
            return listed
        return list(map(reader(typing.get_args(hint)[0]), words))
    if hint is bool and not words:
        return True
    if not words:
        raise ValueError(f"--{name} requires a value.")
    if len(words) > 1:
        raise ValueError(f"--{name} takes only one value. Remove {words[1]!r}.")
    return reader(hint)(words[0])


def reader(hint: Any) -> Callable[[str], Any]:
    """Return the function that reads a value of type `hint`. Strings and choices stay strings."""
    kinds = (typing.get_origin(hint), *map(typing.get_origin, typing.get_args(hint)))
    if hint == OptionValue:
        return plain_value
    return text if hint is str or Literal in kinds else scalar


def scalar(word: str) -> Any:
    """Read an argument as YAML: a number, true or false, or a string, with or without quotes."""
    try:
        node, value = yaml.compose(word, Loader), yaml.load(word, Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return word
    if not isinstance(node, yaml.ScalarNode):
        return word
    is_plain = node.value == word.strip() and not isinstance(value, str)
    return value if is_plain or node.style in ("'", '"') else word


def plain_value(word: str) -> Any:
    """Read an argument as YAML: a scalar, a list or a mapping."""
    value = collection(word)
    return scalar(word) if value is None else value


def text(word: str) -> str:
    """Read an argument of a string field, with or without quotes."""
    value = scalar(word)
    return value if isinstance(value, str) else word


def collection(word: str) -> Any:
    """Parse an argument as a list, such as [64, 64], or a mapping, such as {a: 1}; else None."""
    if not word.startswith(("[", "{")):
        return None
    try:
        return yaml.load(word, Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
