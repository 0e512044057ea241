"""Warm start: begin a run with the parameters and statistics of a trained agent.

The agent is that of a run folder (`init_from`) or an `Agent`. `init_parts` selects the policy, the
critic and the normalisers. The optimiser, the schedules and everything else start from scratch.
"""

import json
import logging
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents.critics import unchanged_params
from purejaxppo.agents.extras.auxiliary_losses import PARAMS
from purejaxppo.config.files import flatten, write_whole
from purejaxppo.config.hints import show
from purejaxppo.config.references import located
from purejaxppo.config.schema import Config
from purejaxppo.learner import Parts
from purejaxppo.parts import from_new_agent
from purejaxppo.runs import checksums
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.checkpoint import place, restore
from purejaxppo.runs.conditions import differing_spaces
from purejaxppo.runs.console import print_line
from purejaxppo.runs.folder import INIT, imports
from purejaxppo.setup import Setup
from purejaxppo.types import STATISTICS, LearnedState, TrainState, named_leaves

log = logging.getLogger("purejaxppo")

CRITIC = ("critic", "critic_torso", "critic_memory")
"""Names of the critic's parameters. Others belong to the policy, or to auxiliary losses."""
FREE = ("initializer", "init_std", "min_std", "max_std", "rnn_timescale")
PRECISION = ("compute_dtype", "matmul_precision")
"""Fields of `network` that may differ, because they do not change the meaning of parameters."""
OF_POLICY = ("network.actor_keys", "network.distribution", "network.std")
OF_CRITIC = ("network.critic_keys", "network.critic_hidden", "ppo.critic", "ppo.value_limit")
"""Fields that only the policy or only the critic uses."""


class Source(NamedTuple):
    """The agent that a run starts from."""

    agent: Agent
    field: str
    """The setting that names it, for messages: `init_from = runs/hopper-s0` or `init`."""


def is_set(setup: Setup) -> bool:
    """Return True if new runs of a setup start from a trained agent."""
    return setup.init is not None or bool(setup.config.init_from)


def with_source(setup: Setup) -> Config:
    """Return the config with `init_from` set if new runs start from an agent in memory."""
    return setup.config if setup.init is None else replace(setup.config, init_from="an agent")


def print_imports(config: Config) -> None:
    """Print the custom code that the config of `init_from` names, before `load` executes it."""
    folder = located(config.init_from)
    if config.init_from and Path(folder).is_dir():
        for line in imports(folder):
            print_line(line)


def load(setup: Setup, parts: Parts) -> Source:
    """Load the agent that a run starts from, and check that it fits the run.

    Loading the agent of a run folder executes the code that its config names.

    Raises:
        ValueError: the agent does not exist, or its spaces, network or number of agents differ
            from those of the run.
    """
    config = setup.config
    if setup.init is not None:
        if not setup.init.members:
            setup.init.check_single("init", "this agent")
        source = Source(setup.init, "init")
    else:
        folder = located(config.init_from)
        if not Path(folder).is_dir():
            raise ValueError(f"init_from = {folder}: run folder not found.")
        agent = restore(folder, config.init_checkpoint)
        try:
            agent = agent if config.init_member == -1 else agent.member(config.init_member)
        except ValueError as error:
            raise ValueError(f"init_from = {folder}: init_{error}") from error
        source = Source(agent, f"init_from = {config.init_from}")
    check_agents(source, setup, parts)
    check_spaces(source, parts)
    check_network(source, config)
    check_statistics(source, parts)
    check_arrays(source, parts)
    return source


def check_agents(source: Source, setup: Setup, parts: Parts) -> None:
    """Raise ValueError unless there is one agent, or one per seed of the run."""
    count, size = len(source.agent.members), parts.shards.num_members
    if not count or (count == size == setup.config.num_seeds):
        return
    select = "agent.member(i)" if setup.init is not None else "init_member = i"
    if len(setup.members) > setup.config.num_seeds:
        raise ValueError(
            f"{source.field}: it has {count} agents. In a sweep, select one with {select}, where i "
            f"is 0 to {count - 1}."
        )
    raise ValueError(
        f"{source.field}: it has {count} agents, and this run trains {max(size, 1)}. Select one "
        f"with {select}, where i is 0 to {count - 1}, or use num_seeds = {count}, which starts "
        f"each seed from one agent."
    )


