"""A run's copies of the Python files that its config names, in its folder `code`.

A file is copied with the modules beside it that it imports, into a folder named after its content.
"""

import ast
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from purejaxppo import interrupts

CODE = "code"
INDEX = "files.json"


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


def of_run(run_dir: str | Path) -> dict[str, str]:
    """A run's copies: files as the config writes them -> absolute paths."""
    code = Path(run_dir).resolve() / CODE
    return {name: str(code / entry["copy"]) for name, entry in index(run_dir).items()}


def changed(run_dir: str | Path) -> dict[str, str]:
    """Files whose originals differ from a run's copies, by the copies' paths."""
    copies = of_run(run_dir)
    return {
        copies[name]: entry["original"]
        for name, entry in index(run_dir).items()
        if Path(entry["original"]).is_file()
        and folder_name(Path(entry["original"])) != Path(entry["copy"]).parent.name
    }


def add(run_dir: Path, files: Mapping[str, Path]) -> None:
    """Copies files into a run's folder, unless it has copies of them.

    Args:
        run_dir: the run's folder.
        files: by name as the config writes it.

    Raises:
        ValueError: the index of earlier copies is damaged.
    """
    known = index(run_dir)
    new = {name: path.resolve() for name, path in files.items() if name not in known}
    for name, path in new.items():
        folder = folder_name(path)
        for source in with_imports(path):
            target = run_dir / CODE / folder / source.relative_to(path.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        known[name] = Copy(copy=f"{folder}/{path.name}", original=str(path))
    if new:
        with interrupts.named_when_done(run_dir / CODE / INDEX) as partial:
            partial.write_text(json.dumps(known, indent=1), encoding="utf-8")


def folder_name(file: Path) -> str:
    """The name of a file's folder of copies: its own, and a hash of it and of what it imports."""
    sources = with_imports(file)
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.relative_to(file.parent)}\0".encode())
        digest.update(source.read_bytes() + b"\0")
    return f"{file.stem}-{digest.hexdigest()[:12]}"


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
                waiting += sorted(package.rglob("*.py")) if package.is_dir() else []
    return [file, *sorted(path for path in found if path != file)]


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
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return list(dict.fromkeys(name.partition(".")[0] for name in names))
