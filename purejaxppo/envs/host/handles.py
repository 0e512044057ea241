"""A pool's ends of its workers: to start, ask and end them, and to find those dead or hanging."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from purejaxppo.envs.host import keeper
from purejaxppo.envs.host.worker import GRACE_SECONDS, Fault, serve

MOST_PRINTED = 1_000_000
"""Number of bytes that the environments of a worker may print."""
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from purejaxppo.envs.host.worker import main; main(*map(int, sys.argv[2:]))"
)


class WorkerError(RuntimeError):
    """An environment raised an error or hangs, or its worker died."""

    def __init__(self, message: str, worker: int, env_indices: tuple[int, ...]) -> None:
        """Stores the message, the worker and its environments."""
        super().__init__(message)
        self.worker = worker
        self.env_indices = env_indices


class Handle:
    """The owner's end of a worker: the base class of processes and threads."""

    connection: Connection

    def __init__(self, index: int, start: int, stop: int) -> None:
        """Stores the index and the environments from `start` to before `stop`."""
        self.index = index
        self.envs = tuple(range(start, stop))

    def __str__(self) -> str:
        first, last = self.envs[0], self.envs[-1]
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"worker {self.index} ({which})"

    def send(self, message: Any) -> None:
        """Sends the worker a message."""
        with contextlib.suppress(OSError):  # of a dead worker, which receive finds
            self.connection.send(message)

    def receive(self, doing: str) -> Any:
        """Returns the worker's reply, or raises the error that it reports or died of."""
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
        """The error of a worker that has ended."""
        message = f"{self} {self.ending()} when it was to {doing}"
        return WorkerError(f"{message}{self.last_words()}", self.index, self.envs)

    def hang(self, doing: str, seconds: float) -> WorkerError:
        """The error of a worker that was too slow; ends it."""
        message = f"{self} did not {doing} within {seconds:g} s; it is here:\n{self.stack()}"
        self.kill()
        return WorkerError(message, self.index, self.envs)

    def alive(self) -> bool:
        """True if the worker runs."""
        raise NotImplementedError

    def ending(self) -> str:
        """The worker's end, in words."""
        raise NotImplementedError

    def last_words(self) -> str:
        """The stack at the time of death, if known."""
        return ""

    def stack(self) -> str:
        """The stack of a worker that runs."""
        raise NotImplementedError

    def join(self, seconds: float) -> None:
        """Waits for the worker to end."""
        raise NotImplementedError

    def terminate(self) -> None:
        """Asks the worker to end."""

    def kill(self) -> None:
        """Ends the worker."""

    def release(self) -> None:
        """Closes what belongs to the worker."""


class ProcessHandle(Handle):
    """A worker in a process of its own."""

    def __init__(self, index: int, start: int, stop: int, memory: int) -> None:
        """Starts the process, which shares the open file `memory`."""
        super().__init__(index, start, stop)
        if os.name != "posix":
            raise ValueError("worker processes need Linux or macOS; threads run everywhere")
        self._trace = tempfile.TemporaryFile()  # noqa: SIM115 - closed in release
        self.connection, theirs = Pipe()
        printed, output = os.pipe()
        with theirs, open(output, "wb") as prints:
            fds = (theirs.fileno(), memory, self._trace.fileno())
            places = json.dumps([*map(os.path.abspath, sys.path)])
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, places, *map(str, fds)],
                stdin=subprocess.DEVNULL,
                stdout=prints,
                stderr=prints,
                pass_fds=fds,
                start_new_session=True,  # so that it can be ended with its own children
                env={**ONE_THREAD, **os.environ},
            )

        self._copying = threading.Thread(target=copy, args=(printed, str(self)), daemon=True)
        self._copying.start()

    @property
    def group(self) -> int:
        """The id of the process group of the worker and its children."""
        return self._process.pid

    def alive(self) -> bool:
        """True if the process runs."""
        return self._process.poll() is None

    def ending(self) -> str:
        """Its exit code or signal, in words."""
        self.join(1.0)
        code = self._process.poll()
        if code is None:
            return "has closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        hint = ", perhaps for lack of memory," if -code == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"

    def last_words(self) -> str:
        """The stack that faulthandler wrote at a fatal signal, if any."""
        words = self._said()
        return f"; it was here:\n{words}" if words else ""

    def stack(self) -> str:
        """The stack that faulthandler writes when asked by a signal."""
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
        """Waits for the process to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def terminate(self) -> None:
        """Sends SIGTERM to the process and its children."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL to the process and its children."""
        self._signal(signal.SIGKILL)

    def release(self) -> None:
        """Closes the trace file and kills children that the worker left behind."""
        self._trace.close()
        self.kill()
        self._copying.join(1.0)  # for the last lines that it printed

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)


def copy(source: int, name: str) -> None:
    """Copies a worker's output to stderr up to a limit; drops the rest, so the worker never blocks.

    Args:
        source: a pipe; it is closed when the output ends.
        name: of the worker, for the note in place of the rest.
    """
    left = MOST_PRINTED
    with open(source, "rb", buffering=0) as pipe:
        while data := pipe.read(1 << 16):
            if not left:
                continue
            data = data[:left]
            left -= len(data)
            if not left:
                data += f"\n{name} printed {MOST_PRINTED:,} bytes; the rest is left out\n".encode()
            with contextlib.suppress(OSError):  # nobody reads it, or the disk is full
                os.write(2, data)


class ThreadHandle(Handle):
    """A worker in a thread of this process."""

    def __init__(self, index: int, start: int, stop: int, memory: int) -> None:
        """Starts the thread, which shares the open file `memory`."""
        super().__init__(index, start, stop)
        self.connection, theirs = Pipe()
        self._thread = threading.Thread(
            target=serve, args=(theirs, memory), name=f"environments-{index}", daemon=True
        )
        self._lost = False
        self._thread.start()

    def alive(self) -> bool:
        """True if the thread runs."""
        return self._thread.is_alive()

    def ending(self) -> str:
        """The same words for every end."""
        return "ended its thread"

    def stack(self) -> str:
        """The stack of the thread."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def join(self, seconds: float) -> None:
        """Waits for the thread to end, unless it hangs."""
        self._thread.join(0.0 if self._lost else seconds)

    def kill(self) -> None:
        """Gives the thread up: nothing ends one."""
        self._lost = True


class Guard:
    """A process that kills worker processes and their children when this process ends."""

    def __init__(self) -> None:
        """Starts the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, keeper.GROUPS],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, worker: ProcessHandle) -> None:
        """Adds a worker to those that the process kills."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % worker.group)
        self._process.stdin.flush()

    def close(self) -> None:
        """Ends the process, after the workers have ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def stop_all(workers: list[Handle], guard: Guard | None) -> None:
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
    if guard:
        guard.close()
