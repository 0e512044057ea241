"""The outer loop: exact resumes, interrupts, one compile, and failures."""

import errno
import logging
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from support.runs import (
    CARTPOLE,
    assert_same_bits,
    final_state,
    remove_last_checkpoint,
    start,
    train,
    wait_for,
)

import purejaxppo
import purejaxppo.cli.train as train_command
from purejaxppo.agents import diagnostics, optimizers
from purejaxppo.config.files import load_config
from purejaxppo.config.schema import LoggingConfig
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.interrupts import Interrupt
from purejaxppo.parallel.shards import Shards
from purejaxppo.runs import curves, intervals, session
from purejaxppo.runs.console import Console, Stopped
from purejaxppo.runs.failures import OutOfMemoryError, saving_on_failure
from purejaxppo.runs.health import NotFiniteError
from purejaxppo.runs.hooks import Evaluate
from purejaxppo.runs.intervals import Intervals
from purejaxppo.runs.loggers import CsvLogger, Loggers
from purejaxppo.runs.loop import loop
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.progress import Progress
from purejaxppo.runs.resume import eval_settings
from purejaxppo.runs.rows import read_csv
from purejaxppo.runs.training import Training, widen

PENDULUM = CARTPOLE.replace("gymnax/CartPole-v1", "brax/inverted_pendulum")
EXTRAS = """
env: {name: gymnax/CartPole-v1, num_envs: 8, obs_indices: [0, 2], privileged_obs: true,
      randomize: {gravity: 0.1}, curriculum: {length: 0.4 to 0.5}}
network: {hidden: [16], rnn: lstm, rnn_size: 8, rnn_layers: 2,
          actor_keys: [obs], critic_keys: [state]}
intrinsic: {kind: icm, hidden: [8]}
ppo: {rollout_length: 16, bptt_length: 4, num_minibatches: 2, num_epochs: 2, critic: popart,
      optimizer: muon, weight_decay: 0.01, clip_bootstrap: observed,
      learning_rate_schedule: adaptive, recompute_advantages: true}
eval: {num_episodes: 0}
logging: {tensorboard: false}
num_shards: 2
total_timesteps: 1024
"""


def rows_of(run, *without):
    """Return the logged rows by update, without the columns that depend on time."""
    drop = ("seconds", "charts/SPS", *without)
    rows = [
        {k: v for k, v in row.items() if not k.startswith(drop)}
        for row in read_csv(Path(run, "metrics.csv"))
    ]
    assert rows
    return {row["update"]: row for row in rows}


@pytest.mark.usefixtures("optimized")
def test_a_resumed_run_equals_an_uninterrupted_run(config_file):
    flags = ("--checkpoint.interval", 512, "--run_dir")
    assert train(config_file, *flags, "whole") == 0
    shutil.copytree("whole", "half")
    assert remove_last_checkpoint("half") < 600
    assert train(config_file, *flags, "half") == 0
    whole, progress = final_state("whole")
    assert progress.update == whole["train['update']"] == 8
    assert_same_bits(final_state("half")[0], whole)
    assert rows_of("half") == rows_of("whole")


@pytest.mark.usefixtures("optimized")
def test_the_first_row_of_a_resumed_run_covers_its_whole_interval(config_file):
    """Rows after updates 4 and 8, checkpoints after 3 and 6."""
    flags = ["--logging.interval", 512, "--checkpoint.interval", 384, "--eval.num_episodes", 0]
    assert train(config_file, *flags, "--run_dir", "whole") == 0
    shutil.copytree("whole", "half")
    remove_last_checkpoint("half")
    assert train(config_file, *flags, "--run_dir", "half") == 0
    whole, half = rows_of("whole"), rows_of("half")
    assert list(whole) == list(half) == [4, 8]
    for update, row in whole.items():  # sums are computed in another order
        assert half[update] == pytest.approx(row, rel=1e-5)


