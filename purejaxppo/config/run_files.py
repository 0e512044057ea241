"""Configs in a run's folder: its agents' differences, and copies of a user's own files."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from purejaxppo.config import references
from purejaxppo.config.files import Loader, apply_overrides, dump, flatten, from_dict, write_whole
from purejaxppo.config.references import Own, files_in, located
from purejaxppo.config.schema import Config, is_list, own_fields


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
    """Every text of a config that may refer to a user's own code; env.name without its family."""
    env = config.env
    sections = (config.network, config.ppo, config.intrinsic)
    fields = [getattr(part, name) for part in sections for name in own_fields(type(part))]
    fields += [env.wrappers, tuple(env.options.values()), tuple(env.curriculum.values())]
    fields += [tuple(config.eval.options.values()), config.callbacks]
    texts = [text for field in fields for text in (field if is_list(field) else (field,))]
    name = Own(env.name.partition("/")[2], copies=getattr(env.name, "copies", None))
    return [name, *(text for text in texts if isinstance(text, str))]


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
