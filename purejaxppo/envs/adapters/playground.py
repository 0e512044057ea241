"""`playground/`: tasks of MuJoCo Playground on MJX, https://playground.mujoco.org.

Locomotion and manipulation tasks need the robot models of mujoco_menagerie. Playground would clone
them at first use; here the option `menagerie` sets their folder.
"""

import contextlib
import importlib.util
import operator
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from purejaxppo.aliases import EnvState
from purejaxppo.config.installation import install_extra
from purejaxppo.config.plain import time_limit, whole
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import domain_randomization
from purejaxppo.envs.adapted import ParameterValues
from purejaxppo.envs.adapters import mjx
from purejaxppo.envs.families import Family
from purejaxppo.envs.options import Option, checked, split, unchecked, with_defaults
from purejaxppo.envs.quiet import quiet
from purejaxppo.envs.wrappers import ActionRepeat
from purejaxppo.spaces import Box, Dict, Space

BACKENDS = ("jax", "warp")
OPTIONS = {
    "menagerie": Option("", "Folder of robot models: a clone of mujoco_menagerie.", refers="path"),
    "domain_randomization": Option(
        False, "Randomise the model of each episode by Playground's function for the task."
    ),
}
"""Options in addition to the fields of a task's configuration."""
BROKEN = ("LeapCubeReorient", "PandaRobotiqPushCube")
"""Tasks whose step calls `jnp.clip` with `a_max`, which JAX 0.10 removed."""

Draw = Callable[[jax.Array], dict[str, jax.Array]]

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
    """Create the Playground task `name`.

    `config.backend` is the MJX implementation, jax (default) or warp. `config.options` contain
    `OPTIONS` and fields of the task's configuration. `episode_length` counts control steps; one
    environment step takes `action_repeat` of them, as in Playground's training wrapper.

    Raises:
        ValueError: an unknown option, an invalid value, missing models, or a task or back end that
            cannot run on this computer.
    """
    if name in BROKEN:
        raise ValueError(
            f"env.name = playground/{name}: this task of Playground 0.2 fails with JAX "
            f"{jax.__version__}, because JAX 0.10 removed jnp.clip(a_max=...). Choose another task."
        )
    registry = _registry()
    declared, overrides = split(config.options, OPTIONS)
    options = with_defaults(declared, OPTIONS)
    settings = _checked(name, overrides)
    if config.backend == "warp":
        _check_warp(config, options, name, settings)
    overrides["action_repeat"] = settings["action_repeat"]
    if "impl" in settings:
        overrides["impl"] = config.backend or "jax"
    repeats, limit = settings["action_repeat"], settings["episode_length"]
    # Some tasks reset themselves at their limit, before the last observation.
    longest = max(limit, config.max_episode_steps * repeats)
    overrides["episode_length"] = longest + repeats
    is_robot = name not in registry.dm_control_suite.ALL_ENVS
    folder = _models(name, options["menagerie"]) if is_robot else None
    mjx.use_local_devices()
    try:
        with _playground(folder):
            env = registry.load(name, config_overrides=overrides)
    except (TypeError, ValueError, OSError) as error:
        models = f", with the models in {folder}" if is_robot else ""
        raise ValueError(f"env.options for playground/{name}{models}: {error}") from error
    env = mjx.PerEnvArrays(env) if config.backend == "warp" else env
    draw = _randomizer(name, env, folder) if options["domain_randomization"] else None
    task: Any = PlaygroundTask(env, limit, draw)
    task.fresh_fraction = FRESH_FRACTIONS.get(name, 1.0)
    return ActionRepeat(task, repeats) if repeats > 1 else task


