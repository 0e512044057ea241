"""`playground/`: MuJoCo Playground's tasks on MJX, https://playground.mujoco.org.

The DeepMind control suite needs nothing more. Locomotion and manipulation need the robots' models
of mujoco_menagerie, which Playground would clone at first use: here a user says where they lie.
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
"""Options that are not fields of a task's configuration."""
BROKEN = ("LeapCubeReorient", "PandaRobotiqPushCube")
"""Tasks whose step calls `jnp.clip` with `a_max`, which JAX 0.10 does not have any more."""

Draw = Callable[[jax.Array], dict[str, jax.Array]]

SETTLING = {"CheetahRun": 1 / 16}
"""Tasks that take 200 steps in a reset, and the part of all starts that is drawn before a rollout:
of a rollout of 32 steps (of one simulator step each) all starts would be six times the work."""


def _registry() -> Any:
    # playground and mjx print on stdout where warp has no CUDA device.
    with quiet():
        mjx.import_mujoco()
        from mujoco_playground import registry
    return registry


def task_names() -> list[str]:
    """Return the task names."""
    return sorted(_registry().ALL_ENVS)


def make(name: str, config: EnvConfig) -> "PlaygroundTask | ActionRepeat":
    """The Playground task called `name`.

    `config.backend` is the MJX implementation, jax (default) or warp; `config.options` override
    fields of the task's own configuration. Of these, `episode_length` counts control steps, of
    which one step of ours takes `action_repeat`, as in Playground's training wrapper. `OPTIONS` are
    options, too.

    Raises:
        ValueError: an unknown option, an invalid value, missing models, or a task or a back end
            that cannot run here.
    """
    if name in BROKEN:
        raise ValueError(
            f"env.name = playground/{name}: this task of Playground 0.2 fails with JAX "
            f"{jax.__version__}, because JAX 0.10 removed jnp.clip(a_max=...). Choose another task."
        )
    registry = _registry()
    given, overrides = split(config.options, OPTIONS)
    own = with_defaults(given, OPTIONS)
    used = _checked(name, overrides)
    if config.backend == "warp":
        _check_warp(config, own, name, used)
    overrides["action_repeat"] = used["action_repeat"]
    if "impl" in used:
        overrides["impl"] = config.backend or "jax"
    repeats, limit = used["action_repeat"], used["episode_length"]
    # Some tasks begin anew themselves at their limit, before the last observation is made.
    longest = max(limit, config.max_episode_steps * repeats)
    overrides["episode_length"] = longest + repeats
    is_robot = name not in registry.dm_control_suite.ALL_ENVS
    folder = _models(name, own["menagerie"]) if is_robot else None
    mjx.use_local_devices()
    try:
        with _playground(folder):
            env = registry.load(name, config_overrides=overrides)
    except (TypeError, ValueError, OSError) as error:
        models = f", with the models in {folder}" if is_robot else ""
        raise ValueError(f"env.options for playground/{name}{models}: {error}") from error
    env = mjx.PerEnvArrays(env) if config.backend == "warp" else env
    draw = _own_draw(name, env, folder) if own["domain_randomization"] else None
    task: Any = PlaygroundTask(env, limit, draw)
    task.fresh_fraction = SETTLING.get(name, 1.0)
    return ActionRepeat(task, repeats) if repeats > 1 else task


