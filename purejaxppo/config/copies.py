"""A run's copies of the Python files that its config names, in its folder `code`.

A file is copied into a folder named after its content, with the modules next to it that it imports
and the data files of its folder. A run uses the original if it exists and equals the copy.
"""

import ast
import hashlib
import itertools
import json
import os
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple, TypedDict

from purejaxppo import interrupts

CODE = "code"
INDEX = "files.json"
MOST_BYTES = 10_000_000
"""Largest total size in bytes of the data files that a run copies."""
MOST_FILES, MOST_SECONDS = 5_000, 2.0
"""Limits of the search for data files in a folder: entries, and seconds."""
CODE_SUFFIXES = (".py", ".pyc")
SELDOM_DATA = (".yaml", ".yml", ".toml", ".md", ".ipynb", ".log", ".out", ".html", ".gif", ".mp4")
"""Suffixes of configs, notes and results, which are copied only if the code names them."""
NOT_FOLLOWED = ("__pycache__", "node_modules", "site-packages", "wandb", "mlruns")
NOT_PROJECTS = ({".lock"}, {"config.yaml", "versions.json"}, {"pyvenv.cfg"}, {"conda-meta"})
"""Sets of names: a folder that has all names of a set is a run or a virtual environment."""


class Copy(TypedDict):
    """A file's copy in `code`, and the place of the original."""

    copy: str
    original: str


