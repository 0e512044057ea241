import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import purejaxppo
from purejaxppo.moved import MOVED, RENAMED

pytestmark = pytest.mark.toy

SHOWN = {
    "purejaxppo.agents.distributions": "Distribution",
    "purejaxppo.agents.intrinsic": "Intrinsic",
    "purejaxppo.agents.terms": "Term",
    "purejaxppo.agents.torsos": "Torso",
    "purejaxppo.envs.host.unity.stats": "Stats",
    "purejaxppo.envs.oscillator.report": "draw",
    "purejaxppo.evaluation": "evaluate",
    "purejaxppo.library": "train",
    "purejaxppo.pictures.video": "frames",
    "purejaxppo.pure_training": "make_train",
    "purejaxppo.trained_agent": "Agent",
}
"""Paths in the documentation, templates and examples of version 0.2."""


@pytest.mark.parametrize(("path", "name"), SHOWN.items())
def test_an_old_path_of_version_0_2_gives_the_object_at_its_new_path(path, name):
    (new,) = [
        path.replace(f"purejaxppo.{old}", f"purejaxppo.{current}")
        for old, current in MOVED.items()
        if f"{path}.".startswith(f"purejaxppo.{old}.")
    ]
    here = importlib.import_module(path)
    assert getattr(here, name) is getattr(importlib.import_module(new), name)


@pytest.mark.parametrize("old", MOVED)
def test_every_moved_module_can_be_imported_by_its_old_path(old):
    here = importlib.import_module(f"purejaxppo.{old}")
    current = importlib.import_module(f"purejaxppo.{MOVED[old]}")
    for name, value in vars(current).items():
        if not (name.startswith("_") or isinstance(value, ModuleType)):
            assert getattr(here, name) is value


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_public_name_is_the_renamed_object(old, new):
    assert getattr(purejaxppo, old) is getattr(purejaxppo, new)
    assert old not in dir(purejaxppo)


def test_a_module_that_never_existed_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"purejaxppo\.terms"):
        importlib.import_module("purejaxppo.terms")


@pytest.mark.parametrize("command", ["sweep", "export", "train", "evaluate"])
def test_a_command_is_a_module_that_python_runs(command):
    words = [sys.executable, "-m", f"purejaxppo.{command}", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "usage" in done.stdout.lower()
