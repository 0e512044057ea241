"""The command `purejaxppo list envs` or `purejaxppo list configs`."""

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
COLUMNS = "observation (preprocessing) -> action, time limit, agents, configs"
HELP = f"""usage: {PROG} envs [FAMILY or PATTERN]
       {PROG} configs [PATTERN]

List environments, or the library's configs. A task is listed with its observations and their
preprocessing (normalised by ppo.normalize_obs, one-hot, or / 255), actions and time limit.

  {PROG} envs
  {PROG} envs particles
  {PROG} envs 'brax/*'
  {PROG} configs '*pole*'"""


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code. Stop quietly if the output pipe is closed."""
    stream: Any = sys.stdout
    if isinstance(stream, SafeStream):
        stream = stream.stream
        stream.reconfigure(errors="backslashreplace")
    try:
        with contextlib.redirect_stdout(stream):
            code = run(args)
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # as in `list envs | head`
        SafeStream(stream).flush()
        return 0
    except (ValueError, OSError) as error:
        return fail(error)


def run(words: Sequence[str]) -> int:
    """Print a list.

    Raises:
        ValueError: the list is unknown, nothing matches, or there are too many arguments.
    """
    if {"-h", "--help"} & set(words):
        print(HELP)
        return 0
    names = " or ".join(LISTS)
    if not words:
        raise ValueError(f"{PROG}: the name of a list is missing. Use {names}.")
    if words[0] not in LISTS:
        hint = did_you_mean(words[0], LISTS, f"Use {names}.")
        raise ValueError(f"{PROG} {words[0]}: unknown list. {hint}")
    if len(words) > 2:
        raise ValueError(f"{PROG} {words[0]} takes only one pattern. Remove {words[2]!r}.")
    return LISTS[words[0]](words[1] if len(words) > 1 else "*")


def list_envs(pattern: str = "*") -> int:
    """Print families, or one environment per line. A family that is not installed gets one line.

    Args:
        pattern: "*" for all families; a family, or family/pattern, for its tasks with spaces, time
            limits and configs; otherwise a pattern, or a part, of names in several families.

    Raises:
        ValueError: no name matches.
    """
    from purejaxppo.envs import families, registry

    if pattern == "*":
        return list_families()
    known, (prefix, _, tasks) = list(families.declared()), pattern.partition("/")
    if (family := prefix.lower()) in known:
        if list_tasks(family, tasks or "*"):
            return 0
        if tasks in ("", "*") and not registry.task_names(family):
            print(f"{family}/  {families.load(family).about}")
            print_options(family)
            return 0
    matching = [family for family in known if _fits(family, prefix)]
    full_pattern = pattern
    if "/" not in pattern:
        full_pattern = f"{pattern}/*" if matching else f"*{pattern}*"
    count = 0
    for family in matching or known * ("/" not in pattern):
        try:
            description = families.load(family).about
            lines = {n: description for n in registry.task_names(family) if _fits(n, full_pattern)}
        except ValueError as error:
            lines = {f"{family}/...": str(error)} if matching else {}
        count += len(lines)
        for name, text in lines.items():
            print(f"{name:42} {text}")
    if not count:
        hint = did_you_mean(prefix, known, f"Families: {', '.join(known)}.")
        raise ValueError(f"{PROG} envs {pattern}: no environment matches. {hint}")
    return 0


def list_families() -> int:
    """Print one family per line, without importing simulators."""
    from purejaxppo.envs import families

    for name in families.declared():
        try:
            family = families.load(name)
            families.check_installed(name, family)
            description = family.about
        except ValueError as error:
            description = str(error)
        print(f"{name + '/':14} {description}")
    print(f"`{PROG} envs FAMILY` lists the tasks of a family")
    return 0


def list_tasks(family: str, pattern: str = "*") -> int:
    """Print the matching tasks of a family with spaces, time limit, agents and configs.

    An error shared by several tasks is printed in full only once.

    Returns:
        The number of tasks.

    Raises:
        ValueError: the family's package is not installed.
    """
    from purejaxppo.envs import families, registry

    configs, reasons = configs_by_task(), dict[str, str]()
    names = [n for n in registry.task_names(family) if _fits(n, f"{family}/{pattern}")]
    if names:
        columns = "configs" if families.load(family).on_host else COLUMNS
        print(f"{'env.name':42} {columns}", flush=True)
    for name in names:
        try:
            summary = "" if families.load(family).on_host else describe(name)
        except ValueError as error:
            reason = str(error).removeprefix(f"{name} ")
            first = reasons.setdefault(reason, name)
            print(f"{name:42} {reason if first == name else f'same as {first}'}", flush=True)
            continue
        derived_configs = [f"--config {name}"] if family in derived.SOURCES else []
        line = ", ".join(filter(None, (summary, *configs.get(name, ()), *derived_configs)))
        print(f"{name:42} {line}".rstrip(), flush=True)
    if names and pattern == "*":
        print_options(family)
    return len(names)


def print_options(family_name: str) -> None:
    """Print the options of a family, one per line."""
    from purejaxppo.envs import families

    family = families.load(family_name)
    rows = [
        (
            name if option.default is None else f"{name} (default {show(option.default)})",
            option.help,
        )
        for name, option in family.options.items()
    ]
    if family.more_options:
        rows.append(("...", f"{family.more_options}"))
    if rows:
        print("\n--env.options:")
    for option, text in rows:
        print(f"  {option:40} {text}")


def describe(name: str) -> str:
    """Describe a task's spaces, time limit and number of agents.

    Raises:
        ValueError: the task cannot be created.
    """
    from purejaxppo.config.schema import EnvConfig
    from purejaxppo.envs import registry

    spec = registry.make(EnvConfig(name=name), 1, evaluation=True).spec
    limit = f"{spec.max_episode_steps} steps" if spec.max_episode_steps else "no time limit"
    agents = f", {spec.num_agents} agents" if spec.num_agents > 1 else ""
    return f"{describe_observation(spec.observation)} -> {words(spec.action)}, {limit}{agents}"


def describe_observation(space: Space) -> str:
    """Describe an observation space, with the preprocessing of each part."""
    if isinstance(space, Dict):
        parts = (
            (name, words(part) if name == MASK else describe_observation(part))
            for name, part in space.spaces
        )
        return " & ".join(f"{name} {text}" for name, text in parts)
    if isinstance(space, Discrete | MultiDiscrete):
        return f"{words(space)} one-hot"
    if space.is_vector:
        return f"{words(space)} normalised"
    return f"{words(space)} / 255" if space.is_bytes else words(space)


def words(space: Space) -> str:
    """Describe a space, such as `obs [75] & action_mask uint8 [8]`."""
    if isinstance(space, Dict):
        return " & ".join(f"{name} {words(part)}" for name, part in space.spaces)
    if isinstance(space, Discrete):
        return f"1 of {space.n}"
    if isinstance(space, MultiDiscrete):
        return f"{len(space.nvec)} of up to {max(space.nvec)}"
    kind = "" if space.dtype == "float32" else f"{space.dtype} "
    return f"{kind}[{', '.join(map(str, space.shape))}]"


def configs_by_task() -> dict[str, list[str]]:
    """Return the names of the library's configs for each task."""
    configs: dict[str, list[str]] = {}
    for path in files.library_configs().values():
        name = files.read_yaml(path).get("env", {}).get("name", "")
        configs.setdefault(name, []).append(path.name)
    return configs


def list_configs(pattern: str = "*") -> int:
    """Print one config per line, with its first comment."""
    texts = {path.name: path.read_text("utf-8") for path in files.library_configs().values()}
    lines = {name: text.partition("\n")[0].lstrip("# ") for name, text in texts.items()}
    lines |= derived.ABOUT
    matching = [name for name in lines if _fits(name, pattern) or _fits(name, f"{pattern}.yaml")]
    if not matching:
        hint = did_you_mean(pattern, lines, f"`{PROG} configs` lists all configs.")
        raise ValueError(f"{PROG} configs {pattern}: no config matches. {hint}")
    for name in matching:
        print(f"{name:32} {lines[name]}")
    return 0


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatch(name.lower(), pattern.lower())


LISTS: dict[str, Callable[[str], int]] = {"envs": list_envs, "configs": list_configs}
