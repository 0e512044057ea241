"""Wrappers around a `Task`, applied in one fixed order: adapter, time limit, action scaling."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.config.plain import time_limit
from purejaxppo.envs.base import Task
from purejaxppo.envs.vectorize import as_declared, select
from purejaxppo.spaces import Box, Dict, Space


def limit_of(task: Any) -> int:
    """Return the time limit of a task as an int; 0 without a limit.

    Raises:
        ValueError: it is not a whole number.
    """
    return time_limit(task.max_episode_steps, "max_episode_steps", unlimited="0")


class Wrapper:
    """A task that forwards everything to the task inside."""

    def __init__(self, task: Task) -> None:
        """Wraps `task`."""
        self.task = task
        self.observation = task.observation
        self.action = task.action
        self.max_episode_steps = limit_of(task)
        self.cheap_reset = task.cheap_reset

    def __getattr__(self, name: str):
        """Attributes that only the wrapped task has, such as `draw`."""
        return getattr(self.task, name)

    def unwrap(self, state):
        """The innermost task's state within this wrapper's."""
        inner = getattr(self.task, "unwrap", None)
        return inner(state) if inner else state

    def to_simulator(self, action):
        """The action as the innermost task takes it."""
        inner = getattr(self.task, "to_simulator", None)
        return inner(action) if inner else action

    def reset(self, key):
        """Resets the task."""
        return self.task.reset(key)

    def step(self, key, state, action):
        """Steps the task."""
        return self.task.step(key, state, action)


class TimeLimit(Wrapper):
    """Truncates after `max_episode_steps`, in addition to the task's own ends."""

    def __init__(self, task: Task, max_episode_steps: int) -> None:
        """Limits `task` to `max_episode_steps`."""
        super().__init__(task)
        self.max_episode_steps = max_episode_steps

    def unwrap(self, state):
        """The innermost task's state, without the count of steps."""
        return super().unwrap(state[0])

    def reset(self, key):
        """(key) -> ((state, steps so far), obs)."""
        state, obs = self.task.reset(key)
        return (state, jnp.zeros((), jnp.int32)), obs

    def staggered(self, key, state):
        """(key, state) -> the state with a random part of the limit gone, and at least 1 left."""
        return state[0], jax.random.randint(key, (), 0, self.max_episode_steps)

    def step(self, key, state, action):
        """Steps the task; truncates when the limit is reached."""
        state, elapsed = state
        state, out = self.task.step(key, state, action)
        elapsed = elapsed + 1
        truncated = jnp.logical_or(out.truncated, elapsed >= self.max_episode_steps)
        return (state, elapsed), out._replace(truncated=truncated)


class Declared(Wrapper):
    """Gives what a user's own wrapper may count on: the dtypes of the space, and float rewards."""

    def reset(self, key):
        """(key) -> (state, obs)."""
        state, obs = self.task.reset(key)
        return state, as_declared(obs, self.observation)

    def step(self, key, state, action):
        """Steps the task."""
        state, out = self.task.step(key, state, action)
        obs, reward = as_declared(out.obs, self.observation), jnp.asarray(out.reward, jnp.float32)
        return state, out._replace(obs=obs, reward=reward)


class WithoutWindows(Wrapper):
    """Stores sliding windows in full, since observations may not slide as the space declares."""

    task: Any

    def __init__(self, task: Task) -> None:
        """Remove `slide` from the space of `task`."""
        super().__init__(task)
        if isinstance(task.observation, Box):
            self.observation = replace(task.observation, slide=0)