def test_a_custom_env_that_cannot_be_restored_starts_from_scratch_on_resume(tmp_path):
    """The resume is after 2 of 4 updates."""
    calls = []

    class Unrestored(VectorEnv):
        def continue_at(self, update, progress):
            super().continue_at(update, progress)
            calls.append((update, progress))

    def change(parts):
        env = Unrestored(parts.env.task, 4, fresh_every_step=True)
        env.spec = replace(env.spec, restorable=False)
        return parts._replace(env=env)

    env = {"env.name": "dummy/vector", "env.num_envs": 4, "env.max_episode_steps": 5}
    ppo = {"ppo.rollout_length": 8, "ppo.num_minibatches": 1, "ppo.num_epochs": 1}
    settings = {**env, **ppo, "eval.num_episodes": 0, "logging.tensorboard": False, "num_shards": 1}
    for steps in (64, 128):
        run = purejaxppo.train(
            run_dir=tmp_path, parts=change, quiet=True, total_timesteps=steps, **settings
        )
    assert run.last.env_steps > 64
    assert calls == [(2, 0.5)]


@pytest.mark.toy
def test_counts_of_a_row_may_exceed_int32():
    most = np.array([2**31 - 1], np.int32)
    assert widen(most) + widen(most) == [2**32 - 2]
    assert widen(np.float32(1)).dtype == np.float32


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(CARTPOLE, id="gymnax", marks=pytest.mark.slow),
        pytest.param(PENDULUM, id="brax", marks=pytest.mark.slow),
    ],
)
def test_n_and_n_more_updates_equal_2n_bit_for_bit(text, config_file):
    config_file.write_text(text)
    constant = ["--ppo.learning_rate_schedule", "constant"]
    if text == PENDULUM:  # slow to compile, and CartPole already covers evaluations
        constant += ["--eval.num_episodes", "0"]
    assert train(config_file, *constant, "--run_dir", "parts", "--total_timesteps", 512) == 0
    assert train(config_file, *constant, "--run_dir", "parts") == 0
    assert train(config_file, *constant, "--run_dir", "whole") == 0
    parts, progress = final_state("parts")
    whole, _ = final_state("whole")
    assert progress.update == 8
    assert parts["train['update']"] == 8
    assert_same_bits(parts, whole)
    assert rows_of("parts", "eval") == rows_of("whole", "eval")


@pytest.mark.full
def test_a_run_with_every_extra_resumes_exactly(config_file):
    """Stop after half of the updates, because the curriculum depends on progress."""
    config_file.write_text(EXTRAS)
    flags = ("--checkpoint.interval", 512, "--run_dir")
    assert train(config_file, *flags, "whole") == 0
    shutil.copytree("whole", "half")
    config = load_config("half/config.yaml")
    assert config.intrinsic.kind == "icm"
    assert remove_last_checkpoint("half") < 600
    assert train(config_file, *flags, "half") == 0
    whole, progress = final_state("whole")
    assert progress.update == 8
    assert_same_bits(final_state("half")[0], whole)
    rows = read_csv(Path("half/metrics.csv"))
    assert [row["update"] for row in rows] == [
        row["update"] for row in read_csv(Path("whole/metrics.csv"))
    ]
    assert all(row["intrinsic/reward"] > 0 for row in rows)


