"""Wrappers around a `Task`. `registry.make_task` applies them in a fixed order."""

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
from purejaxppo.envs import metrics
from purejaxppo.envs.adapted import BaseTask, ParameterValues, as_base_task
from purejaxppo.envs.base import MultiTask, Task
from purejaxppo.envs.vectorize import cast_to_space, select
from purejaxppo.spaces import Box, Dict, Space


def limit_of(task: BaseTask) -> int:
    """Return the time limit of a task in steps; 0 means no limit.

    Raises:
        ValueError: the limit is not a whole number.
    """
    return time_limit(task.max_episode_steps, "max_episode_steps", unlimited="0")


class Wrapper(BaseTask):
    """Forward everything to the wrapped task. Custom wrappers also derive from this class.

    `success_above` is not forwarded, because a wrapper may change rewards. `keeps_windows` is not
    forwarded, because a wrapper may change observations. Set it to True if each observation is
    still a sliding window over time, as the observation space declares.
    """

    def __init__(self, task: BaseTask | Task | MultiTask) -> None:
        """Wrap `task`."""
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
        self.metrics = inner.metrics

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped task that is not part of the interface."""
        if name.startswith("__"):  # special methods of Python, such as __deepcopy__
            raise AttributeError(name)
        return getattr(self.task, name)

    @cached_property
    def frame_rate(self) -> float:
        """Steps per second of a video."""
        return self.task.frame_rate

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Reset the task."""
        return self.task.reset(key)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Step the task."""
        return self.task.step(key, state, action)

    def adjusted(self, values: ParameterValues) -> Self:
        """Return the same wrapper around a task with other parameters."""
        wrapper = copy.copy(self)
        wrapper.task = as_base_task(self.task.adjusted(values))
        return wrapper

    def global_state(self, state: EnvState) -> jax.Array:
        """Return the global state.

        A wrapper that adds to the state overrides this and passes on the task's state.
        """
        return self.task.global_state(state)

    def staggered(self, key: Key, state: EnvState) -> EnvState:
        """Return the state with a random number of steps of the time limit elapsed."""
        return self.task.staggered(key, state)

    def unwrap(self, state: EnvState) -> EnvState:
        """Return the innermost task's state."""
        return self.task.unwrap(state)

    def to_simulator(self, action: EnvAction) -> EnvAction:
        """Return the action in the form of the innermost task."""
        return self.task.to_simulator(action)

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames of the innermost task's states."""
        return self.task.draw(states, height=height, width=width)


class ReturnPreservingWrapper(Wrapper):
    """A wrapper that does not change rewards; it keeps `success_above`."""

    def __init__(self, task: BaseTask | Task | MultiTask) -> None:
        """Wrap `task`."""
        super().__init__(task)
        self.success_above = self.task.success_above


class TimeLimit(ReturnPreservingWrapper):
    """Truncate episodes after `max_episode_steps`, in addition to the ends of the task."""

    def __init__(self, task: BaseTask | Task | MultiTask, max_episode_steps: int) -> None:
        """Limit `task` to `max_episode_steps`."""
        super().__init__(task)
        self.max_episode_steps = max_episode_steps

    def unwrap(self, state: EnvState) -> EnvState:
        """Return the innermost task's state, without the step count."""
        return super().unwrap(state[0])

    def global_state(self, state: EnvState) -> jax.Array:
        """Return the global state of the task."""
        return super().global_state(state[0])

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Return ((state, elapsed steps), obs)."""
        state, obs = self.task.reset(key)
        return (state, jnp.zeros((), jnp.int32)), obs

    def staggered(self, key: Key, state: EnvState) -> EnvState:
        """Return the state with a random number of elapsed steps, at least 1 below the limit."""
        return state[0], jax.random.randint(key, (), 0, self.max_episode_steps)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Step the task; truncate at the limit."""
        state, elapsed = state
        state, out = self.task.step(key, state, action)
        elapsed = elapsed + 1
        truncated = jnp.logical_or(out.truncated, elapsed >= self.max_episode_steps)
        return (state, elapsed), out._replace(truncated=truncated)


class CastToSpace(ReturnPreservingWrapper):
    """Cast observations to the dtypes of their space, and rewards to float32.

    Custom wrappers rely on these dtypes.
    """

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Reset the task."""
        state, obs = self.task.reset(key)
        return state, cast_to_space(obs, self.observation)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Step the task."""
        state, out = self.task.step(key, state, action)
        obs, reward = cast_to_space(out.obs, self.observation), jnp.asarray(out.reward, jnp.float32)
        return state, out._replace(obs=obs, reward=reward)


class WithoutSlide(ReturnPreservingWrapper):
    """Remove `slide` from the observation space, if observations may not slide as declared."""

    def __init__(self, task: Task) -> None:
        """Wrap `task`."""
        super().__init__(task)
        if isinstance(task.observation, Box):
            self.observation = replace(task.observation, slide=0)


