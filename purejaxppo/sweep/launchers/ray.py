"""Launcher that trains groups as Ray tasks."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from purejaxppo.sweep.launchers import RETRIES, exit_on_signals
from purejaxppo.sweep.packing import Group, train_group


def launch(groups: Sequence[Group], folder: Path, options: Mapping[str, Any]) -> list[int]:
    """Run a Ray task per group, in the cluster of RAY_ADDRESS or in a new local one.

    Args:
        groups: the groups of the sweep.
        folder: unused, because Ray has its own logs.
        options: options of `ray.remote`. num_cpus defaults to `devices`, or to the cores of the
            smallest host. Without num_gpus, these cores are the group's devices.

    Returns:
        The groups' exit codes.

    Raises:
        ValueError: a group raised an error, or its worker process died too often.
    """
    del folder
    if not ray.is_initialized():
        ray.init(log_to_driver=True, include_dashboard=False)
    nodes = [node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"]]
    cores = options.get("num_cpus", groups[0].members[0].devices or int(min(nodes)))
    if isinstance(cores, str):
        raise ValueError(f"--launcher_options num_cpus {cores}: must be a number.")
    if not options.get("num_gpus"):
        groups = [on_cores(group, max(int(cores), 1)) for group in groups]
    task = ray.remote(train_group).options(**{"num_cpus": cores, "max_retries": RETRIES, **options})
    pending = [task.remote(group) for group in groups]
    try:
        with exit_on_signals():
            return saving_all(pending)
    except ray.exceptions.RayTaskError as error:
        raise ValueError(str(error.cause)) from error
    except ray.exceptions.RayError as error:
        raise ValueError(
            f"a Ray worker died {RETRIES + 1} times ({error}). Run the same command to resume."
        ) from error


def saving_all(pending: Sequence[Any]) -> list[int]:
    """Return the exit codes of tasks. If one fails, or on Ctrl-C, the others save and end."""
    try:
        codes: list[int] = ray.get(pending)
        return codes
    except BaseException:
        for reference in pending:
            ray.cancel(reference)  # raises KeyboardInterrupt in the worker, which saves
        ray.wait(pending, num_returns=len(pending), timeout=60)
        raise


def on_cores(group: Group, cores: int) -> Group:
    """Return a copy of a group that uses `cores` cores as devices."""
    members = tuple(dataclasses.replace(member, devices=cores) for member in group.members)
    return dataclasses.replace(group, members=members)
