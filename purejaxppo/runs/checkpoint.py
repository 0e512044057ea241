"""Checkpoints: the only file that imports orbax and tensorstore.

A checkpoint has four items: `agent` (all that evaluation needs), `train` (the rest of the
TrainState), `progress` (host counters and the checksum of every array) and, after the first
evaluation, `best`: the best agent so far. All arrays have a leading axis of members. Orbax renames
a finished checkpoint into place: a run that is killed while saving still has its last complete one.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from purejaxppo.config.files import load_config
from purejaxppo.config.plain import whole
from purejaxppo.config.run_files import load_members
from purejaxppo.envs import registry
from purejaxppo.parallel import processes
from purejaxppo.runs import checksums
from purejaxppo.runs.agent import Agent, abstract_agents
from purejaxppo.runs.console import Stopped
from purejaxppo.runs.devices import check_platforms
from purejaxppo.runs.folder import CONFIG, MEMBERS, check_is_run, named_write_errors
from purejaxppo.runs.progress import Progress
from purejaxppo.types import AgentState, TrainState, named_leaves

log = logging.getLogger("purejaxppo")

T = TypeVar("T")

UNFINISHED = ".orbax-checkpoint-tmp"
"""Suffix of the folder of a checkpoint that is being written."""
ITEMS = ("agent", "train", "progress", "best")
CHECKSUMS = "checksums"
"""Key of the checksums among the saved counters; version 0.2 did not write it."""
ZARR = "/.zarray"
"""Suffix of the keys under which tensorstore stores the descriptions of arrays."""


class DamagedError(ValueError):
    """A checkpoint that cannot be read, or that differs from what was saved."""


class UnreadableError(Stopped, ValueError):
    """A folder in which checkpoints can be written but not read."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        folder: its folder, named after its environment steps.
        progress: its counters.
        checksums: by item and array, "agent.params.w"; None if version 0.2 saved it.
    """

    folder: Path
    progress: Progress
    checksums: dict[str, str] | None

    @classmethod
    def open(cls, folder: Path) -> "Checkpoint":
        """Reads the counters of a checkpoint.

        Raises:
            DamagedError: they cannot be read.
        """
        with _damage("progress"):
            counters = json.loads((folder / "progress" / "metadata").read_bytes())
            saved = counters.pop(CHECKSUMS, None)
            if saved is not None:
                expected = saved.pop("progress")
                if expected != checksums.of_counters({**counters, **saved}):
                    raise DamagedError("progress has a wrong checksum")
            return cls(folder, Progress.read(counters), saved)

    @property
    def has_best(self) -> bool:
        """True if a best agent was saved."""
        saved = any(name.startswith("best.") for name in self.checksums or ())
        return saved or (self.folder / "best").is_dir()

    def arrays(self, item: str) -> dict[str, np.ndarray]:
        """Reads all arrays of an item by name, and compares checksums; random keys as their data.

        Raises:
            DamagedError: they cannot be read, or were changed.
        """
        with _damage(item), _plain_path(self.folder / item) as folder:
            arrays = _read_arrays(folder)
        if self.checksums is not None:
            found = checksums.of_arrays(_prefixed(item, arrays))
            saved = {name: x for name, x in self.checksums.items() if name.startswith(f"{item}.")}
            if wrong := sorted(dict(found.items() ^ saved.items())):
                raise DamagedError(f"{wrong[0]} has a wrong checksum")
        return arrays

    def check(self) -> None:
        """Reads everything.

        Raises:
            DamagedError: an item cannot be read, or was changed.
        """
        for item in ("agent", "train", *["best"] * self.has_best):
            self.arrays(item)

    def restore(self, item: str, template: Any) -> Any:
        """Reads an item into the shapes, types and shardings of `template`.

        Raises:
            DamagedError: as `arrays`.
            ValueError: the arrays do not fit the template.
        """
        return _placed(self.arrays(item), template, self.folder)


class Checkpoints:
    """The checkpoints of one run folder, for the run that trains in it.

    The constructor reads the newest checkpoint. If it is damaged, it is renamed, and the newest
    intact one is used instead. Process 0 chooses for all.

    Args:
        run_dir: the run's folder; `checkpoints/` in it has a folder per checkpoint, STEPS.
        keep: number of the newest checkpoints that stay on disk.

    Raises:
        ValueError: all existing checkpoints are damaged.
    """

    def __init__(self, run_dir: Path, keep: int = 2) -> None:
        """Opens (and creates) the folder."""
        self._folder = run_dir / "checkpoints"
        self._keep = keep
        latest = None
        with processes.raise_together(), named_write_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            if processes.is_main():
                self._remove_unfinished()
                if _steps(self._folder):
                    latest = self._newest_intact()
        latest = processes.of_main(-1 if latest is None else latest)
        self._latest = None if latest < 0 else latest
        self._saving = False
        self._closing = contextlib.ExitStack()
        self._plain = self._closing.enter_context(_plain_path(self._folder))
        # If a folder that is created in the background cannot be created, threads wait for it for
        # five minutes and keep the process alive.
        now = ocp.AsyncOptions(create_directories_asynchronously=False)
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(), async_options=now
        )

    def _newest_intact(self) -> int:
        """Returns the steps of the newest intact checkpoint, and renames newer, damaged ones."""
        advice = "Restore a backup, delete this run with --clobber, or use another --run_dir."
        _, step, damaged = _first_intact(self._folder, lambda saved: saved.check(), advice)
        if damaged:
            names = [self._set_aside(number).name for number in damaged]
            log.warning(
                "%s. Training continues from checkpoint %d, %s steps earlier. Renamed to %s.",
                _described(self._folder, damaged),
                step,
                f"{max(damaged) - step:,}",
                ", ".join(names),
            )
        return step

    def _set_aside(self, step: int) -> Path:
        """Renames the folder of a damaged checkpoint; returns its new path."""
        folder, number = self._folder / str(step), 1
        target = folder.with_suffix(".damaged")
        while target.exists():
            number += 1
            target = folder.with_suffix(f".damaged{number}")
        return folder.rename(target)

    def latest(self) -> int | None:
        """Environment steps of the last save, None if there is none."""
        return self._latest

    def finished(self) -> int | None:
        """Environment steps of the last save that is complete on disk, None if there is none."""
        return max(_steps(self._folder), default=None)

    def progress(self) -> Progress:
        """The counters of the last save, without its arrays."""
        return Checkpoint.open(self._folder / str(self._latest)).progress

    def save(self, state: TrainState, progress: Progress, best: AgentState | None = None) -> bool:
        """Saves the whole state, in the background; the caller may donate it right after.

        `best` holds the best agent of each member, in one tree. Returns False if these steps are
        saved already. The first checkpoint of a run is read back before this returns.

        Raises:
            UnreadableError: the first checkpoint cannot be read back.
        """
        step = progress.env_steps
        if self._latest == step:
            return False
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
                self._set_aside(step)
            self._latest, self._saving = step, True
            self._checkpointer.save(self._plain / str(step), args=ocp.args.Composite(**items))
        if first:
            self._read_back(step)
        return True

    def _read_back(self, step: int) -> None:
        self.wait()
        with processes.raise_together():
            if processes.is_main():
                folder = self._folder / str(step)
                try:
                    Checkpoint.open(folder).check()
                except DamagedError as error:
                    raise UnreadableError(
                        f"{folder}: the first checkpoint was written but cannot be read back "
                        f"({error}). Train into another --run_dir, on another file system."
                    ) from error

    def restore(self, template: TrainState) -> tuple[TrainState, AgentState | None, Progress]:
        """Loads the last save: the state, the best agents and the counters.

        `template` gives the shapes, types and shardings of the state.

        Raises:
            ValueError: the checkpoint does not fit the template.
        """
        saved = Checkpoint.open(self._folder / str(self._latest))
        agent = saved.restore("agent", template.agent)
        rest = template.replace(agent=None)
        train = _with_empty(saved.restore("train", _without_empty(rest)), rest)
        best = saved.restore("best", template.agent) if saved.has_best else None
        return train.replace(agent=agent), best, saved.progress

    def wait(self) -> None:
        """Waits until saves in progress are on disk, and deletes old ones.

        Raises:
            OSError: a save could not be written.
        """
        with self._writing():
            self._checkpointer.wait_until_finished()
        if self._saving and processes.is_main():
            for step in _steps(self._folder)[: -self._keep]:
                shutil.rmtree(self._folder / str(step), ignore_errors=True)

    def close(self) -> None:
        """Waits for saves in progress, and closes the folder."""
        with self._closing:
            try:
                self.wait()
            finally:
                self._checkpointer.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Names the folder in errors of writing, and removes unfinished saves after them.

        Raises:
            OSError: in one sentence.
        """
        try:
            with named_write_errors(self._folder, Exception):
                yield
        except OSError:
            self._latest, self._saving = self.finished(), False
            for _ in range(10):  # threads of the save may still write for a short time
                self._remove_unfinished()
                time.sleep(0.1)
            raise

    def _remove_unfinished(self) -> None:
        """Deletes the folders of unfinished saves as far as possible."""
        for path in self._folder.glob(f"*{UNFINISHED}"):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _damage(item: str) -> Iterator[None]:
    """Turns any failure to read an item into one sentence.

    Raises:
        DamagedError: the item cannot be read.
    """
    try:
        yield
    except DamagedError:
        raise
    except Exception as error:  # orbax and tensorstore raise many classes
        log.debug("reading a checkpoint failed", exc_info=True)
        reason = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        raise DamagedError(f"{item} cannot be read{reason}") from error


