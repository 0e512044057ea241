"""Runs, configs, flags and names of version 0.2 work as before, or a one-sentence error helps.

tests/fixtures/make_runs_0_2.py made the runs with version 0.2 and recorded their numbers.
"""

import importlib
import importlib.util
import itertools
import json
import math
import operator
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from fixtures.make_runs_0_2 import (
    EPISODES,
    FOLDER,
    OBSERVED,
    RUNS,
    SEED,
    command,
    members,
    parameters,
    run_checked,
    unpack,
)

import purejaxppo
from purejaxppo.moved import RENAMED
from purejaxppo.runs.resume import continue_config

NAMES = json.loads((FOLDER / "names.json").read_text(encoding="utf-8"))
RECORDED = json.loads((FOLDER / "recorded.json").read_text(encoding="utf-8"))
FIELDS = NAMES["fields"]
REPEATED = [("four_seeds", "resume"), ("recurrent", "resume"), ("uint8_vector", "resume")]
"""Cases that compile large programs, for `make test-all`."""
CASES = [
    pytest.param(*case, marks=[pytest.mark.full] * (case in REPEATED))
    for case in itertools.product(RUNS, OBSERVED)
]
ANSWERED: dict[str, str] = {"env.double_buffer": "It was removed. Use asynchronous = true."}
"""Removed switches of 0.2 -> a part of the error about them.

A config file may turn them off. Runs that turned one on can still be evaluated, loaded and
exported, and also resumed when it is deleted from the config file.
"""
TRANSLATED = {"keep_cores_awake": {"auto": False, "never": False, "always": True}}
"""Fields of 0.2 with other values now: old value -> new value."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "what"), CASES)
def test_a_run_of_0_2_has_the_recorded_numbers(name, what, folder):
    unpack(name, folder)
    write_config(f"{name}.yaml", read_config(f"{name}.yaml"))
    assert_numbers(OBSERVED[what](name), RECORDED[name][what])


@pytest.mark.toy
def test_a_run_of_0_2_keeps_its_preprocessing_when_it_resumes(folder):
    unpack("uint8_vector", folder)
    new = purejaxppo.load_config("uint8_vector.yaml")
    old = purejaxppo.load("run").config
    resumed, changes = continue_config(new, Path("run"))
    rules = [config.ppo.obs_preprocessing for config in (new, old, resumed)]
    assert rules == ["by_bounds", "by_dtype", "by_dtype"]
    assert not changes


@pytest.mark.toy
@pytest.mark.parametrize(
    ("setting", "value", "rules"),
    [
        (
            "learning_rate_schedule",
            "adaptive",
            {"min_learning_rate": 3e-5, "max_learning_rate": 0.3},
        ),
        ("critic", "hl_gauss", {"value_limit": math.expm1(12)}),
    ],
)
def test_a_run_of_0_2_keeps_its_limits_when_it_resumes(setting, value, rules, folder):
    """Its learning rate was limited to 1/100 to 100 times ppo.learning_rate, which is 3e-3."""
    unpack("plain", folder)
    for path in ("plain.yaml", "run/config.yaml"):
        change = {f"ppo.{setting}": value, "ppo.learning_rate": 3e-3}
        write_config(path, read_config(path) | change)
    new = purejaxppo.load_config("plain.yaml")
    resumed, changes = continue_config(new, Path("run"))
    assert {name: getattr(resumed.ppo, name) for name in rules} == pytest.approx(rules)
    assert not changes
    name, own = next(iter(rules.items()))
    with pytest.raises(ValueError, match=f"was trained with ppo.{name} = "):
        continue_config(new.replace(**{f"ppo.{name}": own / 2}), Path("run"))


@pytest.mark.toy
@pytest.mark.parametrize("name", RUNS)
def test_a_loaded_run_of_0_2_has_the_config_of_its_file(name, folder):
    unpack(name, folder)
    run = purejaxppo.load("run")
    assert run.run_dir == Path("run").absolute()
    for field, value in read_config(f"{name}.yaml").items():
        assert field_of(run.config, field) == value, field


def test_evaluate_command_prints_the_recorded_mean_of_a_run_of_0_2(folder):
    unpack("plain", folder)
    mean = np.mean(RECORDED["plain"]["evaluate"]["returns"])
    out = run_checked("evaluate", "--run", "run", "--episodes", EPISODES, "--seed", SEED)
    assert f"{mean:.1f}" in out


def assert_numbers(actual, recorded, name="run"):
    """Compare numbers by name, those of float32 with a tolerance.

    Other JAX versions and processors sum in other orders. Integers, such as steps, lengths and the
    returns of CartPole, are far enough apart to be compared exactly.
    """
    if isinstance(recorded, dict):
        for key, value in recorded.items():
            assert_numbers(actual[key], value, f"{name} {key}")
    else:
        np.testing.assert_allclose(actual, recorded, rtol=1e-4, atol=1e-5, err_msg=name)


def read_config(path):
    """Return the fields of a config file by dotted name, with the values of this version."""
    sections = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    flat = {}
    for section, value in sections.items():
        nested = value.items() if isinstance(value, dict) else [("", value)]
        flat |= {f"{section}.{key}".rstrip("."): x for key, x in nested}
    new = {name: TRANSLATED[name].get(flat[name], flat[name]) for name in TRANSLATED.keys() & flat}
    return {name: value for name, value in (flat | new).items() if name not in ANSWERED}


def write_config(path, values):
    """Write fields by dotted name as a config file."""
    sections = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        if key:
            sections.setdefault(section, {})[key] = value
        else:
            sections[name] = value
    Path(path).write_text(yaml.safe_dump(sections), encoding="utf-8")


def field_of(config, name):
    """Return a field by its dotted name, as stored in JSON."""
    value = operator.attrgetter(name)(config)
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.toy
def test_every_field_of_0_2_is_read_and_has_the_same_default(folder):
    defaults = {name: field["default"] for name, field in FIELDS.items()}
    write_config("all.yaml", defaults)
    config = purejaxppo.load_config("all.yaml")
    for name, old in defaults.items():
        if name not in ANSWERED:
            new = TRANSLATED[name][old] if name in TRANSLATED else old
            assert field_of(config, name) == field_of(purejaxppo.Config(), name) == new, name


@pytest.mark.toy
@pytest.mark.parametrize("name", [name for name in FIELDS if FIELDS[name]["others"]])
def test_every_choice_of_a_field_of_0_2_is_accepted(name):
    for value in FIELDS[name]["others"] if name not in ANSWERED else ():
        new = TRANSLATED.get(name, {}).get(value, value)
        assert field_of(purejaxppo.Config().replace(**{name: value}), name) == new


@pytest.mark.toy
def test_removed_fields_and_flags_get_a_one_sentence_error(folder):
    for name, sentence in ANSWERED.items():
        code, _, err = command("train", f"--{name}")
        assert code == 2, err
        assert sentence in err
        assert err.count("\n") == 1
        if name in FIELDS:
            write_config("one.yaml", {name: True})
            with pytest.raises(ValueError, match=re.escape(sentence)):
                purejaxppo.load_config("one.yaml")


@pytest.mark.toy
@pytest.mark.parametrize("line", NAMES["lines"], ids=lambda line: " ".join(line["words"][:5]))
def test_every_command_line_of_0_2_is_accepted(line, folder):
    code, out, err = command(*without_removed(line["words"]))
    assert code == line["code"], err
    assert line["output"] in out + err


def without_removed(words):
    """Return the words of a command line without removed flags and their values."""
    kept, keep = [], True
    for word in words:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
            section, dot, leaf = name.rpartition(".")
            positive = section + dot + leaf.removeprefix("no_")
            keep = name not in ANSWERED and positive not in ANSWERED
        kept += [word] * keep
    return kept


@pytest.mark.toy
def test_public_names_of_0_2_have_the_same_members_and_parameters():
    for name in NAMES["parameters"]:
        public = getattr(purejaxppo, name)
        assert RENAMED.get(name, name) in purejaxppo.__all__
        missing = set(NAMES["parameters"][name]) - set(parameters(public))
        assert not missing, name
        if name in NAMES["members"]:
            missing = set(NAMES["members"][name]) - set(members(public))
            assert not missing, name


@pytest.mark.toy
@pytest.mark.parametrize("name", NAMES["imports"])
def test_every_import_of_the_docs_of_0_2_works(name):
    module, _, attribute = name.partition(":")
    if not hasattr(importlib.import_module(module), attribute):
        importlib.import_module(f"{module}.{attribute}")


@pytest.mark.toy
@pytest.mark.parametrize("name", NAMES["modules"])
def test_every_command_module_of_0_2_exists(name):
    spec = importlib.util.find_spec(name)
    package = spec.submodule_search_locations is not None
    assert not package or importlib.util.find_spec(f"{name}.__main__")


@pytest.mark.toy
@pytest.mark.parametrize("name", NAMES["configs"])
def test_every_config_of_0_2_is_found_by_its_name(name):
    assert purejaxppo.load_config(name).env.name


@pytest.mark.toy
def test_every_family_of_0_2_is_listed():
    listed = {line.partition("/")[0] for line in run_checked("list", "envs").splitlines()}
    assert set(NAMES["families"]) <= listed
