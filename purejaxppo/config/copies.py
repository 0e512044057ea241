"""Copies of custom code in a run's folder `code`.

A file is copied into a folder named after its content, together with the modules next to it that it
imports and the data files of its folder. A run uses the original if it exists and equals the copy.
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
MAX_BYTES = 10_000_000
"""Largest total size of the data files that a run copies, in bytes."""
MAX_FILES, MAX_SECONDS = 5_000, 2.0
"""Limits of the search for data files in a folder, in entries and seconds."""
CODE_SUFFIXES = (".py", ".pyc")
RARELY_DATA = (".yaml", ".yml", ".toml", ".md", ".ipynb", ".log", ".out", ".html", ".gif", ".mp4")
"""Suffixes of configs, notes and results. They are copied only if the code names them."""
PACKAGE = __name__.partition(".")[0]
"""This package, which a checkout contains."""
SKIPPED_FOLDERS = ("__pycache__", "node_modules", "site-packages", "wandb", "mlruns", PACKAGE)
MARKER_FILES = (
    *({".lock"}, {"config.yaml", "versions.json"}, {"sweep.yaml"}),
    *({"pyvenv.cfg"}, {"conda-meta"}),
)
"""Sets of names. A folder that has all names of a set is a run, a sweep or a virtual
environment."""


class Copy(TypedDict):
    """Path of a copy in `code`, and path of the original."""

    copy: str
    original: str


def index(run_dir: str | Path) -> dict[str, Copy]:
    """Return a run's copies by the file's name in the config; {} without copies.

    Raises:
        ValueError: the list of copies, `code/files.json`, was edited or is corrupt.
    """
    path = Path(run_dir) / CODE / INDEX
    try:
        entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return {name: Copy(copy=x["copy"], original=x["original"]) for name, x in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: the file was edited or is corrupt ({error}).") from error


class Change(NamedTuple):
    """An original that differs from its copy.

    `files` are the files that differ, relative to its folder.
    """

    original: str
    files: list[str]


class Contents(NamedTuple):
    """Contents of a custom Python file, of the modules that it imports, and of its data files."""

    sources: dict[str, bytes]
    """Relative path of each Python file -> contents."""
    data: dict[str, bytes]
    """Relative path of each data file -> contents."""
    missing: list[str]
    """A reason for each data file, or group of data files, that is not included."""


def paths_of_copies(run_dir: str | Path) -> dict[str, str]:
    """Return the absolute paths of a run's copies, by the file's name in the config."""
    code = Path(run_dir).resolve() / CODE
    return {name: str(code / entry["copy"]) for name, entry in index(run_dir).items()}


def of_run(run_dir: str | Path) -> dict[str, str]:
    """Return the absolute paths of the files that a run uses, by their name in the config.

    This is the original if it exists and equals the run's copy, otherwise the copy.
    """
    entries = index(run_dir)
    return {
        name: copy if differences(Path(copy), entries[name]) else entries[name]["original"]
        for name, copy in paths_of_copies(run_dir).items()
    }


def changed(run_dir: str | Path) -> dict[str, Change]:
    """Return the originals that exist and differ from a run's copies, by path of the copy."""
    entries = index(run_dir)
    changes = {
        copy: Change(entries[name]["original"], differences(Path(copy), entries[name]))
        for name, copy in paths_of_copies(run_dir).items()
        if Path(entries[name]["original"]).is_file()
    }
    return {copy: change for copy, change in changes.items() if change.files}


def differences(copy: Path, entry: Copy) -> list[str]:
    """Return the files of a copy's folder that differ from the originals, as relative paths."""
    original = Path(entry["original"])
    paths = {path.relative_to(copy.parent) for path in copy.parent.rglob("*") if path.is_file()}
    paths = {path for path in paths if "__pycache__" not in path.parts}
    if original.is_file():
        paths |= {path.relative_to(original.parent) for path in with_imports(original)}
    return [
        str(path)
        for path in sorted(paths, key=lambda path: (path != Path(copy.name), path))
        if not have_same_content(copy.parent / path, original.parent / path)
    ]


