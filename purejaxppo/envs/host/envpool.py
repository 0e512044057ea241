"""`envpool/`: C++ simulators behind XLA calls, https://github.com/sail-sg/envpool."""

import contextlib
import ctypes
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from purejaxppo import spaces
from purejaxppo.aliases import EnvAction, Key
from purejaxppo.config.hints import did_you_mean
from purejaxppo.config.plain import whole
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import metrics
from purejaxppo.envs.families import Family
from purejaxppo.envs.host.bridge import HostEnv, Token, seed_at
from purejaxppo.envs.host.workers.factory import Options
from purejaxppo.envs.host.workers.gym_spaces import convert
from purejaxppo.envs.native import NativeArray, NativeComposite, NativeSpaces, encode, space_of
from purejaxppo.envs.step import EnvStep

RESERVED_SETTINGS = frozenset(
    (
        "num_envs",
        "batch_size",
        "seed",
        "env_seed",
        "max_num_players",
        "base_path",
        "task",
        "gym_reset_return_info",
        "max_episode_steps",
    )
)
"""Pool settings that cannot be set as options."""
PIXEL_OPTIONS = frozenset({"from_pixels", "render_width", "render_height", "render_camera_id"})
"""Options of MuJoCo tasks that are not settings of the pool."""
EVALUATION_SETTINGS = {"reward_clip": False}
"""Settings of evaluations, independent of training. `episodic_life` is unchanged: with it, EnvPool
serves the next ball, so the agent does not learn to serve."""
RENDER_SETTINGS: Options = {"render_mode": "rgb_array", "render_width": 640, "render_height": 480}
"""Settings of a pool that renders frames."""
FRAME_RATES = {
    "envpool.atari": 60.0,
    "envpool.box2d": 50.0,
    "envpool.classic_control": 30.0,
    "envpool.mujoco": 40.0,
    "envpool.vizdoom": 35.0,
}
"""Steps per second by prefix of a task's module, before the `frame_skip` of emulators."""
SEED_STRIDE = 1_000_003
"""Distance between the seeds of two runs, which keeps their environments' seeds distinct."""


