"""Writes docs/names.md from the tables of names in purejaxppo/config/foreign.py.

With --check it writes nothing, and fails if the file is not up to date.
"""

import sys
from pathlib import Path

import pages

from purejaxppo.config.foreign import LIBRARIES

TARGET = Path(__file__).resolve().parent / "names.md"
HEAD = """# Names in other libraries

Settings of other PPO libraries and what they are here, generated from
`purejaxppo/config/foreign.py` by `docs/make_names.py`. A flag or a key of a config with one of
these names, in any spelling (`--n_steps`, `--n-steps`, `N_STEPS`), is answered with ours. The
[config reference](config.md) describes every setting. With these translations, a gradient step on
the same rows equals that of Stable-Baselines3, rsl_rl and Brax (`tests/test_sb3_parity.py`,
`tests/test_names_parity.py`).
"""

TITLES = {"others": "Names in use elsewhere", "evaluate and export": "Flags of evaluate and export"}


def row(name: str, ours: str | tuple[str, str]) -> str:
    """A row of a table."""
    key, remark = (ours, "") if isinstance(ours, str) else ours
    here = f"`{key}`" if key else "-"
    return f"| `{name}` | {here} | {remark} |"


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for library, names in LIBRARIES.items():
        title = TITLES.get(library, f"If you come from {library}")
        rows = "\n".join(row(name, ours) for name, ours in names.items())
        parts.append(f"## {title}\n\n| there | here | remark |\n| --- | --- | --- |\n{rows}\n")
    return "\n".join(parts)


def main() -> int:
    """Writes or checks the page; returns the exit code."""
    return pages.run(__doc__, TARGET, lambda old: render())


if __name__ == "__main__":
    sys.exit(main())
