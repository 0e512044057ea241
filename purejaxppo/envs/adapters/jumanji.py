"""`jumanji/`: puzzles, packing, routing, games and robots on grids.

Source: https://github.com/instadeepai/jumanji

Sokoban is not included, because it downloads its levels.
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
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask, trace
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.families import Family
from purejaxppo.envs.options import checked, from_values
from purejaxppo.envs.quiet import quiet
from purejaxppo.envs.vectorize import cast_to_space
from purejaxppo.envs.wrappers import TimeLimit
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
"""Time limits of tasks without one, longer than their episodes; 0: the limit of the simulator."""
CHEAP_RESETS = frozenset({"PacMan-v1"})
"""Tasks whose reset costs less than fetching a stored start."""
INTEGER_TASKS = frozenset({"PacMan-v1"})
"""Tasks that return integer observations and rewards; they are cast later, see `TaskStep`."""
EXPENSIVE_RESETS = frozenset(
    {"Cleaner-v0", "Connector-v3", "MMST-v0", "Maze-v0", "RubiksCube-v0", "SlidingTilePuzzle-v0"}
)
"""Tasks with expensive resets and long episodes: rollouts sample a quarter of the first states."""
WITHOUT_GENERATOR_OPTIONS = frozenset({"MMST-v0"})
"""Tasks whose generator depends on the time limit; the generator's arguments are not options."""
GRIDS = ("board", "grid", "puzzle")
"""Names of grid observations, [height, width, planes]."""
MAX_ONE_HOT = 40
"""Integers with at most this many values are discrete; others are scaled to [0, 1]."""


def _jumanji() -> Any:
    import jumanji

    return jumanji


def _ignore_future_warnings() -> contextlib.AbstractContextManager[None]:
    """Ignore warnings about deprecated JAX calls, such as the scatter operations in BinPack."""
    return quiet(("", FutureWarning))


def task_names() -> list[str]:
    """Return the names of the tasks that need no download."""
    return list(TIME_LIMITS)


def make(name: str, config: EnvConfig) -> BaseTask:
    """Create the jumanji task `name`; `config.options` are arguments of its class and generator.

    Raises:
        ValueError: an unknown option, an invalid value, or an option that needs a time limit.
    """
    options = _read_options(name, config)
    with _invalid_options(name, config.options):
        task = _make_task(name, options, config.max_episode_steps)
        if options:
            trace(task)
    task.cheap_reset = name in CHEAP_RESETS
    task.keeps_integers = name in INTEGER_TASKS
    task.fresh_fraction = 0.25 if name in EXPENSIVE_RESETS else 1.0
    if config.wrappers and not TIME_LIMITS[name]:
        # A wrapper that repeats actions reaches the simulator's limit before the outer time limit.
        return TimeLimit(task, task.max_episode_steps)
    return task


def _make_task(name: str, options: Mapping[str, Any], max_episode_steps: int) -> "JumanjiTask":
    env = _make_env(name, options)
    limit = max_episode_steps or TIME_LIMITS[name] or int(env.time_limit)
    if not TIME_LIMITS[name]:
        # The simulator reports its limit as a termination, so the wrapper must truncate before.
        # Rewards of SearchAndRescue shrink with time; they grow by up to 1 / (limit + 1).
        env = _make_env(name, {**options, "time_limit": limit + 1})
    return JumanjiTask(env, limit)


def _make_env(name: str, options: Mapping[str, Any]) -> Any:
    return _jumanji().make(name, **options)


def _read_options(name: str, config: EnvConfig) -> dict[str, Any]:
    """Check `config.options` and return the keyword arguments of the task's class.

    Options of the generator become the argument `generator`.
    """
    env = _make_env(name, {})
    parameters = inspect.signature(type(env)).parameters
    class_defaults = _numbers({key: argument.default for key, argument in parameters.items()})
    class_defaults.pop("time_limit", None)
    # Jumanji's tasks have no common name for their generator.
    generator = vars(env).get("generator", vars(env).get("_generator"))
    arguments = _arguments(generator)
    generator_defaults = {} if name in WITHOUT_GENERATOR_OPTIONS else _numbers(arguments)
    defaults = from_values(class_defaults | generator_defaults)
    options = checked(f"jumanji/{name}", config.options, defaults)
    changed = {key: value for key, value in options.items() if key in generator_defaults}
    if not changed:
        return options
    limit = TIME_LIMITS[name]
    if limit and not config.max_episode_steps:
        raise ValueError(
            f"env.max_episode_steps = 0: the default limit of jumanji/{name}, {limit:,} steps, "
            f"may be too short with env.options.{next(iter(changed))}. Set a limit of at least "
            "the longest episode."
        )
    result: dict[str, Any] = {key: value for key, value in options.items() if key not in changed}
    with _invalid_options(name, generator_defaults | changed):
        result["generator"] = type(generator)(**(arguments | changed))
    return result


