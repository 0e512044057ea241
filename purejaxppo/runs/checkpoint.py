"""Saving and restoring runs: the only file that imports orbax.

A save has four items: `agent` (all that evaluation needs), `train` (the rest of the TrainState),
`progress` (host counters) and, once there has been an evaluation, `best`: the best agent so far.
All arrays have a leading axis of members. Orbax renames a finished save into place, so that a run
that is killed while saving still has its last complete one.
"""

import contextlib
import dataclasses
import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

from purejaxppo import program_keys
from purejaxppo.config.files import load_config
from purejaxppo.config.run_files import load_members
from purejaxppo.envs import registry
from purejaxppo.parallel import processes
from purejaxppo.runs.devices import check_platforms
from purejaxppo.runs.folder import CONFIG, MEMBERS, check_is_run, writing_to
from purejaxppo.runs.progress import Progress
from purejaxppo.trained_agent import Agent, abstract_agents
from purejaxppo.types import AgentState, TrainState

log = logging.getLogger("purejaxppo")

UNFINISHED = ".orbax-checkpoint-tmp"
"""End of the name of a save that is being written."""
OLD_BEST = "best"
"""Folder of the best agent of a run of version 0.1 that trained alone."""


class Checkpoints:
    """The saves of one run folder.

    Args:
        run_dir: the run's folder; its `checkpoints/` holds the last saves by environment steps.
        keep: number of the last saves that stay on disk.
    """

    def __init__(self, run_dir: Path, keep: int = 2) -> None:
        """Opens (and creates) the folder."""
        self._folder = run_dir / "checkpoints"
        self._manager = _manager(self._folder, keep)
        self._old_best = run_dir / OLD_BEST
        if processes.is_main():
            self._remove_unfinished()

    def latest(self) -> int | None:
        """Environment steps of the last save, None if there is none."""
        return self._manager.latest_step()

    def finished(self) -> int | None:
        """Environment steps of the last save that is complete on disk, None if there is none."""
        return max(_steps(Path(self._manager.directory)), default=None)

    def progress(self) -> Progress:
        """The counters of the last save, without its arrays."""
        return Progress.read(_restore(self._manager, self.latest(), {})["progress"])

    def save(self, state: TrainState, progress: Progress, best: AgentState | None = None) -> bool:
        """Saves the whole state, in the background; the caller may donate it right after.

        `best` holds the best agent of each member, in one tree. Returns False if these steps are
        saved already.
        """
        if self._manager.latest_step() == progress.env_steps:
            return False
        copy, best = _snapshot((state, best))
        items = {
            "agent": ocp.args.StandardSave(copy.agent),
            "train": ocp.args.StandardSave(_without_empty(copy.replace(agent=None))),
            "progress": ocp.args.JsonSave(dataclasses.asdict(progress)),
        }
        if best is not None:
            items["best"] = ocp.args.StandardSave(best)
        with self._writing():
            self._manager.save(progress.env_steps, args=ocp.args.Composite(**items))
        return True

    def restore(self, template: TrainState) -> tuple[TrainState, AgentState | None, Progress]:
        """Loads the last save: the state, the best agents and the counters.

        `template` gives the shapes, types and shardings of the state.
        """
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
        step = self.latest()
        folder = Path(self._manager.directory) / str(step)
        wanted = {
            "agent": abstract.agent,
            "train": _without_empty(abstract.replace(agent=None)),
        }
        if (folder / "best").is_dir():
            wanted["best"] = abstract.agent
        items = _restore(self._manager, step, wanted)
        train = _with_empty(items["train"], abstract.replace(agent=None))
        progress = Progress.read(items["progress"])
        best = items.get("best")
        if best is None and progress.best_return is not None:
            best = self._restore_old_best(abstract.agent, progress)
        if best is None:
            progress = progress.without_best()
        return train.replace(agent=items["agent"]), best, progress

    def _restore_old_best(self, abstract: AgentState, progress: Progress) -> AgentState | None:
        """Loads the best agent of version 0.1, which saved it apart; None if it is gone."""
        step = progress.member_best_steps[0]
        if step not in _steps(self._old_best):
            return None
        with _manager(self._old_best, None) as manager:
            return _restore(manager, step, {"agent": abstract})["agent"]

    def clear_old_best(self) -> None:
        """Deletes the best agent of a run of version 0.1 that ended before its first save."""
        shutil.rmtree(self._old_best, ignore_errors=True)

    def wait(self) -> None:
        """Waits until saves in progress are on disk.

        Raises:
            OSError: one of them could not be written.
        """
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for saves in progress, and closes the folder."""
        try:
            self.wait()
        finally:
            self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Names the folder in errors of writing, and removes unfinished saves after one.

        Raises:
            OSError: one sentence.
        """
        try:
            with writing_to(self._folder, Exception):
                yield
        except OSError:
            for _ in range(10):  # threads of the save end a few moments later
                self._remove_unfinished()
                time.sleep(0.1)
            raise

    def _remove_unfinished(self) -> None:
        """Deletes folders of saves that did not end, as far as that is possible."""
        for path in self._folder.glob(f"*{UNFINISHED}"):
            shutil.rmtree(path, ignore_errors=True)


