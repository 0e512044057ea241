"""`craftax/`: open-world survival games, https://github.com/MichaelTMatthews/Craftax.

Craftax-Classic is the game of Crafter (Hafner 2021, https://arxiv.org/abs/2109.06780). Craftax has
nine floors (Matthews et al. 2024, https://arxiv.org/abs/2402.16801). A reset costs as much as tens
of steps.
"""

import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.families import Family
from purejaxppo.envs.options import checked, from_values
from purejaxppo.envs.quiet import PROCESS_LOCK
from purejaxppo.spaces import Box, Discrete

BLOCK_SIZE = 16
"""Pixels of a block's side in videos, as in the simulator's own images of blocks."""
NEVER = 2**31 - 1


def task_names() -> list[str]:
    """Return the task names, as in the simulator."""
    games = ("Craftax-Classic", "Craftax")
    return [f"{game}-{kind}-v1" for game in games for kind in ("Symbolic", "Pixels")]


def make(name: str, config: EnvConfig) -> "CraftaxTask":
    """Create the task `name`; `config.options` set numeric and boolean parameters.

    Raises:
        ValueError: an unknown option.
    """
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name(name.replace("Pixels", "Symbolic"), auto_reset=False)
    params = env.default_params
    limit = config.max_episode_steps or int(params.max_timesteps)
    defaults = {
        option: value
        for option, value in sorted(vars(params).items())
        if type(value) in (bool, int, float) and option != "max_timesteps"
    }
    options = checked(f"craftax/{name}", config.options, from_values(defaults))
    # The time limit of the simulator would set `done`.
    params = params.replace(**options, max_timesteps=NEVER)
    return CraftaxTask(env, params, limit, classic="Classic" in name, pixels="Pixels" in name)


def _module(classic: bool, name: str) -> Any:
    package = "craftax_classic" if classic else "craftax"
    return importlib.import_module(f"craftax.{package}.{name}")


@functools.cache
def _renderer(classic: bool, size: int) -> Any:
    """Return the simulator's renderer: state -> pixels 0..255 [H, W, 3], with blocks of `size`.

    By default it creates the textures of all sizes, which takes a minute, and writes them into its
    package. Here it gets the textures of one size.
    """
    renderer, constants = _module(classic, "renderer"), _module(classic, "constants")
    with PROCESS_LOCK:
        load, textures = renderer.load_all_textures, constants.load_all_textures_given_size(size)
        try:
            renderer.load_all_textures = lambda: {size: textures}
            return renderer.make_craftax_pixel_renderer(size)
        finally:
            renderer.load_all_textures = load


def _bytes(image: jax.Array) -> jax.Array:
    """Convert pixels 0..255 to uint8."""
    return jnp.clip(jnp.round(image), 0, 255).astype(jnp.uint8)


class CraftaxTask(BaseTask):
    """One Craftax environment. `done` means death, lava or the last boss, never the time limit."""

    cheap_reset = False
    fresh_fraction = 0.25

    def __init__(
        self, env: Any, params: Any, max_episode_steps: int, *, classic: bool, pixels: bool
    ) -> None:
        """Wrap the symbolic environment; `pixels` observes rendered images instead."""
        self.env, self.params, self.classic, self.pixels = env, params, classic, pixels
        self.max_episode_steps = max_episode_steps
        self.action = Discrete(int(env.num_actions))
        self.observation = Box(tuple(env.observation_space(params).shape))
        achievements = _module(classic, "constants").Achievement
        self._achievements = {f"achievements/{x.name.lower()}": x.value for x in achievements}
        self.metrics = dict.fromkeys(self._achievements, "last")
        if pixels:
            constants = _module(classic, "constants")
            size = int(constants.BLOCK_PIXEL_SIZE_AGENT)
            self.render = _renderer(classic, size)
            rows = constants.OBS_DIM[0] + constants.INVENTORY_OBS_HEIGHT
            columns = constants.OBS_DIM[1]
            self.observation = Box((rows * size, columns * size, 3), 0.0, 255.0, "uint8")

    def see(self, obs: jax.Array, state: EnvState) -> jax.Array:
        """Return the observation of a state; `obs` is its symbolic observation."""
        return _bytes(self.render(state)) if self.pixels else obs.astype(jnp.float32)

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Start an episode; return (Craftax state, obs)."""
        obs, state = self.env.reset_env(key, self.params)
        return state, self.see(obs, state)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Take a step."""
        obs, state, reward, done, _ = self.env.step_env(key, state, action, self.params)
        # The simulator's info has them only where `done`, which is False at the time limit.
        achieved = {name: state.achievements[i] for name, i in self._achievements.items()}
        ends = jnp.asarray(done), jnp.zeros((), bool)
        return state, TaskStep(self.see(obs, state), reward, *ends, achieved)

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames drawn by the simulator."""
        from purejaxppo.video import charts

        render = _renderer(self.classic, BLOCK_SIZE)
        draw_image = jax.jit(lambda state: _bytes(render(state)))
        for state in states:
            image = np.asarray(draw_image(state))
            yield from charts.grids(image[None], height=height, width=width)


FAMILY = Family(
    about="Craftax and Craftax-Classic: open-world survival games",
    tasks=task_names,
    make_task=make,
    requires="craftax",
    more_options="numeric and boolean parameters of the task",
)
