"""Checkpoints. Only this module imports orbax and tensorstore.

A checkpoint has four items: `agent` (all that evaluations need), `train` (the rest of the
TrainState), `progress` (host counters and the checksum of every array) and, after the first
evaluation, `best` (the `LearnedState` of the best agent so far). All arrays have a leading axis of
agents. Orbax renames a checkpoint when it is complete, so a killed run still has its last complete
checkpoint.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import logging
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from purejaxppo.config.files import load_config
from purejaxppo.config.hints import short_path
from purejaxppo.config.plain import user_path, whole
from purejaxppo.config.run_files import load_members
from purejaxppo.envs import registry
from purejaxppo.parallel import processes
from purejaxppo.runs import checksums
from purejaxppo.runs.agent import Agent, abstract_agents
from purejaxppo.runs.console import Stopped
from purejaxppo.runs.devices import check_platforms
from purejaxppo.runs.folder import (
    CONFIG,
    MEMBERS,
    check_is_run,
    named_write_errors,
    steps_in,
    steps_of,
)
from purejaxppo.runs.progress import Progress
from purejaxppo.types import STATISTICS, LearnedState, TrainState, named_leaves

log = logging.getLogger("purejaxppo")

T = TypeVar("T")

UNFINISHED = ".orbax-checkpoint-tmp"
"""Suffix of the folder of an unfinished checkpoint."""
REPLACED = ".replaced"
"""Suffix of the folder of a checkpoint until one of the same steps has replaced it."""
CHECKSUMS = "checksums"
"""Key of the checksums in the saved counters. Version 0.2 did not write it."""
ZARR = "/.zarray"
"""Suffix of tensorstore's keys for the metadata of arrays."""


class CorruptError(ValueError):
    """A checkpoint cannot be read, or has changed since it was saved."""


class UnreadableError(Stopped, ValueError):
    """Checkpoints can be written into a folder, but not read from it."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        folder: the checkpoint's folder, named after its environment steps.
        progress: counters of the run at the checkpoint.
        checksums: checksums by item and array, such as "agent.params.w"; None if version 0.2 saved
            it.
    """

    folder: Path
    progress: Progress
    checksums: dict[str, str] | None

    @classmethod
    def open(cls, folder: Path) -> "Checkpoint":
        """Read the counters of a checkpoint.

        Raises:
            CorruptError: the counters cannot be read.
        """
        with _reading("progress"):
            counters = json.loads((folder / "progress" / "metadata").read_bytes())
            saved = counters.pop(CHECKSUMS, None)
            if saved is not None:
                expected = saved.pop("progress")
                if expected != checksums.of_counters({**counters, **saved}):
                    raise CorruptError("progress has a wrong checksum")
            return cls(folder, Progress.read(counters), saved)

    @property
    def has_best(self) -> bool:
        """True if a best agent was saved."""
        saved = any(name.startswith("best.") for name in self.checksums or ())
        return saved or (self.folder / "best").is_dir()

    def arrays(self, item: str, names: tuple[str, ...] = ("",)) -> dict[str, np.ndarray]:
        """Read arrays of an item by name, and compare their checksums.

        Random keys are returned as their data.

        Args:
            item: the item.
            names: starts of the names of the arrays; by default, all arrays are read.

        Raises:
            CorruptError: an array cannot be read, or has changed.
        """
        with _reading(item), _plain_path(self.folder / item) as folder:
            arrays = _read_arrays(folder, names)
        if self.checksums is not None:
            current = checksums.of_arrays(_prefixed(item, arrays))
            starts = tuple(f"{item}.{name}" for name in names)
            saved = {name: x for name, x in self.checksums.items() if name.startswith(starts)}
            if wrong := sorted(dict(current.items() ^ saved.items())):
                raise CorruptError(f"{wrong[0]} has a wrong checksum")
        return arrays

    def check(self) -> None:
        """Read all items.

        Raises:
            CorruptError: an item cannot be read, or has changed.
        """
        for item in ("agent", "train", *["best"] * self.has_best):
            self.arrays(item)

    def learned_arrays(self, item: str) -> dict[str, np.ndarray]:
        """Read the arrays of a `LearnedState`: the agent in `item` with its statistics.

        The item `agent` lacks them, because they are in `train`, and so does `best` if version 0.2
        saved it. The last agent's statistics are then used. If they cannot be read, they are left
        out, because an agent can act without them.

        Raises:
            CorruptError: the agent cannot be read, or has changed.
        """
        arrays = self.arrays(item)
        if any(name.startswith(STATISTICS) for name in arrays):
            return arrays
        with contextlib.suppress(CorruptError):
            return self.arrays("train", STATISTICS) | arrays
        return arrays

    def restore(self, item: str, template: Any) -> Any:
        """Read an item into the shapes, types and shardings of `template`.

        Raises:
            CorruptError: see `arrays`.
            ValueError: the arrays do not match the template.
        """
        arrays = self.learned_arrays(item) if item == "best" else self.arrays(item)
        return _placed(arrays, template, self.folder)