def _load_opengl() -> bool:
    try:
        ctypes.CDLL("libGL.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


HAS_OPENGL = _load_opengl()
"""True if OpenGL was found. EnvPool's MuJoCo only finds a library that is already loaded globally.
"""


def _envpool() -> Any:
    import envpool

    return envpool


def task_names() -> list[str]:
    """Return the tasks of this family."""
    return list(_envpool().list_all_envs())


def make(
    name: str,
    config: EnvConfig,
    num_envs: int,
    *,
    seed: int,
    evaluation: bool = False,
    render: bool = False,
    first: int = 0,
) -> HostEnv:
    """Create `num_envs` environments of a task.

    Args:
        name: name of a task, as in `task_names`.
        config: `options` are settings of the pool, `max_episode_steps` is its time limit.
        num_envs: number of environments, N.
        seed: seed of the environments. EnvPool reads it only when a pool is created.
        evaluation: play whole games and report their true scores.
        render: frames will be requested.
        first: index of the first environment in a larger batch.

    Raises:
        ValueError: an unknown option or an unsupported space.
    """
    options = _options(name, config)
    spec = _spec(name, options)
    settings = spec.config._asdict()
    if evaluation:
        options |= {key: value for key, value in EVALUATION_SETTINGS.items() if key in settings}
    if settings["max_num_players"] > 1:
        raise ValueError(
            f"env.name = envpool/{name}: the task has {settings['max_num_players']} players. Use a "
            f"task with one player."
        )
    observation, action = _spaces(name, spec)
    with _without_precision_warning():
        native = NativeSpaces(
            _form(spec.gymnasium_observation_space, observation),
            replace(
                _form(spec.gymnasium_action_space, action),
                dtype=str(np.dtype(spec.action_array_spec["action"].dtype)),
            ),
        )

    of_task = metrics.declared(config.metrics, "env.metrics")
    for metric, _ in of_task:
        metrics.check_name(metric, _info_names(spec), config.name)

    def make_pool(count: int, update: int) -> EnvPool:
        first_seed = seed_at(seed, update) * SEED_STRIDE + first
        first_seed += SEED_STRIDE // 2 if evaluation else 0
        seeds = [s % 2**31 for s in range(first_seed, first_seed + count)]
        return EnvPool(name, options | {"num_envs": count, "env_seed": seeds}, native, of_task)

    if render:
        if _module(name).startswith("envpool.mujoco"):
            _check_opengl()
        # With from_pixels, width and height are those of the observation.
        keys = ["render_mode"] if options.get("from_pixels") else list(RENDER_SETTINGS)
        options |= {key: RENDER_SETTINGS[key] for key in keys}
    env = HostEnv(
        make_pool,
        observation,
        action,
        num_envs=num_envs,
        max_episode_steps=int(settings["max_episode_steps"]),
        frame_rate=_frame_rate(name, settings),
    )
    env.spec = replace(env.spec, native=native, metrics=of_task)
    return env


def _info_names(spec: Any) -> list[str]:
    """Return the names of the numbers in a task's `info`."""
    prefix = "info:"
    return [
        name.removeprefix(prefix)
        for name, array in spec.state_array_spec.items()
        if name.startswith(prefix) and "." not in name and list(array.shape) in ([], [-1])
    ]


def _spaces(name: str, spec: Any) -> tuple[spaces.Space, spaces.Space]:
    """Return the observation and action spaces.

    Raises:
        ValueError: a space is not supported.
    """
    try:
        with _without_precision_warning():
            observation = _without_type_bounds(convert(spec.gymnasium_observation_space))
            action = _without_type_bounds(convert(spec.gymnasium_action_space))
    except ValueError as error:
        raise ValueError(f"envpool/{name}: {error}") from error
    if isinstance(action, spaces.Box) and not action.dtype.startswith("float"):
        raise ValueError(
            f"env.name = envpool/{name}: integer actions in a Box are not supported. Use a task "
            f"with float or discrete actions."
        )
    return observation, action


def _form(native_space: Any, space: spaces.Space) -> Any:
    """Return the native form of an EnvPool space; `space` is the result of `convert`."""
    if isinstance(space, spaces.Dict):
        return NativeComposite(
            tuple((name, _form(native_space.spaces[name], part)) for name, part in space.spaces)
        )
    (leaf,) = spaces.leaves(space)
    start = int(native_space.start) if isinstance(space, spaces.Discrete) else 0
    return NativeArray(space, leaf.shape, leaf.dtype, start)


def _frame_rate(name: str, settings: Options) -> float:
    module = _module(name)
    rate = next((r for start, r in FRAME_RATES.items() if module.startswith(start)), 10.0)
    emulated = module in ("envpool.atari", "envpool.vizdoom")
    return rate / settings.get("frame_skip", 1) if emulated else rate


def _without_type_bounds(space: spaces.Space) -> spaces.Space:
    """Remove bounds that are only the range of the dtype, as EnvPool sets for unbounded spaces."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict(tuple((name, _without_type_bounds(part)) for name, part in space.spaces))
    if isinstance(space, spaces.Box) and np.max(space.high) > 1e30:
        return replace(space, low=-np.inf, high=np.inf)
    return space


@contextlib.contextmanager
def _without_precision_warning() -> Iterator[None]:
    """Suppress Gymnasium's warning that the dtype of EnvPool's bounds differs from the space's."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered.*")
        yield


def _spec(name: str, options: Options) -> Any:
    """Return EnvPool's description of a task.

    Raises:
        ValueError: EnvPool cannot create the task.
    """
    try:
        with _without_precision_warning():
            return _envpool().make_spec(name, **options)
    except (ImportError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise ValueError(f"envpool/{name}: EnvPool cannot create the task: {reason}") from error


def _fits(value: Any, default: Any) -> bool:
    """Return True if a value has the type of a default. Whole floats are ints; ints are floats."""
    if type(default) is int:
        return whole(value) is not None
    kinds = {float: (int, float), list: (list, tuple), tuple: (list, tuple)}
    kind = kinds.get(type(default), type(default))
    return isinstance(value, kind) and isinstance(value, bool) == isinstance(default, bool)


def _options(name: str, config: EnvConfig) -> Options:
    """Return the checked options of a config, including the time limit."""
    options: Options = dict(config.options)
    settings = _spec(name, {}).config._asdict()
    known_options = sorted(
        (set(settings) - RESERVED_SETTINGS)
        | (PIXEL_OPTIONS if _module(name).startswith("envpool.mujoco") else set())
    )
    for option, value in options.items():
        if option not in known_options:
            hint = did_you_mean(option, known_options)
            raise ValueError(f"env.options.{option}: unknown setting of envpool/{name}. {hint}")
        default = settings.get(option, value)
        if not _fits(value, default):
            raise ValueError(
                f"env.options.{option} = {value!r}: wrong type. The default of envpool/{name} is "
                f"{default!r}. Use a value of the same type."
            )
        number = whole(value) if type(default) is int else None
        options[option] = value if number is None else number
        if option == "num_threads" and options[option] < 0:
            raise ValueError(f"env.options.num_threads = {value}: must be at least 0.")
    if config.max_episode_steps:
        options["max_episode_steps"] = config.max_episode_steps
    if options.get("from_pixels"):
        _check_opengl()
    return options


def _module(name: str) -> str:
    """Return the EnvPool module of a task."""
    from envpool.registration import registry

    return registry.specs[name][0]


def _check_opengl() -> None:
    if not HAS_OPENGL:
        raise ValueError(
            "rendering MuJoCo needs OpenGL, which was not found. Run: apt install libgl1 libegl1"
        )


class EnvPool:
    """An EnvPool pool as a `bridge.Pool`.

    Every call is traced with 64-bit types enabled. Otherwise an environment with float64 values
    crashes the process.
    """

    failure = None  # EnvPool ends the process at any error
    diverged_value = ""  # results do not pass through Python

    def __init__(
        self, name: str, options: Options, native: NativeSpaces, of_task: metrics.Declared = ()
    ) -> None:
        """Start the environments. `of_task` are entries of `info`, with their reductions."""
        self.metrics = of_task
        self.form = native.observation
        assert isinstance(native.action, NativeArray)
        self.start = native.action.start
        self.num_envs = options["num_envs"]
        with _without_precision_warning():
            self.env = _envpool().make(name, env_type="gymnasium", **options)
        self.action_dtype = native.action.dtype
        self.scored = {"info:reward", "info:terminated"} <= set(self.env.spec._state_keys)
        with jax.enable_x64(True):
            self.handle, self._recv, self._send, _ = self.env.xla()

    def reset(self, key: Key) -> Any:
        """Reset every environment. The pool uses other seeds and ignores `key`."""
        return self.begin(jax.random.key_data(key))

    def begin(self, seeds: Any) -> Any:
        """Reset every environment. The pool uses other seeds and ignores `seeds`."""

        def host_reset(seeds: Any) -> Any:
            del seeds
            with _without_precision_warning():
                obs, _ = self.env.reset()
            return self.handle, jax.tree.map(np.asarray, encode(self.form, obs, np))

        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self.num_envs, *x.shape), x.dtype),
            spaces.example(space_of(self.form)),
        )
        token = jax.ShapeDtypeStruct(self.handle.shape, self.handle.dtype)
        return io_callback(host_reset, (token, shapes), seeds)

    def step(self, token: Token, action: EnvAction) -> tuple[Token, EnvStep]:
        """Step the environments with two XLA calls."""
        with _without_precision_warning(), jax.enable_x64(True):
            action = action.astype(self.action_dtype)
            token = self._send(token, action + self.start if self.start else action)
            token, (obs, reward, terminated, truncated, info) = self._recv(token)
            obs = encode(self.form, obs, jnp)
            reward = reward.astype(np.float32)
            score = over = None
            if self.scored:
                score = info["reward"].astype(np.float32)
                over = (info["terminated"] > 0) | truncated
            values = metrics.packed(info, self.metrics, (self.num_envs,))
        return token, EnvStep(
            obs,
            reward,
            terminated & ~truncated,
            truncated,
            score=score,
            over=over,
            metrics=values,
        )

    def render_frame(self) -> np.ndarray | None:
        """Return a frame of environment 0; None for tasks without rendering."""
        try:
            return np.asarray(self.env.render(env_ids=[0]))[0]
        except RuntimeError:
            return None

    def close(self) -> None:
        """Stop the threads of the environments."""
        self.env.close()


FAMILY = Family(
    about="C++ simulators on the host: Atari, MuJoCo and others",
    tasks=task_names,
    make_batch=make,
    requires="envpool",
    free_options=("thread_affinity_offset",),
    workers_option="num_threads",
    more_options="EnvPool settings of the task",
)
