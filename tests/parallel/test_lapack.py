"""LAPACK on several CPU devices: no run hangs, and other runs keep their threads and devices."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.children import environment
from support.runs import setup_of

from purejaxppo.config.schema import Config, EnvConfig
from purejaxppo.envs import registry
from purejaxppo.parallel import lapack, processes
from purejaxppo.runs.programs import Programs, without_hang

CHOLESKY = """
import os, sys
import jax, jax.numpy as jnp
from purejaxppo.parallel import lapack
from purejaxppo.parallel.shards import Shards, use_cpu_cores

use_cpu_cores(2)
lapack.start_with_threads()
assert "NPROC" not in os.environ
shards = Shards(2, jax.devices())
matrices = jnp.broadcast_to(2 * jnp.eye(18), (2, 1024, 18, 18))

def factors(x):
    step = lambda _, y: jnp.linalg.cholesky(y @ y.mT + jnp.eye(18))
    return jax.lax.fori_loop(0, 100, step, x)

out = jax.jit(shards.map(factors, (0,), 0))(matrices)
print(shards.num_devices, out.shape, lapack.threads() - lapack.cpu_cores())
"""

TASK = """
import jax, jax.numpy as jnp
from purejaxppo.envs.base import TaskStep
from purejaxppo.spaces import Box

class Task:
    observation = Box((3,), -1.0, 1.0)
    action = Box((3,), -1.0, 1.0)
    max_episode_steps = 8
    cheap_reset = True

    def reset(self, key):
        return jnp.eye(18), jnp.zeros(3)

    def step(self, key, state, action):
        state = jnp.linalg.cholesky(jnp.eye(18) + state @ state.T)
        no = jnp.array(False)
        return state, TaskStep(jnp.tanh(state[:3, 0] + action), state[0, 0], no, no)
"""

RUNS = """
import jax
import purejaxppo
from purejaxppo.config.files import load_config
from purejaxppo.runs.devices import start_jax
from purejaxppo.runs.programs import Programs, without_hang
from purejaxppo.setup import divide, resolve

sizes = {"ppo.rollout_length": 8, "ppo.num_minibatches": 2, "network.hidden": [8], "num_shards": 2}
sizes |= {"eval.num_episodes": 0, "total_timesteps": 128}
plain = purejaxppo.Config().replace(**{**sizes, "env.name": "dummy/constant", "env.num_envs": 16})
setup = resolve(plain)
programs = without_hang(Programs(divide(setup, start_jax(setup))))
print(programs.shards.num_devices, "devices", programs.setup.note)
run = purejaxppo.train(**sizes, **{"env.name": "jax/task.py:Task", "env.num_envs": 16})
print(len(purejaxppo.evaluate(run.last, 4).returns), "episodes")
"""


def run(script, folder, *, timeout=120, **variables):
    """Run a script in a new process, and return its stdout and stderr."""
    env = {key: value for key, value in environment().items() if key != lapack.VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**env, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=True,
    ).stdout


def test_sharded_cholesky_completes_with_more_threads_that_children_do_not_inherit(tmp_path):
    more = 2 if lapack.can_block() else 0
    assert run(CHOLESKY, tmp_path) == f"2 (2, 1024, 18, 18) {more}\n"


def test_a_number_of_threads_set_by_the_user_is_kept(tmp_path):
    script = CHOLESKY.replace('assert "NPROC" not in os.environ', 'print(os.environ["NPROC"])')
    assert run(script, tmp_path, NPROC="5").startswith("5\n2 (2, 1024, 18, 18) ")


def test_a_process_with_enough_threads_uses_one_device_if_another_process_has_too_few(monkeypatch):
    sizes = {"ppo.rollout_length": 8, "ppo.num_minibatches": 2, "network.hidden": [8]}
    sizes |= {"eval.num_episodes": 0, "num_shards": 2, "env.num_envs": 16}
    config = Config().replace(**{"env.name": "dummy/constant", **sizes})
    monkeypatch.setattr(processes, "maximum", lambda *numbers: (1.0,) * len(numbers))
    programs = without_hang(Programs(setup_of(config, 2)))
    programs.close()
    assert (programs.shards.num_devices, programs.setup.note) == (1, "")


@pytest.mark.skipif(not lapack.can_block(), reason="this jaxlib does not block")
def test_a_task_that_calls_lapack_uses_one_device_if_two_would_hang(tmp_path):
    (tmp_path / "task.py").write_text(TASK, encoding="utf-8")
    lines = run(RUNS, tmp_path, NPROC="2").splitlines()
    assert lines[0] == "2 devices "
    (first,) = [line for line in lines if line.startswith("training jax/task.py:Task on ")]
    assert first.startswith("training jax/task.py:Task on 1 x cpu (cpu)")
    sentence = "when several call LAPACK (Cholesky, QR, eigh, LU). To use all 2, set NPROC="
    assert sum(sentence in line for line in lines) == 2  # for training and for evaluation
    assert lines[-1] == "4 episodes"


@pytest.mark.toy
def test_only_batched_lapack_calls_are_detected():
    def calls(function, *shape):
        return lapack.calls_batches(jax.jit(function).lower(np.ones(shape, np.float32)))

    for function in (jnp.linalg.cholesky, jnp.linalg.qr, jnp.linalg.eigh, jnp.linalg.inv):
        assert calls(function, 8, 3, 3)
        assert not calls(function, 3, 3)
        assert not calls(lambda x, f=function: jax.lax.map(f, x), 8, 3, 3)
    assert not calls(jnp.sin, 8, 3, 3)


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
@pytest.mark.timeout(1000)
def test_mujoco_trains_2048_environments_on_two_devices(tmp_path):
    pytest.importorskip("mujoco_playground")
    words = "--env.name playground/CheetahRun --env.num_envs 2048 --devices 2 --run_dir run "
    words += "--ppo.rollout_length 8 --total_timesteps 65_536 --network.hidden 64 64"
    script = f"from purejaxppo.cli.train import main; main({words.split()!r})"
    lines = run(script, tmp_path, timeout=900).splitlines()
    (first,) = [line for line in lines if line.startswith("training playground/CheetahRun on ")]
    assert "on 2 x cpu" in first
    assert not any("LAPACK" in line for line in lines)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("name", "backend", "calls"),
    [
        ("playground/CheetahRun", "", True),
        ("playground/CheetahRun", "jax", True),
        ("brax/hopper", "mjx", True),
        ("brax/hopper", "generalized", True),
        ("brax/hopper", "", False),
        ("brax/hopper", "spring", False),
        ("gymnax/CartPole-v1", "", False),
        ("jax/task.py:Task", "", False),
        ("unknown", "", False),
    ],
)
def test_only_simulators_that_call_lapack_get_more_threads(name, backend, calls):
    assert registry.calls_lapack(EnvConfig(name=name, backend=backend)) is calls


@pytest.mark.toy
def test_a_custom_task_that_imports_mujoco_gets_more_threads(tmp_path):
    for text, calls in (("from mujoco import mjx", True), ("import jax", False)):
        (tmp_path / "task.py").write_text(text)
        assert registry.calls_lapack(EnvConfig(name=f"jax/{tmp_path}/task.py:Task")) is calls
