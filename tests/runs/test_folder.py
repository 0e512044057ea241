"""A run folder is code: what it would import is named before it is."""

from pathlib import Path

import pytest

import purejaxppo.commands.evaluate as evaluate_command
import purejaxppo.commands.train as train_command
from purejaxppo.config.files import load_config
from purejaxppo.config.run_files import imported_files
from purejaxppo.config.schema import PretrainConfig
from purejaxppo.export import __main__ as export_command
from purejaxppo.runs.pretraining import load_teacher

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
def test_a_command_names_what_a_folder_imports_before_it_does(
    command, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("given").mkdir()
    Path("given/config.yaml").write_text(CODE)
    assert OPENED[command]() == 2  # no such files, and no saves either
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"given runs code of {tmp_path / file}" for file in ("envs/mine.py", "shaped.py")
    ]
    assert err.count("\n") == 1


def test_a_teachers_files_are_named_too(tmp_path, monkeypatch, capsys, make_config):
    monkeypatch.chdir(tmp_path)
    Path("given").mkdir()
    Path("given/config.yaml").write_text(CURRICULUM)
    with pytest.raises(ValueError, match="nothing has been saved yet"):
        load_teacher(make_config(pretrain=PretrainConfig(teacher="given")), None)
    assert capsys.readouterr().out == f"given runs code of {tmp_path / 'steps.py'}\n"