class ActionRepeat(WithoutWindows):
    """Takes each action several times, until the episode ends, and sums the rewards.

    An episode may end before the last repeat, so windows do not slide by a fixed number of values.
    """

    def __init__(self, task: Task, repeats: int) -> None:
        """Takes each action `repeats` times, which divides the time limit (rounded up)."""
        super().__init__(task)
        self.repeats = repeats
        self.max_episode_steps = -(-task.max_episode_steps // repeats)

    @property
    def frame_rate(self) -> float:
        """States per second of a video: one of `repeats`."""
        return self.task.frame_rate / self.repeats

    def adjusted(self, values) -> "ActionRepeat":
        """The same wrapper of a task with other parameters; see `domain_randomization`."""
        return ActionRepeat(self.task.adjusted(values), self.repeats)

    def step(self, key, state, action):
        """Steps the task `repeats` times or until the episode ends."""

        def once(so_far, key):
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


def from_unit(action, space: Space):
    """Clips to [-1, 1] and scales to the bounds; other actions are unchanged."""
    if isinstance(space, Dict):
        return {name: from_unit(action[name], part) for name, part in space.spaces}
    if isinstance(space, Box) and space.bounded:
        low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        unit = jnp.clip(action, -1.0, 1.0)
        scaled = unit if np.all(low == -1) and np.all(high == 1) else _affine(unit, low, high)
        return scaled.astype(space.dtype)
    return action


def shaped(action, space: Space):
    """Flat actions [N, ...] with the axes that their `Box` spaces have."""
    if isinstance(space, Dict):
        return {name: shaped(action[name], part) for name, part in space.spaces}
    return action.reshape((-1, *space.shape)) if isinstance(space, Box) else action


def _affine(unit, low, high):
    return low + 0.5 * (unit + 1.0) * (high - low)


class UnitActions(Wrapper):
    """Takes bounded continuous actions in [-1, 1]: clips them, then scales them to the bounds."""

    def __init__(self, task: Task) -> None:
        """Rescales the actions of `task`."""
        super().__init__(task)
        self.action = unit_space(task.action)

    def to_simulator(self, action):
        """Scales the action from [-1, 1] to the bounds."""
        return super().to_simulator(from_unit(action, self.task.action))

    def step(self, key, state, action):
        """Steps the task by an action in [-1, 1]; anything beyond is clipped."""
        return self.task.step(key, state, from_unit(action, self.task.action))


class PartialObservation(Wrapper):
    """Observes some numbers of a vector observation and, if set, all of them as a second part."""

    def __init__(self, task: Task, indices: tuple[int, ...], privileged_obs: bool) -> None:
        """Observes the numbers at `indices` of the observations of `task`.

        Raises:
            ValueError: the observation is not a vector, or has fewer numbers.
        """
        super().__init__(task)
        space = task.observation
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ValueError(
                f"env.obs_indices is for observations that are vectors, not for {space}"
            )
        if not all(0 <= i < space.shape[0] for i in indices):
            raise ValueError(
                f"env.obs_indices = {list(indices)}: the observation's numbers are 0 to "
                f"{space.shape[0] - 1}"
            )
        self.indices, self.privileged_obs = np.array(indices), privileged_obs
        seen = replace(space, shape=(len(indices),), low=-np.inf, high=np.inf, slide=0)
        self.observation = Dict.of({"obs": seen, "state": space}) if privileged_obs else seen

    def see(self, obs):
        """The observed part of an observation [F]."""
        seen = obs[self.indices]
        return {"obs": seen, "state": obs} if self.privileged_obs else seen

    def reset(self, key):
        """(key) -> (state, observed part of the observation)."""
        state, obs = self.task.reset(key)
        return state, self.see(obs)

    def step(self, key, state, action):
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


class FlatActions(Wrapper):
    """Gives a `Box` action space without axes, or with several, exactly one."""

    task: Any

    def __init__(self, task: Task) -> None:
        """Flattens the actions of `task`."""
        super().__init__(task)
        assert isinstance(task.action, Box)
        self.shape = task.action.shape
        self.action = flat_space(task.action)

    def adjusted(self, values) -> "FlatActions":
        """The same wrapper of a task with other parameters; see `domain_randomization`."""
        return FlatActions(self.task.adjusted(values))

    def to_simulator(self, action):
        """The action in the task's own shape."""
        return super().to_simulator(action.reshape(self.shape))

    def step(self, key, state, action):
        """Steps the task by a flat action."""
        return self.task.step(key, state, action.reshape(self.shape))
