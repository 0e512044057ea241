"""`jumanji/`: puzzles, packing, routing and games, https://github.com/instadeepai/jumanji.

Sokoban is left out, since it downloads its levels.
"""

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.config.schema import EnvConfig, Scalar
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.families import Family
from purejaxppo.envs.options import checked, from_values
from purejaxppo.envs.quiet import quiet
from purejaxppo.envs.vectorize import cast_to_space
from purejaxppo.envs.wrappers import FlatActions
from purejaxppo.spaces import MASK, Box, Dict, Discrete, MultiDiscrete, Space

TIME_LIMITS = {
    "BinPack-v2": 100,
    "CVRP-v1": 100,
    "Cleaner-v0": 0,
    "Connector-v3": 0,
    "FlatPack-v0": 100,
    "Game2048-v1": 5_000,
    "GraphColoring-v1": 100,
    "JobShop-v0": 500,
    "Knapsack-v1": 100,
    "LevelBasedForaging-v0": 0,
    "MMST-v0": 0,
    "Maze-v0": 0,
    "Minesweeper-v0": 100,
    "MultiCVRP-v0": 200,
    "PacMan-v1": 0,
    "RobotWarehouse-v0": 0,
    "RubiksCube-partly-scrambled-v0": 0,
    "RubiksCube-v0": 0,
    "SearchAndRescue-v0": 0,
    "SlidingTilePuzzle-v0": 0,
    "Snake-v1": 0,
    "Sudoku-v0": 100,
    "Sudoku-very-easy-v0": 100,
    "TSP-v1": 100,
    "Tetris-v0": 0,
}
"""Of tasks that have none themselves, longer than their episodes last; 0: the simulator's own."""
CHEAP_RESETS = frozenset({"PacMan-v1"})
"""Tasks whose resets are nearly constant, so that one costs less than to fetch a start."""
WHOLE = frozenset({"PacMan-v1"})
"""Tasks whose observations and rewards are integers until they have been checked (`TaskStep`)."""
EXPENSIVE_RESETS = frozenset(
    {"Cleaner-v0", "Connector-v3", "MMST-v0", "Maze-v0", "RubiksCube-v0", "SlidingTilePuzzle-v0"}
)
"""Tasks of the dearest resets, and of long episodes: a quarter of the starts is drawn before each
rollout."""
PICTURES = ("board", "grid", "puzzle")
"""Parts of observations that are seen from above: [height, width, planes]."""
MOST_KINDS = 40
"""Integers of at most so many values are told apart; others are numbers in [0, 1]."""


def _jumanji() -> Any:
    import jumanji

    return jumanji


def _quietly() -> contextlib.AbstractContextManager[None]:
    """Without warnings of what JAX will refuse some day, as of BinPack's scatters."""
    return quiet(("", FutureWarning))


def task_names() -> list[str]:
    """The tasks of this family that run without downloading anything."""
    return list(TIME_LIMITS)


def make(name: str, config: EnvConfig) -> "JumanjiTask | FlatActions":
    """The jumanji task called `name`; `config.options` are plain arguments of its class.

    Raises:
        ValueError: an option that its class does not take, or an invalid value.
    """
    kind = type(_made(name, {}))
    options = _checked(name, kind, config.options)
    env = _made(name, options)
    limit = config.max_episode_steps or TIME_LIMITS[name] or int(env.time_limit)
    if not TIME_LIMITS[name]:
        # The simulator calls its limit a termination, so that ours has to come first. By that
        # SearchAndRescue, whose rewards shrink with time, pays up to 1 / (limit + 1) more.
        env = _made(name, {**options, "time_limit": limit + 1})
    task = JumanjiTask(env, limit)
    task.cheap_reset = name in CHEAP_RESETS
    task.whole = name in WHOLE
    task.fresh_fraction = 0.25 if name in EXPENSIVE_RESETS else 1.0
    return FlatActions(task) if isinstance(task.action, Box) else task


def _made(name: str, options: Mapping[str, Any]) -> Any:
    try:
        return _jumanji().make(name, **options)
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"env.options for jumanji/{name}: {error}") from error


