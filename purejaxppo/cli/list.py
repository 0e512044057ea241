"""`purejaxppo list envs`: names that commands and configs take."""

import contextlib
import fnmatch
import sys
from collections.abc import Callable, Sequence
from typing import Any

from purejaxppo.config import derived, files
from purejaxppo.config.hints import did_you_mean, show
from purejaxppo.runs.console import SafeStream, fail
from purejaxppo.spaces import MASK, Dict, Discrete, MultiDiscrete, Space

PROG = "purejaxppo list"
HELP = f"""usage: {PROG} envs [FAMILY or PATTERN]
       {PROG} configs [PATTERN]

List the environments that can be trained, or the configs that come with the library. Tasks are
listed with the preprocessing of their observations: "normalised" by ppo.normalize_obs, "one-hot",
or "/ 255".

  {PROG} envs
  {PROG} envs particles
  {PROG} envs 'brax/*'
  {PROG} configs '*pole*'"""


def main(args: Sequence[str]) -> int:
    """Runs the command until the reader of its output closes the pipe; returns its exit code."""
    stream: Any = sys.stdout
    if isinstance(stream, SafeStream):
        stream = stream.stream
        stream.reconfigure(errors="backslashreplace")
    try:
        with contextlib.redirect_stdout(stream):
            code = run(args)
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has enough, as in `list envs | head`
        SafeStream(stream).flush()
        return 0
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
        hint = did_you_mean(words[0], LISTS, f"There are {there}.")
        raise ValueError(f"{PROG} {words[0]}: no such list. {hint}")
    if len(words) > 2:
        raise ValueError(f"{PROG} {words[0]} takes one pattern, but {words[2]!r} follows it")
    return LISTS[words[0]](words[1] if len(words) > 1 else "*")


def list_envs(pattern: str = "*") -> int:
    """Prints families, or one environment per line; a family that is not installed has one line.

    Args:
        pattern: "*": of all families, nothing more; the name of a family, or of some of its tasks
            (family/pattern): tasks with their spaces, limits and configs; else a pattern of names
            of several families, or a part of names.

    Raises:
        ValueError: no name fits.
    """
    from purejaxppo.envs import families, registry

    if pattern == "*":
        return list_families()
    known, (wanted, _, tasks) = list(families.declared()), pattern.partition("/")
    if wanted.lower() in known and list_tasks(wanted.lower(), tasks or "*"):
        return 0
    named = [family for family in known if _fits(family, wanted)]
    whole = pattern
    if "/" not in pattern:
        whole = f"{pattern}/*" if named else f"*{pattern}*"
    found = 0
    for family in named or known * ("/" not in pattern):
        try:
            about = families.load(family).about
            lines = {n: about for n in registry.task_names(family) if _fits(n, whole)}
        except ValueError as error:
            lines = {f"{family}/...": str(error)} if named else {}
        found += len(lines)
        for name, text in lines.items():
            print(f"{name:42} {text}")
    if not found:
        hint = did_you_mean(wanted, known, f"Its families are {', '.join(known)}.")
        raise ValueError(f"{PROG} envs {pattern}: no environment fits. {hint}")
    return 0


def list_families() -> int:
    """Prints one family per line; imports no simulator."""
    from purejaxppo.envs import families

    for name in families.declared():
        try:
            family = families.load(name)
            families.check_installed(name, family)
            about = family.about
        except ValueError as error:
            about = str(error)
        print(f"{name + '/':14} {about}")
    print(f"`{PROG} envs FAMILY` prints the tasks of one")
    return 0


