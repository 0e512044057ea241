"""`jaxmarl/`: multi-agent tasks of https://github.com/FLAIROX/JaxMARL (Rutherford et al. 2024).

The adapter uses the raw environments, without JaxMARL's auto-reset. JaxMARL returns `done` at the
time limit; here agents are truncated.

Episodes end for all agents at the same step. Dead units of SMAX still receive rewards for what
their allies do. Their rows stay valid, and "stop" is their only allowed action.
"""

import contextlib
import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.config.hints import did_you_mean
from purejaxppo.config.schema import EnvConfig, Scalar
from purejaxppo.envs.adapted import BaseTask, ParameterValues, trace
from purejaxppo.envs.base import MultiStep
from purejaxppo.envs.families import Family
from purejaxppo.envs.host.workers.gym_spaces import convert
from purejaxppo.envs.options import Option, checked, from_values, of_task, split
from purejaxppo.envs.quiet import quiet
from purejaxppo.envs.teams import GLOBAL_STATE
from purejaxppo.envs.worlds import GLOBAL_STATE_OPTION
from purejaxppo.envs.wrappers import TimeLimit
from purejaxppo.spaces import MASK, Box, Dict, Discrete, Space

CLASSES = {
    "MPE_simple_v3": "SimpleMPE",
    "MPE_simple_adversary_v3": "SimpleAdversaryMPE",
    "MPE_simple_crypto_v3": "SimpleCryptoMPE",
    "MPE_simple_facmac_v1": "SimpleFacmacMPE",
    "MPE_simple_facmac_3a_v1": "SimpleFacmacMPE3a",
    "MPE_simple_facmac_6a_v1": "SimpleFacmacMPE6a",
    "MPE_simple_facmac_9a_v1": "SimpleFacmacMPE9a",
    "MPE_simple_push_v3": "SimplePushMPE",
    "MPE_simple_reference_v3": "SimpleReferenceMPE",
    "MPE_simple_speaker_listener_v4": "SimpleSpeakerListenerMPE",
    "MPE_simple_spread_v3": "SimpleSpreadMPE",
    "MPE_simple_tag_v3": "SimpleTagMPE",
    "MPE_simple_world_comm_v3": "SimpleWorldCommMPE",
    "coin_game": "CoinGame",
    "hanabi": "Hanabi",
    "jaxnav": "JaxNav",
    "overcooked": "Overcooked",
    "overcooked_v2": "OvercookedV2",
    "switch_riddle": "SwitchRiddle",
}
"""Classes of `jaxmarl.environments`."""
SMAX_MAPS = (
    *("3m", "8m", "25m", "2s3z", "3s5z", "3s_vs_5z", "5m_vs_6m", "6h_vs_8z", "10m_vs_11m"),
    *("27m_vs_30m", "3s5z_vs_3s6z", "smacv2_5_units", "smacv2_10_units", "smacv2_20_units"),
)
"""Maps of `SMAX-MAP`, against units that attack the nearest one (`HeuristicEnemySMAX`)."""
SMAX = "SMAX-"
SHAPED = "shaped_reward"
LAYOUT = "layout"
KITCHENS = ("overcooked", "overcooked_v2")
OPTIONS = {
    GLOBAL_STATE: GLOBAL_STATE_OPTION,
    LAYOUT: Option("cramped_room", "Overcooked: layout of the kitchen.", tasks=KITCHENS),
    SHAPED: Option(0.0, "Overcooked: weight of the shaped reward.", tasks=KITCHENS),
    "attack_mode": Option(
        "closest",
        "SMAX: units that enemies attack.",
        choices=("closest", "random"),
        tasks=(f"{SMAX}*",),
    ),
    "act_type": Option(
        "Continuous",
        "JaxNav: kind of actions.",
        choices=("Continuous", "Discrete"),
        tasks=("jaxnav",),
    ),
}
TERMINATING = frozenset({"hanabi", "jaxnav", "switch_riddle"})
"""Tasks, in addition to SMAX, that can terminate."""
CHEAP_RESETS = frozenset({"overcooked_v2", "switch_riddle"})
"""Tasks with a constant start, or with episodes of a few steps."""
NOT_OPTIONS = frozenset({"max_steps", "num_allies", "num_enemies", "do_sep_reward", "evaporating"})
NOT_OPTIONS |= {
    "smacv2_position_generation",
    "smacv2_unit_type_generation",
    "dim_c",
    "dim_p",
    "rad",
}
"""Arguments that are not options: the limit is `env.max_episode_steps`, the map sets the units of
SMAX, and JaxMARL ignores the others or does not implement them."""
NEVER = 2**30
"""A time limit that no episode reaches."""
OPTION_ERRORS = (
    *(ArithmeticError, AssertionError, LookupError, NameError, NotImplementedError),
    *(TypeError, ValueError),
)
"""What JaxMARL raises for invalid options."""


