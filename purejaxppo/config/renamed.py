"""Names of settings in earlier versions and other libraries, translated to ours."""

import math
from collections.abc import Container, Mapping
from typing import Any

from purejaxppo.config import foreign

RENAMED = {
    "env.visible": "env.obs_indices",
    "env.full_state": "env.privileged_obs",
    "network.layers": "network.block",
    "network.memory": "network.rnn",
    "network.memory_size": "network.rnn_size",
    "network.memory_span": "network.rnn_timescale",
    "network.part_hidden": "network.input_hidden",
    "ppo.kl_rate": "ppo.learning_rate_schedule = adaptive",
    "ppo.kl_stop": "ppo.early_stop_kl",
    "ppo.rollout_start": "ppo.reset_each_rollout",
    "imitate.teacher": "pretrain.teacher",
    "imitate.updates": "pretrain.updates",
}
"""Old dotted names -> new ones, or a setting that replaces them."""
RENAMED_FLAGS = {
    "index": "member",
    "objective": "select_by",
    "ranges": "search_space",
    "random": "search random --num_trials N",
    "optuna": "search optuna --num_trials N",
    "population": "search population --num_trials N",
}
"""Old flags of single commands -> new ones."""


def answer(name: str, known: Container[str], dashes: str = "") -> str:
    """A phrase that answers an old or a foreign name with ours, '' if there is none.

    Args:
        name: without dashes in front.
        known: the names that a setting can have here.
        dashes: before names in the phrase, "--" for flags; then a value follows without "=".
    """

    def shown(ours: str) -> str:
        return dashes + (ours.replace(" = ", " ") if dashes else ours)

    key = name.replace("-", "_")
    if (new := RENAMED.get(key) or RENAMED_FLAGS.get(key, "")) and new.partition(" ")[0] in known:
        return f"is {shown(new)} now"
    found = {
        (ours, remark): libraries
        for (ours, remark), libraries in foreign.meanings(name).items()
        if (ours.partition(" ")[0] or "env.name") in known
    }
    phrases = {
        pair: (f"is {shown(pair[0])} here" if pair[0] else "is no setting here")
        + (f"{',' if pair[0] else ':'} {pair[1]}" if pair[1] else "")
        for pair in found
    }
    if len(found) == 1:
        return next(iter(phrases.values()))
    owned = (f"of {' and '.join(found[pair])} {text}" for pair, text in phrases.items())
    return "; that ".join(owned)


def check_names(data: Mapping[str, Any]) -> None:
    """Raises ValueError if nested `data` has keys of version 0.1; names the new ones."""
    found = [
        f"{key} is {new} now"
        for key, new in RENAMED.items()
        if isinstance(part := data.get(key.partition(".")[0]), Mapping)
        and key.partition(".")[2] in part
    ]
    if found:
        raise ValueError("; ".join(found))


def upgrade(data: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the nested config of a saved run, and replace settings of earlier versions.

    Runs up to version 0.2 keep their preprocessing of observations.

    Raises:
        ValueError: only version 0.1 reads this run.
    """
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    ppo = new["ppo"] = {"obs_preprocessing": "by_dtype", **(new.get("ppo") or {})}
    if ppo.pop("kl_rate", False):
        if ppo.get("learning_rate_schedule") != "constant":
            raise ValueError(
                "ppo.kl_rate with a learning_rate_schedule that is not constant was possible in "
                "version 0.1 only: use that version for this run"
            )
        ppo["learning_rate_schedule"] = "adaptive"
    if ppo.get("learning_rate_schedule") == "adaptive" and ppo.get("learning_rate"):
        # Version 0.2 limited the rate to these multiples of the one that it began with.
        ppo.setdefault("min_learning_rate", ppo["learning_rate"] / 100)
        ppo.setdefault("max_learning_rate", ppo["learning_rate"] * 100)
    if ppo.get("critic") == "hl_gauss":
        ppo.setdefault("value_limit", math.expm1(12))  # the range of the bins in version 0.2
    if "rollout_start" in ppo:
        ppo["reset_each_rollout"] = ppo.pop("rollout_start") == "reset"
    for old, name in RENAMED.items():
        (section, _, key), (target, _, leaf) = old.partition("."), name.partition(".")
        if key in (new.get(section) or {}):
            new.setdefault(target, {})[leaf] = new[section].pop(key)
    if new.get("keep_cores_awake") in ("auto", "always", "never"):  # the choices in version 0.2
        new["keep_cores_awake"] = new["keep_cores_awake"] == "always"
    if not new.get("imitate", True):
        del new["imitate"]
    return new
