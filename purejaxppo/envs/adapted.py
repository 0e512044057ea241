"""The full interface of a task, with defaults for everything optional.

Adapters and wrappers derive from `BaseTask` and override what they support. Custom tasks only need
the interface of `base.Task` or `base.MultiTask`; `as_base_task` adds the defaults.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import jax
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.envs.base import MultiTask, Task
from purejaxppo.envs.teams import Team
from purejaxppo.spaces import Box

ParameterValues = Mapping[str, Any]
"""Parameters by name, [] each, traced or not."""
FRAME_RATE = 10.0
"""Steps per second of videos, for tasks that do not define it."""


class BaseTask:
    """One environment in JAX, or one world of several agents, without resets."""

    observation: Any
    """A `Space`; of a world a tuple, one for each agent."""
    action: Any
    """As `observation`. Actions of a bounded `Box` arrive within its bounds."""
    agents: tuple[str, ...] = ()
    """Names of the agents of a world; () for a single environment."""
    max_episode_steps: int = 0
    """The time limit; 0 means none."""
    cheap_reset: bool = True
    """True if a reset costs less than fetching a stored start, as for states of few numbers."""
    fresh_fraction: float = 1.0
    """Share of all starts that is drawn before a rollout; see `vectorize.VectorEnv`."""
    success_above: float | None = None
    """Episodes with a greater return are a success; None: the task does not define success."""
    draw_parameters: Callable[[Key], dict[str, jax.Array]] | None = None
    """key -> further values for `adjusted`, which the simulator itself draws for an episode."""
    team: Team | None = None
    """The agents of a world that acts as one environment; see `worlds.JointTask`."""
    keeps_windows: bool = False
    """For custom wrappers: True if sliding windows still slide as the space declares."""

    # Adapters set the following as attributes, or compute them.

    @cached_property
    def state_space(self) -> Box | None:
        """Space of `global_state`, one axis; None: the world has no state for the critic."""
        return None

    @cached_property
    def parameters(self) -> Mapping[str, float]:
        """Nominal values of the parameters that can be varied; see `domain_randomization`."""
        return {}

    @cached_property
    def frame_rate(self) -> float:
        """Steps per second of a video."""
        return FRAME_RATE

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """A key -> (state, obs); of a world a tuple of observations."""
        raise NotImplementedError

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, Any]:
        """(key, state, action) -> (state, `TaskStep`); of a world (state, `MultiStep`)."""
        raise NotImplementedError

    def adjusted(self, values: ParameterValues) -> Self:
        """Return the same task with other values of its `parameters`."""
        raise NotImplementedError

    def global_state(self, state: EnvState) -> jax.Array:
        """Return the state of the world in `state_space`, float [n]."""
        raise NotImplementedError

    def staggered(self, key: Key, state: EnvState) -> EnvState:
        """Return a state with a random part of the time limit gone."""
        raise NotImplementedError

    def unwrap(self, state: EnvState) -> EnvState:
        """Return the innermost task's state."""
        return state

    def to_simulator(self, action: EnvAction) -> EnvAction:
        """Return the action as the innermost task takes it."""
        return action

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames of the innermost task's states, uint8 [height, width, 3]."""
        from purejaxppo.video import charts

        return charts.frames(states, height=height, width=width)


INTERFACE = ("observation", "action", *(name for name in vars(BaseTask) if name[0] != "_"))


class CustomTask(BaseTask):
    """A custom task, with defaults for members that it does not define."""

    def __init__(self, task: Task | MultiTask) -> None:
        """Copy the members that `task` defines."""
        self.task: Any = task
        for name in INTERFACE:
            if hasattr(task, name):
                setattr(self, name, getattr(task, name))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the custom task, which custom wrappers may read."""
        if name.startswith("__"):  # of Python, such as those that copies look for
            raise AttributeError(name)
        return getattr(self.task, name)


def as_base_task(task: BaseTask | Task | MultiTask) -> BaseTask:
    """Return a task with the full interface: itself if it is `BaseTask`, else a `CustomTask`."""
    return task if isinstance(task, BaseTask) else CustomTask(task)
