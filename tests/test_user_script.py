"""A user's script with every public name: it passes `mypy --strict`, and runs."""

import re
import subprocess
import sys

import pytest
from support import user_script
from support.children import environment
from support.paths import ROOT

import purejaxppo
from purejaxppo.parts import make_parts

SCRIPT = ROOT / "tests/support/user_script.py"


@pytest.mark.toy
def test_the_script_and_the_api_page_have_every_public_name():
    script, page = SCRIPT.read_text("utf-8"), (ROOT / "docs/api.md").read_text("utf-8")
    for name in purejaxppo.__all__:
        assert re.search(rf"\bppo\.{name}\b", script), name
        assert re.search(rf"^::: purejaxppo\.\S+\.{name}$", page, re.MULTILINE), name


@pytest.mark.full
def test_the_script_passes_mypy_strict_and_an_error_in_it_does_not(tmp_path):
    """The package is found like an installed one, so mypy reads it because of `py.typed`."""
    wrong = SCRIPT.read_text("utf-8") + "\nppo.evaluate(3)\nppo.train(quiet='yes').scor\n"
    (tmp_path / "wrong.py").write_text(wrong)
    flags = ["--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]

    def mypy(path):
        return subprocess.run(
            [sys.executable, "-m", "mypy", *flags, str(path)],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    assert mypy(SCRIPT) == "Success: no issues found in 1 source file\n"
    errors = re.findall(r"error: .*\[([a-z-]+)\]$", mypy(tmp_path / "wrong.py"), re.MULTILINE)
    assert sorted(errors) == ["arg-type", "arg-type", "attr-defined"]


@pytest.mark.full
def test_the_script_runs(tmp_path):
    assert user_script.runs(tmp_path).checkpoints
    assert len(user_script.sweeps(tmp_path)) == 2
    assert user_script.pure().env_steps.shape == (2, 2)
    for name in ("policy.npz", "walk.agent", "episode.gif", "curves.png", "metrics.csv"):
        assert (tmp_path / name).stat().st_size


def test_the_custom_code_of_the_script_is_valid(tmp_path):
    for config in user_script.custom(tmp_path):
        make_parts(config)
