"""Agents as single files: config, parameters and statistics in NumPy's npz format.

A file has the arrays of the agent's state by name, such as `params.actor.w`, and a header in JSON.
"""

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from purejaxppo import __version__
from purejaxppo.config import renamed
from purejaxppo.config.files import apply_overrides, as_text, from_dict
from purejaxppo.config.schema import Config, as_data
from purejaxppo.envs import registry
from purejaxppo.interrupts import atomic_write
from purejaxppo.runs.agent import Agent, abstract_agents
from purejaxppo.types import STATISTICS, AgentState, named_leaves

FORMAT = 1
"""Version of the file format. Files of other formats are rejected."""
HEADER = "agent"
"""Name of the array with the header."""
READ_ERRORS = (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)


def save(agent: Agent, path: Path) -> None:
    """Write one or several agents to a file; see `Agent.save`."""
    arrays = {name: np.asarray(x) for name, x in named_leaves(jax.device_get(agent.state)).items()}
    check(arrays, shapes_of(arrays, agent.config, agent.members), f"{path} cannot be written")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist. Create it.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Give a file.")
    header = {
        "format": FORMAT,
        "version": __version__,
        "config": as_text(as_data(agent.config)),
        "members": [as_text(as_data(member)) for member in agent.members],
        "env_steps": int(agent.env_steps),
        "member_steps": [int(steps) for steps in agent.member_steps],
    }
    encoded = np.frombuffer(json.dumps(header).encode(), np.uint8)
    named: dict[str, Any] = {HEADER: encoded, **arrays}
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez(file, **named)


def load(path: Path, overrides: Mapping[str, Any]) -> Agent:
    """Read the agents of a file; see `Agent.load`."""
    header, arrays = read(path)
    config = config_of(header["config"], overrides, path)
    members = tuple(config_of(member, overrides, path) for member in header["members"])
    if "env.name" in overrides:
        registry.check_code(config.env)
    shapes = shapes_of(arrays, config, members)
    check(arrays, shapes, str(path))
    leaves = [jax.device_put(arrays[name]) for name in named_leaves(shapes)]
    state = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    return Agent(config, state, header["env_steps"], members, tuple(header["member_steps"]))


def config_of(data: Mapping[str, Any], overrides: Mapping[str, Any], path: Path) -> Config:
    """Return a config of a file; `overrides` are by dotted name."""
    return from_dict(apply_overrides(renamed.upgrade(data), overrides), where=path.name)


def shapes_of(
    arrays: Mapping[str, np.ndarray], config: Config, members: tuple[Config, ...]
) -> AgentState:
    """Return the shapes of one or several agents, with statistics of values if `arrays` has any."""
    learned = abstract_agents(config, max(len(members), 1))
    has_statistics = any(name.startswith(STATISTICS) for name in arrays)
    shapes: AgentState = learned if has_statistics else learned.agent
    if members:
        return shapes
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), shapes)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and the arrays of a file.

    Raises:
        ValueError: the file does not exist, is corrupt, or has another format.
    """
    if not path.is_file():
        if path.is_dir():
            raise ValueError(f"{path} is a folder. Give a file.")
        raise ValueError(f"{path}: no such file.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header: dict[str, Any] = json.loads(arrays.pop(HEADER).tobytes())
        version = header["format"]
    except READ_ERRORS as error:
        raise ValueError(
            f"{path}: corrupt, or not written by Agent.save. A file that export wrote has no "
            f"parameters to load; use purejaxppo.export.player."
        ) from error
    if version != FORMAT:
        raise ValueError(
            f"{path}: the file has format {version}, but this version reads format {FORMAT}. Use "
            f"purejaxppo {header['version']}."
        )
    return header, arrays


def check(arrays: Mapping[str, np.ndarray], shapes: AgentState, where: str) -> None:
    """Check that arrays belong to an agent of a config.

    Args:
        arrays: the agent's arrays by name.
        shapes: the config's shapes.
        where: start of the message.

    Raises:
        ValueError: names or shapes differ.
    """
    expected = {name: x.shape for name, x in named_leaves(shapes).items()}
    actual = {name: x.shape for name, x in arrays.items()}
    different = [name for name in {**expected, **actual} if expected.get(name) != actual.get(name)]
    if not different:
        return
    name = different[0]
    has, needs = (
        f"{list(known[name])}" if name in known else "no such array" for known in (actual, expected)
    )
    vmapped = all(name in actual and actual[name][1:] == expected.get(name) for name in different)
    hint = "Select a seed with result.seed(i)." if vmapped else "Use the config of its training."
    raise ValueError(
        f"{where}: the agent does not fit its config. {name} is {has}, but the config requires "
        f"{needs}. {hint}"
    )
