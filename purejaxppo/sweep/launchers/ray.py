"""Groups of a sweep as tasks on a Ray cluster."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from purejaxppo.sweep.launchers import RETRIES
from purejaxppo.sweep.packing import Group, train_group


def launch(groups: Sequence[Group], folder: Path, options: Mapping[str, Any]) -> list[int]:
    """Run a Ray task per group, in the cluster of RAY_ADDRESS or in a new one on this machine.

    Args:
        groups: of the sweep.
        folder: unused; Ray has its own logs.
        options: of `ray.remote`. Without num_cpus, a group takes as many cores as the smallest
            machine has, or as `devices` says. Without num_gpus these cores are its devices.

    Returns:
        The groups' exit codes.

    Raises:
        ValueError: a group's own error, or a worker process that died too often.
    """
    del folder
    if not ray.is_initialized():
        ray.init(log_to_driver=True, include_dashboard=False)
    nodes = [node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"]]
    cores = int(options.get("num_cpus", groups[0].members[0].devices or min(nodes)))
    if not options.get("num_gpus"):
        groups = [on_cores(group, max(cores, 1)) for group in groups]
    task = ray.remote(train_group).options(**{"num_cpus": cores, "max_retries": RETRIES, **options})
    pending = [task.remote(group) for group in groups]
    try:
        codes: list[int] = ray.get(pending)
        return codes
    except ray.exceptions.RayTaskError as error:
        raise ValueError(str(error.cause)) from error
    except ray.exceptions.RayError as error:
        raise ValueError(
            f"a Ray worker was lost {RETRIES + 1} times; the same command resumes ({error})"
        ) from error
    except KeyboardInterrupt:
        for reference in pending:
            ray.cancel(reference)  # a KeyboardInterrupt in the worker, which saves
        ray.wait(pending, num_returns=len(pending), timeout=60)
        raise


def on_cores(group: Group, cores: int) -> Group:
    """Copy a group, with `cores` as its devices."""
    members = tuple(dataclasses.replace(member, devices=cores) for member in group.members)
    return dataclasses.replace(group, members=members)
