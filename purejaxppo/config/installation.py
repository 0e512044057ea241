"""Missing optional packages, and the command that installs them."""

import importlib.metadata
import importlib.util
import json
import os
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


def require(package: str, extra: str, module: str = "") -> None:
    """Raise ValueError if an optional package is not installed.

    Args:
        package: its name for pip.
        extra: the extra of purejaxppo that contains it.
        module: the module to find, if its name is not `package`.
    """
    if importlib.util.find_spec(module or package) is None:
        raise ValueError(f"{package} is not installed. Run: {install_extra(extra)}")


def install_extra(extra: str) -> str:
    """Return the shell command that adds an extra to this installation of purejaxppo."""
    folder = _checkout()
    if folder is None:
        return install(f"purejaxppo[{extra}]")
    path = "." if folder == Path.cwd() else str(folder)
    return install(f"{path}[{extra}]", editable=True)


def install(requirement: str, *, editable: bool = False) -> str:
    """Return the shell command that installs a package into the Python that runs."""
    return f"{_installer()} install {'-e ' if editable else ''}'{requirement}'"


def _installer() -> str:
    """Return `pip`, with its path if the virtual environment is not active; uv if it has no pip."""
    if sys.prefix == sys.base_prefix:
        return "pip"
    folder = Path(sys.prefix)
    is_active = os.environ.get("VIRTUAL_ENV") == sys.prefix
    pip = Path(sys.executable).with_name("pip")
    if not pip.exists():  # uv creates environments without pip
        return "uv pip" if is_active else f"VIRTUAL_ENV={shlex.quote(str(folder))} uv pip"
    if is_active:
        return "pip"
    is_here = pip.is_relative_to(Path.cwd())
    return shlex.quote(str(pip.relative_to(Path.cwd()) if is_here else pip))


def _checkout() -> Path | None:
    """Return the checkout that an editable installation runs, or None."""
    try:
        text = importlib.metadata.distribution("purejaxppo").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    origin = json.loads(text or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(url2pathname(urlsplit(origin["url"]).path))
