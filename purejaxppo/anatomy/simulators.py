"""Host simulators without the compiled program: alone, in other workers, and doing nothing."""

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from purejaxppo.anatomy.timing import Budget, Gain, Work, compare
from purejaxppo.envs.base import Env
from purejaxppo.envs.host.bridge import HostEnv
from purejaxppo.envs.host.callbacks import CallbackPool
from purejaxppo.envs.host.workers.factory import Maker
from purejaxppo.envs.host.workers.noop import NoOp
from purejaxppo.envs.host.workers.pool import WorkerPool
from purejaxppo.envs.step import EnvStep
from purejaxppo.envs.worlds import MultiAgentEnv
from purejaxppo.parallel.cores import cpu_cores

Kind = Literal["process", "thread"]
KINDS: tuple[Kind, ...] = ("process", "thread")


class Workers(NamedTuple):
    """Kind and number of workers."""

    kind: Kind
    number: int

    def __str__(self) -> str:
        """Return them in words."""
        kinds = {"process": ("process", "processes"), "thread": ("thread", "threads")}
        return f"{self.number} {kinds[self.kind][self.number > 1]}"


class WorkerSpeed(NamedTuple):
    """Speed of the simulator in some workers, without training."""

    workers: Workers
    gain: Gain
    """Seconds per update of the simulator alone in the workers of the config, and in these."""


def callback_pool(env: Env, num_agents: int) -> CallbackPool[Any] | None:
    """Return the pool that callbacks of the program step; None without callbacks.

    Args:
        env: environments of one agent.
        num_agents: number of agents that train in one program, which share the pool.
    """
    host = env.worlds if isinstance(env, MultiAgentEnv) else env
    if not isinstance(host, HostEnv):
        return None
    pool = host.pool(host.spec.num_envs * num_agents)
    return pool if isinstance(pool, CallbackPool) else None


@contextlib.contextmanager
def recording(pool: CallbackPool[Any]) -> Iterator[list[Any]]:
    """Yield a list of the actions with which the compiled program steps a pool."""
    envs, actions = pool.envs, list[Any]()

    def step(action: Any) -> EnvStep:
        actions.append(jax.tree.map(np.array, action))
        result: EnvStep = envs.step(action)
        return result

    pool.envs = SimpleNamespace(step=step)
    try:
        yield actions
    finally:
        pool.envs = envs


def stepping(envs: Any, actions: Sequence[Any]) -> Work:
    """Return a function that steps environments with the actions of a rollout."""

    def work(count: int) -> None:
        for _ in range(count):
            for action in actions:
                envs.step(action)

    return work


@contextlib.contextmanager
def started(envs: WorkerPool, workers: Workers, *, noop: bool = False) -> Iterator[WorkerPool]:
    """Start another pool of the same environments, or of environments that do nothing."""
    make: Maker = NoOp(envs.make) if noop else envs.make
    with WorkerPool(
        make, envs.num_envs, num_workers=workers.number, timeout=envs.timeout, kind=workers.kind
    ) as pool:
        pool.reset(0)
        yield pool


def workers_of(envs: WorkerPool) -> Workers:
    """Return kind and number of the workers of a pool."""
    return Workers(envs.kind, envs.num_workers)


def candidates(envs: WorkerPool, numbers: Sequence[int]) -> list[Workers]:
    """Return the workers to compare with those of a pool.

    Args:
        envs: the pool.
        numbers: numbers of workers. Empty: powers of two up to twice the cores, and the cores.
    """
    cores = cpu_cores()
    usual = {cores, *(2**i for i in range(2 * cores) if 2**i <= 2 * cores)}
    sizes = sorted({min(n, envs.num_envs) for n in numbers or usual})
    every = [Workers(kind, n) for kind in KINDS for n in sizes]
    return [workers for workers in every if workers != workers_of(envs)]


def compare_workers(
    envs: WorkerPool, actions: Sequence[Any], workers: Workers, budget: Budget, share: float
) -> Gain:
    """Step the simulator in other workers, in turns with those of the config."""
    with started(envs, workers) as pool:
        return compare(stepping(envs, actions), stepping(pool, actions), budget, share)


def options_of(workers: Workers) -> dict[str, Any]:
    """Return the config fields that select workers."""
    return {"env.options.workers": workers.kind, "env.options.num_workers": workers.number}
