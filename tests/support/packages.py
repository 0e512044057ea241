"""Packages that test files need."""

import importlib.util

import pytest


def skip_without(name):
    """Skip a file if a package is not installed, without importing it, since some need seconds."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}", allow_module_level=True)
