"""`jax/`: custom tasks by reference, `jax/path/file.py:Name` or `jax/package.module:Name`.

A reference names a `Task` (see `envs.base`), or a class or function that creates one from
`env.options`. In Python, env.name may be the task itself.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import Key
from purejaxppo.config import extensions, tracing
from purejaxppo.config.plain import plain, time_limit
from purejaxppo.config.references import without_family
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import metrics
from purejaxppo.envs.adapted import BaseTask, as_base_task
from purejaxppo.envs.base import MultiStep, TaskStep
from purejaxppo.envs.families import Family
from purejaxppo.envs.native import arrays_in, form_of, read
from purejaxppo.envs.teams import GLOBAL_STATE
from purejaxppo.envs.worlds import GLOBAL_STATE_OPTION
from purejaxppo.envs.wrappers import ReturnPreservingWrapper, WithoutSlide, from_unit, unit_space
from purejaxppo.spaces import Box, Dict, Discrete, MultiDiscrete, Space, example

MOST_SECONDS = 5.0
"""If `reset` takes longer to compile, the reward of the first step is not checked before training,
because `step` of such a simulator can take minutes."""


def make(name: str, config: EnvConfig) -> BaseTask:
    """Create the task that a reference names; see `check`.

    Raises:
        ValueError: it cannot be loaded or created, or is not a task.
    """
    ref = without_family(config.name)
    task = as_base_task(extensions.make(extensions.TASK, ref, **config.options))
    where = f"env.name = {config.name}: max_episode_steps"
    time_limit(task.max_episode_steps, where, unlimited="0")
    return task


def check(task: BaseTask, where: str, *, wraps: bool = False) -> None:
    """Check the spaces of a task, and the shapes and dtypes of `reset` and `step`.

    Args:
        task: a custom task or wrapper.
        where: the config field, for errors.
        wraps: True for a wrapper, which may leave out metrics of the task.

    Raises:
        ValueError: the first problem.
    """
    check_spaces(task, where)
    above = plain(task.success_above)
    is_number = isinstance(above, int | float) and not isinstance(above, bool)
    if above is not None and (not is_number or np.isnan(above)):
        raise ValueError(f"{where}: success_above = {above!r}: must be a number or None")
    key = jax.random.key(0)
    state, obs = pair(tracing.check(task.reset, f"{where}: reset", "(key)", key), f"{where}: reset")
    check_obs(obs, task.observation, f"{where}: reset")
    action = jax.tree.map(middle, task.action)  # a tuple of spaces for several agents
    step = f"{where}: step"
    next_state, out = pair(
        tracing.check(task.step, step, "(key, state, action)", key, state, action), step
    )
    agents = task.agents
    kind, per_agent = (MultiStep, (len(agents),)) if agents else (TaskStep, ())
    if not isinstance(out, kind):
        raise ValueError(
            f"{step} returns (state, {type(out).__name__}) instead of (state, {kind.__name__})"
        )
    reset_shapes, step_shapes = tracing.differing_shapes(state, next_state)
    if reset_shapes != step_shapes:
        raise ValueError(
            f"{step} returns a state {step_shapes}, but reset returns {reset_shapes}. Both must be "
            f"the same."
        )
    check_obs(out.obs, task.observation, step)
    for name, value, dtype, shape in (
        ("reward", out.reward, np.number, per_agent),
        ("terminated", out.terminated, np.bool_, per_agent),
        ("truncated", out.truncated, np.bool_, ()),
    ):
        if np.shape(value) != shape or not np.issubdtype(np.result_type(value), dtype):
            expected = "a number" if dtype is np.number else "bool"
            raise ValueError(
                f"{step}: {name} is {tracing.shapes_of(value)} instead of {expected} {list(shape)}"
            )
    check_metrics(task, out.metrics, where, per_agent, wraps=wraps)
    if task.state_space is not None:
        method = f"{where}: global_state"
        check_obs(
            tracing.check(task.global_state, method, "(state)", state), task.state_space, method
        )
    started = time.perf_counter()
    tracing.check_finite(lambda key: jax.jit(task.reset)(key)[1], f"{where}: reset", key)
    if time.perf_counter() - started < MOST_SECONDS:

        @jax.jit
        def first_reward(key: Key, action: Any) -> Any:
            state, _ = task.reset(key)
            return task.step(key, state, action)[1].reward

        tracing.check_finite(first_reward, f"{step} (reward)", key, action)
    if not agents:
        check_first_steps(task, where)


def check_metrics(
    task: BaseTask, values: Any, where: str, per_agent: tuple[int, ...], *, wraps: bool
) -> None:
    """Check that a step returns the metrics that the task declares.

    Args:
        task: a custom task or wrapper.
        values: metrics of a step, by name, or None.
        where: the config field, for errors.
        per_agent: shape of a number per agent, () for a single agent.
        wraps: see `check`.

    Raises:
        ValueError: the first problem.
    """
    names = [name for name, _ in metrics.declared(task.metrics, f"{where}: metrics")]
    values, step = {} if values is None else values, f"{where}: step"
    if not isinstance(values, Mapping):
        raise ValueError(
            f"{step}: metrics is a {type(values).__name__} instead of a dict from names to numbers"
        )
    for name, value in values.items():
        if name not in names:
            raise ValueError(
                f"{step} returns the metric {name!r}, but the task does not declare it. Add the "
                f"attribute metrics = {{{name!r}: 'sum'}}, or 'mean' or 'last'."
            )
        is_number = np.issubdtype(np.result_type(value), np.number)
        is_number = is_number or np.result_type(value) == np.bool_
        if np.shape(value) not in ((), per_agent) or not is_number:
            raise ValueError(
                f"{step}: the metric {name!r} is {tracing.shapes_of(value)} instead of a number "
                f"{list(per_agent)}"
            )
    missing = [name for name in names if name not in values]
    if missing and not wraps:
        raise ValueError(
            f"{step}: the task declares the metric {missing[0]!r}, but step does not return it. "
            f"Return TaskStep(..., metrics={{{missing[0]!r}: value}}), or remove it from the "
            f"attribute metrics."
        )


def reported_metrics(task: BaseTask) -> dict[str, str]:
    """Return the declared metrics that a step returns, with their reductions."""
    action = jax.tree.map(example, task.action)

    def values(key: Key) -> Any:
        state, _ = task.reset(key)
        return task.step(key, state, action)[1].metrics

    names = (jax.eval_shape(values, jax.random.key(0)) if task.metrics else None) or {}
    return {name: reduction for name, reduction in task.metrics.items() if name in names}


def is_sliding(space: Any) -> bool:
    """Return True if observations are sliding windows."""
    return isinstance(space, Box) and space.slide != 0


def check_first_steps(task: BaseTask, where: str) -> None:
    """Check the values of the first observations of discrete spaces and sliding windows.

    Raises:
        ValueError: an integer is out of range, or a window does not slide as declared.
    """
    arrays = list(arrays_in(form_of(task.observation)))
    discrete = [not isinstance(array.space, Box) for _, array in arrays]
    if not (any(discrete) or is_sliding(task.observation)):
        return
    obs, over = first_steps(task)
    if is_sliding(task.observation):
        check_windows(task.observation, obs, over, where)
    leaves = jax.tree.leaves(obs)
    for (path, array), values, is_discrete in zip(arrays, leaves, discrete, strict=True):
        for value in values[~over] if is_discrete else ():
            try:
                read(array, value)
            except ValueError as error:
                part = f"part {'.'.join(path)}: " if path else ""
                raise ValueError(f"{where}: {part}{error}") from None


def middle(space: Space) -> Any:
    """Return an action in the middle of its bounds."""
    return from_unit(example(unit_space(space)), space)


def first_steps(task: BaseTask, num_steps: int = 4) -> tuple[Any, np.ndarray]:
    """Return observations [K + 1, ...] after a reset, and bools [K + 1]: the episode is over."""
    action = middle(task.action)

    def step(state: Any, key: Key) -> tuple[Any, tuple[Any, Any]]:
        state, out = task.step(key, state, action)
        floats = [x for x in jax.tree.leaves(out.obs) if jnp.issubdtype(x.dtype, jnp.floating)]
        finite = [jnp.isfinite(x).all() for x in floats]
        return state, (out.obs, out.terminated | out.truncated | ~jnp.all(jnp.array(finite, bool)))

    @jax.jit
    def run(key: Key) -> Any:
        state, obs = task.reset(key)
        _, (later, over) = jax.lax.scan(step, state, jax.random.split(key, num_steps))
        joined = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), obs, later)
        return joined, jnp.concatenate([jnp.zeros(1, bool), jnp.cumsum(over) > 0])

    obs, over = jax.device_get(run(jax.random.key(0)))
    return obs, over


def check_windows(space: Box, obs: np.ndarray, over: np.ndarray, where: str) -> None:
    """Raise ValueError if observations [K + 1, ...] do not slide as declared."""
    shape, slide = space.shape, space.slide
    fits = bool(shape) and 0 < slide <= shape[0]
    if fits:
        same = np.all(obs[1:, :-slide] == obs[:-1, slide:], axis=tuple(range(1, obs.ndim)))
        fits = bool(np.all(same | over[1:]))
    if not fits:
        raise ValueError(
            f"{where}: the observation is declared with slide = {slide}, but a step does not drop "
            f"{slide} values at the front and append {slide} at the end. Use slide = 0."
        )


def check_spaces(task: BaseTask, where: str) -> None:
    """Raise ValueError unless observation and action are spaces, or one space per agent."""
    agents = task.agents
    for name, space in (("observation", task.observation), ("action", task.action)):
        if agents and (type(space) is not tuple or len(space) != len(agents)):
            raise ValueError(
                f"{where}: {name} must be a tuple of {len(agents)} spaces, one for each agent"
            )
        for agent_space in space if agents else (space,):
            check_space(agent_space, where, name)


def check_space(space: Any, where: str, name: str) -> None:
    """Raise ValueError unless a value and its parts are spaces; `name` is for messages."""
    if isinstance(space, Dict):
        for key, part in space.spaces:
            check_space(part, where, f"{name}[{key!r}]")
    elif isinstance(space, Box):
        if name.startswith("action") and np.dtype(space.dtype).kind != "f":
            raise ValueError(
                f"{where}: {name} is a Box with dtype {space.dtype}, which is not supported. Use a "
                f"Box with a float dtype, Discrete or MultiDiscrete."
            )
    elif not isinstance(space, Discrete | MultiDiscrete):
        kind = type(space)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        raise ValueError(
            f"{where}: {name} is a {module}{kind.__qualname__} instead of a space of "
            f"purejaxppo.spaces, such as Box((3,)) or Dict({{'camera': Box((8, 8, 3))}})"
        )


def pair(result: Any, where: str) -> Sequence[Any]:
    """Return the result of a method after checking that it is a pair.

    Raises:
        ValueError: the result is not a pair.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise ValueError(
            f"{where} returns a {type(result).__name__} instead of a pair. Return (state, "
            f"observation) from reset, and (state, TaskStep) from step."
        )
    return result