def _quiet() -> contextlib.AbstractContextManager[None]:
    """Suppress the output and warnings of JaxMARL."""
    return quiet(
        ("OvercookedV2 is now released", DeprecationWarning),
        ("max_dist_to_goal", UserWarning),
        ("scatter inputs have incompatible types", FutureWarning),
    )


def _environments() -> Any:
    """Return the module `jaxmarl.environments`.

    The import skips its Brax tasks, which this family does not offer. They would import Brax and
    MuJoCo, and replace `sys.stdout` and `sys.stderr`.
    """
    name, brax = "jaxmarl.environments", "jaxmarl.environments.mabrax"
    with _quiet():
        if name in sys.modules:
            return sys.modules[name]
        sys.modules[brax] = None  # type: ignore[assignment]
        try:
            from jaxmarl import environments
        finally:
            del sys.modules[brax]
    return environments


def task_names() -> list[str]:
    """Return the task names without importing JaxMARL."""
    return [*CLASSES, *(SMAX + name for name in SMAX_MAPS)]


def make(name: str, config: EnvConfig) -> BaseTask:
    """Create the JaxMARL task `name`; options not in `OPTIONS` are arguments of its class.

    Raises:
        ValueError: an unknown option or an invalid value.
    """
    options = _checked(name, config.options)
    weight = float(options.pop(SHAPED, 0.0))
    try:
        with _quiet():
            env = _make_env(name, options)
            limit = _unlimit(name, env, config.max_episode_steps)
            task = JaxMarlTask(env, name, limit, weight)
            if config.options:  # some invalid ones fail only in a step
                trace(task)
    except OPTION_ERRORS as error:
        problem = str(error) or "rejected by JaxMARL"
        raise ValueError(f"env.options for jaxmarl/{name}: {problem}") from error
    # A wrapper that repeats actions reaches the simulator's limit before the outer time limit.
    return TimeLimit(task, limit) if config.wrappers and name == "jaxnav" else task


def _is_kitchen(name: str) -> bool:
    return name in KITCHENS


def _is_smax(name: str) -> bool:
    return name.startswith(SMAX)


def _layouts(name: str) -> dict[str, Any]:
    """Return the layouts of either version of Overcooked by name."""
    environments = _environments()
    if name == "overcooked":
        return environments.overcooked_layouts
    return environments.overcooked_v2_layouts


def _defaults(name: str) -> dict[str, Scalar]:
    """Return the number, bool and string arguments of a task's class with their defaults."""
    environments = _environments()
    classes = [environments.HeuristicEnemySMAX, environments.SMAX]
    if not _is_smax(name):
        classes = [getattr(environments, CLASSES[name])]
    return {
        option: parameter.default
        for env_class in classes
        for option, parameter in inspect.signature(env_class).parameters.items()
        if type(parameter.default) in (bool, int, float, str)
        and option not in NOT_OPTIONS | OPTIONS.keys()
    }


def _checked(name: str, options: dict[str, Scalar]) -> dict[str, Scalar]:
    """Return the options in the types of their defaults; raise ValueError for invalid ones."""
    declared, others = split(options, of_task(OPTIONS, name))
    typed = checked(f"jaxmarl/{name}", others, from_values(_defaults(name)), of_task(OPTIONS, name))
    if LAYOUT in options and options[LAYOUT] not in _layouts(name):
        layouts = _layouts(name)
        hint = did_you_mean(str(options[LAYOUT]), layouts, f"Layouts: {', '.join(layouts)}.")
        raise ValueError(f"env.options.{LAYOUT} = {options[LAYOUT]!r}: unknown layout. {hint}")
    return {**declared, **typed}


