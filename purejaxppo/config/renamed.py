"""Settings of runs of earlier versions, translated to those of this one."""

import math
from collections.abc import Mapping
from typing import Any

REMOVED = {"env.double_buffer": "It was removed. Use asynchronous = true."}
"""Dotted names of removed settings -> sentences that answer them."""


def upgrade(data: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the nested config of a saved run, and replace settings of earlier versions.

    Runs of version 0.2 keep their preprocessing of observations, the limits of an adaptive learning
    rate and the range of a histogram critic.

    Raises:
        ValueError: the run is of version 0.1.
    """
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    if "memory" in (new.get("network") or {}):  # every config.yaml of version 0.1 has it
        raise ValueError(
            "this run was made with version 0.1, which this version cannot read. "
            "Use version 0.1 for it, or train again in another --run_dir."
        )
    ppo = new["ppo"] = {"obs_preprocessing": "by_dtype", **(new.get("ppo") or {})}
    if ppo.get("learning_rate_schedule") == "adaptive" and ppo.get("learning_rate"):
        # Version 0.2 limited the rate to these multiples of the one that it began with.
        ppo.setdefault("min_learning_rate", ppo["learning_rate"] / 100)
        ppo.setdefault("max_learning_rate", ppo["learning_rate"] * 100)
    if ppo.get("critic") == "hl_gauss":
        ppo.setdefault("value_limit", math.expm1(12))  # the range of the bins in version 0.2
    # Double buffering did not change any number of a run, which continues without it.
    (new.get("env") or {}).pop("double_buffer", None)
    if new.get("keep_cores_awake") in ("auto", "always", "never"):  # the choices in version 0.2
        new["keep_cores_awake"] = new["keep_cores_awake"] == "always"
    return new
