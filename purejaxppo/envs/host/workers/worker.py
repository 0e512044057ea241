"""A worker: the process or thread that steps some Gymnasium environments of a batch.

The environments step one after another into shared arrays, with next-step auto-reset. A worker
process is a new interpreter that imports this module and the environment, but not the script that
started it. This module does not import JAX.
"""

import contextlib
import faulthandler
import math
import mmap
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.config.references import LoadError
from purejaxppo.envs.host.workers.errors import MakeError, printable
from purejaxppo.envs.host.workers.factory import Maker, time_limit
from purejaxppo.envs.host.workers.gym_spaces import (
    action_space,
    decoder,
    native,
    observation_space,
    read,
    sources,
)
from purejaxppo.envs.host.workers.resolution import Range, precision_warning
from purejaxppo.envs.host.workers.returned import (
    checked_info,
    old_gym_error,
    reset_result,
    to_bool,
    to_float,
)
from purejaxppo.envs.native import NativeSpaces
from purejaxppo.envs.step import EnvStep, bounded, diverged_value, end_diverged, rows_of
from purejaxppo.envs.teams import Team
from purejaxppo.spaces import LARGEST, Leaf, Space, leaves, short_number, tree_of

POLL_SECONDS = 0.25  # between checks that the other side is alive
GRACE_SECONDS = 5.0  # for environments to close before their worker is killed
ALIGNMENT = 64  # bytes: a cache line
TRIES = 3  # resets until NaN is an error


class Buffers(NamedTuple):
    """Arrays in shared memory between N environments and the parent process."""

    action: tuple[np.ndarray, ...]  # [N, ...] each: the action's parts, ordered by path
    out: EnvStep  # `obs`: the observation's parts [N, ...], ordered by path

    def rows(self, start: int, stop: int) -> "Buffers":
        """Return views of the rows from `start` to before `stop`."""
        return Buffers(tuple(x[start:stop] for x in self.action), rows_of(self.out, start, stop))


def metrics_shape(names: Sequence[str], team: Team | None) -> tuple[int, ...]:
    """Return the shape of an environment's metrics: [K], [A, K] with agents, [] without metrics."""
    return (*([team.size] if team else []), len(names)) if names else ()


def buffer_bytes(
    observation: Space, action: Space, num_envs: int, metrics: tuple[int, ...] = ()
) -> int:
    """Return the size in bytes of the buffers of N environments; see `metrics_shape`."""
    return _array_layout(observation, action, num_envs, metrics)[1]


def buffers(
    memory: Any, observation: Space, action: Space, num_envs: int, metrics: tuple[int, ...] = ()
) -> Buffers:
    """Return the buffers of N environments in `memory`, which has `buffer_bytes` bytes."""
    layout, _ = _array_layout(observation, action, num_envs, metrics)
    arrays = [np.ndarray(shape, dtype, memory, offset) for shape, dtype, offset in layout]
    values = arrays.pop() if metrics else None
    num_actions = len(list(leaves(action)))
    *parts, reward, terminated, truncated, diverged = arrays
    out = EnvStep(
        tuple(parts[num_actions:]),
        reward,
        terminated,
        truncated,
        diverged=diverged,
        metrics=values,
    )
    return Buffers(tuple(parts[:num_actions]), out)


def _array_layout(
    observation: Space, action: Space, num_envs: int, metrics: tuple[int, ...]
) -> tuple[list[tuple[tuple[int, ...], str, int]], int]:
    """Return (shape, dtype, offset) of each array, and the total size in bytes."""
    layout, end = [], 0
    scalars = [Leaf((), (), "float32"), *[Leaf((), (), "bool")] * 3]
    values = [Leaf((), metrics, "float32")] if metrics else []
    for leaf in [*leaves(action), *leaves(observation), *scalars, *values]:
        shape = (num_envs, *leaf.shape)
        layout.append((shape, leaf.dtype, end))
        size = math.prod(shape) * np.dtype(leaf.dtype).itemsize
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return layout, end


ignoring_float_errors = np.errstate(all="ignore")
"""Decorator for code that must not depend on `np.seterr`, which environments may call. Infinity and
NaN are checked later."""


class MultiAgentGymEnv:
    """Base class of multi-agent environments with Gymnasium's interface."""

    team: Team
    agents: Sequence[Any]
    """Names of the agents. The info of a step has an info for each of them."""
    observation_ranges: Sequence[Range]
    """Ranges of the parts of the agents' observations, which the environment converts itself."""


