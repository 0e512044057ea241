"""Command lines, parsed by tyro, which also writes their help; errors are one sentence each."""

import argparse
import contextlib
import dataclasses
import functools
import io
import logging
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import tyro
import yaml

from purejaxppo.config.files import (
    Loader,
    apply_overrides,
    convert,
    flatten,
    from_dict,
    load_config,
)
from purejaxppo.config.hints import nearest
from purejaxppo.config.renamed import answer
from purejaxppo.config.schema import Config
from purejaxppo.envs.host.errors import SimulatorError
from purejaxppo.runs import usage
from purejaxppo.runs.console import Stopped, fail

C = TypeVar("C")


def run(
    command: Callable[[Sequence[str]], int],
    args: Sequence[str] | None,
    *,
    interrupted: str = "interrupted",
) -> int:
    """Runs a command on a command line; prints the reason of a failure in one sentence on stderr.

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


def parse(default: C, args: Sequence[str], *, prog: str, description: str) -> C:
    """Parses a command line over the defaults of a frozen dataclass.

    Raises:
        ValueError: one sentence about the first flag that is wrong.
        SystemExit: --help.
    """
    complaints = io.StringIO()
    pairs = {key: get(default, key) for key in pair_flags(type(default))}
    if not {"-h", "--help"} & set(args):
        args, pairs = check_flags(args, default)
    for key in pairs:  # tyro would make a flag of every pair that is there
        default = put(default, key, {})
    try:
        with contextlib.redirect_stderr(complaints):
            command = tyro.cli(
                type(default),
                default=default,
                args=list(args),
                prog=prog,
                description=description,
                use_underscores=True,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ValueError(" ".join(complaints.getvalue().split())) from stop
    for key, value in pairs.items():
        command = put(command, key, value)
    return command


def parse_over_config(
    command: type[C], args: Sequence[str], *, prog: str, description: str, examples: Sequence[str]
) -> C:
    """Parses a command line over the config file that its --config names, or over the defaults.

    Args:
        command: a dataclass of a config's fields and others, `config` among them.
        args: the command line.
        prog: the words that start the command.
        description: of the command, for --help.
        examples: whole command lines, for --help.

    Raises:
        ValueError: one sentence about the file or the first flag that is wrong.
        SystemExit: --help.
    """
    args = list(args)
    topic = usage.topic_of(args)
    default: Any = command()
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    peek.add_argument("--config", default=default.config)
    try:
        name = peek.parse_known_args(args)[0].config
    except argparse.ArgumentError as error:
        raise ValueError("--config needs a file or a name, such as hopper.yaml") from error
    config = load_config(name) if name else Config()
    config = config.replace(gpu={k: x for k, x in config.gpu.items() if k not in flags_in(args)})
    if topic == "":
        usage.print_overview(default, prog, description, examples)
    elif topic not in (None, "all"):
        usage.print_section(topic, config, Path(name).name)
    if topic not in (None, "all"):
        raise SystemExit(0)
    args = ["--help"] if topic else args
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(Config)}
    default = dataclasses.replace(default, **fields, config=name)
    return parse(default, args, prog=prog, description=description)


def flags_in(args: Sequence[str]) -> set[str]:
    """The names of the flags of a command line, as the fields are called."""
    words = (word.removeprefix("--").partition("=")[0] for word in args if word[:2] == "--")
    return {word.replace("-", "_") for word in words}


def check_task(config: Config) -> None:
    """Raises ValueError unless the config names a task."""
    if not config.env.name:
        raise ValueError(
            "env.name is missing: name a task, as in --env.name gymnax/CartPole-v1, or a config "
            "that has one, as in --config hopper.yaml"
        )


def pair_flags(cls: type) -> list[str]:
    """The dotted names of fields that take pairs of names and values."""
    return [key for key, hint in flat_hints(cls).items() if typing.get_origin(hint) is dict]


def get(command: Any, key: str) -> Any:
    """A field by its dotted name."""
    return functools.reduce(getattr, key.split("."), command)


def put(command: Any, key: str, value: Any) -> Any:
    """Copies a dataclass with another value of a field, by its dotted name."""
    name, _, rest = key.partition(".")
    inner = put(getattr(command, name), rest, value) if rest else value
    return dataclasses.replace(command, **{name: inner})


def check_flags(args: Sequence[str], command: Any) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Checks flags, and writes their values as tyro reads them: 1e6 as 1000000, true as True.

    Args:
        args: the command line.
        command: a dataclass instance of everything that has a flag, with the defaults in force.

    Returns:
        The flags, and separately the fields that take pairs: given pairs are added to those in
        force, and a flag without pairs drops these.

    Raises:
        ValueError: about the first flag that is unknown, or whose value does not fit.
    """
    hints = flat_hints(type(command))
    pairs = {key: get(command, key) for key in pair_flags(type(command))}
    checked: list[str] = []
    overrides: dict[str, Any] = {}
    position = 0
    while position < len(args):
        word, equals, inline = args[position].partition("=")
        position += 1
        key, negated = _key(word, hints)
        values = [inline] if equals else []
        while position < len(args) and not args[position].startswith("--"):
            values.append(args[position])
            position += 1
        value = _check_flag(key, values, hints[key])
        if key in pairs:
            value = pairs[key] = {**pairs[key], **value} if value else {}
        else:
            checked += [word, *_words(value)]
        if key in flatten(Config()):
            overrides[key] = False if negated else value
    if isinstance(command, Config):
        fields = {f.name: getattr(command, f.name) for f in dataclasses.fields(Config)}
        data = dataclasses.asdict(Config(**fields))
        from_dict(apply_overrides(data, overrides), "command line")
    return checked, pairs


