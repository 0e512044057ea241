"""Built-in mirror lists of tasks, for `ppo.symmetry`, in mirrors.yaml."""

import functools
import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import yaml

from purejaxppo.config.schema import Config
from purejaxppo.spaces import Discrete, leaves
from purejaxppo.types import EnvSpaces


class MirrorLists(NamedTuple):
    """Signed indices, counted from 1, that mirror the observations and the actions of a task."""

    obs: tuple[int, ...]
    action: tuple[int, ...]


@functools.cache
def table() -> dict[str, MirrorLists]:
    """Return the mirror lists of all tasks that have them, by env.name."""
    entries = yaml.safe_load(Path(__file__).with_name("mirrors.yaml").read_text("utf-8"))
    return {
        name: MirrorLists(tuple(entry["obs"]), tuple(entry["action"]))
        for entry in entries
        for name in entry["tasks"]
    }


def with_lists(config: Config, spec: EnvSpaces) -> Config:
    """Return the config with the mirror lists of its task, if ppo.symmetry needs them.

    Lists in the config have priority.

    Args:
        config: settings of the run.
        spec: spaces of the environments.

    Raises:
        ValueError: the task has no lists, or its observations or actions differ from the default.
    """
    env, symmetry = config.env, f"ppo.symmetry = {config.ppo.symmetry}"
    if config.ppo.symmetry == "none" or env.mirror_obs or env.mirror_action:
        return config
    instead = "Set env.mirror_obs and env.mirror_action"
    lists = table().get(str(env.name))
    if lists is None:
        family = str(env.name).partition("/")[0]
        tasks = ", ".join(name for name in table() if name.startswith(f"{family}/"))
        raise ValueError(
            f"{symmetry}: {env.name} has no built-in mirror lists. {instead}. Tasks of {family}/ "
            f"with lists: {tasks or 'none'}."
        )
    if env.obs_indices or env.wrappers:
        changed = "env.obs_indices" if env.obs_indices else "env.wrappers"
        raise ValueError(
            f"{symmetry}: the mirror lists of {env.name} do not support {changed}. {instead}."
        )
    num_values = sum(math.prod(leaf.shape) for leaf in leaves(spec.observation))
    action = spec.action
    num_actions = (
        action.n if isinstance(action, Discrete) else math.prod(next(leaves(action)).shape)
    )
    if (num_values, num_actions) != (len(lists.obs), len(lists.action)):
        raise ValueError(
            f"{symmetry}: the mirror lists of {env.name} are for {len(lists.obs)} values of an "
            f"observation and {len(lists.action)} of an action, but with these env.options there "
            f"are {num_values} and {num_actions}. {instead}."
        )
    return replace(config, env=replace(env, mirror_obs=lists.obs, mirror_action=lists.action))
