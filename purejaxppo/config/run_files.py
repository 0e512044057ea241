"""Configs in a run's folder: its agents' differences, and copies of a user's own files."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from purejaxppo.config import references
from purejaxppo.config.checks import settings
from purejaxppo.config.files import Loader, apply_overrides, dump, flatten, from_dict, write_whole
from purejaxppo.config.references import Own, files_in, is_reference, located, modules_in
from purejaxppo.config.schema import Config, is_list


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
        plain = dataclasses.asdict(dataclasses.replace(config, num_seeds=1))
        return [from_dict(apply_overrides(plain, overrides)) for overrides in listed]
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: was changed or damaged ({error})") from error


def texts_of(config: Config) -> list[str]:
    """Every text of a config that may refer to custom code; env.name without its family."""
    name = config.env.name
    rest = Own(name.partition("/")[2], copies=getattr(name, "copies", None))
    return [rest, *references_of(config), *options_of(config)]


def references_of(config: Config) -> list[str]:
    """The texts of all fields that hold references (`schema.setting`), except for env.name."""
    fields = [
        value if is_list(value) else (value,)
        for name, about, value in settings(config)
        if about.get("own") and name != "env.name"
    ]
    return [text for field in fields for text in field if isinstance(text, str)]


def options_of(config: Config) -> list[str]:
    """The texts of all fields that hold names with values, such as env.options."""
    fields = [value.values() for _, _, value in settings(config) if isinstance(value, dict)]
    return [text for field in fields for text in field if isinstance(text, str)]


def imported_modules(config: Config) -> list[str]:
    """The modules that a config names and imports, except for those of its environment."""
    named = [name for text in references_of(config) for name in modules_in(text)]
    options = [text for text in options_of(config) if is_reference(text)]
    return named + [name for text in options for name in modules_in(text)]


def own_files(config: Config) -> dict[str, Path]:
    """The Python files that a config names, by name as written -> the file, or a run's copy."""
    return {
        written: Path(file).expanduser()
        for text in texts_of(config)
        for written, file in zip(files_in(text), files_in(located(text)), strict=True)
    }


def imported_files(config: Config) -> list[Path]:
    """The Python files that a config names and runs, or a run's copies of them."""
    return list(dict.fromkeys(file.resolve() for file in own_files(config).values()))


def with_copies(config: Config, known: Mapping[str, str]) -> Config:
    """The config with copies of Python files, by name as written."""
    if not known:
        return config
    return from_dict(references.with_copies(dataclasses.asdict(config), known))
