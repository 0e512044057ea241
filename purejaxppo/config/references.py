"""References to custom code: `path/file.py:Name`, `package.module:Name`, or a Python object.

This module does not import JAX, because worker processes use it.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from purejaxppo.config.hints import nearest
from purejaxppo.config.plain import user_path

OBJECT = "object of "
"""Start of the string of an object that cannot be loaded from a string."""
_LOADING = threading.RLock()
"""Lock for loading files. Without it, a thread could see a module that another is still loading."""


class LoadError(ValueError):
    """Raised if the code of a reference does not exist or cannot be imported."""


@dataclass(frozen=True, eq=False, repr=False)
class CodeRef:
    """A reference to custom code, with the object or the paths of its files.

    It is equal to its string `text`, which config.yaml contains. Two references to different
    objects differ even if their strings are equal.
    """

    text: str
    """`path/file.py:Name` or `package.module:Name`, with an optional family or in a list; or the
    path of a file or folder."""
    object: Any = None
    """The object, if it was passed from Python; None: `text` is loaded."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files and folders in `text` -> their paths, such as copies in a run's folder."""

    def __str__(self) -> str:
        return self.text

    def __getattr__(self, name: str) -> Any:
        """Return a method of `text`, because references were `str` in version 0.2."""
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


def parse(value: Any) -> str | CodeRef:
    """Return strings and references unchanged, and an object as a reference."""
    return value if isinstance(value, str | CodeRef) else CodeRef(name_of(value), value)


def as_ref(value: str | CodeRef) -> CodeRef:
    """Convert a string to a reference; references are returned unchanged."""
    return value if isinstance(value, CodeRef) else CodeRef(value)


def name_of(target: Any) -> str:
    """Return an object as the string of a reference; "object of NAME" if it cannot be loaded.

    Functions and classes at the top level of a module can be loaded from a string. Instances, local
    functions and classes, and those of the running script cannot.
    """
    # Methods of built-in classes and objects have no module.
    is_named = hasattr(target, "__qualname__") and getattr(target, "__module__", None)
    kind = target if is_named else type(target)
    module, name = kind.__module__, kind.__qualname__
    loaded = sys.modules.get(module)
    attribute = loaded and _attribute(loaded, name)
    file = getattr(loaded, "__file__", None) or ""
    is_script = "." not in module and file.endswith(".py") and "site-packages" not in file
    if not is_named or attribute is not target or module == "__main__":
        return f"{OBJECT}{Path(file).name if is_script else module}:{name}"
    return f"{file if is_script else module}:{name}"


def _attribute(module: Any, dotted: str) -> Any:
    """Return an attribute of a module by its dotted name; None if it is missing."""
    value = module
    for name in dotted.split("."):
        value = getattr(value, name, None)
    return value


def is_reference(value: str | CodeRef) -> bool:
    """Return True if a string has the form of a reference."""
    text = str(value)
    place, _, name = text.rpartition(":")
    dotted = all(part.isidentifier() for part in place.split("."))
    named = bool(place) and (place.endswith(".py") or dotted) and name.isidentifier()
    return named or text.startswith(OBJECT) or text.endswith(".py")


def files_in(text: str) -> list[str]:
    """Return the Python files in a list of references: [a.py] for "a.py:One,b:Two".

    The result is empty for an object that was passed from Python and cannot be loaded from a file.
    """
    files = [part.strip().rpartition(":")[0] for part in text.split(",")]
    return [file for file in files if file.endswith(".py") and not file.startswith(OBJECT)]


def modules_in(text: str) -> list[str]:
    """Return the modules in a list of references: [b.c] for "a.py:One,b.c:Two"."""
    if text.startswith(OBJECT):
        return []
    places = [part.strip().rpartition(":")[0] for part in text.split(",")]
    return [place for place in places if place and not place.endswith(".py")]


def located(value: str | CodeRef) -> str:
    """Return a reference, list of references or path as a string, with the paths of its files."""
    text, files = str(value), as_ref(value).files
    if text in files:
        return files[text]
    parts = [part.strip().rpartition(":") for part in text.split(",")]
    if not any(file in files for file, _, _ in parts):
        return text
    return ",".join(files.get(file, file) + colon + name for file, colon, name in parts)


def absolute(text: str) -> str:
    """Return a list of references with the absolute paths of existing files.

    Relative paths would break if an environment changes the current folder.
    """
    paths = {file: user_path(file).absolute() for file in files_in(text)}
    files = {file: str(path) for file, path in paths.items() if path.is_file()}
    return located(CodeRef(text, files=files))


def without_family(name: str | CodeRef) -> CodeRef:
    """Return the reference after the family in env.name: `f.py:Env` for "gymnax/f.py:Env"."""
    return replace(as_ref(name), text=str(name).partition("/")[2])


def with_files(data: Any, files: Mapping[str, str]) -> Any:
    """Return nested plain data in which references and paths have the paths in `files`."""
    if isinstance(data, Mapping):
        return {
            with_files(key, files) if ".py:" in str(key) else key: with_files(value, files)
            for key, value in data.items()
        }
    if type(data) in (list, tuple):
        return type(data)(with_files(value, files) for value in data)
    if not isinstance(data, str | CodeRef) or as_ref(data).object is not None:
        return data
    text = str(data)
    if ".py:" in text or text in files or text.partition("/")[2] in files:
        return CodeRef(text, files={**as_ref(data).files, **files})
    return data


