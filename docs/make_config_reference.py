"""Writes docs/config.md: the fields of a config, and the options of environments by family.

Fields and their docstrings are in purejaxppo/config/schema.py, options in `FAMILY` of each adapter.

With --check it writes nothing, and fails if the file is not up to date.
"""

import inspect
import sys
import typing
from pathlib import Path
from typing import Any, Literal

import pages

from purejaxppo.cli.usage import RUN, field_docs, sections
from purejaxppo.config.checks import settings
from purejaxppo.config.schema import HINTS, Config
from purejaxppo.envs import families
from purejaxppo.envs.options import Option

TARGET = Path(__file__).resolve().parent / "config.md"
HEAD = """# Config reference

Every field of a config, generated from `purejaxppo/config/schema.py` by
`docs/make_config_reference.py`. In YAML, sections are nested mappings. On the command line a field
is a flag with the same values: `--ppo.learning_rate 1e-3`, `--ppo.learning_rate=1e-3` and
`--ppo.learning-rate 1e-3` are the same. Everything after `=` is the value, also a word that begins
with `--`. Other forms:

| kind | flags |
| --- | --- |
| `bool` | `--env.stagger`, `--env.no_stagger`, `--env.stagger false` |
| `tuple[...]` | `--network.hidden 128 64`, `--network.hidden=[128,64]` |
| `dict[...]` | `--env.options length 3 other x`, `--env.options.length 3` |

Entries of a mapping are added to those of the config; `--env.options` alone drops these. Fields
marked * are numbers that may change when a run resumes, and over which one can `vmap`. "Needs"
lists the settings without which a field has no effect: a run that changes such a field prints a
line at its start.
"""

OPTIONS_HEAD = """## Options of environments

The entries of `env.options` by family, as each family's adapter declares them. An option without a
default keeps the simulator's value. `purejaxppo list envs FAMILY` also prints them.
"""


def kind_text(hint: Any) -> str:
    """A type, or the choices that a Literal gives, as Markdown."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in args)
    if args and typing.get_origin(args[0]) is Literal:
        return f"{kind_text(args[0])}, [your own](own_code.md)"
    if origin is dict:
        return f"`dict[str, {getattr(args[1], '__name__', 'Scalar')}]`"
    return f"`{hint if args else hint.__name__}`"


def limits_text(about: dict[str, Any]) -> str:
    """The range of a `setting` as Markdown, such as ", 1 to 2^16"."""
    low, above, high = (about.get(name) for name in ("low", "above", "high"))
    if low is not None and high is not None:
        return f", {power(low)} to {power(high)}"
    parts = [f", from {low}"] * (low is not None) + [f", above {above}"] * (above is not None)
    return "".join(parts)


def power(number: float) -> str:
    """A number, from 2^12 on as a power of two if it is one, or one less than one."""
    size = abs(int(number)).bit_length()
    if size > 12 and abs(number) == 2 ** (size - 1):
        return f"{'-' * (number < 0)}2^{size - 1}"
    return f"2^{size} - 1" if size > 12 and number == 2**size - 1 else str(number)


def default_text(value: Any) -> str:
    """A default as YAML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value) or '""'


def table(section: str, cls: type) -> str:
    """One Markdown table of the fields of a section, or of those in no section."""
    rows = ["| field | kind | default | what it is |", "| --- | --- | --- | --- |"]
    docs = field_docs(cls)
    for name, about, default in settings(Config()):
        part, _, leaf = name.rpartition(".")
        if (part or RUN) != section:
            continue
        text = docs[leaf].replace("|", "\\|").replace("<", "&lt;")
        needs = f" Needs `{about['needs']}`." if about.get("needs") else ""
        star = " *" if about.get("tunable") else ""
        kind = kind_text(HINTS[name]) + limits_text(about)
        rows.append(f"| `{name}`{star} | {kind} | `{default_text(default)}` | {text}{needs} |")
    return "\n".join(rows)


def options() -> str:
    """The options of all families as Markdown."""
    parts = [OPTIONS_HEAD]
    for name in families.ADAPTERS:
        family = families.load(name)
        if not (family.options or family.more_options):
            continue
        rows = [f"### {name}/\n"]
        if family.options:
            rows += ["| option | kind | default | what it is |", "| --- | --- | --- | --- |"]
            rows += [option_row(option, one) for option, one in family.options.items()]
        if family.more_options:
            others = "Other options: " if family.options else "Options: "
            rows.append(f"\n{others}{family.more_options}.".lstrip("\n" * (not family.options)))
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def option_row(name: str, option: Option) -> str:
    """One row of the table of a family's options."""
    kind = option.kind or type(option.default)
    if option.choices:
        text = ", ".join(f"`{choice}`" for choice in option.choices)
    else:
        limits = {"low": option.low, "above": option.above, "high": option.high}
        text = ("" if kind is type(None) else f"`{kind.__name__}`") + limits_text(limits)
    default = "" if option.default is None else f"`{default_text(option.default)}`"
    return f"| `{name}` | {text} | {default} | {option.help.replace('|', chr(92) + '|')} |"


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for section, cls in {RUN: Config, **sections()}.items():
        title = "Top level" if section == RUN else section
        parts.append(f"## {title}\n\n{inspect.getdoc(cls)}\n\n{table(section, cls)}\n")
    parts.append(options())
    return "\n".join(parts)


def main() -> int:
    """Writes or checks the page; returns the exit code."""
    return pages.run(__doc__, TARGET, lambda old: render())


if __name__ == "__main__":
    sys.exit(main())
