"""Write docs/config.md: the config fields, and the options of each family of environments.

Fields and their docstrings are in purejaxppo/config/schema.py, options in `FAMILY` of each adapter.

With --check, write nothing and fail if the file is not up to date.
"""

import inspect
import sys
import typing
from pathlib import Path
from typing import Any, Literal

import pages

from purejaxppo.cli.usage import RUN, field_docs, sections
from purejaxppo.config.checks import settings
from purejaxppo.config.schema import HINTS, Config, OptionValue
from purejaxppo.envs import families
from purejaxppo.envs.options import Option

TARGET = Path(__file__).resolve().parent / "config.md"
HEAD = """# Config reference

All config fields. In YAML, sections are nested mappings. On the command line, each field is a flag:
`--ppo.learning_rate 1e-3`, `--ppo.learning_rate=1e-3` and `--ppo.learning-rate 1e-3` are the same.
Use `=` for a value that starts with `--`. Other forms:

| type | flags |
| --- | --- |
| `bool` | `--env.stagger`, `--env.no_stagger`, `--env.stagger false` |
| `tuple[...]` | `--network.hidden 128 64`, `--network.hidden=[128,64]` |
| `dict[...]` | `--env.options length 3 other x`, `--env.options.length 3` |

Entries of a mapping are added to those of the config file; `--env.options` without a value removes
those. When a run resumes, you can change fields marked * or +, and options in `env.options` that
affect only speed. Changing any other field is an error. Fields marked * can also be vmapped over.
"Requires" lists the settings that give a field an effect. A run that changes a field without them
prints a warning at its start.
"""

OPTIONS_HEAD = """## Options of environments

The entries of `env.options` for each family. An option without a default keeps the simulator's
value. `purejaxppo list envs FAMILY` also prints them.
"""


def kind_text(hint: Any) -> str:
    """Return a type, or the choices of a Literal, as Markdown."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in args)
    if origin is tuple and typing.get_origin(args[0]) is Literal:
        return f"list of {kind_text(args[0])}"
    if args and typing.get_origin(args[0]) is Literal:
        return f"{kind_text(args[0])}, or [custom code](own_code.md)"
    if origin is dict and typing.get_origin(args[1]) is Literal:
        return f"dict of {kind_text(args[1])}"
    if origin is dict:
        item = "Any" if args[1] == OptionValue else getattr(args[1], "__name__", "Scalar")
        return f"`dict[str, {args[1] if typing.get_origin(args[1]) is tuple else item}]`"
    return f"`{hint if args else hint.__name__}`"


def limits_text(metadata: dict[str, Any]) -> str:
    """Return the range of a `setting` as Markdown, such as ", 1 to 2^16"."""
    low, above, high = (metadata.get(name) for name in ("low", "above", "high"))
    if low is not None and high is not None:
        return f", {power(low)} to {power(high)}"
    if low is not None:
        return f", from {low}"
    return "" if above is None else f", greater than {above}"


def power(number: float) -> str:
    """Return a number; above 2^12, powers of two as 2^n, and those minus one as 2^n - 1."""
    size = abs(int(number)).bit_length()
    if size > 12 and abs(number) == 2 ** (size - 1):
        return f"{'-' * (number < 0)}2^{size - 1}"
    return f"2^{size} - 1" if size > 12 and number == 2**size - 1 else str(number)


def default_text(value: Any) -> str:
    """Return a default value as in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value) or '""'


def table(section: str, cls: type) -> str:
    """Return a Markdown table of the fields of a section, or of the top-level fields."""
    rows = ["| field | type | default | description |", "| --- | --- | --- | --- |"]
    docs = field_docs(cls)
    for name, metadata, default in settings(Config()):
        part, _, leaf = name.rpartition(".")
        if (part or RUN) != section:
            continue
        text = docs[leaf].replace("|", "\\|").replace("<", "&lt;")
        needs = f" Requires `{metadata['needs']}`." if metadata.get("needs") else ""
        mark = " *" if metadata.get("tunable") else " +" if metadata["free"] else ""
        kind = kind_text(HINTS[name]) + limits_text(metadata)
        rows.append(f"| `{name}`{mark} | {kind} | `{default_text(default)}` | {text}{needs} |")
    return "\n".join(rows)


def options() -> str:
    """Return the options of all families as Markdown."""
    parts = [OPTIONS_HEAD]
    for family_name in families.ADAPTERS:
        family = families.load(family_name)
        if not (family.options or family.more_options):
            continue
        rows = [f"### {family_name}/\n"]
        if family.options:
            rows += ["| option | type | default | description |", "| --- | --- | --- | --- |"]
            rows += [option_row(name, option) for name, option in family.options.items()]
        if family.more_options:
            others = "Other options: " if family.options else "Options: "
            rows.append(f"\n{others}{family.more_options}.".lstrip("\n" * (not family.options)))
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def option_row(name: str, option: Option) -> str:
    """Return a table row of an option."""
    kind = option.kind or type(option.default)
    if option.choices:
        text = ", ".join(f"`{choice}`" for choice in option.choices)
    else:
        limits = {"low": option.low, "above": option.above, "high": option.high}
        text = ("" if kind is type(None) else f"`{kind.__name__}`") + limits_text(limits)
    default = "" if option.default is None else f"`{default_text(option.default)}`"
    return f"| `{name}` | {text} | {default} | {option.help.replace('|', chr(92) + '|')} |"


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for section, cls in {RUN: Config, **sections()}.items():
        title = "Top level" if section == RUN else section
        parts.append(f"## {title}\n\n{inspect.getdoc(cls)}\n\n{table(section, cls)}\n")
    parts.append(options())
    return "\n".join(parts)


def main() -> int:
    """Write or check the page, and return the exit code."""
    return pages.run(__doc__, TARGET, lambda old: render())


if __name__ == "__main__":
    sys.exit(main())
