"""Groups of a sweep as SLURM jobs, by submitit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError

from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.runs.console import Stopped, message_of
from purejaxppo.sweep.launchers import RETRIES
from purejaxppo.sweep.packing import Group, train_group


def launch(groups: Sequence[Group], folder: Path, options: Mapping[str, Any]) -> list[int]:
    """Run a SLURM job per group.

    Args:
        groups: of the sweep.
        folder: the jobs' logs are in its folder `jobs`.
        options: of submitit's executor: timeout_min, slurm_partition, gpus_per_node, cpus_per_task
            and so on. With cluster = local, the jobs are processes on this machine.

    Returns:
        The groups' exit codes.

    Raises:
        ValueError: no SLURM here, a group's own error, or a worker process that died too often.
    """
    logs = folder / "jobs"
    parameters = {"timeout_min": 24 * 60, "name": "purejaxppo", **options}
    try:
        executor = submitit.AutoExecutor(logs, cluster=parameters.pop("cluster", "slurm"))
    except RuntimeError as error:
        raise ValueError(f"--launcher slurm: {error}") from error
    try:
        executor.update_parameters(**parameters)
    except (NameError, TypeError, ValueError) as error:
        raise ValueError(f"--launcher_options: {str(error).splitlines()[0]}") from error
    codes: dict[int, int] = {}
    for _ in range(RETRIES + 1):
        left = [index for index in range(len(groups)) if index not in codes]
        codes |= run_once(executor, {index: groups[index] for index in left})
        if len(codes) == len(groups):
            return [codes[index] for index in range(len(groups))]
    raise ValueError(
        f"{len(groups) - len(codes)} jobs died {RETRIES + 1} times; their logs are in {logs}, and "
        f"the same command resumes"
    )


def run_once(executor: submitit.Executor, groups: Mapping[int, Group]) -> dict[int, int]:
    """Run a job per group, by number; return the exit codes of those whose process did not die."""
    codes = {}
    try:
        jobs = {index: executor.submit(attempt, group) for index, group in groups.items()}
    except (FailedSubmissionError, FailedJobError) as error:
        reason = "; ".join(str(error).split("\n"))
        raise ValueError(f"--launcher slurm: SLURM did not take a job ({reason})") from error
    try:
        for index, job in jobs.items():
            try:
                outcome = job.result()
            except FailedJobError:  # a fault of ours, with its traceback
                raise
            except UncompletedJobError:
                continue
            if isinstance(outcome, str):
                raise ValueError(outcome)
            codes[index] = outcome
    except BaseException:
        for job in jobs.values():
            job.cancel()
        raise
    return codes


def attempt(group: Group) -> int | str:
    """Train a group in a job; return its exit code or, for an error of the user's, its sentence."""
    try:
        return train_group(group)
    except (ValueError, OSError, SimulatorError, Stopped) as error:
        return message_of(error)