class Checkpoints:
    """The checkpoints in the folder of a run that trains.

    The constructor reads the newest checkpoint. If it is corrupt, the constructor renames it and
    selects the newest readable one. Process 0 selects for all processes.

    Args:
        run_dir: the run folder. Each checkpoint is the folder `checkpoints/STEPS` in it.
        keep: number of newest checkpoints that stay on disk.

    Raises:
        ValueError: all existing checkpoints are corrupt.
    """

    def __init__(self, run_dir: Path, keep: int = 2) -> None:
        """Open the folder, and create it if needed."""
        self._folder = run_dir / "checkpoints"
        self._keep = keep
        latest = None
        with processes.raise_together(), named_write_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            if processes.is_main():
                self._remove_unfinished()
                if steps_in(self._folder):
                    latest = self._newest_readable()
        (number,) = processes.total([0 if latest is None else latest + 1])  # only process 0 has one
        self._latest = number - 1 if number else None
        self._update: int | None = None  # of the last checkpoint, if known
        self._has_saved = False
        self._closing = contextlib.ExitStack()
        self._plain = self._closing.enter_context(_plain_path(self._folder))
        # Orbax must create folders before `save` returns. If it creates them in the background,
        # simultaneous saves of several threads write into missing folders, and after a failure
        # Orbax's threads wait for five minutes and keep the process alive. The handler creates the
        # folders of the items.
        options = ocp.AsyncOptions(create_directories_asynchronously=False)
        handler = ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(async_options=options)
        )
        self._checkpointer = ocp.AsyncCheckpointer(handler, async_options=options)

    def _newest_readable(self) -> int:
        """Return the steps of the newest readable checkpoint, and rename newer corrupt ones."""
        advice = "Restore a backup, delete this run with --clobber, or use another --run_dir."
        _, step, corrupt = _first_readable(self._folder, lambda saved: saved.check(), advice)
        if corrupt:
            names = [self._set_aside(number).name for number in corrupt]
            log.warning(
                "%s. Renamed to %s. Training continues from the checkpoint at %s steps, %s steps "
                "earlier.",
                _described(self._folder, corrupt),
                ", ".join(names),
                f"{step:,}",
                f"{max(corrupt) - step:,}",
            )
        return step

    def _set_aside(self, step: int) -> Path:
        """Rename the folder of a corrupt checkpoint; return its new path."""
        folder, number = self._folder / str(step), 1
        target = folder.with_suffix(".damaged")
        while target.exists():
            number += 1
            target = folder.with_suffix(f".damaged{number}")
        return folder.rename(target)

    def latest(self) -> int | None:
        """Return the environment steps of the last checkpoint; None without one."""
        return self._latest

    def finished(self) -> int | None:
        """Return the steps of the last checkpoint that is complete on disk; None without one."""
        return max(steps_in(self._folder), default=None)

    def progress(self) -> Progress:
        """Read the counters of the last checkpoint."""
        return Checkpoint.open(self._folder / str(self._latest)).progress

    def save(
        self,
        state: TrainState,
        progress: Progress,
        best: LearnedState | None = None,
        *,
        replace: bool = False,
    ) -> bool:
        """Start to save the whole state in the background.

        The state is copied first, so the caller may donate it. The first checkpoint of a run is
        written and read back before this returns.

        Args:
            state: training state of the run.
            progress: counters of the run.
            best: the best agent of each seed, in one tree.
            replace: replace a checkpoint of the same steps, and wait until this is done. A
                checkpoint of an earlier update is always replaced.

        Returns:
            False if a checkpoint of these steps exists and stays.

        Raises:
            UnreadableError: the first checkpoint cannot be read back.
        """
        step = progress.env_steps
        if self._latest == step and not replace:
            if self._update in (None, progress.update):
                return False
            replace = True  # the last updates only reset environments, which adds no steps
        self.wait()
        copy, best = _snapshot((state, best))
        arrays = {"agent": copy.agent, "train": _without_empty(copy.replace(agent=None))}
        if best is not None:
            arrays["best"] = best
        counters = dataclasses.asdict(progress)
        named = {k: x for item, tree in arrays.items() for k, x in _prefixed(item, tree).items()}
        sums = checksums.of_arrays(named)
        sums["progress"] = checksums.of_counters({**counters, **sums})
        items = {
            "progress": ocp.args.JsonSave({**counters, CHECKSUMS: sums}),
            **{name: ocp.args.StandardSave(tree) for name, tree in arrays.items()},
        }
        first = self._latest is None
        with self._writing():
            if processes.is_main() and (self._folder / str(step)).exists():
                if replace:
                    (self._folder / str(step)).rename(self._folder / f"{step}{REPLACED}")
                else:
                    self._set_aside(step)
            self._latest, self._update, self._has_saved = step, progress.update, True
            started = time.perf_counter()
            self._checkpointer.save(self._plain / str(step), args=ocp.args.Composite(**items))
            size = sum(x.nbytes for x in jax.tree.leaves(arrays)) / 1e6
            blocked = time.perf_counter() - started
            log.debug("checkpoint: %d steps, %.2f MB, training waited %.3f s", step, size, blocked)
        if first:
            self._read_back(step)
        if replace:
            self.wait()
            if processes.is_main():
                shutil.rmtree(self._folder / f"{step}{REPLACED}", ignore_errors=True)
        return True

    def _read_back(self, step: int) -> None:
        self.wait()
        with processes.raise_together():
            if processes.is_main():
                folder = self._folder / str(step)
                try:
                    Checkpoint.open(folder).check()
                except CorruptError as error:
                    raise UnreadableError(
                        f"{folder}: the first checkpoint was written but cannot be read back "
                        f"({error}). Train into another --run_dir, on another file system."
                    ) from error

    def restore(self, template: TrainState) -> tuple[TrainState, LearnedState | None, Progress]:
        """Load the state, the best agents and the counters of the last checkpoint.

        Args:
            template: a state with the shapes, types and shardings to restore.

        Raises:
            ValueError: the checkpoint does not match the template.
        """
        saved = Checkpoint.open(self._folder / str(self._latest))
        agent = saved.restore("agent", template.agent)
        without_agent = template.replace(agent=None)
        train = _with_empty(saved.restore("train", _without_empty(without_agent)), without_agent)
        best = saved.restore("best", template.learned) if saved.has_best else None
        self._update = saved.progress.update
        return train.replace(agent=agent), best, saved.progress

    def wait(self) -> None:
        """Wait until checkpoints in progress are on disk, and delete old checkpoints.

        Raises:
            OSError: a checkpoint could not be written.
        """
        with self._writing():
            self._checkpointer.wait_until_finished()
        if self._has_saved and processes.is_main():
            for step in steps_in(self._folder)[: -self._keep]:
                shutil.rmtree(self._folder / str(step), ignore_errors=True)

    def close(self) -> None:
        """Wait for checkpoints in progress, and close the folder."""
        with self._closing:
            try:
                self.wait()
            finally:
                self._checkpointer.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Name the folder in write errors, and remove unfinished checkpoints after them.

        Raises:
            OSError: one sentence about the problem.
        """
        try:
            with named_write_errors(self._folder, Exception):
                yield
        except OSError:
            # Orbax drops writes that have not begun, and Python warns of them later.
            text = "coroutine '.*write_fragment' was never awaited"
            warnings.filterwarnings("ignore", text, RuntimeWarning)
            self._remove_unfinished()
            self._latest, self._update, self._has_saved = self.finished(), None, False
            for _ in range(10):  # threads of Orbax may still write for a short time
                self._remove_unfinished()
                time.sleep(0.1)
            raise

    def _remove_unfinished(self) -> None:
        """Delete unfinished checkpoints as far as possible, and restore those that they replace."""
        for path in self._folder.glob(f"*{UNFINISHED}"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self._folder.glob(f"*{REPLACED}"):
            if path.with_suffix("").exists():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.rename(path.with_suffix(""))


@contextlib.contextmanager
def _reading(item: str) -> Iterator[None]:
    """Convert any error inside the block, which reads an item, to a CorruptError of one sentence.

    Raises:
        CorruptError: the item cannot be read.
    """
    try:
        yield
    except CorruptError:
        raise
    except Exception as error:  # orbax and tensorstore raise many types
        log.debug("reading a checkpoint failed", exc_info=True)
        reason = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        raise CorruptError(f"{item} cannot be read{reason}") from error


@contextlib.contextmanager
def _plain_path(folder: Path) -> Iterator[Path]:
    """Yield a path to a folder that orbax and tensorstore can use.

    Orbax treats `[`, `*` and `?` in a path as a glob pattern, and tensorstore treats a backslash as
    a slash. A temporary symlink replaces paths with such characters.
    """
    path = str(folder.resolve())
    if re.fullmatch(r"[^\\*?\[\]\ud800-\udfff]*", path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="purejaxppo-") as temporary:
        link = Path(temporary, "checkpoints")
        link.symlink_to(path, target_is_directory=True)
        yield link


def _read_arrays(folder: Path, starts: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Read the arrays of an item whose names start with one of `starts`, by name.

    Orbax is not used here, because its unfinished reads print tracebacks after a corrupt array.
    """
    context = ts.Context()
    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}}
    keys = ts.KvStore.open(store, context=context).result().list().result()
    names = [key.decode().removesuffix(ZARR) for key in keys if key.decode().endswith(ZARR)]
    names = [name for name in names if name.startswith(starts)]
    if not names:
        raise FileNotFoundError(errno.ENOENT, "no arrays found")
    opened = [
        ts.open(
            {
                "driver": "zarr",
                "kvstore": {**store, "path": f"{name}/"},
                "fill_missing_data_reads": False,
            },
            context=context,
            open=True,
        )
        for name in names
    ]
    reads = [array.result().read() for array in opened]
    return {name: np.asarray(read.result()) for name, read in zip(names, reads, strict=True)}


