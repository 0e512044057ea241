"""Configs from YAML and the command line; unknown keys and wrong types are errors."""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from purejaxppo import interrupts
from purejaxppo.config import checks, copies, derived, references, renamed
from purejaxppo.config.hints import KINDS, kind_of, nearest, wrong_type
from purejaxppo.config.plain import plain, whole
from purejaxppo.config.references import CodeRef
from purejaxppo.config.schema import HINTS, TUNABLE, Config, as_data, code_fields, is_list
from purejaxppo.config.unknown import check_known, unknown


class Loader(yaml.SafeLoader):
    """Loads YAML 1.2's numbers (plain PyYAML reads `3e-4` as a string) and unique keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Loads a mapping; a repeated key is an error, and not replaced by its last value."""
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} is there twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=True)  # finds values that hold themselves

    def construct_number(self, node: yaml.ScalarNode) -> float | str:
        """Loads a float; one that would be infinite, such as the hash 695e0514, stays a text."""
        value = self.construct_yaml_float(node)
        return node.value if math.isinf(value) and "inf" not in node.value.lower() else value

    def construct_date(self, node: yaml.ScalarNode) -> str:
        """Loads a date as a text, because no setting is a date."""
        return node.value


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$"),
    list("-+0123456789."),
)
Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_number)
Loader.add_constructor("tag:yaml.org,2002:timestamp", Loader.construct_date)


class Dumper(yaml.SafeDumper):
    """Quotes every text that `Loader` would read as another value."""

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers


