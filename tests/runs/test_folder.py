"""Run folders can contain code: commands print the imports before they import."""

import sys
import types
import typing
from pathlib import Path

import pytest

import purejaxppo.cli.evaluate as evaluate_command
import purejaxppo.cli.train as train_command
from purejaxppo.config.checks import settings
from purejaxppo.config.files import from_dict, load_config, to_yaml
from purejaxppo.config.run_files import imported_files
from purejaxppo.config.schema import HINTS, Config, PretrainConfig
from purejaxppo.envs import families
from purejaxppo.export import __main__ as export_command
from purejaxppo.runs.folder import imports
from purejaxppo.runs.pretraining import load_teacher
from purejaxppo.sweep import __main__ as sweep_command

CODE = """
env:
  name: gymnasium/envs/mine.py:Walk
  max_episode_steps: 10
  options: {wrappers: "FlattenObservation,shaped.py:Shaped", model: plain.xml}
"""
CURRICULUM = """
env:
  name: gymnax/CartPole-v1
  curriculum: {length: "steps.py:length", gravity: 9 to 10, force_mag: "steps.py:force"}
"""


@pytest.mark.parametrize(
    ("text", "files"),
    [(CODE, ["envs/mine.py", "shaped.py"]), (CURRICULUM, ["steps.py"]), ("", [])],
)
def test_the_files_that_a_config_imports_are_listed_once_each(text, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(text)
    found = imported_files(load_config(Path("config.yaml").resolve()))
    assert found == [tmp_path / file for file in files]


OPENED = {
    "evaluate": lambda: evaluate_command.main(["--run", "given"]),
    "export": lambda: export_command.main(["--run", "given", "--to", "policy.npz"]),
    "resume": lambda: train_command.main(["--config", "given/config.yaml", "--run_dir", "given"]),
}


@pytest.mark.parametrize("command", OPENED)
def test_a_command_prints_the_files_of_a_run_folder_before_importing_them(
    command, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("given").mkdir()
    Path("given/config.yaml").write_text(CODE)
    assert OPENED[command]() == 2  # neither the files nor checkpoints exist
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"given uses code from {tmp_path / file}" for file in ("envs/mine.py", "shaped.py")
    ]
    assert err.count("\n") == 1


def test_the_files_of_a_teacher_are_printed_too(tmp_path, monkeypatch, capsys, make_config):
    monkeypatch.chdir(tmp_path)
    Path("given").mkdir()
    Path("given/config.yaml").write_text(CURRICULUM)
    with pytest.raises(ValueError, match="no checkpoint has been saved yet"):
        load_teacher(make_config(pretrain=PretrainConfig(teacher="given")), None)
    assert capsys.readouterr().out == f"given uses code from {tmp_path / 'steps.py'}\n"


@pytest.fixture
def foreign_run(tmp_path, monkeypatch):
    """A run folder of another user, next to a module and a program that leave a trace when run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("evilmod.py").write_text("print('evilmod runs')")
    Path("evil.sh").write_text("#!/bin/sh\necho evil >> trace\n")
    Path("evil.sh").chmod(0o755)
    Path("given").mkdir()
    return Path("given")


MODULE = "given uses code from the module evilmod ({folder}/evilmod.py)"
PROGRAM = "given runs the program {folder}/evil.sh"
NAMED = [
    ("env: {name: godot/./evil.sh}", [PROGRAM]),
    ("env: {name: unity/./evil.sh}", [PROGRAM]),
    (
        "env: {name: godot/./evil.sh, options: {arguments: --script x.gd, godot: /bin/ed}}",
        ["given runs the program /bin/ed", PROGRAM + " --script x.gd"],
    ),
    (
        "{env: {name: godot/./evil.sh}, eval: {options: {arguments: --script y.gd}}}",
        [PROGRAM, PROGRAM + " --script y.gd"],
    ),
    ("env: {name: godot/editor}", []),
    (
        "env: {name: unity/a, options: {channels: 'evilmod:0x'}}",
        [MODULE, "given runs the program "],
    ),
    ("env: {name: gymnasium/evilmod:make}", [MODULE]),
    ("env: {name: gymnasium/CartPole-v1}", []),
    ("env: {name: gymnasium/A-v0, options: {wrappers: 'FlattenObservation,evilmod:W'}}", [MODULE]),
    ("env: {name: pettingzoo/evilmod}", [MODULE]),
    ("env: {name: pettingzoo/evilmod:make}", [MODULE]),
    ("env: {name: pettingzoo/sisl/pursuit-v5}", []),
    ("env: {name: jax/evilmod:Task}", [MODULE]),
    ("env: {name: gymnax/evilmod:Task}", [MODULE]),
    ("env: {name: pgx/tic_tac_toe, options: {opponent: 'evilmod:act'}}", [MODULE]),
    ("{env: {name: pgx/tic_tac_toe}, eval: {options: {opponent: 'evilmod:act'}}}", [MODULE]),
    ("env: {name: gymnax/CartPole-v1, wrappers: ['evilmod:W']}", [MODULE]),
    ("env: {name: gymnax/CartPole-v1, curriculum: {g: 'evilmod:f'}}", [MODULE]),
    ("network: {torso: 'evilmod:Net'}", [MODULE]),
    ("callbacks: ['evilmod:f', 'evilmod:g']", [MODULE]),
    ("callbacks: ['absent.part:f']", ["given uses code from the module absent.part"]),
    ('env: {name: "godot/a\\nb\\e[8m"}', ["given runs the program {folder}/a\\nb\\x1b[8m"]),
]


@pytest.mark.parametrize(("text", "lines"), NAMED, ids=lambda value: str(value)[:60])
def test_modules_and_programs_are_named_before_they_run(text, lines, foreign_run, capsys):
    (foreign_run / "config.yaml").write_text(text)
    found = imports("given")
    assert len(found) == len(lines)
    for line, start in zip(found, lines, strict=True):
        assert line.startswith(start.format(folder=Path.cwd()))
    assert "evilmod" not in sys.modules and not Path("trace").exists()
    assert capsys.readouterr().out == ""


def test_members_yaml_is_read_too(foreign_run):
    (foreign_run / "config.yaml").write_text("env: {name: gymnax/CartPole-v1}")
    (foreign_run / "members.yaml").write_text("- {network.torso: 'evilmod:Net'}\n- {seed: 1}\n")
    assert imports("given") == [MODULE.format(folder=Path.cwd())]


RUNS = {
    **OPENED,
    "sweep": lambda: sweep_command.main(
        ["--config", "given/config.yaml", "--run_dir", "given", "--grid", "ppo.gamma=0.9,0.99"]
    ),
}


@pytest.mark.parametrize("command", RUNS)
def test_commands_print_modules_and_programs_first(command, foreign_run, capsys):
    config = "{env: {name: godot/./evil.sh}, network: {torso: 'evilmod:Net'}, callbacks: ['x.y:z']}"
    (foreign_run / "config.yaml").write_text(config)
    (foreign_run / "sweep.yaml").write_text("{}")
    assert RUNS[command]() == 2
    folder = Path.cwd()
    assert capsys.readouterr().out.splitlines()[:3] == [
        MODULE.format(folder=folder),
        "given uses code from the module x.y",
        PROGRAM.format(folder=folder),
    ]


def test_a_module_is_named_before_its_import(foreign_run, capsys):
    (foreign_run / "config.yaml").write_text("env: {name: 'jax/evilmod:Task'}")
    assert RUNS["resume"]() == 2
    sys.modules.pop("evilmod", None)
    out = capsys.readouterr().out.splitlines()
    assert out == [MODULE.format(folder=Path.cwd()), "evilmod runs"]


def test_a_new_run_does_not_list_the_imports_of_its_config(foreign_run, capsys):
    Path("mine.yaml").write_text("env: {name: 'jax/evilmod:Task'}")
    assert train_command.main(["--config", "mine.yaml", "--run_dir", "new"]) == 2
    sys.modules.pop("evilmod", None)
    assert capsys.readouterr().out == "evilmod runs\n"


FIELDS = {name: (about, value) for name, about, value in settings(Config())}


def test_every_field_that_accepts_a_reference_is_marked_in_the_schema():
    unions = (typing.Union, types.UnionType)
    accepting = [name for name, hint in HINTS.items() if typing.get_origin(hint) in unions]
    assert len(accepting) > 8
    assert [name for name in accepting if not FIELDS[name][0].get("code")] == []


@pytest.mark.parametrize(
    "field",
    [
        name
        for name, (about, value) in FIELDS.items()
        if (name != "env.name" and (about.get("code") or HINTS[name] == dict[str, str]))
        or name.endswith(".options")
    ],
)
def test_every_field_that_holds_references_is_read(field, foreign_run):
    section, _, key = field.rpartition(".")
    value = FIELDS[field][1]
    held = {tuple: ["evilmod:f"], dict: {"x": "evilmod:f"}}.get(type(value), "evilmod:f")
    data = {section: {key: held}} if section else {key: held}
    (foreign_run / "config.yaml").write_text(to_yaml(from_dict(data)))
    assert imports("given") == [MODULE.format(folder=Path.cwd())]


@pytest.mark.parametrize("family", ["godot", "unity", "gymnasium", "pettingzoo"])
def test_every_text_option_that_runs_code_or_a_program_is_marked(family):
    options = families.load(family).options
    texts = {key for key, option in options.items() if isinstance(option.default, str)}
    harmless = {"workers", "package_version"}  # the arguments of a program are printed with it
    marked = {key for key, option in options.items() if option.refers in ("code", "program")}
    assert texts - harmless - {"arguments"} == marked