def _prefixed(item: str, tree: Any) -> dict[str, Any]:
    """Return the arrays of an item by the names of their checksums, "agent.params.w"."""
    return {f"{item}.{name}": x for name, x in named_leaves(tree).items()}


def _placed(arrays: dict[str, np.ndarray], template: Any, folder: Path) -> Any:
    """Put arrays into the tree of a template, on its devices.

    Raises:
        ValueError: names or shapes differ.
    """
    leaves = named_leaves(template)
    shapes = {
        name: jax.eval_shape(jax.random.key_data, x).shape if _is_key(x) else x.shape
        for name, x in leaves.items()
    }
    arrays = _with_episode_metrics(_with_more_starts(arrays, shapes), shapes)
    saved_shapes = {name: x.shape for name, x in arrays.items()}
    if shapes.keys() - saved_shapes.keys() == {"bonus_return"}:
        raise ValueError(
            f"{folder}: version 0.2 or older saved this checkpoint and scaled intrinsic rewards "
            f"differently. The run cannot be resumed, but it can be evaluated. To train, use "
            f"another --run_dir."
        )
    if shapes != saved_shapes:
        log.debug("%s: expected shapes %s, found %s", folder, shapes, saved_shapes)
        raise ValueError(
            f"{folder}: the checkpoint does not match the run's config.yaml. One of them was "
            f"edited, is corrupt, or was written by another version."
        )
    placed = [place(arrays[name], x) for name, x in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(template), placed)


