"""`gymnasium/`: Gymnasium environments in worker processes behind callbacks.

Names: `gymnasium/Hopper-v5` is a registered id, `gymnasium/package:Id-v0` an id that a package
registers at import, `gymnasium/path/to/file.py:Name` and `gymnasium/package.module:Name` a class or
function. From Python, env.name may also be an object; see `config.env_objects`.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from purejaxppo.aliases import EnvAction
from purejaxppo.config.references import (
    OBJECT,
    CodeRef,
    LoadError,
    absolute,
    described,
    files_in,
    load,
    located,
    without_family,
)
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.families import Family
from purejaxppo.envs.host.bridge import HostEnv, Pool, seed_at
from purejaxppo.envs.host.callbacks import CallbackPool
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.envs.host.workers.factory import (
    GymnasiumSpec,
    HashableMaker,
    Maker,
    Options,
    pickled,
    wrapper_calls,
)
from purejaxppo.envs.host.workers.pool import WorkerError, WorkerPool
from purejaxppo.envs.host.workers.worker import (
    EnvGroup,
    EnvInfo,
    buffer_bytes,
    buffers,
    metrics_shape,
)
from purejaxppo.envs.metrics import declared
from purejaxppo.envs.options import Option, split, with_defaults
from purejaxppo.envs.step import EnvStep, copied
from purejaxppo.spaces import arrays_of, tree_of

POOL_OPTIONS = {
    "workers": Option(
        "process", "Run the workers as processes or threads.", choices=("process", "thread")
    ),
    "num_workers": Option(0, "Number of workers; 0: one per CPU core.", low=0),
    "timeout": Option(
        60.0,
        "Seconds to wait until a worker has created, reset or stepped all its environments.",
        above=0,
    ),
}
"""Options of worker pools."""


def _parse_wrappers(name: str, value: Any) -> Any:
    """Check env.options.wrappers, and return it unchanged."""
    if not isinstance(value, str | list):
        raise ValueError(f"{name} = {value!r}: must be a string or a list.")
    list(wrapper_calls(value))
    return value


OPTIONS = {
    **POOL_OPTIONS,
    "wrappers": Option(
        "",
        "Wrappers of `gymnasium.wrappers` or custom ones (`file.py:Class`), innermost first: "
        "names separated by commas, or a list of names and of mappings to arguments, as in "
        "`[FlattenObservation, {FrameStackObservation: {stack_size: 4}}]`.",
        parse=_parse_wrappers,
        nested=True,
        refers="code",
    ),
    "pixels": Option(
        0,
        "Observe square images from `render`, of this many pixels per side; 0: the environment's "
        "observations.",
        low=0,
    ),
    "frame_stack": Option(1, "Number of latest images in an observation, with `pixels`.", low=1),
    "mask": Option(False, "Add the `action_mask` in each info to the observation."),
}
"""Options of this adapter. All other options go to the environment."""
SEED_STRIDE = 100_003
"""Distance between the seeds of the random generators of two runs' workers."""


def task_names() -> list[str]:
    """Return the newest version of every registered id. Other ids, packages and files also work."""
    import gymnasium

    newest: Options = {}
    for spec in gymnasium.registry.values():
        stem = f"{spec.namespace}/{spec.name}" if spec.namespace else spec.name
        if stem not in newest or (spec.version or 0) > (newest[stem].version or 0):
            newest[stem] = spec
    return sorted(spec.id for spec in newest.values())


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
        name: a registered id, `package:Id`, `package.module:Name` or `file.py:Name`.
        config: options other than `OPTIONS` are keyword arguments of the environment.
        num_envs: number of environments, N.
        seed: seed of the global random generators in worker processes. Environments are seeded from
            the key.
        evaluation: use other random streams than training.
        render: frames will be requested; creates one environment in this process.
        first: index of the first environment in a larger batch.

    Raises:
        ValueError: an unknown environment, or unsupported spaces.
        SimulatorError: the environment fails when it is created.
    """
    ours_given, env_options = split(config.options, OPTIONS)
    options = with_defaults(ours_given, OPTIONS)
    pickled = pickled_object(config.name) or _registered_here(name)
    maker = GymnasiumSpec(
        name if pickled else absolute(name),
        tuple(wrapper_calls(options["wrappers"])),
        env_options,
        config.max_episode_steps,
        pixels=options["pixels"],
        frame_stack=options["frame_stack"],
        mask=options["mask"],
        pickled=pickled,
    )
    workers = Workers(config.name, maker, options, config.metrics)
    return workers.env(num_envs, seed=seed, evaluation=evaluation, first=first, render=render)


def pickled_object(name: str | CodeRef) -> bytes:
    """Return the object in env.name for workers; empty if they can load it from its text.

    Raises:
        ValueError: it cannot be pickled.
    """
    ref = without_family(name)
    if not ref.text.startswith(OBJECT):
        return b""
    return pickled(load(ref, "env.name"), str(name))


def _registered_here(name: str) -> bytes:
    """Return the `EnvSpec` of an id for workers, because this process may have registered it."""
    import gymnasium

    spec = gymnasium.registry.get(name)
    return b"" if spec is None else pickled(spec, f"gymnasium/{name}")


class Workers:
    """Environments of one kind in workers.

    Args:
        name: family/task, for messages.
        maker: creates one environment.
        options: options of the pool, as in `POOL_OPTIONS`.
        metrics: numbers in `info` to return, with their reductions.

    Raises:
        ValueError: an unknown environment, or unsupported spaces.
        SimulatorError: the environment fails when it is created.
    """

    def __init__(
        self,
        name: str,
        maker: HashableMaker,
        options: Options,
        metrics: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Create one environment to read its spaces."""
        self.name = name
        self.metrics = declared(metrics, "env.metrics")
        self.maker = maker
        self.options = options
        files = files_in(located(without_family(name)))
        for wrapper in wrapper_calls(options.get("wrappers", "")):
            files += files_in(wrapper.name)
        modified_at = tuple(Path(file).stat().st_mtime for file in files if Path(file).is_file())
        timeout = float(options["timeout"])
        with _named_errors(name):
            self.info: EnvInfo = _read_info(maker, options["workers"], timeout, modified_at)

    def env(
        self,
        num_envs: int,
        *,
        seed: int,
        evaluation: bool = False,
        first: int = 0,
        render: bool = False,
    ) -> HostEnv:
        """Create a batch of `num_envs` environments.

        Args:
            num_envs: number of environments, N.
            seed: seed of the run, for the global random generators in worker processes.
            evaluation: use other random streams, and do not warn about observations.
            first: index of the first environment in a larger batch.
            render: frames will be requested; creates one environment in this process.
        """
        info = self.info
        seed = 2 * seed + evaluation
        warns_as = "" if evaluation or first else self.name
        rendered = RenderedEnv(self.maker) if render else None
        names = tuple(name for name, _ in self.metrics)

        def make_pool(count: int, update: int) -> Pool:
            if rendered:
                return CallbackPool(rendered, info.observation, 1)
            with _named_errors(self.name):
                workers = WorkerPool(
                    self.maker,
                    count,
                    num_workers=int(self.options["num_workers"]),
                    timeout=float(self.options["timeout"]),
                    kind=self.options["workers"],
                    seed=seed_at(seed, update) * SEED_STRIDE + first,
                    warns_as=warns_as,
                    metrics=names,
                )
            if workers.info != info:  # an imported module has changed
                workers.close()
                _read_info.cache_clear()
                raise SimulatorError(
                    f"{self.name}: the spaces have changed since they were read. Run the "
                    f"same command again."
                )
            shape = metrics_shape(names, info.team)
            return CallbackPool(workers, info.observation, count, first, metrics=shape)

        env = HostEnv(
            make_pool,
            info.observation,
            info.action,
            num_envs=num_envs,
            max_episode_steps=info.max_episode_steps,
            frame_rate=rendered.frame_rate if rendered else 30.0,
        )
        env.spec = replace(env.spec, native=info.native, metrics=() if render else self.metrics)
        return env


