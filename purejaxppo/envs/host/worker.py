"""A worker: the process or thread in which some Gymnasium environments of a batch step.

Nothing here imports JAX. A worker process is a new interpreter that imports this module and the
environment, and not the script that started it.
"""

import contextlib
import faulthandler
import mmap
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.config.references import LoadError
from purejaxppo.envs.host.factory import Maker, time_limit
from purejaxppo.envs.host.gym_spaces import native
from purejaxppo.envs.host.returned import old_interface
from purejaxppo.envs.host.slots import EnvGroup, buffers
from purejaxppo.envs.native import Native
from purejaxppo.envs.teams import Team
from purejaxppo.spaces import Space

PATROL_SECONDS = 0.25  # between checks that the other side is still alive
GRACE_SECONDS = 5.0  # for environments to close before their worker is ended


class Job(NamedTuple):
    """The first message to a worker: the environments to make."""

    make: Maker
    start: int  # its first environment
    stop: int  # the one after its last
    seed: int | None  # of the process's global generators


class EnvInfo(NamedTuple):
    """A worker's reply once its environments are made."""

    observation: Space
    action: Space
    max_episode_steps: int
    team: Team | None  # of a world of several agents
    native: Native | None  # the environment's own form, if it is of one agent


class Fault(NamedTuple):
    """A worker's reply when an environment raised an error."""

    env: int  # its index in the batch
    summary: str
    trace: str
    refused: bool  # the description is at fault, not the environment


def serve(connection: Connection, memory: int) -> None:
    """Makes environments, then executes commands until the other end of the pipe closes.

    Args:
        connection: its end of the pipe.
        memory: the shared file, whose size is known once the environments are made.
    """
    envs: list[Any] = []
    with connection:
        try:
            _obey(connection, memory, envs)
        except (EOFError, ConnectionError):
            pass  # the owner has ended
        finally:
            _close(envs)


def _obey(connection: Connection, memory: int, envs: list[Any]) -> None:
    """Executes commands until an environment fails."""
    connection.send(None)
    job: Job = connection.recv()
    group = _attempt("__init__", lambda: job.start + len(envs), _make, job, envs)
    if isinstance(group, Fault):
        connection.send(group)
        return
    team = getattr(envs[0], "team", None)
    known = team if isinstance(team, Team) else None
    own = None if known else native(envs[0].observation_space, envs[0].action_space)
    connection.send(EnvInfo(group.observation, group.action, time_limit(envs[0]), known, own))

    def attach(num_envs: int, size: int) -> None:
        shared = mmap.mmap(memory, size)
        everything = buffers(shared, group.observation, group.action, num_envs)
        group.bind(everything.rows(job.start, job.stop))

    actions = {
        "attach": attach,
        "reset": group.reset,
        "step": group.step,
        "compare first observations": group.lost_digits,
    }
    fault = None
    while fault is None:
        doing, *arguments = connection.recv()
        answer = _attempt(doing, lambda: job.start + group.at, actions[doing], *arguments)
        connection.send(answer)
        fault = answer if isinstance(answer, Fault) else None


def _attempt(doing: str, where: Callable[[], int], work: Callable, *arguments: Any) -> Any:
    """The result of `work`, or the `Fault` of the environment that raised an error."""
    try:
        return work(*arguments)
    except LoadError as error:
        return Fault(where(), str(error), "", True)
    except (Exception, SystemExit) as error:
        if sentence := old_interface(error):
            return Fault(where(), sentence, "", True)
        summary = f"raised {type(error).__name__} in {doing}: {error}"
        return Fault(where(), summary, traceback.format_exc(), False)


def _make(job: Job, envs: list[Any]) -> EnvGroup:
    """Makes the environments of a job and appends them to `envs`."""
    with contextlib.ExitStack() as quiet:
        if job.seed is not None:
            random.seed(job.seed + job.start)
            np.random.seed((job.seed + job.start) % 2**32)  # noqa: NPY002 - for old environments
            if job.start:  # worker 0 gives the same warnings
                quiet.enter_context(warnings.catch_warnings(action="ignore"))
        for _ in range(job.start, job.stop):
            envs.append(job.make())
    return EnvGroup(envs, job.start)


def _close(envs: list[Any]) -> None:
    for env in envs:
        try:
            env.close()
        except Exception:
            traceback.print_exc()  # the owner has ended, and the others are to be closed


def main(connection: int, memory: int, trace: int) -> None:
    """Runs a worker process, given its open files; `handles.Guard` ends it with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    faulthandler.enable(trace, all_threads=False)
    faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    serve(Connection(connection), memory)
