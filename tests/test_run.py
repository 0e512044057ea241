"""Runs as a user makes them: resumed exactly, interrupted, killed, clobbered, finished."""

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purejaxppo.evaluate as evaluate_command
import purejaxppo.train as train_command
from purejaxppo import configio, restore
from purejaxppo.agents import optimizers
from purejaxppo.checkpoint import Checkpoints, Progress
from purejaxppo.evaluation import evaluate
from purejaxppo.learner import Learner
from purejaxppo.loop import Programs, Run
from purejaxppo.reporting import read_csv

CARTPOLE = """
env: {name: gymnax/CartPole-v1, num_envs: 8}
network: {hidden: [16]}
ppo: {rollout_length: 16, num_minibatches: 2, num_epochs: 2, normalize_reward: true}
eval: {num_episodes: 4}
num_shards: 2
total_timesteps: 1024
"""
PENDULUM = CARTPOLE.replace("gymnax/CartPole-v1", "brax/inverted_pendulum")
EXTRAS = """
env: {name: gymnax/CartPole-v1, num_envs: 8, visible: [0, 2], full_state: true,
      randomize: {gravity: 0.1}, curriculum: {length: 0.4 to 0.5}}
network: {hidden: [16], memory: lstm, memory_size: 8, actor_keys: [obs], critic_keys: [state]}
intrinsic: {kind: icm, hidden: [8]}
ppo: {rollout_length: 16, bptt_length: 4, num_minibatches: 2, num_epochs: 2, critic: popart,
      optimizer: muon, weight_decay: 0.01, clip_bootstrap: observed, kl_rate: true,
      recompute_advantages: true}
eval: {num_episodes: 4}
num_shards: 2
total_timesteps: 1024
"""


@pytest.fixture
def config_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(CARTPOLE)
    return path


def train(config_file, *flags):
    return train_command.main(["--config", str(config_file), *map(str, flags)])


def final_state(run_dir):
    """Every array of the last save, by name, as numpy."""
    config = configio.load_config(Path(run_dir) / "config.yaml")
    programs = Programs(config, jax.devices())
    checkpoints = Checkpoints(Path(run_dir))
    state, progress = checkpoints.restore(programs.init())
    checkpoints.close()
    state = state.replace(key=jax.random.key_data(state.key))
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = jax.random.key_data(leaf) if is_key else leaf
        named[jax.tree_util.keystr(path)] = np.asarray(array)
    return named, progress


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name, strict=True)


def test_the_reported_rate_is_that_of_the_schedule_times_the_adapted_factor(make_config):
    """Two of ten updates, a warm-up of five, and a rate that has become three times as large."""
    settings = {"learning_rate_schedule": "constant", "learning_rate_warmup": 0.5, "kl_rate": True}
    run = SimpleNamespace(
        config=make_config(ppo=settings),
        intervals=SimpleNamespace(total=10),
        progress=SimpleNamespace(update=2),
    )
    row = {optimizers.RATE_FACTOR: 3.0}
    assert Run._learning_rate(run, 0.1, row) == pytest.approx(0.1 * 2 / 5 * 3)
    assert Run._learning_rate(run, 0.1, {}) == pytest.approx(0.1 * 2 / 5)


@pytest.mark.parametrize("text", [CARTPOLE, PENDULUM], ids=["gymnax", "brax"])
def test_n_and_n_more_updates_equal_2n_bit_for_bit(text, config_file):
    config_file.write_text(text)
    constant = ("--ppo.learning_rate_schedule", "constant")
    assert train(config_file, *constant, "--run_dir", "parts") == 0
    assert train(config_file, *constant, "--run_dir", "parts", "--total_timesteps", 2048) == 0
    assert train(config_file, *constant, "--run_dir", "whole", "--total_timesteps", 2048) == 0
    parts, progress = final_state("parts")
    whole, _ = final_state("whole")
    assert progress.update == 16
    assert parts[".update"] == 16
    assert_same_bits(parts, whole)
    drop = ("seconds", "charts/SPS")
    rows = [
        {
            row["update"]: {k: v for k, v in row.items() if k not in drop and "eval" not in k}
            for row in read_csv(Path(run, "metrics.csv"))
        }
        for run in ("parts", "whole")
    ]
    assert rows[0] == rows[1]


