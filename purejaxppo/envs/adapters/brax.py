"""`brax/`: tasks of Brax (https://github.com/google/brax) with any of its physics back ends.

The adapter uses the raw environment, because Brax's wrappers overwrite the last observation and
restart from one cached state.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np

from purejaxppo.aliases import EnvState
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import domain_randomization
from purejaxppo.envs.adapted import FRAME_RATE, ParameterValues
from purejaxppo.envs.adapters import mjx
from purejaxppo.envs.families import Family
from purejaxppo.envs.quiet import quiet
from purejaxppo.spaces import Box

BACKENDS = ("spring", "positional", "generalized", "mjx")
BROKEN = frozenset({"swimmer"})
"""Tasks that call `jnp.clip` with an argument that JAX has removed (Brax 0.14.2)."""
EPISODE_STEPS = 1000

FIELDS: dict[str, tuple[str, ...]] = {
    "mass": ("link.inertia.mass", "link.inertia.i", *mjx.FIELDS["mass"]),
    "gear": ("actuator.gear", *mjx.FIELDS["gear"]),
    "damping": ("dof.damping", *mjx.FIELDS["damping"]),
    "armature": ("dof.armature", *mjx.FIELDS["armature"]),
    "stiffness": ("dof.stiffness", *mjx.FIELDS["stiffness"]),
    "friction": mjx.FIELDS["friction"],
    "gravity": ("gravity", *mjx.FIELDS["gravity"]),
}
"""Model arrays of each variable parameter, for MJX and for Brax's back ends."""


def _envs() -> Any:
    # brax and mjx print "Failed to import warp" to stdout if warp is not installed.
    with quiet():
        mjx.import_mujoco()
        from brax import envs
    return envs


def task_names() -> list[str]:
    """Return the names of the tasks that run."""
    return sorted(set(_envs()._envs) - BROKEN)


def make(name: str, config: EnvConfig) -> "BraxTask":
    """Create the Brax task `name` with `config.backend` (default: spring).

    Raises:
        ValueError: an unknown option.
    """
    backend = config.backend or BACKENDS[0]
    try:
        with quiet(("Brax System, piplines and environments are not", Warning)):
            envs = _envs()
            mjx.use_local_devices()  # every back end loads models with MJX
            env = envs.get_environment(name, backend=backend, **config.options)
    except (TypeError, NotImplementedError) as error:
        reason = str(error).rpartition("__init__() got an ")[2].rstrip(".")
        raise ValueError(f"env.options for brax/{name}: {reason}.") from error
    return BraxTask(env)


class BraxTask(mjx.Robot):
    """One Brax environment."""

    max_episode_steps = EPISODE_STEPS
    parameters = dict.fromkeys(FIELDS, 1.0)

    def __init__(self, env: Any) -> None:
        """Wrap a raw Brax environment."""
        super().__init__(env)
        self.observation = Box((self.start.obs.shape[-1],))

    def _system(self) -> Any:
        """Return the physical model; None for the task `fast`, which has no physics."""
        return getattr(self.env, "sys", None)

    @cached_property
    def frame_rate(self) -> float:
        """Control steps per second."""
        has_physics = self._system() is not None
        return 1.0 / float(self.env.dt) if has_physics else FRAME_RATE

    def adjusted(self, values: ParameterValues) -> Self:
        """Return the task with a scaled physical model; see `domain_randomization`."""
        return self.with_model("sys", domain_randomization.scaled(self.env.sys, FIELDS, values))

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames of the robot, drawn by MuJoCo."""
        from purejaxppo.video import charts, mujoco_scene

        model = getattr(self._system(), "mj_model", None)
        if model is None:
            return charts.frames([state.obs for state in states], height=height, width=width)
        poses = [(state.pipeline_state.q, None, None) for state in states]
        return mujoco_scene.draw(model, poses, height=height, width=width)


FAMILY = Family(
    about="Brax robots; --env.backend spring, positional, generalized or mjx",
    tasks=task_names,
    make_task=make,
    requires="brax",
    backends=BACKENDS,
    lapack=("generalized", "mjx"),
    more_options="keyword arguments for the task's class",
)
