"""Agents in other environments than those of their training."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from purejaxppo.agents.policy import Policy
from purejaxppo.config.files import field_of, flatten
from purejaxppo.config.hints import show
from purejaxppo.config.schema import Config, EnvConfig
from purejaxppo.spaces import Space, without_bounds


def evaluation_env(config: Config) -> EnvConfig:
    """Return the environment config of evaluations: that of the run, with `eval.options`."""
    return replace(config.env, options={**config.env.options, **config.eval.options})


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return a config with other settings of the environment, which override `eval.options`, too.

    Another environment starts without the options of the run's.

    Args:
        config: config of a run.
        changes: values by dotted name, such as env.max_episode_steps or env.options.length.

    Raises:
        ValueError: a name is not a setting of section env, or a value is invalid.
    """
    others = [name for name in changes if not name.startswith("env.")]
    if others:
        raise ValueError(
            f"{others[0]}: only settings of the section env can differ from those of the run."
        )
    if "env.name" in changes:
        config = config.replace(**{"env.options": {}, "eval.options": {}})
    options = set(changes.get("env.options", ()))
    options |= {entry for field, entry in map(field_of, changes) if field == "env.options"}
    kept = {name: value for name, value in config.eval.options.items() if name not in options}
    return config.replace(**{**changes, "eval.options": kept})


def differences(before: Config, after: Config) -> dict[str, Any]:
    """Return the settings of evaluations' environments that differ, by dotted name.

    The values are those of `after`; None for an option that is not set there.
    """
    old, new = _settings(before), _settings(after)
    return {
        name: new.get(name) for name in {**old, **new} if old.get(name, old) != new.get(name, new)
    }


def _settings(config: Config) -> dict[str, Any]:
    """Return the settings of evaluations' environments, and the entries of mappings, by name."""
    settings: dict[str, Any] = {}
    for name, value in flatten(replace(config, env=evaluation_env(config))).items():
        if not name.startswith("env."):
            continue
        entries = value if isinstance(value, Mapping) else {}
        settings |= {f"{name}.{key}": x for key, x in entries.items()}
        if not isinstance(value, Mapping):
            settings[name] = value
    return settings


def describe(conditions: Mapping[str, Any]) -> str:
    """Describe settings that differ from those of a run: env.options.length = 2."""
    return ", ".join(
        f"{name} = {'default' if value is None else show(value)}"
        for name, value in conditions.items()
    )


def check_spaces(conditions: Mapping[str, Any], trained: Policy, policy: Policy) -> None:
    """Raise ValueError if an observation or action has another form under other conditions."""
    for name, old, new in differing_spaces(trained, policy):
        raise ValueError(
            f"{describe(conditions)}: the {name} space is {new}, but the agent was trained with "
            f"{old}. Their shapes and types must be equal."
        )


def differing_spaces(trained: Policy, policy: Policy) -> Iterator[tuple[str, Space, Space]]:
    """Yield (observation or action, old space, new space) for spaces that differ.

    Bounds may differ.
    """
    pairs = (
        ("observation", trained.network_input, policy.network_input),
        ("action", trained.action, policy.action),
    )
    for name, *spaces in pairs:
        old, new = map(without_bounds, spaces)
        if old != new:
            yield name, old, new