def _make_env(name: str, options: dict[str, Any]) -> Any:
    """Create the JaxMARL environment."""
    environments = _environments()
    if _is_smax(name):
        from jaxmarl.environments.smax import map_name_to_scenario

        scenario = map_name_to_scenario(name.removeprefix(SMAX))
        return environments.HeuristicEnemySMAX(**options, scenario=scenario)
    if _is_kitchen(name):
        layout = _layouts(name)[options.get(LAYOUT, "cramped_room")]
        options = {**options, LAYOUT: layout}
    return getattr(environments, CLASSES[name])(**options)


def _unlimit(name: str, env: Any, limit: int) -> int:
    """Disable the time limit of an environment; return `limit`, or its own limit if that is 0."""
    inner = getattr(env, "_env", env)
    if name == "coin_game":  # several games of equal length
        if min(env.num_inner_steps, env.num_outer_steps) < 1:
            raise ValueError("num_inner_steps and num_outer_steps must be at least 1.")
        return limit or env.num_inner_steps * env.num_outer_steps
    limit = limit or getattr(inner, "max_steps", 0)
    if _is_kitchen(name):
        inner.max_steps = limit  # agents observe that 40 steps remain; `done` is ignored
    elif name == "jaxnav":
        inner.max_steps = limit + 1  # observed: the elapsed fraction of the limit
    elif hasattr(inner, "max_steps"):
        inner.max_steps = NEVER
    return limit


