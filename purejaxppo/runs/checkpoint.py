"""Saving and restoring runs: the only file that imports orbax.

A save has three items: `agent` (all that evaluation needs), `train` (the rest of the TrainState)
and `progress` (host counters); where many agents train side by side, also `best`, the best of each
so far. Orbax renames a finished save into place, so that a run that is killed while saving still
has its last complete one.
"""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from purejaxppo.config.files import load_config, load_members
from purejaxppo.evaluation import Agent
from purejaxppo.types import AgentState, TrainState

log = logging.getLogger("purejaxppo")


@dataclasses.dataclass
class Progress:
    """Host counters of a run, saved beside its state."""

    update: int = 0
    env_steps: int = 0
    train_seconds: float = 0.0
    """Training alone, without compiling, evaluating and saving."""
    best_return: float | None = None
    best_env_steps: int = 0
    """Environment steps of the save in `best/` that has this return."""
    member_steps: list[int] = dataclasses.field(default_factory=list)
    """Environment steps of each of several agents in one run; `env_steps` is their mean."""
    member_best: list[float | None] = dataclasses.field(default_factory=list)
    member_best_steps: list[int] = dataclasses.field(default_factory=list)


class Checkpoints:
    """The saves of one run folder.

    Args:
        run_dir: the run's folder; `checkpoints/` holds the last saves by environment steps, `best/`
            the agent with the best evaluation.
        keep: number of the last saves that stay on disk.
    """

    def __init__(self, run_dir: Path, keep: int = 2) -> None:
        """Opens (and creates) the folders."""
        self._last = _manager(run_dir / "checkpoints", keep)
        self._best = _manager(run_dir / "best", None)
        self._recorded: list[int] = []
        """Steps of the best agent that the last complete save names, then of the one that a save
        in progress names: a killed run may resume from either, and needs its best agent."""

    def latest(self) -> int | None:
        """Environment steps of the last save, None if there is none."""
        return self._last.latest_step()

    def finished(self) -> int | None:
        """Environment steps of the last save that is complete on disk, None if there is none."""
        return max(_steps(Path(self._last.directory)), default=None)

    def progress(self) -> Progress:
        """The counters of the last save, without its arrays."""
        args = ocp.args.Composite(progress=ocp.args.JsonRestore())
        items = _restore(self._last, self.latest(), args)
        return Progress(**items["progress"])

    def save(self, state: TrainState, progress: Progress, best: AgentState | None = None) -> None:
        """Saves the whole state, in the background; the caller may donate it right after.

        `best` holds the best agents of a run of many, in one tree.
        """
        if self._last.latest_step() == progress.env_steps:
            return
        self._last.wait_until_finished()
        self._recorded = self._recorded[-1:]
        self._drop_superseded()
        copy, best = _snapshot((state, best))
        items = {
            "agent": ocp.args.StandardSave(copy.agent),
            "train": ocp.args.StandardSave(_without_empty(copy.replace(agent=None))),
            "progress": ocp.args.JsonSave(dataclasses.asdict(progress)),
        }
        if best is not None:
            items["best"] = ocp.args.StandardSave(best)
        self._last.save(progress.env_steps, args=ocp.args.Composite(**items))
        self._recorded.append(progress.best_env_steps)

    def save_best(self, agent: AgentState, progress: Progress) -> None:
        """Saves a better agent; the previous one stays until the next save that names this one."""
        if progress.env_steps in self._best.all_steps():
            return
        self._drop_superseded()
        self._best.save(
            progress.env_steps,
            args=ocp.args.Composite(
                agent=ocp.args.StandardSave(_snapshot(agent)),
                progress=ocp.args.JsonSave(dataclasses.asdict(progress)),
            ),
        )

    def clear_best(self) -> None:
        """Deletes the best agent of a run that ended before its first save and starts again."""
        for step in self._best.all_steps():
            self._best.delete(step)

    def _drop_superseded(self) -> None:
        """Deletes best agents but the newest and those that a run may resume with."""
        for step in sorted(self._best.all_steps())[:-1]:
            if step not in self._recorded:
                self._best.delete(step)

    def restore(self, template: TrainState) -> tuple[TrainState, Progress]:
        """Loads the last save with the shapes, types and shardings of `template`."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
        items = _restore(
            self._last,
            self.latest(),
            ocp.args.Composite(
                agent=ocp.args.StandardRestore(abstract.agent),
                train=ocp.args.StandardRestore(_without_empty(abstract.replace(agent=None))),
                progress=ocp.args.JsonRestore(),
            ),
        )
        progress = Progress(**items["progress"])
        for step in self._best.all_steps():  # from after this save: found again
            if step > progress.env_steps:
                self._best.delete(step)
        if not progress.member_best and progress.best_env_steps not in self._best.all_steps():
            progress.best_return, progress.best_env_steps = None, 0  # its save is gone
        self._recorded = [progress.best_env_steps]
        train = _with_empty(items["train"], abstract.replace(agent=None))
        return train.replace(agent=items["agent"]), progress

    def restore_best(self, template: AgentState) -> AgentState:
        """Loads the best agents from the last save of a run of many agents."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
        args = ocp.args.Composite(
            best=ocp.args.StandardRestore(abstract), progress=ocp.args.JsonRestore()
        )
        return _restore(self._last, self.latest(), args)["best"]

    def wait(self) -> None:
        """Waits until saves in progress are on disk; raises their errors."""
        self._last.wait_until_finished()
        self._best.wait_until_finished()

    def close(self) -> None:
        """Waits for saves in progress, and closes the folders."""
        self._last.wait_until_finished()
        self._best.wait_until_finished()
        self._recorded = self._recorded[-1:]
        self._drop_superseded()
        self._last.close()
        self._best.close()


