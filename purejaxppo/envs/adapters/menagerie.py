"""Find the robot models of MuJoCo Menagerie on disk, for Playground. Nothing is downloaded."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from purejaxppo.config.installation import install_extra
from purejaxppo.config.plain import user_path

REPOSITORY = "https://github.com/google-deepmind/mujoco_menagerie"
COMPLETE = ".complete"
"""File that the package mujoco-menagerie writes into a model's folder after the download."""


class MissingModelError(ValueError):
    """Raised if the model of a robot is not on this computer."""


class Menagerie:
    """The folder of robot models, in place of Playground's `mjx_env.MENAGERIE_PATH`.

    `menagerie / "unitree_go1"` is the folder of that robot: in `folder`, if given;
    otherwise in MENAGERIE_ROOT, in the cache of the package mujoco-menagerie, and in `default`.

    Args:
        name: name of the task, for errors.
        folder: `env.options.menagerie`, a clone of mujoco_menagerie; "" if unset.
        default: Playground's own folder, an `etils.epath.Path`.
    """

    def __init__(self, name: str, folder: str, default: Any) -> None:
        """Store the folders."""
        self.name, self.default = name, default
        root = folder or os.environ.get("MENAGERIE_ROOT", "")
        self.root = user_path(root) if root else None
        self.only_root = bool(folder)

    def exists(self) -> bool:
        """Return True: Playground would otherwise clone the repository."""
        return True

    def __fspath__(self) -> str:
        """Return the path of a clone."""
        return str(self.root or self.default)

    def __str__(self) -> str:
        """Return the path of a clone."""
        return self.__fspath__()

    def __truediv__(self, robot: str) -> Any:
        """Return the folder of a robot as an `etils.epath.Path`.

        Raises:
            MissingModelError: the robot is in none of the folders.
        """
        places = [self.root / robot] if self.root else []
        places += [] if self.only_root else [*cached(robot), Path(self.default / robot)]
        for place in places:
            if place.is_dir():
                return type(self.default)(place)
        raise MissingModelError(self._missing(robot))

    def _missing(self, robot: str) -> str:
        if self.only_root:
            return (
                f"env.options.menagerie: {self.root} has no folder {robot}, which {self.name} "
                f"needs. Use a clone of {REPOSITORY}, or remove the option to use the models that "
                f"`mujoco-menagerie prefetch {robot}` downloads."
            )
        command = f"mujoco-menagerie prefetch {robot}"
        if importlib.util.find_spec("mujoco_menagerie") is None:
            command = f"{install_extra('robots')} && {command}"
        return (
            f"{self.name} needs the robot model {robot}. Run: {command}. It is saved in "
            f"{cache_folder()}. With a clone of {REPOSITORY}, set env.options.menagerie to its "
            f"folder instead."
        )


def cache_folder() -> Path:
    """Return the cache folder of the package mujoco-menagerie."""
    if folder := os.environ.get("MENAGERIE_CACHE_DIR"):
        return Path(folder)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local"
        return Path(local) / "mujoco_menagerie" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/mujoco_menagerie"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mujoco_menagerie"


def cached(robot: str) -> list[Path]:
    """Return the complete downloads of a robot, `models/ROBOT-HASH` in the cache, newest first."""
    complete = (cache_folder() / "models").glob(f"{robot}-*/{COMPLETE}")
    newest = sorted(complete, key=lambda path: path.stat().st_mtime, reverse=True)
    # "unitree_go1-*" does not match "unitree_go1-x-HASH": a hash contains no "-".
    return [path.parent for path in newest if path.parent.name.rpartition("-")[0] == robot]
