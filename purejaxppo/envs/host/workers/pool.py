"""N Gymnasium environments in worker processes or threads, as one batch with next-step auto-reset.

Each worker owns a slice of the environments. Actions and results are in shared memory. A pipe per
worker carries commands and replies, and closes when the other side ends.
"""

import contextlib
import json
import logging
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import numpy as np

from purejaxppo.envs.host.workers import supervisor
from purejaxppo.envs.host.workers.factory import Maker
from purejaxppo.envs.host.workers.resolution import NUM_COMPARED
from purejaxppo.envs.host.workers.worker import (
    GRACE_SECONDS,
    POLL_SECONDS,
    EnvInfo,
    Job,
    WorkerFailure,
    buffer_bytes,
    buffers,
    metrics_shape,
    serve,
)
from purejaxppo.envs.step import EnvStep, copied
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.spaces import arrays_of, tree_of

log = logging.getLogger("purejaxppo")

LOGGED_STEPS = 1_000
"""Steps between two lines of a debug log."""

START_SECONDS = 60.0  # for a new interpreter to import `worker`
MAX_OUTPUT_BYTES = 1_000_000
"""Number of bytes that the environments of a worker may print."""
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
BOOT_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from purejaxppo.envs.host.workers.worker import main; main(*map(int, sys.argv[2:]))"
)


class WorkerError(RuntimeError):
    """An environment raised an error or timed out, or its worker ended."""


class Handle:
    """The parent's side of a worker; base class of processes and threads."""

    connection: Connection

    def __init__(self, index: int, start: int, stop: int) -> None:
        """Store the index and the environments from `start` to before `stop`."""
        self.index = index
        self.envs = tuple(range(start, stop))

    def __str__(self) -> str:
        first, last = self.envs[0], self.envs[-1]
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"worker {self.index} ({which})"

    def send(self, message: Any) -> None:
        """Send a message to the worker."""
        with contextlib.suppress(OSError):  # the worker has ended, which receive detects
            self.connection.send(message)

    def receive(self, phase: str) -> Any:
        """Return the worker's reply.

        Raises:
            ValueError: the configuration is invalid.
            WorkerError: an environment failed, or the worker ended.
        """
        try:
            reply = self.connection.recv()
        except (EOFError, OSError):
            raise self.exit_error(phase) from None
        if not isinstance(reply, WorkerFailure):
            return reply
        if reply.is_config_error:
            raise ValueError(reply.summary)
        message = f"environment {reply.env} (worker {self.index}) {reply.summary}"
        raise WorkerError(f"{message}\n\n{reply.trace}")

    def exit_error(self, phase: str) -> WorkerError:
        """Return the error for a worker that has ended."""
        message = f"{self} {self.describe_exit()} while it was supposed to {phase}"
        return WorkerError(f"{message}{self.crash_stack()}")

    def timeout_error(self, phase: str, seconds: float) -> WorkerError:
        """Kill a worker that was too slow, and return the error."""
        message = f"{self} did not {phase} within {seconds:g} s. Its stack:\n{self.stack()}"
        self.kill()
        return WorkerError(message)

    def alive(self) -> bool:
        """Return True while the worker runs."""
        raise NotImplementedError

    def describe_exit(self) -> str:
        """Describe how the worker ended."""
        raise NotImplementedError

    def crash_stack(self) -> str:
        """Return the stack at the time of a crash, if known."""
        return ""

    def stack(self) -> str:
        """Return the stack of a running worker."""
        raise NotImplementedError

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the worker to end."""
        raise NotImplementedError

    def terminate(self) -> None:
        """Request the worker to end."""

    def kill(self) -> None:
        """End the worker immediately."""

    def release(self) -> None:
        """Free the worker's resources."""


