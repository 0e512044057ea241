"""The public interface: `dir(purejaxppo)`, lazy imports, and functions named like packages."""

import subprocess
import sys
import types

import pytest
from support.children import environment

import purejaxppo

pytestmark = pytest.mark.toy


def python(code):
    """Run code in a new process and return its output."""
    command = [sys.executable, "-c", code]
    env = environment()
    return subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout


def test_dir_is_the_public_interface_and_the_names_of_python():
    names = [name for name in dir(purejaxppo) if not name.startswith("__")]
    assert names == sorted(purejaxppo.__all__) == purejaxppo.__all__
    assert {"__version__", "__doc__", "__path__"} <= set(dir(purejaxppo))
    for name in purejaxppo.__all__:
        value = getattr(purejaxppo, name)
        assert not isinstance(value, types.ModuleType)
        assert value.__doc__


def test_the_package_imports_neither_jax_nor_yaml_until_a_name_is_used():
    code = (
        "import sys, purejaxppo; dir(purejaxppo)\n"
        "heavy = {'jax', 'yaml', 'numpy', 'matplotlib', 'flax', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "purejaxppo.Box; assert 'flax' not in sys.modules\n"
        "from purejaxppo import *; train, Agent\n"
        "assert not {'matplotlib', 'pandas', 'gymnasium', 'brax'} & set(sys.modules)"
    )
    python(code)


@pytest.mark.parametrize("name", ["export", "sweep", "video", "train", "evaluate"])
def test_a_function_takes_precedence_over_the_module_of_its_name(name):
    code = (
        f"import purejaxppo, purejaxppo.{name}, sys, inspect\n"
        f"assert inspect.isfunction(purejaxppo.{name})\n"
        f"from purejaxppo import {name}; assert {name} is purejaxppo.{name}\n"
        f"module = sys.modules['purejaxppo.{name}']; assert inspect.ismodule(module)\n"
        f"import importlib; assert importlib.import_module('purejaxppo.{name}') is module"
    )
    python(code)


def test_modules_of_a_package_with_the_name_of_a_function_are_imported():
    code = (
        "import purejaxppo; purejaxppo.export, purejaxppo.sweep, purejaxppo.video\n"
        "from purejaxppo.sweep import packing; from purejaxppo.sweep.packing import Group\n"
        "import purejaxppo.sweep.launchers; from purejaxppo.sweep.__main__ import main\n"
        "from purejaxppo.export import player; from purejaxppo.export.player import load\n"
        "from purejaxppo.video import canvas; import purejaxppo.video.charts\n"
        "from purejaxppo.pictures.video import frames\n"
        "import pickle; assert pickle.loads(pickle.dumps(load)) is player.load\n"
        "assert pickle.loads(pickle.dumps(Group)) is packing.Group"
    )
    python(code)


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(AttributeError, match=r"no attribute 'trian'\. Did you mean 'train'\?$"):
        _ = purejaxppo.trian
    with pytest.raises(AttributeError, match=r"no attribute 'zzzz'$"):
        _ = purejaxppo.zzzz
    assert not hasattr(purejaxppo, "__wrapped__")
