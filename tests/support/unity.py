"""A player for tests: the scripted game as one executable file."""

import stat
import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[1] / "engines" / "unity_engine.py"


def make_player(folder: Path, name: str = "Game") -> str:
    """Writes an executable that plays the scripted game; its path."""
    path = folder / name
    root = ENGINE.parents[2]
    path.write_text(
        f"#!{sys.executable}\n"
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(root)!r})\n"
        f"runpy.run_path({str(ENGINE)!r}, run_name='__main__')\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)
