"""`playground/`: tasks of MuJoCo Playground on MJX, https://playground.mujoco.org.

Locomotion and manipulation tasks need the robot models of mujoco_menagerie. Playground would clone
them at first use; here the option `menagerie` sets their folder.
"""

import contextlib
import copy
import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import jax

from purejaxppo.aliases import EnvState
from purejaxppo.config import extensions, tracing
from purejaxppo.config.installation import install_extra
from purejaxppo.config.plain import time_limit, whole
from purejaxppo.config.references import is_reference, load, without_family
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import Pose
from purejaxppo.envs.adapters import mjx
from purejaxppo.envs.adapters.menagerie import Menagerie, MissingModelError
from purejaxppo.envs.families import Family
from purejaxppo.envs.options import Option, checked, split, unchecked, with_defaults
from purejaxppo.envs.quiet import quiet
from purejaxppo.envs.wrappers import ActionRepeat

BACKENDS = ("jax", "warp")
OPTIONS = {
    "menagerie": Option(
        "",
        "Folder of robot models: a clone of mujoco_menagerie. Empty: MENAGERIE_ROOT, or the models "
        "that `mujoco-menagerie prefetch` has downloaded.",
        refers="path",
    ),
    mjx.RANDOMIZATION: mjx.randomization_option(
        "Randomise the model of each episode. true: with Playground's function for the task."
    ),
}
"""Options in addition to the fields of a task's configuration."""
BROKEN = ("LeapCubeReorient", "PandaRobotiqPushCube")
"""Tasks whose step calls `jnp.clip` with `a_max`, which JAX 0.10 removed."""

DEFAULTS = {"episode_length": 1000, "action_repeat": 1}
"""Default episodes of Playground's training, for custom environments that do not set them."""

FRESH_FRACTIONS = {"CheetahRun": 1 / 16}
"""Fraction of the first states that a rollout samples, for tasks whose reset takes 200 simulator
steps. All first states would cost six times as much as a rollout of 32 such steps."""


def _registry() -> Any:
    # playground and mjx print to stdout if warp has no CUDA device.
    with quiet():
        mjx.import_mujoco()
        from mujoco_playground import registry
    return registry


def task_names() -> list[str]:
    """Return the task names."""
    return sorted(_registry().ALL_ENVS)


def make(name: str, config: EnvConfig) -> "PlaygroundTask | ActionRepeat":
    """Create the Playground task `name`, or a custom one.

    `config.backend` is the MJX implementation, jax (default) or warp. `config.options` contain
    `OPTIONS` and fields of the task's configuration. `episode_length` counts control steps; one
    environment step takes `action_repeat` of them, as in Playground's training wrapper.

    Raises:
        ValueError: an unknown option, an invalid value, missing models, or a task or back end that
            cannot run on this computer; or a custom environment is invalid.
    """
    if name in BROKEN:
        raise ValueError(
            f"env.name = playground/{name}: this task of Playground 0.2 fails with JAX "
            f"{jax.__version__}, because JAX 0.10 removed jnp.clip(a_max=...). Choose another task."
        )
    own, overrides = split(config.options, OPTIONS)
    options = with_defaults(own, OPTIONS)
    _registry()
    mjx.use_local_devices()
    with _playground(config, options):
        load_env = _custom if is_reference(name) else _builtin
        env, settings = load_env(config, name, options, overrides)
        env = mjx.PerEnvArrays(env) if settings["impl"] == "warp" else env
        task: Any = PlaygroundTask(env, settings["episode_length"])
        if options[mjx.RANDOMIZATION]:
            task.draw_parameters = _sampler(name, config, options, task)
    task.fresh_fraction = FRESH_FRACTIONS.get(name, 1.0)
    if settings["action_repeat"] == 1:
        return task
    # ActionRepeat reduces metrics, too; `registry` checks names.
    task.metrics |= {name: x for name, x in config.metrics.items() if name in task.metrics}
    return ActionRepeat(task, settings["action_repeat"])