@pytest.mark.usefixtures("optimized")
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.full),
        pytest.param(signal.SIGHUP, id="SIGHUP", marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_the_same_command_resumes_exactly(number, config_file):
    flags = ["--run_dir", "stopped", "--total_timesteps", "60_000", "--eval.num_episodes", "0"]
    process = start(config_file, *flags)
    wait_for(lambda: len(read_csv(Path("stopped/metrics.csv"))) > 2, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, (out, err)
    assert f"{number.name}: saved at" in out
    assert "Traceback" not in err
    _, progress = final_state("stopped")
    assert 0 < progress.update < 60_000 // 128
    assert train(config_file, *flags) == 0
    flags[1] = "whole"
    assert train(config_file, *flags) == 0
    assert_same_bits(final_state("stopped")[0], final_state("whole")[0])


@pytest.mark.xdist_group("processes")
def test_sigterm_before_the_first_update_ends_the_process_immediately(config_file):
    process = start(config_file, "--run_dir", "early", "--total_timesteps", "1e8")
    wait_for(Path("early/config.yaml").exists, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 143
    assert err == "error: interrupted; everything saved so far is kept\n"


def test_train_chunk_compiles_once_in_a_run_with_evaluations_and_checkpoints(config_file, caplog):
    before = set(threading.enumerate()) - {threading.current_thread()}  # of earlier tests
    jax.config.update("jax_log_compiles", True)  # for all threads
    try:
        with caplog.at_level(logging.WARNING):
            assert train(config_file, "--run_dir", "once", "--checkpoint.interval", 128) == 0
    finally:
        jax.config.update("jax_log_compiles", False)
    rows = read_csv(Path("once/metrics.csv"))
    assert sum("eval/return_mean" in row for row in rows) > 2
    # A thread of this run may reuse the number of a finished thread.
    others = {thread.ident for thread in before if thread.is_alive()}
    records = [r for r in caplog.records if r.thread not in others]
    lines = [r.message for r in records if "Finished XLA compilation" in r.message]
    assert len([line for line in lines if "jit(train_chunk)" in line]) == 1
    assert len([line for line in lines if "jit(evaluate)" in line]) == 1


@pytest.mark.toy
def test_the_reported_learning_rate_is_the_schedule_times_the_adaptive_factor(make_config):
    """Update 2 of 10, a warm-up of 5 updates, and an adaptive factor of 3."""
    settings = {"learning_rate_schedule": "adaptive", "learning_rate_warmup": 0.5}
    run, _ = a_run(Saves(), make_config(ppo=settings))
    run.progress.update, run.total_updates = 2, [10.0]
    row = {optimizers.RATE_FACTOR: 3.0}
    assert run.learning_rate(0.1, row, 0) == pytest.approx(0.1 * 2 / 5 * 3)
    assert run.learning_rate(0.1, {}, 0) == pytest.approx(0.1 * 2 / 5)


FULL = OSError(errno.ENOSPC, "No space left on device")


class Saves:
    """Checkpoints whose first saves fail."""

    def __init__(self, failing=0, before=None):
        self.failing, self.steps, self.closed = failing, before, False

    def save(self, state, progress, best, *, replace):
        self.failing -= 1
        if self.failing >= 0:
            raise FULL
        self.steps, self.saved = progress.env_steps, progress

    def wait(self):
        pass

    def finished(self):
        return self.steps

    def latest(self):
        return self.steps

    def progress(self):
        return self.saved

    def close(self):
        self.closed = True
        if self.failing > 0:
            raise FULL


def a_run(saves: Any, config):
    """Return a run in training without compiled programs, and the list of closed parts."""
    closed = []
    programs: Any = SimpleNamespace(
        setup=SimpleNamespace(config=config, members=(config,)),
        shards=Shards(1),
        spec=SimpleNamespace(restorable=True, metrics=()),
        failure=None,
        close=lambda: closed.append("simulators"),
    )
    progress = Progress(member_steps=[4096], member_best=[None])
    run = Training(
        programs, Path("runs/a"), Console(1, quiet=True), saves, Intervals(config), progress
    )
    run.state = "state"  # type: ignore[assignment]
    return run, closed


class EverySecond:
    """A hook that is due after every second update and may stop the run."""

    def __init__(self, stop_at=0):
        self.updates, self.stop_at = [], stop_at

    def due(self, run):
        return run.progress.update % 2 == 0

    def act(self, run):
        self.updates.append(run.progress.update)
        run.progress.stopped = "enough" if run.progress.update == self.stop_at else ""


@pytest.mark.toy
@pytest.mark.parametrize(
    ("stop_at", "signal", "updates"),
    [(0, None, [2, 4, 6]), (4, None, [2, 4]), (0, "SIGTERM", [])],
)
def test_the_loop_trains_until_its_end_a_stop_or_a_signal_and_saves(
    stop_at, signal, updates, make_config
):
    """Six updates of 48 steps. Each is a chunk, because each is logged."""
    config = make_config(total_timesteps=6 * 48, logging=LoggingConfig(interval=48))
    saves = Saves()
    run, _ = a_run(saves, config)
    one = jax.tree.map(lambda x: np.asarray(x)[None], diagnostics.zero_metrics(()))
    one = one._replace(updates=np.array([1]), env_steps=np.array([48]))
    run.programs.hp, run.programs.begin_evaluation = None, list
    run.programs.train_chunk = lambda state, hp, num_updates: (state, one)
    run.progress.member_steps, run.total_updates = [0], [6.0]
    hook, interrupt = EverySecond(stop_at), Interrupt()
    interrupt.signal = signal
    with interrupt:
        loop(run, [hook], interrupt)
    assert hook.updates == updates
    assert saves.steps == 48 * (updates[-1] if updates else 0)


@pytest.mark.toy
def test_failed_evaluation_of_the_best_agent_does_not_change_its_settings(make_config):
    def fails(agent, key):
        raise SimulatorError("lost")

    run, _ = a_run(Saves(), make_config())
    run.best, run.progress.member_best = SimpleNamespace(agent=None), [10.0]
    run.progress.eval_settings = eval_settings(make_config(eval={"max_steps": 7}))
    run.programs.key, run.programs.evaluate = jax.random.split(jax.random.key(0), 1), fails
    with pytest.raises(SimulatorError):
        Evaluate(run).update_best(run)
    assert run.progress.eval_settings["eval.max_steps"] == 7
    assert run.progress.member_best == [10.0]


@pytest.mark.parametrize(
    ("saves", "done"),
    [
        (Saves(), "Saved at 4,096 steps in runs/a"),
        (Saves(9, before=2048), "The last checkpoint in runs/a is at 2,048 steps"),
        (Saves(9), "No checkpoint could be saved in runs/a"),
    ],
)
def test_an_error_between_chunks_is_reported_after_a_save(saves, done, make_config):
    run, closed = a_run(saves, make_config())
    with pytest.raises(Stopped) as failed, saving_on_failure(run):
        raise RuntimeError("events cannot\nbe written")
    then = "start again" if done.startswith("No checkpoint") else "resume"
    assert str(failed.value) == (
        f"RuntimeError: events cannot be written. {done}. Fix the cause, then run the same command "
        f"to {then}."
    )
    assert closed == ["simulators"]


def test_stopped_and_not_finite_errors_pass_through_without_a_save(make_config):
    told = (Stopped("full disk"), NotFiniteError("nan"), SimulatorError("worker 3 died"))
    for error in told:
        saves = Saves()
        run, _ = a_run(saves, make_config())
        with pytest.raises(type(error)) as failed, saving_on_failure(run):
            raise error
        if not isinstance(error, SimulatorError):
            assert failed.value is error
            assert saves.steps is None
        else:
            assert saves.steps == 4096  # after a simulator's failure the run is saved


@pytest.mark.toy
@pytest.mark.parametrize("training", [False, True])
def test_out_of_memory_is_a_one_sentence_error_after_a_save(training, make_config):
    saves = Saves()
    run, _ = a_run(saves, make_config())
    run.state = run.state if training else None
    expected_message = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 GiB"
    sentence = r"too little memory for env.num_envs = 4 .*9 GiB"
    sentence += r".*\. Saved at 4,096 steps in runs/a\." if training else r".*on the device\.$"
    with pytest.raises(OutOfMemoryError, match=sentence), saving_on_failure(run):
        raise jax.errors.JaxRuntimeError(expected_message)
    assert saves.steps == (4096 if training else None)
    run.state = None
    with pytest.raises(jax.errors.JaxRuntimeError), saving_on_failure(run):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_a_state_that_is_not_finite_is_not_saved_after_another_failure(make_config):
    run, _ = a_run(Saves(before=128), make_config())
    run.lost = True
    expected_message = "The last checkpoint in runs/a is at 128 steps"
    with pytest.raises(Stopped, match=expected_message), saving_on_failure(run):
        raise FULL


def test_simulators_are_closed_even_if_loggers_and_checkpoints_fail(make_config):
    class Broken:
        def close(self):
            raise FULL

    run, closed = a_run(Saves(9), make_config())
    run.loggers, run.state = Loggers([Broken(), Broken()]), None
    with pytest.raises(OSError, match="No space left"):
        run.close()
    assert closed == ["simulators"]
    assert run.checkpoints.closed
    with pytest.raises(ValueError, match="first"), saving_on_failure(run):
        raise ValueError("first")  # an error of closing does not hide it


@pytest.mark.parametrize(
    ("seconds", "saves"),
    [pytest.param(0.0, [*range(1, 9), 8], marks=pytest.mark.full), (1e9, [8])],
)
def test_a_short_run_saves_once_and_a_longer_one_at_every_tenth(
    seconds, saves, config_file, monkeypatch
):
    """Eight updates. The last one is saved again at the end, which does nothing."""
    monkeypatch.setattr(intervals, "SECONDS_BETWEEN_SAVES", seconds)
    made, save = [], Training.save

    def saved(run):
        made.append(run.progress.update)
        return save(run)

    monkeypatch.setattr(Training, "save", saved)
    assert train(config_file, "--run_dir", "run", "--eval.num_episodes", 0) == 0
    assert made == saves


def test_a_run_on_a_full_disk_is_saved_and_the_same_command_resumes(
    config_file, monkeypatch, capsys
):
    command = ["--config", "small.yaml", "--run_dir", "run", "--checkpoint.interval", "1024"]
    command += ["--eval.num_episodes", "0"]
    write, close, closed = CsvLogger.write, Programs.close, []

    def full(logger, rows):
        if rows[0]["update"] == 3:
            raise FULL
        write(logger, rows)

    monkeypatch.setattr(Programs, "close", lambda self: (closed.append(True), close(self)))
    monkeypatch.setattr(CsvLogger, "write", full)
    assert train_command.main(command) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: no space left on device. Saved at ")
    assert err.count("\n") == 1
    assert closed
    monkeypatch.setattr(CsvLogger, "write", write)
    assert train_command.main(command) == 0
    assert [row["update"] for row in read_csv(Path("run/metrics.csv"))] == list(range(1, 9))


def test_a_run_completes_when_its_output_is_closed(config_file, monkeypatch):
    """Like `train | head -n 1`, on a terminal that cannot encode the folder's name."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    process = start(config_file, "--run_dir", "größe", "--total_timesteps", "1280")
    assert process.stdout.readline().endswith(r"Run folder: gr\xf6\xdfe" + "\n")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(100) == 0
    steps = [path.name for path in Path("größe/checkpoints").iterdir()]
    assert max(map(int, steps)) == read_csv(Path("größe/metrics.csv"))[-1]["global_step"]


def test_a_failed_plot_does_not_fail_the_run(config_file, monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise RuntimeError("no fonts")

    monkeypatch.setattr(curves, "draw_returns", broken)
    assert train(config_file, "--run_dir", "run", "--total_timesteps", 128) == 0
    assert "no learning curve: RuntimeError: no fonts\n" in capsys.readouterr().out


def test_simulators_are_closed_if_opening_the_run_fails(config_file, monkeypatch, capsys):
    closed = []
    monkeypatch.setattr(Programs, "close", lambda self: closed.append(True))

    def refused(*args):
        raise ValueError("logging.wandb_project = p: no login")

    monkeypatch.setattr(session, "open_loggers", refused)
    assert train_command.main(["--config", "small.yaml", "--run_dir", "run"]) == 2
    assert capsys.readouterr().err == "error: logging.wandb_project = p: no login\n"
    assert closed
    assert not Path("run/learning_curve.png").exists()