def _with_more_starts(
    arrays: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Repeat the first states in checkpoints of version 0.2 to the number of this version.

    Their `turn` is missing if all first states were sampled for every rollout.
    """
    updated = {}
    for name, shape in shapes.items():
        if name.endswith(".turn") and name not in arrays:
            updated[name] = np.zeros(shape, np.int32)
        elif ".fresh." in name and name in arrays and arrays[name].ndim == len(shape):
            times = [n // max(m, 1) for n, m in zip(shape, arrays[name].shape, strict=True)]
            updated[name] = np.tile(arrays[name], times)
    return {**arrays, **updated}


def _with_episode_metrics(
    arrays: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Remove the values of the environment's metrics of running episodes if others were saved.

    Version 0.2 saved none, and other versions of a simulator may have others. A total of NaN gives
    these episodes no value.
    """
    prefix = "rollout.episode_metrics."
    names = {name for name in {*arrays, *shapes} if name.startswith(prefix)}
    if all(name in arrays and arrays[name].shape == shapes.get(name) for name in names):
        return arrays
    unknown = {
        name: np.full(shape, np.nan if name.endswith(".total") else 0, np.float32)
        for name, shape in shapes.items()
        if name in names
    }
    return {name: x for name, x in arrays.items() if name not in names} | unknown


def place(array: np.ndarray, like: jax.Array) -> jax.Array:
    """Put an array on the devices of another array; each process stores its part."""
    if _is_key(like):
        wrap = functools.partial(jax.random.wrap_key_data, impl=jax.random.key_impl(like))
        return jax.jit(wrap, out_shardings=like.sharding)(array)
    array = array.astype(like.dtype, copy=False)
    return jax.make_array_from_callback(array.shape, like.sharding, lambda index: array[index])


def _without_empty(tree: Any) -> Any:
    """Remove arrays of size 0, which MJX's states have and orbax cannot save."""
    return jax.tree.map(lambda x: x if x.size else None, tree)


def _with_empty(tree: Any, template: Any) -> Any:
    """Undo `_without_empty`."""
    nonempty = iter(jax.tree.leaves(tree))
    leaves, structure = jax.tree.flatten(template)
    full = [
        next(nonempty) if x.size else jax.device_put(jnp.zeros(x.shape, x.dtype), x.sharding)
        for x in leaves
    ]
    return jax.tree.unflatten(structure, full)


def _snapshot(tree: Any) -> Any:
    """Copy arrays, because the originals may be donated.

    A single process copies them to the host: for arrays on several devices, orbax saves slices and
    compiles a program for each shape. Several processes copy them on their devices.
    """
    if processes.is_distributed():
        return _copies(tree)
    for x in jax.tree.leaves(tree):
        x.copy_to_host_async()  # all arrays of a GPU or TPU in parallel
    return jax.tree.map(_host_copy, tree)


def _host_copy(x: jax.Array) -> np.ndarray | jax.Array:
    """Copy an array to the host; random keys, which NumPy does not support, on their device."""
    if _is_key(x):
        return jax.device_put(x, x.sharding, may_alias=False)
    return np.array(x)


def _is_key(x: jax.Array | jax.ShapeDtypeStruct) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


@jax.jit
def _copies(tree: Any) -> Any:
    """Copy arrays on their devices."""
    return jax.tree.map(jnp.copy, tree)


def restore(
    run_dir: str | Path,
    checkpoint: str | int = "best",
    *,
    overrides: Mapping[str, Any] | None = None,
) -> Agent:
    """Restore a trained agent with its observation normaliser from a run folder.

    If the run has several agents, the result holds all of them, and `Agent.member` selects one. If
    no agent has been evaluated, "best" is the last checkpoint, and a warning is logged. Restoring
    executes code: the config may name files, modules and programs, which `runs.folder.imports`
    lists.

    Args:
        run_dir: the run folder, as written by `purejaxppo train`.
        checkpoint: "best", "last", or the environment steps of a checkpoint or of
            the best agent.
        overrides: values of config fields by dotted name, for objects that config.yaml cannot
            restore: {"env.name": Walk()}.

    Raises:
        ValueError: the run or the checkpoint does not exist or cannot be read.
    """
    run_dir = user_path(run_dir, "run_dir")
    check_is_run(run_dir)
    config = load_config(run_dir / CONFIG, overrides, saved=True)
    if "env.name" in (overrides or {}):
        registry.check_code(config.env)
    saved, item, arrays = _find(run_dir, checkpoint)
    members = load_members(run_dir / MEMBERS, config) or [config]
    check_platforms(calls_lapack=registry.calls_lapack(config.env))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        abstract_agents(config, len(members)),
    )
    if not any(name.startswith(STATISTICS) for name in arrays):
        template = template.agent
    state = _placed(arrays, template, saved.folder)
    progress = saved.progress
    best = item == "best"
    if best and None in progress.member_best:
        without = [str(i) for i, best in enumerate(progress.member_best) if best is None]
        log.warning(
            "%s: agents %s never had a finite evaluation return. Their parameters from the first "
            "evaluation are used.",
            run_dir,
            ", ".join(without),
        )
    steps = progress.member_best_steps if best else progress.member_steps
    env_steps = max(steps, default=0) if best else progress.env_steps
    agents = Agent(config, state, env_steps, tuple(members), tuple(steps))
    return agents if len(members) > 1 else agents.member(0)


