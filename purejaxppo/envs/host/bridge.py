"""Host simulators as JAX environments inside the compiled loop.

An adapter provides a `Pool`: N environments with three traceable functions, which use EnvPool's XLA
calls or callbacks. `HostEnv` turns a pool into an `Env`. Each call takes and returns a token, which
keeps the calls in order. Callbacks need no other ordering, and can be vmapped: `vmap` over
seeds makes one larger pool, which one call steps.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purejaxppo.aliases import Array, EnvAction, Key, Obs, Tree
from purejaxppo.config.references import described
from purejaxppo.envs import metrics
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import Env, EnvSpec, EnvStep
from purejaxppo.envs.host.workers.errors import SimulatorError, printable
from purejaxppo.envs.vectorize import bounded, select
from purejaxppo.envs.wrappers import flat_space, from_policy, unit_space
from purejaxppo.spaces import Space
from purejaxppo.video.compressed import CompressedFrame

Token = Tree
"""Data that every call takes and returns to keep the calls in order."""


class Pool(Protocol):
    """N host environments with next-step auto-reset. `reset`, `begin` and `step` are traceable."""

    @property
    def failure(self) -> Exception | None:
        """Return the simulator's error, or None. The program's error contains only its message."""
        ...

    @property
    def diverged_value(self) -> str:
        """Return the last value that diverged, such as "reward = nan"; "" if unknown."""
        ...

    def reset(self, key: Key) -> tuple[Token, Obs]:
        """Reset from a key: -> (token, obs [N, ...]), or (token, (obs, absent [N]))."""
        ...

    def begin(self, seeds: jax.Array) -> tuple[Token, Obs]:
        """Reset from one seed per environment, as `reset`. Some simulators ignore the seeds."""
        ...

    def step(self, token: Token, action: EnvAction) -> tuple[Token, EnvStep]:
        """Step: (token, action [N, ...]) -> (token, EnvStep). Ignore actions right after an end."""
        ...

    def render_frame(self) -> np.ndarray | None:
        """Return a frame of environment 0, uint8 [H, W, 3]; None if it cannot be rendered."""
        ...

    def close(self) -> None:
        """Close the environments. No other method may be called afterwards."""
        ...


class FrameSource(BaseTask):
    """Draw videos from "states" that are rendered frames or observations."""

    def __init__(self, frame_rate: float) -> None:
        """Store the number of steps per second."""
        self.frame_rate = frame_rate

    def draw(self, states: Sequence[Any], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield the frames in the requested size; charts if the states are observations."""
        if rendered := [state for state in states if isinstance(state, CompressedFrame)]:
            return _frames(states, rendered[0], height, width)
        from purejaxppo.video import charts

        return charts.frames(states, height=height, width=width)


def _frames(
    states: Sequence[Any], shown: CompressedFrame, height: int, width: int
) -> Iterator[np.ndarray]:
    """Yield frames; repeat them for states that were not rendered, such as the one after reset."""
    from purejaxppo.video.canvas import fit

    for state in states:
        shown = state if isinstance(state, CompressedFrame) else shown
        yield fit(shown.pixels(), height, width)