@functools.cache
def _read_info(
    maker: HashableMaker,
    kind: Literal["process", "thread"],
    timeout: float,
    modified_at: tuple[float, ...],
) -> EnvInfo:
    """Read the spaces in a separate worker; `modified_at` distinguishes versions of files."""
    del modified_at
    with WorkerPool(maker, 1, kind=kind, timeout=timeout) as pool:
        if maker.mask:
            pool.reset(0)  # raises errors in masks now
        return pool.info


@contextlib.contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Convert a WorkerError to a SimulatorError that names the environment."""
    try:
        yield
    except WorkerError as error:
        raise SimulatorError(f"{name}: {error}") from error


class RenderedEnv:
    """One environment in this process, to render the frames of an episode."""

    def __init__(self, maker: Maker) -> None:
        """Create the environment; without a display it renders off-screen."""
        from purejaxppo.envs.host.workers.pixels import without_display

        without_display()
        try:
            self.env = maker("rgb_array")
        except LoadError:  # environments without rendering take no render_mode
            self.env = maker()
        self.frame_rate = float(self.env.metadata.get("render_fps") or 30.0)
        self.group = EnvGroup([self.env], 0)
        spaces = self.group.observation, self.group.action
        self.buffers = buffers(bytearray(buffer_bytes(*spaces, 1)), *spaces, 1)
        self.group.bind(self.buffers)
        self.diverged_value = ""

    def reset(self, seed: int) -> Any:
        """See `WorkerPool.reset`."""
        self.group.reset([seed])
        return tree_of(self.group.observation, self.buffers.out.obs)

    def step(self, action: EnvAction) -> EnvStep:
        """See `WorkerPool.step`."""
        parts = arrays_of(self.group.action, action)
        for buffer, part in zip(self.buffers.action, parts, strict=True):
            buffer[:] = part
        self.diverged_value = self.group.step() or self.diverged_value
        obs = tree_of(self.group.observation, self.buffers.out.obs)
        return copied(self.buffers.out, obs)

    def render_frame(self) -> np.ndarray | None:
        """Return a frame from the environment's `render`, uint8 [H, W, 3], or None.

        Raises:
            SimulatorError: `render` fails, or returns an array of another form.
        """
        from gymnasium.error import DependencyNotInstalled

        try:
            frame = self.env.render()
        except (DependencyNotInstalled, NotImplementedError):
            return None
        except Exception as error:
            raise SimulatorError(f"render: {described(error)}") from error
        if not isinstance(frame, np.ndarray) or frame.ndim != 3:
            return None
        if frame.dtype != np.uint8 or frame.shape[2] not in (1, 3, 4):
            raise SimulatorError(
                f"render returned {frame.dtype} of shape {list(frame.shape)}. Return uint8 "
                f"[height, width, 3]."
            )
        return np.repeat(frame, 3, axis=2) if frame.shape[2] == 1 else frame[..., :3]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


FAMILY = Family(
    about="a registered id, package:Id, file.py:Name or module:Name; runs in worker processes",
    tasks=task_names,
    make_batch=make,
    requires="gymnasium",
    names="id",
    options=OPTIONS,
    more_options="keyword arguments for `gymnasium.make`, or for the class or function",
    free_options=POOL_OPTIONS,
    workers_option="num_workers",
)
