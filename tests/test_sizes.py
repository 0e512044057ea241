"""Files and functions of the package are short, except those named here."""

import ast

import pytest
from support.paths import ROOT

pytestmark = pytest.mark.toy

MOST_IN_FILE, MOST_IN_FUNCTION = 350, 49
SOURCES = {
    path.relative_to(ROOT / "purejaxppo").as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "purejaxppo").rglob("*.py"))
}
LONG_FILES = {
    "config/schema.py": "one table: every field with its range and its documentation",
    "export/player.py": "one file by design, to be copied to a robot",
    "export/rewrite.py": "one table: a rewrite for each operation of JAX",
}
LONG_FUNCTIONS = {
    "agents/advantages.py gae": "mostly documentation: equations, shapes, sources",
    "pure_training.py make_train": "mostly documentation: the interface to training as a function",
}


def long_files(sources):
    return [name for name, text in sources.items() if len(text.splitlines()) > MOST_IN_FILE]


def long_functions(sources):
    """From `def` to the last line, docstring included and decorators not."""
    return [
        f"{name} {node.name}"
        for name, text in sources.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > MOST_IN_FUNCTION
    ]


def test_lengths_are_measured_in_lines():
    sources = {
        "a": "x = 1\n" * 350,
        "b": "x = 1\n" * 351,
        "c": "def of_49():\n" + "    x = 1\n" * 48,
        "d": "class C:\n    @staticmethod\n    def of_50():\n" + "        x = 1\n" * 49,
    }
    assert long_files(sources) == ["b"]
    assert long_functions(sources) == ["d of_50"]


def test_files_have_at_most_350_lines_and_functions_fewer_than_50():
    assert len(SOURCES) > 100
    assert long_files(SOURCES) == sorted(LONG_FILES)
    assert sorted(long_functions(SOURCES)) == sorted(LONG_FUNCTIONS)
