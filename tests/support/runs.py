"""Commands of a user in separate folders, and finished runs that tests copy."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import purejaxppo.cli.train as train_command
from purejaxppo.config import hints
from purejaxppo.runs.checkpoint import Checkpoints
from purejaxppo.setup import divide, resolve
from support.children import environment
from support.paths import OWN_CODE
from support.trees import to_numpy

CARTPOLE = """
env: {name: gymnax/CartPole-v1, num_envs: 8}
network: {hidden: [16]}
ppo: {rollout_length: 16, num_minibatches: 2, num_epochs: 2, normalize_reward: true}
eval: {num_episodes: 4}
logging: {tensorboard: false}
num_shards: 2
total_timesteps: 1024
"""

SMALL_WALK = {
    "env.num_envs": 4,
    "env.name": f"jax/{OWN_CODE}:Walk",
    "network.hidden": [4],
    "ppo.rollout_length": 8,
    "ppo.num_minibatches": 2,
    "ppo.num_epochs": 1,
    "total_timesteps": 96,
    "num_shards": 1,
}
"""Overrides of cartpole.yaml for a custom environment."""


def setup_of(config, devices=1, members=()):
    """Return the setup of a run on the first devices."""
    return divide(resolve(config, members=members), jax.devices()[:devices])


def train(config_file, *flags):
    """Run the train command, and return its exit code."""
    return train_command.main(["--config", str(config_file), *map(str, flags)])


def error_of(capsys):
    """Return the one sentence that a command printed on stderr, with nothing on stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err


@pytest.fixture
def config_file(tmp_path, monkeypatch):
    """`CARTPOLE` as small.yaml in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hints, "START", tmp_path)  # reset as at the start of a command
    path = tmp_path / "small.yaml"
    path.write_text(CARTPOLE)
    return path


@pytest.fixture(scope="session")
def run_once(tmp_path_factory):
    """A folder with `run`, of `CARTPOLE`, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.yaml").write_text(CARTPOLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train("small.yaml", "--run_dir", "run") == 0
    return folder


@pytest.fixture
def finished_run(run_once, config_file):
    """A finished run of `config_file`, copied to the current folder."""
    shutil.copytree(run_once / "run", "run")
    return Path("run")


def final_state(run_dir):
    """Return every array of the last checkpoint by name, and the counters of the run."""
    checkpoints = Checkpoints(Path(run_dir))
    progress, folder = checkpoints.progress(), Path(run_dir, "checkpoints").resolve()
    checkpoints.close()
    named = {}
    with ocp.StandardCheckpointer() as reader:
        for item in ("agent", "train"):
            tree = to_numpy(reader.restore(folder / str(progress.env_steps) / item))
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                named[item + jax.tree_util.keystr(path)] = leaf
    return named, progress


def assert_same_bits(one, other):
    """Check that two results of `final_state` are bit-identical."""
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name, strict=True)


def start(config_file, *flags):
    """Start the train command in a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "purejaxppo.train", "--config", str(config_file), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(JAX_NUM_CPU_DEVICES="2"),
    )


def wait_for(condition, process, seconds=120):
    """Wait until an effect of a process is visible."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        if process.poll() is not None:
            pytest.fail(f"ended early: {process.communicate()}")
        time.sleep(0.01)
    process.kill()
    pytest.fail("nothing happened")


def rejection(words, capsys):
    """Return the error of the train command for words that it rejects before making a folder."""
    assert train_command.main([*words, "--run_dir", "never"]) == 2
    assert not Path("never").exists()
    return error_of(capsys)


def remove_last_checkpoint(folder):
    """Remove the last of two checkpoints of a run, as if it had been killed before."""
    first, last = sorted(Path(folder, "checkpoints").glob("[0-9]*"), key=lambda p: int(p.name))
    shutil.rmtree(last)
    return int(first.name)
