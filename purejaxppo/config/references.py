"""Custom code in a config: `path/file.py:Name`, `package.module:Name`, or the object itself.

Nothing here imports JAX, since worker processes load files, too.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from purejaxppo.config.hints import nearest

OBJECT = "object of "
"""Begins the written form of an object that no reference can restore."""
_LOADING = threading.RLock()
"""Lock for loading files: worker threads that load one file at once would find it half loaded."""


class LoadError(ValueError):
    """A reference names something that does not exist or cannot be imported."""


@dataclass(frozen=True, eq=False, repr=False)
class CodeRef:
    """A reference to custom code, where a config needs more than its text.

    It is equal to its text, which is what config.yaml holds. Two references to different objects
    differ even if their texts are equal.
    """

    text: str
    """`path/file.py:Name` or `package.module:Name`, also after a family or in a list; or the path
    of a file or folder."""
    object: Any = None
    """The object itself, given from Python; None: the text is loaded."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files and folders as named in the text -> their places, such as copies in a run's folder."""

    def __str__(self) -> str:
        return self.text

    def __getattr__(self, name: str) -> Any:
        """Return a method of the text: in version 0.2 references were `str`."""
        if name.startswith("__") or name == "text":
            raise AttributeError(name)
        return getattr(self.text, name)

    def __repr__(self) -> str:
        at = f" at {id(self.object):#x}" if self.text.startswith(OBJECT) else ""
        return f"{self.text!r}{at}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CodeRef | str) or self.text != str(other):
            return False
        objects = {id(x.object) for x in (self, as_ref(other)) if x.object is not None}
        return len(objects) < 2

    def __hash__(self) -> int:
        return hash(self.text)


def parse(value: Any, prefix: str = "") -> str | CodeRef:
    """Return a config's text as it is, and an object as a reference whose text has `prefix`."""
    return value if isinstance(value, str | CodeRef) else CodeRef(prefix + name_of(value), value)


def parse_env(value: Any) -> str | CodeRef:
    """Parse env.name: a text or, from Python, an environment or gymnax's (env, params)."""
    like_gymnax = isinstance(value, tuple) or hasattr(value, "step_env")
    return parse(value, "gymnax/" if like_gymnax else "jax/")


def as_ref(value: str | CodeRef) -> CodeRef:
    """Return a reference; that of a text has no object and no places of files."""
    return value if isinstance(value, CodeRef) else CodeRef(value)


def name_of(target: Any) -> str:
    """Return a reference that restores an object; if that is impossible, "object of " and a name.

    Functions and classes at the top level of a module can be restored. Instances, local functions
    and classes, and those of the running script cannot.
    """
    is_named = hasattr(target, "__qualname__")
    kind = target if is_named else type(target)
    module, name = kind.__module__, kind.__qualname__
    loaded = sys.modules.get(module)
    found = loaded and _attribute(loaded, name)
    file = getattr(loaded, "__file__", None) or ""
    alone = "." not in module and file.endswith(".py") and "site-packages" not in file
    if not is_named or found is not target or module == "__main__":
        return f"{OBJECT}{Path(file).name if alone else module}:{name}"
    return f"{file if alone else module}:{name}"


def _attribute(module: Any, dotted: str) -> Any:
    """Return an attribute of a module by its dotted name; None if it is missing."""
    value = module
    for name in dotted.split("."):
        value = getattr(value, name, None)
    return value


def is_reference(value: str | CodeRef) -> bool:
    """True if a text has the form of a reference."""
    text = str(value)
    place, _, name = text.rpartition(":")
    dotted = all(part.isidentifier() for part in place.split("."))
    named = bool(place) and (place.endswith(".py") or dotted) and name.isidentifier()
    return named or text.startswith(OBJECT) or text.endswith(".py")


def files_in(text: str) -> list[str]:
    """The Python files that a list of references names, as written: a.py in "a.py:One,b:Two".

    An object that cannot be restored from a text has no files.
    """
    files = [part.strip().rpartition(":")[0] for part in text.split(",")]
    return [file for file in files if file.endswith(".py") and not file.startswith(OBJECT)]


def modules_in(text: str) -> list[str]:
    """The modules that a list of references names: b.c in "a.py:One,b.c:Two"."""
    if text.startswith(OBJECT):
        return []
    places = [part.strip().rpartition(":")[0] for part in text.split(",")]
    return [place for place in places if place and not place.endswith(".py")]


def located(value: str | CodeRef) -> str:
    """Return a reference's text with the places of its files; also of a list, or of a path."""
    text, files = str(value), as_ref(value).files
    if text in files:
        return files[text]
    parts = [part.strip().rpartition(":") for part in text.split(",")]
    if not any(file in files for file, _, _ in parts):
        return text
    return ",".join(files.get(file, file) + colon + name for file, colon, name in parts)


def absolute(text: str) -> str:
    """Return a list of references with absolute paths of the files that exist.

    Relative paths would break if an environment changes the current folder.
    """
    places = {file: Path(file).expanduser().absolute() for file in files_in(text)}
    files = {file: str(place) for file, place in places.items() if place.is_file()}
    return located(CodeRef(text, files=files))


def without_family(name: str | CodeRef) -> CodeRef:
    """Return the reference behind the family of an environment's name."""
    return replace(as_ref(name), text=str(name).partition("/")[2])