def check_spaces(source: Source, parts: Parts) -> None:
    """Raise ValueError if an observation or action has another form. Bounds may differ."""
    for name, old, new in differing_spaces(source.agent.policy, parts.policy):
        env, other = flatten(parts.config), flatten(source.agent.config)
        fields = [key for key in env if key.startswith("env.") and key not in FREE_ENV]
        differing = [key for key in fields if env[key] != other[key]]
        raise ValueError(
            f"{source.field}: its agent's {name} space is {old}, but this run's is {new}. Their "
            f"shapes and types must be equal. Different settings: {', '.join(differing)}."
        )


FREE_ENV = ("env.num_envs", "env.reset", "env.stagger", "env.randomize", "env.max_episode_steps")
"""Settings of the environment that do not change its spaces."""


def check_network(source: Source, config: Config) -> None:
    """Raise ValueError if a setting differs that changes the meaning of the copied parameters."""
    chosen = set(config.init_parts) & {"policy", "critic"}
    if not chosen:
        return
    before, after = (effective(x, chosen) for x in (source.agent.config, config))
    differing = [name for name in after if before[name] != after[name]]
    if source.agent.config.network.critic_hidden == config.network.critic_hidden:
        differing = [name for name in differing if name != "network.critic_hidden"]
    if differing:
        settings = ", ".join(f"{name} = {show(before[name])}" for name in differing)
        here = ", ".join(show(after[name]) for name in differing)
        raise ValueError(
            f"{source.field}: its agent has {settings}, but this run has {here}. Use the same "
            f"values, or leave policy or critic out of init_parts."
        )
    if "policy" not in chosen and "torso" in first_names(source.agent):
        raise ValueError(
            f"init_parts = {list(config.init_parts)}: policy and critic of this network share a "
            f"torso. Add policy."
        )


def effective(config: Config, chosen: Collection[str]) -> dict[str, Any]:
    """Return the settings that give the copied parameters their meaning, by dotted name."""
    network = config.network
    critic_hidden = network.critic_hidden or network.hidden
    config = replace(config, network=replace(network, critic_hidden=critic_hidden))
    free = {f"network.{name}" for name in (*FREE, *PRECISION)}
    unused = OF_POLICY * ("policy" not in chosen) + OF_CRITIC * ("critic" not in chosen)
    extra = ("ppo.critic", "ppo.value_limit", "ppo.normalize_obs", "env.obs_parts")
    return {
        name: value
        for name, value in flatten(config).items()
        if (name.startswith("network.") or name in extra) and name not in free | set(unused)
    }


def check_statistics(source: Source, parts: Parts) -> None:
    """Raise ValueError if the agent has no statistics that its critic or its rewards need."""
    ppo, chosen = parts.config.ppo, parts.config.init_parts
    if isinstance(source.agent.state, LearnedState):
        return
    critic = parts.critic.preserve is not unchanged_params or ppo.clip_bootstrap == "observed"
    rewards = "normalizers" in chosen and ppo.normalize_reward
    if rewards or ("critic" in chosen and critic):
        reason = "ppo.normalize_reward = true" if rewards else f"ppo.critic = {ppo.critic}"
        part = "normalizers" if rewards else "critic"
        raise ValueError(
            f"{source.field}: the agent lacks the statistics that {reason} needs. Use an agent of "
            f"a run folder or of a TrainResult, or leave {part} out of init_parts."
        )


def check_arrays(source: Source, parts: Parts) -> None:
    """Raise ValueError if the arrays of the networks differ, for example of custom networks."""
    first = 1 if source.agent.members else 0
    new = jax.eval_shape(parts.policy.init, jax.random.key(0))
    shapes, needed = (
        {name: x.shape[axis:] for name, x in arrays if not name.startswith(STATISTICS)}
        for arrays, axis in (
            (chosen_arrays(source, parts.config), first),
            (selected_arrays(new, source, parts.config), 0),
        )
    )
    for name in {**needed, **shapes}:
        if name not in shapes:
            problem = f"the source has no array {name}, which this run's network needs"
        elif name not in needed:
            problem = f"the source has an array {name}, which this run's network does not have"
        elif shapes[name] != needed[name]:
            problem = (
                f"the shape of {name} is {shapes[name]} in the source and {needed[name]} in this "
                f"run"
            )
        else:
            continue
        raise ValueError(
            f"{source.field}: {problem}. Use the same network as the source, including the file of "
            f"a custom one."
        )


def first_names(agent: Agent) -> set[str]:
    """Return the names of a network's modules, such as actor_torso and critic."""
    params = agent.state.params
    if agent.config.network.policies:
        params = next(x for name, x in params.items() if name != PARAMS)
    return set(params)


