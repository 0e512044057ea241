"""Commands as a user gives them, in folders of their own, and finished runs that tests copy."""

import shutil
from pathlib import Path

import pytest

import purejaxppo.train as train_command

CARTPOLE = """
env: {name: gymnax/CartPole-v1, num_envs: 8}
network: {hidden: [16]}
ppo: {rollout_length: 16, num_minibatches: 2, num_epochs: 2, normalize_reward: true}
eval: {num_episodes: 4}
logging: {tensorboard: false}
num_shards: 2
total_timesteps: 1024
"""


def train(config_file, *flags):
    """The exit code of the train command."""
    return train_command.main(["--config", str(config_file), *map(str, flags)])


def error_of(capsys):
    """The one sentence that a command said on stderr, and nothing on stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err


@pytest.fixture
def config_file(tmp_path, monkeypatch):
    """`CARTPOLE` as small.yaml in an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(CARTPOLE)
    return path


@pytest.fixture(scope="session")
def run_once(tmp_path_factory):
    """A folder with `run`, of `CARTPOLE`, which nobody changes."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.yaml").write_text(CARTPOLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train("small.yaml", "--run_dir", "run") == 0
    return folder


@pytest.fixture
def finished_run(run_once, config_file):
    """A finished run of `config_file`: a copy in the current folder."""
    shutil.copytree(run_once / "run", "run")
    return Path("run")