class EnvGroup:
    """Some environments of a batch, stepped one after another.

    Args:
        envs: Gymnasium environments with the same spaces.
        start: index of the first one in the batch.
        metrics: names of the entries of `info` to return.
    """

    def __init__(self, envs: Sequence[Any], start: int, metrics: Sequence[str] = ()) -> None:
        """Read the spaces."""
        self.envs = envs
        self._metrics = metrics
        self.start = start
        self.at = 0
        """Index in `envs` of the environment that is being stepped."""
        self.observation = observation_space(envs[0].observation_space)
        self.action = action_space(envs[0].action_space)
        self._leaves = tuple(leaves(self.observation))
        self._decode = [decoder(env.action_space) for env in envs]
        self._sources = [tuple(sources(env.observation_space)) for env in envs]
        self._ranges = [
            [part.range for part in env_sources if part.range]
            + [*(env.observation_ranges if isinstance(env, MultiAgentGymEnv) else ())]
            for env, env_sources in zip(envs, self._sources, strict=True)
        ]
        self._ended = np.zeros(len(envs), bool)
        for index, env in enumerate(envs):
            self.at = index
            observation = observation_space(env.observation_space)
            if (observation, action_space(env.action_space)) != (self.observation, self.action):
                raise ValueError("its spaces differ from those of the environments before it")

    def bind(self, shared: Buffers) -> None:
        """Set the arrays [len(envs), ...] for actions and results."""
        self._actions, self._out = shared

    def reset(self, seeds: Sequence[int]) -> None:
        """Start an episode of every environment, from the seeds of the whole batch."""
        self._out.reward[:] = 0
        for index in range(len(self.envs)):
            self.at = index
            self._first_obs(index, seeds[self.start + index])
        self._ended = np.zeros(len(self.envs), bool)

    def step(self) -> str:
        """Step each environment with its action, or reset it if its episode has ended.

        Returns:
            The first value that diverged, as in `diverged_value`; "" if none did.
        """
        results = []
        for index in range(len(self.envs)):
            self.at = index
            obs, *result = self._step_env(index)
            self._write(index, obs)  # before another environment writes to the same buffer
            results.append(result)
        return self._finish(*zip(*results, strict=True))

    @ignoring_float_errors
    def _finish(self, rewards: Any, terminated: Any, truncated: Any) -> str:
        """Write the rewards and ends [len(envs)] of a step; return the value that diverged."""
        out = self._out
        out.reward[:] = rewards
        out.terminated[:] = terminated
        out.truncated[:] = truncated
        out.diverged[:] = ~self._ended & ~bounded(out)
        value = ""
        if out.diverged.any():
            value = diverged_value(out, self._leaves, out.diverged.argmax())
            end_diverged(out, self._leaves)
        out.truncated[out.terminated] = False
        self._ended = out.terminated | out.truncated
        return value

    def precision_warning(self) -> str:
        """Return a warning about first observations that float32 cannot distinguish, or ""."""
        return precision_warning(self._ranges)

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()

    def _step_env(self, index: int) -> tuple[Any, float, bool, bool]:
        if self._ended[index]:
            self._write_metrics(index, {})
            return self._first_obs(index, None), 0.0, False, False
        obs, reward, terminated, truncated, info = self.envs[index].step(self._action(index))
        self._write_metrics(index, info)
        ends = to_bool(terminated, "terminated"), to_bool(truncated, "truncated")
        return obs, to_float(reward, "reward"), *ends

    @ignoring_float_errors
    def _action(self, index: int) -> Any:
        """Return the action of an environment in the form of its action space."""
        parts = [part[index] for part in self._actions]
        return self._decode[index](tree_of(self.action, parts))

    @ignoring_float_errors
    def _write_metrics(self, index: int, info: Mapping[Any, Any]) -> None:
        """Write the metrics of a step, NaN for those that `info` does not contain."""
        if not self._metrics:
            return
        env = self.envs[index]
        is_team = isinstance(env, MultiAgentGymEnv)
        infos = [info.get(agent) for agent in env.agents] if is_team else [info]
        values = [[_metric(checked_info(each), name) for name in self._metrics] for each in infos]
        self._out.metrics[index] = values if is_team else values[0]

    def _first_obs(self, index: int, seed: int | None) -> Any:
        """Reset an environment, again if the first observation is NaN or beyond ±LARGEST."""
        for _ in range(TRIES):
            obs, _ = reset_result(self.envs[index].reset(seed=seed))
            self._write(index, obs)
            if self._is_bounded(index):
                return obs
            seed = None
        raise FloatingPointError(
            f"reset returned {diverged_value(self._out, self._leaves, index)} in {TRIES} tries. "
            f"Observations must be finite and within ±{short_number(LARGEST)}."
        )

    @ignoring_float_errors
    def _is_bounded(self, index: int) -> bool:
        """Return True if an observation is not NaN and within ±LARGEST everywhere."""
        return all((np.abs(part[index]) <= LARGEST).all() for part in self._out.obs)

    @ignoring_float_errors
    def _write(self, index: int, obs: Any) -> None:
        """Write an observation to its row."""
        for target, source in zip(self._out.obs, self._sources[index], strict=True):
            target[index] = read(source, obs).reshape(target.shape[1:])