def _arguments(generator: Any) -> dict[str, Any]:
    """Return the arguments of a generator of initial states with their current values."""
    if generator is None:
        return {}
    stored = {key.removeprefix("_"): value for key, value in vars(generator).items()}
    parameters = inspect.signature(type(generator)).parameters
    # The generator derives arguments with the default None from others.
    return {
        key: stored[key]
        for key, argument in parameters.items()
        if key in stored and argument.default is not None
    }


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if type(value) in (bool, int, float)}


@contextlib.contextmanager
def _invalid_options(name: str, values: Mapping[str, Any]) -> Iterator[None]:
    """Raise ValueError with the values for errors of the simulator."""
    try:
        yield
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        used = ", ".join(f"{key} {value}" for key, value in values.items())
        raise ValueError(f"env.options for jumanji/{name}: {problem}. Values: {used}.") from error


class Part(NamedTuple):
    """One array of an observation, for the policy."""

    space: Space
    path: tuple[str, ...]
    """Path of fields in the simulator's observation."""
    read: Callable[[jax.Array], jax.Array]
    """The simulator's array -> the policy's; integers may stay integers."""


def parts(spec: Any, path: tuple[str, ...] = ()) -> dict[str, Part]:
    """Return the arrays of an observation by name, without the mask.

    Names of nested arrays are joined, such as `player_locations_x`. The step count of a time limit
    is left out, because episodes are truncated.
    """
    result: dict[str, Part] = {}
    for name, inner in spec._specs.items():
        if hasattr(inner, "_specs") and not hasattr(inner, "shape"):
            result |= parts(inner, (*path, name))
        elif name not in (MASK, "step_count"):
            result["_".join((*path, name))] = _part(inner, (*path, name))
    return result


def _part(spec: Any, path: tuple[str, ...]) -> Part:
    """Return the space of an array, by its bounds, and its conversion."""
    is_grid = path[-1] in GRIDS and len(spec.shape) > 1
    shape = spec.shape if is_grid else (math.prod(spec.shape),)
    low, high = _bounds(spec, path[-1])
    if is_grid and len(shape) == 2:
        shape = (*shape, 1)
    if jnp.issubdtype(spec.dtype, jnp.floating):
        return Part(Box(shape, low, high), path, lambda x: x.reshape(shape).astype(jnp.float32))
    if not np.isfinite(high):
        return Part(Box(shape), path, lambda x: x.reshape(shape))
    count = int(high - low) + 1
    if count > MAX_ONE_HOT:
        return Part(
            Box(shape, 0.0, 1.0),
            path,
            lambda x: ((x - low) / (high - low)).reshape(shape).astype(jnp.float32),
        )
    if count == 2:
        is_binary = spec.dtype != bool and low == 0
        read = (lambda x: x.reshape(shape)) if is_binary else (lambda x: x.reshape(shape) > low)
        return Part(Box(shape, 0.0, 1.0, "bool"), path, read)
    if is_grid:
        planes = (*shape[:2], count)
        kinds = jnp.arange(count) + int(low)
        return Part(Box(planes, 0.0, 1.0, "bool"), path, lambda x: x[..., None] == kinds)
    if spec.shape == ():
        return Part(Discrete(count), path, lambda x: (x - int(low)).astype(jnp.int32))
    space = MultiDiscrete((count,) * shape[0])
    return Part(space, path, lambda x: (x - int(low)).astype(jnp.int32).ravel())


def _bounds(spec: Any, name: str) -> tuple[float, float]:
    """Return the smallest and largest value of an array; infinite if unknown."""
    if spec.dtype == bool:
        return 0.0, 1.0
    if hasattr(spec, "minimum"):
        has_minus_one = name == "position"  # TSP: -1 before the first city, not in its bounds
        return float(np.min(spec.minimum)) - has_minus_one, float(np.max(spec.maximum))
    if name == "board":  # 2048: exponents, at most the number of tiles + 1
        return 0.0, float(math.prod(spec.shape) + 1)
    return -math.inf, math.inf


