"""Writes docs/names.md from purejaxppo/config/names.yaml.

With --check it writes nothing, and fails if the file is not up to date.
"""

import sys
from pathlib import Path

import pages

from purejaxppo.config.foreign import Meaning, libraries
from purejaxppo.config.hints import show

TARGET = Path(__file__).resolve().parent / "names.md"
HEAD = """# Names in other libraries

Settings of other PPO libraries and what they are here, generated from
`purejaxppo/config/names.yaml` by `docs/make_names.py`. A flag or a key of a config with one of
these names, in any spelling (`--n_steps`, `--n-steps`, `N_STEPS`), is answered with ours. The
[config reference](config.md) describes every setting. With these translations, a gradient step on
the same rows equals that of Stable-Baselines3, rsl_rl and Brax (`tests/test_sb3_parity.py`,
`tests/test_names_parity.py`).

The column "value" gives our value for their value x; it is empty where both are the same. `rows`
are env.num_envs x ppo.rollout_length. An error message contains our value where it can be
computed: `batch_size: 64` with 256 environments and 128 steps is `ppo.num_minibatches = 512`.
"""

TITLES = {
    "Other libraries": "Names in use elsewhere",
    "evaluate and export": "Flags of evaluate and export",
}


def row(name: str, meaning: Meaning) -> str:
    """A row of a table."""
    if isinstance(meaning.value, dict):
        value = ", ".join(f"{show(x)}: {ours}" for x, ours in meaning.value.items())
    else:
        value = meaning.value or ""
    value = "" if value == "x" else f"`{value}`" if value else "see remark"
    field = f"`{meaning.field}`" if meaning.field else "-"
    return f"| `{name}` | {field} | {value if meaning.field else ''} | {meaning.remark} |"


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for library, names in libraries().items():
        title = TITLES.get(library, f"If you come from {library}")
        rows = "\n".join(row(name, meaning) for name, meaning in names.items())
        head = "| there | here | value | remark |\n| --- | --- | --- | --- |"
        parts.append(f"## {title}\n\n{head}\n{rows}\n")
    return "\n".join(parts)


def main() -> int:
    """Writes or checks the page; returns the exit code."""
    return pages.run(__doc__, TARGET, lambda old: render())


if __name__ == "__main__":
    sys.exit(main())