def _checked(name: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a task with `overrides`.

    Raises:
        ValueError: an unknown option, or an invalid action_repeat or episode_length.
    """
    defaults = _registry().get_default_config(name)
    checked(f"playground/{name}", overrides, unchecked(sorted(defaults)), OPTIONS)
    settings = {**defaults, **overrides}
    repeats = whole(settings["action_repeat"])
    if repeats is None or repeats < 1:
        raise ValueError(
            f"env.options.action_repeat = {settings['action_repeat']!r} must be a whole number of "
            f"at least 1"
        )
    limit = time_limit(settings["episode_length"], "env.options.episode_length", unlimited="")
    return {**settings, "action_repeat": repeats, "episode_length": limit}


def _check_warp(
    config: EnvConfig, options: dict[str, Any], name: str, settings: dict[str, Any]
) -> None:
    """Raise ValueError if a task cannot run with MJX warp on this computer."""
    if config.randomize or config.curriculum or options["domain_randomization"]:
        raise ValueError(
            "env.backend = warp does not support env.randomize, env.curriculum or "
            "env.options.domain_randomization. Use env.backend = jax, or remove these settings."
        )
    if "impl" not in settings:
        raise ValueError(
            f"env.backend = warp: playground/{name} supports only jax. Use env.backend = jax."
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


def _models(name: str, menagerie: str) -> Path:
    """Return the folder of the robot models.

    Raises:
        ValueError: the folder does not exist. Runs never download it.
    """
    from mujoco_playground._src import mjx_env

    folder = Path(menagerie or mjx_env.MENAGERIE_PATH).expanduser()
    if not folder.is_dir():
        raise ValueError(
            f"playground/{name} needs the robot models of mujoco_menagerie, but the folder "
            f"{folder} does not exist. Clone "
            f"https://github.com/google-deepmind/mujoco_menagerie and set "
            f"env.options.menagerie to its folder, or choose a task of the DeepMind control suite, "
            f"such as playground/CheetahRun."
        )
    return folder


@contextlib.contextmanager
def _playground(folder: Path | None) -> Iterator[None]:
    """Make Playground use the robot models of `folder`, and suppress its output."""
    import mujoco
    from mujoco_playground._src import mjx_env

    with quiet():
        default = mjx_env.MENAGERIE_PATH
        mjx_env.MENAGERIE_PATH = type(default)(folder) if folder else default
        renamed = not hasattr(
            mujoco.MjSpec, "find_body"
        )  # newer MuJoCo; some reacher tasks call the old name
        if renamed:
            mujoco.MjSpec.find_body = mujoco.MjSpec.body
        try:
            yield
        finally:
            mjx_env.MENAGERIE_PATH = default
            if renamed:
                del mujoco.MjSpec.find_body


def _randomizer(name: str, env: Any, folder: Path | None) -> Draw:
    """Return Playground's domain randomisation: key -> model arrays by field.

    Raises:
        ValueError: Playground does not randomise this task.
    """
    with _playground(folder):
        randomize = _registry().get_domain_randomizer(name)
    if randomize is None:
        raise ValueError(
            f"env.options.domain_randomization: Playground has no domain randomisation for "
            f"playground/{name}. Use env.randomize with {', '.join(mjx.FIELDS)}."
        )

    def draw(key: jax.Array) -> dict[str, jax.Array]:
        # It returns a batch of models, and marks the sampled arrays by axis 0. Some tasks load
        # their robot again.
        with _playground(folder):
            models, axes = randomize(env.mjx_model, jax.random.key_data(key)[None])
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(axes)[0]]
        fields = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
        return {field: operator.attrgetter(field)(models)[0] for field in fields}

    return draw


def _space(size: Any) -> Space:
    """Convert an observation size of Playground (integer, shape or mapping) to a space."""
    if isinstance(size, int):
        return Box((size,))
    if hasattr(size, "items"):
        return Dict.of({name: _space(part) for name, part in size.items()})
    return Box(tuple(int(n) for n in size))


class PlaygroundTask(mjx.Robot):
    """One Playground environment, without its wrappers."""

    parameters = dict.fromkeys(mjx.FIELDS, 1.0)

    def __init__(self, env: Any, max_episode_steps: int, draw_parameters: Draw | None = None):
        """Wrap a raw Playground environment; see `domain_randomization` for `draw_parameters`."""
        super().__init__(env)
        self.max_episode_steps = max_episode_steps
        self.draw_parameters = draw_parameters
        self.observation = _space(jax.tree.map(lambda x: x.shape, self.start.obs))

    def adjusted(self, values: ParameterValues) -> Self:
        """Return the task with a changed physical model; see `domain_randomization`.

        Args:
            values: factors by the names of `parameters`, and arrays by the fields of the model.
        """
        factors = {name: x for name, x in values.items() if name in self.parameters}
        arrays = {name: x for name, x in values.items() if name not in self.parameters}
        model = self.env.mjx_model.tree_replace(arrays)
        model = domain_randomization.scaled(model, mjx.FIELDS, factors)
        return self.with_model("_mjx_model", model)

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames of the scene, drawn by MuJoCo."""
        from purejaxppo.video import mujoco_scene

        poses = [(s.data.qpos, s.data.mocap_pos, s.data.mocap_quat) for s in states]
        return mujoco_scene.draw(self.env.mj_model, poses, height=height, width=width)


FAMILY = Family(
    about="MuJoCo Playground on MJX",
    tasks=task_names,
    make_task=make,
    requires="mujoco_playground",
    backends=BACKENDS,
    lapack=("", "jax"),
    options=OPTIONS,
    more_options="fields of the task's configuration",
)
