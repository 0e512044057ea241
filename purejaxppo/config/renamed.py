"""Settings of runs of earlier versions, translated to those of this one."""

import math
from collections.abc import Mapping
from typing import Any

REMOVED = {"env.double_buffer": "It was removed. Use asynchronous = true."}
"""Dotted names of removed switches -> sentences that answer them where they are on."""
FLAGS = {"film": "video", "no_film": "no_video"}
"""Earlier names of flags, accepted until version 0.4 -> their names."""
AWAKE = {"auto": False, "never": False, "always": True}
"""Earlier choices of `keep_cores_awake` -> its values."""


def translate(data: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a nested config, and replace values of version 0.2 by those of this one.

    A removed setting is dropped if it has its default.
    """
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    env, awake = new.get("env"), new.get("keep_cores_awake")
    if isinstance(env, dict) and env.get("double_buffer") is False:
        del env["double_buffer"]
    if isinstance(awake, str) and awake in AWAKE:
        new["keep_cores_awake"] = AWAKE[awake]
    return new


def rules_of_0_2(ppo: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `ppo` that are new since version 0.2, with its behaviour.

    Args:
        ppo: the other settings of the run.
    """
    rules: dict[str, Any] = {"obs_preprocessing": "by_dtype"}
    if ppo.get("learning_rate_schedule") == "adaptive" and ppo.get("learning_rate"):
        # The rate was limited to these multiples of the one that it began with.
        rules["min_learning_rate"] = ppo["learning_rate"] / 100
        rules["max_learning_rate"] = ppo["learning_rate"] * 100
    if ppo.get("critic") == "hl_gauss":
        rules["value_limit"] = math.expm1(12)  # the range of the bins
    return rules


def upgrade(data: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the nested config of a saved run, and replace settings of earlier versions.

    Runs of version 0.2 keep its behaviour (`rules_of_0_2`).

    Raises:
        ValueError: the run is of version 0.1.
    """
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    if "memory" in (new.get("network") or {}):  # every config.yaml of version 0.1 has it
        raise ValueError(
            "this run was made with version 0.1, which this version cannot read. "
            "Use version 0.1 for it, or train again in another --run_dir."
        )
    ppo = new.get("ppo") or {}
    new["ppo"] = rules_of_0_2(ppo) | ppo
    # Double buffering did not change any number of a run, which continues without it.
    (new.get("env") or {}).pop("double_buffer", None)
    return new
