"""The config reference follows the docstrings in purejaxppo/config/schema.py."""

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from purejaxppo.config.schema import TUNABLE, Config

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [ROOT / "docs" / name for name in ("make_config_reference.py", "make_walk.py")]

pytestmark = pytest.mark.toy


def fields(config, prefix=""):
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{field.name}.")
        else:
            yield prefix + field.name


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_follows_from_the_source_is_up_to_date(path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr("sys.argv", [str(path), "--check"])
    assert script.main() == 0, capsys.readouterr().err


def test_every_field_is_described():
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8").splitlines()

    def about(name):
        mark = " *" if name in TUNABLE else ""
        (row,) = [line for line in page if line.startswith(f"| `{name}`{mark} |")]
        return row.split(" | ")[-1].strip(" |")

    names = list(fields(Config()))
    assert len(names) > 50
    assert [name for name in names if len(about(name)) <= len("short")] == []