def list_tasks(family: str, pattern: str = "*") -> int:
    """Prints the tasks of a family that fit: spaces, time limit, agents, configs; counts them.

    Why tasks cannot be made is said in full for the first of those of one reason.

    Raises:
        ValueError: its package is not installed.
    """
    from purejaxppo.envs import families, registry

    configs, reasons = configs_by_task(), dict[str, str]()
    names = [n for n in registry.task_names(family) if _fits(n, f"{family}/{pattern}")]
    for name in names:
        try:
            said = "" if families.load(family).on_host else facts(name)
        except ValueError as error:
            reason = str(error).removeprefix(f"{name} ")
            first = reasons.setdefault(reason, name)
            print(f"{name:42} {reason if first == name else f'as {first}'}", flush=True)
            continue
        derived_one = [f"--config {name}"] if family in derived.SOURCES else []
        found = ", ".join(filter(None, (said, *configs.get(name, ()), *derived_one)))
        print(f"{name:42} {found}".rstrip(), flush=True)
    if names and pattern == "*":
        print_options(family)
    return len(names)


def print_options(name: str) -> None:
    """Print the options of a family, one per line."""
    from purejaxppo.envs import families

    family = families.load(name)
    rows = [
        (f"{option} {show(one.default) if one.default is not None else ''}", one.help)
        for option, one in family.options.items()
    ]
    if family.more_options:
        rows.append(("...", f"{family.more_options}"))
    if rows:
        print("\n--env.options, with defaults:")
    for option, text in rows:
        print(f"  {option:40} {text}")


def facts(name: str) -> str:
    """A task's spaces, time limit and number of agents.

    Raises:
        ValueError: it cannot be made.
    """
    from purejaxppo.config.schema import EnvConfig
    from purejaxppo.envs import registry

    spec = registry.make(EnvConfig(name=name), 1, evaluation=True).spec
    limit = f"{spec.max_episode_steps} steps" if spec.max_episode_steps else "no limit"
    agents = f", {spec.num_agents} agents" if spec.num_agents > 1 else ""
    return f"{observed(spec.observation)} -> {words(spec.action)}, {limit}{agents}"


def observed(space: Space) -> str:
    """Describe a space of observations, with the preprocessing of each part."""
    if isinstance(space, Dict):
        parts = ((name, words(p) if name == MASK else observed(p)) for name, p in space.spaces)
        return " & ".join(f"{name} {text}" for name, text in parts)
    if isinstance(space, Discrete | MultiDiscrete):
        return f"{words(space)} one-hot"
    if space.is_vector:
        return f"{words(space)} normalised"
    return f"{words(space)} / 255" if space.is_bytes else words(space)


def words(space: Space) -> str:
    """A space in a few words, such as `obs [75] & action_mask uint8 [8]`."""
    if isinstance(space, Dict):
        return " & ".join(f"{name} {words(part)}" for name, part in space.spaces)
    if isinstance(space, Discrete):
        return f"1 of {space.n}"
    if isinstance(space, MultiDiscrete):
        return f"{len(space.nvec)} of up to {max(space.nvec)}"
    kind = "" if space.dtype == "float32" else f"{space.dtype} "
    return f"{kind}[{', '.join(map(str, space.shape))}]"


def configs_by_task() -> dict[str, list[str]]:
    """The configs that come with the library, by the name of their environment."""
    found: dict[str, list[str]] = {}
    for path in files.library_configs().values():
        name = files.read_yaml(path).get("env", {}).get("name", "")
        found.setdefault(name, []).append(path.name)
    return found


def list_configs(pattern: str = "*") -> int:
    """Prints one config per line, with its first comment."""
    texts = {path.name: path.read_text("utf-8") for path in files.library_configs().values()}
    lines = {name: text.partition("\n")[0].lstrip("# ") for name, text in texts.items()}
    lines |= derived.ABOUT
    fitting = [name for name in lines if _fits(name, pattern) or _fits(name, f"{pattern}.yaml")]
    if not fitting:
        hint = did_you_mean(pattern, lines, f"`{PROG} configs` prints them all.")
        raise ValueError(f"{PROG} configs {pattern}: no config fits. {hint}")
    for name in fitting:
        print(f"{name:32} {lines[name]}")
    return 0


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatch(name.lower(), pattern.lower())


LISTS: dict[str, Callable[[str], int]] = {"envs": list_envs, "configs": list_configs}
