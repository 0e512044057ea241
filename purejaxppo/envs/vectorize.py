"""`VectorEnv`: a batch of one JAX task, with auto-reset and divergence checks."""

import itertools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs, Scalar, T, Tree
from purejaxppo.config.plain import plain
from purejaxppo.envs import metrics
from purejaxppo.envs.adapted import BaseTask, as_base_task
from purejaxppo.envs.base import Env, EnvSpec, EnvStep, Starts, Task, TaskStep
from purejaxppo.spaces import LARGEST, Space, example
from purejaxppo.streams import STAGGER, stream

MIN_STARTS = 16
"""Minimum number of first states to sample in advance. With fewer, short episodes repeat them in a
rollout, and long episodes get too few steps."""


class VectorState(struct.PyTreeNode):
    """State of N environments and M first states of episodes; see `VectorEnv` for M."""

    task: EnvState  # [N, ...] states of the task
    fresh: Tree  # (state, obs) [M, ...] of later episodes; () if sampled at every step
    place: Tree  # [N] int32 index in `fresh` of the current episode; () if sampled at every step
    turn: Tree  # [] int32 number of rollouts if each samples only a part of `fresh`; else ()
    done: jax.Array  # [N] bool: the last step ended an episode
    key: jax.Array  # a PRNG key


