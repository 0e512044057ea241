"""A run's copies of custom code with modules and data files, and the use of the originals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.children import environment

from purejaxppo.config import copies, references

pytestmark = pytest.mark.toy

TRACK = """
import json
from pathlib import Path

from . import geometry
from .shapes.round import RADIUS

HERE = Path(__file__).parent
ROBOT = (HERE / "robot.xml").read_text() + (HERE / "meshes" / "leg.stl").read_text()
LEVELS = [json.loads((HERE / f"level_{i}.json").read_text()) for i in range(2)]
AREA = geometry.PI * RADIUS
"""


@pytest.fixture
def project(tmp_path):
    """A folder with track.py, modules, data files, and many other files."""
    files = {
        "track.py": TRACK,
        "geometry.py": "PI = 3.0",
        "shapes/__init__.py": "",
        "shapes/round.py": "from ..geometry import PI\nRADIUS = 2 * PI",
        "robot.xml": "<mesh file='leg.stl'/>",
        "meshes/leg.stl": "leg",
        "level_0.json": "0",
        "level_1.json": "1",
        "heights.csv": "1,2",
        "unused.py": "raise SystemError",
        **dict.fromkeys(("notes.md", "train.yaml", "nohup.out", "out.log"), "text"),
        **dict.fromkeys((".env", ".ssh/id_rsa", ".git/config", "meshes/.hidden"), "secret"),
        **dict.fromkeys(("shapes/.venv/x.py", "shapes/venv/pyvenv.cfg", "shapes/venv/x.py"), "1"),
        **dict.fromkeys(("__pycache__/x.json", "wandb/x.json", "node_modules/x.json"), "cache"),
        **dict.fromkeys(("venv/pyvenv.cfg", "venv/x.json"), "environment"),
        **dict.fromkeys(("out/run/.lock", "out/run/x.json", "out/run/code/x.json"), "run"),
        **dict.fromkeys(("old/config.yaml", "old/versions.json", "old/x.json"), "run"),
    }
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


DATA = {"robot.xml", "meshes/leg.stl", "level_0.json", "level_1.json", "heights.csv"}
SOURCES = {"track.py", "geometry.py", "shapes/__init__.py", "shapes/round.py"}


def copy(project, run):
    """Copy track.py into a run folder, and return its folder of copies and the printed lines."""
    notes = copies.add(run, {"track.py": project / "track.py"})
    (name,) = copies.paths_of_copies(run).values()
    return Path(name).parent, notes


def names(folder):
    """Return the files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_data_files_are_copied_and_listed_in_one_line(project, tmp_path):
    folder, notes = copy(project, tmp_path / "run")
    assert names(folder) == DATA | SOURCES
    assert notes == [
        f"Copied 1 kB of data files from {project} to {tmp_path}/run/code: heights.csv, "
        f"level_0.json, level_1.json, meshes/leg.stl, robot.xml"
    ]
    assert copies.add(tmp_path / "run", {"track.py": project / "track.py"}) == []
    assert copies.add(tmp_path / "run", {}) == []


