"""Compiled programs as files, so that a later process neither traces nor compiles them.

XLA's compilation cache asks for a traced program before it can say whether it has it compiled. An
entry here is found by what a program is made from: its name and key, and the source files of
everything that was imported when it was made. An entry that is damaged, or one of whose files has
changed, counts as absent. Reading an entry runs code, as reading XLA's cache does: the folder is to
be writable by its owner alone.
"""

import contextlib
import functools
import hashlib
import io
import logging
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from jax._src import compilation_cache
from jax.experimental import serialize_executable
from jaxlib import xla_client
from jaxlib.cpu import _lapack

from purejaxppo import interrupts
from purejaxppo.parallel.placeholders import packed, unpacked

log = logging.getLogger("purejaxppo")

SWITCH = "PUREJAXPPO_KEEP_PROGRAMS"
"""The environment variable that switches all of this on (1) or off (0); commands set it to 1."""
LIMIT = 1_000_000_000
"""Bytes of all entries; beyond it those that were not used for the longest time are deleted."""
MAGIC = b"purejaxppo program 1\n"
SETTLED = 10.0
"""Seconds before this process began after which no source may have changed: what was imported may
be older than what lies on the disk."""
STARTED = time.time()
SUFFIX = ".program"


def folder() -> Path | None:
    """The folder of the entries, in that of the compilation cache; None if nothing is kept."""
    settings = jax.config.values
    cache = settings["jax_compilation_cache_dir"]
    on = os.environ.get(SWITCH) == "1" and settings["jax_enable_compilation_cache"]
    return Path(cache) / "programs" if on and cache and "://" not in str(cache) else None


class ProgramStore:
    """The entries of one key.

    Args:
        key: everything that the programs depend on besides source files, as text; "": nothing
            is kept.
        devices: that they run on.
    """

    def __init__(self, key: str, devices: list[jax.Device]) -> None:
        """Begins to note which data files are read."""
        self.key, self.devices = key, devices
        self.folder = folder() if key else None
        if self.folder is not None:
            _watch_files()
            _watch_cache()

    def fact(self, name: str, make: Callable[[], Any]) -> Any:
        """The plain value of a name: the kept one, or what `make` returns, which is kept."""
        found = self._read(name)
        if found is not None:
            return found[0]
        value = make()
        self._write(name, lambda: (value,))
        return value

    def program(self, name: str, lower: Callable[[], Any], *, foreign: bool = False) -> Any:
        """The compiled program of a name: the kept one, or that of what `lower` returns."""
        found = self.find(name, foreign=foreign)
        return self.compile(name, lower()) if found is None else found

    def has(self, name: str) -> bool:
        """True if there is an entry of a name; it may prove to be out of date."""
        return self.folder is not None and self._path(name).is_file()

    def find(self, name: str, *, foreign: bool = False) -> Any:
        """The kept program of a name, a `jax.stages.Compiled`; None if there is none.

        Args:
            name: among those of this key.
            foreign: import the simulator's own classes of trees. Without, the program takes and
                returns `Placeholder`s in their place.
        """
        found = self._read(name)
        if found is None:
            return None
        with _absent_if_it_fails(name):
            given, returned = (unpacked(tree, foreign=foreign) for tree in found[1:])
            if b"lapack_" in found[0]:  # else JAX finds its functions while it lowers one
                _lapack.initialize()
            return serialize_executable.deserialize_and_load(
                found[0], given, returned, execution_devices=self.devices
            )
        return None

    def compile(self, name: str, lowered: Any) -> Any:
        """Compiles a `jax.stages.Lowered`, and keeps the program if that is possible."""
        _FOUND.data = None
        compiled = lowered.compile()
        from_cache = _FOUND.data
        self._write(name, lambda: _parts(lowered, compiled, from_cache))
        return compiled

    def _path(self, name: str) -> Path:
        digest = hashlib.sha256(f"{self.key}\0{name}".encode()).hexdigest()
        assert self.folder is not None
        return self.folder / f"{name}-{digest[:40]}{SUFFIX}"

    def _read(self, name: str) -> tuple | None:
        """An entry's value; None if there is none, it is damaged, or its sources have changed."""
        if self.folder is None:
            return None
        path = self._path(name)
        if not path.is_file():
            return None
        with _absent_if_it_fails(name):
            data = path.read_bytes()
            start = len(MAGIC) + hashlib.sha256().digest_size
            if data[:start] != MAGIC + hashlib.sha256(data[start:]).digest():
                raise ValueError(f"{path} is damaged")
            files, value = pickle.loads(data[start:])
            changed = next((file for file, was in files.items() if _state(file) != was), None)
            if changed is not None:
                raise ValueError(f"{changed} has changed")
            os.utime(path)
            return value
        return None

    def _write(self, name: str, make: Callable[[], tuple]) -> None:
        """Keeps a value, if it can be kept; leaves no trace of what cannot."""
        if self.folder is None:
            return
        try:
            files = sources()
            settled = (STARTED - SETTLED) * 1e9
            for file, was in files.items():
                if was is not None and was[1] > settled:
                    raise ValueError(f"{file} has just been changed")
            data = pickle.dumps((files, make()))
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(name), MAGIC + hashlib.sha256(data).digest() + data)
            prune(self.folder, LIMIT)
        except Exception as error:
            log.debug("%s is not kept: %s", name, error)


