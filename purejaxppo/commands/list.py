"""`purejaxppo list envs`: names that commands and configs take."""

import fnmatch
from collections.abc import Callable, Sequence

from purejaxppo.config import derived, files
from purejaxppo.config.hints import did_you_mean
from purejaxppo.runs.console import fail

PROG = "purejaxppo list"
HELP = f"""usage: {PROG} envs [PATTERN]
       {PROG} configs [PATTERN]

List the environments that can be trained, or the configs that come with the library.

  {PROG} envs
  {PROG} envs 'brax/*'
  {PROG} configs '*pole*'"""


def main(args: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    try:
        return run(args)
    except (ValueError, OSError) as error:
        return fail(error)


def run(words: Sequence[str]) -> int:
    """Prints a list.

    Raises:
        ValueError: no such list, nothing in it that matches, or too many words.
    """
    if {"-h", "--help"} & set(words):
        print(HELP)
        return 0
    there = " and ".join(LISTS)
    if not words:
        raise ValueError(f"{PROG} needs the name of a list: there are {there}")
    if words[0] not in LISTS:
        hint = did_you_mean(words[0], LISTS, f"there are {there}")
        raise ValueError(f"{PROG} {words[0]}: no such list; {hint}")
    if len(words) > 2:
        raise ValueError(f"{PROG} {words[0]} takes one pattern, but {words[2]!r} follows it")
    return LISTS[words[0]](words[1] if len(words) > 1 else "*")


def list_envs(pattern: str = "*") -> int:
    """Prints one environment per line; a family that is not installed has one line.

    Args:
        pattern: of names, family/task; or a family, or a part of names.

    Raises:
        ValueError: no name fits.
    """
    from purejaxppo.envs import registry

    families, wanted = list(registry.FAMILIES), pattern.partition("/")[0]
    named = [family for family in families if _fits(family, wanted)]
    whole = pattern
    if "/" not in pattern:
        whole = f"{pattern}/*" if named else f"*{pattern}*"
    found = 0
    for family in named or families * ("/" not in pattern):
        about = registry.FAMILIES[family].about
        try:
            lines = {n: about for n in registry.task_names(family) if _fits(n, whole)}
        except ValueError as error:
            lines = {f"{family}/...": str(error)} if named else {}
        found += len(lines)
        for name, text in lines.items():
            print(f"{name:42} {text}")
    if not found:
        hint = did_you_mean(wanted, families, f"its families are {', '.join(families)}")
        raise ValueError(f"{PROG} envs {pattern}: no environment fits; {hint}")
    return 0


def list_configs(pattern: str = "*") -> int:
    """Prints one config per line, with its first comment."""
    lines = {f"{name}.yaml": comment for name, comment in files.list_configs().items()}
    lines |= derived.ABOUT
    fitting = [name for name in lines if _fits(name, pattern) or _fits(name, f"{pattern}.yaml")]
    if not fitting:
        hint = did_you_mean(pattern, lines, f"`{PROG} configs` prints them all")
        raise ValueError(f"{PROG} configs {pattern}: no config fits; {hint}")
    for name in fitting:
        print(f"{name:32} {lines[name]}")
    return 0


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatch(name.lower(), pattern.lower())


LISTS: dict[str, Callable[[str], int]] = {"envs": list_envs, "configs": list_configs}
