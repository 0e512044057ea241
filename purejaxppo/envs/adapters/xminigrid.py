"""`xminigrid/`: MiniGrid and XLand tasks, https://github.com/dunnolab/xland-minigrid.

The agent observes a square in front of it. Each tile is a pair of ids, of its kind and colour. Ids
are categories, so the space is a `MultiDiscrete`, which networks read as one-hot vectors. The
reward at the goal depends on the time limit.
"""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.config.plain import whole
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.families import Family
from purejaxppo.envs.options import Option
from purejaxppo.spaces import Dict, Discrete, MultiDiscrete, Space

PARTS = ("direction", "pocket", "rules")
"""Optional entries of an observation."""
XLAND = ("XLand*",)


def _odd(name: str, value: Any) -> int:
    """Return the side length of the agent's view.

    Raises:
        ValueError: the value is not an odd number of at least 3.
    """
    side = whole(value)
    if side is None or side < 3 or side % 2 == 0:
        raise ValueError(f"{name} = {value!r}: must be an odd number of at least 3")
    return side


OPTIONS = {
    "direction": Option(False, "Adds the agent's direction to the observation."),
    "pocket": Option(False, "Adds the object that the agent carries to the observation."),
    "view_size": Option(
        None,
        "Side, in tiles, of the square that the agent sees. An odd number; unset: the task's.",
        parse=_odd,
    ),
    "rules": Option(False, "XLand: adds the goal and the rules to the observation.", tasks=XLAND),
    "benchmark": Option(
        None,
        "XLand: pickle file of rulesets. It can run code: use only files that you trust.",
        kind=str,
        tasks=XLAND,
        refers="path",
    ),
    "ruleset": Option(
        None,
        "XLand: index of the ruleset, from 0. If unset, each episode samples one, and all rulesets "
        "become part of the compiled program.",
        kind=int,
        tasks=XLAND,
    ),
}
BENCHMARKS = "https://huggingface.co/datasets/Howuhh/xland_minigrid"


def task_names() -> list[str]:
    """Return the task names; XLand tasks need a file of rulesets."""
    import xminigrid

    return sorted(xminigrid.registered_environments())


def make(name: str, config: EnvConfig) -> "GridTask":
    """Create the task `name` from `config.options`; see `OPTIONS`.

    Raises:
        ValueError: the rulesets cannot be read.
    """
    import xminigrid

    options = config.options
    settings: dict[str, Any] = (
        {"max_steps": config.max_episode_steps} if config.max_episode_steps else {}
    )
    if "view_size" in options:
        settings["view_size"] = options["view_size"]
    env, params = xminigrid.make(name, **settings)
    parts = tuple(part for part in PARTS if options.get(part))
    if not name.startswith("XLand"):
        return GridTask(env, params, parts)
    return RuledTask(env, params, parts, _rulesets(name, options))


def _rulesets(name: str, options: dict[str, Any]) -> Any:
    """Return the rulesets that the options select, a pytree of arrays [R, ...].

    Raises:
        ValueError: the file is not set or cannot be read, or has no such ruleset.
    """
    from xminigrid.benchmarks import load_benchmark_from_path
    from xminigrid.types import RuleSet

    path = options.get("benchmark")
    if path is None:
        raise ValueError(
            f"env.options.benchmark is missing: xminigrid/{name} needs a file of rulesets, such as "
            f"trivial_21k from {BENCHMARKS}"
        )
    if not Path(path).is_file():
        raise ValueError(f"env.options.benchmark = {path!r}: file not found")
    try:
        benchmark = load_benchmark_from_path(path)
        count = benchmark.num_rulesets()
    except (OSError, EOFError, LookupError, TypeError, ValueError, pickle.PickleError) as error:
        raise ValueError(
            f"env.options.benchmark = {path!r}: not a file of XLand-MiniGrid rulesets"
        ) from error
    selected = slice(None)
    if "ruleset" in options:
        number = options["ruleset"]
        if not 0 <= number < count:
            raise ValueError(
                f"env.options.ruleset = {number}: {path} has the rulesets 0 to {count - 1}"
            )
        selected = slice(number, number + 1)
    arrays = (benchmark.goals, benchmark.rules, benchmark.init_tiles)
    return RuleSet(*(jnp.asarray(np.asarray(x)[selected]) for x in arrays))