def started(
    source: Source, parts: Parts, state: TrainState, put: Callable[[Any, Any], Any] = place
) -> TrainState:
    """Return the state before the first update, with the parts of the source's agent.

    Args:
        source: the agent; see `load`.
        parts: functions and objects of the run.
        state: initial state of the run, with random parameters.
        put: function (array, array of the state) -> the first array in place of the second.
    """
    old, size, chosen = state.learned, parts.shards.num_members, parts.config.init_parts
    if parts.config.ppo.normalize_obs and "normalizers" not in chosen:
        log.warning(
            "init_parts = %s: networks read normalised observations, and their statistics start "
            "from scratch. Add normalizers to keep the agent's behaviour.",
            list(chosen),
        )
    arrays, leaves = dict(chosen_arrays(source, parts.config)), named_leaves(old)
    if size and not source.agent.members:
        arrays = {name: np.broadcast_to(x, (size, *x.shape)) for name, x in arrays.items()}
    new = [put(arrays[name], x) if name in arrays else x for name, x in leaves.items()]
    learned = jax.tree.unflatten(jax.tree.structure(old), new)
    state = state.replace(
        agent=learned.agent, reward_stats=learned.reward_stats, value_stats=learned.value_stats
    )
    return from_new_agent(parts, state)


def chosen_arrays(source: Source, config: Config) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and value of each array of the source's agent that `init_parts` selects."""
    for name, x in selected_arrays(jax.device_get(source.agent.state), source, config):
        yield name, np.asarray(x)


def selected_arrays(state: Any, source: Source, config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each array of an agent's state that `init_parts` selects."""
    same_losses = source.agent.config.ppo.terms == config.ppo.terms
    with_paths = jax.tree_util.tree_leaves_with_path(state)
    for (name, x), (keys, _) in zip(named_leaves(state).items(), with_paths, strict=True):
        field, *path = [getattr(key, "name", getattr(key, "key", None)) for key in keys]
        if field == "params":
            module = path[1 if config.network.policies and path[0] != PARAMS else 0]
            part = "critic" if module in CRITIC else "policy"
            selected = part in config.init_parts
            if path[0] == PARAMS:
                selected = same_losses and "policy" in config.init_parts
        else:
            part = "critic" if field == "value_stats" else "normalizers"
            selected = part in config.init_parts
        if selected:
            yield name, x


def on_device(array: np.ndarray, like: jax.Array) -> jax.Array:
    """Return an array with the type of another, which may be traced."""
    return jnp.asarray(array, like.dtype)


def begin(
    setup: Setup, parts: Parts, state: TrainState, run_dir: Path, *, record: bool
) -> tuple[TrainState, str]:
    """Start a new run from the agent of its setup; see `started`.

    Args:
        setup: setup of the run.
        parts: functions and objects of the run.
        state: initial state of the run.
        run_dir: the run folder, in which init.json records the origin.
        record: True to write init.json.

    Returns:
        (state, a line to print).
    """
    source = load(setup, parts)
    state = started(source, parts, state)
    config, agent = setup.config, source.agent
    origin = origin_of(agent) | {"parts": list(config.init_parts)}
    if config.init_from:
        folder = str(Path(located(config.init_from)).absolute())
        origin = {"run": folder, "checkpoint": config.init_checkpoint} | origin
    if record:
        write_whole(run_dir / INIT, json.dumps(origin, indent=1))
    where = config.init_from or f"an agent of {agent.config.env.name}"
    return state, (
        f"starts from {where} after {agent.env_steps:,} steps: {', '.join(config.init_parts)}"
    )


def origin_of(agent: Agent) -> dict[str, Any]:
    """Return the origin of an agent for init.json, with a checksum of its arrays."""
    arrays = named_leaves(jax.tree.map(np.asarray, jax.device_get(agent.state)))
    sums = json.dumps(checksums.of_arrays(arrays), sort_keys=True)
    return {
        "env": str(agent.config.env.name),
        "env_steps": agent.env_steps,
        "arrays": f"{zlib.crc32(sums.encode()):08x}",
    }


def check_resumed(init: Agent, run_dir: Path) -> None:
    """Raise ValueError if an existing run did not start from the agent `init`."""
    path = run_dir / INIT
    origin: Mapping[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    if origin.get("arrays") != origin_of(init)["arrays"]:
        raise ValueError(
            f"init: {run_dir} did not start from this agent. Use another run_dir, or start from "
            f"scratch with clobber=True."
        )