def last_progress(run_dir: Path) -> Progress:
    """Return the counters of the newest readable checkpoint; initial ones without a checkpoint."""
    for step in reversed(steps_of(run_dir)):
        with contextlib.suppress(CorruptError):
            return Checkpoint.open(run_dir / "checkpoints" / str(step)).progress
    return Progress()


def restore_all(run_dir: str | Path) -> list[Agent]:
    """Restore the agents of all readable checkpoints of a run, in order.

    A warning names corrupt checkpoints.

    Raises:
        ValueError: the run does not exist, or has no readable checkpoint.
    """
    run_dir = user_path(run_dir, "run_dir")
    check_is_run(run_dir)
    agents, corrupt = [], ""
    for step in steps_of(run_dir):
        try:
            agents.append(restore(run_dir, step))
        except CorruptError as error:
            log.warning("%s", error)
            corrupt = str(error)
    if not agents:
        raise ValueError(corrupt or f"{short_path(run_dir)}: no checkpoint has been saved yet")
    return agents


def _find(run_dir: Path, checkpoint: str | int) -> tuple[Checkpoint, str, dict[str, np.ndarray]]:
    """Read a checkpoint, an item and its arrays; `restore` describes the arguments and errors."""
    folder = run_dir / "checkpoints"
    steps = steps_in(folder)
    if not steps:
        raise ValueError(f"{short_path(run_dir)}: no checkpoint has been saved yet")
    if checkpoint in ("best", "last"):
        return _find_newest(run_dir, best=checkpoint == "best")
    digits = str(checkpoint).replace(",", "")  # as in the line of the best evaluation
    step = whole(int(digits) if digits.isdecimal() else checkpoint)
    if step not in steps:
        progress = last_progress(run_dir)
        if progress.member_best_steps == [step] and progress.member_best != [None]:
            return _find_newest(run_dir, best=True)
        has_best = (folder / str(steps[-1]) / "best").is_dir()
        known = ["best"] * has_best + ["last", *map(str, steps)]
        raise ValueError(
            f"{short_path(run_dir)}: unknown checkpoint {checkpoint!r}. "
            f"Checkpoints: {', '.join(known)}"
        )
    folder /= str(step)
    try:
        saved = Checkpoint.open(folder)
        return saved, "agent", saved.learned_arrays("agent")
    except CorruptError as error:
        if not folder.is_dir():
            raise CorruptError(
                f"{short_path(folder)} was deleted by a run that is still training. Try again."
            ) from error
        raise CorruptError(
            f"{short_path(folder)} is corrupt ({error}). "
            f"Use checkpoint = last for the newest readable one."
        ) from error