class ProcessHandle(Handle):
    """A worker in a separate process."""

    def __init__(self, index: int, start: int, stop: int, memory: int) -> None:
        """Start the process, which shares the open file `memory`."""
        super().__init__(index, start, stop)
        if os.name != "posix":
            raise ValueError(
                "env.options.workers = process needs Linux or macOS. Use env.options.workers = "
                "thread."
            )
        self._trace = tempfile.TemporaryFile()  # noqa: SIM115 - closed in release
        self.connection, worker_end = Pipe()
        output_read, output_write = os.pipe()
        with worker_end, open(output_write, "wb") as stdout:
            fds = (worker_end.fileno(), memory, self._trace.fileno())
            import_paths = json.dumps([*map(os.path.abspath, sys.path)])
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT_CODE, import_paths, *map(str, fds)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stdout,
                pass_fds=fds,
                start_new_session=True,  # a process group, to end it with its children
                env={**ONE_THREAD, **os.environ},
            )

        self._copying = threading.Thread(target=copy, args=(output_read, str(self)), daemon=True)
        self._copying.start()

    @property
    def group(self) -> int:
        """Return the process group id of the worker and its children."""
        return self._process.pid

    def alive(self) -> bool:
        """Return True while the process runs."""
        return self._process.poll() is None

    def describe_exit(self) -> str:
        """Describe the exit code or the signal."""
        self.join(1.0)
        code = self._process.poll()
        if code is None:
            return "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        hint = " (possibly out of memory)" if -code == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"

    def crash_stack(self) -> str:
        """Return the stack that faulthandler wrote at a fatal signal, if any."""
        stack = self._trace_text()
        return f". Its stack:\n{stack}" if stack else ""

    def stack(self) -> str:
        """Return the stack that faulthandler writes at SIGUSR1."""
        os.kill(self._process.pid, signal.SIGUSR1)
        text = ""
        for _ in range(40):
            time.sleep(0.025)
            previous, text = text, self._trace_text()
            if text and text == previous:
                break
        return text

    def _trace_text(self) -> str:
        """Return the text that faulthandler has written to the trace file."""
        return os.pread(self._trace.fileno(), 1 << 16, 0).decode(errors="replace")

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the process to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def terminate(self) -> None:
        """Send SIGTERM to the process and its children."""
        supervisor.send_signal(self.group, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process and its children."""
        supervisor.send_signal(self.group, signal.SIGKILL)

    def release(self) -> None:
        """Close the trace file and kill the worker's remaining children."""
        self._trace.close()
        self.kill()
        self._copying.join(1.0)  # for the last printed lines


def copy(source: int, name: str) -> None:
    """Copy a worker's output to stderr up to a limit.

    The rest is dropped. Otherwise the worker would block.

    Args:
        source: a pipe, closed when the output ends.
        name: name of the worker, for the note about dropped output.
    """
    left = MAX_OUTPUT_BYTES
    with open(source, "rb", buffering=0) as pipe:
        while data := pipe.read(1 << 16):
            if not left:
                continue
            data = data[:left]
            left -= len(data)
            if not left:
                data += (
                    f"\n{name} printed {MAX_OUTPUT_BYTES:,} bytes. The rest is dropped.\n".encode()
                )
            with contextlib.suppress(OSError):  # no reader, or the disk is full
                os.write(2, data)


class ThreadHandle(Handle):
    """A worker in a thread of this process."""

    def __init__(self, index: int, start: int, stop: int, memory: int) -> None:
        """Start the thread, which shares the open file `memory`."""
        super().__init__(index, start, stop)
        self.connection, worker_end = Pipe()
        self._thread = threading.Thread(
            target=serve, args=(worker_end, memory), name=f"environments-{index}", daemon=True
        )
        self._given_up = False
        self._thread.start()

    def alive(self) -> bool:
        """Return True while the thread runs."""
        return self._thread.is_alive()

    def describe_exit(self) -> str:
        """Describe the end of a thread, for which no details are known."""
        return "ended its thread"

    def stack(self) -> str:
        """Return the stack of the thread."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the thread to end; do not wait for a thread that hangs."""
        self._thread.join(0.0 if self._given_up else seconds)

    def kill(self) -> None:
        """Abandon the thread, because threads cannot be killed."""
        self._given_up = True


class Guard:
    """A process that kills the workers and their children when this process ends."""

    def __init__(self) -> None:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, supervisor.GROUPS],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, worker: ProcessHandle) -> None:
        """Register a worker, so that it is killed when this process ends."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % worker.group)
        self._process.stdin.flush()

    def close(self) -> None:
        """End the process after the workers have ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def join_all(workers: list[Handle], seconds: float) -> None:
    """Wait for the workers to end, at most `seconds` in total."""
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))


