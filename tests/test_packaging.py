"""The contents of the wheel, the lock file, and the Python that `make` chooses."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from packaging.requirements import Requirement
from support.paths import ROOT

import purejaxppo

CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_has_every_config_inside_the_package(installed):
    shipped = sorted(path.name for path in (installed / "purejaxppo" / "configs").glob("*.yaml"))
    assert shipped == CONFIGS
    assert not (installed / "configs").exists()


def test_the_wheel_has_every_module_and_data_file(installed):
    def files(folder):
        kinds = ("*.py", "config/*.yaml", "cli/templates/*.xml", "cli/templates/*.obj")
        return sorted(str(p.relative_to(folder)) for kind in kinds for p in folder.rglob(kind))

    assert files(installed / "purejaxppo") == files(ROOT / "purejaxppo")
    assert "config/names.yaml" in files(installed / "purejaxppo")


def test_configs_are_found_by_bare_name_from_the_wheel_in_any_folder(installed, tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "from purejaxppo.config import files\n"
        f"assert files.__file__.startswith({str(installed)!r}), files.__file__\n"
        f"print(*(files.find_config(name) for name in {CONFIGS!r}), sep='\\n')\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    folder = installed / "purejaxppo" / "configs"
    assert found.stdout.split("\n")[:-1] == [str(folder / name) for name in CONFIGS]


@pytest.mark.toy
def test_the_lock_file_has_exact_versions_without_urls():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert re.fullmatch(r"[a-z0-9.-]+==[0-9][\w.+-]*( ; .+)?", line), line


@pytest.mark.toy
def test_make_lock_includes_the_extras_that_tests_and_the_site_install():
    command = subprocess.run(
        ["make", "-n", "-f", ROOT / "Makefile", "lock"], capture_output=True, text=True, check=True
    ).stdout
    extras = set(re.findall(r"--extra (\S+)", command))
    assert {"brax", "envpool", "gymnax", "playground", "jumanji", "ray", "dev", "docs"} <= extras


@pytest.mark.toy
def test_the_lock_file_has_the_newest_working_jaxlib_of_each_python():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith(("jax==", "jaxlib=="))] == [
        "jax==0.10.2 ; python_full_version < '3.12'",
        "jax==0.11.1 ; python_full_version >= '3.12'",
        "jaxlib==0.10.2 ; python_full_version < '3.12'",
        "jaxlib==0.11.1 ; python_full_version >= '3.12'",
    ]


@pytest.mark.toy
def test_no_install_allows_the_jaxlib_that_crashes_on_several_cpu_devices():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["cuda"], *extras["cuda12"], *extras["cuda13"]]
    ranges = [Requirement(x).specifier for x in asked if x.startswith("jax")]
    assert len(ranges) == 5
    for versions in ranges:
        assert "0.11.1" in versions
        assert "0.11.2" not in versions


@pytest.mark.toy
def test_the_lock_file_has_a_gymnax_with_separate_terminated_and_truncated():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    (gymnax,) = [line for line in lines if line.startswith("gymnax==")]
    assert gymnax.startswith("gymnax==1.")


@pytest.mark.toy
def test_the_citation_and_the_changelog_have_the_version_of_the_package():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert cited == released[0] == purejaxppo.__version__


def interpreter(folder, name, *, version="3.12.9", works=True, ensurepip=True):
    """Write a script that answers `make` as a Python interpreter does."""
    script = f"""#!/bin/sh
[ {int(works)} = 1 ] || exit 127
case "$*" in
--version) echo Python {version} ;;
*ensurepip*) [ {int(ensurepip)} = 1 ] ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
esac
"""
    (folder / name).write_text(script, encoding="utf-8")
    (folder / name).chmod(0o755)


def make_environment(folder, *words):
    """Run the Makefile's target of the virtual environment, with a folder first on PATH."""
    venv = folder / "venv"
    return subprocess.run(
        ["make", "-s", "-f", ROOT / "Makefile", f"VENV={venv}", venv / ".made", *words],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.toy
def test_make_uses_the_newest_python_that_runs(tmp_path):
    interpreter(tmp_path, "python3", version="3.11.7")
    interpreter(tmp_path, "python3.11", version="3.11.7")
    interpreter(tmp_path, "python3.12", version="3.12.9")
    interpreter(tmp_path, "python3.13", works=False)
    done = make_environment(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"Creating {tmp_path}/venv with Python 3.12.9\n"


@pytest.mark.toy
def test_make_uses_an_older_python_if_the_newest_cannot_create_virtual_environments(tmp_path):
    interpreter(tmp_path, "python3.12", version="3.12.9")
    interpreter(tmp_path, "python3.13", version="3.13.0", ensurepip=False)
    assert make_environment(tmp_path).stdout == f"Creating {tmp_path}/venv with Python 3.12.9\n"


@pytest.mark.toy
def test_make_uses_the_given_python(tmp_path):
    interpreter(tmp_path, "python3.13", version="3.13.0")
    interpreter(tmp_path, "mine", version="3.11.7")
    done = make_environment(tmp_path, f"PYTHON={tmp_path}/mine")
    assert done.stdout == f"Creating {tmp_path}/venv with Python 3.11.7\n"


@pytest.mark.toy
def test_make_reports_the_pythons_it_tried(tmp_path):
    done = make_environment(tmp_path, "PYTHON=absent")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        "purejaxppo needs Python 3.11, 3.12 or 3.13. Not found among: absent. Install one of "
        "these, or name it with make PYTHON=/path/to/python3.13"
    )


def test_the_site_takes_its_addresses_from_the_project_file(tmp_path):
    hook = runpy.run_path(str(ROOT / "docs" / "addresses.py"))["on_config"]
    project = tmp_path / "pyproject.toml"
    empty = {"site_url": None, "repo_url": None}
    project.write_text("[project]\n")
    assert hook(dict(empty), project) == empty
    project.write_text(
        "[project]\nurls = {Repository = 'https://code.org/x', Documentation = 'https://x.org'}\n"
    )
    addresses = {"site_url": "https://x.org", "repo_url": "https://code.org/x"}
    assert hook(dict(empty), project) == addresses


def test_the_container_copies_every_file_that_the_package_is_built_from():
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    files = " ".join(copied).split()
    kept = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sorted(files) == sorted(kept)
    assert {"pyproject.toml", "README.md", "LICENSE", "purejaxppo", "configs"} <= set(files)


def test_continuous_integration_tests_every_python_that_the_package_supports():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = re.findall(r":: (3\.\d+)", " ".join(project["classifiers"]))
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == supported