class VectorEnv(Env):
    """N copies of a task as an `Env`.

    With `fresh_every_step`, a step uses its argument `key`, and all keys of a rollout can be
    computed before its first step. Otherwise the state holds a key, and the arguments `key` of
    `step`, `raw_step` and `begin_rollout` are ignored.

    Args:
        task: one environment.
        num_envs: number of environments, N.
        fresh_every_step: sample a new first state at every step. Otherwise `begin_rollout` samples
            M first states, which costs less: M = N, or ceil(16 / N) N if N < 16. The first episode
            of environment i takes state i, and each later episode the state `stride` further (mod
            M). Stride and M are coprime, so an environment uses all M states before it repeats one.
            For up to M episodes per rollout, they have the same distribution as newly sampled ones.
            A task with expensive resets and long episodes may define `fresh_fraction`: each rollout
            then replaces only this fraction of the first states, the oldest ones.
        stagger: start the first episodes at random steps of the time limit.
        evaluation: use M = N, because only the first episode of each environment counts.
    """

    task: Any

    def __init__(
        self,
        task: BaseTask | Task,
        num_envs: int,
        *,
        fresh_every_step: bool,
        stagger: bool = False,
        evaluation: bool = False,
    ) -> None:
        """Set up the batch without computing anything."""
        self.task = task = as_base_task(task)
        self.stagger = stagger
        self.evaluation = evaluation
        self.fresh_every_step = fresh_every_step
        fraction = self.task.fresh_fraction
        self.num_starts = num_envs if evaluation else num_envs * -(-MIN_STARTS // num_envs)
        self.fresh_per_rollout = max(1, math.ceil(fraction * self.num_starts))
        self.stride = stride(self.num_starts)
        self.spec = EnvSpec(
            observation=task.observation,
            action=task.action,
            num_envs=num_envs,
            max_episode_steps=task.max_episode_steps,
            known_starts=not fresh_every_step,
            success_above=plain(self.task.success_above),
            metrics=metrics.declared(self.task.metrics, "metrics"),
        )
        self._metrics_shape = num_envs, *([self.task.team.size] if self.task.team else [])

    def _starts(self, key: Key, count: int) -> tuple[EnvState, Obs]:
        keys = jax.random.split(key, count)
        return strong_types(jax.vmap(self.task.reset)(keys))

    def reset(self, key: Key) -> tuple[VectorState, Obs]:
        """Start an episode in every environment; return (state, obs [N, ...]).

        In training, the first step of an environment whose first observation has diverged only
        resets it.
        """
        key, start_key = jax.random.split(key)
        count = self.spec.num_envs if self.fresh_every_step else self.num_starts
        starts = self._starts(start_key, count)
        ok = bounded(starts[1])
        task, obs = jax.tree.map(lambda x: x[: self.spec.num_envs], starts)
        in_turn = not self.fresh_every_step and self.fresh_per_rollout < self.num_starts
        first_states = task
        if self.stagger:
            keys = jax.random.split(stream(start_key, STAGGER), self.spec.num_envs)
            first_states = strong_types(jax.vmap(self.task.staggered)(keys, task))
        state = VectorState(
            task=first_states,
            fresh=() if self.fresh_every_step else _without_diverged(starts, ok),
            place=() if self.fresh_every_step else jnp.arange(self.spec.num_envs, dtype=jnp.int32),
            turn=jnp.zeros((), jnp.int32) if in_turn else (),
            done=jnp.zeros_like(ok) if self.evaluation else ~ok[: self.spec.num_envs],
            key=key,
        )
        return state, cast_to_space(obs, self.spec.observation)

    def begin_rollout(self, state: VectorState, key: Key, progress: Scalar) -> VectorState:
        """Sample the first states of the next episodes in this rollout.

        Where the new first observation has diverged, the old first state stays.
        """
        del progress
        if self.fresh_every_step:
            return state
        key, start_key = jax.random.split(state.key)
        fresh = self._starts(start_key, self.fresh_per_rollout)
        ok = bounded(fresh[1])
        if isinstance(state.turn, tuple):
            return state.replace(fresh=select(ok, fresh, state.fresh), key=key)
        first = state.turn * self.fresh_per_rollout
        places = (first + jnp.arange(self.fresh_per_rollout)) % self.num_starts
        fresh = select(ok, fresh, jax.tree.map(lambda x: x[places], state.fresh))
        fresh = jax.tree.map(lambda old, new: old.at[places].set(new), state.fresh, fresh)
        return state.replace(fresh=fresh, turn=(state.turn + 1) % self.num_starts, key=key)

    def starts(self, state: VectorState) -> Starts:
        """Return the first observations of episodes until the next `begin_rollout`."""
        return Starts(cast_to_space(state.fresh[1], self.spec.observation), state.place)

    def _next(self, state: VectorState, key: Key) -> tuple[EnvState, Obs, Tree]:
        """Return (state, obs, place) [N, ...] of the next episodes."""
        if self.fresh_every_step:
            return *self._starts(key, self.spec.num_envs), ()
        place = (state.place + self.stride) % self.num_starts
        return *jax.tree.map(lambda x: x[place], state.fresh), place

    def to_simulator(self, action: EnvAction, obs: Obs = None) -> EnvAction:
        """Return the policy's actions [N, ...] in the form of the simulator."""
        del obs
        return jax.vmap(self.task.to_simulator)(action)

    def raw_step(
        self, key: Key, state: VectorState, action: EnvAction
    ) -> tuple[EnvState, TaskStep]:
        """Return (states, TaskStep) [N, ...] of the next step, without the divergence check."""
        _, step_key, _ = self._split(key, state)
        return self._advance(step_key, state.task, action)

    def _split(self, key: Key, state: VectorState) -> Key:
        """Return the keys of the next state, of the step and of new first states, [3]."""
        return jax.random.split(key if self.fresh_every_step else state.key, 3)

    def _advance(self, key: Key, task: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Step all tasks."""
        keys = jax.random.split(key, self.spec.num_envs)
        return jax.vmap(self.task.step)(keys, task, action)

    def step(self, key: Key, state: VectorState, action: EnvAction) -> tuple[VectorState, EnvStep]:
        """Step all environments with actions [N, ...]; see `Env`."""
        next_key, step_key, start_key = self._split(key, state)
        fresh_task, fresh_obs, fresh_place = self._next(state, start_key)
        task, out = self._advance(step_key, state.task, action)
        diverged = ~state.done & ~bounded((out.reward, out.obs))
        valid = ~(state.done | diverged)
        reset_again = jnp.zeros_like(valid)
        if self.fresh_every_step:
            reset_again = ~valid & ~bounded(fresh_obs)
            # Networks must not see NaN.
            fresh_obs = select(reset_again, zero_floats(fresh_obs), fresh_obs)
        values = metrics.packed(out.metrics, self.spec.metrics, self._metrics_shape)
        terminated = valid & out.terminated.astype(bool)
        truncated = valid & out.truncated.astype(bool) & ~terminated
        step = EnvStep(
            obs=cast_to_space(select(valid, out.obs, fresh_obs), self.spec.observation),
            reward=jnp.where(valid, out.reward.astype(jnp.float32), 0.0),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            diverged=diverged | reset_again,
            metrics=metrics.masked(values, valid),
        )
        state = state.replace(
            task=select(valid, task, fresh_task),
            place=select(valid, state.place, fresh_place),
            done=terminated | truncated | reset_again,
            key=next_key,
        )
        return state, step


def _without_diverged(starts: T, ok: jax.Array) -> T:
    """Return starts [M, ...] with the first finite one in place of those that are not `ok` [M]."""
    return select(ok, starts, jax.tree.map(lambda x: x[jnp.argmax(ok)], starts))


class VmapEnv(Env):
    """G environments of A agents each (or 1), with one key per environment: G x A rows.

    An evaluation episode then does not depend on the other ones.

    Args:
        env: one environment.
        count: number of environments, G.
    """

    def __init__(self, env: Env, count: int) -> None:
        """Set up the batch without computing anything."""
        self.env = env
        self.count = count
        self.spec = replace(env.spec, num_envs=count * env.spec.num_envs)

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Start an episode in every environment from keys [G]; return (state, obs [N, ...])."""
        state, obs = jax.vmap(self.env.reset)(key)
        return state, _join_groups(obs)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, EnvStep]:
        """Step all environments with keys [G] and actions [N, ...]; see `Env`."""
        groups = jax.tree.map(lambda x: x.reshape(self.count, -1, *x.shape[1:]), action)
        state, out = jax.vmap(self.env.step)(key, state, groups)
        return state, _join_groups(out)


def _join_groups(tree: T) -> T:
    """Reshape arrays [G, A, ...] to [G * A, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def stride(num_starts: int) -> int:
    """Return the distance between the indices of consecutive episodes' first states.

    It is coprime with `num_starts`, so all of them are used. It is near the golden section of
    `num_starts`, so neighbouring environments do not soon reuse each other's first states.
    """
    section = num_starts * (math.sqrt(5) - 1) / 2
    below = int(section)
    nearest_first = (
        n
        for distance in itertools.count()
        for n in sorted((below - distance, below + 1 + distance), key=lambda n: abs(n - section))
    )
    return next(n for n in nearest_first if 0 < n <= num_starts and math.gcd(n, num_starts) == 1)


def strong_types(tree: T) -> T:
    """Return the arrays without weak types, which would cause a second compilation."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.asarray(x).dtype), tree)


def select(mask: jax.Array, on_true: T, on_false: Tree) -> T:
    """Select per environment: `on_true` where mask [N], else `on_false`, in the former's dtypes."""

    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, b)
        return jnp.where(
            mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, jnp.asarray(b).astype(a.dtype)
        )

    return jax.tree.map(pick, on_true, on_false)


