"""Options of Unity players: checked, and split into those of different kinds."""

from typing import Any

from purejaxppo.config.hints import did_you_mean
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.host.unity import parameters
from purejaxppo.envs.host.unity.parameters import Parameter
from purejaxppo.envs.options import alike, check_instances, check_port, split_arguments

DEFAULTS: dict[str, Any] = {
    "max_agents": 0,
    "timeout": 60.0,
    "restarts": 3,
    "show": False,
    "arguments": "",
    "port": 5004,
    "channels": "",
    "time_scale": 20.0,
    "target_frame_rate": -1,
    "capture_frame_rate": 60,
    "quality_level": 5,
    "width": 84,
    "height": 84,
    "package_version": "1.1.0",
}
"""Options, with their defaults; besides, `max_agents.NAME` and `parameters.NAME`."""
PREFIXES = ("max_agents.", "parameters.")


def split_options(
    config: EnvConfig,
) -> tuple[dict[str, Any], dict[str, int], dict[str, Parameter]]:
    """(options as `DEFAULTS`, slots by behaviour with "" for all others, parameters).

    Raises:
        ValueError: an unknown option, or an invalid value.
    """
    check_instances(config.options)
    ours, slots, given = dict(DEFAULTS), {}, {}
    for key, value in config.options.items():
        where = f"env.options.{key}"
        prefix = next((p for p in PREFIXES if key.startswith(p) and key != p), "")
        if prefix == "parameters.":
            name = key.removeprefix(prefix)
            given[name] = parameters.named(key, name, value)
        elif prefix:
            slots[key.removeprefix(prefix)] = alike(key, value, 1)
        elif key in DEFAULTS:
            ours[key] = alike(key, value, DEFAULTS[key])
        else:
            known = [*DEFAULTS, *(f"{prefix}NAME" for prefix in PREFIXES)]
            hint = did_you_mean(key, known, f"it has {', '.join(known)}")
            raise ValueError(f"{where}: {config.name} has no such option; {hint}")
    slots[""] = ours["max_agents"]
    for key, value in slots.items():
        if value < (1 if key else 0):
            raise ValueError(f"env.options.max_agents{'.' * bool(key)}{key} = {value} is too small")
    if ours["timeout"] <= 0:
        raise ValueError(f"env.options.timeout = {ours['timeout']} must be above 0")
    if ours["restarts"] < 0:
        raise ValueError(f"env.options.restarts = {ours['restarts']} must be at least 0")
    check_port(ours["port"])
    split_arguments(ours["arguments"])
    return ours, slots, given
