"""Families: their declarations, and families that other packages add by entry points."""

import re
import subprocess
import sys

import pytest
from support.children import environment
from support.paths import ROOT

from purejaxppo.__main__ import main
from purejaxppo.config.installation import install as install_command
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import families, registry

pytestmark = pytest.mark.toy

PAGE = (ROOT / "docs/own_code.md").read_text(encoding="utf-8")
MAZE = re.search(r"```python\n(# maze_envs.py\n.*?)```", PAGE, re.DOTALL)[1]
ENTRY_POINT = re.search(r'"purejaxppo.envs"\]\n(maze = .*)\n', PAGE)[1].replace('"', "")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution as pip does: a package, its metadata and entry points."""

    def install(entry_points, module="", name="maze-envs", package="maze_envs"):
        info = tmp_path / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[purejaxppo.envs]\n{entry_points}\n")
        (tmp_path / f"{package}.py").write_text(module)
        families.declared.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield install
    families.declared.cache_clear()
    for name in ("maze_envs", "other_envs"):
        sys.modules.pop(name, None)


def message(name):
    with pytest.raises(ValueError) as error:
        registry.make(EnvConfig(name=name), 2)
    return str(error.value)


def test_another_package_adds_a_family_by_an_entry_point(install, capsys):
    install(ENTRY_POINT, MAZE)
    assert registry.task_names("maze") == ["maze/small", "maze/large"]
    assert registry.make(EnvConfig("maze/small"), 3).spec.max_episode_steps == 200
    assert "Did you mean 'maze/large'" in message("maze/larg")
    with pytest.raises(ValueError, match=r"^env.options.reward = 0: must be above 0$"):
        registry.make(EnvConfig("maze/small", options={"reward": 0}), 3)
    assert main(["list", "envs"]) == 0
    assert "maze/          corridors" in capsys.readouterr().out
    assert main(["list", "envs", "maze"]) == 0
    assert re.search(r"\n  reward \(default 1\.0\) +Reward at the end.\n$", capsys.readouterr().out)


def test_two_declarations_of_a_family_are_an_error_that_names_both(install, capsys):
    install("brax = maze_envs:FAMILY\nmaze = maze_envs:FAMILY", MAZE)
    install("maze = maze_envs:FAMILY", name="other-envs", package="other_envs")
    assert message("brax/hopper") == (
        "env.name: the family 'brax' is declared by purejaxppo and by maze-envs 1.2. Uninstall "
        "maze-envs 1.2, or rename its entry point."
    )
    text = message("maze/small")
    assert "declared by maze-envs 1.2 and by other-envs 1.2" in text or (
        "declared by other-envs 1.2 and by maze-envs 1.2" in text
    )
    assert registry.make(EnvConfig("dummy/constant"), 2).spec.num_envs == 2  # others still work
    assert main(["list", "envs"]) == 0
    assert "env.name: the family 'brax' is declared by purejaxppo and" in capsys.readouterr().out


BROKEN = {
    "import maze_simulator": "ModuleNotFoundError: No module named 'maze_simulator'",
    "1 / 0": "ZeroDivisionError: division by zero",
    "": "AttributeError: module 'maze_envs' has no attribute 'FAMILY'",
    "FAMILY = {}": "it is a dict, not a Family",
}


@pytest.mark.parametrize(("module", "problem"), BROKEN.items())
def test_a_broken_entry_point_is_an_error_that_names_its_distribution(module, problem, install):
    install("maze = maze_envs:FAMILY", module)
    assert message("maze/small") == (
        f"env.name: the family 'maze' of the package maze-envs 1.2 cannot be loaded from "
        f"maze_envs:FAMILY ({problem}). Fix, update or uninstall maze-envs 1.2."
    )


def test_a_family_of_another_package_names_its_missing_package(install):
    install(
        "maze = maze_envs:FAMILY",
        MAZE.replace("make_task", 'requires="maze_sim", package="maze-sim", make_task'),
    )
    assert message("maze/small") == f"maze-sim is not installed. Run: {install_command('maze-sim')}"


def test_family_declarations_do_not_import_simulators():
    code = """
import sys
from purejaxppo.envs import families
required = {families.load(name).requires for name in families.ADAPTERS} - {"jax", "grpc"}
print(sorted(required & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_every_family_makes_either_tasks_in_jax_or_host_batches():
    for name in families.ADAPTERS:
        family = families.load(name)
        assert (family.make_task is None) != (family.make_batch is None), name
