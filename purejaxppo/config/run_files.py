"""Configs of a run's agents, and the custom code that a config refers to."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from purejaxppo.config import references
from purejaxppo.config.checks import settings
from purejaxppo.config.files import Loader, apply_overrides, dump, flatten, from_dict, write_whole
from purejaxppo.config.plain import user_path
from purejaxppo.config.references import (
    CodeRef,
    as_ref,
    files_in,
    is_reference,
    modules_in,
    refs_in,
    without_family,
)
from purejaxppo.config.schema import Config, as_data, is_list


def save_members(path: Path, config: Config, members: Sequence[Config]) -> None:
    """For each agent, write only the settings in which it differs from `config`."""
    common = flatten(dataclasses.replace(config, num_seeds=1))
    differing = [
        {key: value for key, value in flatten(member).items() if value != common[key]}
        for member in members
    ]
    write_whole(path, dump(differing))


def load_members(path: Path, config: Config) -> list[Config]:
    """Load the configs of a run's agents; [] if the file does not exist.

    Raises:
        ValueError: the file was edited or is corrupt.
    """
    if not path.is_file():
        return []
    try:
        overrides_of_agents = yaml.load(path.read_text(encoding="utf-8"), Loader)
        plain = as_data(dataclasses.replace(config, num_seeds=1))
        return [from_dict(apply_overrides(plain, changes)) for changes in overrides_of_agents]
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: the file was edited or is corrupt ({error}).") from error


def code_refs(config: Config) -> list[CodeRef]:
    """Return all values that may refer to custom code, with env.name without its family."""
    return [without_family(config.env.name), *field_refs(config), *option_refs(config)]


def field_refs(config: Config) -> list[CodeRef]:
    """Return the values of the fields that may refer to custom code, except for env.name."""
    values = [
        value if is_list(value) else (value,)
        for name, metadata, value in settings(config)
        if metadata.get("code") and name != "env.name"
    ]
    return [as_ref(value) for listed in values for value in listed]


def option_refs(config: Config) -> list[CodeRef]:
    """Return the strings in fields that are mappings, such as env.options."""
    values = [value.values() for _, _, value in settings(config) if isinstance(value, dict)]
    return [ref for listed in values for item in listed for ref in refs_in(item)]


def imported_modules(config: Config) -> list[str]:
    """Return the modules that a config imports by name, without those of its environment."""
    refs = field_refs(config) + [ref for ref in option_refs(config) if is_reference(ref)]
    return [module for ref in refs for module in modules_in(ref.text)]


def code_files(config: Config) -> dict[str, Path]:
    """Return the Python files that a config refers to, by name as written -> path."""
    return {
        file: user_path(ref.files.get(file, file))
        for ref in code_refs(config)
        for file in files_in(ref.text)
    }


def imported_files(config: Config) -> list[Path]:
    """Return the absolute paths of the Python files that a config refers to."""
    return list(dict.fromkeys(file.resolve() for file in code_files(config).values()))


def with_copies(config: Config, known: Mapping[str, str]) -> Config:
    """Return the config with the paths in `known` for the files that it names."""
    return from_dict(references.with_files(as_data(config), known)) if known else config
