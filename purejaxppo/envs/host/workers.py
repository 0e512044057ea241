"""N Gymnasium environments in worker processes or threads, as one batch with next-step reset.

Each worker owns a slice of the environments. Actions and results lie in shared memory; a pipe per
worker carries commands and replies, and is closed when the other side has ended.
"""

import contextlib
import logging
import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any, Literal

import numpy as np

from purejaxppo.envs.host.factory import Maker, make_one, make_spec
from purejaxppo.envs.host.handles import (
    Guard,
    Handle,
    ProcessHandle,
    ThreadHandle,
    WorkerError,
    stop_all,
)
from purejaxppo.envs.host.pool_step import PoolStep
from purejaxppo.envs.host.resolution import FIRST
from purejaxppo.envs.host.slots import arrays_of, buffers, size_of, tree_of
from purejaxppo.envs.host.worker import PATROL_SECONDS, EnvInfo, Job
from purejaxppo.parallel.cores import cpu_cores

__all__ = ["EnvInfo", "Maker", "PoolStep", "WorkerError", "WorkerPool", "make_one", "make_spec"]

log = logging.getLogger("purejaxppo")

START_SECONDS = 60.0  # for a new interpreter to import `worker`


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
        warns_as: name of the environment in warnings about its first observations; "": no warnings.
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
        warns_as: str = "",
        kind: Literal["process", "thread"] = "process",
    ) -> None:
        """Starts the workers and makes the environments."""
        if num_envs < 1 or num_workers < 0:
            raise ValueError(f"num_envs = {num_envs} and num_workers = {num_workers} are too small")
        self.num_envs = num_envs
        self.timeout = timeout
        self._workers: list[Handle] = []
        self._failure: WorkerError | None = None
        self._warns_as, self._steps = warns_as, 0
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
        replies = self._gather("make its environments", self.timeout)
        self.info: EnvInfo = replies[0]
        self.observation, self.action = self.info.observation, self.info.action
        for worker, other in zip(self._workers, replies, strict=True):
            if other != self.info:
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

    def reset(self, seed: int | np.ndarray) -> Any:
        """Starts a new episode of every environment: a seed, or seeds [N] -> obs [N, ...].

        With one seed, environment i is seeded with seed + i. It draws its later episodes from its
        own generator.
        """
        seeds = seed + np.arange(self.num_envs) if np.ndim(seed) == 0 else np.asarray(seed)
        self._exchange("reset", seeds.tolist())
        return self._obs()

    def step(self, action: Any) -> PoolStep:
        """Steps the environments: actions [N, ...] -> PoolStep.

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

    def recv(self) -> PoolStep:
        """The second half of `step`: waits for the results of the actions that were sent."""
        self._check()
        values = self._await("step")
        self.diverged_value = next(filter(None, values), self.diverged_value)
        self._steps += 1
        if self._steps == FIRST and self._warns_as:
            self._warn()
        return PoolStep.copied(self._obs(), self._buffers)

    def _warn(self) -> None:
        """Warn about first observations that float32 cannot distinguish."""
        command = "compare first observations"
        self._post(command)
        for sentence in filter(None, self._await(command)):
            log.warning("%s: %s", self._warns_as, sentence)
            break  # warnings of other workers are similar

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

    def _await(self, doing: str) -> list[Any]:
        """Waits until all workers are done; returns their replies."""
        with self._closing():
            return self._gather(doing, self.timeout)

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
        waiting: dict[Any, Handle] = {w.connection: w for w in self._workers}
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


def _shared_file() -> int:
    """An open file without a name, which cannot be left behind on disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("purejaxppo")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