def index(run_dir: str | Path) -> dict[str, Copy]:
    """The copies of a run by the files' names as the config writes them; {} if it has none.

    Raises:
        ValueError: the index is damaged.
    """
    path = Path(run_dir) / CODE / INDEX
    try:
        listed = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return {name: Copy(copy=x["copy"], original=x["original"]) for name, x in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: was changed or damaged ({error})") from error


class Change(NamedTuple):
    """An original that differs from its copy.

    `files` are the paths that differ, relative to its folder: the file, its modules and its data.
    """

    original: str
    files: list[str]


class Contents(NamedTuple):
    """A file, the modules that it imports and data files: bytes by path relative to its folder.

    `lacking` holds a reason for each data file, or group of them, that is not included.
    """

    sources: dict[str, bytes]
    data: dict[str, bytes]
    lacking: list[str]


def copied(run_dir: str | Path) -> dict[str, str]:
    """A run's copies: files as the config writes them -> absolute paths."""
    code = Path(run_dir).resolve() / CODE
    return {name: str(code / entry["copy"]) for name, entry in index(run_dir).items()}


def of_run(run_dir: str | Path) -> dict[str, str]:
    """The files that a run uses, by name as the config writes them -> absolute paths.

    This is the original if it exists and equals the run's copy; otherwise it is the copy.
    """
    entries = index(run_dir)
    return {
        name: copy if differences(Path(copy), entries[name]) else entries[name]["original"]
        for name, copy in copied(run_dir).items()
    }


def changed(run_dir: str | Path) -> dict[str, Change]:
    """The originals that exist and differ from a run's copies, by path of the copy."""
    entries = index(run_dir)
    found = {
        copy: Change(entries[name]["original"], differences(Path(copy), entries[name]))
        for name, copy in copied(run_dir).items()
        if Path(entries[name]["original"]).is_file()
    }
    return {copy: change for copy, change in found.items() if change.files}


def differences(copy: Path, entry: Copy) -> list[str]:
    """The files of a copy's folder that differ from the originals, relative to the folder."""
    original = Path(entry["original"])
    theirs = {path.relative_to(copy.parent) for path in copy.parent.rglob("*") if path.is_file()}
    theirs = {path for path in theirs if "__pycache__" not in path.parts}
    if original.is_file():
        theirs |= {path.relative_to(original.parent) for path in with_imports(original)}
    return [
        str(path)
        for path in sorted(theirs, key=lambda path: (path != Path(copy.name), path))
        if not equal(copy.parent / path, original.parent / path)
    ]


def equal(one: Path, other: Path) -> bool:
    """True if two files exist and have the same content."""
    try:
        same_size = one.stat().st_size == other.stat().st_size
        return same_size and one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def add(run_dir: Path, files: Mapping[str, Path]) -> list[str]:
    """Copies files into a run's folder, unless it has copies of them.

    Args:
        run_dir: the run's folder.
        files: by name as the config writes it.

    Returns:
        Lines to print: the data files that were copied, and those that were not.

    Raises:
        ValueError: the index of earlier copies is damaged.
    """
    known = index(run_dir)
    new = {name: path.resolve() for name, path in files.items() if name not in known}
    seen: dict[Path, bytes] = {}
    notes: list[str] = []
    for name, path in new.items():
        contents = contents_of(path, seen)
        folder = run_dir / CODE / folder_name(path, contents)
        for relative, data in (contents.sources | contents.data).items():
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            (folder / relative).write_bytes(data)
        known[name] = Copy(copy=f"{folder.name}/{path.name}", original=str(path))
        notes += describe(run_dir, path.parent, contents)
    if new:
        with interrupts.atomic_write(run_dir / CODE / INDEX) as partial:
            partial.write_text(json.dumps(known, indent=1), encoding="utf-8")
    return list(dict.fromkeys(notes))


def describe(run_dir: Path, folder: Path, contents: Contents) -> list[str]:
    """Describes the data files of a folder that were copied, and those that were not."""
    notes = []
    if contents.data:
        size = max(round(sum(map(len, contents.data.values())) / 1000), 1)
        notes.append(
            f"{run_dir / CODE} has copies of the data files of {folder} ({size:,} kB): "
            f"{listed(list(contents.data))}"
        )
    if contents.lacking:
        notes.append(
            f"{run_dir / CODE} lacks data files of {folder}: {'; '.join(contents.lacking)}. Keep "
            f"that folder if your code reads them: the run uses it as long as it does not change."
        )
    return notes


def listed(names: Sequence[str]) -> str:
    """Lists the first six names and the number of the others."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def folder_name(file: Path, contents: Contents) -> str:
    """The name of a folder of copies: the file's name and a hash of the content."""
    digest = hashlib.sha256()
    for relative, data in (contents.sources | contents.data).items():
        digest.update(os.fsencode(relative) + b"\0" + data + b"\0")
    return f"{file.stem}-{digest.hexdigest()[:12]}"


def contents_of(file: Path, seen: dict[Path, bytes]) -> Contents:
    """Reads a file, the modules that it imports, and the data files of its folder.

    Data files that the code names come first, then the smallest ones, up to `MOST_BYTES`. If the
    search ends early, only those that the code names are included.

    Args:
        file: the file.
        seen: data files that other copies of the run include; this file's are added.
    """
    folder = file.parent
    sources = {str(path.relative_to(folder)): path.read_bytes() for path in with_imports(file)}
    names = set().union(*map(names_in, sources.values()))
    search = FileSearch(folder, names)
    sizes = {path: n for path, n in search.files() if str(path.relative_to(folder)) not in sources}
    suffixes = {path.suffix for path in sizes} - {""}
    named = {path for path in sizes if names & set(path.relative_to(folder).parts)}
    of_kind = {suffix for suffix in suffixes if any(name.endswith(suffix) for name in names)}
    wanted = [path for path in sizes if path.suffix in of_kind or path.suffix not in SELDOM_DATA]
    order = sorted(
        named if search.ended_early else named.union(wanted),
        key=lambda path: (path not in named, path.suffix not in of_kind, sizes[path], path),
    )
    data: dict[str, bytes] = {}
    left = MOST_BYTES - sum(map(len, seen.values()))
    too_large, lacking = [], search.unreadable
    for path in order:
        relative = str(path.relative_to(folder))
        try:
            content = seen[path] if path in seen else read_up_to(path, sizes[path], left)
        except OSError as error:
            lacking.append(f"{relative} cannot be read ({error.strerror})")
            continue
        if content is None:
            too_large.append(relative)
            continue
        left -= 0 if path in seen else len(content)
        data[relative] = seen[path] = content
    if too_large:
        lacking.append(f"{listed(too_large)} (more than {MOST_BYTES // 10**6} MB in all)")
    if search.ended_early:
        lacking.append(
            f"it has more than {MOST_FILES:,} files or is slow to read, so only the files that "
            f"{file.name} names are copied"
        )
    return Contents(sources, dict(sorted(data.items())), lacking)


def is_output(path: Path) -> bool:
    """True for the file that this process prints to, as of `train > log.txt`."""
    for number in (1, 2):
        try:
            if os.path.samestat(path.stat(), os.fstat(number)):
                return True
        except OSError:  # it is closed
            continue
    return False


def read_up_to(path: Path, size: int, most: int) -> bytes | None:
    """Reads a file of `size` bytes; None if it has more than `most`."""
    if size > most:
        return None
    with path.open("rb") as file:
        content = file.read(size + 1)
    return content if len(content) <= most else None


class FileSearch:
    """The search for data files in a folder and those below, first in those that the code names.

    It leaves out hidden files and folders, caches, run folders and virtual environments, and ends
    early after `MOST_FILES` entries or `MOST_SECONDS`.
    """

    def __init__(self, folder: Path, names: Set[str]) -> None:
        """Prepares a search; `names` are the parts of paths in the code, as `names_in`."""
        self.folder, self.names = folder, names
        self.ended_early = False
        self.unreadable: list[str] = []

    def files(self) -> list[tuple[Path, int]]:
        """Returns the files and their sizes, in order."""
        started, count = time.monotonic(), 0
        found: list[tuple[Path, int]] = []
        waiting, real = deque([self.folder]), {self.folder.resolve()}
        while waiting:
            for path in self._entries(waiting.popleft()):
                count += 1
                if count > MOST_FILES or time.monotonic() - started > MOST_SECONDS:
                    self.ended_early = True
                    return found
                try:
                    if self._is_hidden(path):
                        continue
                    if path.is_dir() and path.resolve() not in real:
                        real.add(path.resolve())
                        put = waiting.appendleft if path.name in self.names else waiting.append
                        put(path)
                    elif path.is_file() and not (path.suffix in CODE_SUFFIXES or is_output(path)):
                        found.append((path, path.stat().st_size))
                except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
                    self._report(path, error)
        return found

    def _entries(self, folder: Path) -> list[Path]:
        """The entries of a folder in order; [] for run folders and virtual environments."""
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in itertools.islice(entries, MOST_FILES + 1)]
        except OSError as error:
            self._report(folder, error)
            return []
        if folder != self.folder and any(marks <= set(names) for marks in NOT_PROJECTS):
            return []
        return [folder / name for name in sorted(names)]

    def _report(self, path: Path, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or error
        self.unreadable.append(f"{path.relative_to(self.folder)} cannot be read ({reason})")

    def _is_hidden(self, path: Path) -> bool:
        """True for hidden files and folders, links to them, and folders in `NOT_FOLLOWED`."""
        if path.name.startswith(".") or path.name in NOT_FOLLOWED:
            return True
        if not path.is_symlink():
            return False
        target = path.resolve()
        inside = target.is_relative_to(self.folder)
        parts = target.relative_to(self.folder).parts if inside else target.parts
        return any(part.startswith(".") for part in parts)


def with_imports(file: Path) -> list[Path]:
    """A file, and the modules and packages in its folder that it imports, and these import."""
    found: list[Path] = []
    waiting = [file]
    while waiting:
        source = waiting.pop()
        if source not in found:
            found.append(source)
            for name in imported_names(source):
                module, package = file.parent / f"{name}.py", file.parent / name
                waiting += [module] if module.is_file() else []
                waiting += modules_below(package) if package.is_dir() else []
    return [file, *sorted(path for path in found if path != file)]


def modules_below(package: Path) -> list[Path]:
    """The modules of a package and its subpackages, without hidden folders and environments."""
    found: list[Path] = []
    for folder, folders, files in os.walk(package):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [x for x in folders if not x.startswith(".") and x not in NOT_FOLLOWED]
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(found)


def names_in(source: bytes) -> set[str]:
    """The parts of paths in the texts of a Python file: data and track.csv of "data/track.csv"."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return set()
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return {part for text in texts if isinstance(text, str) for part in re.split(r"[/\\]", text)}


def imported_names(source: Path) -> list[str]:
    """The first parts of the names of the modules that a file imports; [] if it is not Python."""
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError):
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module] if node.module else [alias.name for alias in node.names]
    return list(dict.fromkeys(name.partition(".")[0] for name in names))
