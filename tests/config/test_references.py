"""Custom code by reference: loading, names, and one-sentence errors."""

import importlib
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support import own_code as examples
from support.paths import ROOT

from purejaxppo.config import references
from purejaxppo.config.files import compare, from_dict, load_config, to_yaml
from purejaxppo.config.references import OBJECT, CodeRef, load, name_of, parse
from purejaxppo.config.run_files import imported_files
from purejaxppo.config.schema import Config, EnvConfig, PPOConfig

pytestmark = pytest.mark.toy

FILE = str(ROOT / "tests/support/own_code.py")


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that writes a file into an empty current folder."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def rejection(text, where="ppo.objective"):
    with pytest.raises(ValueError, match=where) as caught:
        load(text, where)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_is_loaded_once_and_imports_modules_next_to_it(write):
    write("helper.py", "SIZE = 3\n")
    write("mine.py", "import helper\n\ndef f():\n    return helper.SIZE\n")
    assert load("mine.py:f", "x")() == 3
    assert load("mine.py:f", "x") is load("./mine.py:f", "x")


def test_files_of_two_folders_import_their_own_helpers(write):
    write("a/aside.py", "SIZE = 1\n")
    write("a/mine.py", "import aside\nsize = aside.SIZE\n")
    write("b/aside.py", "SIZE = 2\n")
    write("b/mine.py", "import aside\nsize = aside.SIZE\n")
    assert [load(f"{folder}/mine.py:size", "x") for folder in "ab"] == [1, 2]


def test_a_module_can_be_referenced():
    assert load("math:sqrt", "x")(4) == 2


def test_an_invalid_reference_gets_a_one_sentence_error(write):
    write("mine.py", "def objective():\n    pass\n")
    write("raises.py", "x = 1\n\nx / 0\n")
    write("syntax.py", "x = 1\ndef\n")
    write("lacks.py", "\nimport no_such_package\n")
    write("empty.py", "")
    assert "none.py: no such file in" in rejection("none.py:f")
    assert rejection("/none.py:f").endswith("/none.py: no such file.")
    assert "mine.py has no 'objectiv'. Did you mean 'objective'?" in rejection("mine.py:objectiv")
    assert "mine.py has no 'zzz'. It has objective" in rejection("mine.py:zzz")
    write("made.py", "import math\nfrom os import sep\n\nrates = (1, 2)\n")
    assert "made.py has no 'zzz'. It has rates." in rejection("made.py:zzz")
    assert "empty.py has no 'f'. It has no functions or classes" in rejection("empty.py:f")
    assert "raises.py: line 3 raises ZeroDivisionError: division by zero" in rejection(
        "raises.py:f"
    )
    assert "syntax.py: line 2 has invalid syntax" in rejection("syntax.py:f")
    missing = "lacks.py: line 2 raises ModuleNotFoundError: No module named 'no_such_package'"
    assert missing in rejection("lacks.py:f")
    assert "the package 'no_such_package' is not installed" in rejection("no_such_package.sub:f")
    assert "math has no 'sqr'" in rejection("math:sqr")
    assert "mine.py: the name is missing. Use mine.py:Name." in rejection("mine.py")


def test_a_file_that_failed_is_loaded_again_after_a_fix(write):
    path = write("mended.py", "1 / 0\n")
    rejection("mended.py:f")
    path.write_text("f = 2\n")
    importlib.invalidate_caches()
    assert load("mended.py:f", "x") == 2


def test_objects_have_names_that_can_be_loaded():
    in_file = load(f"{FILE}:Walk", "x")
    assert name_of(in_file) == f"{FILE}:Walk"
    assert name_of(in_file()) == f"{OBJECT}own_code.py:Walk"
    assert name_of(examples.Walk) == "support.own_code:Walk"
    assert name_of(PPOConfig) == "purejaxppo.config.schema:PPOConfig"
    assert name_of(lambda: 0).startswith(OBJECT)
    assert load(name_of(PPOConfig), "x") is PPOConfig


def test_an_object_reference_equals_its_text_but_not_other_objects():
    one, other = parse(lambda: 1), parse(lambda: 2)
    assert one == str(one) == str(other)
    assert one != other
    assert repr(one) != repr(other)
    assert hash(one) == hash(str(one))
    again = pickle.loads(pickle.dumps(parse(PPOConfig)))
    assert again.object is PPOConfig
    assert again.endswith(":PPOConfig")  # as in version 0.2
    assert load(one, "x")() == 1


