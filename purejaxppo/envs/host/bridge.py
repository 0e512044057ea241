"""Simulators that run on the host, inside the compiled loop.

An adapter returns a `Pool`: N environments behind two functions that can be traced, EnvPool's by
its own XLA calls, others by callbacks. `HostEnv` turns it into an `Env`. A token that each call
takes and returns orders the calls, so that callbacks need no order of their own and can be
vmapped: a batch of seeds is folded into one larger pool, and one call steps them all.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purejaxppo.aliases import Array, EnvAction, Key, Obs, Tree
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import Env, EnvSpec, EnvStep
from purejaxppo.envs.host.workers.errors import SimulatorError, printable
from purejaxppo.envs.vectorize import bounded, select
from purejaxppo.envs.wrappers import flat_space, from_unit, shaped, unit_space
from purejaxppo.spaces import Space
from purejaxppo.video.compressed import CompressedFrame

Token = Tree
"""Data that every call takes and returns, so that the calls keep their order."""


class Pool(Protocol):
    """N environments on the host with next-step auto-reset; both functions can be traced."""

    @property
    def failure(self) -> Exception | None:
        """The error on the host, of which the compiled program's own error has only the text."""
        ...

    @property
    def diverged_value(self) -> str:
        """The last value that diverged, as in reward = nan; "" if it is unknown."""
        ...

    def reset(self, key: Key) -> tuple[Token, Obs]:
        """A key -> (token, obs [N, ...]); with absent agents (token, (obs, bool [N]: no agent))."""
        ...

    def begin(self, seeds: jax.Array) -> tuple[Token, Obs]:
        """As `reset`, with a seed for each environment; not all simulators use it."""
        ...

    def step(self, token: Token, action: EnvAction) -> tuple[Token, EnvStep]:
        """(token, action [N, ...]) -> (token, EnvStep); ignores actions right after an end."""
        ...

    def render_frame(self) -> np.ndarray | None:
        """A picture of the first environment now, uint8 [H, W, 3]; None if it cannot be drawn."""
        ...

    def close(self) -> None:
        """Ends the environments; nothing may be called after."""
        ...


class FrameSource(BaseTask):
    """Draws "states" that are pictures or, where there are none, observations."""

    def __init__(self, frame_rate: float) -> None:
        """Stores the steps per second."""
        self.frame_rate = frame_rate

    def draw(self, states: Sequence[Any], *, height: int, width: int) -> Iterator[np.ndarray]:
        """The pictures in the requested size."""
        if isinstance(states[0], CompressedFrame):
            from purejaxppo.video.canvas import fit

            return (fit(state.pixels(), height, width) for state in states)
        from purejaxppo.video import charts

        return charts.frames(states, height=height, width=width)


@contextlib.contextmanager
def simulator_errors(name: str, *envs: Any) -> Iterator[None]:
    """Replaces an error of a program that steps `envs` by the simulator's own error.

    Raises:
        SimulatorError: with the simulator's message.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        failure = next((env.failure for env in envs if env.failure), None)
        if failure is None:
            raise
        raise SimulatorError(f"{name}: {printable(failure)}") from error


class HostState(struct.PyTreeNode):
    """The device's part of the state of N environments on the host."""

    token: Token
    done: jax.Array  # [N] bool: the pool begins a new episode at the next step
    lost: jax.Array  # [N] bool: diverged, and no new episode yet
    absent: jax.Array | None = None
    """[N] bool: the agent needs no action; None: agents are never absent"""


class Calls(NamedTuple):
    """A pool's functions; under vmap they become those of a larger pool."""

    reset: Callable[[Key], tuple[Token, Obs]]
    step: Callable[[Token, EnvAction], tuple[Token, EnvStep]]
    begin: Callable[[Array], tuple[Token, Obs]]


NO_LIMIT = 2**31 - 1
"""The time limit that simulators report for tasks without one, if it is not 0."""