def actions(spec: Any, mask: tuple[int, ...] | None) -> tuple[Space, Callable[..., jax.Array]]:
    """Return the action space for the policy, and the conversion to the simulator's actions.

    Several integers without a mask, or with a mask of all combinations, become one `Discrete` of
    combinations. With one mask per integer, [choices, n], they become a `MultiDiscrete`.
    """
    if jnp.issubdtype(spec.dtype, jnp.floating):
        low, high = (np.broadcast_to(x, spec.shape) for x in (spec.minimum, spec.maximum))
        return Box.between(low, high, "float32"), lambda action: action
    if spec.shape == ():
        return Discrete(int(spec.num_values)), lambda action: action.astype(spec.dtype)
    choices = tuple(int(n) + 1 for n in np.broadcast_to(spec.maximum, spec.shape))
    if mask == (2, 2):
        raise ValueError("a mask of 2 x 2 actions is ambiguous. Use larger sizes.")
    if mask in (None, choices):

        def combination(action: jax.Array) -> jax.Array:
            return jnp.stack(jnp.unravel_index(action, choices)).astype(spec.dtype)

        return Discrete(math.prod(choices)), combination
    assert mask is not None
    return MultiDiscrete(mask[-1:] * mask[0]), lambda action: action.astype(spec.dtype)


class JumanjiTask(BaseTask):
    """One jumanji environment, inside its time limit.

    The rewards of several agents are summed. An episode ends when all agents are done.
    """

    frame_rate = 8.0
    cheap_reset = False
    keeps_integers = False

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        """Wrap a jumanji environment.

        Args:
            env: the environment; its own limit is never reached.
            max_episode_steps: time limit.
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

    def _obs(self, obs: Any) -> dict[str, jax.Array]:
        out = {}
        for name, part in self.parts.items():
            value = obs
            for field in part.path:
                value = getattr(value, field)
            out[name] = part.read(jnp.asarray(value))
            if not self.keeps_integers:
                out[name] = cast_to_space(out[name], part.space)
        if self.masked:
            out[MASK] = self._mask(obs.action_mask)
        return out

    def _mask(self, mask: jax.Array) -> jax.Array:
        """Return the flat mask; allow all actions where none is, such as at the end of FlatPack."""
        masks = mask if isinstance(self.action, MultiDiscrete) else mask.ravel()
        none_allowed = ~jnp.any(masks, axis=-1, keepdims=True)
        return (masks | none_allowed).ravel().astype(jnp.uint8)

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Start an episode; return (jumanji state, obs)."""
        with _ignore_future_warnings():
            state, first = self.env.reset(key)
        return state, self._obs(first.observation)

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Take a step; an end with discount 0 is a termination."""
        del key
        copy = jax.tree.map(lambda x: x, state)  # some tasks write into the state
        with _ignore_future_warnings():
            state, out = self.env.step(copy, self._to_jumanji(action))
        over = jnp.all(out.discount == 0)
        reward = jnp.sum(out.reward).astype(jnp.int32 if self.keeps_integers else jnp.float32)
        return state, TaskStep(
            self._obs(out.observation), reward, out.last() & over, out.last() & ~over
        )

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield square frames drawn by the viewer of the simulator, without a display."""
        import matplotlib.pyplot as plt

        from purejaxppo.video.canvas import fit

        names = ("_viewer", "_env_viewer", "viewer")
        viewer = next(getattr(self.env, name) for name in names if hasattr(self.env, name))
        images: list[np.ndarray] = []

        def capture(figure: Any) -> None:  # some `render` methods return nothing
            if type(viewer).__name__ == "MMSTViewer":  # its graph is outside of the axes
                figure.axes[0].set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
            images.append(np.array(viewer._display_rgb_array(figure))[..., :3])

        viewer._display = capture
        side = min(height, width)
        viewer.figure_size = (side / 100, side / 100)
        before = plt.get_backend()
        plt.switch_backend("agg")
        try:
            with plt.ion(), plt.rc_context({"figure.dpi": 100}):  # avoids a window
                for state in states:
                    self.env.render(jax.device_put(state))  # some viewers use `.at`
                    yield fit(images.pop(), height, width, "white")
        finally:
            self.env.close()
            plt.switch_backend(before)


FAMILY = Family(
    about="puzzles, packing, routing, robots on grids; with action masks",
    tasks=task_names,
    make_task=make,
    requires="jumanji",
    more_options="numeric and boolean arguments of the task's class and of the generator of its "
    "initial states, such as num_agents",
)