def _find_newest(run_dir: Path, *, best: bool) -> tuple[Checkpoint, str, dict[str, np.ndarray]]:
    """Read the best or the last agent from the newest checkpoint in which it is readable."""

    def read(saved: Checkpoint) -> tuple[Checkpoint, str, dict[str, np.ndarray]]:
        item = "best" if best and saved.has_best else "agent"
        return saved, item, saved.learned_arrays(item)

    folder = run_dir / "checkpoints"
    advice = "Try checkpoint = last, or restore a backup." if best else "Restore a backup."
    (saved, item, arrays), step, corrupt = _first_readable(folder, read, advice)
    if corrupt:
        log.warning(
            "%s. The checkpoint at %s steps is used instead, %s steps earlier.",
            _described(folder, corrupt),
            f"{step:,}",
            f"{max(corrupt) - step:,}",
        )
    if best and item != "best":
        log.warning(
            "%s: no agent has been evaluated. The last checkpoint is used.", short_path(run_dir)
        )
    return saved, item, arrays


def _first_readable(
    folder: Path, read: Callable[[Checkpoint], T], advice: str
) -> tuple[T, int, dict[int, str]]:
    """Read the newest readable checkpoint of a folder with checkpoints.

    If reading fails because a running training deleted the checkpoint, list the folder again.

    Args:
        folder: folder with one checkpoint per subfolder.
        read: reads a checkpoint, or raises CorruptError.
        advice: what the user can do if no checkpoint is readable, for the message.

    Returns:
        The result of `read`, the steps of its checkpoint, and the reason why each newer checkpoint
        is corrupt, by its steps.

    Raises:
        ValueError: all checkpoints are corrupt.
    """
    while True:
        steps, corrupt = steps_in(folder), dict[int, str]()
        for step in reversed(steps):
            try:
                return read(Checkpoint.open(folder / str(step))), step, corrupt
            except CorruptError as error:
                if steps_in(folder)[-1:] != steps[-1:]:
                    break
                corrupt[step] = str(error)
        else:
            raise ValueError(
                f"{_described(folder, corrupt)}. All checkpoints are corrupt. {advice}"
            )


def _described(folder: Path, corrupt: dict[int, str]) -> str:
    """Name the corrupt checkpoints of a folder."""
    reasons = ", ".join(f"{step} ({reason})" for step, reason in corrupt.items())
    return f"{short_path(folder)}: corrupt checkpoint{'s' * (len(corrupt) > 1)} {reasons}"