def stop_all(workers: list[Handle], guard: Guard | None) -> None:
    """Close the pipes, on which workers exit, and kill the workers that do not exit."""
    for worker in workers:
        worker.connection.close()
    join_all(workers, GRACE_SECONDS)
    for worker in workers:
        if worker.alive():
            worker.terminate()
    join_all(workers, 1.0)
    for worker in workers:
        if worker.alive():
            worker.kill()
    join_all(workers, GRACE_SECONDS)
    for worker in workers:
        worker.release()
    if guard:
        guard.close()


class WorkerPool:
    """N environments that step together.

    Args:
        make: creates one environment.
        num_envs: number of environments, N.
        num_workers: number of processes or threads, at most N; 0: one per core.
        timeout: seconds that the slowest worker may take to create, reset or step its environments.
        seed: seed of the global generators of `random` and `numpy.random` in worker processes, for
            environments that use them.
        warns_as: name to print in warnings about the first observations; "": no warnings.
        kind: "process" or "thread". Threads start quickly and share this process's memory, but
            Python code in them does not run in parallel, and a hanging thread cannot be killed.
        metrics: names of the numbers in `info` that steps return; NaN if one is missing.

    Raises:
        ValueError: an unknown or unsupported environment.
        WorkerError: an environment raised an error.
    """

    def __init__(
        self,
        make: Maker,
        num_envs: int,
        *,
        num_workers: int = 0,
        timeout: float = 60.0,
        seed: int = 0,
        warns_as: str = "",
        kind: Literal["process", "thread"] = "process",
        metrics: tuple[str, ...] = (),
    ) -> None:
        """Start the workers and create the environments."""
        if num_envs < 1 or num_workers < 0:
            raise ValueError(
                f"num_envs = {num_envs}, num_workers = {num_workers}: must be at least 1 and 0."
            )
        self.make = make
        self.kind = kind
        self.num_envs = num_envs
        self.timeout = timeout
        self._workers: list[Handle] = []
        self._failure: WorkerError | None = None
        self._warns_as, self._steps = warns_as, 0
        self._seconds = 0.0  # in steps since the last line of the debug log
        self.diverged_value = ""
        """See `bridge.Pool`."""
        guard = Guard() if kind == "process" else None
        self._stop = weakref.finalize(self, stop_all, self._workers, guard)
        count = min(num_workers or cpu_cores(), num_envs)
        bounds = [num_envs * i // count for i in range(count + 1)]
        memory = _shared_file()
        try:
            for index in range(count):
                envs = bounds[index], bounds[index + 1]
                if guard:
                    process = ProcessHandle(index, *envs, memory)
                    self._workers.append(process)
                    guard.add(process)
                else:
                    self._workers.append(ThreadHandle(index, *envs, memory))
            self._gather("start", START_SECONDS)
            self._make_envs(make, seed if kind == "process" else None, memory, metrics)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(memory)

    @property
    def num_workers(self) -> int:
        """Number of processes or threads."""
        return len(self._workers)

    def _make_envs(
        self, make: Maker, seed: int | None, memory: int, metrics: tuple[str, ...]
    ) -> None:
        """Create the environments and the arrays shared with them."""
        for worker in self._workers:
            start = worker.envs[0]
            worker.send(Job(make, start, start + len(worker.envs), seed, metrics))
        replies = self._gather("make its environments", self.timeout)
        self.info: EnvInfo = replies[0]
        self.observation, self.action = self.info.observation, self.info.action
        for worker, info in zip(self._workers, replies, strict=True):
            if info != self.info:
                raise WorkerError(
                    f"the spaces or time limit of {worker} differ from those of worker 0: {info}"
                )
        shape = metrics_shape(metrics, self.info.team)
        layout = self.observation, self.action, self.num_envs, shape
        size = buffer_bytes(*layout)
        os.ftruncate(memory, size)
        shared = mmap.mmap(memory, size)
        self._buffers = buffers(shared, *layout)
        self._exchange("attach", self.num_envs, size)

    def reset(self, seed: int | np.ndarray) -> Any:
        """Start a new episode of every environment: one seed or seeds [N] -> obs [N, ...].

        With one seed, environment i gets seed + i. Later episodes use the environment's generator.
        """
        seeds = seed + np.arange(self.num_envs) if np.ndim(seed) == 0 else np.asarray(seed)
        self._exchange("reset", seeds.tolist())
        return self._obs()

    def step(self, action: Any) -> EnvStep:
        """Step the environments: actions [N, ...] -> EnvStep.

        On the step that ends an episode, `obs` is the true last observation. The next step ignores
        the action, returns the first observation of the next episode, and is not `valid`.

        Raises:
            WorkerError: an environment failed; the pool is closed.
        """
        self._check()
        parts = arrays_of(self.action, action)
        for part, buffer in zip(parts, self._buffers.action, strict=True):
            if part.shape != buffer.shape:
                raise ValueError(f"actions have shape {part.shape}, expected {buffer.shape}")
            np.copyto(buffer, part, casting="same_kind")
        started = time.perf_counter()
        values = self._exchange("step")
        self._seconds += time.perf_counter() - started
        self.diverged_value = next(filter(None, values), self.diverged_value)
        self._steps += 1
        if self._steps % LOGGED_STEPS == 0:
            spent = LOGGED_STEPS, self.num_envs, self._seconds
            log.debug("workers: %d steps of %d environments in %.3f s", *spent)
            self._seconds = 0.0
        if self._steps == NUM_COMPARED and self._warns_as:
            self._warn()
        return copied(self._buffers.out, self._obs())

    def _warn(self) -> None:
        """Warn about first observations that float32 cannot distinguish."""
        for sentence in filter(None, self._exchange("compare first observations")):
            log.warning("%s: %s", self._warns_as, sentence)
            break  # warnings of other workers are similar

    def close(self) -> None:
        """Close the environments and end the workers. A second call does nothing."""
        self._stop()

    def render_frame(self) -> None:
        """Return None: the environments are in other processes or threads."""

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _obs(self) -> Any:
        """Return a copy of the observation, because workers overwrite theirs at the next step."""
        return tree_of(self.observation, self._buffers.out.obs)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._stop.alive:
            raise RuntimeError("the worker pool is closed")

    def _exchange(self, *command: Any) -> list[Any]:
        """Send a command to all workers and return their replies."""
        self._check()
        with self._closing():
            for worker in self._workers:
                worker.send(command)
            return self._gather(command[0], self.timeout)

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        """Close the pool at any error; otherwise a pending reply would be read as the next one."""
        try:
            yield
        except BaseException as error:
            self._failure = error if isinstance(error, WorkerError) else None
            self.close()
            raise

    def _gather(self, phase: str, seconds: float) -> list[Any]:
        """Return one reply of each worker, in order."""
        deadline = time.monotonic() + seconds
        replies = {}
        waiting: dict[Any, Handle] = {w.connection: w for w in self._workers}
        while waiting:
            remaining = max(0.0, deadline - time.monotonic())
            ready = wait(list(waiting), min(remaining, POLL_SECONDS))
            for connection in ready:
                worker = waiting.pop(connection)
                replies[worker.index] = worker.receive(phase)
            if ready:
                continue
            for worker in waiting.values():
                if not worker.alive() and not worker.connection.poll():
                    raise worker.exit_error(phase)
            if not remaining:
                raise next(iter(waiting.values())).timeout_error(phase, seconds)
        return [replies[worker.index] for worker in self._workers]


def _shared_file() -> int:
    """Return an open unnamed file, which cannot remain on disk."""
    if sys.platform == "linux":
        return os.memfd_create("purejaxppo")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
