"""Answers to unknown names of settings."""

from collections.abc import Iterable, Mapping
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
    """Raise ValueError if there are unknown names; it answers all of them.

    Switches of earlier versions that are off are accepted (`renamed.REMOVED`).

    Args:
        unknown_names: the names with their values.
        known: the names of settings.
        values: of settings by dotted name, for translations.
        dashes: before names, "--" for flags.
    """
    sizes = foreign.sizes_of({**values, **unknown_names})
    answers = (
        unknown(name, known, dashes, value=value, sizes=sizes)
        for name, value in unknown_names.items()
    )
    lines = [answer for answer in answers if answer]
    if len(lines) > 1:
        raise ValueError("\n  ".join([f"{len(lines)} unknown names", *lines]))
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
    """A sentence about an unknown name: what it is here, or the nearest known name.

    It is empty for a removed switch that is off.

    Args:
        name: the key of a config by dotted name, or a flag as written without dashes in front.
        known: the names of settings.
        dashes: before names, "--" for flags.
        value: the value with this name; None if it is not known.
        sizes: of the run; None: the defaults.
    """
    known = list(known)
    kind = "flag" if dashes else "key"
    key = name.replace("-", "_") if dashes else name
    leaf = key.rpartition(".")[2]
    positive = key.removesuffix(leaf) + leaf.removeprefix("no_")
    for other, given in ((key, value), (positive, False)):
        if other in REMOVED and given is False:
            return ""
        ours = REMOVED.get(other) or foreign.answer(
            other, given, known=known, sizes=sizes or foreign.sizes_of({}), dashes=dashes
        )
        if ours:
            return f"{dashes}{name}: unknown {kind}. {ours}"
    help_all = "--help all" if "config" in known else "--help"
    if not dashes:
        help_all = "`purejaxppo train --help all`"
    elif any(other.startswith(f"{key}.") for other in known):
        return f"--{name} is a section of fields. --help {key} lists them."
    by_leaf: dict[str, str] = {}
    for dotted in known:
        by_leaf.setdefault(dotted.rpartition(".")[2], dotted)
    close = nearest(key, known) or by_leaf.get(nearest(leaf, by_leaf) or "")
    hint = f"Did you mean {dashes}{close}?" if close else f"{help_all} lists them."
    return f"{dashes}{name}: unknown {kind}. {hint}"
