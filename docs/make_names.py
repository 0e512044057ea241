"""Write docs/names.md from purejaxppo/config/names.yaml.

With --check, write nothing and fail if the file is not up to date.
"""

import sys
from pathlib import Path

import pages

from purejaxppo.config.foreign import Meaning, libraries
from purejaxppo.config.hints import show

TARGET = Path(__file__).resolve().parent / "names.md"
HEAD = """# Names in other libraries

Settings of other PPO libraries and their equivalents in purejaxppo. If you use one of these names
as a flag or a config key, in any spelling (`--n_steps`, `--n-steps`, `N_STEPS`), the error message
gives the equivalent. The [config reference](config.md) describes each setting. With these
translations, a gradient step on the same rows equals that of Stable-Baselines3, rsl_rl and Brax.

The column "value" is the equivalent of a value x in the other library. It is empty if both are the
same. `rows` is env.num_envs x ppo.rollout_length. For example, `batch_size: 64` with 256
environments and 128 steps is `ppo.num_minibatches = 512`.
"""

TITLES = {
    "Other libraries": "Other names",
    "evaluate and export": "Flags of evaluate and export",
}


def row(name: str, meaning: Meaning) -> str:
    """Return a row of a table."""
    if isinstance(meaning.value, dict):
        value = ", ".join(f"{show(x)}: {ours}" for x, ours in meaning.value.items())
    else:
        value = meaning.value or ""
    value = "" if value == "x" else f"`{value}`" if value else "see remark"
    field = f"`{meaning.field}`" if meaning.field else "-"
    return f"| `{name}` | {field} | {value if meaning.field else ''} | {meaning.remark} |"


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for library, names in libraries().items():
        title = TITLES.get(library, f"If you come from {library}")
        rows = "\n".join(row(name, meaning) for name, meaning in names.items())
        head = "| their setting | purejaxppo | value | remark |\n| --- | --- | --- | --- |"
        parts.append(f"## {title}\n\n{head}\n{rows}\n")
    return "\n".join(parts)


def main() -> int:
    """Write or check the page, and return the exit code."""
    return pages.run(__doc__, TARGET, lambda old: render())


if __name__ == "__main__":
    sys.exit(main())
