"""Two halves of a batch on the host, of which one steps while the policy acts for the other.

Environment i has the seed that it has in one batch, and `double_buffer.collect` sends it the same
actions: trajectories are the same. Each half is a pool of its own; the calls to both are ordered by
making the token of the one depend on the other's.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from purejaxppo.aliases import Scalar
from purejaxppo.envs.base import EnvStep
from purejaxppo.envs.host.bridge import HostEnv, HostState

Halves = tuple[HostState, HostState]


class HalvedEnv:
    """N environments, 0 to N/2 - 1 in the first half and the others in the second.

    Args:
        first: a batch of N/2.
        second: a batch of N/2.
    """

    def __init__(self, first: HostEnv, second: HostEnv) -> None:
        """Stores the halves, which `close` closes."""
        self.halves = first, second
        self.size = first.spec.num_envs
        self.spec = replace(first.spec, num_envs=2 * self.size)
        self.reset = _unvmapped(self._reset)
        self._send = tuple(_unvmapped(half.send) for half in self.halves)

    @property
    def failure(self) -> Exception | None:
        """The error on the host, if there was one."""
        first, second = (half.failure for half in self.halves)
        if second is not None:
            return RuntimeError(f"in the second half of the environments, {second}")
        return first

    @property
    def diverged_value(self) -> str:
        """See `Env.diverged_value`."""
        first, second = (half.diverged_value for half in self.halves)
        return first or second

    def close(self) -> None:
        """Ends the pools; programs that were compiled with them must not run again."""
        for half in self.halves:
            half.close()

    def at(self, state: Halves, progress: Scalar) -> Halves:
        """See `HostEnv.at`."""
        for which, half in enumerate(self.halves):
            state = _put(state, which, half.at(_in_turn(state, which), progress))
        return state

    def continue_at(self, update: int, progress: float) -> None:
        """See `HostEnv.continue_at`."""
        for half in self.halves:
            half.continue_at(update, progress)

    def _reset(self, key) -> tuple[Halves, Any]:
        """A key -> (state, obs [N, ...])."""
        (first, first_obs), (second, second_obs) = (half.reset(key) for half in self.halves)
        return (first, second), join(first_obs, second_obs)

    def refresh(self, state: Halves) -> Halves:
        """Does nothing: the simulator resets itself."""
        return state

    def with_key(self, state: Halves, key) -> Halves:
        """Does nothing: the simulator draws its own numbers."""
        del key
        return state

    def step(self, state: Halves, action) -> tuple[Halves, EnvStep]:
        """(state, action [N, ...]) -> (state, EnvStep): both halves at once."""
        state = self.send(self.send(state, 0, action), 1, action)
        state, first = self.recv(state, 0)
        state, second = self.recv(state, 1)
        return state, join(first, second)

    def send(self, state: Halves, which: int, action) -> Halves:
        """Sends one half its rows of the actions [N, ...], and does not wait."""
        rows = self.rows(which, action)
        return _put(state, which, self._send[which](_in_turn(state, which), rows))

    def recv(self, state: Halves, which: int) -> tuple[Halves, EnvStep]:
        """Waits for one half: -> (state, EnvStep of [N/2])."""
        mine, out = self.halves[which].recv(_in_turn(state, which))
        return _put(state, which, mine), out

    def rows(self, which: int, tree) -> Any:
        """One half's rows of arrays [N, ...]."""
        begin = which * self.size
        return jax.tree.map(lambda x: x[begin : begin + self.size], tree)


def join(first, second) -> Any:
    """Arrays [N/2, ...] of both halves as [N, ...]."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)


def after(token, earlier) -> Any:
    """Returns `token`, but only once `earlier`, another token, is computed.

    Tokens are never all zero, but XLA cannot prove it: so it cannot remove the dependency.
    """
    there = jnp.any(earlier != 0)
    return jax.tree.map(lambda x: jnp.where(there, x, jnp.zeros_like(x)), token)


def _in_turn(state: Halves, which: int) -> HostState:
    """One half's state, for a call that comes after the last one to the other half."""
    mine, other = state[which], state[1 - which]
    return mine.replace(token=after(mine.token, other.token))


def _put(state: Halves, which: int, mine: HostState) -> Halves:
    return (mine, state[1]) if which == 0 else (state[0], mine)


def _unvmapped(function: Callable) -> Callable:
    """Wraps `function` to raise ValueError under vmap."""
    single = jax.custom_batching.custom_vmap(function)

    @single.def_vmap
    def refuse(size: int, batched, *args):
        del batched, args
        raise ValueError(
            f"env.double_buffer cannot be vmapped (over {size} seeds): train one seed at a time, "
            f"or leave it off"
        )

    return single