def check_obs(obs: Any, space: Space | tuple[Space, ...], where: str) -> None:
    """Raise ValueError unless an observation has the shapes and dtypes of its space."""
    actual, declared = tracing.shapes_of(obs), tracing.shapes_of(jax.tree.map(example, space))
    if actual != declared:
        raise ValueError(
            f"{where} returns an observation {actual}, but its space is {declared}. Both must be "
            f"the same."
        )


def apply_wrappers(task: BaseTask, config: EnvConfig, *, checked: bool) -> BaseTask:
    """Apply the custom wrappers of a config, the first one innermost.

    Args:
        task: the task to wrap.
        config: env.wrappers lists the wrappers.
        checked: trace each wrapper.

    Raises:
        ValueError: a wrapper cannot be loaded, or does not return a task.
    """
    for text in config.wrappers:
        cheap_reset = task.cheap_reset
        wrapper = extensions.make(extensions.WRAPPER, text, task)
        task = as_base_task(wrapper)
        # A wrapper may change rewards and observations: it must define these itself.
        for name, default in (("success_above", None), ("keeps_windows", False)):
            if not (hasattr(type(wrapper), name) or name in vars(wrapper)):
                setattr(task, name, default)
        if is_sliding(task.observation) and not task.keeps_windows:
            task = WithoutSlide(task)
        if checked:
            check(task, f"env.wrappers = {text}", wraps=True)
        reported = reported_metrics(task)
        cheap_reset = cheap_reset and task.cheap_reset  # a wrapper may not copy the task's
        if (reported, cheap_reset) != (task.metrics, task.cheap_reset):
            task = ReturnPreservingWrapper(task)  # the task may be a frozen dataclass
            task.metrics, task.cheap_reset = reported, cheap_reset
    return task


FAMILY = Family(
    about="custom tasks in JAX: jax/file.py:Name",
    tasks=list,
    make_task=make,
    names="reference",
    options={GLOBAL_STATE: GLOBAL_STATE_OPTION},
    more_options="arguments of the custom class or function",
)