def _manager(folder: Path, keep: int | None) -> ocp.CheckpointManager:
    # Processes that save together synchronise under a name of prefix and step. Two managers may
    # save at once: each needs a prefix of its own.
    apart = ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=folder.name)
    # Where folders are created in the background, threads wait five minutes for one that cannot be
    # created, and keep the process alive.
    now = ocp.AsyncOptions(create_directories_asynchronously=False)
    return ocp.CheckpointManager(
        folder.resolve(),
        options=ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=True, multiprocessing_options=apart, async_options=now
        ),
        item_names=("agent", "best", "train", "progress"),
    )


def _restore(manager: ocp.CheckpointManager, step: int | None, wanted: dict[str, Any]) -> Any:
    """Restores items of a save with the shapes that are `wanted`, and its counters.

    Version 0.1 saved an agent that trained alone without an axis of members, which is added.

    Raises:
        ValueError: they do not fit, in one sentence.
    """
    counters = ocp.args.Composite(progress=ocp.args.JsonRestore())
    try:
        progress = manager.restore(step, args=counters)["progress"]
        Progress.read(progress)
        alone = not progress["member_steps"]
        stored = jax.tree.map(_without_axis, wanted) if alone else wanted
        for name, template in stored.items():
            _check_shapes(manager.directory / str(step) / name, template)
        args = {name: ocp.args.StandardRestore(tree) for name, tree in stored.items()}
        restored = manager.restore(step, args=ocp.args.Composite(**args)) if args else {}
        items = {**dict(restored.items()), "progress": progress}
    except (ValueError, KeyError, TypeError, OSError) as error:
        log.debug("restoring failed", exc_info=True)
        raise ValueError(
            f"{manager.directory / str(step)} does not fit the run's config.yaml: one of them was "
            f"changed or damaged, or made by another version"
        ) from error
    if alone:
        items |= {
            name: jax.tree.map(_with_axis, items[name], tree) for name, tree in wanted.items()
        }
    return items


def _with_axis(x: jax.Array, described: jax.ShapeDtypeStruct) -> jax.Array:
    """Adds a leading axis to an array; orbax describes keys with one axis more."""
    sharding = described.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[: x.ndim + 1]))
    return jax.jit(lambda x: x[None], out_shardings=sharding)(x)


def _without_axis(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The description of an array without its leading axis."""
    sharding = x.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=sharding)


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


def _check_shapes(folder: Path, template: Any) -> None:
    """Checks shapes before orbax does, whose check leaves unfinished reads that fail at exit."""
    stored = ocp.StandardCheckpointHandler().metadata(folder).tree
    shapes = {leaf.name: leaf.shape for leaf in jax.tree.leaves(stored)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(template):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if not _is_key(leaf) and shapes[name] != leaf.shape:
            raise ValueError(f"{name} is {shapes[name]} in {folder}, and should be {leaf.shape}")


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
    folder, step, item = _find(run_dir, checkpoint)
    members = load_members(run_dir / MEMBERS, config) or [config]
    check_platforms(calls_lapack=registry.calls_lapack(config.env))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    store = program_keys.store(config, [], "agents", len(members))
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        store.fact("agents", lambda: abstract_agents(config, len(members))),
    )
    with _manager(folder, 1_000_000) as manager:
        items = _restore(manager, step, {item: template})
    progress = Progress.read(items["progress"])
    best = item == "best" or folder.name == OLD_BEST
    if best and None in progress.member_best:
        without = [str(i) for i, best in enumerate(progress.member_best) if best is None]
        log.warning("%s: no evaluation has found a best agent %s", run_dir, ", ".join(without))
    steps = progress.member_best_steps if best else progress.member_steps
    agents = Agent(config, items[item], progress.env_steps, tuple(members), tuple(steps))
    return agents if len(members) > 1 else agents.member(0)


def saved_steps(run_dir: Path) -> list[int]:
    """Environment steps of a run's saves, in order.

    Raises:
        ValueError: no such run, or nothing has been saved.
    """
    check_is_run(run_dir)
    if steps := _steps(run_dir / "checkpoints"):
        return steps
    raise ValueError(f"{run_dir}: nothing has been saved yet")


def _find(run_dir: Path, checkpoint: str | int) -> tuple[Path, int, str]:
    """The folder, the step and the item of a save; `restore` describes the arguments and errors."""
    saves, old = run_dir / "checkpoints", run_dir / OLD_BEST
    last, old_best = _steps(saves), _steps(old)
    if not last and not old_best:
        raise ValueError(f"{run_dir}: nothing has been saved yet")
    has_best = bool(last) and (saves / str(last[-1]) / "best").is_dir()
    if checkpoint == "best":
        if has_best:
            return saves, last[-1], "best"
        if old_best:
            return old, old_best[-1], "agent"
        log.warning("%s: no evaluation has found a best agent; this is the last save", run_dir)
        return saves, last[-1], "agent"
    if checkpoint == "last" and last:
        return saves, last[-1], "agent"
    if str(checkpoint).isdigit() and int(checkpoint) in (*last, *old_best):
        step = int(checkpoint)
        return (saves if step in last else old), step, "agent"
    known = ["best"] * (has_best or bool(old_best)) + ["last"] * bool(last)
    known += dict.fromkeys(str(s) for s in (*last, *old_best))
    raise ValueError(f"{run_dir}: no checkpoint {checkpoint!r}; there is {', '.join(known)}")


def _steps(folder: Path) -> list[int]:
    """The finished saves of a folder, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