def library_configs() -> dict[str, Path]:
    """The configs that come with the library by bare name."""
    package = Path(__file__).resolve().parent.parent
    wheel, checkout = package / "configs", package.parent / "configs"
    folder = wheel if wheel.is_dir() else checkout
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(name: str) -> Path:
    """Finds the file of a path or a bare name (with or without .yaml).

    Raises:
        ValueError: there is none; names the nearest.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    known = library_configs()
    if name.removesuffix(".yaml") in known:
        return known[name.removesuffix(".yaml")]
    close = nearest(path.stem, known, 0.5)
    if name == "playground":
        raise ValueError("--config playground: name a task of it, as in playground/CheetahRun")
    hint = f"Did you mean '{close}.yaml'?" if close else "`purejaxppo list configs` prints all."
    raise ValueError(f"--config {name}: no such file or config. {hint}")


def load_config(
    name: str | Path, overrides: Mapping[str, Any] | None = None, *, saved: bool = False
) -> Config:
    """Reads a config.

    Args:
        name: a path, the bare name of one of the library's own configs, or family/task of a config
            that is derived from a simulator's tuned settings, as in playground/CheetahRun.
        overrides: values to replace, by dotted name: {"ppo.learning_rate": 1e-3}.
        saved: the file was written into a run's folder; it may be of an earlier version, and the
            run's copies of a user's own files are used.

    Raises:
        ValueError: one sentence with the file, the key, what was found and what would do.
    """
    if isinstance(name, Path) and name.is_file():  # a "~" in it is part of a folder's name
        path = name
    elif not Path(name).expanduser().is_file() and (made := derived.settings(str(name))):
        return from_dict(apply_overrides(made, overrides or {}), where=str(name))
    else:
        path = find_config(str(name))
    data = read_yaml(path)
    if saved:
        try:
            data = renamed.upgrade(data)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        data = references.with_files(data, copies.of_run(path.parent))
    return from_dict(apply_overrides(data, overrides or {}), where=path.name)


def check_gpu(config: Config) -> None:
    """Checks the names and kinds of the settings of `gpu`, on whatever device.

    Raises:
        ValueError: one is no setting, or its value is of another kind.
    """
    for key, value in config.gpu.items():
        if key not in HINTS or key == "gpu":
            raise ValueError(f"gpu.{unknown(key, HINTS)}")
        convert(value, HINTS[key], f"gpu.{key}")


def for_platform(config: Config, platform: str) -> Config:
    """The config with the settings of `gpu` if the platform is one, and without that section.

    Raises:
        ValueError: a setting of `gpu` does not fit the others.
    """
    if not config.gpu:
        return config
    plain = config.replace(gpu={})
    if platform != "gpu":
        return plain
    try:
        return build(Config, apply_overrides(as_data(plain), config.gpu))
    except ValueError as error:
        raise ValueError(f"gpu: {error}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML file's mapping.

    Raises:
        ValueError: not readable, not YAML, or not a mapping.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "a character that YAML does not allow"
        raise ValueError(f"{path}: not valid YAML{place}: {problem}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: values are nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ValueError(f"{path}: a config is a mapping of keys to values, not {kind_of(data)}")
    return data


def apply_overrides(
    data: Mapping[str, Any], overrides: Mapping[str, Any], hints: Mapping[str, Any] = HINTS
) -> dict[str, Any]:
    """Copy nested `data` with other values of some fields.

    Args:
        data: sections and fields.
        overrides: values by dotted name of a field, or of an entry of one that is a mapping, such
            as env.options.length.
        hints: the type of each known field by dotted name.
    """
    new = dict(data)
    if isinstance(new.get("gpu"), dict):  # overrides have precedence
        new["gpu"] = {key: x for key, x in new["gpu"].items() if key not in overrides}
    for dotted, value in overrides.items():
        field, entry = field_of(dotted, hints)
        section, _, key = field.rpartition(".")
        *path, last = [part for part in (section, key, entry) if part]
        target = new
        for part in path:
            inner = target.get(part, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{part} is a section of keys, not {kind_of(inner)}")
            target[part] = dict(inner)
            target = target[part]
        target[last] = value
    return new


def field_of(name: str, hints: Mapping[str, Any] = HINTS) -> tuple[str, str]:
    """The field that a dotted name is of, and the entry of it: of env.options.length, length.

    The entry is empty for the field itself, and for an unknown name.
    """
    for field, hint in hints.items():
        if typing.get_origin(hint) is dict and name.startswith(f"{field}."):
            return field, name.removeprefix(f"{field}.")
    return name, ""


def from_dict(data: Mapping[str, Any], where: str = "config") -> Config:
    """Build a checked Config from nested mappings.

    Raises:
        ValueError: names the place, the key, what was found and what would do.
    """
    try:
        if isinstance(data, Mapping):
            data = renamed.translate(data)
            check_sections(data)
            flat = flatten_data(data)
            known = {name: value for name, value in flat.items() if name in HINTS}
            others = {name: value for name, value in flat.items() if name not in known}
            check_known(others, HINTS, known)
        config: Config = build(Config, data)
        check_gpu(config)
        return config
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def check_sections(data: Mapping[str, Any]) -> None:
    """Raise ValueError if a key is the dotted name of a field in a section, as flags have it."""
    for name in (str(key) for key in data):
        section, dot, key = field_of(name)[0].rpartition(".")
        if dot and f"{section}.{key}" in HINTS:
            raise ValueError(f"{name} is not a key. Write {key} into the section {section}.")


def flatten_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of nested `data` by dotted name; sections that are not mappings are left out."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if not any(name.startswith(f"{key}.") for name in HINTS):
            flat[str(key)] = value
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{name}": x for name, x in value.items()}
    return flat


def build(cls: Any, data: Mapping[str, Any], prefix: str = "") -> Any:
    """Build a dataclass of known fields and sections from nested data.

    Raises:
        ValueError: a value does not fit; names the field, with `prefix`.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{prefix[:-1]} is a section of keys, not {kind_of(data)}")
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in data.items():
        hint, name = hints[key], f"{prefix}{key}"
        if dataclasses.is_dataclass(hint):
            values[key] = build(hint, value, f"{name}.")
        else:
            parsed = _parsed(value, name) if key in code_fields(cls) else value
            values[key] = convert(parsed, hint, name)
    return cls(**values)


