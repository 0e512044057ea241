"""Several runs in one process, in parallel and in sequence, equal each run alone."""

import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.runs import assert_same_bits, final_state

from purejaxppo import train
from purejaxppo.interrupts import Interrupt

SIZES = {
    "env.num_envs": 8,
    "network.hidden": [8],
    "ppo.rollout_length": 16,
    "ppo.num_minibatches": 2,
    "ppo.num_epochs": 2,
    "eval.num_episodes": 4,
    "logging.tensorboard": False,
    "logging.log_file": "run.log",
    "num_shards": 2,
}
CONFIGS = {
    "cartpole": {
        "env.name": "gymnax/CartPole-v1",
        "ppo.normalize_reward": True,
        "logging.interval": 128,
        "total_timesteps": 1024,
    },
    "pendulum": {
        "env.name": "gymnax/Pendulum-v1",
        "ppo.critic": "popart",
        "network.distribution": "beta",
        "logging.interval": 256,
        "seed": 3,
        "total_timesteps": 1280,
    },
    "gymnasium": {
        "env.name": "gymnasium/CartPole-v1",
        "env.options": {"workers": "thread", "num_workers": 2},
        "num_shards": 1,
        "logging.interval": 128,
        "seed": 5,
        "total_timesteps": 512,
    },
}
TIMES = ("seconds", "charts/SPS")
"""Columns of metrics.csv that measure time."""


def run(folder, name):
    """Run a config in its own folder."""
    return train(run_dir=folder / name, quiet=True, **SIZES | CONFIGS[name])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Runs trained one at a time, by name."""
    folder = tmp_path_factory.mktemp("alone")
    return {name: run(folder, name) for name in CONFIGS}


def assert_equal(one, other):
    """Check that the last checkpoints and the metrics of two runs are equal."""
    (arrays, progress), (others, other_progress) = map(final_state, (one.run_dir, other.run_dir))
    assert_same_bits(arrays, others)
    assert progress.env_steps == other_progress.env_steps
    metrics, others = one.metrics, other.metrics
    assert metrics.keys() == others.keys()
    for name in metrics.keys() - set(TIMES):
        np.testing.assert_array_equal(metrics[name], others[name], err_msg=name)


def logged_steps(run):
    """Return the environment steps of the rows in the log of a run."""
    return re.findall(r"global_step (\d+)", (run.run_dir / "run.log").read_text())


def test_runs_in_threads_have_the_same_metrics_and_logs_as_alone(alone, tmp_path):
    both = threading.Barrier(len(CONFIGS))

    def start(name):
        both.wait()
        return run(tmp_path, name)

    with ThreadPoolExecutor(len(CONFIGS)) as threads:
        runs = dict(zip(CONFIGS, threads.map(start, CONFIGS), strict=True))
    for name, ended in runs.items():
        assert_equal(ended, alone[name])
        steps = [str(int(step)) for step in ended.metrics["global_step"]]
        assert logged_steps(ended) == steps


def test_consecutive_runs_have_the_same_metrics_as_alone(alone, tmp_path):
    """Unlike the first run of `alone`, these follow other runs of the same programs."""
    for name in ("gymnasium", "cartpole"):
        ended = run(tmp_path, name)
        assert_equal(ended, alone[name])
        assert len(logged_steps(ended)) == len(ended.metrics["global_step"])


def test_an_interrupt_in_a_thread_keeps_the_signal_handlers():
    """Only the main thread can handle signals."""
    numbers = signal.SIGINT, signal.SIGTERM
    handlers = [signal.getsignal(number) for number in numbers]

    def begin_and_end():
        interrupt = Interrupt()
        during = [signal.getsignal(number) for number in numbers]
        interrupt.restore()
        return during, interrupt.signal

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(begin_and_end).result() == (handlers, None)
    assert [signal.getsignal(number) for number in numbers] == handlers
