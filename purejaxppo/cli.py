"""Command lines: tyro reads them and writes their help; what it refuses is said in one sentence."""

import contextlib
import dataclasses
import difflib
import io
import typing
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import tyro
import yaml

from purejaxppo.config import Config
from purejaxppo.configio import Loader, apply_overrides, convert, flatten, from_dict

C = TypeVar("C")


def parse(default: C, args: Sequence[str], *, prog: str, description: str) -> C:
    """A command line over the defaults of a frozen dataclass.

    Raises:
        ValueError: one sentence about the first flag that is wrong.
        SystemExit: --help.
    """
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            return tyro.cli(
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
        explain_flags(args, default)
        raise ValueError(" ".join(complaints.getvalue().split())) from stop


def explain_flags(args: Sequence[str], command: Any) -> None:
    """Says in one sentence what is wrong with command-line flags that could not be parsed.

    Args:
        args: the command line.
        command: a dataclass instance of everything that has a flag, with the defaults in force.

    Raises:
        ValueError: about the first flag that is unknown, or whose value does not fit.
    """
    known, hints = flatten(command), flat_hints(type(command))
    overrides: dict[str, Any] = {}
    position = 0
    while position < len(args):
        word, equals, inline = args[position].partition("=")
        position += 1
        if not word.startswith("--"):
            raise ValueError(f"{word!r}: expected a flag such as --seed 1")
        key = word[2:].replace("-", "_")
        section, dot, leaf = key.rpartition(".")
        negated = leaf.startswith("no_") and hints.get(section + dot + leaf[3:]) is bool
        key = section + dot + leaf[3:] if negated else key
        if key not in known:
            close = difflib.get_close_matches(key, known, 1) or [
                name for name in known if name.rpartition(".")[2] == key
            ]
            hint = f"did you mean --{close[0]}?" if close else "--help lists them"
            raise ValueError(f"{word}: unknown flag; {hint}")
        values = [inline] if equals else []
        while position < len(args) and not args[position].startswith("--"):
            values.append(args[position])
            position += 1
        value = _check_flag(key, values, hints[key])
        if key in flatten(Config()):
            overrides[key] = False if negated else value
    if isinstance(command, Config):
        fields = {f.name: getattr(command, f.name) for f in dataclasses.fields(Config)}
        data = dataclasses.asdict(Config(**fields))
        from_dict(apply_overrides(data, overrides), "command line")


def _check_flag(key: str, words: list[str], hint: Any) -> Any:
    """The value that the words after a flag mean; ValueError if they do not fit its type."""
    kind = typing.get_origin(hint)
    if hint is bool:
        if words:
            raise ValueError(f"--{key} takes no value, but {words[0]!r} follows it")
        return True
    if kind is dict:
        if len(words) % 2:
            raise ValueError(f"--{key} needs pairs of names and values; {words[-1]!r} has no pair")
        return {name: _scalar(value) for name, value in zip(words[::2], words[1::2], strict=True)}
    if kind is tuple:
        return convert([_scalar(word) for word in words], hint, f"--{key}")
    if not words:
        raise ValueError(f"--{key} needs a value")
    if len(words) > 1:
        raise ValueError(f"--{key} takes one value, but {words[1]!r} follows it")
    text = hint is str or kind is Literal
    return convert(words[0] if text else _scalar(words[0]), hint, f"--{key}")


def _scalar(word: str) -> Any:
    try:
        return yaml.load(word, Loader)
    except yaml.YAMLError:
        return word


def flat_hints(cls: type, prefix: str = "") -> dict[str, Any]:
    """The type of every field by dotted name."""
    flat = {}
    for key, hint in typing.get_type_hints(cls).items():
        nested = dataclasses.is_dataclass(hint)
        flat.update(flat_hints(hint, f"{prefix}{key}.") if nested else {f"{prefix}{key}": hint})
    return flat
