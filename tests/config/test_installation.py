"""The command that a message about a missing package names."""

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from purejaxppo.config import installation

pytestmark = pytest.mark.toy


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Pretend that a virtual environment in the folder `.venv` runs, and return the folder."""
    scripts = tmp_path / ".venv" / "bin"
    scripts.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(scripts.parent))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    return scripts.parent


@pytest.fixture
def editable(tmp_path, monkeypatch):
    """Return a function that pretends that purejaxppo is an editable installation of a folder."""

    def record(folder):
        info = tmp_path / "site" / "purejaxppo-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Name: purejaxppo\nVersion: 0\n")
        url = {"url": Path(folder).as_uri(), "dir_info": {"editable": folder is not None}}
        (info / "direct_url.json").write_text(json.dumps(url))
        monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(info))

    return record


def test_an_active_environment_needs_only_pip(environment, monkeypatch):
    (environment / "bin" / "pip").touch()
    monkeypatch.setenv("VIRTUAL_ENV", str(environment))
    assert installation.install("wandb") == "pip install 'wandb'"


def test_an_environment_that_is_not_active_needs_the_path_of_its_pip(
    environment, tmp_path, monkeypatch
):
    (environment / "bin" / "pip").touch()
    assert installation.install("wandb") == ".venv/bin/pip install 'wandb'"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert installation.install("wandb") == f"{environment}/bin/pip install 'wandb'"


def test_an_environment_without_pip_uses_uv(environment, monkeypatch):
    command = f"VIRTUAL_ENV={environment} uv pip install 'wandb'"
    assert installation.install("wandb") == command
    monkeypatch.setenv("VIRTUAL_ENV", str(environment))
    assert installation.install("wandb") == "uv pip install 'wandb'"


def test_an_extra_of_a_checkout_is_installed_from_its_folder(environment, editable, tmp_path):
    (environment / "bin" / "pip").touch()
    editable(tmp_path)
    assert installation.install_extra("jumanji") == ".venv/bin/pip install -e '.[jumanji]'"


def test_a_checkout_elsewhere_is_named_by_its_path(environment, editable, tmp_path):
    (environment / "bin" / "pip").touch()
    editable(tmp_path / "clone of it")
    command = f".venv/bin/pip install -e '{tmp_path}/clone of it[jumanji]'"
    assert installation.install_extra("jumanji") == command


def test_an_extra_of_a_release_is_installed_by_name(environment, monkeypatch):
    def not_found(name):
        raise metadata.PackageNotFoundError(name)

    (environment / "bin" / "pip").touch()
    monkeypatch.setattr(metadata, "distribution", not_found)
    command = ".venv/bin/pip install 'purejaxppo[jumanji]'"
    assert installation.install_extra("jumanji") == command


def test_a_missing_package_is_reported_with_its_extra(monkeypatch):
    installation.require("numpy", extra="export")
    with pytest.raises(ValueError) as error:
        installation.require("no-such-package", "export", "no_such_module")
    command = installation.install_extra("export")
    assert str(error.value) == f"no-such-package is not installed. Run: {command}"
