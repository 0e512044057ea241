"""Configs in a run's folder: its agents' differences, and copies of custom code."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from purejaxppo.config import references
from purejaxppo.config.checks import settings
from purejaxppo.config.files import Loader, apply_overrides, dump, flatten, from_dict, write_whole
from purejaxppo.config.references import (
    CodeRef,
    as_ref,
    files_in,
    is_reference,
    modules_in,
    without_family,
)
from purejaxppo.config.schema import Config, as_data, is_list


def save_members(path: Path, config: Config, members: Sequence[Config]) -> None:
    """Writes, for each agent that trains side by side, its differences from `config`."""
    common = flatten(dataclasses.replace(config, num_seeds=1))
    differing = [
        {key: value for key, value in flatten(member).items() if value != common[key]}
        for member in members
    ]
    write_whole(path, dump(differing))


def load_members(path: Path, config: Config) -> list[Config]:
    """Loads the configs of agents that train side by side, [] where there is no such file.

    Raises:
        ValueError: the file was changed or damaged.
    """
    if not path.is_file():
        return []
    try:
        listed = yaml.load(path.read_text(encoding="utf-8"), Loader)
        plain = as_data(dataclasses.replace(config, num_seeds=1))
        return [from_dict(apply_overrides(plain, overrides)) for overrides in listed]
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: was changed or damaged ({error})") from error


def code_refs(config: Config) -> list[CodeRef]:
    """Every text of a config that may refer to custom code; env.name without its family."""
    return [without_family(config.env.name), *field_refs(config), *option_refs(config)]


def field_refs(config: Config) -> list[CodeRef]:
    """The fields that hold references (`schema.setting`), except for env.name."""
    values = [
        value if is_list(value) else (value,)
        for name, about, value in settings(config)
        if about.get("code") and name != "env.name"
    ]
    return [as_ref(value) for listed in values for value in listed]


def option_refs(config: Config) -> list[CodeRef]:
    """The texts of fields that hold names with values, such as env.options."""
    values = [value.values() for _, _, value in settings(config) if isinstance(value, dict)]
    return [as_ref(x) for listed in values for x in listed if isinstance(x, str | CodeRef)]


def imported_modules(config: Config) -> list[str]:
    """The modules that a config names and imports, except for those of its environment."""
    refs = field_refs(config) + [ref for ref in option_refs(config) if is_reference(ref)]
    return [module for ref in refs for module in modules_in(ref.text)]


def code_files(config: Config) -> dict[str, Path]:
    """The Python files that a config names, by name as written -> their places."""
    return {
        file: Path(ref.files.get(file, file)).expanduser()
        for ref in code_refs(config)
        for file in files_in(ref.text)
    }


def imported_files(config: Config) -> list[Path]:
    """The places of the Python files that a config names and runs."""
    return list(dict.fromkeys(file.resolve() for file in code_files(config).values()))


def with_copies(config: Config, known: Mapping[str, str]) -> Config:
    """The config with the places of files, by name as written."""
    return from_dict(references.with_files(as_data(config), known)) if known else config
