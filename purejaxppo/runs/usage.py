"""The help of commands over a config: an overview, one section of fields, or everything."""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from purejaxppo.config.checks import settings
from purejaxppo.config.files import flatten
from purejaxppo.config.hints import did_you_mean, show
from purejaxppo.config.schema import Config

RUN = "run"
"""The topic of the fields that are in no section."""
KINDS = {int: "INT", float: "FLOAT", str: "TEXT"}


def topic_of(args: Sequence[str]) -> str | None:
    """The topic that a command line asks help about: '' for an overview, None without --help.

    Raises:
        ValueError: there is no such topic; names the nearest.
    """
    for position, word in enumerate(args):
        flag, equals, topic = word.partition("=")
        if flag not in ("-h", "--help"):
            continue
        if not equals and position + 1 < len(args) and not args[position + 1].startswith("-"):
            topic = args[position + 1]
        topic = topic.lstrip("-").partition(".")[0]  # ppo of ppo.gamma
        known = [*sections(), RUN, "all"]
        if topic and topic not in known:
            others = f"there are {', '.join(known)}"
            raise ValueError(
                f"--help {topic}: no such section; {did_you_mean(topic, known, others)}"
            )
        return topic
    return None


def sections() -> dict[str, type]:
    """The sections of a config by name."""
    hints = typing.get_type_hints(Config)
    return {
        name: hint
        for name, hint in hints.items()
        if isinstance(hint, type) and dataclasses.is_dataclass(hint)
    }


def print_overview(command: Any, prog: str, description: str, examples: Sequence[str]) -> None:
    """Prints usage, examples, the command's own flags, and a line for each section.

    Args:
        command: an instance of a dataclass of a config's fields and the command's own.
        prog: words that start the command.
        description: of the command.
        examples: whole command lines.
    """
    console = Console(highlight=False)
    console.print(f"usage: {prog} [--config FILE] [--FIELD VALUE ...]\n", markup=False)
    console.print(re.sub(r"(?<!\n)\n(?!\n)", " ", description), "\nexamples:", sep="\n")
    for example in examples:
        console.print(f"  {example}", markup=False, soft_wrap=True)
    console.print("\nflags:")
    config_fields = {f.name for f in dataclasses.fields(Config)}
    docs = field_docs(type(command))
    own = [f.name for f in dataclasses.fields(command) if f.name not in config_fields]
    console.print(_columns((f"--{name}", first_sentence(docs[name])) for name in own))
    console.print("\nconfig (--help SECTION lists the fields of a section, --help all everything):")
    top = [name for name in typing.get_type_hints(Config) if name not in sections()]
    rows = [(RUN, "--" + ", --".join(top))]
    rows += [(name, first_sentence(inspect.getdoc(cls) or "")) for name, cls in sections().items()]
    console.print(_columns(rows))


def print_section(topic: str, config: Config, source: str) -> None:
    """Prints every field of a section: its flag, type, own default and description.

    Args:
        topic: the section, or `RUN` for the fields that are in none.
        config: the values in force.
        source: the file that they come from, '' if from none.
    """
    console = Console(highlight=False)
    cls = sections().get(topic, Config)
    prefix = f"{topic}." if cls is not Config else ""
    hints, docs = typing.get_type_hints(cls), field_docs(cls)
    values, defaults = flatten(config), flatten(Config())
    needs = {key: about.get("needs") for key, about, _ in settings(config)}
    console.print(f"{topic}: {inspect.getdoc(cls)}", markup=False)
    for name in (name for name in hints if name not in sections() or prefix):
        key = f"{prefix}{name}"
        differs = values[key] != defaults[key]
        shown = f"default {show(defaults[key])}"
        shown += f"; {source} has {show(values[key])}" if differs else ""
        line = Text(f"\n--{key} {kind(hints[name], key)}", style="bold").append(
            f"  ({shown})", style="not bold"
        )
        console.print(line)
        about = f"{docs[name]} Needs {needs[key]}." if needs[key] else docs[name]
        console.print(Padding(Text(about), (0, 0, 0, 4), expand=False))


def kind(hint: Any, key: str) -> str:
    """The values that a flag takes, in a few words."""
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
    """The string under each field of a dataclass and of its bases, in one line."""
    found: dict[str, str] = {}
    for base in (base for base in reversed(cls.__mro__) if dataclasses.is_dataclass(base)):
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for field, doc in zip(node.body, node.body[1:], strict=False):
            match field, doc:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = " ".join(text.split())
    return found


def first_sentence(text: str) -> str:
    """The first sentence of a description, up to a semicolon."""
    return re.split(r"\. (?!\d)|;", " ".join(text.split()))[0].rstrip(".") + "."


def _columns(rows) -> Padding:
    """Two columns of words, of which the second is wrapped."""
    grid = Table.grid(padding=(0, 2))
    for left, right in rows:
        grid.add_row(Text(left), Text(right))
    return Padding(grid, (0, 0, 0, 2), expand=False)