def refs_in(data: Any) -> Iterator[CodeRef]:
    """Yield the strings and references in plain data, also in lists, mappings and their keys."""
    if isinstance(data, str | CodeRef):
        yield as_ref(data)
    elif isinstance(data, Mapping):
        for pair in data.items():
            yield from refs_in(pair)
    elif isinstance(data, list | tuple):
        for item in data:
            yield from refs_in(item)


def with_located(data: Any) -> Any:
    """Return plain data with references as strings, with the paths of their files."""
    if isinstance(data, CodeRef):
        return located(data)
    if isinstance(data, Mapping):
        return {with_located(key): with_located(value) for key, value in data.items()}
    return [with_located(value) for value in data] if isinstance(data, list) else data


def neither(value: Any, known: Iterable[str], where: str) -> str:
    """Return the message for a value that is neither a built-in name nor a reference."""
    return (
        f"{where} = {value!r}: must be one of {', '.join(known)}, or custom code as file.py:Name."
    )


def load(value: str | CodeRef, where: str) -> Any:
    """Return the object of a reference.

    Args:
        value: the reference.
        where: the config field, for messages.

    Raises:
        LoadError: the file, package or name does not exist, or the import fails.
    """
    text = str(value)
    if isinstance(value, CodeRef) and value.object is not None:
        return value.object
    if text.startswith(OBJECT):
        example = "as in load(run_dir, env=Name) in Python, " if where == "env.name" else ""
        raise LoadError(
            f"{where} = {text!r}: an object from Python cannot be loaded. Pass the object again, "
            f"{example}or use a reference such as file.py:Name."
        )
    place, _, name = located(value).rpartition(":")
    if not place and text.endswith(".py"):
        raise LoadError(f"{where} = {text}: the name is missing. Use {text}:Name.")
    if not place:
        raise LoadError(
            f"{where} = {text!r}: must be a built-in name, or a reference such as file.py:Name."
        )
    if place.endswith(".py"):
        return in_file(place, name, where)
    return in_module(import_named(place, f"{where}: {text}"), place, name, where)


def in_module(
    module: ModuleType, place: str, name: str, where: str, *, callables: bool = False
) -> Any:
    """Return an attribute of a module.

    Args:
        module: the module.
        place: the file or module as written, for messages.
        name: name of the attribute.
        where: the config field, for messages.
        callables: accept, and list in messages, only functions and classes.

    Raises:
        LoadError: the module has no such attribute.
    """
    names = [key for key, value in vars(module).items() if callable(value) or not callables]
    if name in names:
        return vars(module)[name]
    defined = [
        key for key in names if not key.startswith("__") and _is_own(vars(module)[key], module)
    ]
    close = None if callables else nearest(name, defined)
    has = f"It has {', '.join(defined) or 'no functions or classes'}."
    hint = f"Did you mean {close!r}?" if close else has
    raise LoadError(f"{where}: {place} has no {'function or class ' * callables}{name!r}. {hint}")


def import_named(module: str, where: str) -> Any:
    """Import a module by name.

    Raises:
        LoadError: the module or a dependency is not installed, or the import raises an error.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(error.name + ".")):
            raise LoadError(f"{where}: the package {error.name!r} is not installed.") from error
        raise LoadError(f"{where}: {module} requires another package: {error}.") from error
    except Exception as error:
        raise LoadError(f"{where}: {module} cannot be imported: {described(error)}.") from error


def in_file(file: str, name: str, where: str, *, callables: bool = False) -> Any:
    """Return an attribute of a Python file. The file may import modules next to it.

    Args and other errors: see `in_module`.

    Raises:
        LoadError: the file does not exist, or raises an error.
    """
    path = user_path(file).resolve()
    if not path.is_file():
        place = "" if user_path(file).is_absolute() else f" in {Path.cwd()}"
        raise LoadError(f"{where}: {file}: no such file{place}.")
    with _LOADING:
        try:
            module = _module_of(path)
        except Exception as error:
            raise LoadError(f"{where}: {file}: {described(error, path)}.") from error
    return in_module(module, file, name, where, callables=callables)


def described(error: BaseException, path: Path | None = None) -> str:
    """Describe an error of custom code in one line, with the line number."""
    message = f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
    if isinstance(error, SyntaxError):
        return f"line {error.lineno} has invalid syntax ({error.msg})"
    frames = traceback.extract_tb(error.__traceback__)
    custom = [f for f in frames if (Path(f.filename) == path if path else _is_custom(f.filename))]
    if not custom:
        return message
    line = (
        f"line {custom[-1].lineno}"
        if path
        else f"line {custom[-1].lineno} of {custom[-1].filename}"
    )
    return f"{line} raises {message}"


def _is_custom(file: str) -> bool:
    """Return True for a file that belongs neither to a package nor to Python."""
    package = str(Path(__file__).resolve().parent.parent)
    return not (file.startswith((package, "<")) or "site-packages" in file or "/lib/python" in file)


def _is_own(value: Any, module: ModuleType) -> bool:
    """Return True for functions and classes of a module, and for objects that it may have made."""
    is_object = not callable(value) and not isinstance(value, ModuleType | str | int | float)
    return is_object or getattr(value, "__module__", "") == module.__name__


def _module_of(path: Path) -> Any:
    """Return a Python file as a module; reload it if the file has changed.

    The module is imported as a package. `from . import x` then finds x.py in the same folder.
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
        with _imports_from(str(path.parent)):
            spec.loader.exec_module(module)
    except BaseException:
        for loaded in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
            del sys.modules[loaded]
        raise
    return module


@contextlib.contextmanager
def _imports_from(folder: str) -> Iterator[None]:
    """Search `folder` first for imports, even for modules already imported from elsewhere.

    Afterwards, imports search the folder last, for imports inside functions.
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
