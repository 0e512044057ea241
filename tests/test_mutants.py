"""Deliberate faults, one at a time, each of which the tests of `make test` must find."""

import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest
from support.paths import ROOT


class Fault(NamedTuple):
    """A replaced line, and a test that must then fail."""

    file: str
    line: str
    wrong: str
    test: str


FAULTS = {
    "a time limit is treated as a termination": Fault(
        "agents/advantages.py",
        "delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value",
        "delta = reward + gamma * jnp.where(done, 0.0, next_value) - value",
        "agents/test_advantages.py",
    ),
    "the trace ends where an agent is absent": Fault(
        "agents/advantages.py",
        "decay = jnp.where(absent, next_rho, decay)",
        "decay = jnp.where(absent, 0.0, decay)",
        "test_absent.py::test_advantages_with_absent_rows_by_hand",
    ),
    "a carry continues into the next episode": Fault(
        "agents/networks/gated_scan.py",
        "lambda x: jnp.where(expand(start, x), 0.0, x), xs",
        "lambda x: x, xs",
        "agents/test_cells.py",
    ),
    "all shards have the same key": Fault(
        "learner.py",
        "env_key, key = jax.random.split(jax.random.fold_in(shard_key, shard_id))",
        "env_key, key = jax.random.split(jax.random.fold_in(shard_key, 0 * shard_id))",
        "test_learner.py::test_shards_have_separate_environments_and_shared_weights",
    ),
    "a checkpoint is visible before it is complete": Fault(
        "runs/checkpoint.py",
        "ocp.AsyncCheckpointer(handler, async_options=options",
        "ocp.AsyncCheckpointer(handler, async_options=options,"
        " temporary_path_class=ocp.path.atomicity.CommitFileTemporaryPath,",
        "runs/test_checkpoint.py::test_a_save_interrupted_at_any_point_leaves_a_readable_checkpoint",
    ),
    "a damaged array is restored": Fault(
        "runs/checkpoint.py",
        "if wrong := sorted(dict(current.items() ^ saved.items())):",
        "if wrong := sorted(current.keys() ^ saved.keys()):",
        "runs/test_checkpoint.py::test_readable_arrays",
    ),
    "a config is visible before it is complete": Fault(
        "interrupts.py",
        'partial = path.with_name(f".{path.name}")',
        "partial = path",
        "config/test_files.py::test_a_file_is_replaced_completely_or_not_at_all",
    ),
    "programs that other users can write are loaded": Fault(
        "parallel/shards.py",
        "status.st_mode & 0o022",
        "status.st_mode & 0o002",
        "parallel/test_shards.py::test_a_cache_folder_that_others_can_write_to_is_not_used",
    ),
    "a resumed run draws other random numbers": Fault(
        "runs/checkpoint.py",
        "return train.replace(agent=agent), best, saved.progress",
        "return train.replace(agent=agent, key=template.key), best, saved.progress",
        "runs/test_loop.py::test_a_resumed_run_equals_an_uninterrupted_run",
    ),
    "a worker outlives a parent that is killed": Fault(
        "envs/host/workers/supervisor.py",
        "    for group in groups:\n        send_signal(group, signal.SIGKILL)",
        "    for group in groups:\n        send_signal(group, 0)",
        "envs/host/test_workers.py::test_workers_end_with_a_killed_parent",
    ),
    "the update forgets the action mask": Fault(
        "learner.py",
        "out = forward(rows.carry, rows.obs, rows.start, rows.absent)",
        "obs = rows.obs\n"
        "    if isinstance(obs, dict) and 'action_mask' in obs:\n"
        "        obs = obs | {'action_mask': jnp.ones_like(obs['action_mask'])}\n"
        "    out = forward(rows.carry, obs, rows.start, rows.absent)",
        "test_policies.py::test_ratios_are_one_and_results_do_not_depend_on_chunks",
    ),
    "Unity's agents get each other's actions": Fault(
        "envs/engines/unity/world.py",
        "for request in self.requests:\n            action = self.chosen_actions",
        "for request in sorted(self.requests):\n            action = self.chosen_actions",
        "envs/engines/test_unity_world.py::test_actions_are_sent_in_the_order_of_the_requests",
    ),
    "an exported policy has an untrained normaliser": Fault(
        "export/files.py",
        "policy, state = agent.policy, jax.device_get(agent.state)",
        "policy, state = agent.policy, jax.device_get(agent.state)\n"
        "        state = state.replace(obs_stats=jax.device_get(policy.init_obs_stats()))",
        "export/test_export.py::test_an_exported_pendulum_policy_maps_raw_observations_to_raw_actions",
    ),
}


EXPENSIVE = {
    "a carry continues into the next episode",
    "a checkpoint is visible before it is complete",
    "a resumed run draws other random numbers",
    "an exported policy has an untrained normaliser",
    "the update forgets the action mask",
}
"""Faults whose tests compile for long."""


@pytest.mark.toy
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_changes_one_line_of_the_source(name):
    fault = FAULTS[name]
    text = (ROOT / "purejaxppo" / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.line) == 1, f"{fault.file} has changed: {fault.line}"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in EXPENSIVE else pytest.mark.full)
        for name in FAULTS
    ],
)
def test_each_fault_is_found_by_a_test(name, tmp_path):
    fault = FAULTS[name]
    for folder in ("purejaxppo", "configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    source = tmp_path / "purejaxppo" / fault.file
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace(fault.line, fault.wrong), encoding="utf-8")
    file, _, test = fault.test.partition("::")
    command = [sys.executable, "-m", "pytest", str(ROOT / "tests" / file), "-x", "-q"]
    command += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={tmp_path / 'tmp'}"]
    command += ["-k", test] if test else []
    tested = subprocess.run(
        command,
        cwd=tmp_path,  # the package in this folder is imported first
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 1, tested.stdout + tested.stderr  # 1: tests ran, and some failed
    assert " failed" in tested.stdout