def _parsed(value: Any, name: str) -> Any:
    """The value of a field that may refer to custom code, with objects as `references.CodeRef`."""
    if value is None or isinstance(value, bool | int | float | dict):
        return value
    if name == "env.name":
        return value if isinstance(value, list) else references.parse_env(value)
    if is_list(value):
        return tuple(_parsed(item, f"{name}[]") for item in value)
    return references.parse(value)


def convert(value: Any, hint: Any, name: str) -> Any:
    """Convert `value` to a field's type, strictly: only int <-> float and list -> tuple.

    Numbers of NumPy and JAX become Python's.
    """
    value = plain(value)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in args:
            raise ValueError(f"{name} = {value!r} must be one of {', '.join(map(str, args))}")
        return value
    if origin in (typing.Union, types.UnionType):
        known = typing.get_args(args[0])
        is_text = isinstance(value, str | CodeRef)
        if not is_text or not (value in known or references.is_reference(value)):
            raise ValueError(references.neither(value, known, name))
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} = {value!r} is not a list such as [64, 64]")
        return tuple(convert(item, args[0], name) for item in value)
    if origin is dict:
        return _pairs(value, args[1], name)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and (number := whole(value)) is not None:
        return number
    kinds = (str, CodeRef) if hint is str else hint
    if not isinstance(value, kinds) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(wrong_type(name, value, hint))
    return value


def _pairs(value: Any, hint: Any, name: str) -> dict[str, Any]:
    """Converts a mapping of names to values of one type, or of any that is no collection."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} = {value!r} is not a mapping of names to values")
    for key, item in value.items():
        if not isinstance(item, (*KINDS, CodeRef)):
            raise ValueError(f"{name}.{key} = {item!r} is not a number, a word or true/false")
    if hint in KINDS:
        return {str(key): convert(item, hint, f"{name}.{key}") for key, item in value.items()}
    return {str(key): item for key, item in value.items()}


def flatten(config: Config) -> dict[str, Any]:
    """Every field by dotted name."""
    return {name: value for name, _, value in checks.settings(config)}


def to_yaml(config: Config) -> str:
    """The resolved config, every field of it, as YAML that `load_config` reads back."""
    return dump(as_data(config))


def dump(data: Any) -> str:
    """Plain data as YAML that `Loader` reads back, tuples as lists."""
    return yaml.dump(as_text(data), Dumper=Dumper, sort_keys=False)


def as_text(data: Any) -> Any:
    """Plain data with texts in place of references, and lists in place of tuples."""
    if isinstance(data, dict):
        return {key: as_text(item) for key, item in data.items()}
    if isinstance(data, tuple | list):
        return [as_text(item) for item in data]
    if isinstance(data, CodeRef):
        return str(data)
    # YAML cannot write derived classes such as NumPy's float64: convert them to the base.
    return next((kind(data) for kind in KINDS if isinstance(data, kind)), data)


def write_whole(path: Path, text: str) -> None:
    """Writes a file atomically, also if the process is killed."""
    with interrupts.atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


FREE_OPTIONS = (
    *("menagerie", "num_workers", "workers", "timeout", "num_threads", "thread_affinity_offset"),
    *("godot", "restarts", "show", "port"),
)
"""Options of simulators that say how fast they are or where their files lie: no other results."""


def compare(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """Changes by a resumed run: (structural fields, tunable fields), by dotted name."""
    before, after = flatten(old), flatten(new)
    for flat in (before, after):
        options = flat["env.options"]
        flat["env.options"] = {k: v for k, v in options.items() if k not in FREE_OPTIONS}
    free = {name for name, about, _ in checks.settings(new) if about["free"]}
    changed = [key for key in after if before[key] != after[key] and key not in free]
    return (
        [key for key in changed if key not in TUNABLE],
        [key for key in changed if key in TUNABLE],
    )