@contextlib.contextmanager
def _plain_path(folder: Path) -> Iterator[Path]:
    """Yields a path to a folder that orbax and tensorstore can use.

    Orbax reads `[`, `*` and `?` in a path as a glob pattern, and tensorstore reads a backslash as a
    slash. Paths with such characters are replaced by a temporary symlink.
    """
    path = str(folder.resolve())
    if re.fullmatch(r"[^\\*?\[\]\ud800-\udfff]*", path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="purejaxppo-") as temporary:
        link = Path(temporary, "checkpoints")
        link.symlink_to(path, target_is_directory=True)
        yield link


def _read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of an item by name.

    Orbax could read them, but after a damaged array its unfinished reads print tracebacks.
    """
    context = ts.Context()
    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}}
    keys = ts.KvStore.open(store, context=context).result().list().result()
    names = [key.decode().removesuffix(ZARR) for key in keys if key.decode().endswith(ZARR)]
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
    """The arrays of an item by the names of their checksums, "agent.params.w"."""
    return {f"{item}.{name}": x for name, x in named_leaves(tree).items()}


def _placed(arrays: dict[str, np.ndarray], template: Any, folder: Path) -> Any:
    """Puts arrays into the tree of a template, on its devices.

    Raises:
        ValueError: names or shapes differ.
    """
    leaves = named_leaves(template)
    shapes = {
        name: jax.eval_shape(jax.random.key_data, x).shape if _is_key(x) else x.shape
        for name, x in leaves.items()
    }
    arrays = _with_more_starts(arrays, shapes)
    found = {name: x.shape for name, x in arrays.items()}
    if shapes.keys() - found.keys() == {"bonus_return"}:
        raise ValueError(
            f"{folder}: version 0.2 or older saved this checkpoint and scaled intrinsic rewards "
            f"differently. The run cannot be resumed, but it can be evaluated. To train, use "
            f"another --run_dir."
        )
    if shapes != found:
        log.debug("%s: expected shapes %s, found %s", folder, shapes, found)
        raise ValueError(
            f"{folder}: the checkpoint does not match the run's config.yaml. One of them was "
            f"changed, damaged, or written by another version."
        )
    placed = [_place(arrays[name], x) for name, x in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(template), placed)


def _with_more_starts(
    arrays: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Repeat the starts in states of version 0.2 to the number that this version has.

    Their `turn` is missing if all starts were drawn for every rollout.
    """
    more = {}
    for name, shape in shapes.items():
        if name.endswith(".turn") and name not in arrays:
            more[name] = np.zeros(shape, np.int32)
        elif ".fresh." in name and name in arrays and arrays[name].ndim == len(shape):
            times = [n // max(m, 1) for n, m in zip(shape, arrays[name].shape, strict=True)]
            more[name] = np.tile(arrays[name], times)
    return {**arrays, **more}


def _place(array: np.ndarray, like: jax.Array) -> jax.Array:
    """Puts an array on the devices of another one; each process stores its part."""
    if _is_key(like):
        wrap = functools.partial(jax.random.wrap_key_data, impl=jax.random.key_impl(like))
        return jax.jit(wrap, out_shardings=like.sharding)(array)
    array = array.astype(like.dtype, copy=False)
    return jax.make_array_from_callback(array.shape, like.sharding, lambda index: array[index])


def _without_empty(tree: Any) -> Any:
    """Removes a tree's arrays of size 0, which orbax cannot save; MJX's states have some."""
    return jax.tree.map(lambda x: x if x.size else None, tree)


def _with_empty(tree: Any, template: Any) -> Any:
    """Undoes `_without_empty`."""
    rest = iter(jax.tree.leaves(tree))
    leaves, structure = jax.tree.flatten(template)
    full = [
        next(rest) if x.size else jax.device_put(jnp.zeros(x.shape, x.dtype), x.sharding)
        for x in leaves
    ]
    return jax.tree.unflatten(structure, full)


def _snapshot(tree: Any) -> Any:
    """Copies arrays, so that the originals can be donated.

    A process that trains alone copies them to the host: of arrays on several devices orbax saves
    slices, and compiles a program for each shape. Several processes copy them where they are.
    """
    if processes.is_distributed():
        return _copies(tree)
    for x in jax.tree.leaves(tree):
        x.copy_to_host_async()  # of an accelerator: all of them at once
    return jax.tree.map(_host_copy, tree)


def _host_copy(x: jax.Array) -> np.ndarray | jax.Array:
    """A copy on the host; of random keys, which have no type there, on a device."""
    if _is_key(x):
        return jax.device_put(x, x.sharding, may_alias=False)
    return np.array(x)


def _is_key(x: jax.Array | jax.ShapeDtypeStruct) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


@jax.jit
def _copies(tree: Any) -> Any:
    """Copies arrays where they are."""
    return jax.tree.map(jnp.copy, tree)


def restore(
    run_dir: str | Path,
    checkpoint: str | int = "best",
    *,
    overrides: Mapping[str, Any] | None = None,
) -> Agent:
    """Restores a trained agent, with its training normaliser, from a run folder.

    For a run of many agents it has them all; `Agent.member` selects one. Where no evaluation has
    found a best agent, "best" is the last save, and a warning is logged. Restoring runs code: the
    config may name files, modules and programs, which `runs.folder.imports` lists.

    Args:
        run_dir: as made by `purejaxppo train`.
        checkpoint: "best", "last", or the environment steps of a save.
        overrides: values of config fields by dotted name, above all objects that the config
            cannot restore: {"env.name": Walk()}.

    Raises:
        ValueError: no such run or checkpoint; says what there is.
    """
    run_dir = Path(run_dir)
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
    state = _placed(arrays, template, saved.folder)
    progress = saved.progress
    best = item == "best"
    if best and None in progress.member_best:
        without = [str(i) for i, best in enumerate(progress.member_best) if best is None]
        log.warning(
            "%s: agents without a best evaluation: %s. They are used as they were at the first "
            "evaluation.",
            run_dir,
            ", ".join(without),
        )
    steps = progress.member_best_steps if best else progress.member_steps
    agents = Agent(config, state, progress.env_steps, tuple(members), tuple(steps))
    return agents if len(members) > 1 else agents.member(0)


def restore_all(run_dir: str | Path) -> list[Agent]:
    """Restores the agents of all checkpoints of a run, in order; a warning names damaged ones.

    Raises:
        ValueError: no such run, or nothing has been saved, or all checkpoints are damaged.
    """
    run_dir = Path(run_dir)
    check_is_run(run_dir)
    agents, damaged = [], ""
    for step in _steps(run_dir / "checkpoints"):
        try:
            agents.append(restore(run_dir, step))
        except DamagedError as error:
            log.warning("%s", error)
            damaged = str(error)
    if not agents:
        raise ValueError(damaged or f"{run_dir}: no checkpoint has been saved yet")
    return agents


def _find(run_dir: Path, checkpoint: str | int) -> tuple[Checkpoint, str, dict[str, np.ndarray]]:
    """Reads a checkpoint, an item and its arrays; `restore` describes the arguments and errors."""
    saves = run_dir / "checkpoints"
    steps = _steps(saves)
    if not steps:
        raise ValueError(f"{run_dir}: no checkpoint has been saved yet")
    if checkpoint in ("best", "last"):
        return _find_newest(run_dir, best=checkpoint == "best")
    step = whole(int(checkpoint) if str(checkpoint).isdecimal() else checkpoint)
    if step not in steps:
        has_best = (saves / str(steps[-1]) / "best").is_dir()
        known = ["best"] * has_best + ["last", *map(str, steps)]
        raise ValueError(
            f"{run_dir}: unknown checkpoint {checkpoint!r}. Checkpoints: {', '.join(known)}"
        )
    folder = saves / str(step)
    try:
        saved = Checkpoint.open(folder)
        return saved, "agent", saved.arrays("agent")
    except DamagedError as error:
        if not folder.is_dir():
            raise DamagedError(
                f"{folder} was deleted by a run that is still training. Try again."
            ) from error
        raise DamagedError(
            f"{folder} is damaged ({error}). Use checkpoint = last for the newest intact one."
        ) from error


def _find_newest(run_dir: Path, *, best: bool) -> tuple[Checkpoint, str, dict[str, np.ndarray]]:
    """Reads the best or the last agent from the newest checkpoint in which it is intact."""

    def read(saved: Checkpoint) -> tuple[Checkpoint, str, dict[str, np.ndarray]]:
        item = "best" if best and saved.has_best else "agent"
        return saved, item, saved.arrays(item)

    folder = run_dir / "checkpoints"
    advice = "Try checkpoint = last, or restore a backup." if best else "Restore a backup."
    (saved, item, arrays), step, damaged = _first_intact(folder, read, advice)
    if damaged:
        log.warning(
            "%s. Checkpoint %d is used instead, %s steps earlier.",
            _described(folder, damaged),
            step,
            f"{max(damaged) - step:,}",
        )
    if best and item != "best":
        log.warning("%s: no agent has been evaluated. The last checkpoint is used.", run_dir)
    return saved, item, arrays


def _first_intact(
    folder: Path, read: Callable[[Checkpoint], T], advice: str
) -> tuple[T, int, dict[int, str]]:
    """Reads the newest intact checkpoint of a folder that has checkpoints.

    A run that trains at the same time deletes old checkpoints. If there is a newer checkpoint after
    a failure, the folder is listed again, and the failure does not count as damage.

    Returns:
        The result of `read`, the steps of its checkpoint, and the damage of newer checkpoints by
        their steps.

    Raises:
        ValueError: all checkpoints are damaged.
    """
    while True:
        steps, damaged = _steps(folder), dict[int, str]()
        for step in reversed(steps):
            try:
                return read(Checkpoint.open(folder / str(step))), step, damaged
            except DamagedError as error:
                if _steps(folder)[-1:] != steps[-1:]:
                    break
                damaged[step] = str(error)
        else:
            raise ValueError(
                f"{_described(folder, damaged)}. All checkpoints are damaged. {advice}"
            )


def _described(folder: Path, damaged: dict[int, str]) -> str:
    """Names the damaged checkpoints of a folder."""
    reasons = ", ".join(f"{step} ({reason})" for step, reason in damaged.items())
    return f"{folder}: damaged checkpoint{'s' * (len(damaged) > 1)} {reasons}"


def _steps(folder: Path) -> list[int]:
    """The finished checkpoints of a folder, in order; other files and folders are ignored."""
    if not folder.is_dir():
        return []
    return sorted(
        int(path.name)
        for path in folder.iterdir()
        if re.fullmatch(r"0|[1-9][0-9]*", path.name)
        and any((path / item).is_dir() for item in ITEMS)
    )