def _checked(name: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """A task's configuration with `overrides`, its fields by name.

    Raises:
        ValueError: an unknown option, or repeats that are no whole number of at least 1.
    """
    defaults = _registry().get_default_config(name)
    checked(f"playground/{name}", overrides, unchecked(sorted(defaults)), OPTIONS)
    used = {**defaults, **overrides}
    repeats = whole(used["action_repeat"])
    if repeats is None or repeats < 1:
        raise ValueError(
            f"env.options.action_repeat = {used['action_repeat']!r} must be a whole number of at "
            f"least 1"
        )
    limit = time_limit(used["episode_length"], "env.options.episode_length", unlimited="")
    return {**used, "action_repeat": repeats, "episode_length": limit}


def _check_warp(config: EnvConfig, own: dict[str, Any], name: str, used: dict[str, Any]) -> None:
    """Raise ValueError if a task cannot run on MJX's warp implementation here."""
    if config.randomize or config.curriculum or own["domain_randomization"]:
        raise ValueError(
            "env.backend = warp does not support env.randomize, env.curriculum or "
            "env.options.domain_randomization. Use env.backend = jax."
        )
    if "impl" not in used:
        raise ValueError(f"env.backend = warp: playground/{name} supports only jax")
    if importlib.util.find_spec("warp") is None:
        raise ValueError(
            "env.backend = warp: warp-lang is not installed. "
            "Run: pip install 'purejaxppo[playground]'"
        )
    if jax.default_backend() != "gpu":
        raise ValueError(
            f"env.backend = warp needs an NVIDIA GPU, but JAX runs on the {jax.default_backend()}. "
            f"Use env.backend = jax."
        )


def _models(name: str, menagerie: str) -> Path:
    """The folder of the robots' models.

    Raises:
        ValueError: it does not exist; runs download nothing.
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
    """Playground with the robots' models of `folder`, and without what it prints on stdout."""
    import mujoco
    from mujoco_playground._src import mjx_env

    with quiet():
        own = mjx_env.MENAGERIE_PATH
        mjx_env.MENAGERIE_PATH = type(own)(folder) if folder else own
        renamed = not hasattr(mujoco.MjSpec, "find_body")  # in newer MuJoCo; the reachers call it
        if renamed:
            mujoco.MjSpec.find_body = mujoco.MjSpec.body
        try:
            yield
        finally:
            mjx_env.MENAGERIE_PATH = own
            if renamed:
                del mujoco.MjSpec.find_body


def _own_draw(name: str, env: Any, folder: Path | None) -> Draw:
    """Playground's own domain randomisation: a key -> the numbers of a model that it draws.

    Raises:
        ValueError: Playground has none for this task.
    """
    with _playground(folder):
        randomize = _registry().get_domain_randomizer(name)
    if randomize is None:
        raise ValueError(
            f"env.options.domain_randomization: Playground has no domain randomisation for "
            f"playground/{name}. Use env.randomize with {', '.join(mjx.FIELDS)}."
        )

    def draw(key: jax.Array) -> dict[str, jax.Array]:
        # It makes a batch of models, and says by axes of 0 which of their arrays it drew; some
        # tasks load their robot once more.
        with _playground(folder):
            models, axes = randomize(env.mjx_model, jax.random.key_data(key)[None])
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(axes)[0]]
        fields = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
        return {field: operator.attrgetter(field)(models)[0] for field in fields}

    return draw


def _space(size: Any) -> Space:
    """Playground's observation size, an integer, a shape or a mapping, as a space."""
    if isinstance(size, int):
        return Box((size,))
    if hasattr(size, "items"):
        return Dict.of({name: _space(part) for name, part in size.items()})
    return Box(tuple(int(n) for n in size))


class PlaygroundTask(mjx.Robot):
    """One Playground environment, without its wrappers."""

    parameters = dict.fromkeys(mjx.FIELDS, 1.0)

    def __init__(self, env: Any, max_episode_steps: int, draw_parameters: Draw | None = None):
        """Adapt a raw Playground environment; `draw_parameters` as in `domain_randomization`."""
        super().__init__(env)
        self.max_episode_steps = max_episode_steps
        self.draw_parameters = draw_parameters
        self.observation = _space(env.observation_size)

    def adjusted(self, values: ParameterValues) -> Self:
        """The same robot with another model; see `domain_randomization`.

        Args:
            values: factors by the names of `parameters`, and whole arrays by the model's fields.
        """
        factors = {name: x for name, x in values.items() if name in self.parameters}
        arrays = {name: x for name, x in values.items() if name not in self.parameters}
        model = self.env.mjx_model.tree_replace(arrays)
        model = domain_randomization.scaled(model, mjx.FIELDS, factors)
        return self.with_model("_mjx_model", model)

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Frames of the scene."""
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
