"""The config reference follows the docstrings in purejaxppo/config.py."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from purejaxppo.config import TUNABLE, Config

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "make_config_reference.py"


def fields(config, prefix=""):
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{field.name}.")
        else:
            yield prefix + field.name


def test_config_reference_is_up_to_date():
    check = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize("name", list(fields(Config())))
def test_every_field_is_described(name):
    mark = " *" if name in TUNABLE else ""
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}`{mark} |")]
    about = row.split(" | ")[-1].strip(" |")
    assert len(about) > len("short")