def test_a_run_with_every_extra_resumes_exactly(config_file):
    """Stopped after half of its updates, as progress decides what its curriculum is at."""
    config_file.write_text(EXTRAS)
    assert train(config_file, "--run_dir", "whole") == 0
    shutil.copytree("whole", "half")
    config = configio.load_config("half/config.yaml")
    assert config.intrinsic.kind == "icm"
    saves = sorted(int(p.name) for p in Path("half/checkpoints").glob("[0-9]*"))
    for last in saves[1:]:
        shutil.rmtree(f"half/checkpoints/{last}")
    assert len(saves) == 2
    assert train(config_file, "--run_dir", "half") == 0
    whole, progress = final_state("whole")
    assert progress.update == 8
    assert_same_bits(final_state("half")[0], whole)
    rows = read_csv(Path("half/metrics.csv"))
    assert [row["update"] for row in rows] == [
        row["update"] for row in read_csv(Path("whole/metrics.csv"))
    ]
    assert all(row["intrinsic/reward"] > 0 for row in rows)


def test_an_imitated_teacher_is_needed_at_the_start_alone(config_file, capsys):
    assert train(config_file, "--run_dir", "teacher") == 0
    flags = ["--run_dir", "student", "--network.memory", "gru", "--imitate.teacher"]
    shared = ["--imitate.updates", "2"]
    for teacher, words in [("nobody", "there is no such run folder"), ("empty", "")]:
        Path("empty").mkdir(exist_ok=True)
        assert train(config_file, *flags, teacher) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and words in err
        assert not Path("student").exists()
    assert train(config_file, *flags, "teacher", *shared) == 0
    assert "imitated teacher for 2 updates" in capsys.readouterr().out
    shutil.rmtree("teacher")
    assert train(config_file, *flags, "teacher", *shared, "--total_timesteps", 2048) == 0
    assert "resuming at" in capsys.readouterr().out