class JaxMarlTask(BaseTask):
    """One JaxMARL environment without its auto-reset, a `MultiTask`.

    Observations are float32 arrays, and int8 for Overcooked. SMAX and Hanabi add an `action_mask`.
    An agent of Hanabi that waits for its turn has one allowed action.
    """

    def __init__(self, env: Any, name: str, max_episode_steps: int, weight: float) -> None:
        """Wrap an environment; trace its reset, because some of its spaces are wrong."""
        self.env, self.name, self.weight = env, name, weight
        self.is_smax, self.is_kitchen = _is_smax(name), _is_kitchen(name)
        self.max_episode_steps = max_episode_steps
        self.cheap_reset = name in CHEAP_RESETS
        self.success_above = self._success_threshold() if self.is_smax else None
        self.agents: tuple[str, ...] = tuple(env.agents)
        self.action: tuple[Space, ...] = tuple(
            convert(env.action_space(agent)) for agent in self.agents
        )
        self._masks: Callable[[Any], Any] | None = None
        if self.name == "hanabi":
            self._masks = env.get_legal_moves
        elif self.is_smax and all(isinstance(space, Discrete) for space in self.action):
            self._masks = env.get_avail_actions
        state, obs = jax.eval_shape(self.reset, jax.random.key(0))
        self.observation: tuple[Space, ...] = tuple(self._space(agent_obs) for agent_obs in obs)
        if self.is_smax or self.is_kitchen:
            self.state_space = Box(jax.eval_shape(self.global_state, state).shape)

    def _space(self, obs: Any) -> Space:
        if self._masks is None:
            return Box(obs.shape, dtype=str(obs.dtype))
        parts: dict[str, Space] = {"obs": Box(obs["obs"].shape)}
        parts[MASK] = Box(obs[MASK].shape, 0.0, 1.0, "uint8")
        return Dict.of(parts)

    def _observe(self, obs: dict[str, Any], state: Any) -> tuple[Obs, ...]:
        arrays = tuple(self._array(obs[agent]) for agent in self.agents)
        if self._masks is None:
            return arrays
        masks = self._masks(state)
        return tuple(
            {"obs": array, MASK: jnp.asarray(masks[agent]).astype(jnp.uint8)}
            for agent, array in zip(self.agents, arrays, strict=True)
        )

    def _array(self, obs: Any) -> jax.Array:
        """Return the observation of an agent; for Overcooked [longer side, shorter side, planes].

        Overcooked observations are small counts; int8 needs a quarter of the memory of float32.
        """
        array = jnp.asarray(obs).astype(jnp.int8 if self.is_kitchen else jnp.float32)
        if self.is_kitchen and array.shape[0] < array.shape[1]:
            return jnp.swapaxes(array, 0, 1)  # `network.channels: auto` needs this order
        return array

    @cached_property
    def parameters(self) -> Mapping[str, float]:
        """Weight of the shaped reward of Overcooked; a curriculum may lower it to 0."""
        return {SHAPED: self.weight} if self.is_kitchen else {}

    def adjusted(self, values: ParameterValues) -> Self:
        """Return the task with another weight of the shaped reward."""
        task = copy.copy(self)
        task.weight = values.get(SHAPED, self.weight)
        return task

    def reset(self, key: Key) -> tuple[EnvState, tuple[Obs, ...]]:
        """Start an episode; return (JaxMARL state, A observations)."""
        with _quiet():
            obs, state = self.env.reset(key)
        return state, self._observe(obs, state)

    def step(
        self, key: Key, state: EnvState, action: tuple[EnvAction, ...]
    ) -> tuple[EnvState, MultiStep]:
        """Take a step; the time limit is added by a wrapper."""
        actions = dict(zip(self.agents, action, strict=True))
        with _quiet():
            obs, state, rewards, dones, info = self.env.step_env(key, state, actions)
        reward = self._stack(rewards)
        if self.is_kitchen:
            reward = reward + self.weight * self._stack(info[SHAPED])
        over = jnp.zeros((), bool)
        if self.is_smax or self.name in TERMINATING:
            over = jnp.asarray(dones["__all__"], bool)
        terminated = jnp.broadcast_to(over, (len(self.agents),))
        obs = self._observe(obs, state)
        return state, MultiStep(obs, reward, terminated, jnp.zeros((), bool))

    def _success_threshold(self) -> float | None:
        """Return a threshold between the returns of won battles in SMAX and all others.

        Damage is rewarded with up to 1 in total, or 0 with `use_self_play_reward`. A won battle
        earns all of it, plus the bonus.
        """
        inner = getattr(self.env, "_env", self.env)
        bonus = float(inner.won_battle_bonus)
        damage = 0.0 if inner.use_self_play_reward else 1.0
        return damage + bonus / 2 if bonus > 0 else None

    def _stack(self, values: dict[str, Any]) -> jax.Array:
        """Stack one number per agent to float32 [A]."""
        return jnp.stack([jnp.asarray(values[agent], jnp.float32) for agent in self.agents])

    def global_state(self, state: Any) -> jax.Array:
        """Return features of all units in SMAX, or all observations in Overcooked; float [n]."""
        if self.is_smax:
            return jnp.asarray(self.env.get_world_state(state), jnp.float32)
        obs = self.env.get_obs(state)
        arrays = [self._array(obs[agent]).ravel() for agent in self.agents]
        return jnp.concatenate(arrays).astype(jnp.float32)

    @cached_property
    def frame_rate(self) -> float:
        """Steps per second of a video."""
        if self.is_smax:
            return 1.0 / (self.env.time_per_step * self.env.world_steps_per_env_step)
        return 1.0 / getattr(self.env, "dt", 0.2)

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames: discs from above, Overcooked as JaxMARL draws it, numbers for others."""
        from purejaxppo.video import charts, discs
        from purejaxppo.video.canvas import fit

        if self.is_kitchen:
            return (fit(tiles, height, width) for tiles in self._tiles(states))
        name = self.name.partition("_")[0].partition("-")[0].lower()
        if name in ("jaxnav", "mpe", "smax"):
            return discs.frames(name, self.env, states, height=height, width=width)
        if name == "hanabi":
            states = [state.fireworks for state in states]  # the highest rank of each colour
        return charts.frames(states, height=height, width=width)

    def _tiles(self, states: Sequence[EnvState]) -> Iterator[np.ndarray]:
        """Yield the images that JaxMARL draws of a kitchen."""
        with _quiet():
            from jaxmarl.viz.overcooked_v2_visualizer import OvercookedV2Visualizer
            from jaxmarl.viz.overcooked_visualizer import OvercookedVisualizer

        if self.name == "overcooked_v2":
            visualizer = OvercookedV2Visualizer()
            yield from (np.asarray(visualizer._render_state(state)) for state in states)
            return
        edge = self.env.agent_view_size - 1
        for state in states:
            grid = np.asarray(state.maze_map)[edge:-edge, edge:-edge]
            yield OvercookedVisualizer._render_grid(
                grid, agent_dir_idx=state.agent_dir_idx, agent_inv=state.agent_inv
            )


FAMILY = Family(
    about="multi-agent: MPE, SMAX, Overcooked, ...",
    tasks=task_names,
    make_task=make,
    requires="jaxmarl",
    options=OPTIONS,
    more_options="number, boolean and string arguments of the task's class",
    not_options={"max_steps": "use env.max_episode_steps"},
)