class GridTask(BaseTask):
    """One grid world; its state is a `TimeStep` of the simulator."""

    cheap_reset = False  # a reset builds a whole grid
    success_above = 0.0  # only the goal gives a reward

    def __init__(self, env: Any, params: Any, parts: tuple[str, ...]) -> None:
        """Wrap an environment; observations also contain `parts`."""
        from xminigrid.core.constants import NUM_COLORS, NUM_TILES

        self.env, self.params, self.parts = env, params, parts
        self.max_episode_steps = int(params.max_steps)
        self.action = Discrete(int(env.num_actions(params)))
        ids = max(NUM_TILES, NUM_COLORS)  # one size for all: one comparison in the encoder
        spaces: dict[str, Space] = {"tiles": MultiDiscrete((ids,) * (2 * params.view_size**2))}
        if "direction" in parts:
            spaces["direction"] = Discrete(4)
        if "pocket" in parts:
            spaces["pocket"] = MultiDiscrete((ids, ids))
        if "rules" in parts:
            spaces["rules"] = self.rules_space()
        self.observation: Space = Dict.of(spaces) if parts else spaces["tiles"]

    def rules_space(self) -> MultiDiscrete:
        """Return the space of the goal and rules; XLand only."""
        raise NotImplementedError

    def see(self, timestep: Any) -> Obs:
        """Return the observation of a `TimeStep`."""
        state = timestep.state
        arrays = {
            "tiles": timestep.observation,
            "direction": state.agent.direction,
            "pocket": state.agent.pocket,
            "rules": jnp.concatenate([state.goal_encoding, state.rule_encoding.ravel()]),
        }
        obs = {name: arrays[name].astype(jnp.int32) for name in ("tiles", *self.parts)}
        obs["tiles"] = obs["tiles"].ravel()
        return obs if self.parts else obs["tiles"]

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Start an episode; return (TimeStep, obs)."""
        timestep = self.env.reset(self.params, key)
        return timestep, self.see(timestep)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Take a step. The reward at the goal is 1 - 0.9 t / limit, by the limit in `params`."""
        del key
        timestep = self.env.step(self.params, state, action)
        terminated = timestep.discount == 0
        truncated = timestep.last() & ~terminated
        return timestep, TaskStep(self.see(timestep), timestep.reward, terminated, truncated)

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames drawn by the simulator."""
        from xminigrid.rendering.rgb_render import render

        from purejaxppo.video import charts

        sides = states[0].state.grid.shape[:2]
        tile = max(4, min((height - 40) // sides[0], (width - 24) // sides[1]))
        view = self.params.view_size
        for timestep in states:
            state = timestep.state
            image = render(np.asarray(state.grid), state.agent, view, tile)
            yield from charts.grids(image[None], height=height, width=width)


class RuledTask(GridTask):
    """An XLand task; each episode uses one of the rulesets."""

    def __init__(self, env: Any, params: Any, parts: tuple[str, ...], rulesets: Any) -> None:
        """Wrap an environment; `rulesets` is a pytree of arrays [R, ...]."""
        self.rulesets, self.count = rulesets, len(rulesets.goal)
        super().__init__(env, params, parts)

    def rules_space(self) -> MultiDiscrete:
        """Return the space of an encoded goal and rules: integers below one common bound.

        The integers are ids of goals, rules, tiles and colours, and coordinates.
        """
        from xminigrid.core.goals import NUM_GOALS

        sizes = (NUM_GOALS, self.params.height, self.params.width)
        numbers = self.rulesets.goal[0].size + self.rulesets.rules[0].size
        return MultiDiscrete((max(sizes),) * numbers)

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Sample a ruleset and start an episode; return (TimeStep, obs)."""
        key, rule_key = jax.random.split(key)
        number = jax.random.randint(rule_key, (), 0, self.count)
        ruleset = jax.tree.map(lambda x: x[number], self.rulesets)
        timestep = self.env.reset(self.params.replace(ruleset=ruleset), key)
        return timestep, self.see(timestep)


FAMILY = Family(
    about="grid worlds: MiniGrid, XLand",
    tasks=task_names,
    make_task=make,
    requires="xminigrid",
    options=OPTIONS,
)