def _manager(folder: Path, keep: int | None) -> ocp.CheckpointManager:
    # Processes that save together synchronise under a name of prefix and step. Two managers may
    # save at once: each needs a prefix of its own.
    apart = ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=folder.name)
    return ocp.CheckpointManager(
        folder.resolve(),
        options=ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=True, multiprocessing_options=apart
        ),
        item_names=("agent", "best", "train", "progress"),
    )


def _restore(manager: ocp.CheckpointManager, step: int | None, args: Any) -> Any:
    """Restores items of a save; raises ValueError in one sentence if they do not fit."""
    try:
        for name in ("agent", "best", "train"):
            if name in args:
                _check_shapes(manager.directory / str(step) / name, args[name].item)
        items = manager.restore(step, args=args)
        Progress(**items["progress"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        log.debug("restoring failed", exc_info=True)
        raise ValueError(
            f"{manager.directory / str(step)} does not fit the run's config.yaml: one of them was "
            f"changed or damaged, or made by another version"
        ) from error
    return items


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
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) and shapes[name] != leaf.shape:
            raise ValueError(f"{name} is {shapes[name]} in {folder}, and should be {leaf.shape}")


@jax.jit
def _snapshot(tree: Any) -> Any:
    """Copies arrays, so that the originals can be donated."""
    return jax.tree.map(jnp.copy, tree)


def restore(run_dir: str | Path, checkpoint: str | int = "best") -> Agent:
    """Restores a trained agent, with its training normaliser, from a run folder.

    For a run of many agents it has them all; `Agent.member` selects one. Where no evaluation has
    found a best agent, "best" is the last save, and a warning is logged. Restoring runs code: the
    config may name Python files, which are imported (`config.files.imported_files` lists them).

    Args:
        run_dir: as made by `python -m purejaxppo.train`.
        checkpoint: "best", "last", or the environment steps of a save.

    Raises:
        ValueError: no such run or checkpoint; says what there is.
    """
    run_dir = Path(run_dir)
    if not (run_dir / "config.yaml").is_file():
        raise ValueError(f"{run_dir}: not a run folder (it has no config.yaml)")
    config = load_config(run_dir / "config.yaml")
    best, last = _steps(run_dir / "best"), _steps(run_dir / "checkpoints")
    if not best and not last:
        raise ValueError(f"{run_dir}: nothing has been saved yet")
    if checkpoint == "best":
        folder, step = ("best", best[-1]) if best else ("checkpoints", last[-1])
    elif checkpoint == "last" and last:
        folder, step = "checkpoints", last[-1]
    elif str(checkpoint).isdigit() and int(checkpoint) in (*last, *best):
        step = int(checkpoint)
        folder = "checkpoints" if step in last else "best"
    else:
        known = ["best"] * bool(best) + ["last"] * bool(last) + [str(s) for s in (*last, *best)]
        raise ValueError(
            f"{run_dir}: no checkpoint {checkpoint!r}; there is {', '.join(dict.fromkeys(known))}"
        )
    members = tuple(load_members(run_dir / "members.yaml", config))
    agent = Agent(config, AgentState({}, None), members=members)  # type: ignore[arg-type]
    init, key = agent.policy.init, jax.random.key(0)
    if members:
        init, key = jax.vmap(init), jnp.broadcast_to(key, len(members))
    template = jax.eval_shape(init, key)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), template
    )
    # The best agents of many are stored in each save of them all.
    item = "best" if members and checkpoint == "best" else "agent"
    with _manager(run_dir / folder, 1_000_000) as manager:
        if not (run_dir / folder / str(step) / item).is_dir():
            item = "agent"
        if checkpoint == "best" and (folder, item) == ("checkpoints", "agent"):
            log.warning("%s: no evaluation has found a best agent; this is the last save", run_dir)
        args = {item: ocp.args.StandardRestore(template), "progress": ocp.args.JsonRestore()}
        items = _restore(manager, step, ocp.args.Composite(**args))
    progress = Progress(**items["progress"])
    steps = progress.member_best_steps if item == "best" else progress.member_steps
    if item == "best" and None in progress.member_best:
        without = [str(i) for i, best in enumerate(progress.member_best) if best is None]
        log.warning("%s: no evaluation has found a best agent %s", run_dir, ", ".join(without))
    env_steps = progress.env_steps
    return agent._replace(state=items[item], env_steps=env_steps, member_steps=tuple(steps))


def _steps(folder: Path) -> list[int]:
    """The finished saves of a folder, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