def test_this_package_and_results_next_to_a_file_are_not_copied(project, tmp_path):
    """As for a file in the root of a checkout."""
    track = project / "track.py"
    track.write_text(f"import purejaxppo, scipy\nfrom purejaxppo.envs import base\n{TRACK}")
    for name in (
        *("purejaxppo/__init__.py", "purejaxppo/envs/base.py", "purejaxppo/config/names.yaml"),
        *("runs/a-sweep/sweep.yaml", "runs/a-sweep/results.csv", ".venv/x.json"),
        "site-packages/scipy/x.json",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("1")
    folder, notes = copy(project, tmp_path / "run")
    assert names(folder) == SOURCES | {"robot.xml", "meshes/leg.stl"}
    assert "it is a checkout of purejaxppo, so only files named in track.py were copied" in notes[1]


def test_the_original_and_the_copy_load_with_relative_imports_and_data(project, tmp_path):
    run = tmp_path / "run"
    folder, _ = copy(project, run)
    assert copies.of_run(run) == {"track.py": str(project / "track.py")}
    for place in (project, folder):
        module = f"{place}/track.py"
        assert references.load(f"{module}:AREA", "env.name") == 18.0
        assert references.load(f"{module}:LEVELS", "env.name") == [0, 1]
        assert references.load(f"{module}:ROBOT", "env.name") == "<mesh file='leg.stl'/>leg"
    assert copies.of_run(run) == {"track.py": str(project / "track.py")}  # with caches of bytecode
    project.rename(tmp_path / "elsewhere")
    assert copies.of_run(run) == {"track.py": str(folder / "track.py")}
    assert copies.changed(run) == {}


@pytest.mark.parametrize("name", ["track.py", "geometry.py", "shapes/round.py", *sorted(DATA)])
def test_a_change_of_code_or_data_selects_the_copy(name, project, tmp_path):
    run = tmp_path / "run"
    folder, _ = copy(project, run)
    (project / name).write_text("other")
    assert copies.of_run(run) == {"track.py": str(folder / "track.py")}
    (change,) = copies.changed(run).values()
    assert change == (str(project / "track.py"), [name])
    again, _ = copy(project, tmp_path / "other")
    assert again.name != folder.name


def test_an_imported_module_that_appears_later_selects_the_copy(project, tmp_path):
    folder, _ = copy(project, tmp_path / "run")
    (project / "json.py").write_text("loads = None")
    assert copies.of_run(tmp_path / "run") == {"track.py": str(folder / "track.py")}


def test_changes_of_unused_files_keep_the_original_in_use(project, tmp_path):
    folder, _ = copy(project, tmp_path / "run")
    for name in ("results.csv", "train.yaml", "out.log", "unused.py", ".env", "venv/x.json"):
        (project / name).write_text("other")
    assert copies.of_run(tmp_path / "run") == {"track.py": str(project / "track.py")}
    (project / "results.csv").unlink()
    assert copy(project, tmp_path / "again")[0].name == folder.name


def test_a_copy_of_version_0_2_without_data_uses_the_unchanged_original(tmp_path):
    track, old = tmp_path / "track.py", tmp_path / "run/code/track-0123456789ab"
    old.mkdir(parents=True)
    for path in (track, old / "track.py"):
        path.write_text("X = open('track.csv')")
    (tmp_path / "track.csv").write_text("1")
    entry = {"copy": "track-0123456789ab/track.py", "original": str(track)}
    (tmp_path / "run/code/files.json").write_text(json.dumps({"track.py": entry}))
    assert copies.of_run(tmp_path / "run") == {"track.py": str(track)}
    track.write_text("X = 1")
    assert copies.of_run(tmp_path / "run") == {"track.py": str(old / "track.py")}


def test_large_files_are_not_copied(tmp_path):
    (tmp_path / "track.py").write_text("X = 1")
    with (tmp_path / "huge.bin").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    folder, (note,) = copy(tmp_path, tmp_path / "run")
    assert names(folder) == {"track.py"} and "huge.bin (more than 10 MB in total)" in note


def test_yaml_and_toml_files_are_copied_if_the_code_names_them(tmp_path):
    (tmp_path / "track.py").write_text("X = 'robot.yaml'; Y = '*.toml'")
    for name in ("robot.yaml", "a.toml", "out.log"):
        (tmp_path / name).write_text("1")
    (tmp_path / "train.yml").write_text("1")
    folder, _ = copy(tmp_path, tmp_path / "run")
    assert names(folder) == {"track.py", "robot.yaml", "a.toml"}


def test_the_redirected_output_of_a_run_is_not_data(tmp_path):
    (tmp_path / "walk.py").write_text("SPEED = 1")
    code = "import sys; from pathlib import Path; from purejaxppo.config import copies; "
    code += "print(copies.add(Path('run'), {'walk.py': Path('walk.py')}), file=sys.stderr)"
    with (tmp_path / "train.txt").open("w") as output:
        process = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment(),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
    assert process.stderr == "[]\n"


def test_links_are_copied_as_files_except_links_to_hidden_files(project, tmp_path):
    (tmp_path / "shared/deep").mkdir(parents=True)
    (tmp_path / "shared/deep/arm.stl").write_text("arm")
    (tmp_path / ".private").mkdir()
    (tmp_path / ".private/key.json").write_text("secret")
    links = {
        "linked": tmp_path / "shared",
        "one.stl": "meshes/leg.stl",
        "key.json": ".env",
        "keys": tmp_path / ".private",
        "private.json": tmp_path / ".private/key.json",
        "up": tmp_path / "project",
        "missing.json": "nothing",
        "loop.json": "loop.json",
    }
    for name, target in links.items():
        (project / name).symlink_to(target)
    folder, _ = copy(project, tmp_path / "run")
    assert names(folder) == DATA | SOURCES | {"linked/deep/arm.stl", "one.stl"}
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert not any(b"secret" in (folder / name).read_bytes() for name in names(folder))


def test_at_most_ten_megabytes_are_copied_and_the_other_files_are_listed(project, tmp_path):
    for name, size in (("robot.xml", 6_000_000), ("a.bin", 5_000_000), ("b.bin", 3_000_000)):
        (project / name).write_bytes(bytes(size))
    folder, notes = copy(project, tmp_path / "run")
    assert names(folder) == DATA | SOURCES | {"b.bin"}
    assert "Copied 9,000 kB of" in notes[0]
    assert notes[1] == (
        f"Did not copy some data files from {project} to {tmp_path}/run/code: a.bin (more than "
        f"10 MB in total). If your code reads them, keep that folder unchanged."
    )


def test_the_limit_applies_to_a_run_and_a_shared_file_counts_once(project, tmp_path):
    (project / "a.bin").write_bytes(bytes(6_000_000))
    (project / "b.py").write_text("")
    other = tmp_path / "other"
    other.mkdir()
    (other / "c.py").write_text("")
    (other / "c.bin").write_bytes(bytes(5_000_000))
    files = {"track.py": project / "track.py", "b.py": project / "b.py", "c.py": other / "c.py"}
    shared, second = copies.add(tmp_path / "run", files)
    assert f"Copied 6,000 kB of data files from {project} to " in shared and "code: a.bin" in shared
    assert (
        f"some data files from {other} to {tmp_path}/run/code: c.bin (more than 10 MB in total)"
        in second
    )


def test_from_a_folder_with_too_many_files_only_named_files_are_copied(
    project, tmp_path, monkeypatch
):
    monkeypatch.setattr(copies, "MAX_FILES", 100)
    (project / "many").mkdir()
    for i in range(100):
        (project / f"many/{i}.json").touch()
    folder, notes = copy(project, tmp_path / "run")
    assert names(folder) == SOURCES | {"robot.xml", "meshes/leg.stl"}
    assert (
        "the folder has more than 100 files or is slow to read, so only files named in tr"
        in notes[1]
    )


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that fails to read")
def test_an_unreadable_data_file_is_reported_and_skipped(project, tmp_path):
    (project / "broken.json").symlink_to("/proc/self/mem")
    (project / "pipe.json").unlink(missing_ok=True)
    os.mkfifo(project / "pipe.json")
    folder, notes = copy(project, tmp_path / "run")
    assert names(folder) == DATA | SOURCES
    assert "broken.json cannot be read (Input/output error). If your code" in notes[1]


def test_a_failed_relative_import_is_read_again_after_the_fix(tmp_path):
    (tmp_path / "track.py").write_text("from .geometry import SIZE")
    (tmp_path / "geometry.py").write_text("OTHER = 1")
    where = f"{tmp_path}/track.py:SIZE"
    with pytest.raises(references.LoadError, match="line 1 raises ImportError: cannot import name"):
        references.load(where, "env.name")
    (tmp_path / "geometry.py").write_text("SIZE = 123")
    assert references.load(where, "env.name") == 123
