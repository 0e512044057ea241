"""Configs derived from a simulator's tuned settings, such as `--config playground/CheetahRun`.

The modules that derive them are imported by name when needed, because this package may not import
`envs`.
"""

import importlib
from typing import Any

SOURCES = {"playground": "purejaxppo.envs.playground_settings"}
"""Family -> module with a function `settings(task)` that returns the sections of a config."""
ABOUT = {"playground/TASK": "any Playground task, with the settings that Playground tuned for it"}
"""Descriptions of derived configs in `list configs`."""


def settings(name: str) -> dict[str, Any] | None:
    """Return the sections of a derived config; None if `name` is not one (family/task).

    Raises:
        ValueError: the task is unknown, or the simulator is not installed.
    """
    family, _, task = name.partition("/")
    if family not in SOURCES or not task or task.endswith((".yaml", ".yml")):
        return None
    try:
        sections: dict[str, Any] = importlib.import_module(SOURCES[family]).settings(task)
    except ValueError as error:
        raise ValueError(f"--config {name}: {error}") from error
    return sections
