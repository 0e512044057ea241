"""Run folders: their files, their lock, and the record of config and versions."""

import contextlib
import errno
import importlib.util
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import jax

from purejaxppo.config import copies
from purejaxppo.config.files import load_config, read_yaml, to_yaml, write_whole
from purejaxppo.config.hints import short_path
from purejaxppo.config.plain import user_path
from purejaxppo.config.references import files_in, located
from purejaxppo.config.run_files import (
    code_files,
    code_refs,
    imported_files,
    imported_modules,
    load_members,
    save_members,
    with_copies,
)
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.runs.conditions import evaluation_env
from purejaxppo.runs.rows import DAMAGED_METRICS

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("purejaxppo")

SYSTEM_ERRORS = [os.strerror(number) for number in errno.errorcode]
LOCK = ".lock"
CONFIG = "config.yaml"
MEMBERS = "members.yaml"
VERSIONS = "versions.json"
CHECKPOINT_ITEMS = ("agent", "train", "progress", "best")
SWEEP = "sweep.yaml"
"""File that marks the folder of a sweep."""
INIT = "init.json"
TENSORBOARD = "tensorboard"
WANDB_ID = "wandb_id"
VIDEO = "video.mp4"
VIDEOS = "videos"
RATINGS = ("elo.csv", "elo.png")
RUN_FILES = (
    "checkpoints",
    TENSORBOARD,
    "wandb",
    WANDB_ID,
    "metrics.csv",
    ".metrics.csv",
    DAMAGED_METRICS,
    "learning_curve.png",
    "report.png",
    ".learning_curve.png",
    VIDEO,
    VIDEOS,
    "film.mp4",  # of earlier versions
    *RATINGS,
    VERSIONS,
    f".{VERSIONS}",
    INIT,
    f".{INIT}",
    ".config.yaml",
    copies.CODE,
    MEMBERS,
    f".{MEMBERS}",
    CONFIG,
)
"""Everything that a run writes. The config is last, because deleting a run deletes it last."""


@contextlib.contextmanager
def run_folder(
    run_dir: Path, *, clobber: bool, run_files: Sequence[str] = RUN_FILES
) -> Iterator[None]:
    """Create the run folder if needed, and lock it against a second process.

    The folder of an earlier run may also contain other files, such as videos. If no run has started
    in it, all files belong to the user, also config.yaml.

    Args:
        run_dir: the folder.
        clobber: delete the files of an earlier run, and no other files.
        run_files: names of everything that the command writes there.

    Raises:
        ValueError: the folder cannot be created, is not a run folder, or is in use.
    """
    try:
        if run_dir.exists() and not run_dir.is_dir():
            raise ValueError(f"{short_path(run_dir)} is a file. --run_dir must be a folder.")
        known = {*run_files, LOCK}
        entries = list(run_dir.iterdir()) if run_dir.is_dir() else []
        names = {path.name for path in entries}
        ours = known
        if not has_started(run_dir):
            empty = {path.name for path in entries if path.is_dir() and not any(path.iterdir())}
            ours = known & empty | {name for name in known if name.startswith(".")}
        foreign = sorted(name for name in names - ours if not name.endswith(".log"))
        is_earlier = is_sweep(run_dir) if SWEEP in run_files else {CONFIG, VERSIONS} <= names
        if foreign and not is_earlier:
            remedy = f"Move {foreign[0]}, or use" if foreign[0] in known else "Use"
            raise ValueError(
                f"{short_path(run_dir)} is not a run folder: it contains {foreign[0]}. {remedy} "
                f"another --run_dir."
            )
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = (run_dir / LOCK).open("w")
    except OSError as error:
        raise ValueError(
            f"{short_path(run_dir)} cannot be written to ({error.strerror})"
        ) from error
    with lock:
        _lock(lock, run_dir)
        if clobber:
            _clear(run_dir, run_files)
        yield


@contextlib.contextmanager
def named_write_errors(place: str | Path, kind: type[Exception] = OSError) -> Iterator[None]:
    """Add the path to write errors, because some of them do not contain it.

    Args:
        place: a file or folder.
        kind: type of these errors. Errors without the text of a system error stay as they are.

    Raises:
        OSError: "PLACE cannot be written (no space left on device)".
    """
    try:
        yield
    except kind as error:
        text = next((text for text in SYSTEM_ERRORS if text in str(error)), "")
        if not text:
            raise
        raise OSError(f"{place} cannot be written ({text[0].lower()}{text[1:]})") from error


