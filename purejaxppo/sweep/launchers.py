"""Launchers of the groups of a sweep: in this process, on a Ray cluster, or under SLURM.

A group is a plain value and its runs are folders on a file system that all machines share, so a
worker process that dies loses only unsaved steps: its group is run again and resumes.
"""

import dataclasses
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from purejaxppo.sweep.packing import Group, train_group

RETRIES = 3
"""Number of times that a group whose worker process died is run again."""

Launcher = Callable[[Sequence[Group], Path, Mapping[str, Any]], list[int]]
"""(groups, folder for logs, options of the launcher) -> exit codes."""


def here(groups: Sequence[Group], folder: Path, options: Mapping[str, Any]) -> list[int]:
    """Trains group after group in this process, up to one that fails or is interrupted."""
    del folder, options
    codes = []
    for group in groups:
        codes.append(train_group(group))
        if codes[-1]:
            break
    return codes


def on_ray(groups: Sequence[Group], folder: Path, options: Mapping[str, Any]) -> list[int]:
    """Runs a Ray task per group, in the cluster of RAY_ADDRESS or in one made here.

    `options` are those of `ray.remote`; without num_cpus, a group takes as many cores as the
    smallest machine has, or as `devices` says. Without num_gpus these cores are its devices.

    Raises:
        ValueError: a group's own error, or a worker process that died too often.
    """
    del folder
    import ray

    if not ray.is_initialized():
        ray.init(log_to_driver=True, include_dashboard=False)
    nodes = [node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"]]
    cores = int(options.get("num_cpus", groups[0].members[0].devices or min(nodes)))
    task = ray.remote(train_group).options(**{"num_cpus": cores, "max_retries": RETRIES, **options})
    own = groups if options.get("num_gpus") else [on_cores(group, cores) for group in groups]
    pending = [task.remote(group) for group in map(absolute, own)]
    try:
        return ray.get(pending)
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


def on_slurm(groups: Sequence[Group], folder: Path, options: Mapping[str, Any]) -> list[int]:
    """Runs a SLURM job per group, by submitit.

    `options` are those of submitit's executor: timeout_min, slurm_partition, gpus_per_node,
    cpus_per_task and so on; `cluster` local runs the jobs as processes here.

    Raises:
        ValueError: no SLURM here, a group's own error, or a worker process that died too often.
    """
    import submitit

    parameters = {"timeout_min": 24 * 60, "name": "purejaxppo", **options}
    cluster = parameters.pop("cluster", "slurm")
    try:
        executor = submitit.AutoExecutor(folder=folder / "jobs", cluster=cluster)
    except RuntimeError as error:
        raise ValueError(f"--launcher slurm: {error}") from error
    try:
        executor.update_parameters(**parameters)
    except (NameError, TypeError, ValueError) as error:
        raise ValueError(f"--launcher_options: {str(error).splitlines()[0]}") from error
    left, codes = list(range(len(groups))), [1] * len(groups)
    for _ in range(RETRIES + 1):
        try:
            jobs = {i: executor.submit(train_group, absolute(groups[i])) for i in left}
        except submitit.core.utils.FailedSubmissionError as error:
            raise ValueError(f"SLURM refused a job: {str(error).splitlines()[0]}") from error
        try:
            left = [index for index, job in jobs.items() if not _collect(job, codes, index)]
        except BaseException:
            for job in jobs.values():
                job.cancel()
            raise
        if not left:
            return codes
    raise ValueError(
        f"{len(left)} jobs died {RETRIES + 1} times; their logs are in {folder / 'jobs'}, and the "
        f"same command resumes"
    )


def on_cores(group: Group, cores: int) -> Group:
    """Copies a group, with `cores` as its devices."""
    members = tuple(dataclasses.replace(m, devices=max(cores, 1)) for m in group.members)
    return dataclasses.replace(group, members=members)


def absolute(group: Group) -> Group:
    """Copies a group for a process that may work in another folder."""
    return dataclasses.replace(group, folder=str(Path(group.folder).resolve()))


def _collect(job: Any, codes: list[int], index: int) -> bool:
    """Waits for a job and stores its exit code; False if its worker process died."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        codes[index] = job.result()
    except FailedJobError as error:
        # The job's own exception, as text, with its traceback and where its logs are.
        said = re.findall(r"^\s*[\w.]+(?:Error|Exception): (.+)$", str(error), re.MULTILINE)
        raise ValueError(said[-1] if said else str(error).splitlines()[0]) from error
    except UncompletedJobError:
        return False
    return True


LAUNCHERS: dict[str, Launcher] = {"local": here, "ray": on_ray, "slurm": on_slurm}
NEEDS = {"ray": ("ray", "ray"), "slurm": ("submitit", "slurm")}
"""The package and the extra of a launcher."""


def check(name: str) -> None:
    """Raises ValueError if what a launcher needs is not installed."""
    if name in NEEDS and importlib.util.find_spec(NEEDS[name][0]) is None:
        package, extra = NEEDS[name]
        raise ValueError(f"{package} is not installed: pip install 'purejaxppo[{extra}]'")
