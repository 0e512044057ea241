"""Wrappers around a `Task`, applied in one fixed order: adapter, time limit, action scaling."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import Action, EnvAction, EnvState, Key, Obs
from purejaxppo.config.plain import time_limit
from purejaxppo.envs.adapted import BaseTask, ParameterValues, as_base_task
from purejaxppo.envs.base import MultiTask, Task
from purejaxppo.envs.vectorize import cast_to_space, select
from purejaxppo.spaces import Box, Dict, Space


def limit_of(task: BaseTask) -> int:
    """Return the time limit of a task as an int; 0 without a limit.

    Raises:
        ValueError: it is not a whole number.
    """
    return time_limit(task.max_episode_steps, "max_episode_steps", unlimited="0")


class Wrapper(BaseTask):
    """A task that forwards everything to the task inside.

    Custom wrappers derive from it, too. They may change returns and observations, so that
    `success_above` and `keeps_windows` are not taken over.
    """

    def __init__(self, task: BaseTask | Task | MultiTask) -> None:
        """Wraps `task`."""
        self.task = inner = as_base_task(task)
        self.observation, self.action = inner.observation, inner.action
        self.agents = inner.agents
        self.max_episode_steps = limit_of(inner)
        self.cheap_reset = inner.cheap_reset
        self.fresh_fraction = inner.fresh_fraction
        self.state_space = inner.state_space
        self.parameters = inner.parameters
        self.draw_parameters = inner.draw_parameters
        self.team = inner.team

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the task inside that is not part of the interface."""
        if name.startswith("__"):  # of Python, such as those that copies look for
            raise AttributeError(name)
        return getattr(self.task, name)

    @cached_property
    def frame_rate(self) -> float:
        """Steps per second of a video."""
        return self.task.frame_rate

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Resets the task."""
        return self.task.reset(key)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Steps the task."""
        return self.task.step(key, state, action)

    def adjusted(self, values: ParameterValues) -> Self:
        """Return the same wrapper of a task with other parameters."""
        wrapper = copy.copy(self)
        wrapper.task = as_base_task(self.task.adjusted(values))
        return wrapper

    def global_state(self, state: EnvState) -> jax.Array:
        """Return the state of the world, from the innermost task's state."""
        return self.task.global_state(state)

    def staggered(self, key: Key, state: EnvState) -> EnvState:
        """Return a state with a random part of the time limit gone."""
        return self.task.staggered(key, state)

    def unwrap(self, state: EnvState) -> EnvState:
        """Return the innermost task's state within this wrapper's."""
        return self.task.unwrap(state)

    def to_simulator(self, action: EnvAction) -> EnvAction:
        """Return the action as the innermost task takes it."""
        return self.task.to_simulator(action)

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames of the innermost task's states."""
        return self.task.draw(states, height=height, width=width)


class ReturnPreservingWrapper(Wrapper):
    """A wrapper that does not change returns, so that the same ones are a success."""

    def __init__(self, task: BaseTask | Task | MultiTask) -> None:
        """Wraps `task`."""
        super().__init__(task)
        self.success_above = self.task.success_above


class TimeLimit(ReturnPreservingWrapper):
    """Truncates after `max_episode_steps`, in addition to the task's own ends."""

    def __init__(self, task: Task, max_episode_steps: int) -> None:
        """Limits `task` to `max_episode_steps`."""
        super().__init__(task)
        self.max_episode_steps = max_episode_steps

    def unwrap(self, state: EnvState) -> EnvState:
        """The innermost task's state, without the count of steps."""
        return super().unwrap(state[0])

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """(key) -> ((state, steps so far), obs)."""
        state, obs = self.task.reset(key)
        return (state, jnp.zeros((), jnp.int32)), obs

    def staggered(self, key: Key, state: EnvState) -> EnvState:
        """(key, state) -> the state with a random part of the limit gone, and at least 1 left."""
        return state[0], jax.random.randint(key, (), 0, self.max_episode_steps)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Steps the task; truncates when the limit is reached."""
        state, elapsed = state
        state, out = self.task.step(key, state, action)
        elapsed = elapsed + 1
        truncated = jnp.logical_or(out.truncated, elapsed >= self.max_episode_steps)
        return (state, elapsed), out._replace(truncated=truncated)


class CastToSpace(ReturnPreservingWrapper):
    """Gives what a user's own wrapper may count on: the dtypes of the space, and float rewards."""

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """(key) -> (state, obs)."""
        state, obs = self.task.reset(key)
        return state, cast_to_space(obs, self.observation)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Steps the task."""
        state, out = self.task.step(key, state, action)
        obs, reward = cast_to_space(out.obs, self.observation), jnp.asarray(out.reward, jnp.float32)
        return state, out._replace(obs=obs, reward=reward)


class WithoutSlide(ReturnPreservingWrapper):
    """Stores sliding windows in full, since observations may not slide as the space declares."""

    def __init__(self, task: Task) -> None:
        """Remove `slide` from the space of `task`."""
        super().__init__(task)
        if isinstance(task.observation, Box):
            self.observation = replace(task.observation, slide=0)


class ActionRepeat(WithoutSlide):
    """Takes each action several times, until the episode ends, and sums the rewards.

    An episode may end before the last repeat, so windows do not slide by a fixed number of values.
    """

    def __init__(self, task: Task, repeats: int) -> None:
        """Takes each action `repeats` times, which divides the time limit (rounded up)."""
        super().__init__(task)
        self.repeats = repeats
        self.max_episode_steps = -(-task.max_episode_steps // repeats)

    @cached_property
    def frame_rate(self) -> float:
        """States per second of a video: one of `repeats`."""
        return self.task.frame_rate / self.repeats

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Steps the task `repeats` times or until the episode ends."""

        def once(so_far: Any, key: Key) -> tuple[Any, None]:
            state, out = so_far
            # A copy: simulators write into the dicts of the state that they are given.
            after, now = self.task.step(key, jax.tree.map(lambda x: x, state), action)
            now = now._replace(reward=out.reward + now.reward)
            return select(out.terminated | out.truncated, so_far, (after, now)), None

        answer = jax.eval_shape(self.task.step, key, state, action)[1]
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), answer)
        return jax.lax.scan(once, (state, nothing), jax.random.split(key, self.repeats))[0]


