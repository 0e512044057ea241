"""`BaseTask`: the full interface of a task, with a default for each optional attribute.

Adapters and wrappers derive from `BaseTask`. Custom tasks only need to implement `base.Task` or
`base.MultiTask`; `as_base_task` adds the defaults.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.envs.base import MultiTask, Task
from purejaxppo.envs.teams import Team
from purejaxppo.spaces import Box, example

ParameterValues = Mapping[str, Any]
"""Parameters by name, scalars, traced or not."""
FRAME_RATE = 10.0
"""Default frame rate of videos, steps per second."""


class Pose(NamedTuple):
    """The pose of a MuJoCo model, for videos."""

    qpos: Any  # [nq]
    mocap_pos: Any = None  # [nmocap, 3]; None: as in the model
    mocap_quat: Any = None  # [nmocap, 4]


class BaseTask:
    """One environment in JAX, single- or multi-agent, without auto-reset."""

    observation: Any
    """A `Space`; for several agents a tuple with one per agent."""
    action: Any
    """Same form as `observation`. Actions of a bounded `Box` arrive within its bounds."""
    agents: tuple[str, ...] = ()
    """Names of the agents; () for a single-agent task."""
    max_episode_steps: int = 0
    """Time limit in steps; 0 means no limit."""
    cheap_reset: bool = True
    """True if a reset costs less than fetching a stored start, as for states of few numbers."""
    fresh_fraction: float = 1.0
    """Fraction of the first states that each rollout samples; see `vectorize.VectorEnv`."""
    success_above: float | None = None
    """An episode with a greater return is a success; None if success is undefined."""
    metrics: Mapping[str, str] = MappingProxyType({})
    """Reduction over an episode, "sum", "mean" or "last", of each of `TaskStep.metrics`."""
    draw_parameters: Callable[[Key], dict[str, jax.Array]] | None = None
    """key -> more values for `adjusted`, sampled by the simulator for each episode."""
    team: Team | None = None
    """The agents of a multi-agent task that acts as one environment; see `worlds.JointTask`."""
    keeps_windows: bool = False
    """For custom wrappers: True if each observation is still a sliding window over time, as the
    observation space declares."""

    # Adapters override the following properties, also by plain attributes.

    @cached_property
    def state_space(self) -> Box | None:
        """Space of `global_state`, one axis; None without a global state."""
        return None

    @cached_property
    def parameters(self) -> Mapping[str, float]:
        """Nominal values of the variable parameters; see `domain_randomization`."""
        return {}

    @cached_property
    def frame_rate(self) -> float:
        """Steps per second of a video."""
        return FRAME_RATE

    @cached_property
    def mj_model(self) -> Any:
        """A `mujoco.MjModel`, which videos show in the poses of `pose`; None for other drawings."""
        return None

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Start an episode; return (state, obs). `obs` is a tuple for several agents."""
        raise NotImplementedError

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """Take a step; return (state, `TaskStep`), or (state, `MultiStep`) for several agents."""
        raise NotImplementedError

    def adjusted(self, values: ParameterValues) -> Self:
        """Return the same task with other values of its `parameters`."""
        raise NotImplementedError

    def global_state(self, state: EnvState) -> jax.Array:
        """Return the global state in `state_space`, float [n]."""
        raise NotImplementedError

    def staggered(self, key: Key, state: EnvState) -> EnvState:
        """Return the state with a random number of steps of the time limit elapsed."""
        raise NotImplementedError

    def unwrap(self, state: EnvState) -> EnvState:
        """Return the innermost task's state."""
        return state

    def to_simulator(self, action: EnvAction) -> EnvAction:
        """Return the action in the form of the innermost task."""
        return action

    def pose(self, state: EnvState) -> Pose:
        """Return the pose of `mj_model` in a state: the first `mjx.Data` in it.

        Raises:
            ValueError: the state contains no `mjx.Data`.
        """
        for part in jax.tree.leaves(state, is_leaf=lambda part: hasattr(part, "qpos")):
            if hasattr(part, "qpos"):
                return Pose(part.qpos, part.mocap_pos, part.mocap_quat)
        raise ValueError(
            "the task has an `mj_model`, but its states contain no mjx.Data. Add a method "
            "pose(state) that returns Pose(qpos), of purejaxppo.envs.adapted."
        )

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames of the innermost task's states, uint8 [height, width, 3]."""
        from purejaxppo.video import charts, mujoco_scene

        if self.mj_model is None:
            return charts.frames(states, height=height, width=width)
        poses = [self.pose(state) for state in states]
        return mujoco_scene.draw(self.mj_model, poses, height=height, width=width)


INTERFACE = ("observation", "action", *(name for name in vars(BaseTask) if name[0] != "_"))


class CustomTask(BaseTask):
    """A custom task, with defaults for the attributes that it does not define."""

    def __init__(self, task: Task | MultiTask) -> None:
        """Copy the attributes that `task` defines."""
        self.task: Any = task
        for name in INTERFACE:
            if hasattr(task, name):
                setattr(self, name, getattr(task, name))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the custom task; custom wrappers may read it."""
        if name.startswith("__"):  # special methods of Python, such as __deepcopy__
            raise AttributeError(name)
        return getattr(self.task, name)


def as_base_task(task: BaseTask | Task | MultiTask) -> BaseTask:
    """Return the task itself if it is a `BaseTask`, else a `CustomTask` around it."""
    return task if isinstance(task, BaseTask) else CustomTask(task)


def trace(task: Any) -> None:
    """Trace a reset and a step, which find invalid options without compilation."""
    key = jax.random.key(0)
    state, _ = jax.eval_shape(task.reset, key)
    jax.eval_shape(task.step, key, state, jax.tree.map(example, task.action))
