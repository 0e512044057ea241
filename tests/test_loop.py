"""The outer loop: resumed exactly, interrupted, each program compiled once."""

import logging
import shutil
import signal
from pathlib import Path

import jax
import pytest
from support.runs import (
    CARTPOLE,
    assert_same_bits,
    final_state,
    forget_last_save,
    start,
    train,
    wait_for,
)

from purejaxppo import configio
from purejaxppo.reporting import read_csv

PENDULUM = CARTPOLE.replace("gymnax/CartPole-v1", "brax/inverted_pendulum")
EXTRAS = """
env: {name: gymnax/CartPole-v1, num_envs: 8, visible: [0, 2], full_state: true,
      randomize: {gravity: 0.1}, curriculum: {length: 0.4 to 0.5}}
network: {hidden: [16], memory: lstm, memory_size: 8, actor_keys: [obs], critic_keys: [state]}
intrinsic: {kind: icm, hidden: [8]}
ppo: {rollout_length: 16, bptt_length: 4, num_minibatches: 2, num_epochs: 2, critic: popart,
      optimizer: muon, weight_decay: 0.01, clip_bootstrap: observed, kl_rate: true,
      recompute_advantages: true}
eval: {num_episodes: 0}
logging: {tensorboard: false}
num_shards: 2
total_timesteps: 1024
"""


def rows_of(run, *without):
    """What a run logged by update, but for what depends on the clock."""
    drop = ("seconds", "charts/SPS", *without)
    rows = [
        {k: v for k, v in row.items() if not k.startswith(drop)}
        for row in read_csv(Path(run, "metrics.csv"))
    ]
    assert rows
    return {row["update"]: row for row in rows}


@pytest.mark.optimized
def test_a_run_that_goes_on_from_a_save_ends_as_one_that_was_never_stopped(config_file):
    flags = ("--checkpoint.interval", 512, "--run_dir")
    assert train(config_file, *flags, "whole") == 0
    shutil.copytree("whole", "half")
    assert forget_last_save("half") < 600
    assert train(config_file, *flags, "half") == 0
    whole, progress = final_state("whole")
    assert progress.update == whole["train['update']"] == 8
    assert_same_bits(final_state("half")[0], whole)
    assert rows_of("half") == rows_of("whole")


@pytest.mark.full
@pytest.mark.optimized
@pytest.mark.parametrize("text", [CARTPOLE, PENDULUM], ids=["gymnax", "brax"])
def test_n_and_n_more_updates_equal_2n_bit_for_bit(text, config_file):
    config_file.write_text(text)
    constant = ("--ppo.learning_rate_schedule", "constant")
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
@pytest.mark.optimized
def test_a_run_with_every_extra_resumes_exactly(config_file):
    """Stopped after half of its updates, as progress decides what its curriculum is at."""
    config_file.write_text(EXTRAS)
    flags = ("--checkpoint.interval", 512, "--run_dir")
    assert train(config_file, *flags, "whole") == 0
    shutil.copytree("whole", "half")
    config = configio.load_config("half/config.yaml")
    assert config.intrinsic.kind == "icm"
    assert forget_last_save("half") < 600
    assert train(config_file, *flags, "half") == 0
    whole, progress = final_state("whole")
    assert progress.update == 8
    assert_same_bits(final_state("half")[0], whole)
    rows = read_csv(Path("half/metrics.csv"))
    assert [row["update"] for row in rows] == [
        row["update"] for row in read_csv(Path("whole/metrics.csv"))
    ]
    assert all(row["intrinsic/reward"] > 0 for row in rows)


@pytest.mark.optimized
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="SIGINT"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.full),
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


def test_train_chunk_compiles_once_in_a_run_with_evaluations_and_saves(config_file, caplog):
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        assert train(config_file, "--run_dir", "once", "--checkpoint.interval", 128) == 0
    rows = read_csv(Path("once/metrics.csv"))
    assert sum("eval/return_mean" in row for row in rows) > 2
    lines = [r.message for r in caplog.records if "Finished XLA compilation" in r.message]
    assert len([line for line in lines if "train_shard" in line]) == 1
    assert len([line for line in lines if "jit(evaluate)" in line]) == 1
