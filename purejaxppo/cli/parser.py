"""Command lines: a flag overrides a field of a config, or is one of the command's own."""

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
from purejaxppo.config.schema import HINTS, Config, as_data, flat_hints
from purejaxppo.config.unknown import check_known
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.runs.console import Stopped, fail

F = TypeVar("F")


class Parsed(NamedTuple, Generic[F]):
    """A command line over a config: the command's own flags, and the config."""

    flags: F
    config: Config


class Words(NamedTuple):
    """Values of a command line as YAML has them, by dotted name.

    Those of unknown flags are by name as written, without dashes in front.
    """

    known: dict[str, Any]
    unknown: dict[str, Any]


def run(
    command: Callable[[Sequence[str]], int],
    args: Sequence[str] | None,
    *,
    interrupted: str = "interrupted",
) -> int:
    """Run a command on a command line; print the reason of a failure in one sentence on stderr.

    Args:
        command: the words of the command line -> exit code.
        args: those words; None: the process's own.
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


def parse(flags: type[F], words: Sequence[str]) -> F:
    """Parse the command line of a command without a config.

    Args:
        flags: a frozen dataclass with a field per flag.
        words: the command line.

    Raises:
        ValueError: unknown flags, or the first value that does not fit.
    """
    hints = flat_hints(flags)
    found = read(words, hints)
    check_known(found.unknown, hints, {}, dashes="--")
    return build_flags(flags, found)


def parse_over_config(flags: type[F], words: Sequence[str]) -> Parsed[F]:
    """Parse a command line over the config that its --config names, or over the defaults.

    Args:
        flags: a frozen dataclass of the command's own flags, `config` among them.
        words: the command line.

    Raises:
        ValueError: unknown flags, or the first value that does not fit.
    """
    own = flat_hints(flags)
    found = read(words, HINTS | own)
    command = build_flags(flags, found)
    name = found.known.get("config", "")
    config = load_config(name) if name else Config()
    overrides = _only(found.known, HINTS)
    check_known(found.unknown, HINTS | own, flatten(config) | overrides, dashes="--")
    data = apply_overrides(as_data(config), overrides)
    return Parsed(command, from_dict(data, "command line"))


def own_flags(flags: type[F], words: Sequence[str]) -> F:
    """Parse a command's own flags; those of its config, and unknown ones, are left out.

    Raises:
        ValueError: a value does not fit.
    """
    return build_flags(flags, read(words, HINTS | flat_hints(flags)))


def build_flags(flags: type[F], found: Words) -> F:
    """A command's own flags from the values of a command line.

    Raises:
        ValueError: a value does not fit.
    """
    own = flat_hints(flags)
    command: F = build(flags, apply_overrides({}, _only(found.known, own), own), "--")
    check_ranges(command, "--")
    return command


def _only(values: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """The values of some fields, and of their entries."""
    return {name: value for name, value in values.items() if field_of(name, hints)[0] in hints}


def check_task(config: Config) -> None:
    """Raise ValueError unless the config names a task."""
    if not config.env.name:
        raise ValueError(
            "env.name is missing: name a task, as in --env.name gymnax/CartPole-v1, or a config "
            "that has one, as in --config hopper.yaml"
        )


def read(words: Sequence[str], hints: Mapping[str, Any]) -> Words:
    """Read a command line: flags, each with the words up to the next one.

    `--a.b=VALUE` and `--a.b VALUE` are the same, except that a value after = may start with --.

    Args:
        words: the command line.
        hints: the type of each known field by dotted name.

    Raises:
        ValueError: a word in front of all flags, or a flag with too few or too many words.
    """
    found = Words({}, {})
    starts = [i for i, word in enumerate(words) if word.startswith("--")]
    if words and 0 not in starts:
        flag = next((name for name in ("run", "config") if name in hints), "seed")
        raise ValueError(f"{words[0]!r} is not a flag. Did you mean --{flag} {words[0]}?")
    for start, end in itertools.pairwise([*starts, len(words)]):
        name, equals, inline = words[start][2:].partition("=")
        name = renamed.FLAGS.get(name.replace("-", "_"), name)
        values = [inline] * bool(equals) + list(words[start + 1 : end])
        _add(found, name, values, hints)
    return found


def _add(found: Words, name: str, words: list[str], hints: Mapping[str, Any]) -> None:
    """Add a flag, by name as written without dashes in front, and the words after it."""
    key = name.replace("-", "_")
    section, dot, leaf = key.rpartition(".")
    positive = f"{section}{dot}{leaf.removeprefix('no_')}"
    field, entry = field_of(key, hints)
    hint = hints.get(field)
    if entry:
        item = typing.get_args(hint)[1]
        found.known[f"{field}.{name[len(field) + 1 :]}"] = value_of(words, item, name)
    elif typing.get_origin(hint) is dict:
        pairs = pairs_of(words, hint, name)
        found.known.update({f"{key}.{entry}": value for entry, value in pairs.items()})
        if not pairs:
            found.known[key] = {}
    elif hint is not None:
        value = value_of(words, hint, name)
        grows = isinstance(value, list) and key not in HINTS  # --grid a=1 --grid b=2
        found.known[key] = [*found.known.get(key, ()), *value] if grows else value
    elif hints.get(positive) is bool:
        if words:
            raise ValueError(f"--{name} takes no value, but {words[0]!r} follows it")
        found.known[positive] = False
    else:
        values = [scalar(word) for word in words]
        found.unknown[name] = values if len(values) > 1 else values[0] if values else True


def pairs_of(words: list[str], hint: Any, name: str) -> dict[str, Any]:
    """The entries of a mapping: names and values in turns, or a mapping in YAML."""
    if len(words) == 1 and isinstance(mapping := collection(words[0]), dict):
        return mapping
    if len(words) % 2:
        raise ValueError(f"--{name} needs pairs of names and values; {words[-1]!r} has no pair")
    read_item = reader(typing.get_args(hint)[1])
    return dict(zip(words[::2], map(read_item, words[1::2]), strict=True))


def value_of(words: list[str], hint: Any, name: str) -> Any:
    """The value of a field of type `hint`: a list of words, one word, or True without a word."""
    if typing.get_origin(hint) is tuple:
        if len(words) == 1 and isinstance(listed := collection(words[0]), list):
            return listed
        return list(map(reader(typing.get_args(hint)[0]), words))
    if hint is bool and not words:
        return True
    if not words:
        raise ValueError(f"--{name} needs a value")
    if len(words) > 1:
        raise ValueError(f"--{name} takes one value, but {words[1]!r} follows it")
    return reader(hint)(words[0])


def reader(hint: Any) -> Callable[[str], Any]:
    """The function that reads a word of a type: text and choices stay texts, such as 1e5."""
    kinds = (typing.get_origin(hint), *map(typing.get_origin, typing.get_args(hint)))
    return text if hint is str or Literal in kinds else scalar


def scalar(word: str) -> Any:
    """Read a word as YAML does: a number, true or false, a quoted text, otherwise the word."""
    try:
        node, value = yaml.compose(word, Loader), yaml.load(word, Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return word
    if not isinstance(node, yaml.ScalarNode):
        return word
    is_plain = node.value == word.strip() and not isinstance(value, str)
    return value if is_plain or node.style in ("'", '"') else word


def text(word: str) -> str:
    """Read a word of a field that holds texts: a quoted text, otherwise the word."""
    value = scalar(word)
    return value if isinstance(value, str) else word


def collection(word: str) -> Any:
    """Read a list such as [64, 64] or a mapping such as {a: 1}; None for other words."""
    if not word.startswith(("[", "{")):
        return None
    try:
        return yaml.load(word, Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
