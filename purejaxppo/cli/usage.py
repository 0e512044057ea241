"""The --help text of commands with flags. This module does not import JAX."""

import ast
import inspect
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from purejaxppo.cli.parser import command_flags
from purejaxppo.config.checks import settings
from purejaxppo.config.files import flatten, load_config
from purejaxppo.config.hints import did_you_mean, show
from purejaxppo.config.schema import HINTS, Config, flat_hints

RUN = "run"
"""The help topic of the fields outside of sections."""
KINDS = {int: "INT", float: "FLOAT", str: "TEXT"}


def help_text(name: str, flags: type, words: Sequence[str]) -> str | None:
    """Return the help text that the arguments request; None without --help.

    Args:
        name: name of the command.
        flags: a dataclass of the command's flags. If it has `config`, config fields are flags, too.
        words: the command-line arguments.

    Raises:
        ValueError: the section or config does not exist.
    """
    words = ["--help" if word == "-h" else word for word in words]
    topic = topic_of(words)
    if topic is None:
        return None
    if "config" not in flat_hints(flags):
        return "\n".join([*overview(name, flags), *flag_lines(flags)])
    source: str = command_flags(flags, words).config
    config, file = load_config(source) if source else Config(), Path(source).name
    if topic in (RUN, *sections()):
        return "\n".join(section(topic, config, file)).strip("\n")
    lines = [*overview(name, flags), *flag_lines(flags, brief=topic == "")]
    if topic == "all":
        return "\n".join(
            [*lines, *(line for part in (RUN, *sections()) for line in section(part, config, file))]
        )
    top = ", ".join(f"--{field}" for field in HINTS if "." not in field)
    docs = {part: first_sentence(inspect.getdoc(cls) or "") for part, cls in sections().items()}
    lines += [
        "",
        "config fields (--help SECTION describes those of a section, --help all describes all):",
    ]
    for part, text in {RUN: top, **docs}.items():
        lines += wrapped(text, f"  {part:12}", " " * 14)
    return "\n".join(lines)


def topic_of(words: Sequence[str]) -> str | None:
    """Return the topic after --help: '' for an overview, None without --help.

    Raises:
        ValueError: the topic is unknown.
    """
    for position, word in enumerate(words):
        flag, equals, topic = word.partition("=")
        if flag != "--help":
            continue
        if not equals and position + 1 < len(words) and not words[position + 1].startswith("-"):
            topic = words[position + 1]
        topic = topic.lstrip("-").partition(".")[0]  # ppo of ppo.gamma
        known = [*sections(), RUN, "all"]
        if topic and topic not in known:
            topics = f"Sections: {', '.join(known)}."
            raise ValueError(
                f"--help {topic}: unknown section. {did_you_mean(topic, known, topics)}"
            )
        return topic
    return None


def sections() -> dict[str, type]:
    """Return the sections of a config by name."""
    names = dict.fromkeys(name.partition(".")[0] for name in HINTS if "." in name)
    return {name: type(getattr(Config(), name)) for name in names}


def overview(name: str, flags: type) -> Iterator[str]:
    """Yield the lines of usage, description and examples."""
    fields = flat_hints(flags)
    first = "[--config FILE] [--FIELD VALUE ...]" if "config" in fields else "--run FOLDER [...]"
    yield f"usage: purejaxppo {name} {first}"
    for paragraph in (inspect.getdoc(flags) or "").split("\n\n"):
        indented = "\n  " in paragraph
        yield from ["", *(paragraph.splitlines() if indented else wrapped(paragraph))]
    yield from ["", "flags:"]


def flag_lines(flags: type, *, brief: bool = False) -> Iterator[str]:
    """Yield the help lines of a command's flags; with `brief`, the first sentence of each text."""
    docs, command = field_docs(flags), flags()
    for name, hint in flat_hints(flags).items():
        text = first_sentence(docs[name]) if brief else docs[name]
        yield from entry(name, hint, f"default {show(getattr(command, name))}", text)


def section(topic: str, config: Config, source: str) -> Iterator[str]:
    """Yield the help lines of a section: flag, type, default and description of each field.

    Args:
        topic: the section, or `RUN` for the fields outside of sections.
        config: the config of --config, or the defaults.
        source: the file name of that config; empty for the defaults.
    """
    cls = sections().get(topic, Config)
    docs, values, defaults = field_docs(cls), flatten(config), flatten(Config())
    yield from ["", f"{topic}: {inspect.getdoc(cls)}"]
    for key, metadata, _ in settings(config):
        part, _, name = key.rpartition(".")
        if (part or RUN) != topic:
            continue
        shown = f"default {show(defaults[key])}"
        if values[key] != defaults[key]:
            shown += f"; {source} has {show(values[key])}"
        needs = f" Requires {metadata['needs']}." if metadata.get("needs") else ""
        yield from entry(key, HINTS[key], shown, docs[name] + needs)


def entry(name: str, hint: Any, default: str, text: str) -> list[str]:
    """Return the help lines of one flag."""
    return [f"  --{name} {kind(hint, name)}  ({default})", *wrapped(text, " " * 6)]


def kind(hint: Any, key: str) -> str:
    """Describe the values that a flag takes."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "|".join(map(str, args))
    if origin in (typing.Union, types.UnionType):
        return "|".join(kind(arg, key) for arg in args)
    if origin is tuple:
        return f"{kind(args[0], key)} ..."
    if origin is dict:
        return "NAME VALUE ..."
    if hint is bool:
        section, dot, name = key.rpartition(".")
        return f"| --{section}{dot}no_{name}"
    return KINDS[hint]


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, in one line."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, doc in zip(node.body, node.body[1:], strict=False):
        match field, doc:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = " ".join(text.split())
    return docs


def first_sentence(text: str) -> str:
    """Return the first sentence of a description."""
    return re.split(r"\. (?!\d)", " ".join(text.split()))[0].rstrip(".") + "."


def wrapped(text: str, first: str = "", others: str | None = None) -> list[str]:
    """Wrap a string to the width of the terminal, with indents of the first and other lines."""
    width = min(shutil.get_terminal_size().columns, 100)
    indent = first if others is None else others
    return textwrap.wrap(
        " ".join(text.split()), width, initial_indent=first, subsequent_indent=indent
    )
