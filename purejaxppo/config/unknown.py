"""Error messages for unknown settings and flags."""

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from purejaxppo.config import foreign
from purejaxppo.config.hints import nearest
from purejaxppo.config.renamed import REMOVED


def check_known(
    unknown_names: Mapping[str, Any],
    known: Iterable[str],
    values: Mapping[str, Any],
    dashes: str = "",
) -> None:
    """Raise ValueError with a message for each unknown name.

    A removed setting (`renamed.REMOVED`) is accepted if its value turns it off.

    Args:
        unknown_names: unknown names with their values.
        known: the names of all settings.
        values: known settings by dotted name, for translations.
        dashes: prefix of names in messages, "--" for flags.
    """
    sizes = foreign.sizes_of({**values, **unknown_names})
    messages = (
        unknown(name, known, dashes, value=value, sizes=sizes)
        for name, value in unknown_names.items()
    )
    lines = [message for message in messages if message]
    if len(lines) > 1:
        raise ValueError("\n  ".join([f"{len(lines)} unknown names:", *lines]))
    if lines:
        raise ValueError(lines[0])


def unknown(
    name: str,
    known: Iterable[str],
    dashes: str = "",
    *,
    value: Any = None,
    sizes: foreign.Sizes | None = None,
) -> str:
    """Return the message for an unknown name, with its translation or the most similar known name.

    The message is empty for a removed setting that is off.

    Args:
        name: a dotted config key, or a flag without its leading dashes.
        known: the names of all settings.
        dashes: prefix of names in the message, "--" for flags.
        value: the value of the setting; None if unknown.
        sizes: sizes of the run; None: the defaults.
    """
    known = list(known)
    kind = "flag" if dashes else "key"
    key = name.replace("-", "_") if dashes else name
    leaf = key.rpartition(".")[2]
    positive = key.removesuffix(leaf) + leaf.removeprefix("no_")
    for candidate, candidate_value in ((key, value), (positive, False)):
        if candidate in REMOVED and candidate_value is False:
            return ""
        advice = REMOVED.get(candidate) or foreign.describe(
            candidate,
            candidate_value,
            known=known,
            sizes=sizes or foreign.sizes_of({}),
            dashes=dashes,
        )
        if advice:
            return f"{dashes}{name}: unknown {kind}. {advice}"
    help_all = "--help all" if "config" in known else "--help"
    if not dashes:
        help_all = "`purejaxppo train --help all`"
    elif any(field.startswith(f"{key}.") for field in known):
        return f"--{name}: this is a section. --help {key} lists its flags."
    by_leaf: dict[str, str] = {}
    for dotted in known:
        by_leaf.setdefault(dotted.rpartition(".")[2], dotted)
    sections = [] if dashes or "." in key else {field.partition(".")[0] for field in known}
    close = nearest(key, [*known, *sections]) or by_leaf.get(nearest(leaf, by_leaf) or "")
    hint = f"Did you mean {dashes}{close}?" if close else f"{help_all} lists all {kind}s."
    return f"{dashes}{name}: unknown {kind}. {hint}"


def with_keywords(message: str, known: Container[str]) -> str:
    """Add the keyword of a Python function to messages about unknown keys.

        num_envs: unknown key. Use env.num_envs = 4. As a keyword: **{"env.num_envs": ...}.

    Args:
        message: lines of `check_known`.
        known: the names of all settings.
    """
    lines = message.split("\n")
    for index, line in enumerate(lines):
        advice = line.partition(": unknown key. ")[2]
        fields = [name for name in re.findall(r"[a-z_]+\.[a-z_]+", advice) if name in known]
        if fields:
            section, _, name = fields[0].partition(".")
            # `env` of `train` is an environment, so its settings need dotted names.
            nested = f'{section}={{"{name}": ...}}'
            keyword = f'**{{"{fields[0]}": ...}}' if section == "env" else nested
            lines[index] = f"{line} As a keyword: {keyword}."
    return "\n".join(lines)