def start(config_file, *flags):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "purejaxppo.train", "--config", str(config_file), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "2"},
    )


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        if process.poll() is not None:
            pytest.fail(f"ended early: {process.communicate()}")
        time.sleep(0.01)
    process.kill()
    pytest.fail("nothing happened")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_saves_and_the_same_command_resumes_exactly(number, config_file):
    flags = ["--run_dir", "stopped", "--total_timesteps", "150_000", "--eval.num_episodes", "0"]
    process = start(config_file, *flags)
    wait_for(lambda: len(read_csv(Path("stopped/metrics.csv"))) > 2, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, (out, err)
    assert f"{number.name}: saved at" in out
    assert "Traceback" not in err
    _, progress = final_state("stopped")
    assert 0 < progress.update < 150_000 // 128
    assert train(config_file, *flags) == 0
    flags[1] = "whole"
    assert train(config_file, *flags) == 0
    assert_same_bits(final_state("stopped")[0], final_state("whole")[0])


def test_kill_9_at_any_moment_never_loses_the_last_good_save(config_file):
    flags = ["--run_dir", "killed", "--total_timesteps", "100_000_000"]
    flags += ["--checkpoint.interval", "128", "--logging.interval", "128"]
    flags += ["--eval.interval", "1280"]
    chance = random.Random(0)
    saved = 0
    for _ in range(5):
        process = start(config_file, *flags)
        folder = Path("killed/checkpoints")
        fresh = saved

        def newer(folder=folder, fresh=fresh):
            return any(int(p.name) > fresh for p in folder.glob("[0-9]*") if p.name.isdigit())

        wait_for(newer, process)
        time.sleep(chance.random())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        agent = restore("killed", "last")
        assert agent.env_steps > saved
        saved = agent.env_steps
        restore("killed", "best")
        state, progress = final_state("killed")
        assert progress.env_steps == saved
        assert all(np.isfinite(x).all() for name, x in state.items() if "params" in name)
        steps = [row["global_step"] for row in read_csv(Path("killed/metrics.csv"))]
        assert steps == sorted(set(steps))
        # rows reach the disk before saves do: at most one save interval lies between them
        assert len([s for s in steps if s > saved]) <= 2


def test_train_chunk_compiles_once_in_a_run_with_evaluations_and_saves(config_file, caplog):
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        assert train(config_file, "--run_dir", "once", "--checkpoint.interval", 128) == 0
    rows = read_csv(Path("once/metrics.csv"))
    assert sum("eval/return_mean" in row for row in rows) > 2
    lines = [r.message for r in caplog.records if "Finished XLA compilation" in r.message]
    assert len([line for line in lines if "train_shard" in line]) == 1
    assert len([line for line in lines if "jit(evaluate)" in line]) == 1


def test_a_finished_run_says_so_and_changes_nothing(config_file, capsys):
    assert train(config_file, "--run_dir", "run") == 0
    before = {p: p.stat().st_mtime_ns for p in Path("run").rglob("*") if p.is_file()}
    capsys.readouterr()
    assert train(config_file, "--run_dir", "run") == 0
    assert "run is finished: " in capsys.readouterr().out
    after = {p: p.stat().st_mtime_ns for p in Path("run").rglob("*") if p.is_file()}
    before.pop(Path("run/.lock"))
    after.pop(Path("run/.lock"))
    assert before == after


def test_a_changed_structural_field_is_refused_by_name(config_file, capsys):
    assert train(config_file, "--run_dir", "run") == 0
    capsys.readouterr()
    assert train(config_file, "--run_dir", "run", "--env.num_envs", 16) == 2
    error = capsys.readouterr().err
    assert "run was trained with env.num_envs = 8, not 16" in error
    assert "--clobber" in error
    assert restore("run").config.env.num_envs == 8


def test_a_changed_tunable_is_announced(config_file, capsys):
    assert train(config_file, "--run_dir", "run") == 0
    flags = ("--run_dir", "run", "--total_timesteps", 2048, "--ppo.ent_coef", "0.01")
    assert train(config_file, *flags) == 0
    assert "ppo.ent_coef changes from 0.0 to 0.01" in capsys.readouterr().out


def test_a_longer_run_says_which_schedules_move_back_up(make_config):
    def config(steps, **ppo):
        ppo = {"learning_rate": 1e-3, "learning_rate_schedule": "linear", **ppo}
        return make_config(total_timesteps=steps, ppo=ppo)

    size = config(1).steps_per_update
    said = train_command.moved_schedules(config(10 * size), config(40 * size), 10)
    assert said == (
        f"total_timesteps changes from {10 * size:,} to {40 * size:,}, so that 25% of the run is "
        f"done and no longer 100%, which moves ppo.learning_rate from 0 to 0.00075"
    )
    constant = {"learning_rate_schedule": "constant"}
    whole, longer = config(10 * size, **constant), config(40 * size, **constant)
    assert train_command.moved_schedules(whole, longer, 10) == ""
    assert train_command.moved_schedules(config(10 * size), config(10 * size), 5) == ""
    fading = {**constant, "ent_coef": 0.01, "ent_schedule": "linear"}
    said = train_command.moved_schedules(whole, config(20 * size, **fading), 5)
    assert said.endswith(
        "25% of the run is done and no longer 50%, which moves ppo.ent_coef from 0.005 to 0.0075"
    )


def test_a_resumed_run_says_once_that_its_schedules_move(config_file, capsys):
    for steps, count in ((512, 0), (1024, 1), (1024, 0)):
        assert train(config_file, "--run_dir", "run", "--total_timesteps", steps) == 0
        lines = capsys.readouterr().out.splitlines()
        assert sum("moves ppo.learning_rate" in line for line in lines) == count


def test_clobber_starts_afresh(config_file):
    assert train(config_file, "--run_dir", "run") == 0
    flags = ("--run_dir", "run", "--clobber", "--env.num_envs", 16)
    assert train(config_file, *flags) == 0
    assert restore("run", "last").config.env.num_envs == 16
    assert read_csv(Path("run/metrics.csv"))[0]["update"] == 1


def test_a_run_folder_holds_what_is_needed_to_make_it_again(config_file):
    assert train(config_file, "--run_dir", "run", "--logging.log_file", "debug.log") == 0
    run = Path("run")
    versions = json.loads((run / "versions.json").read_text())
    assert versions["packages"]["jax"] == jax.__version__
    assert configio.load_config(run / "config.yaml") == restore("run").config
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").glob("events.*"))
    assert "losses/policy_loss" in (run / "debug.log").read_text()


def test_evaluate_restores_and_reports_exactly_the_episodes_asked_for(config_file, capsys):
    assert train(config_file, "--run_dir", "run", "--total_timesteps", 20_000) == 0
    capsys.readouterr()
    command = ["--run", "run", "--episodes", "13", "--render", "film.gif"]
    assert evaluate_command.main(command) == 0
    out = capsys.readouterr().out
    assert "13 episodes: return" in out
    assert Path("film.gif").read_bytes().startswith(b"GIF8")
    agent = restore("run", "last")
    result = evaluate(agent, 300, seed=1)
    assert result.returns.shape == result.lengths.shape == (300,)
    np.testing.assert_array_equal(result.returns, result.lengths)  # CartPole pays 1 per step
    again = evaluate(agent, 300, seed=1)
    np.testing.assert_array_equal(result.returns, again.returns)
    sampled = evaluate(agent, 300, seed=1, deterministic=False)
    assert sampled.returns.mean() < result.returns.mean()
    # a run whose evaluations sample is evaluated so unless it is said otherwise
    saved = Path("run/config.yaml")
    saved.write_text(saved.read_text().replace("stochastic: false", "stochastic: true"))
    agent = restore("run", "last")
    assert agent.config.eval.stochastic
    np.testing.assert_array_equal(evaluate(agent, 300, seed=1).returns, sampled.returns)
    for flags, policy in (([], "stochastic"), (["--deterministic"], "deterministic")):
        assert evaluate_command.main(["--run", "run", "--episodes", "2", *flags]) == 0
        assert f"steps, {policy} policy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--run needs the folder of a run"),
        (["--run", "run", "--stochastic", "--deterministic"], "only one of them can be"),
        (["run"], "'run' is no flag; did you mean --run run?"),
        (["--run", "nowhere"], "nowhere: not a run folder"),
        (["--run", "run", "--checkpoint", "7"], "no checkpoint '7'; there is last, 640"),
        (["--run", "run", "--episodes", "0"], "--episodes 0 must be at least 1"),
        (["--run", "run", "--episodes", "x"], "--episodes = 'x' is a word"),
        (["--run", "run", "--render", "film.avi"], "film.avi: a film ends in .mp4, .gif or .html"),
        (["--run", "run", "--render", "no/film.gif"], "the folder no does not exist"),
        (["--run", "run", "--epsiodes", "3"], "unknown flag; did you mean --episodes?"),
    ],
)
def test_a_wrong_evaluation_gets_one_sentence(flags, said, config_file, capsys):
    Path("run").mkdir()
    Path("run/config.yaml").write_text(CARTPOLE)
    Path("run/checkpoints/640").mkdir(parents=True)
    assert evaluate_command.main(flags) == 2
    _, err = capsys.readouterr()
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err