@contextlib.contextmanager
def simulator_errors(name: str, *envs: Any) -> Iterator[None]:
    """Raise the simulator's error instead of the error of the program that steps `envs`.

    Raises:
        SimulatorError: the program failed because of the simulator.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        failure = next((env.failure for env in envs if env.failure), None)
        if failure is None:
            raise
        has_message = isinstance(failure, RuntimeError | ValueError | OSError)
        text = printable(failure) if has_message else described(failure)
        raise SimulatorError(f"{name}: {text}") from error


class HostState(struct.PyTreeNode):
    """State of N host environments that is kept on the device."""

    token: Token
    done: jax.Array  # [N] bool: the pool starts a new episode at the next step
    lost: jax.Array  # [N] bool: diverged (see `EnvStep`), until the next episode starts
    absent: jax.Array | None = None
    """bool [N], True where the agent needs no action; None if agents are never absent."""


NO_LIMIT = 2**31 - 1
"""Time limit that simulators report for tasks without a limit, in addition to 0."""


class HostEnv(Env):
    """An `Env` that steps a pool. The simulator samples its own random numbers.

    A compiled program that resets the environments keeps their pool alive. A program that only
    steps EnvPool holds just the pool's address: keep this object as long as such a program.

    Args:
        make_pool: (number of environments, update as in `continue_at`) -> pool.
        observation: space of one observation.
        action: space of one action, as the pool takes it.
        num_envs: number of environments, N.
        max_episode_steps: time limit, enforced by the pool; 0 or `NO_LIMIT`: no limit.
        frame_rate: steps per second, for videos.
        absent: True if agents may need no action in some steps (`EnvStep.absent`).
        num_agents: A, the agents of each multi-agent environment, in consecutive rows.
        agents: names of the agents if observations contain an index `agent`.
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
        """Store the description. Pools are created when a program is traced."""
        self._make_pool = make_pool
        self._pools: dict[int, Pool] = {}
        self._update = 0
        self._raw_action = action
        self.task = FrameSource(frame_rate)
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
        """Return the pool of `num_envs` environments; create it at the first call."""
        if num_envs not in self._pools:
            self._pools[num_envs] = self._make_pool(num_envs, self._update)
        return self._pools[num_envs]

    def continue_at(self, update: int, progress: float) -> None:
        """Prepare for a run that continues after `update` updates. Call it before tracing."""
        self._update = update

    def render_frame(self, obs: Obs) -> Any:
        """Return a frame of environment 0, or its entry of `obs` [N, ...] if none is rendered."""
        frame = self.pool(self.spec.num_envs).render_frame()
        if frame is None:
            return self.observation_frame(jax.tree.map(lambda x: np.asarray(x)[0], obs))
        return CompressedFrame.of(frame)

    def observation_frame(self, obs: Any) -> Any:
        """Return the entry of a video for an observation, if no frame is rendered."""
        return obs

    @property
    def failure(self) -> Exception | None:
        """Return the simulator's error, or None."""
        return next((p.failure for p in self._pools.values() if p.failure), None)

    @property
    def diverged_value(self) -> str:
        """See `Env.diverged_value`."""
        return next((p.diverged_value for p in self._pools.values() if p.diverged_value), "")

    def close(self) -> None:
        """Close the pools. Programs compiled with them must not run again."""
        for pool in self._pools.values():
            pool.close()
        self._pools = {}

    def reset(self, key: Key) -> tuple[HostState, Obs]:
        """Reset all environments: key -> (state, obs [N, ...])."""
        key = jax.random.fold_in(key, self._update) if self._update else key
        return self._initial_state(*self._call("reset", self.spec.num_envs, key))

    def begin(self, seeds: Array) -> tuple[HostState, Obs]:
        """Start an episode of each environment from a separate seed.

        Under vmap, each environment gets the same seed as without vmap. EnvPool and game engines
        ignore the seeds and continue their generators.
        """
        return self._initial_state(*self._call("begin", self.spec.num_envs, seeds))

    def _initial_state(self, token: Token, obs: Any) -> tuple[HostState, Obs]:
        """Return the state and the observations before the first step."""
        false = jnp.zeros(self.spec.num_envs, bool)
        if not self.spec.absent:
            return HostState(token, done=false, lost=false), obs
        obs, absent = obs
        return HostState(token, done=absent, lost=false, absent=false), obs

    def step(self, key: Key, state: HostState, action: EnvAction) -> tuple[HostState, EnvStep]:
        """Step all environments: (key, state, action [N, ...]) -> (state, EnvStep); see `Env`.

        Rows of an environment that diverges are invalid until the simulator starts its next
        episode.
        """
        del key
        action = self.to_simulator(action)
        token, rows = self._call("step", self.spec.num_envs, state.token, action)
        return self._to_step(state, token, rows)

    def to_simulator(self, action: EnvAction, obs: Obs = None) -> EnvAction:
        """Convert the policy's action [N, ...] to the form that the pool takes."""
        del obs
        return from_policy(action, self._raw_action)

    def _to_step(self, state: HostState, token: Token, rows: EnvStep) -> tuple[HostState, EnvStep]:
        """Convert a pool's result to (state, EnvStep). `token` keeps the calls in order."""
        lost = state.lost & ~state.done
        obs, diverged_rows = rows.obs, rows.diverged
        if diverged_rows is None:  # the pool does not check for divergence
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
            ticks=rows.ticks,
            metrics=metrics.masked(rows.metrics, running),
        )
        done, lost = rows.terminated | rows.truncated, lost | diverged
        if rows.at_once is not None:
            done, lost = done & ~rows.at_once, lost & ~rows.at_once
        if rows.absent is not None:
            done |= state.done & rows.absent  # still waiting for the next agent
        return HostState(token, done, lost, absent), step

    def _call(self, method: str, num_envs: int, *args: Any) -> tuple[Token, Any]:
        """Call `reset`, `begin` or `step` of a pool. Under vmap, call it of a larger pool."""

        @jax.custom_batching.custom_vmap
        def call(*args: Any) -> tuple[Token, Any]:
            return getattr(self.pool(num_envs), method)(*args)

        @call.def_vmap
        def fold(size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
            if method == "reset":  # the first key
                args = (args[0][0],)
            elif method == "begin":
                args = (args[0].ravel(),)
            else:
                args = joined(size, batched, *args)
            token, rows = self._call(method, size * num_envs, *args)
            out = repeat_for_seeds(token, size), split(rows, size)
            return out, jax.tree.map(lambda x: True, out)

        return call(*args)


def joined(size: int, batched: Any, token: Token, action: EnvAction) -> tuple[Token, EnvAction]:
    """Return the arguments of a step of all seeds: a token, and actions [S * N, ...].

    Raises:
        ValueError: only the actions differ between seeds.
    """
    if not all(jax.tree.leaves(batched[0])):
        raise ValueError(
            "jax.vmap over hyperparams alone does not work with a host simulator. Map over "
            "keys as well, as in jax.vmap(train)(keys, hyperparams)."
        )

    def full(x: Array, is_batched: bool) -> Array:
        return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))

    token, action = jax.tree.map(full, (token, action), tuple(batched))
    token = jax.tree.map(lambda x: x[0], token)
    return token, jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), action)


def seed_at(seed: int, update: int) -> int:
    """Return the simulators' seed of a run that continues after `update` updates."""
    return int(np.random.SeedSequence((seed, update)).generate_state(1)[0]) if update else seed


def repeat_for_seeds(tree: Tree, size: int) -> Tree:
    """Repeat the token for each of `size` seeds."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), tree)


def split(tree: Tree, size: int) -> Tree:
    """Reshape rows [S * N, ...] of all seeds to [S, N, ...]."""
    return jax.tree.map(lambda x: x.reshape((size, -1, *x.shape[1:])), tree)