def has_started(run_dir: Path) -> bool:
    """Return True if a run or a sweep has started in a folder, by files that only they write."""
    return (run_dir / VERSIONS).is_file() or is_sweep(run_dir) or bool(steps_of(run_dir))


def is_sweep(run_dir: Path) -> bool:
    """Return True if a folder has the sweep.yaml of a sweep of this library."""
    path = run_dir / SWEEP
    return path.is_file() and "select_by" in read_yaml(path)


def check_is_run(run_dir: Path) -> None:
    """Raise ValueError if a folder is not a run folder."""
    if not (run_dir / CONFIG).is_file():
        if (run_dir / SWEEP).is_file():
            raise ValueError(
                f"{short_path(run_dir)} is the folder of a sweep. Use one of the run folders in "
                f"its results.csv or, in Python, purejaxppo.Sweep."
            )
        problem = f"{CONFIG} is missing" if run_dir.is_dir() else "no such folder"
        raise ValueError(
            f"{short_path(run_dir)}: not a run folder ({problem}). Use a folder written by "
            f"`purejaxppo train`, such as runs/hopper-s0."
        )


def _lock(lock, run_dir: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(
            f"{short_path(run_dir)} is in use: another process trains in it. Use another --run_dir."
        ) from error
    except OSError as error:  # some network file systems do not support locks
        log.debug("%s cannot be locked: %s", run_dir, error)


def _clear(run_dir: Path, run_files: Sequence[str]) -> None:
    logs = []
    if (run_dir / CONFIG).is_file():
        with contextlib.suppress(ValueError, OSError):  # the file may be broken
            logs = [load_config(run_dir / CONFIG, saved=True).logging.log_file]
    copies_of_metrics = [path.name for path in run_dir.glob(f"{DAMAGED_METRICS}*")]
    for name in (*run_files, *copies_of_metrics, *filter(None, logs)):
        path = run_dir / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def imports(run_dir: str | Path) -> list[str]:
    """Return lines about the code that a run executes: one per file, module and program."""
    path = user_path(run_dir) / CONFIG
    if not path.is_file():
        return []
    config = load_config(path, saved=True)
    return imports_of(run_dir, [config, *load_members(path.with_name(MEMBERS), config)])


def imports_of(folder: str | Path, configs: Sequence[Config], *, copied: bool = True) -> list[str]:
    """Return lines that name the code and the programs that the configs of a folder execute.

    Args:
        folder: a run folder, or that of a sweep.
        configs: its configs.
        copied: copies in the folder are executed instead of files that have changed.
    """
    changed = copies.changed(folder) if copied else {}
    lines = []
    for config in configs:
        for file in imported_files(config):
            change = changed.get(str(file))
            instead = f", not from {change.original}: {_reason(change)}" if change else ""
            lines.append(f"{folder} uses code from {file}{instead}")
        external = [registry.external_code(x) for x in (config.env, evaluation_env(config))]
        modules = imported_modules(config) + [
            module for code in external for module in code.modules
        ]
        programs = [program for code in external for program in code.programs]
        lines += [f"{folder} uses code from the module {_with_path(module)}" for module in modules]
        lines += [f"{folder} runs the program {program}" for program in programs]
    return list(dict.fromkeys(map(_printable, lines)))


def _with_path(module: str) -> str:
    """Return a module's name with the path of its package, without importing it."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    paths = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    path = next(filter(None, paths), "")
    return f"{module} ({path})" if path else module


def _printable(line: str) -> str:
    """Escape characters that could hide parts of a line in a terminal."""
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in line)


def _reason(change: copies.Change) -> str:
    """Return the reason for the use of a copy."""
    first = change.files[0]
    is_original = first == Path(change.original).name
    changed = "it" if is_original else f"{first} next to it"
    return f"{changed} has changed since. To use the new version, replace the copy"


def check_not_deleted(config: Config, run_dir: Path, run_files: Sequence[str] = RUN_FILES) -> None:
    """Check that a config does not need any file of a run that is about to be deleted.

    Args:
        config: the new config.
        run_dir: folder of the run, or of a sweep.
        run_files: names of everything that is deleted in the folder.

    Raises:
        ValueError: the config names one of these files, or starts from this run.
    """
    sources = [Path(located(x)) for x in (config.init_from, config.pretrain.teacher) if x]
    for file in [*imported_files(config), *(source.resolve() for source in sources)]:
        if is_among(file, run_dir, run_files):
            raise ValueError(
                f"--clobber would delete {file}, which the config needs. Name the original file, "
                f"or use another --run_dir."
            )


def is_among(file: Path, run_dir: Path, run_files: Sequence[str]) -> bool:
    """Return True if a file is one of a run's files, is in one of its folders, or is `run_dir`."""
    file, run_dir = file.resolve(), run_dir.resolve()
    if not file.is_relative_to(run_dir):
        return False
    parts = file.relative_to(run_dir).parts
    return not parts or parts[0] in run_files


def check_not_replaced(config: Config, run_dir: Path) -> None:
    """Raise ValueError if a config names a file in `code/` of a run that starts again."""
    for file in imported_files(config):
        if is_among(file, run_dir, [copies.CODE]):
            raise ValueError(
                f"{file}: the config names this file, but a run that starts in "
                f"{short_path(run_dir)} replaces {copies.CODE}/. Name the original file, or use "
                f"another --run_dir."
            )


def with_absolute_paths(config: Config) -> Config:
    """Return the config with absolute paths of the files and folders that it names.

    Paths are resolved once, because custom code may change the working directory.
    """
    files = [file for ref in code_refs(config) for file in files_in(ref.text)]
    folders = str(config.pretrain.teacher), str(config.init_from)
    names = {*files, *registry.paths(config.env), *folders} - {""}
    places = {name: user_path(name) for name in names}
    return with_copies(
        config,
        {
            name: str(place.absolute())
            for name, place in places.items()
            if place.exists() and str(place.absolute()) != name
        },
    )


def copy_code(config: Config, run_dir: Path) -> list[str]:
    """Copy the Python files that a config names into a run folder, and return lines to print.

    Raises:
        ValueError: a file cannot be read.
    """
    try:
        return copies.add(run_dir, code_files(config))
    except OSError as error:
        raise ValueError(
            f"{error.filename or run_dir / copies.CODE} cannot be copied ({error.strerror})"
        ) from error


def steps_of(run_dir: Path) -> list[int]:
    """Return the environment steps of a run's finished checkpoints, in order."""
    return steps_in(run_dir / "checkpoints")


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the finished checkpoints of a folder, in order; ignore other files."""
    if not folder.is_dir():
        return []
    return sorted(
        int(path.name)
        for path in folder.iterdir()
        if re.fullmatch(r"0|[1-9][0-9]*", path.name)
        and any((path / item).is_dir() for item in CHECKPOINT_ITEMS)
    )


def record_run(config: Config, run_dir: Path, members: Sequence[Config] = ()) -> list[str]:
    """Write config.yaml, copies of the files that it names and, at first, versions.json.

    Args:
        config: config of the run.
        run_dir: the run folder.
        members: config of each agent. If there are several, members.yaml lists them.

    Returns:
        Lines to print about the copies.
    """
    first = not steps_of(run_dir)
    if first or not (run_dir / VERSIONS).is_file():  # written first: it marks a run folder
        versions = {
            "command": sys.argv,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "device": jax.devices()[0].device_kind,
            "git": git_revision(),
            "packages": dict(sorted({d.name: d.version for d in metadata.distributions()}.items())),
        }
        write_whole(run_dir / VERSIONS, json.dumps(versions, indent=1))
    if first:  # delete what a start without a checkpoint left behind
        shutil.rmtree(run_dir / copies.CODE, ignore_errors=True)
        (run_dir / MEMBERS).unlink(missing_ok=True)
        (run_dir / WANDB_ID).unlink(missing_ok=True)
        shutil.rmtree(run_dir / TENSORBOARD, ignore_errors=True)
    if len(members) > 1:
        save_members(run_dir / MEMBERS, config, members)
    notes = copy_code(config, run_dir)
    write_whole(run_dir / CONFIG, to_yaml(config))
    return notes


def git_revision() -> str:
    """Return the git revision of this package's checkout; '' outside of a checkout."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        out = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        )
        return out.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--abbrev=40")
    except (OSError, subprocess.CalledProcessError):
        return ""