def test_a_config_holds_objects_and_writes_references():
    walk = examples.Walk()
    config = Config(
        env=EnvConfig(name=walk), ppo=PPOConfig(objective=examples.plain_gradient, terms=[print])
    )
    data = yaml.safe_load(to_yaml(config))
    assert data["ppo"]["objective"] == "support.own_code:plain_gradient"
    assert data["ppo"]["terms"] == ["builtins:print"]
    assert data["env"]["name"] == f"jax/{OBJECT}support.own_code:Walk"
    again = from_dict(data)
    assert compare(again, config) == ([], [])
    assert config.env.name.object is walk
    assert replace(config, seed=1).env.name.object is walk
    message = rejection(references.without_family(again.env.name), "env.name")
    assert "cannot be loaded. Pass the object again" in message


def test_overrides_may_be_objects():
    walk = examples.Walk()
    config = load_config(
        "cartpole.yaml",
        {"env.name": walk, "ppo.objective": examples.plain_gradient, "ppo.terms": [print]},
    )
    assert config.env.name.object is walk
    assert config.ppo.objective.object is examples.plain_gradient
    assert config.ppo.terms[0].object is print


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("ppo", "objective", "clop"),
        ("ppo", "objective", 3),
        ("ppo", "optimizer", None),
        ("network", "torso", "seperate"),
        ("network", "distribution", True),
        ("intrinsic", "kind", "icn"),
        ("ppo", "clip_schedule", "linea"),
    ],
)
def test_a_value_that_is_neither_built_in_nor_a_reference_is_rejected(section, field, value):
    with pytest.raises(
        ValueError, match=f"{section}.{field} = .* must be one of .*custom code as file"
    ):
        from_dict({section: {field: value}})


def test_lists_of_references_must_be_lists_of_strings():
    with pytest.raises(ValueError, match=r"ppo.terms = 'a.py:f': must be a list"):
        from_dict({"ppo": {"terms": "a.py:f"}})
    with pytest.raises(ValueError, match=r"ppo.terms = .3.: each entry must be a reference"):
        from_dict({"ppo": {"terms": [3]}})


def test_the_number_of_coefficients_must_equal_that_of_auxiliary_losses():
    assert PPOConfig(terms=("a.py:f",)).coefs == (1.0,)
    with pytest.raises(ValueError, match=r"one number per auxiliary loss, and ppo.terms has 1"):
        from_dict({"ppo": {"terms": ["a.py:f"], "term_coefs": [1, 2]}})
    with pytest.raises(ValueError, match="must be finite"):
        from_dict({"ppo": {"terms": ["a.py:f"], "term_coefs": [float("inf")]}})


def test_every_file_that_a_config_names_is_listed(tmp_path):
    config = from_dict(
        {
            "env": {
                "name": "jax/a.py:A",
                "wrappers": ["b.py:B"],
                "options": {"wrappers": "c.py:C, package:D"},
                "curriculum": {"g": "d.py:f"},
            },
            "network": {"torso": "e.py:E"},
            "ppo": {"objective": "f.py:f", "terms": ["g.py:g"], "clip_schedule": "h.py:h"},
            "intrinsic": {"kind": "i.py:make"},
        }
    )
    assert sorted(path.name for path in imported_files(config)) == [f"{x}.py" for x in "abcdefghi"]


def test_copies_replace_referenced_files():
    ref = CodeRef("a.py:A, b.py:B,package:C", files={"a.py": "/run/code/a.py"})
    assert references.located(ref) == "/run/code/a.py:A,b.py:B,package:C"
    assert references.located("a.py:A") == "a.py:A"
    config = from_dict(
        references.with_files({"env": {"name": "jax/a.py:A"}}, {"a.py": "/run/code/a.py"})
    )
    assert config.env.name == "jax/a.py:A"
    assert references.located(references.without_family(config.env.name)) == "/run/code/a.py:A"
    assert imported_files(config) == [Path("/run/code/a.py")]
    assert to_yaml(config) == to_yaml(from_dict({"env": {"name": "jax/a.py:A"}}))


def test_an_object_reference_has_no_file_to_copy():
    text = references.OBJECT + "mine.py:Walk"
    assert references.files_in(f"{text},other.py:Net,package.module:Net") == ["other.py"]


def test_a_changed_file_is_reloaded_and_finds_the_modules_next_to_it(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, number in ((here, 1), (there, 2)):
        folder.mkdir()
        (folder / "beside_it.py").write_text(f"NUMBER = {number}")
        (folder / "mine.py").write_text("from beside_it import NUMBER\nthing = lambda: NUMBER")
    monkeypatch.syspath_prepend(str(here))  # like the folder of a script
    before = list(sys.path)
    assert references.load(f"{here}/mine.py:thing", "x")() == 1
    assert references.load(f"{there}/mine.py:thing", "x")() == 2
    assert references.load(f"{here}/mine.py:thing", "x")() == 1
    assert sys.path[: len(before)] == before  # the user's order is kept
    (there / "mine.py").write_text("from beside_it import NUMBER\nthing = lambda: 10 * NUMBER")
    assert references.load(f"{there}/mine.py:thing", "x")() == 20
