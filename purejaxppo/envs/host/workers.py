"""N Gymnasium environments in worker processes or threads, as one batch with next-step reset.

Each worker owns a slice of the environments. Actions and results lie in shared memory; a pipe per
worker carries commands and replies, and is closed when the other side has ended.

Nothing here imports JAX, since worker processes import it. They are new interpreters that import
this module and the environment, and not the script that started them.
"""

import contextlib
import ctypes
import faulthandler
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, NamedTuple

import numpy as np

from purejaxppo.envs.host.errors import MakeError
from purejaxppo.envs.host.factory import Maker, make_one, make_spec, time_limit
from purejaxppo.envs.host.slots import Lanes, arrays_of, buffers, size_of, tree_of
from purejaxppo.envs.teams import Team
from purejaxppo.spaces import Space

__all__ = ["Maker", "Rows", "WorkerError", "WorkerPool", "make_one", "make_spec"]

START_SECONDS = 60.0  # for a new interpreter to import this module
PATROL_SECONDS = 0.25  # between checks that a silent worker is still alive
GRACE_SECONDS = 5.0  # for environments to close before their worker is ended
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from purejaxppo.envs.host.workers import main; main(*map(int, sys.argv[2:]))"
)


class Rows(NamedTuple):
    """Result of one step of N environments; see `envs.base.EnvStep`."""

    obs: Any  # [N, ...]
    reward: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    valid: np.ndarray  # [N] bool
    diverged: np.ndarray  # [N] bool


class WorkerError(RuntimeError):
    """An environment raised an error or hangs, or its worker died."""

    def __init__(self, message: str, worker: int, env_indices: tuple[int, ...]) -> None:
        """Stores the message, the worker and its environments."""
        super().__init__(message)
        self.worker = worker
        self.env_indices = env_indices


class Job(NamedTuple):
    """The first message to a worker: the environments to make."""

    make: Maker
    start: int  # its first environment
    stop: int  # the one after its last
    seed: int | None  # of the process's global generators


class Facts(NamedTuple):
    """A worker's reply once its environments are made."""

    observation: Space
    action: Space
    max_episode_steps: int
    team: Team | None  # of a world of several agents


class Fault(NamedTuple):
    """A worker's reply when an environment raised an error."""

    env: int  # its index in the batch
    summary: str
    trace: str
    refused: bool  # the description is at fault, not the environment