def with_files(data: Any, files: Mapping[str, str]) -> Any:
    """Return nested plain data in which texts that name Python files or paths have `files`."""
    if isinstance(data, Mapping):
        return {key: with_files(value, files) for key, value in data.items()}
    if type(data) in (list, tuple):
        return type(data)(with_files(value, files) for value in data)
    if not isinstance(data, str | CodeRef) or as_ref(data).object is not None:
        return data
    text = str(data)
    if ".py:" in text or text in files or text.partition("/")[2] in files:
        return CodeRef(text, files={**as_ref(data).files, **files})
    return data


def neither(value: Any, known: Iterable[str], where: str) -> str:
    """The message for a value that is neither a built-in name nor a reference."""
    return f"{where} = {value!r} must be one of {', '.join(known)}, or your own as file.py:Name"


def load(value: str | CodeRef, where: str) -> Any:
    """Return the object of a reference.

    Raises:
        LoadError: one sentence: no such file, package or name, an import that fails, or an object
            that cannot be restored from a text.
    """
    text = str(value)
    if isinstance(value, CodeRef) and value.object is not None:
        return value.object
    if text.startswith(OBJECT):
        raise LoadError(
            f"{where} = {text!r} was given as an object, which a config alone cannot restore. Give "
            f"it again, or put it into a file, as file.py:Name."
        )
    place, _, name = located(value).rpartition(":")
    if not place and text.endswith(".py"):
        raise LoadError(f"{where} = {text}: the name in the file is missing. Write {text}:Name.")
    if not place:
        raise LoadError(
            f"{where} = {text!r} is neither built in nor a reference such as file.py:Name"
        )
    if place.endswith(".py"):
        return in_file(place, name, where)
    return in_module(import_named(place, f"{where}: {text}"), place, name, where)


def in_module(
    module: ModuleType,
    place: str,
    name: str,
    where: str,
    is_one: Callable[[Any], bool] | None = None,
    kind: str = "",
) -> Any:
    """Return an attribute of a module; with `is_one`, only one that it accepts.

    Raises:
        LoadError: no such attribute; the message names the nearest, or all.
    """
    there = [key for key, value in vars(module).items() if is_one is None or is_one(value)]
    if name in there:
        return vars(module)[name]
    made = [key for key in there if getattr(vars(module)[key], "__module__", "") == module.__name__]
    close = nearest(name, made)
    plural = f"{kind}es" if kind.endswith("s") else f"{kind}s"
    has = (
        f"It has {', '.join(made)}."
        if made
        else f"It has no {plural if kind else 'functions or classes'}."
    )
    hint = f"Did you mean {close!r}?" if close and not kind else has
    raise LoadError(f"{where}: {place} has no {kind + ' ' if kind else ''}{name!r}. {hint}")


def import_named(module: str, where: str) -> Any:
    """A module by name.

    Raises:
        LoadError: it, or what it imports, is not installed, or raises when it is imported.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(error.name + ".")):
            raise LoadError(f"{where}: no package {error.name!r} is installed") from error
        raise LoadError(f"{where}: {module} needs another package: {error}") from error
    except Exception as error:
        raise LoadError(f"{where}: {module} cannot be imported: {described(error)}") from error


def in_file(
    file: str,
    name: str,
    where: str,
    is_one: Callable[[Any], bool] | None = None,
    kind: str = "",
) -> Any:
    """An attribute of a Python file, loaded once; it may import modules next to it.

    Raises:
        LoadError: there is no such file, it raises when it is imported, or see `in_module`.
    """
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        place = "" if Path(file).expanduser().is_absolute() else f" in {Path.cwd()}"
        raise LoadError(f"{where}: {file}: no such file{place}")
    with _LOADING:
        try:
            module = _module_of(path)
        except Exception as error:
            raise LoadError(f"{where}: {file}: {described(error, path)}") from error
    return in_module(module, file, name, where, is_one, kind)


def described(error: BaseException, path: Path | None = None) -> str:
    """Describe an error of custom code in one line, with the line number."""
    message = f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
    if isinstance(error, SyntaxError):
        return f"line {error.lineno} is not Python ({error.msg})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if (Path(f.filename) == path if path else _is_own(f.filename))]
    if not own:
        return message
    return f"line {own[-1].lineno}{'' if path else f' of {own[-1].filename}'} raises {message}"


def _is_own(file: str) -> bool:
    """True for a file that is neither this package's, an installed package's nor Python's."""
    package = str(Path(__file__).resolve().parent.parent)
    return not (file.startswith((package, "<")) or "site-packages" in file or "/lib/python" in file)


def _module_of(path: Path) -> Any:
    """A Python file as a module, loaded again after the file has changed.

    It is also the package of its folder: `from . import x` finds x.py next to it.
    """
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    name = f"purejaxppo_file_{path.stem}_{abs(hash(path))}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    folder = [str(path.parent)]
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folder)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _beside(str(path.parent)):
            spec.loader.exec_module(module)
    except BaseException:
        for loaded in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
            del sys.modules[loaded]
        raise
    return module


@contextlib.contextmanager
def _beside(folder: str) -> Iterator[None]:
    """Make imports search `folder` first, also for names that are already imported from elsewhere.

    Afterwards the folder is searched last, for imports inside of functions.
    """
    siblings = {path.stem for path in Path(folder).glob("*.py")}
    hidden = {
        name: sys.modules.pop(name)
        for name in siblings & set(sys.modules)
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent != Path(folder)
    }
    known = list(sys.path)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = known if folder in known else [*known, folder]
        for name in hidden:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
