"""Loading and saving of configs; unknown keys and wrong types are errors."""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from purejaxppo import interrupts
from purejaxppo.config import checks, copies, derived, references, renamed
from purejaxppo.config.hints import KINDS, kind_of, nearest, wrong_type
from purejaxppo.config.plain import plain, user_path, whole
from purejaxppo.config.references import CodeRef
from purejaxppo.config.schema import (
    HINTS,
    TUNABLE,
    Config,
    OptionValue,
    Section,
    as_data,
    code_fields,
    is_list,
)
from purejaxppo.config.unknown import check_known, unknown, with_keywords

INTEGER, FLOAT = NUMBERS = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


MOST_DIGITS = 1000
"""Maximum number of digits of an integer. Python reads up to 4,300."""


class Loader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys, and reads 3e-4 and 010 as decimal, 1:30 as text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Load a mapping; raise an error for a duplicate key."""
        seen = set()
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        for key in (key for key, _ in pairs if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=True)  # raises an error for recursive values

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """Load an integer; without 0x or 0b, it is decimal."""
        digits = self.construct_scalar(node).replace("_", "")
        if len(digits) > MOST_DIGITS:
            raise yaml.MarkedYAMLError(
                problem=f"a number of {len(digits)} digits", problem_mark=node.start_mark
            )
        return int(digits, 0 if digits.lstrip("+-")[1:2] in ("x", "b") else 10)

    def construct_number(self, node: yaml.ScalarNode) -> float | str:
        """Load a float. Text that would overflow, such as the hash 695e0514, stays text."""
        value = self.construct_yaml_float(node)
        return node.value if math.isinf(value) and "inf" not in node.value.lower() else value

    def construct_date(self, node: yaml.ScalarNode) -> str:
        """Load a date as text, because no setting is a date."""
        text: str = self.construct_scalar(node)
        return text


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag not in NUMBERS]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for tag, pattern in (
    (INTEGER, r"^[-+]?(0x[\da-fA-F][\da-fA-F_]*|0b[01][01_]*|\d[\d_]*)$"),
    (FLOAT, r"^[-+]?((\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+)$"),
    (FLOAT, r"^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
):
    Loader.add_implicit_resolver(tag, re.compile(pattern), list("-+0123456789."))
Loader.add_constructor(INTEGER, Loader.construct_integer)
Loader.add_constructor(FLOAT, Loader.construct_number)
Loader.add_constructor("tag:yaml.org,2002:timestamp", Loader.construct_date)


class Dumper(yaml.SafeDumper):
    """YAML dumper that quotes text that `Loader` would read as another type."""

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers


def library_configs() -> dict[str, Path]:
    """Return the configs that come with the library, by name without suffix."""
    package = Path(__file__).resolve().parent.parent
    wheel, checkout = package / "configs", package.parent / "configs"
    folder = wheel if wheel.is_dir() else checkout
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(name: str) -> Path:
    """Return the file of a path, or of a library config's name with or without .yaml.

    Raises:
        ValueError: the file does not exist.
    """
    path = user_path(name, "config")
    if path.is_file():
        return path
    known = library_configs()
    if name.removesuffix(".yaml") in known:
        return known[name.removesuffix(".yaml")]
    if name == "playground":
        raise ValueError(
            "--config playground: the task is missing. Use for example playground/CheetahRun."
        )
    stem = path.name.removesuffix(".yaml")
    beside = (x for x in path.parent.glob("*.y*ml") if x.stem == stem)
    files = sorted(beside) or sorted(path.glob("*.y*ml"))
    library = nearest(stem, known, 0.5)
    close = str(files[0]) if files else f"{library}.yaml" if library else ""
    hint = f"Did you mean '{close}'?" if close else "`purejaxppo list configs` lists all configs."
    problem = "is a folder" if path.is_dir() else "no such file or config"
    raise ValueError(f"--config {name}: {problem}. {hint}")


def load_config(
    name: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    saved: bool = False,
    **changes: Any,
) -> Config:
    """Load a config.

        load_config("cartpole.yaml", total_timesteps=100_000, ppo={"gamma": 0.98})

    Args:
        name: a path, the name of a library config, or the family/task of a derived config, such as
            playground/CheetahRun.
        overrides: values to replace, nested or by dotted name: {"ppo.learning_rate": 1e-3}.
        saved: True if the file is a run folder's config.yaml, which may be from an earlier version.
            The run's copies of custom code are used.
        changes: more values to replace, as keywords.

    Returns:
        The checked config.

    Raises:
        ValueError: the file cannot be read, or a setting is unknown or invalid.
    """
    overrides = {**(overrides or {}), **changes}
    if isinstance(name, Path) and name.is_file():  # here "~" is part of a folder's name
        path = name
    elif not user_path(name).is_file() and (data := derived.settings(str(name))):
        return from_dict(apply_overrides(data, overrides), where=str(name))
    else:
        path = find_config(str(name))
    data = read_yaml(path)
    if saved:
        try:
            data = renamed.upgrade(data)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        data = references.with_files(data, copies.of_run(path.parent))
    return from_dict(apply_overrides(data, overrides), where=str(path if saved else name))


def check_gpu(config: Config) -> None:
    """Check the names and types of the settings in `gpu`, even if the run is not on a GPU.

    Raises:
        ValueError: a setting is unknown, or its value has the wrong type.
    """
    for key, value in config.gpu.items():
        if key not in HINTS or key == "gpu":
            raise ValueError(f"gpu.{unknown(key, HINTS)}")
        convert(value, HINTS[key], f"gpu.{key}")


def for_platform(config: Config, platform: str) -> Config:
    """Return the config with the values of `gpu` if the platform is "gpu", and an empty `gpu`.

    Raises:
        ValueError: a value in `gpu` is not compatible with the other settings.
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
    """Read a mapping from a YAML file.

    Raises:
        ValueError: the file is not readable, not YAML, or not a mapping.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}).") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "invalid character"
        is_syntax = isinstance(error, yaml.scanner.ScannerError | yaml.parser.ParserError)
        hint = " Check indentation, tabs, quotes and brackets." if is_syntax else ""
        raise ValueError(f"{path}: invalid YAML{place}: {problem}.{hint}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: values are nested too deeply.") from error
    except KeyError as error:  # of a tag such as !!bool
        raise ValueError(f"{path}: invalid YAML: {error} does not fit its tag.") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ValueError(f"{path}: must be a mapping of keys to values, not {kind_of(data)}.")
    return data


def apply_overrides(
    data: Mapping[str, Any], overrides: Mapping[str, Any], hints: Mapping[str, Any] = HINTS
) -> dict[str, Any]:
    """Return a copy of nested `data` with some values replaced.

    Args:
        data: sections and fields.
        overrides: values by dotted name of a field, or of an entry of a mapping, such as
            env.options.length; or nested, {"ppo": {"gamma": 0.98}}.
        hints: the type of each known field by dotted name.
    """
    new, overrides = dict(data), by_dotted_name(overrides, hints)
    if isinstance(new.get("gpu"), dict):  # overrides take precedence; another task has other sizes
        env = new.get("env")
        name = env.get("name") if isinstance(env, dict) else None
        gpu = new["gpu"] if str(overrides.get("env.name", name)) == str(name) else {}
        new["gpu"] = {key: x for key, x in gpu.items() if key not in overrides}
    for dotted, value in overrides.items():
        field, entry = field_of(dotted, hints)
        section, _, key = field.rpartition(".")
        *path, last = [part for part in (section, key, entry) if part]
        target = new
        for part in path:
            inner = target.get(part, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{part}: must be a section of keys, not {kind_of(inner)}.")
            target[part] = dict(inner)
            target = target[part]
        target[last] = value
    return new


def by_dotted_name(changes: Mapping[str, Any], hints: Mapping[str, Any] = HINTS) -> dict[str, Any]:
    """Return changes of a config by dotted name: {"ppo": {"gamma": 1}} becomes {"ppo.gamma": 1}.

    Args:
        changes: values by dotted name, or mappings or `Section` objects by the name of a section.
        hints: the type of each known field by dotted name.
    """
    sections = {name.partition(".")[0] for name in hints if "." in name}
    flat: dict[str, Any] = {}
    for name, value in changes.items():
        entries = as_data(value) if isinstance(value, Section) else value
        if name in sections and isinstance(entries, Mapping):
            flat |= {f"{name}.{key}": entry for key, entry in entries.items()}
        else:
            flat[name] = value
    return flat


def with_env_change(changes: Mapping[str, Any], env: Any) -> dict[str, Any]:
    """Return changes of a saved config by dotted name, with those of an argument `env`.

    `env` is an environment, a mapping of settings of the section `env`, or None.
    """
    new = {"env": env} if isinstance(env, Mapping) else {} if env is None else {"env.name": env}
    return by_dotted_name({**new, **changes})


def field_of(name: str, hints: Mapping[str, Any] = HINTS) -> tuple[str, str]:
    """Split a dotted name into field and entry: env.options.length -> (env.options, length).

    The entry is empty for the name of a field, and for an unknown name.
    """
    for field, hint in hints.items():
        if typing.get_origin(hint) is dict and name.startswith(f"{field}."):
            return field, name.removeprefix(f"{field}.")
    return name, ""


def from_dict(data: Mapping[str, Any], where: str = "") -> Config:
    """Build a checked config from nested mappings.

    Args:
        data: sections and fields.
        where: source of the data, for messages; empty for arguments of a Python function.

    Raises:
        ValueError: a setting is unknown or invalid.
    """
    try:
        if isinstance(data, Mapping):
            data = renamed.translate(data)
            check_sections(data)
            check_names(data)
        config: Config = build(Config, data)
        check_gpu(config)
        return config
    except ValueError as error:
        message = str(error) if where else with_keywords(str(error), HINTS)
        raise ValueError(f"{where or 'config'}: {message}") from error


def check_names(data: Mapping[str, Any]) -> None:
    """Raise ValueError if nested `data` has an unknown setting."""
    sections = {name.partition(".")[0] for name in HINTS if "." in name}
    flat = by_dotted_name({str(key): value for key, value in data.items()})
    known = {name: value for name, value in flat.items() if name in HINTS}
    # `build` reports a section that is not a mapping.
    others = {x: value for x, value in flat.items() if x not in known and x not in sections}
    check_known(others, HINTS, known)


def check_sections(data: Mapping[str, Any]) -> None:
    """Raise ValueError if a key is a dotted name, such as ppo.gamma instead of a section."""
    for name in (str(key) for key in data):
        section, dot, key = field_of(name)[0].rpartition(".")
        if dot and f"{section}.{key}" in HINTS:
            raise ValueError(f"{name}: unknown key. Write {key} in the section {section}.")


def build(cls: Any, data: Mapping[str, Any], prefix: str = "") -> Any:
    """Build a dataclass from nested data with known keys.

    Raises:
        ValueError: a value is invalid; the message has the field's name with `prefix`.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{prefix[:-1]}: must be a section of keys, not {kind_of(data)}.")
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
    """Parse a field that can name custom code; replace Python objects by `CodeRef`."""
    if value is None or isinstance(value, bool | int | float | dict):
        if name.endswith("[]"):
            raise ValueError(
                f"{name[:-2]} = [{value!r}]: each entry must be a reference such as "
                f"file.py:Name or, from Python, an object."
            )
        return value
    if name == "env.name":
        return value if isinstance(value, str | CodeRef) else CodeRef("", value)
    if is_list(value):
        return tuple(_parsed(item, f"{name}[]") for item in value)
    return references.parse(value)


