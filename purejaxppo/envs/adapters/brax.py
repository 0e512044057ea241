"""`brax/`: tasks of Brax (https://github.com/google/brax) with any of its physics back ends.

The adapter uses the raw environment, because Brax's wrappers overwrite the last observation and
restart from one cached state.
"""

import warnings
from functools import cached_property
from typing import Any

from purejaxppo.aliases import EnvState
from purejaxppo.config import extensions
from purejaxppo.config.references import is_reference, without_family
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import FRAME_RATE, Pose
from purejaxppo.envs.adapters import mjx
from purejaxppo.envs.families import Family
from purejaxppo.envs.options import split
from purejaxppo.envs.quiet import quiet

BACKENDS = ("spring", "positional", "generalized", "mjx")
BROKEN = frozenset({"swimmer"})
"""Tasks that call `jnp.clip` with an argument that JAX has removed (Brax 0.14.2)."""
UNMAINTAINED = ("Brax System, piplines and environments are not", Warning)
"""A warning of Brax, (message, category)."""
EPISODE_STEPS = 1000
"""Default `episode_length` of Brax."""
OPTIONS = {
    mjx.RANDOMIZATION: mjx.randomization_option(
        "Randomise the model of each episode. false: off. Brax itself has no function for it."
    )
}
"""Options in addition to the arguments of a task's class."""

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
    """Create the Brax task `name` with `config.backend` (default: spring), or a custom one.

    Raises:
        ValueError: an unknown option; or a custom environment or randomisation is invalid.
    """
    own, options = split(config.options, OPTIONS)
    envs = _envs()
    mjx.use_local_devices()  # every back end loads models with MJX
    if is_reference(name):
        task = BraxTask(_custom(config, options))
    else:
        task = BraxTask(_builtin(envs, name, config.backend or BACKENDS[0], options))
    if randomize := own.get(mjx.RANDOMIZATION):
        task.draw_parameters = _sampler(randomize, task, config)
    return task


def _builtin(envs: Any, name: str, backend: str, options: dict[str, Any]) -> Any:
    """Create an environment of Brax."""
    try:
        with quiet(UNMAINTAINED):
            return envs.get_environment(name, backend=backend, **options)
    except (TypeError, NotImplementedError) as error:
        reason = str(error).rpartition("__init__() got an ")[2].rstrip(".")
        raise ValueError(f"env.options for brax/{name}: {reason}.") from error


def _custom(config: EnvConfig, options: dict[str, Any]) -> Any:
    """Create a custom environment; the argument `backend` is passed if env.backend is set."""
    options |= {"backend": config.backend} if config.backend else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", *UNMAINTAINED)
        env = extensions.make(extensions.BRAX, without_family(config.name), **options)
    mjx.check_unwrapped(env, f"env.name = {config.name}")
    return env


def _sampler(randomize: Any, task: "BraxTask", config: EnvConfig) -> mjx.Draw:
    """Return the sampler of the option `domain_randomization`."""
    field = f"env.options.{mjx.RANDOMIZATION}"
    if randomize is True:
        raise ValueError(
            f"{field} = true: Brax itself has no domain randomisation. Use a custom function "
            f"{extensions.RANDOMIZATION.signature} as file.py:name, or env.randomize."
        )
    if task.model is None:
        raise ValueError(f"{field}: {config.name} has no physical model `sys` to randomise.")
    return mjx.custom_sampler(randomize, task.model)


class BraxTask(mjx.Robot):
    """One Brax environment."""

    max_episode_steps = EPISODE_STEPS
    model_attribute = "sys"
    fields = FIELDS

    @cached_property
    def frame_rate(self) -> float:
        """Control steps per second; the task `fast` has no physics."""
        return FRAME_RATE if self.model is None else 1.0 / float(self.env.dt)

    @cached_property
    def mj_model(self) -> Any:
        """The model to draw; None without physics."""
        return None if self.model is None else self.model.mj_model

    def pose(self, state: EnvState) -> Pose:
        """Return the pose of the robot in a state."""
        return Pose(state.pipeline_state.q)


FAMILY = Family(
    about="Brax robots, with --env.backend spring, positional, generalized or mjx; file.py:Name",
    tasks=task_names,
    make_task=make,
    requires="brax",
    backends=BACKENDS,
    lapack=("generalized", "mjx"),
    names="reference",
    options=OPTIONS,
    more_options="keyword arguments for the task's class",
)
