"""What fails beside the training costs nothing that was trained."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

import purejaxppo.train as train_command
from purejaxppo import reporting
from purejaxppo.checkpoint import Progress
from purejaxppo.envs.host import SimulatorError
from purejaxppo.loop import Programs, Run

FULL = OSError(errno.ENOSPC, "No space left on device")
SMALL = """
env: {name: gymnax/CartPole-v1, num_envs: 8}
network: {hidden: [16]}
ppo: {rollout_length: 16, num_minibatches: 2, num_epochs: 2, learning_rate_schedule: constant}
eval: {num_episodes: 4}
num_shards: 1
total_timesteps: 1024
"""


class Saves:
    """Saves of which the first few fail."""

    def __init__(self, failing=0, before=None):
        self.failing, self.steps, self.closed = failing, before, False

    def save(self, state, progress, best):
        self.failing -= 1
        if self.failing >= 0:
            raise FULL
        self.steps = progress.env_steps

    def wait(self):
        pass

    def finished(self):
        return self.steps

    def close(self):
        self.closed = True
        if self.failing > 0:
            raise FULL


def a_run(saves, make_config):
    """A run of which only what surrounds the training is there."""
    run = object.__new__(Run)
    env = SimpleNamespace(spec=SimpleNamespace(restorable=True), failure=None)
    closed = []
    run.programs = SimpleNamespace(
        learner=SimpleNamespace(env=env), failure=None, close=lambda: closed.append("simulators")
    )
    run.config, run.checkpoints, run.run_dir = make_config(), saves, Path("runs/a")
    run.progress, run.best, run.sinks = Progress(env_steps=4096), None, []
    return run, closed


@pytest.mark.parametrize(
    ("saves", "done"),
    [
        (Saves(), "saved at 4,096 steps in runs/a"),
        (Saves(9, before=2048), "not saved at 4,096 steps, only at 2,048 before, in runs/a"),
        (Saves(9), "nothing could be saved in runs/a"),
    ],
)
def test_what_fails_between_chunks_is_named_after_a_save(saves, done, make_config):
    run, _ = a_run(saves, make_config)
    with pytest.raises(reporting.Stopped) as failed, run._between_chunks("state"):
        raise RuntimeError("events cannot\nbe written")
    assert str(failed.value) == (
        f"RuntimeError: events cannot be written; {done}; once that is mended, the same command "
        f"resumes"
    )


def test_who_has_said_it_all_saves_nothing(make_config):
    for error in (reporting.Stopped("not finite"), SimulatorError("worker 3 died")):
        saves = Saves()
        run, _ = a_run(saves, make_config)
        with pytest.raises(type(error)) as failed, run._between_chunks("state"):
            raise error
        if isinstance(error, reporting.Stopped):
            assert failed.value is error
            assert saves.steps is None
        else:
            assert saves.steps == 4096  # a simulator's failure saves by itself


def test_simulators_are_closed_whatever_else_cannot_be(make_config):
    class Broken:
        def close(self):
            raise FULL

    run, closed = a_run(Saves(9), make_config)
    run.sinks = [Broken(), Broken()]
    with pytest.raises(OSError, match="No space left"):
        run.close()
    assert closed == ["simulators"]
    assert run.checkpoints.closed
    with pytest.raises(ValueError, match="first"), train_command.closed_after_failure(run):
        raise ValueError("first")  # and what comes of closing does not hide it


def test_a_full_disk_loses_nothing_and_the_same_command_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    command = ["--config", "small.yaml", "--run_dir", "run", "--checkpoint.interval", "1024"]
    write, close, closed = reporting.CsvSink.write, Programs.close, []

    def full(sink, row):
        if row["update"] == 3:
            raise FULL
        write(sink, row)

    monkeypatch.setattr(Programs, "close", lambda self: (closed.append(True), close(self)))
    monkeypatch.setattr(reporting.CsvSink, "write", full)
    assert train_command.main(command) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: OSError: [Errno 28] No space left on device; saved at ")
    assert err.count("\n") == 1
    assert closed
    monkeypatch.setattr(reporting.CsvSink, "write", write)
    assert train_command.main(command) == 0
    assert [row["update"] for row in reporting.read_csv(Path("run/metrics.csv"))][:4] == [
        1,
        2,
        4,
        5,
    ]


def test_simulators_are_closed_if_nothing_could_be_prepared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    closed = []
    monkeypatch.setattr(Programs, "close", lambda self: closed.append(True))

    def refused(run):
        raise ValueError("logging.wandb_project = p: no login")

    monkeypatch.setattr(Run, "open_sinks", refused)
    assert train_command.main(["--config", "small.yaml", "--run_dir", "run"]) == 2
    assert capsys.readouterr().err == "error: logging.wandb_project = p: no login\n"
    assert closed
    assert not Path("run/learning_curve.png").exists()