def have_same_content(first: Path, second: Path) -> bool:
    """Return True if two files exist and have the same content."""
    try:
        same_size = first.stat().st_size == second.stat().st_size
        return same_size and first.read_bytes() == second.read_bytes()
    except OSError:
        return False


def add(run_dir: Path, files: Mapping[str, Path]) -> list[str]:
    """Copy files into a run's folder if it has no copies of them.

    Args:
        run_dir: the run's folder.
        files: paths by the file's name in the config.

    Returns:
        Lines to print about data files that were, or were not, copied.

    Raises:
        ValueError: the list of copies, `code/files.json`, was edited or is corrupt.
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
    """Describe the data files of a folder that were, or were not, copied."""
    notes = []
    if contents.data:
        size = max(round(sum(map(len, contents.data.values())) / 1000), 1)
        notes.append(
            f"Copied {size:,} kB of data files from {folder} to {run_dir / CODE}: "
            f"{shortened(list(contents.data))}"
        )
    if contents.missing:
        notes.append(
            f"Did not copy some data files from {folder} to {run_dir / CODE}: "
            f"{'; '.join(contents.missing)}. If your code reads them, keep that folder unchanged."
        )
    return notes


def shortened(names: Sequence[str]) -> str:
    """Return the first six names and the number of the others."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def folder_name(file: Path, contents: Contents) -> str:
    """Return the name of a folder of copies: the file's name and a hash of the content."""
    digest = hashlib.sha256()
    for relative, data in (contents.sources | contents.data).items():
        digest.update(os.fsencode(relative) + b"\0" + data + b"\0")
    return f"{file.stem}-{digest.hexdigest()[:12]}"


def contents_of(file: Path, seen: dict[Path, bytes]) -> Contents:
    """Read a file, the modules that it imports, and the data files of its folder.

    Data files that the code names come first, then the smallest ones, up to `MAX_BYTES`. If the
    search stops early, and in a checkout of this package, only data files that the code names are
    included.

    Args:
        file: the file.
        seen: contents of data files that the run has copied; those of this file are added.
    """
    folder = file.parent
    sources = {str(path.relative_to(folder)): path.read_bytes() for path in with_imports(file)}
    names = set().union(*map(names_in, sources.values()))
    search, in_checkout = FileSearch(folder, names), (folder / PACKAGE / "__init__.py").is_file()
    sizes = {path: n for path, n in search.files() if str(path.relative_to(folder)) not in sources}
    suffixes = {path.suffix for path in sizes} - {""}
    named = {path for path in sizes if names & set(path.relative_to(folder).parts)}
    of_kind = {suffix for suffix in suffixes if any(name.endswith(suffix) for name in names)}
    likely = [path for path in sizes if path.suffix in of_kind or path.suffix not in RARELY_DATA]
    order = sorted(
        named if search.ended_early or in_checkout else named.union(likely),
        key=lambda path: (path not in named, path.suffix not in of_kind, sizes[path], path),
    )
    data: dict[str, bytes] = {}
    bytes_left = MAX_BYTES - sum(map(len, seen.values()))
    too_large, missing = [], search.unreadable
    for path in order:
        relative = str(path.relative_to(folder))
        try:
            content = seen[path] if path in seen else read_up_to(path, sizes[path], bytes_left)
        except OSError as error:
            missing.append(f"{relative} cannot be read ({error.strerror})")
            continue
        if content is None:
            too_large.append(relative)
            continue
        bytes_left -= 0 if path in seen else len(content)
        data[relative] = seen[path] = content
    if too_large:
        missing.append(f"{shortened(too_large)} (more than {MAX_BYTES // 10**6} MB in total)")
    if in_checkout:
        missing.append(
            f"it is a checkout of {PACKAGE}, so only files named in {file.name} were copied"
        )
    elif search.ended_early:
        missing.append(
            f"the folder has more than {MAX_FILES:,} files or is slow to read, so only files named "
            f"in {file.name} were copied"
        )
    return Contents(sources, dict(sorted(data.items())), missing)


def is_output(path: Path) -> bool:
    """Return True for the file that this process prints to, as in `train > log.txt`."""
    for number in (1, 2):
        try:
            if os.path.samestat(path.stat(), os.fstat(number)):
                return True
        except OSError:  # it is closed
            continue
    return False


