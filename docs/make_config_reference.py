"""Writes docs/config.md from the docstrings of the fields in purejaxppo/config/schema.py.

With --check it writes nothing, and fails if the file is not up to date. The source is parsed and
not imported, so that this needs no installed package.
"""

import ast
import inspect
import sys
from pathlib import Path
from typing import NamedTuple

import pages

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "purejaxppo" / "config" / "schema.py"
TARGET = ROOT / "docs" / "config.md"
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


class Field(NamedTuple):
    """One field of a dataclass, as source text."""

    name: str
    kind: str
    default: str
    about: str
    tunable: bool
    limits: str
    needs: str


def read_classes(source: str) -> dict[str, tuple[str, list[Field]]]:
    """Docstring and fields of every class, by name."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = (ast.get_docstring(node) or "", read_fields(node))
    return found


def read_fields(node: ast.ClassDef) -> list[Field]:
    """The annotated fields of a class with the string under each."""
    fields = []
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        about = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            about = " ".join(inspect.cleandoc(str(after.value.value)).split())
        default = default_text(statement.value)
        name = statement.target.id
        tunable = is_tunable(statement.value)
        limits = limits_text(statement.value)
        needs = needs_text(statement.value)
        kind = ast.unparse(statement.annotation)
        fields.append(Field(name, kind, default, about, tunable, limits, needs))
    return fields


def is_tunable(value: ast.expr | None) -> bool:
    """Whether a field is a `setting(..., tunable=True)`."""
    return isinstance(value, ast.Call) and any(x.arg == "tunable" for x in value.keywords)


def needs_text(value: ast.expr | None) -> str:
    """Return a sentence on the settings without which a `setting` has no effect, or ''."""
    keywords = value.keywords if isinstance(value, ast.Call) else []
    return "".join(f" Needs `{ast.literal_eval(x.value)}`." for x in keywords if x.arg == "needs")


def limits_text(value: ast.expr | None) -> str:
    """The range of a `setting` as Markdown, such as ", 1 to 2^16"."""
    keywords = value.keywords if isinstance(value, ast.Call) else []
    limits = {x.arg: ast.unparse(x.value).replace(" ** ", "^") for x in keywords}
    low, above, high = (limits.get(name) for name in ("low", "above", "high"))
    if low and high:
        return f", {low} to {high}"
    parts = [f"from {low}"] * bool(low) + [f"above {above}"] * bool(above)
    return "".join(f", {part}" for part in parts)


def default_text(value: ast.expr | None) -> str:
    """A default as YAML would have it."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "setting":
        value = value.args[0]
    match value:
        case ast.Call(keywords=[ast.keyword(arg="default_factory", value=ast.Name(id="dict"))]):
            return "{}"
        case ast.Call():
            return ""
        case ast.Tuple(elts=elements):
            return f"[{', '.join(ast.unparse(x) for x in elements)}]"
        case ast.Constant(value=bool(flag)):
            return str(flag).lower()
        case ast.Constant(value=str(text)):
            return text or '""'
        case None:
            return ""
    return ast.unparse(value)


def kind_text(annotation: str) -> str:
    """A type, or the choices that a Literal gives, as Markdown."""
    kind, own, _ = annotation.partition(" | Own")
    if kind.startswith("Literal["):
        choices = ast.literal_eval(kind.removeprefix("Literal"))
        named = ", ".join(f"`{choice}`" for choice in choices)
        return named + ", [your own](own_code.md)" * bool(own)
    return f"`{annotation.replace('Own', 'str')}`"


def table(fields: list[Field], section: str) -> str:
    """One Markdown table."""
    rows = ["| field | kind | default | what it is |", "| --- | --- | --- | --- |"]
    for field in fields:
        dotted = f"{section}.{field.name}" if section else field.name
        kind = kind_text(field.kind) + field.limits
        about = field.about.replace("|", "\\|").replace("<", "&lt;")
        star = " *" if field.tunable else ""
        default = f"`{field.default}`" if field.default else ""
        rows.append(f"| `{dotted}`{star} | {kind} | {default} | {about}{field.needs} |")
    return "\n".join(rows)


def render(source: str) -> str:
    """The whole page."""
    classes = read_classes(source)
    about, fields = classes["Config"]
    sections = [field for field in fields if field.kind in classes]
    plain = [field for field in fields if field.kind not in classes]
    parts = [HEAD, f"## Top level\n\n{about}\n\n{table(plain, '')}\n"]
    for section in sections:
        about, fields = classes[section.kind]
        parts.append(f"## {section.name}\n\n{about}\n\n{table(fields, section.name)}\n")
    return "\n".join(parts)


def main() -> int:
    """Writes or checks the page; returns the exit code."""
    return pages.run(__doc__, TARGET, lambda old: render(SOURCE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main())
