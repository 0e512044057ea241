"""Launcher that trains groups as SLURM jobs, with submitit."""

import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError

from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.interrupts import exit_now, is_delayed
from purejaxppo.runs.console import Stopped, message_of
from purejaxppo.sweep.launchers import RETRIES, exit_on_signals
from purejaxppo.sweep.packing import Group, train_group

SECONDS_BETWEEN_CHECKS = 1.0
"""Time between two checks whether jobs are done. submitit asks SLURM less often."""


def launch(groups: Sequence[Group], folder: Path, options: Mapping[str, Any]) -> list[int]:
    """Run a SLURM job per group.

    Args:
        groups: the groups of the sweep.
        folder: folder of a round of the sweep; logs are in its folder `jobs`.
        options: options of submitit's executor, such as timeout_min, slurm_partition, gpus_per_node
            and cpus_per_task. With cluster = local, jobs are local processes.

    Returns:
        The groups' exit codes.

    Raises:
        ValueError: SLURM is not available, a group raised an error, or a job died too often.
    """
    logs = folder / "jobs"
    parameters = {"timeout_min": 24 * 60, "name": "purejaxppo", **options}
    for name in ("tasks_per_node", "nodes", "slurm_ntasks_per_node", "slurm_nodes"):
        if parameters.get(name, 1) != 1:
            raise ValueError(
                f"--launcher_options {name} {parameters[name]}: a job is one process. Use 1."
            )
    try:
        executor = submitit.AutoExecutor(logs, cluster=parameters.pop("cluster", "slurm"))
    except RuntimeError as error:
        raise ValueError(f"--launcher slurm: {error}") from error
    try:
        executor.update_parameters(**parameters)
    except (AssertionError, NameError, TypeError, ValueError) as error:
        raise ValueError(f"--launcher_options: {str(error).splitlines()[0]}") from error
    codes: dict[int, int] = {}
    for _ in range(RETRIES + 1):
        remaining = [index for index in range(len(groups)) if index not in codes]
        with exit_on_signals():
            codes |= run_once(executor, {index: groups[index] for index in remaining})
        if len(codes) == len(groups):
            return [codes[index] for index in range(len(groups))]
    raise ValueError(
        f"{len(groups) - len(codes)} jobs died {RETRIES + 1} times. See their logs in {logs}. Run "
        f"the same command to resume."
    )


def run_once(executor: submitit.Executor, groups: Mapping[int, Group]) -> dict[int, int]:
    """Run a job per group; return the exit codes of the jobs that did not die, by index.

    A job that SLURM ends after it has saved is submitted again.
    """
    codes: dict[int, int] = {}
    jobs: dict[int, submitit.Job] = {}
    try:
        for index, group in groups.items():
            jobs[index] = submit(executor, group)
        running = set(jobs)
        while running:
            for index in [index for index in running if jobs[index].done()]:
                running.remove(index)
                try:
                    outcome = jobs[index].result()
                except FailedJobError:  # a bug in this package: show the traceback
                    raise
                except UncompletedJobError:
                    continue
                if isinstance(outcome, str):
                    raise ValueError(outcome)
                if outcome is None:
                    jobs[index] = submit(executor, groups[index])
                    running.add(index)
                else:
                    codes[index] = outcome
            time.sleep(SECONDS_BETWEEN_CHECKS)
    except BaseException:
        for job in jobs.values():
            with contextlib.suppress(Exception):  # cancel the others if `scancel` fails
                job.cancel()
        raise
    return codes


def submit(executor: submitit.Executor, group: Group) -> submitit.Job:
    """Submit the job of a group.

    Raises:
        ValueError: SLURM rejected the job.
    """
    try:
        return executor.submit(attempt, group)
    except (FailedSubmissionError, FailedJobError) as error:
        reason = "; ".join(str(error).split("\n"))
        raise ValueError(f"--launcher slurm: SLURM rejected a job ({reason}).") from error


def attempt(group: Group) -> int | str | None:
    """Train a group in a job.

    SLURM sends a signal, SIGUSR2 by default, before the job's time limit, and this signal or
    SIGTERM before its preemption. The group then saves and ends. A job that is not training yet has
    nothing to save, so its process ends.

    Returns:
        The exit code; the message of an expected error; or None if a signal of SLURM ended the
        group.
    """

    def end(number: int, frame: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    def leave(number: int, frame: object) -> None:
        if not is_delayed():
            exit_now(number)  # an exception would be lost in a callback of JAX

    signal.signal(JobEnvironment._usr_sig(), end)
    signal.signal(signal.SIGTERM, leave)  # submitit ignores it
    try:
        code = train_group(group)
    except (ValueError, OSError, SimulatorError, Stopped) as error:
        return message_of(error)
    return None if code == 128 + signal.SIGTERM else code