class HostEnv(Env):
    """A pool under the environment protocol; it draws its own random numbers.

    A compiled program that resets the environments keeps their pool alive. One that only steps
    EnvPool's has the pool's address alone: keep this object as long as such a program.

    Args:
        make_pool: (number of environments, see `continue_at`) -> pool.
        observation: space of an observation.
        action: space of an action, as the pool takes it.
        num_envs: N.
        max_episode_steps: the time limit, which the pool enforces; 0 or `NO_LIMIT`: none.
        frame_rate: steps per second, for videos.
        absent: True if agents may need no action in some steps (`EnvStep.absent`).
        num_agents: A, of each world; rows of a world follow each other.
        agents: their names, where rows observe which `agent` they are.
    """

    def __init__(
        self,
        make_pool: Callable[[int, int], Pool],
        observation: Space,
        action: Space,
        *,
        num_envs: int,
        max_episode_steps: int,
        frame_rate: float = 10.0,
        absent: bool = False,
        num_agents: int = 1,
        agents: tuple[str, ...] = (),
    ) -> None:
        """Prepares the batch; pools are made when a program is traced."""
        self._make_pool = make_pool
        self._pools: dict[int, Pool] = {}
        self._update = 0
        self._raw_action = action
        self.task = FrameSource(frame_rate)
        self._calls: dict[int, Calls] = {}
        self.spec = EnvSpec(
            observation=observation,
            action=unit_space(flat_space(action)),
            num_envs=num_envs,
            num_agents=num_agents,
            agents=agents,
            max_episode_steps=max_episode_steps if max_episode_steps < NO_LIMIT else 0,
            absent=absent,
            restorable=False,
        )

    def pool(self, num_envs: int) -> Pool:
        """The pool of `num_envs` environments, made at the first call."""
        if num_envs not in self._pools:
            self._pools[num_envs] = self._make_pool(num_envs, self._update)
        return self._pools[num_envs]

    def continue_at(self, update: int, progress: float) -> None:
        """Prepares, before anything is traced, for a run that continues after some updates."""
        self._update = update

    def render_frame(self, obs: Obs) -> Any:
        """A picture of environment 0, or its part of `obs` [N, ...] if it cannot be drawn."""
        frame = self.pool(self.spec.num_envs).render_frame()
        if frame is None:
            return self.observation_frame(jax.tree.map(lambda x: np.asarray(x)[0], obs))
        return CompressedFrame.of(frame)

    def observation_frame(self, obs: Any) -> Any:
        """Picture of environment 0's observation in videos, where the simulator has none."""
        return obs

    @property
    def failure(self) -> Exception | None:
        """The error on the host, if there was one."""
        return next((p.failure for p in self._pools.values() if p.failure), None)

    @property
    def diverged_value(self) -> str:
        """See `Env.diverged_value`."""
        return next((p.diverged_value for p in self._pools.values() if p.diverged_value), "")

    def close(self) -> None:
        """Ends the pools; programs that were compiled with them must not run again."""
        for pool in self._pools.values():
            pool.close()
        self._pools, self._calls = {}, {}

    def reset(self, key: Key) -> tuple[HostState, Obs]:
        """A key -> (state, obs [N, ...])."""
        key = jax.random.fold_in(key, self._update) if self._update else key
        return self._initial_state(*self._calls_of(self.spec.num_envs).reset(key))

    def begin(self, seeds: Array) -> tuple[HostState, Obs]:
        """Starts an episode of each environment or world from its own seed.

        Under vmap, the environments of each agent get the same seeds as without it. EnvPool and
        game engines ignore them, and draw from the generators that they were started with.
        """
        return self._initial_state(*self._calls_of(self.spec.num_envs).begin(seeds))

    def _initial_state(self, token: Token, obs: Any) -> tuple[HostState, Obs]:
        """The state before the first step."""
        false = jnp.zeros(self.spec.num_envs, bool)
        if not self.spec.absent:
            return HostState(token, done=false, lost=false), obs
        obs, absent = obs
        return HostState(token, done=absent, lost=false, absent=false), obs

    def step(self, key: Key, state: HostState, action: EnvAction) -> tuple[HostState, EnvStep]:
        """(key, state, action [N, ...]) -> (state, EnvStep); see `Env`.

        From the step on at which an environment diverges its rows are not valid, until the
        simulator has begun another episode.
        """
        del key
        action = self.to_simulator(action)
        token, rows = self._calls_of(self.spec.num_envs).step(state.token, action)
        return self._to_step(state, token, rows)

    def to_simulator(self, action: EnvAction, obs: Obs = None) -> EnvAction:
        """The policy's action [N, ...] as the pool takes it."""
        del obs
        return shaped(from_unit(action, flat_space(self._raw_action)), self._raw_action)

    def _to_step(self, state: HostState, token: Token, rows: EnvStep) -> tuple[HostState, EnvStep]:
        """Converts a pool's result to (state, EnvStep)."""
        lost = state.lost & ~state.done
        obs, diverged_rows = rows.obs, rows.diverged
        if diverged_rows is None:  # the pool does not check its values
            is_bounded = bounded(rows.reward) & bounded(rows.obs)
            obs, diverged_rows = (
                select(is_bounded, rows.obs, jax.tree.map(jnp.zeros_like, rows.obs)),
                ~is_bounded,
            )
        diverged = ~(state.done | lost) & diverged_rows
        running = ~(state.done | lost | diverged)
        terminated = running & rows.terminated
        truncated = running & rows.truncated & ~terminated
        absent = None if rows.absent is None else running & rows.absent & ~(terminated | truncated)
        step = EnvStep(
            obs=obs,
            reward=jnp.where(running, rows.reward, 0.0),
            terminated=terminated,
            truncated=truncated,
            valid=running if state.absent is None else running & ~state.absent,
            diverged=diverged,
            score=None if rows.score is None else jnp.where(running, rows.score, 0.0),
            over=None if rows.over is None else running & rows.over,
            absent=absent,
            at_once=None if rows.at_once is None else terminated & rows.at_once,
        )
        done, lost = rows.terminated | rows.truncated, lost | diverged
        if rows.at_once is not None:
            done, lost = done & ~rows.at_once, lost & ~rows.at_once
        if rows.absent is not None:
            done |= state.done & rows.absent  # the next agent has not come yet
        return HostState(token, done, lost, absent), step

    def _calls_of(self, num_envs: int) -> Calls:
        """The calls of `num_envs`; under vmap they become those of a larger pool."""
        if num_envs not in self._calls:
            self._calls[num_envs] = self._make_calls(num_envs)
        return self._calls[num_envs]

    def _make_calls(self, num_envs: int) -> Calls:
        @jax.custom_batching.custom_vmap
        def reset(key: Key) -> tuple[Token, Obs]:
            return self.pool(num_envs).reset(key)

        @jax.custom_batching.custom_vmap
        def begin(seeds: Array) -> tuple[Token, Obs]:
            return self.pool(num_envs).begin(seeds)

        @jax.custom_batching.custom_vmap
        def step(token: Token, action: EnvAction) -> tuple[Token, EnvStep]:
            if num_envs not in self._pools:
                raise ValueError(
                    "jax.vmap over settings alone does not work with a host simulator. Map over "
                    "keys as well, one per setting, as in jax.vmap(train)(keys, settings)."
                )
            return self.pool(num_envs).step(token, action)

        @reset.def_vmap
        def fold_reset(size: int, batched: Any, keys: Key) -> tuple[Any, Any]:
            del batched
            token, obs = self._calls_of(size * num_envs).reset(keys[0])
            out = repeat_for_seeds(token, size), split(obs, size)
            return out, jax.tree.map(lambda x: True, out)

        @begin.def_vmap
        def fold_begin(size: int, batched: Any, seeds: Array) -> tuple[Any, Any]:
            del batched
            token, obs = self._calls_of(size * num_envs).begin(seeds.ravel())
            out = repeat_for_seeds(token, size), split(obs, size)
            return out, jax.tree.map(lambda x: True, out)

        @step.def_vmap
        def fold_step(size: int, batched: Any, token: Token, action: EnvAction) -> tuple[Any, Any]:
            def full(x: Array, is_batched: bool) -> Array:
                return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))

            token, action = jax.tree.map(full, (token, action), tuple(batched))
            token = jax.tree.map(lambda x: x[0], token)
            action = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), action)
            token, rows = self._calls_of(size * num_envs).step(token, action)
            out = repeat_for_seeds(token, size), split(rows, size)
            return out, jax.tree.map(lambda x: True, out)

        return Calls(reset, step, begin)


def seed_at(seed: int, update: int) -> int:
    """The simulators' seed in a run that continues after `update` updates; see `continue_at`."""
    return int(np.random.SeedSequence((seed, update)).generate_state(1)[0]) if update else seed


def repeat_for_seeds(tree: Tree, size: int) -> Tree:
    """The same token for each of `size` seeds."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), tree)


def split(tree: Tree, size: int) -> Tree:
    """Rows [S * N, ...] of all seeds as [S, N, ...]."""
    return jax.tree.map(lambda x: x.reshape((size, -1, *x.shape[1:])), tree)