def _key(word: str, hints: dict[str, Any]) -> tuple[str, bool]:
    """The dotted name of a flag's field, and True for the no_ form of a boolean."""
    if not word.startswith("--"):
        named = next((name for name in ("run", "config") if name in hints), "seed")
        raise ValueError(f"{word!r} is no flag; did you mean --{named} {word}?")
    key = word[2:].replace("-", "_")
    section, dot, leaf = key.rpartition(".")
    positive = section + dot + leaf.removeprefix("no_")
    if leaf.startswith("no_") and hints.get(positive) is bool:
        return positive, True
    if key in hints:
        return key, False
    if ours := answer(key, hints, "--") or answer(positive, hints, "--"):
        raise ValueError(f"{word} {ours}")
    if any(name.startswith(f"{key}.") for name in hints):
        raise ValueError(f"{word} is a section of fields: --help {key} lists them")
    same = (name for name in hints if name.rpartition(".")[2] == key)
    close = nearest(key, hints) or next(same, None)
    everything = "--help all" if "config" in hints else "--help"
    hint = f"did you mean --{close}?" if close else f"{everything} lists them"
    raise ValueError(f"{word}: unknown flag; {hint}")


def _words(value: Any) -> list[str]:
    """A checked value as words of a command line."""
    if value is True:
        return []
    return [str(part) for part in value] if isinstance(value, tuple) else [str(value)]


def _check_flag(key: str, words: list[str], hint: Any) -> Any:
    """Converts the words after a flag to its field's type; ValueError if they do not fit."""
    kind = typing.get_origin(hint)
    if hint is bool:
        if words:
            section, dot, name = key.rpartition(".")
            off = f"; --{section}.no_{name} switches it off" if dot else ""
            raise ValueError(f"--{key} takes no value, but {words[0]!r} follows it{off}")
        return True
    if kind is dict:
        if len(words) % 2:
            raise ValueError(f"--{key} needs pairs of names and values; {words[-1]!r} has no pair")
        read = _text if typing.get_args(hint)[1] is str else _scalar
        given = {name: read(value) for name, value in zip(words[::2], words[1::2], strict=True)}
        return convert(given, hint, f"--{key}")
    if kind is tuple:
        read = _text if typing.get_args(hint)[0] is str else _scalar
        return convert([read(word) for word in words], hint, f"--{key}")
    if not words:
        raise ValueError(f"--{key} needs a value")
    if len(words) > 1:
        raise ValueError(f"--{key} takes one value, but {words[1]!r} follows it")
    text = hint is str or kind in (Literal, types.UnionType, typing.Union)
    return convert(words[0] if text else _scalar(words[0]), hint, f"--{key}")


def _scalar(word: str) -> Any:
    """Reads a word as YAML does: a number, true or false, a quoted text, otherwise the word."""
    try:
        node, value = yaml.compose(word, Loader), yaml.load(word, Loader)
    except (yaml.YAMLError, ValueError):
        return word
    if not isinstance(node, yaml.ScalarNode):
        return word
    is_plain = node.value == word.strip() and not isinstance(value, str)
    return value if is_plain or node.style in ("'", '"') else word


def _text(word: str) -> str:
    """Reads a word of a field that holds texts: a quoted text, otherwise the word."""
    value = _scalar(word)
    return value if isinstance(value, str) else word


def flat_hints(cls: type, prefix: str = "") -> dict[str, Any]:
    """The type of every field by dotted name."""
    flat = {}
    for key, hint in typing.get_type_hints(cls).items():
        nested = dataclasses.is_dataclass(hint)
        flat.update(flat_hints(hint, f"{prefix}{key}.") if nested else {f"{prefix}{key}": hint})
    return flat
