"""Custom code that changes its process, such as the current folder, does not affect a run."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.children import environment
from support.paths import ROOT

from purejaxppo.config.files import load_config
from purejaxppo.runs.folder import with_absolute_paths
from purejaxppo.runs.rows import read_csv

CHANGES = ROOT / "tests/support/changes_process.py"
SMALL = (
    *("--env.num_envs", "4", "--ppo.rollout_length", "32", "--network.hidden", "4"),
    *("--eval.num_episodes", "2", "--ppo.num_epochs", "1", "--num_shards", "1"),
    *("--logging.no_tensorboard", "--logging.log_file", "debug.log"),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(CHANGES, "hostile.py")
    return tmp_path


def command(folder, *words):
    """Run a command with relative paths in a folder and return its output."""
    made = subprocess.run(
        [sys.executable, "-m", "purejaxppo", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def train_video_resume_evaluate(folder, *words):
    words = ("train", *words, "--run_dir", "run", *SMALL)
    command(folder, *words, "--total_timesteps", "256")
    out = command(folder, *words, "--total_timesteps", "512", "--video")
    assert "resuming at" in out
    assert f"video: {folder / 'run/video.mp4'}" in out
    out = command(folder, "evaluate", "--run", "run", "--episodes", "2", "--render", "x.gif")
    assert "2 episodes: return" in out
    files = ("run/video.mp4", "run/learning_curve.png", "run/debug.log", "x.gif")
    assert [name for name in files if not (folder / name).stat().st_size] == []
    assert sorted(path.name for path in folder.iterdir()) == ["hostile.py", "run", "x.gif"]
    text = (folder / "run/config.yaml").read_text(encoding="utf-8")
    assert "hostile.py" in text and str(folder) not in text


@pytest.mark.full
@pytest.mark.parametrize("workers", [pytest.param("thread", marks=pytest.mark.slow), "process"])
def test_an_environment_that_changes_its_process_is_trained_recorded_resumed_and_evaluated(
    folder, workers
):
    options = ("--env.options", "workers", workers, "num_workers", "1")
    train_video_resume_evaluate(folder, "--env.name", "gymnasium/hostile.py:Env", *options)
    rows = read_csv(folder / "run/metrics.csv")
    assert np.nansum([row["charts/diverged"] for row in rows]) > 0


@pytest.mark.full
def test_a_task_and_a_callback_that_change_their_process_are_trained_and_resumed(folder):
    task = ("--env.name", "jax/hostile.py:Task", "--callbacks", "hostile.py:callback")
    train_video_resume_evaluate(folder, *task)
    teacher = ("--pretrain.teacher", "run", "--pretrain.updates", "1")
    words = ("--run_dir", "student", *SMALL, "--total_timesteps", "256")
    assert "pretrained on the teacher run for 1 updates" in command(
        folder, "train", *task, *teacher, *words
    )


@pytest.mark.toy
def test_a_config_keeps_its_text_and_finds_files_after_a_change_of_folder(folder, monkeypatch):
    (folder / "teacher").mkdir()
    config = load_config(
        "cartpole.yaml", {"env.name": "jax/hostile.py:Task", "pretrain.teacher": "teacher"}
    )
    found = with_absolute_paths(config)
    assert found == config
    monkeypatch.chdir(Path(folder).parent)
    files = found.env.name.files | found.pretrain.teacher.files
    assert files["hostile.py"] == str(folder / "hostile.py")
    assert files["teacher"] == str(folder / "teacher")