class ActionRepeat(WithoutSlide):
    """Repeat each action up to `repeats` times, until the episode ends, and sum the rewards.

    An episode may end before the last repeat. Windows then do not slide by a fixed number.
    """

    def __init__(self, task: Task, repeats: int) -> None:
        """Repeat each action `repeats` times; the time limit is divided by it, rounded up."""
        super().__init__(task)
        self.repeats = repeats
        self.max_episode_steps = -(-task.max_episode_steps // repeats)

    @cached_property
    def frame_rate(self) -> float:
        """Frames per second of a video; a frame is `repeats` steps of the task."""
        return self.task.frame_rate / self.repeats

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Repeat the action `repeats` times or until the episode ends; the rewards are summed.

        Metrics are reduced over the repeats; the game time, `metrics.TICKS`, is always summed.
        """
        declared = tuple(
            (name, "sum" if name == metrics.TICKS else reduction)
            for name, reduction in metrics.declared(self.metrics, "metrics")
        )

        def repeat(carry: Any, key: Key) -> tuple[Any, None]:
            state, out, total = carry
            # A copy: some simulators write into the dicts of their argument.
            next_state, next_out = self.task.step(key, jax.tree.map(lambda x: x, state), action)
            next_total = total and total.add(metrics.packed(next_out.metrics, declared, ()))
            next_out = next_out._replace(reward=out.reward + next_out.reward, metrics=None)
            after = next_state, next_out, next_total
            return select(out.terminated | out.truncated, carry, after), None

        shapes = jax.eval_shape(self.task.step, key, state, action)[1]._replace(metrics=None)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        first = state, zeros, metrics.EpisodeMetrics.start(declared, ())
        keys = jax.random.split(key, self.repeats)
        state, out, total = jax.lax.scan(repeat, first, keys)[0]
        by_name = total and metrics.unpacked(total.reduced, declared)
        return state, out._replace(metrics=by_name)


def unit_space(space: Space) -> Space:
    """Return the space with the bounds of every bounded Box set to [-1, 1]."""
    if isinstance(space, Dict):
        return Dict(tuple((name, unit_space(part)) for name, part in space.spaces))
    if isinstance(space, Box) and space.bounded:
        return replace(space, low=-1.0, high=1.0, dtype="float32")
    return space


def from_unit(action: Action, space: Space) -> EnvAction:
    """Clip actions to [-1, 1] and scale them to the bounds of a Box; keep other actions."""
    if isinstance(space, Dict):
        return {name: from_unit(action[name], part) for name, part in space.spaces}
    if isinstance(space, Box) and space.bounded:
        low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        action = jnp.clip(action, -1.0, 1.0)
        if np.any(low != -1) or np.any(high != 1):
            action = low + 0.5 * (action + 1.0) * (high - low)
        return action.astype(space.dtype)
    return action


def flat_space(space: Space) -> Space:
    """Return a space whose `Box` parts have exactly one axis; other spaces are unchanged."""
    if isinstance(space, Dict):
        return Dict(tuple((name, flat_space(part)) for name, part in space.spaces))
    if not isinstance(space, Box) or len(space.shape) == 1:
        return space
    low, high = (
        tuple(np.broadcast_to(bound, space.shape).ravel().tolist())
        for bound in (space.low, space.high)
    )
    return replace(space, shape=(int(np.prod(space.shape)),), low=low, high=high)


def from_policy(action: Action, space: Space) -> EnvAction:
    """Convert actions of a policy, in [-1, 1] and with one axis, to `space`."""
    return shaped(from_unit(action, flat_space(space)), space)


def shaped(action: Action, space: Space) -> EnvAction:
    """Reshape flat actions [..., n] to the shapes of their `Box` spaces."""
    if isinstance(space, Dict):
        return {name: shaped(action[name], part) for name, part in space.spaces}
    return action.reshape((*action.shape[:-1], *space.shape)) if isinstance(space, Box) else action


class UnitActions(ReturnPreservingWrapper):
    """Accept continuous actions with one axis, and bounded ones in [-1, 1].

    They are clipped, scaled to the bounds, and reshaped.
    """

    def __init__(self, task: Task) -> None:
        """Rescale the actions of `task`."""
        super().__init__(task)
        self.action = unit_space(flat_space(task.action))

    def to_simulator(self, action: EnvAction) -> EnvAction:
        """Scale the action from [-1, 1] to the bounds."""
        return super().to_simulator(from_policy(action, self.task.action))

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Step the task with an action that is clipped to [-1, 1] and scaled."""
        return self.task.step(key, state, from_policy(action, self.task.action))


def observed_entries(obs: Obs, indices: np.ndarray, privileged_obs: bool) -> Obs:
    """Return the observed entries of vectors [..., F]: all if `indices` is empty.

    See `env.obs_indices` and `env.privileged_obs`.
    """
    if not len(indices):
        return obs
    observed = obs[..., indices]
    return {"obs": observed, "state": obs} if privileged_obs else observed


class PartialObservation(ReturnPreservingWrapper):
    """Observe some entries of a vector; with `privileged_obs`, all of them for the critic."""

    def __init__(self, task: Task, indices: tuple[int, ...], privileged_obs: bool) -> None:
        """Observe the entries `indices` of the observations of `task`.

        Raises:
            ValueError: the observation is not a vector, or an index is out of range.
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
        low, high = (
            np.broadcast_to(bound, space.shape)[list(indices)] for bound in (space.low, space.high)
        )
        observed = Box.between(low, high, space.dtype)
        self.observation = (
            Dict.of({"obs": observed, "state": space}) if privileged_obs else observed
        )

    def see(self, obs: Obs) -> Obs:
        """Return the observed entries of an observation [F]."""
        return observed_entries(obs, self.indices, self.privileged_obs)

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Reset the task; return (state, observed entries)."""
        state, obs = self.task.reset(key)
        return state, self.see(obs)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Step the task; return the observed entries."""
        state, out = self.task.step(key, state, action)
        return state, out._replace(obs=self.see(out.obs))