class WorkerPool:
    """N environments that step together.

    Args:
        make: makes one environment.
        num_envs: N.
        num_workers: processes or threads; 0 is one per core. Never more than environments.
        timeout: seconds that the slowest worker may take to make its environments, to reset or to
            step them.
        seed: of the global generators of `random` and `numpy.random` in worker processes, for
            environments that draw from them.
        kind: where environments step. Threads start at once and share this process's memory, but
            Python code in them takes turns, and one that hangs cannot be ended.

    Raises:
        ValueError: there is no such environment, or it cannot be used.
        WorkerError: it raised an error.
    """

    def __init__(
        self,
        make: Maker,
        num_envs: int,
        *,
        num_workers: int = 0,
        timeout: float = 60.0,
        seed: int = 0,
        kind: Literal["process", "thread"] = "process",
    ) -> None:
        """Starts the workers and makes the environments."""
        if num_envs < 1 or num_workers < 0:
            raise ValueError(f"num_envs = {num_envs} and num_workers = {num_workers} are too small")
        self.num_envs = num_envs
        self.timeout = timeout
        self._workers: list[_Process | _Thread] = []
        self._failure: WorkerError | None = None
        self._stop = weakref.finalize(self, _stop_all, self._workers)
        count = min(num_workers or _cores(), num_envs)
        bounds = [num_envs * i // count for i in range(count + 1)]
        memory = _shared_file()
        try:
            for index in range(count):
                worker = _Process if kind == "process" else _Thread
                self._workers.append(worker(index, bounds[index], bounds[index + 1], memory))
            self._gather("start", START_SECONDS)
            self._begin(make, seed if kind == "process" else None, memory)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(memory)

    def _begin(self, make: Maker, seed: int | None, memory: int) -> None:
        """Makes the environments, and the arrays shared with them."""
        for worker in self._workers:
            start = worker.envs[0]
            worker.send(Job(make, start, start + len(worker.envs), seed))
        facts = self._gather("make its environments", self.timeout)
        self.observation: Space = facts[0].observation
        self.action: Space = facts[0].action
        self.max_episode_steps: int = facts[0].max_episode_steps
        self.team: Team | None = facts[0].team
        for worker, other in zip(self._workers, facts, strict=True):
            if other != facts[0]:
                raise WorkerError(
                    f"{worker} has other spaces or another time limit than worker 0: {other}",
                    worker.index,
                    worker.envs,
                )
        size = size_of(self.observation, self.action, self.num_envs)
        os.ftruncate(memory, size)
        shared = mmap.mmap(memory, size)
        self._buffers = buffers(shared, self.observation, self.action, self.num_envs)
        self._exchange("attach", self.num_envs, size)

    def reset(self, seed: int) -> Any:
        """Starts every environment's episode anew: a seed -> obs [N, ...].

        Environment i is seeded with seed + i, and draws its later episodes from its own generator.
        """
        self._exchange("reset", seed)
        return self._obs()

    def step(self, action: Any) -> Rows:
        """Steps the environments: actions [N, ...] -> Rows.

        On the step that ends an episode `obs` is the true last observation. The step after it
        ignores the action, returns the next episode's first observation, and is not `valid`.

        Raises:
            WorkerError: an environment failed; the pool is closed.
        """
        self.send(action)
        return self.recv()

    def send(self, action: Any) -> None:
        """The first half of `step`: returns while the environments step."""
        self._check()
        parts = arrays_of(self.action, action)
        for part, there in zip(parts, self._buffers.action, strict=True):
            if part.shape != there.shape:
                raise ValueError(f"actions have shape {part.shape} in place of {there.shape}")
            np.copyto(there, part, casting="same_kind")
        self._post("step")

    def recv(self) -> Rows:
        """The second half of `step`: waits for the results of the actions that were sent."""
        self._check()
        self._await("step")
        return Rows(self._obs(), *(flag.copy() for flag in self._buffers[2:]))

    def close(self) -> None:
        """Closes the environments and ends the workers; a second call does nothing."""
        self._stop()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _obs(self) -> Any:
        """A copy of the observation: the workers write over theirs at the next step."""
        return tree_of(self.observation, self._buffers.obs)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._stop.alive:
            raise RuntimeError("the pool of environments is closed")

    def _exchange(self, *command: Any) -> None:
        """Sends all workers a command and waits until they are done."""
        self._check()
        self._post(*command)
        self._await(command[0])

    def _post(self, *command: Any) -> None:
        """Sends all workers a command."""
        with self._closing():
            for worker in self._workers:
                worker.send(command)

    def _await(self, doing: str) -> None:
        """Waits until all workers are done."""
        with self._closing():
            self._gather(doing, self.timeout)

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        """Ends the pool at any error: a reply left in a pipe would be taken for the next."""
        try:
            yield
        except BaseException as error:
            self._failure = error if isinstance(error, WorkerError) else None
            self.close()
            raise

    def _gather(self, doing: str, seconds: float) -> list[Any]:
        """One reply of each worker, in order."""
        deadline = time.monotonic() + seconds
        answers = {}
        waiting: dict[Any, _Process | _Thread] = {w.connection: w for w in self._workers}
        while waiting:
            remaining = max(0.0, deadline - time.monotonic())
            ready = wait(list(waiting), min(remaining, PATROL_SECONDS))
            for connection in ready:
                worker = waiting.pop(connection)
                answers[worker.index] = worker.receive(doing)
            if ready:
                continue
            for worker in waiting.values():
                if not worker.alive() and not worker.connection.poll():
                    raise worker.death(doing)
            if not remaining:
                raise next(iter(waiting.values())).hang(doing, seconds)
        return [answers[worker.index] for worker in self._workers]


class _Worker:
    """The owner's end of a worker: the base class of processes and threads."""

    connection: Connection

    def __init__(self, index: int, start: int, stop: int) -> None:
        self.index = index
        self.envs = tuple(range(start, stop))

    def __str__(self) -> str:
        first, last = self.envs[0], self.envs[-1]
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"worker {self.index} ({which})"

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # of a dead worker, which receive finds
            self.connection.send(message)

    def receive(self, doing: str) -> Any:
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            raise self.death(doing) from None
        if not isinstance(answer, Fault):
            return answer
        if answer.refused:
            raise ValueError(answer.summary)
        message = f"environment {answer.env} (worker {self.index}) {answer.summary}"
        raise WorkerError(f"{message}\n\n{answer.trace}", self.index, (answer.env,))

    def death(self, doing: str) -> WorkerError:
        message = f"{self} {self.ending()} when it was to {doing}"
        return WorkerError(f"{message}{self.last_words()}", self.index, self.envs)

    def hang(self, doing: str, seconds: float) -> WorkerError:
        message = f"{self} did not {doing} within {seconds:g} s; it is here:\n{self.stack()}"
        self.kill()
        return WorkerError(message, self.index, self.envs)

    def alive(self) -> bool:
        raise NotImplementedError

    def ending(self) -> str:
        raise NotImplementedError

    def last_words(self) -> str:
        return ""

    def stack(self) -> str:
        raise NotImplementedError

    def join(self, seconds: float) -> None:
        raise NotImplementedError

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def release(self) -> None:
        pass


class _Process(_Worker):
    """A worker in a process of its own."""

    def __init__(self, index: int, start: int, stop: int, memory: int) -> None:
        super().__init__(index, start, stop)
        if os.name != "posix":
            raise ValueError("worker processes need Linux or macOS; threads run everywhere")
        self._trace = tempfile.TemporaryFile()  # noqa: SIM115 - closed in release
        self.connection, theirs = Pipe()
        with theirs:
            fds = (theirs.fileno(), memory, self._trace.fileno())
            parental = threading.current_thread() is threading.main_thread()
            arguments = [*fds, os.getpid(), int(parental)]
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, json.dumps([*map(str, sys.path)])]
                + [str(argument) for argument in arguments],
                stdin=subprocess.DEVNULL,
                stdout=2,  # prints of environments are no output of this program
                pass_fds=fds,
                start_new_session=True,  # so that it can be ended with its own children
                env={**ONE_THREAD, **os.environ},
            )

    def alive(self) -> bool:
        return self._process.poll() is None

    def ending(self) -> str:
        self.join(1.0)
        code = self._process.poll()
        if code is None:
            return "has closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        hint = ", perhaps for lack of memory," if -code == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"

    def last_words(self) -> str:
        words = self._said()
        return f"; it was here:\n{words}" if words else ""

    def stack(self) -> str:
        os.kill(self._process.pid, signal.SIGUSR1)
        said = ""
        for _ in range(40):
            time.sleep(0.025)
            before, said = said, self._said()
            if said and said == before:
                break
        return said

    def _said(self) -> str:
        """The text that faulthandler has written to the trace file."""
        return os.pread(self._trace.fileno(), 1 << 16, 0).decode(errors="replace")

    def join(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def release(self) -> None:
        self._trace.close()

    def _signal(self, number: signal.Signals) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


class _Thread(_Worker):
    """A worker in a thread of this process."""

    def __init__(self, index: int, start: int, stop: int, memory: int) -> None:
        super().__init__(index, start, stop)
        self.connection, theirs = Pipe()
        self._thread = threading.Thread(
            target=serve, args=(theirs, memory), name=f"environments-{index}", daemon=True
        )
        self._lost = False
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def ending(self) -> str:
        return "ended its thread"

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def join(self, seconds: float) -> None:
        self._thread.join(0.0 if self._lost else seconds)

    def kill(self) -> None:
        self._lost = True  # nothing ends a thread


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
    lanes = _attempt("__init__", lambda: job.start + len(envs), _make, job, envs)
    if isinstance(lanes, Fault):
        connection.send(lanes)
        return
    team = getattr(envs[0], "team", None)
    known = team if isinstance(team, Team) else None
    connection.send(Facts(lanes.observation, lanes.action, time_limit(envs[0]), known))

    def attach(num_envs: int, size: int) -> None:
        shared = mmap.mmap(memory, size)
        everything = buffers(shared, lanes.observation, lanes.action, num_envs)
        lanes.bind(everything.rows(job.start, job.stop))

    actions = {"attach": attach, "reset": lanes.reset, "step": lanes.step}
    fault = None
    while fault is None:
        doing, *arguments = connection.recv()
        fault = _attempt(doing, lambda: job.start + lanes.at, actions[doing], *arguments)
        connection.send(fault)


def _attempt(doing: str, where: Callable[[], int], work: Callable, *arguments: Any) -> Any:
    """The result of `work`, or the `Fault` of the environment that raised an error."""
    try:
        return work(*arguments)
    except MakeError as error:
        return Fault(where(), str(error), "", True)
    except (Exception, SystemExit) as error:
        summary = f"raised {type(error).__name__} in {doing}: {error}"
        return Fault(where(), summary, traceback.format_exc(), False)


def _make(job: Job, envs: list[Any]) -> Lanes:
    """Makes the environments of a job and appends them to `envs`."""
    with contextlib.ExitStack() as quiet:
        if job.seed is not None:
            random.seed(job.seed + job.start)
            np.random.seed((job.seed + job.start) % 2**32)  # noqa: NPY002 - for old environments
            if job.start:  # worker 0 gives the same warnings
                quiet.enter_context(warnings.catch_warnings(action="ignore"))
        for _ in range(job.start, job.stop):
            envs.append(job.make())
    return Lanes(envs, job.start)


def _close(envs: list[Any]) -> None:
    for env in envs:
        try:
            env.close()
        except Exception:
            traceback.print_exc()  # the owner has ended, and the others are to be closed


def main(connection: int, memory: int, trace: int, parent: int, parental: int) -> None:
    """Runs a worker process, given its open files and its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    faulthandler.enable(trace, all_threads=False)
    faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
    _die_with(parent, bool(parental))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    serve(Connection(connection), memory)


def _die_with(parent: int, parental: bool) -> None:
    """Ends this process when its parent ends, even if the environment hangs.

    Linux does so itself, but when the thread that started the process ends: hence it is used only
    where that was the main thread. Elsewhere a thread polls the parent.
    """
    if parental and sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # the parent ended before
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PATROL_SECONDS)
    time.sleep(GRACE_SECONDS)  # an idle worker finds the pipe closed, and closes its environments
    os._exit(1)


def _stop_all(workers: list[_Process | _Thread]) -> None:
    """Closes the pipes, upon which workers exit, and ends those that do not."""
    for worker in workers:
        worker.connection.close()
    for end, seconds in ((None, GRACE_SECONDS), ("terminate", 1.0), ("kill", GRACE_SECONDS)):
        deadline = time.monotonic() + seconds
        for worker in workers:
            if end and worker.alive():
                getattr(worker, end)()
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        worker.release()


def _shared_file() -> int:
    """An open file without a name, which cannot be left behind on disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("purejaxppo")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