def _checked(name: str, kind: type, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    arguments = inspect.signature(kind).parameters.values()
    known = {
        argument.name: argument.default
        for argument in arguments
        if type(argument.default) in (bool, int, float) and argument.name != "time_limit"
    }
    return checked(f"jumanji/{name}", options, from_values(known))


class Part(NamedTuple):
    """One array of an observation in our form."""

    space: Space
    path: tuple[str, ...]
    """Fields of the simulator's observation that lead to it."""
    read: Callable[[jax.Array], jax.Array]
    """Integers may stay integers."""


def parts(spec: Any, path: tuple[str, ...] = ()) -> dict[str, Part]:
    """The arrays of an observation by name, `player_locations_x` for nested ones, without mask.

    The count of steps is left out where it is that of a time limit, which is no business of a
    policy's: episodes are truncated.
    """
    found: dict[str, Part] = {}
    for name, inner in spec._specs.items():
        if hasattr(inner, "_specs") and not hasattr(inner, "shape"):
            found |= parts(inner, (*path, name))
        elif name not in (MASK, "step_count"):
            found["_".join((*path, name))] = _part(inner, (*path, name))
    return found


def _part(spec: Any, path: tuple[str, ...]) -> Part:
    """An array's space, by its bounds, and how it is brought there."""
    picture = path[-1] in PICTURES and len(spec.shape) > 1
    shape = spec.shape if picture else (math.prod(spec.shape),)
    low, high = _bounds(spec, path[-1])
    if picture and len(shape) == 2:
        shape = (*shape, 1)
    if jnp.issubdtype(spec.dtype, jnp.floating):
        return Part(Box(shape, low, high), path, lambda x: x.reshape(shape).astype(jnp.float32))
    if not np.isfinite(high):
        return Part(Box(shape), path, lambda x: x.reshape(shape))
    count = int(high - low) + 1
    if count > MOST_KINDS:
        return Part(
            Box(shape, 0.0, 1.0),
            path,
            lambda x: ((x - low) / (high - low)).reshape(shape).astype(jnp.float32),
        )
    if count == 2:
        whole = spec.dtype != bool and low == 0
        read = (lambda x: x.reshape(shape)) if whole else (lambda x: x.reshape(shape) > low)
        return Part(Box(shape, 0.0, 1.0, "bool"), path, read)
    if picture:
        planes = (*shape[:2], count)
        kinds = jnp.arange(count) + int(low)
        return Part(Box(planes, 0.0, 1.0, "bool"), path, lambda x: x[..., None] == kinds)
    if spec.shape == ():
        return Part(Discrete(count), path, lambda x: (x - int(low)).astype(jnp.int32))
    many = MultiDiscrete((count,) * shape[0])
    return Part(many, path, lambda x: (x - int(low)).astype(jnp.int32).ravel())


def _bounds(spec: Any, name: str) -> tuple[float, float]:
    """The smallest and the largest value of an array; infinite where nobody says."""
    if spec.dtype == bool:
        return 0.0, 1.0
    if hasattr(spec, "minimum"):
        nowhere = name == "position"  # -1 before a tour's first city, which TSP's bounds leave out
        return float(np.min(spec.minimum)) - nowhere, float(np.max(spec.maximum))
    if name == "board":  # of 2048: exponents, of which no tile's is larger than there are tiles
        return 0.0, float(math.prod(spec.shape) + 1)
    return -math.inf, math.inf


def actions(spec: Any, mask: tuple[int, ...] | None) -> tuple[Space, Callable[..., jax.Array]]:
    """Our space of a task's actions, and how one becomes the simulator's.

    Several choices with one mask of all their combinations, or none, are one choice of a
    combination. With a mask for each, [choices, n], they are a `MultiDiscrete`.
    """
    if jnp.issubdtype(spec.dtype, jnp.floating):
        low, high = (np.broadcast_to(x, spec.shape) for x in (spec.minimum, spec.maximum))
        return Box.between(low, high, "float32"), lambda action: action
    if spec.shape == ():
        return Discrete(int(spec.num_values)), lambda action: action.astype(spec.dtype)
    choices = tuple(int(n) + 1 for n in np.broadcast_to(spec.maximum, spec.shape))
    if mask in (None, choices):

        def combination(action: jax.Array) -> jax.Array:
            return jnp.stack(jnp.unravel_index(action, choices)).astype(spec.dtype)

        return Discrete(math.prod(choices)), combination
    assert mask is not None
    return MultiDiscrete(mask[-1:] * mask[0]), lambda action: action.astype(spec.dtype)


class JumanjiTask(BaseTask):
    """One jumanji environment, inside of its time limit.

    Rewards of several agents under one policy are summed. Their game ends when it does for all.
    """

    frame_rate = 8.0
    cheap_reset = False
    whole = False

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        """Adapt a jumanji environment.

        Args:
            env: the environment, whose own limit is never reached.
            max_episode_steps: the time limit.
        """
        self.env = env
        self.max_episode_steps = max_episode_steps
        spec = env.observation_spec
        mask = getattr(spec, MASK, None)
        self.parts = parts(spec)
        self.action, self._to_jumanji = actions(env.action_spec, mask and tuple(mask.shape))
        spaces = {name: part.space for name, part in self.parts.items()}
        if mask is not None:
            spaces[MASK] = Box((math.prod(mask.shape),), 0.0, 1.0, "uint8")
        self.masked = mask is not None
        self.observation: Space = Dict.of(spaces)

    def _obs(self, seen: Any) -> dict[str, jax.Array]:
        out = {}
        for name, part in self.parts.items():
            value = seen
            for field in part.path:
                value = getattr(value, field)
            out[name] = part.read(jnp.asarray(value))
            if not self.whole:
                out[name] = cast_to_space(out[name], part.space)
        if self.masked:
            out[MASK] = self._mask(seen.action_mask)
        return out

    def _mask(self, mask: jax.Array) -> jax.Array:
        """The mask, flat; of a choice of which nothing is allowed, as of FlatPack's end, all is."""
        each = mask if isinstance(self.action, MultiDiscrete) else mask.ravel()
        nothing = ~jnp.any(each, axis=-1, keepdims=True)
        return (each | nothing).ravel().astype(jnp.uint8)

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """A key -> (jumanji state, obs)."""
        with _quietly():
            state, first = self.env.reset(key)
        return state, self._obs(first.observation)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """One step; an end without discount is the task's own."""
        del key
        copy = jax.tree.map(lambda x: x, state)  # some write into the state that they are given
        with _quietly():
            state, out = self.env.step(copy, self._to_jumanji(action))
        over = jnp.all(out.discount == 0)
        reward = jnp.sum(out.reward).astype(jnp.int32 if self.whole else jnp.float32)
        return state, TaskStep(
            self._obs(out.observation), reward, out.last() & over, out.last() & ~over
        )

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Frames by the simulator's own viewer, square on white, without a screen."""
        import matplotlib.pyplot as plt

        from purejaxppo.video.canvas import fit

        names = ("_viewer", "_env_viewer", "viewer")
        viewer = next(getattr(self.env, name) for name in names if hasattr(self.env, name))
        drawn: list[np.ndarray] = []

        def keep(figure: Any) -> None:  # not every `render` gives back what its viewer does
            if type(viewer).__name__ == "MMSTViewer":  # it leaves its graph outside of the axes
                figure.axes[0].set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
            drawn.append(np.array(viewer._display_rgb_array(figure))[..., :3])

        viewer._display = keep
        side = min(height, width)
        viewer.figure_size = (side / 100, side / 100)
        before = plt.get_backend()
        plt.switch_backend("agg")
        try:
            with plt.ion(), plt.rc_context({"figure.dpi": 100}):  # else figures ask for a window
                for state in states:
                    self.env.render(jax.device_put(state))  # some compute with `.at`
                    yield fit(drawn.pop(), height, width, "white")
        finally:
            self.env.close()
            plt.switch_backend(before)


FAMILY = Family(
    about="puzzles, packing, routing; with action masks",
    tasks=task_names,
    make_task=make,
    requires="jumanji",
    more_options="numeric and boolean arguments of the task's class",
)
