"""Folders and example files of several test folders."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE_ENVS = ROOT / "tests/support/example_envs.py"
EXAMPLE_WORLDS = ROOT / "tests/support/example_worlds.py"
OWN_CODE = ROOT / "tests/support/own_code.py"