@contextlib.contextmanager
def _absent_if_it_fails(name: str) -> Iterator[None]:
    """Goes on after an entry that cannot be used, whatever the reason: it is made again."""
    try:
        yield
    except Exception as error:
        log.debug("the kept %s is not used: %s", name, error)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file under a name that no other process takes, and then renames it."""
    own = path.with_name(f"{os.getpid()}-{path.name}")
    with interrupts.named_when_done(own) as partial:
        partial.write_bytes(data)
    own.replace(path)


def prune(directory: Path, limit: int) -> None:
    """Deletes the entries that were not used for the longest time until `limit` bytes are left."""
    entries = []
    for path in directory.iterdir():
        with contextlib.suppress(OSError):  # another process may have deleted it
            stat = path.stat()
            entries.append((stat.st_mtime, stat.st_size, path))
    excess = sum(size for _, size, _ in entries) - limit
    for _, size, path in sorted(entries):
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= size


SAFE = ("lapack_", "cusolver_", "cublas_", "cu_", "Sharding", "SPMD", "mhlo.", "stablehlo.", "xla.")
"""Beginnings of the names of custom calls that mean the same in every process."""


def _parts(lowered: Any, compiled: Any, from_cache: bytes | None) -> tuple:
    """(bytes, packed tree of arguments, packed tree of results) of a compiled program.

    `from_cache` is the executable as it was in XLA's cache, if it comes from there: serialised once
    more it would lack its functions.

    Raises:
        ValueError: it calls back into this process, and means nothing in another one.
    """
    made = compiled._executable._unloaded_executable
    if made.host_callbacks or made.keepalive or made.ordered_effects or made.unordered_effects:
        raise ValueError("it calls functions of this process")
    calls = set(re.findall(r"custom_call @(\S+?)\(", lowered.as_text()))
    if unknown := [call for call in calls if not call.startswith(SAFE)]:
        raise ValueError(f"it calls {unknown[0]}")

    if compiled._params.const_args:
        raise ValueError("it takes constants besides its arguments")
    described, given = jax.tree.flatten(compiled.args_info)
    file = io.BytesIO()
    _Pickler(file, from_cache).dump((made, described, compiled._no_kwargs))
    return file.getvalue(), packed(given), packed(compiled.out_tree)


class _Pickler(serialize_executable._JaxPjrtPickler):
    """Writes what `serialize_executable.deserialize_and_load` reads."""

    def __init__(self, file: io.BytesIO, from_cache: bytes | None) -> None:
        super().__init__(file)
        self.from_cache = from_cache

    def persistent_id(self, obj: Any) -> Any:
        """Returns what stands for an object that cannot be pickled."""
        if self.from_cache is not None and isinstance(obj, xla_client.LoadedExecutable):
            return "exec", self.from_cache
        return super().persistent_id(obj)


class _Found(threading.local):
    """The serialised executable that this thread last read from XLA's cache."""

    data: bytes | None = None


_FOUND = _Found()


@functools.cache
def _watch_cache() -> None:
    """Notes, from now on, what is read from XLA's cache."""
    extract = compilation_cache.extract_executable_and_time

    def noted(executable_and_time: bytes) -> tuple[bytes, int]:
        executable, seconds = extract(executable_and_time)
        _FOUND.data = executable
        return executable, seconds

    compilation_cache.extract_executable_and_time = noted


def sources() -> dict[str, tuple[int, int] | None]:
    """The files that all imported modules came from, and the data files that their packages read.

    Each has its size in bytes and its time of change in nanoseconds.
    """
    modules = [module for module in list(sys.modules.values()) if hasattr(module, "__name__")]
    files = {getattr(module, "__file__", None) or "" for module in modules}
    tops = [module for module in modules if "." not in module.__name__]
    folders = {path for module in tops for path in getattr(module, "__path__", [])} - {*sys.path}
    roots = tuple(os.path.join(path, "") for path in folders)
    files |= {file for file in _READ.copy() if file.startswith(roots)}
    return {f: _state(f) for f in sorted(files) if os.path.isabs(f) and not f.endswith(".pyc")}


def _state(file: str) -> tuple[int, int] | None:
    """A file's size and time of change; None if there is no such file."""
    try:
        stat = os.stat(file)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


_READ: set[str] = set()


@functools.cache
def _watch_files() -> None:
    """Notes, from now on, the files that this process opens; an audit hook stays for good."""

    def note(event: str, args: tuple) -> None:
        if event == "open" and isinstance(args[0], str) and args[1] in ("r", "rb", None):
            _READ.add(args[0])

    sys.addaudithook(note)