def convert(value: Any, hint: Any, name: str) -> Any:
    """Convert a value to a field's type.

    Only int <-> float, list -> tuple, and numbers of NumPy and JAX are converted.

    Args:
        value: the value.
        hint: the type.
        name: name of the field, for messages.

    Raises:
        ValueError: the value has another type.
    """
    value = plain(value)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in args:
            choices = ", ".join(str(x) for x in args if x != "")
            empty = ", or empty" if "" in args else ""
            raise ValueError(f"{name} = {value!r}: must be one of {choices}{empty}.")
        return value
    if origin in (typing.Union, types.UnionType):
        known = typing.get_args(args[0])
        is_text = isinstance(value, str | CodeRef)
        if not is_text or not (value in known or references.is_reference(value)):
            raise ValueError(references.neither(value, known, name))
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            example = "[64, 64]" if args[0] is int else "[a, b]"
            raise ValueError(f"{name} = {value!r}: must be a list, such as {example}.")
        return tuple(convert(item, args[0], name) for item in value)
    if origin is dict:
        return _pairs(value, args[1], name)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name}: must be a finite number.") from None
    if hint is int and (number := whole(value)) is not None:
        return number
    kinds = (str, CodeRef) if hint is str else hint
    if not isinstance(value, kinds) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(wrong_type(name, value, hint))
    return value


