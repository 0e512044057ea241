"""What is shipped: the wheel's contents, and the lock file."""

import re
import subprocess
import sys
import zipfile

import pytest
import yaml
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


def test_wheel_has_every_config_inside_the_package(installed):
    shipped = sorted(path.name for path in (installed / "purejaxppo" / "configs").glob("*.yaml"))
    assert shipped == CONFIGS
    assert not (installed / "configs").exists()


def test_wheel_has_every_module(installed):
    def modules(folder):
        return sorted(str(p.relative_to(folder)) for p in folder.rglob("*.py"))

    assert modules(installed / "purejaxppo") == modules(ROOT / "purejaxppo")


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
def test_lock_file_names_exact_versions_and_no_place_to_get_them_from():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert re.fullmatch(r"[a-z0-9.-]+==[0-9][\w.+-]*( ; .+)?", line), line


@pytest.mark.toy
def test_lock_file_has_gymnax_with_terminated_apart_from_truncated():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    (gymnax,) = [line for line in lines if line.startswith("gymnax==")]
    assert gymnax.startswith("gymnax==1.")


@pytest.mark.toy
def test_the_citation_and_the_changelog_have_the_packages_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert cited == released[0] == purejaxppo.__version__
