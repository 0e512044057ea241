"""Translation of settings of earlier versions."""

import math
from collections.abc import Mapping
from typing import Any

REMOVED = {"env.double_buffer": "It was removed. Use asynchronous = true."}
"""Removed settings by dotted name -> advice for configs in which they are on."""
FLAGS = {"film": "video", "no_film": "no_video"}
"""Earlier names of flags, accepted until version 0.4 -> their names."""
AWAKE = {"auto": False, "never": False, "always": True}
"""Earlier values of `keep_cores_awake` -> present values."""


def translate(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a nested config with values of version 0.2 replaced by present ones.

    Removed settings are dropped if they are off.
    """
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    env, awake = new.get("env"), new.get("keep_cores_awake")
    if isinstance(env, dict) and env.get("double_buffer") is False:
        del env["double_buffer"]
    if isinstance(awake, str) and awake in AWAKE:
        new["keep_cores_awake"] = AWAKE[awake]
    return new


def rules_of_0_2(ppo: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of the `ppo` settings added since version 0.2 that reproduce its behaviour.

    Args:
        ppo: the other `ppo` settings of the run.
    """
    rules: dict[str, Any] = {"obs_preprocessing": "by_dtype"}
    if ppo.get("learning_rate_schedule") == "adaptive" and ppo.get("learning_rate"):
        # Version 0.2 limited the rate to these multiples of its initial value.
        rules["min_learning_rate"] = ppo["learning_rate"] / 100
        rules["max_learning_rate"] = ppo["learning_rate"] * 100
    if ppo.get("critic") == "hl_gauss":
        rules["value_limit"] = math.expm1(12)  # the range of the bins in version 0.2
    return rules


def upgrade(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a saved run's nested config with present settings.

    Runs of version 0.2 keep their behaviour (`rules_of_0_2`).

    Raises:
        ValueError: the run is from version 0.1.
    """
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    if not all(isinstance(new.get(key) or {}, dict) for key in ("network", "ppo", "env")):
        return new  # reported with the types of all sections
    if "memory" in (new.get("network") or {}):  # present in every config.yaml of version 0.1
        raise ValueError(
            "this run is from version 0.1, which this version cannot read. Use version 0.1, or "
            "train again in another --run_dir."
        )
    ppo = new.get("ppo") or {}
    new["ppo"] = rules_of_0_2(ppo) | ppo
    # Double buffering did not affect results, so a run can continue without it.
    (new.get("env") or {}).pop("double_buffer", None)
    return new