def _pairs(value: Any, hint: Any, name: str) -> dict[str, Any]:
    """Convert a mapping of names to values of one type, or of any scalar type."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} = {value!r}: must be a mapping of names to values.")
    if typing.get_origin(hint) is tuple:
        return {str(key): convert(item, hint, f"{name}.{key}") for key, item in value.items()}
    if hint == OptionValue:
        return {str(key): _option_value(item, f"{name}.{key}") for key, item in value.items()}
    for key, item in value.items():
        if not isinstance(item, (*KINDS, CodeRef)):
            raise ValueError(f"{name}.{key} = {item!r}: must be a number, a string, true or false.")
    if hint in KINDS or typing.get_origin(hint) is Literal:
        return {str(key): convert(item, hint, f"{name}.{key}") for key, item in value.items()}
    return {str(key): item for key, item in value.items()}


def _option_value(value: Any, name: str) -> Any:
    """Return plain data with tuples as lists.

    Raises:
        ValueError: a value is not plain data, as in YAML.
    """
    if isinstance(value, Mapping):
        return {key: _option_value(item, f"{name}.{key}") for key, item in value.items()}
    if is_list(value):
        return [_option_value(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if value is not None and not isinstance(value, (*KINDS, CodeRef)):
        raise ValueError(
            f"{name} = {value!r}: must be a number, a string, true, false, null, or a list or "
            f"mapping of these."
        )
    return value


def flatten(config: Config) -> dict[str, Any]:
    """Return the values of all fields by dotted name."""
    return {name: value for name, _, value in checks.settings(config)}


def to_yaml(config: Config) -> str:
    """Return all fields of a config as YAML that `load_config` can read."""
    return dump(as_data(config))


def dump(data: Any) -> str:
    """Return plain data as YAML that `Loader` can read; tuples become lists."""
    return yaml.dump(as_text(data), Dumper=Dumper, sort_keys=False)


def as_text(data: Any) -> Any:
    """Return plain data with references as text and tuples as lists."""
    if isinstance(data, dict):
        return {as_text(key): as_text(item) for key, item in data.items()}
    if isinstance(data, tuple | list):
        return [as_text(item) for item in data]
    if isinstance(data, CodeRef):
        return str(data)
    # YAML cannot write derived classes such as NumPy's float64: convert them to the base.
    return next((kind(data) for kind in KINDS if isinstance(data, kind)), data)


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, even if the process is killed."""
    with interrupts.atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def compare(
    old: Config, new: Config, free_options: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the dotted names of changed fields: (static fields, tunable fields).

    Fields that do not affect results are left out, and so are `free_options` of `env.options`.
    """
    before, after = flatten(old), flatten(new)
    for flat in (before, after):
        options = flat["env.options"]
        flat["env.options"] = {k: v for k, v in options.items() if k not in free_options}
    free = {name for name, metadata, _ in checks.settings(new) if metadata["free"]}
    changed = [key for key in after if before[key] != after[key] and key not in free]
    return (
        [key for key in changed if key not in TUNABLE],
        [key for key in changed if key in TUNABLE],
    )
