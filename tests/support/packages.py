"""Packages that a file of tests needs."""

import importlib.util

import pytest


def needs(name):
    """Skips a file where a package is not installed, and imports nothing: some take seconds."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}", allow_module_level=True)