def _builtin(
    config: EnvConfig, name: str, options: dict[str, Any], overrides: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Load a task of Playground; return (environment, its configuration)."""
    registry = _registry()
    defaults = registry.get_default_config(name)
    settings = _checked(config, defaults, overrides)
    _check_backend(config, options, settings)
    try:
        env = registry.load(name, config_overrides=_final(config, defaults, settings, overrides))
        if getattr(env, "n_substeps", 1) < 1:
            raise ValueError("ctrl_dt must be at least sim_dt.")
    except MissingModelError:
        raise
    except (TypeError, ValueError, OSError, ArithmeticError, NotImplementedError) as error:
        raise ValueError(f"env.options for {config.name}: {error}") from error
    return env, {**settings, "impl": config.backend or "jax"}


def _custom(
    config: EnvConfig, name: str, options: dict[str, Any], overrides: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Create a custom environment; return (environment, its configuration).

    A class or function with the parameter `config_overrides`, as those of Playground, gets the
    options in it. Others get them as arguments.
    """
    del name
    ref = without_family(config.name)
    loaded = load(ref, "env.name")
    takes_overrides = tracing.has_parameter(loaded, "config_overrides")
    defaults = _default_config(loaded) if takes_overrides else None
    arguments = {"config_overrides": overrides} if takes_overrides else dict(overrides)
    if defaults is not None:
        settings = _checked(config, defaults, overrides)
        _check_backend(config, options, settings)
        # Environments change their configuration, also if it is the default of the parameter.
        arguments["config"] = copy.deepcopy(defaults)
        arguments["config_overrides"] = _final(config, defaults, settings, overrides)
    try:
        env = extensions.make(extensions.PLAYGROUND, ref, **arguments)
    except ValueError as error:
        if isinstance(error.__cause__, MissingModelError):
            raise error.__cause__ from error
        raise
    mjx.check_unwrapped(env, f"env.name = {config.name}")
    if defaults is not None:
        return env, {**settings, "impl": config.backend or "jax"}
    settings = _checked(config, {"impl": "jax", **vars(env.unwrapped).get("_config", {})}, {})
    _check_backend(config, options, settings, chosen=settings["impl"])
    return env, settings


def _default_config(loaded: Any) -> Any:
    """Return the default of the parameter `config` of a class; None if it is no configuration."""
    from ml_collections import ConfigDict  # type: ignore[import-untyped]

    parameter = inspect.signature(loaded).parameters.get("config")
    default = parameter.default if parameter else None
    return default if isinstance(default, ConfigDict) else None


def _names(defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the fields of a configuration, nested ones with dots."""
    for name, value in defaults.items():
        yield name
        if hasattr(value, "items"):
            yield from (f"{name}.{inner}" for inner in _names(value))


def _checked(
    config: EnvConfig, defaults: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration of a task with `overrides`.

    Raises:
        ValueError: an unknown option, or an invalid action_repeat or episode_length.
    """
    if "impl" in overrides:
        raise ValueError("env.options.impl: use env.backend = jax or warp instead.")
    if overrides.get("vision") and config.backend != "warp":
        raise ValueError("env.options.vision = true needs env.backend = warp.")
    checked(str(config.name), overrides, unchecked(sorted(_names(defaults))), OPTIONS)
    settings = {**DEFAULTS, **defaults, **overrides}
    repeats = whole(settings["action_repeat"])
    if repeats is None or repeats < 1:
        raise ValueError(
            f"env.options.action_repeat = {settings['action_repeat']!r}: must be a whole number of "
            f"at least 1"
        )
    limit = time_limit(settings["episode_length"], "env.options.episode_length", unlimited="")
    return {**settings, "action_repeat": repeats, "episode_length": limit}


def _final(
    config: EnvConfig,
    defaults: Mapping[str, Any],
    settings: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """Return all overrides: the user's, the back end, and a limit that is never reached.

    Some tasks reset themselves at their limit, before the last observation.
    """
    repeats = settings["action_repeat"]
    longest = max(settings["episode_length"], config.max_episode_steps * repeats)
    ours = {
        "action_repeat": repeats,
        "impl": config.backend or "jax",
        "episode_length": longest + repeats,
    }
    return {**overrides, **{name: value for name, value in ours.items() if name in defaults}}


def _check_backend(
    config: EnvConfig, options: dict[str, Any], settings: dict[str, Any], chosen: str = ""
) -> None:
    """Raise ValueError if a task cannot run with its back end on this computer.

    Args:
        config: section env of the config.
        options: values of `OPTIONS`.
        settings: configuration of the task.
        chosen: back end of an environment that exists already.
    """
    if chosen and config.backend not in ("", chosen):
        raise ValueError(
            f"env.backend = {config.backend}: {config.name} was created with {chosen}. Set `impl` "
            f"in its configuration."
        )
    if (chosen or config.backend) == "warp":
        _check_warp(config, options, settings)


def _check_warp(config: EnvConfig, options: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise ValueError if a task cannot run with MJX warp on this computer."""
    if config.randomize or config.curriculum or options[mjx.RANDOMIZATION]:
        raise ValueError(
            "env.backend = warp does not support env.randomize, env.curriculum or "
            "env.options.domain_randomization. Use env.backend = jax, or remove these settings."
        )
    if "impl" not in settings:
        raise ValueError(
            f"env.backend = warp: {config.name} supports only jax. Use env.backend = jax."
        )
    if importlib.util.find_spec("warp") is None:
        raise ValueError(
            f"env.backend = warp: warp-lang is not installed. Run: {install_extra('playground')}"
        )
    if jax.default_backend() != "gpu":
        raise ValueError(
            f"env.backend = warp needs an NVIDIA GPU, but JAX runs on the {jax.default_backend()}. "
            f"Use env.backend = jax."
        )


@contextlib.contextmanager
def _playground(config: EnvConfig, options: Mapping[str, Any]) -> Iterator[None]:
    """Make Playground use robot models on this computer, and suppress its output."""
    import mujoco
    from mujoco_playground._src import mjx_env

    with quiet():
        original = mjx_env.MENAGERIE_PATH
        default = original.default if isinstance(original, Menagerie) else original
        mjx_env.MENAGERIE_PATH = Menagerie(str(config.name), options["menagerie"], default)
        renamed = not hasattr(
            mujoco.MjSpec, "find_body"
        )  # newer MuJoCo; some reacher tasks call the old name
        if renamed:
            mujoco.MjSpec.find_body = mujoco.MjSpec.body
        try:
            yield
        finally:
            mjx_env.MENAGERIE_PATH = original
            if renamed:
                del mujoco.MjSpec.find_body


def _sampler(
    name: str, config: EnvConfig, options: Mapping[str, Any], task: "PlaygroundTask"
) -> mjx.Draw:
    """Return the sampler of the option `domain_randomization`.

    Raises:
        ValueError: Playground has no function for the task, or a custom one is invalid.
    """
    field, value = f"env.options.{mjx.RANDOMIZATION}", options[mjx.RANDOMIZATION]
    if task.model is None:
        raise ValueError(
            f"{field}: {config.name} has no attribute `_mjx_model`, in which environments of "
            f"Playground hold their model. Add it."
        )
    builtin = None if is_reference(name) else _registry().get_domain_randomizer(name)
    model = task.model
    if value is not True:
        sample = mjx.custom_sampler(value, model)
    elif builtin is not None:
        sample = mjx.sampler(builtin, model)
    else:
        raise ValueError(
            f"{field}: Playground has no domain randomisation for {config.name}. Use a custom "
            f"function {extensions.RANDOMIZATION.signature} as file.py:name, or env.randomize with "
            f"{', '.join(mjx.FIELDS)}."
        )

    def draw(key: jax.Array) -> dict[str, jax.Array]:
        with _playground(config, options):  # some tasks load their robot again
            return sample(key)

    return draw


class PlaygroundTask(mjx.Robot):
    """One Playground environment, without its wrappers."""

    model_attribute = "_mjx_model"

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        """Wrap a raw Playground environment."""
        super().__init__(env)
        self.max_episode_steps = max_episode_steps

    @cached_property
    def mj_model(self) -> Any:
        """The model to draw."""
        return self.env.mj_model

    def pose(self, state: EnvState) -> Pose:
        """Return the pose of the scene in a state."""
        return Pose(state.data.qpos, state.data.mocap_pos, state.data.mocap_quat)


FAMILY = Family(
    about="MuJoCo Playground on MJX; file.py:Name",
    tasks=task_names,
    make_task=make,
    names="reference",
    requires="mujoco_playground",
    backends=BACKENDS,
    lapack=("", "jax"),
    options=OPTIONS,
    free_options=("menagerie",),
    more_options="fields of the task's configuration",
)
