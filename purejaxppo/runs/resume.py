"""Resuming a run: the settings that may change, and the effects of changes."""

import dataclasses
from pathlib import Path
from typing import Any

from purejaxppo.agents import schedules
from purejaxppo.config import copies, references
from purejaxppo.config.files import as_text, compare, flatten, load_config
from purejaxppo.config.hints import short_path
from purejaxppo.config.renamed import rules_of_0_2
from purejaxppo.config.run_files import code_refs, with_copies
from purejaxppo.config.schema import Config
from purejaxppo.envs.registry import free_options
from purejaxppo.runs.folder import CONFIG
from purejaxppo.runs.intervals import Intervals
from purejaxppo.runs.progress import Progress


def continue_config(config: Config, run_dir: Path) -> tuple[Config, list[str]]:
    """Return the config with which a run resumes, and a line per tunable change.

    The config uses the run's copies of custom files.

    Raises:
        ValueError: a structural field differs from the config that the run was trained with, or
            config.yaml is missing.
    """
    if not (run_dir / CONFIG).is_file():
        raise ValueError(
            f"{short_path(run_dir)} cannot resume: it contains checkpoints but no {CONFIG}. "
            f"Restore the file, use another --run_dir, or use --clobber to delete the run and "
            f"start from scratch."
        )
    old = load_config(run_dir / CONFIG, saved=True)
    shards = old.num_shards
    if not config.num_shards:
        old = dataclasses.replace(old, num_shards=0)
    config = with_old_rules(config, old)
    structural, tunable = compare(old, config, free_options(config.env))
    before, after = flatten(old), flatten(config)
    if structural:
        key = structural[0]
        others = f" (and {', '.join(structural[1:])})" if structural[1:] else ""
        raise ValueError(
            f"{short_path(run_dir)} was trained with {key} = {_show(before[key])}, not "
            f"{_show(after[key])}{others}. Use another --run_dir, or --clobber to delete this run "
            f"and start from scratch."
        )
    check_objects(config, run_dir)
    if not config.num_shards:
        config = dataclasses.replace(config, num_shards=shards)
    return with_copies(config, copies.of_run(run_dir)), [
        f"{key} changes from {_show(before[key])} to {_show(after[key])}" for key in tunable
    ]


def eval_settings(config: Config) -> dict[str, Any]:
    """Return the settings that affect an evaluation's score and may change when a run resumes.

    References to custom code are text, because checkpoints store them as JSON.
    """
    return {
        name: as_text(value)
        for name, value in flatten(config).items()
        if name.startswith("eval.") and name != "eval.interval"
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Describe the settings that differ, by dotted name; "" if all are equal."""
    return ", ".join(
        f"{name} changes from {_show(before.get(name))} to {_show(value)}"
        for name, value in after.items()
        if before.get(name) != value
    )


def with_old_rules(config: Config, old: Config) -> Config:
    """Return the config with the defaults of version 0.2 if the existing run has them.

    Fields that the config sets to another value stay.
    """
    if old.ppo.obs_preprocessing == "by_bounds":
        return config
    before, after, default = (flatten(x) for x in (old, config, Config()))
    names = [f"ppo.{name}" for name in rules_of_0_2(dataclasses.asdict(old.ppo))]
    return config.replace(**{name: before[name] for name in names if after[name] == default[name]})


def uncompared_objects(config: Config, run_dir: Path) -> list[str]:
    """Return a line per object that a run resumes with and that a file cannot restore."""
    return [
        f"{run_dir} continues with {ref}. Check that the run was trained with the same object: "
        f"objects cannot be compared."
        for ref in code_refs(config)
        if ref.text.startswith(references.OBJECT)
    ]


def check_objects(config: Config, run_dir: Path) -> None:
    """Check that the source files of objects in the config have not changed since the run began.

    Raises:
        ValueError: a file has changed. The object is from the new code, but evaluations would use
            the old copy in the run folder.
    """
    changes = copies.changed(run_dir).values()
    changed = {x.original for x in changes if any(file.endswith(".py") for file in x.files)}
    objects = [ref.text for ref in code_refs(config) if ref.object is not None]
    for file in {file for text in objects for file in references.files_in(text)} & changed:
        raise ValueError(
            f"{file} has changed since {run_dir} began, and the config contains an object from "
            f"it. Undo the change, use another run_dir, or start from scratch with clobber=True."
        )


def schedule_changes(old: Config, new: Config, progress: Progress, *, sparse: bool = False) -> str:
    """Describe how a change of total_timesteps changes schedules; '' if it does not.

    Schedules and curricula depend on the completed fraction of the run (see `Intervals`).
    """
    intervals = [Intervals(config, sparse=sparse) for config in (old, new)]
    before, after = (min(every.done(progress) / every.total, 1.0) for every in intervals)
    old_hp, new_hp = (
        schedules.scheduled(
            schedules.hyperparams_of(new.ppo, config.num_updates),
            new.ppo,
            done * config.num_updates,
        )
        for done, config in ((before, old), (after, new))
    )
    moved = [f"env.curriculum's {name}" for name in new.env.curriculum] * (before != after)
    names = ["learning_rate", "gamma", "clip_eps", "ent_coef"]
    names += ["intrinsic_coef"] * (new.intrinsic.kind != "none")
    for name in names:
        old_value, new_value = (float(getattr(hp, name)) for hp in (old_hp, new_hp))
        if old_value != new_value:
            moved.append(f"ppo.{name} from {old_value:.6g} to {new_value:.6g}")
    if not moved:
        return ""
    return (
        f"total_timesteps changes from {old.total_timesteps:,} to {new.total_timesteps:,}, and the "
        f"completed part of the run from {before:.0%} to {after:.0%}. This changes "
        f"{', '.join(moved)}."
    )


def _show(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value) or "''"