def _metric(info: Mapping[Any, Any], name: str) -> float:
    """Return a number of an info; NaN if it is missing or None.

    Raises:
        MakeError: it is not a single number.
    """
    value = info.get(name)
    if value is None:
        return math.nan
    try:
        return to_float(value, f"info[{name!r}]")
    except MakeError as error:
        raise MakeError(f"env.metrics.{name}: {error}") from None


class Job(NamedTuple):
    """The first message to a worker: the environments to create."""

    make: Maker
    start: int  # index of the worker's first environment
    stop: int  # index after the worker's last environment
    seed: int | None  # seed of the process's global random generators
    metrics: tuple[str, ...] = ()  # entries of `info` to return


class EnvInfo(NamedTuple):
    """A worker's reply after its environments were created."""

    observation: Space
    action: Space
    max_episode_steps: int
    team: Team | None  # agents of a multi-agent environment
    native: NativeSpaces | None  # native spaces of a single-agent environment


class WorkerFailure(NamedTuple):
    """A worker's reply when an environment raised an error."""

    env: int  # index of the environment in the batch
    summary: str
    trace: str
    is_config_error: bool  # True: the config is invalid, not the environment


def serve(connection: Connection, memory: int) -> None:
    """Create environments, then run commands until the other end of the pipe closes.

    Args:
        connection: the worker's end of the pipe.
        memory: the shared file, whose size is set after the environments were created.
    """
    envs: list[Any] = []
    with connection:
        try:
            _run_commands(connection, memory, envs)
        except (EOFError, ConnectionError):
            pass  # the parent has ended
        finally:
            _close(envs)


def _run_commands(connection: Connection, memory: int, envs: list[Any]) -> None:
    """Run commands until an environment fails."""
    connection.send(None)
    job: Job = connection.recv()
    group = _run_or_fail("__init__", lambda: job.start + len(envs), _make, job, envs)
    if isinstance(group, WorkerFailure):
        connection.send(group)
        return
    team = envs[0].team if isinstance(envs[0], MultiAgentGymEnv) else None
    native_forms = None if team else native(envs[0].observation_space, envs[0].action_space)
    connection.send(
        EnvInfo(group.observation, group.action, time_limit(envs[0]), team, native_forms)
    )

    def attach(num_envs: int, size: int) -> None:
        shared = mmap.mmap(memory, size)
        metrics = metrics_shape(job.metrics, team)
        shared_buffers = buffers(shared, group.observation, group.action, num_envs, metrics)
        group.bind(shared_buffers.rows(job.start, job.stop))

    actions = {
        "attach": attach,
        "reset": group.reset,
        "step": group.step,
        "compare first observations": group.precision_warning,
    }
    failure = None
    while failure is None:
        command, *arguments = connection.recv()
        reply = _run_or_fail(command, lambda: job.start + group.at, actions[command], *arguments)
        connection.send(reply)
        failure = reply if isinstance(reply, WorkerFailure) else None


def _run_or_fail(
    command: str, env_index: Callable[[], int], function: Callable[..., Any], *arguments: Any
) -> Any:
    """Return the result of `function`, or the `WorkerFailure` of the environment that raised."""
    try:
        return function(*arguments)
    except LoadError as error:
        return WorkerFailure(env_index(), str(error), "", True)
    except BaseException as error:  # else the worker would end without a message
        if sentence := old_gym_error(error):
            return WorkerFailure(env_index(), sentence, "", True)
        summary = f"raised {type(error).__name__} in {command}: {printable(error)}"
        return WorkerFailure(env_index(), summary, traceback.format_exc(), False)


def _make(job: Job, envs: list[Any]) -> EnvGroup:
    """Create the environments of a job and append them to `envs`."""
    with contextlib.ExitStack() as quiet:
        if job.seed is not None:
            random.seed(job.seed + job.start)
            np.random.seed((job.seed + job.start) % 2**32)  # noqa: NPY002 - for old environments
            if job.start:  # worker 0 gives the same warnings
                quiet.enter_context(warnings.catch_warnings(action="ignore"))
        for _ in range(job.start, job.stop):
            envs.append(job.make())
    return EnvGroup(envs, job.start, job.metrics)


def _close(envs: list[Any]) -> None:
    for env in envs:
        try:
            env.close()
        except Exception:
            traceback.print_exc()  # the parent has ended; close the other environments


def main(connection: int, memory: int, trace: int) -> None:
    """Run a worker process, given its open files. `pool.Guard` ends it with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    faulthandler.enable(trace, all_threads=False)
    faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    serve(Connection(connection), memory)