def unit_space(space: Space) -> Space:
    """The space with every bounded Box replaced by one of [-1, 1]."""
    if isinstance(space, Dict):
        return Dict(tuple((name, unit_space(part)) for name, part in space.spaces))
    if isinstance(space, Box) and space.bounded:
        return replace(space, low=-1.0, high=1.0, dtype="float32")
    return space


def from_unit(action: Action, space: Space) -> EnvAction:
    """Clips to [-1, 1] and scales to the bounds; other actions are unchanged."""
    if isinstance(space, Dict):
        return {name: from_unit(action[name], part) for name, part in space.spaces}
    if isinstance(space, Box) and space.bounded:
        low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        unit = jnp.clip(action, -1.0, 1.0)
        scaled = unit if np.all(low == -1) and np.all(high == 1) else _affine(unit, low, high)
        return scaled.astype(space.dtype)
    return action


def shaped(action: Action, space: Space) -> EnvAction:
    """Flat actions [N, ...] with the axes that their `Box` spaces have."""
    if isinstance(space, Dict):
        return {name: shaped(action[name], part) for name, part in space.spaces}
    return action.reshape((-1, *space.shape)) if isinstance(space, Box) else action


def _affine(unit: jax.Array, low: np.ndarray, high: np.ndarray) -> jax.Array:
    return low + 0.5 * (unit + 1.0) * (high - low)


class UnitActions(ReturnPreservingWrapper):
    """Takes bounded continuous actions in [-1, 1]: clips them, then scales them to the bounds."""

    def __init__(self, task: Task) -> None:
        """Rescales the actions of `task`."""
        super().__init__(task)
        self.action = unit_space(task.action)

    def to_simulator(self, action: EnvAction) -> EnvAction:
        """Scales the action from [-1, 1] to the bounds."""
        return super().to_simulator(from_unit(action, self.task.action))

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Steps the task by an action in [-1, 1]; anything beyond is clipped."""
        return self.task.step(key, state, from_unit(action, self.task.action))


class PartialObservation(ReturnPreservingWrapper):
    """Observes some numbers of a vector observation and, if set, all of them as a second part."""

    def __init__(self, task: Task, indices: tuple[int, ...], privileged_obs: bool) -> None:
        """Observes the numbers at `indices` of the observations of `task`.

        Raises:
            ValueError: the observation is not a vector, or has fewer numbers.
        """
        super().__init__(task)
        space = task.observation
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ValueError(f"env.obs_indices needs a vector observation. The task has {space}.")
        if not all(0 <= i < space.shape[0] for i in indices):
            raise ValueError(
                f"env.obs_indices = {list(indices)}: indices must be from 0 to {space.shape[0] - 1}"
            )
        self.indices, self.privileged_obs = np.array(indices), privileged_obs
        seen = replace(space, shape=(len(indices),), low=-np.inf, high=np.inf, slide=0)
        self.observation = Dict.of({"obs": seen, "state": space}) if privileged_obs else seen

    def see(self, obs: Obs) -> Obs:
        """The observed part of an observation [F]."""
        seen = obs[self.indices]
        return {"obs": seen, "state": obs} if self.privileged_obs else seen

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """(key) -> (state, observed part of the observation)."""
        state, obs = self.task.reset(key)
        return state, self.see(obs)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Steps the task; returns the observed part of the observation."""
        state, out = self.task.step(key, state, action)
        return state, out._replace(obs=self.see(out.obs))


def flat_space(space: Space) -> Space:
    """A `Box` without axes, or with several, as one with exactly one; others as they are."""
    if isinstance(space, Dict):
        return Dict(tuple((name, flat_space(part)) for name, part in space.spaces))
    if not isinstance(space, Box) or len(space.shape) == 1:
        return space
    low, high = (
        tuple(np.broadcast_to(bound, space.shape).ravel().tolist())
        for bound in (space.low, space.high)
    )
    return replace(space, shape=(int(np.prod(space.shape)),), low=low, high=high)


class FlatActions(ReturnPreservingWrapper):
    """Gives a `Box` action space without axes, or with several, exactly one."""

    def __init__(self, task: Task) -> None:
        """Flattens the actions of `task`."""
        super().__init__(task)
        assert isinstance(task.action, Box)
        self.shape = task.action.shape
        self.action = flat_space(task.action)

    def to_simulator(self, action: EnvAction) -> EnvAction:
        """The action in the task's own shape."""
        return super().to_simulator(action.reshape(self.shape))

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Steps the task by a flat action."""
        return self.task.step(key, state, action.reshape(self.shape))
