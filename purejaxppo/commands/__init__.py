"""The commands, a module each."""

import os


def keep_programs() -> None:
    """Lets a command, and processes that it starts, keep compiled programs on disk.

    Other processes do not unless asked to: functions could have been replaced in memory there.
    """
    os.environ.setdefault("PUREJAXPPO_KEEP_PROGRAMS", "1")
