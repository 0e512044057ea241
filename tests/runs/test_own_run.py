"""A custom environment, network and auxiliary loss in one run: killed, resumed, exported, swept."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT
from support.runs import assert_same_bits, final_state, train

from purejaxppo.export import __main__ as export
from purejaxppo.export import player
from purejaxppo.runs.checkpoint import restore
from purejaxppo.runs.folder import steps_of

OWN = """
from support.own_code import Dense, Walk, next_position
"""
CONFIG = """
env: {name: "jax/mine.py:Walk", num_envs: 4}
network: {torso: "mine.py:Dense"}
ppo: {terms: ["mine.py:next_position"], rollout_length: 8, num_minibatches: 2, num_epochs: 1}
eval: {num_episodes: 2}
checkpoint: {interval: 1}
logging: {tensorboard: false}
num_shards: 1
total_timesteps: 512
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "own.yaml").write_text(CONFIG)
    return tmp_path


def last_row(run):
    with Path(run, "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))[-1]


@pytest.mark.full
def test_a_killed_run_resumed_from_its_copy_equals_an_uninterrupted_run(folder):
    assert train("own.yaml", "--run_dir", "whole") == 0
    assert float(last_row("whole")["losses/next_position"]) > 0
    command = [sys.executable, "-m", "purejaxppo.train", "--config", "own.yaml", "--run_dir", "cut"]
    path = f"{ROOT}:{ROOT / 'tests'}"
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL
    )
    while process.poll() is None and not steps_of(Path("cut")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (folder / "mine.py").write_text("raise SystemError\n")
    assert train("own.yaml", "--run_dir", "cut") == 0
    assert_same_bits(final_state("cut")[0], final_state("whole")[0])


@pytest.mark.full
def test_a_run_killed_in_its_first_checkpoint_starts_again_with_the_new_code(folder, capsys):
    assert train("own.yaml", "--run_dir", "run", "--total_timesteps", "64") == 0
    last, *others = sorted(Path("run/checkpoints").iterdir(), reverse=True)
    last.rename(f"{last}.orbax-checkpoint-tmp")
    for path in others:
        shutil.rmtree(path)
    (folder / "mine.py").write_text(f"{OWN}# changed\n")
    capsys.readouterr()
    assert train("own.yaml", "--run_dir", "run", "--total_timesteps", "64") == 0
    assert f"run uses code from {folder / 'mine.py'}\n" in capsys.readouterr().out
    (copy,) = Path("run/code").glob("*/mine.py")
    assert copy.read_text() == (folder / "mine.py").read_text()
    assert int(last.name) in steps_of(Path("run"))


@pytest.mark.full
def test_a_policy_is_exported_without_its_custom_code(folder):
    assert train("own.yaml", "--run_dir", "run", "--total_timesteps", "64") == 0
    (folder / "mine.py").unlink()
    for name in ("policy.npz", "policy.onnx"):  # each is compared with the checkpoint
        assert export.main(["--run", "run", "--to", name]) == 0
    played = player.load("policy.npz")
    obs = np.linspace(-1, 1, 6, dtype=np.float32)[:, None]
    action = restore("run").controller()(None, obs)
    np.testing.assert_array_equal(np.ravel([played(row[None])[0] for row in obs]), np.ravel(action))