def read_up_to(path: Path, size: int, most: int) -> bytes | None:
    """Read a file of `size` bytes; return None if it has more than `most`."""
    if size > most:
        return None
    with path.open("rb") as file:
        content = file.read(size + 1)
    return content if len(content) <= most else None


class FileSearch:
    """Search for data files in a folder and its subfolders, first in those that the code names.

    It skips hidden files and folders, caches, run folders and virtual environments, and stops early
    after `MAX_FILES` entries or `MAX_SECONDS`.
    """

    def __init__(self, folder: Path, names: Set[str]) -> None:
        """Initialise the search; `names` are the parts of paths in the code (`names_in`)."""
        self.folder, self.names = folder, names
        self.ended_early = False
        self.unreadable: list[str] = []

    def files(self) -> list[tuple[Path, int]]:
        """Return the files and their sizes, in order."""
        started, count = time.monotonic(), 0
        files: list[tuple[Path, int]] = []
        waiting, real = deque([self.folder]), {self.folder.resolve()}
        while waiting:
            for path in self._entries(waiting.popleft()):
                count += 1
                if count > MAX_FILES or time.monotonic() - started > MAX_SECONDS:
                    self.ended_early = True
                    return files
                try:
                    if self._is_hidden(path):
                        continue
                    if path.is_dir() and path.resolve() not in real:
                        real.add(path.resolve())
                        put = waiting.appendleft if path.name in self.names else waiting.append
                        put(path)
                    elif path.is_file() and not (path.suffix in CODE_SUFFIXES or is_output(path)):
                        files.append((path, path.stat().st_size))
                except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
                    self._report(path, error)
        return files

    def _entries(self, folder: Path) -> list[Path]:
        """Return the entries of a folder in order; [] for run folders and virtual environments."""
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in itertools.islice(entries, MAX_FILES + 1)]
        except OSError as error:
            self._report(folder, error)
            return []
        if folder != self.folder and any(marks <= set(names) for marks in MARKER_FILES):
            return []
        return [folder / name for name in sorted(names)]

    def _report(self, path: Path, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or error
        self.unreadable.append(f"{path.relative_to(self.folder)} cannot be read ({reason})")

    def _is_hidden(self, path: Path) -> bool:
        """Return True for hidden files and folders, links to them, and `SKIPPED_FOLDERS`."""
        if path.name.startswith(".") or path.name in SKIPPED_FOLDERS:
            return True
        if not path.is_symlink():
            return False
        target = path.resolve()
        inside = target.is_relative_to(self.folder)
        parts = target.relative_to(self.folder).parts if inside else target.parts
        return any(part.startswith(".") for part in parts)


def with_imports(file: Path) -> list[Path]:
    """Return a file and the modules of its folder that it imports, directly or indirectly."""
    sources: list[Path] = []
    waiting = [file]
    while waiting:
        source = waiting.pop()
        if source not in sources:
            sources.append(source)
            for name in imported_names(source):
                module, package = file.parent / f"{name}.py", file.parent / name
                waiting += [module] if module.is_file() else []
                waiting += modules_below(package) if package.is_dir() else []
    return [file, *sorted(path for path in sources if path != file)]


def modules_below(package: Path) -> list[Path]:
    """Return the modules of a package and its subpackages, without hidden folders."""
    modules: list[Path] = []
    for folder, folders, files in os.walk(package):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [x for x in folders if not x.startswith(".") and x not in SKIPPED_FOLDERS]
        modules += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(modules)


def names_in(source: bytes) -> set[str]:
    """Return the parts of paths in a Python file's strings: data, track.csv of "data/track.csv"."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return set()
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return {part for text in texts if isinstance(text, str) for part in re.split(r"[/\\]", text)}


def imported_names(source: Path) -> list[str]:
    """Return the top-level names of the modules that a file imports, without this package.

    The result is [] if the file is not Python.
    """
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
    return list(dict.fromkeys(top for x in names if (top := x.partition(".")[0]) != PACKAGE))