def zero_floats(tree: T) -> T:
    """Replace arrays of floats by zeros."""
    return jax.tree.map(
        lambda x: jnp.zeros_like(x) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )


def cast_to_space(obs: Obs, space: Space) -> Obs:
    """Cast integer observations to the float or bool dtypes of their space.

    Raises:
        ValueError: see `check_dtypes`.
    """

    def cast(x: jax.Array, declared: np.ndarray) -> jax.Array:
        is_integer = not jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(declared.dtype) if is_integer and declared.dtype.kind in "fb" else x

    check_dtypes(obs, space)
    return jax.tree.map(cast, obs, example(space))


def check_dtypes(obs: Obs, space: Space, where: str = "env.name") -> None:
    """Raise ValueError if an integer space cannot hold the dtype of its observation.

    Args:
        obs: arrays or their shapes.
        space: the observation space.
        where: the config field, for errors.
    """
    values = jax.tree_util.tree_leaves_with_path(obs)
    for (path, x), declared in zip(values, jax.tree.leaves(example(space)), strict=True):
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        if declared.dtype.kind in "iu" and (is_float or not np.can_cast(x.dtype, declared.dtype)):
            full_path = jax.tree_util.GetAttrKey("observation"), *path
            name = jax.tree_util.keystr(full_path, simple=True, separator=".")
            raise ValueError(
                f"{where}: {name} is {x.dtype}, but its space is {declared.dtype}. Return "
                f"{declared.dtype}, or declare another space."
            )


def bounded(tree: Tree) -> jax.Array:
    """Return True where no float in arrays [N, ...] is NaN or beyond ±LARGEST, bool [N]."""
    leaves = jax.tree.leaves(tree)
    ok = jnp.ones(len(leaves[0]), bool)
    for x in leaves:
        if jnp.issubdtype(x.dtype, jnp.floating):
            dtype = jnp.promote_types(x.dtype, jnp.float32)  # LARGEST is infinite in float16
            ok &= jnp.all(jnp.abs(x.reshape(len(x), -1).astype(dtype)) <= LARGEST, axis=1)
    return ok