def test_a_second_process_on_the_same_folder_is_refused(config_file):
    process = start(config_file, "--run_dir", "busy", "--total_timesteps", "100_000_000")
    try:
        wait_for(lambda: Path("busy/metrics.csv").is_file(), process)
        other = start(config_file, "--run_dir", "busy", "--total_timesteps", "100_000_000")
        _, err = other.communicate(timeout=120)
        assert other.returncode == 2
        assert "busy is being trained by another process" in err
    finally:
        process.kill()
        process.communicate()


def test_a_damaged_or_foreign_save_gets_one_sentence(config_file, capsys):
    assert train(config_file, "--run_dir", "run") == 0
    text = Path("run/config.yaml").read_text()
    Path("run/config.yaml").write_text(text.replace("- 16", "- 32"))
    capsys.readouterr()
    assert evaluate_command.main(["--run", "run"]) == 2
    err = capsys.readouterr().err
    assert "does not fit the run's config.yaml" in err
    assert err.count("\n") == 1
    Path("run/config.yaml").write_text(text)
    last = max(Path("run/checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    shutil.rmtree(last / "train")
    assert train(config_file, "--run_dir", "run", "--total_timesteps", 2048) == 2
    assert "does not fit the run's config.yaml" in capsys.readouterr().err
    assert Path("run/config.yaml").read_text() == text


def test_a_state_with_empty_arrays_is_saved_and_restored(make_config, tmp_path, key):
    learner = Learner(make_config())
    state = learner.init(key, learner.shard_ids())
    env = {"simulator": state.rollout.env, "act": jnp.zeros((4, 0)), "forces": jnp.ones((4, 2))}
    state = state.replace(rollout=state.rollout.replace(env=env))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state, Progress(update=1, env_steps=10))
    checkpoints.close()
    again, progress = Checkpoints(tmp_path).restore(state)
    assert progress.env_steps == 10
    assert jax.tree.structure(again) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert bool(jnp.all(a == b))


def test_a_run_killed_before_its_first_save_starts_again(config_file):
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/best/5000").mkdir(parents=True)
    Path("run/.lock").touch()
    assert train(config_file, "--run_dir", "run") == 0
    assert restore("run", "last").env_steps > 0
    assert 0 < restore("run", "best").env_steps < 5000  # and not what that run left behind


def test_a_cut_line_of_metrics_does_not_stop_a_run(config_file):
    assert train(config_file, "--run_dir", "run") == 0
    with Path("run/metrics.csv").open("a") as file:
        file.write("1200,9,1.2e")
    assert train(config_file, "--run_dir", "run", "--total_timesteps", 2048) == 0
    updates = [row["update"] for row in read_csv(Path("run/metrics.csv"))]
    assert updates == sorted(set(updates))
    assert updates[-1] == 16


def test_a_finished_run_says_what_it_was_not_trained_with(config_file, capsys):
    assert train(config_file, "--run_dir", "run") == 0
    capsys.readouterr()
    assert train(config_file, "--run_dir", "run", "--ppo.learning_rate", "0.1") == 0
    assert "Not trained: ppo.learning_rate changes from 0.0003 to 0.1" in capsys.readouterr().out
