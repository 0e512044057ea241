"""Configs derived from a simulator's own tuned settings: `--config playground/CheetahRun`.

The module that derives them is named as text and imported when it is asked for, as users' own code
is (`references`): this room imports none above it.
"""

import importlib
from typing import Any

SOURCES = {"playground": "purejaxppo.envs.playground_settings"}
"""Family -> a module with `settings(task)`, sections of a config as plain values."""
ABOUT = {"playground/TASK": "any task of Playground, with the settings that it was tuned to there"}
"""Descriptions of them in `list configs`."""


def settings(name: str) -> dict[str, Any] | None:
    """The sections of a derived config; None for a name that is not of one's form, family/task.

    Raises:
        ValueError: no such task, or the simulator is not installed.
    """
    family, _, task = name.partition("/")
    if family not in SOURCES or not task or task.endswith((".yaml", ".yml")):
        return None
    try:
        made: dict[str, Any] = importlib.import_module(SOURCES[family]).settings(task)
    except ValueError as error:
        raise ValueError(f"--config {name}: {error}") from error
    return made
