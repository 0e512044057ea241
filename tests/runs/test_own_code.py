"""A run keeps copies of custom files, and later commands use the copies."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.runs import assert_same_bits, final_state, remove_last_checkpoint, train

from purejaxppo import restore
from purejaxppo.config import copies
from purejaxppo.runs.evaluation import evaluate
from purejaxppo.runs.folder import imports
from purejaxppo.sweep import packing

MINE = """
import json
from pathlib import Path

import jax.numpy as jnp

from . import aside
from .aside import SIGN
from support.own_code import Dense, Doubled, Walk, counted

def objective(log_ratio, advantage, hp):
    return SCALE * SIGN * jnp.exp(log_ratio) * advantage

SCALE = json.loads(Path(__file__).with_name("levels.json").read_text())["scale"]
assert aside.SIGN == SIGN and (Path(__file__).parent / "meshes" / "leg.stl").read_bytes()
"""
CONFIG = """
env: {name: "jax/mine.py:Walk", num_envs: 4, wrappers: ["mine.py:Doubled"]}
network: {torso: "mine.py:Dense"}
ppo:
  objective: mine.py:objective
  learner: mine.py:counted
  rollout_length: 8
  num_minibatches: 2
  num_epochs: 1
eval: {num_episodes: 2}
checkpoint: {interval: 64}
logging: {tensorboard: false}
num_shards: 1
total_timesteps: 256
"""


def write(folder):
    (folder / "mine.py").write_text(MINE)
    (folder / "aside.py").write_text("SIGN = -1.0\n")
    (folder / "own.yaml").write_text(CONFIG)
    (folder / "levels.json").write_text('{"scale": 1.0}')
    (folder / "meshes").mkdir(exist_ok=True)
    (folder / "meshes/leg.stl").write_bytes(b"leg")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with custom files and `run`, which was trained with them."""
    folder = tmp_path_factory.mktemp("own")
    write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train("own.yaml", "--run_dir", "run") == 0
    return folder


@pytest.fixture
def other_folder(trained, tmp_path, monkeypatch):
    """A new current folder with a copy of the run, as on a computer without the custom files."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained / "run", "run")
    index = tmp_path / "run/code/files.json"
    index.write_text(index.read_text().replace(str(trained.resolve()), "/nowhere"))
    return tmp_path


@pytest.mark.toy
def test_files_are_copied_with_their_imports(trained):
    (entry,) = copies.index(trained / "run").values()
    copy = trained / "run/code" / entry["copy"]
    assert copy.read_text() == MINE
    assert (copy.parent / "aside.py").read_text() == "SIGN = -1.0\n"
    assert entry["original"] == str((trained / "mine.py").resolve())
    text = (trained / "run/config.yaml").read_text()
    assert "name: jax/mine.py:Walk" in text
    assert "objective: mine.py:objective" in text
    original = trained.resolve() / "mine.py"
    assert imports(trained / "run") == [f"{trained / 'run'} uses code from {original}"]


@pytest.mark.toy
def test_a_run_is_restored_elsewhere_from_its_copy(other_folder):
    agent = restore("run")
    assert str(other_folder / "run/code") in agent.config.env.name.files["mine.py"]
    assert evaluate(agent, 2).returns.shape == (2,)


@pytest.mark.toy
def test_a_changed_original_is_reported_and_not_used(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    shutil.copytree(trained / "run", "run")
    index = tmp_path / "run/code/files.json"
    index.write_text(index.read_text().replace(str(trained), str(tmp_path)))
    assert "has changed" not in imports("run")[0]
    remedy = "To use the new version, replace the copy"
    (tmp_path / "aside.py").write_text("SIGN = 1 / 0\n")
    (line,) = imports("run")
    assert line.endswith(
        f"not from {tmp_path}/mine.py: aside.py next to it has changed since. {remedy}"
    )
    restore("run")
    (tmp_path / "mine.py").write_text("raise SystemError\n")
    (line,) = imports("run")
    assert line.endswith(f", not from {tmp_path}/mine.py: it has changed since. {remedy}")
    restore("run")


def test_a_run_resumed_elsewhere_equals_an_uninterrupted_run(trained, other_folder, capfd):
    shutil.copy(trained / "own.yaml", "own.yaml")
    remove_last_checkpoint("run")
    (other_folder / "mine.py").write_text("raise SystemError\n")
    assert train("own.yaml", "--run_dir", "run") == 0
    assert_same_bits(final_state("run")[0], final_state(trained / "run")[0])


LATE = {
    "ppo.learner": """from purejaxppo import Learner
def learn(*args):
    1 / 0
mine = Learner(learn)
""",
    "network.torso": """from flax import linen as nn
class mine(nn.Module):
    config: object
    def __call__(self, x):
        return x * (1 // (len(x) < 100))  # rows of one step, but not of a minibatch
""",
}
"""Setting -> custom code that raises an error only in training."""


@pytest.mark.toy
@pytest.mark.parametrize("setting", LATE)
def test_code_that_raises_in_training_leaves_no_run_folder(setting, tmp_path, monkeypatch, capsys):
    """A folder would contain the copy of the code, and a fix of the code would have no effect."""
    monkeypatch.chdir(tmp_path)
    Path("late.py").write_text(LATE[setting])
    assert train("cartpole.yaml", "--run_dir", "run", f"--{setting}", "late.py:mine") == 2
    error = capsys.readouterr().err
    assert f"{setting} = late.py:mine: line " in error and "ZeroDivisionError" in error
    assert not Path("run").exists()


def test_damaged_copies_get_a_one_sentence_error(other_folder, capsys):
    Path("run/code/files.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"files.json: the file was edited or is corrupt"):
        restore("run")
    shutil.rmtree("run/code")
    with pytest.raises(ValueError, match=r"env.name: mine.py: no such file in"):
        _ = restore("run").policy


@pytest.mark.toy
def test_equal_names_in_two_folders_do_not_collide(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"x = '{name}'\n")
    copies.add(tmp_path, {f"{name}/mine.py": tmp_path / name / "mine.py" for name in "ab"})
    found = copies.of_run(tmp_path)
    assert [Path(found[f"{name}/mine.py"]).read_text() for name in "ab"] == [
        "x = 'a'\n",
        "x = 'b'\n",
    ]


def test_a_run_is_evaluated_elsewhere_in_a_new_process(other_folder):
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "purejaxppo.evaluate", "--run", "run", "--episodes", "2"]
    out = subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout
    assert "run uses code from" in out
    assert "2 episodes: return" in out


@pytest.mark.full
def test_a_sweep_keeps_its_own_copies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(packing, "measure", lambda setup, size: size * 1e3)
    write(tmp_path)
    from purejaxppo.sweep.__main__ import main

    words = ["--config", "own.yaml", "--grid", "ppo.gamma=0.9,0.99", "--run_dir", "swept"]
    assert main(words) == 0
    assert Path("swept/code/files.json").is_file()
    assert list(Path("swept").glob("rounds/*/*/batch-*/code/*/mine.py"))
    Path("mine.py").write_text("raise SystemError\n")
    before = Path("swept/results.csv").read_text()
    assert main(words) == 0  # finished, so the file is not read again
    assert Path("swept/results.csv").read_text() == before
