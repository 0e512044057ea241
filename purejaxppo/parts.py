"""The parts that a config names: environments, networks, estimators, put together once."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from purejaxppo import double_buffer, learner, rollout
from purejaxppo.agents import (
    advantages,
    critics,
    intrinsic,
    objectives,
    obs_storage,
    ppo,
    sequences,
    symmetry,
)
from purejaxppo.agents.policy import Policy
from purejaxppo.config.schema import Config, EnvConfig
from purejaxppo.envs import curriculum, registry
from purejaxppo.envs.base import Env
from purejaxppo.learner import Parts
from purejaxppo.parallel import processes
from purejaxppo.parallel.shards import Shards
from purejaxppo.rollout import init_rollout
from purejaxppo.streams import NEW_EPISODES, stream
from purejaxppo.types import Metrics, RolloutState, TrainState, state_axes

STATE_AXES: Any = state_axes()
"""Axes of a TrainState: 0 for fields with a leading axis of shards, else None."""


def make_parts(config: Config, shards: Shards | None = None) -> Parts:
    """The parts of a training; environments and networks are built, nothing is computed.

    Args:
        config: of the run; `num_shards` 0 means 1 here.
        shards: mapping of shards to devices.

    Raises:
        ValueError: the config's parts do not fit each other.
    """
    config = replace(config, num_shards=max(config.num_shards, 1))
    env = make_env(config)
    policy = Policy(config, env.spec)
    known: Any = getattr(env, "starts", None) if env.spec.known_starts else None
    settings = config.ppo
    return Parts(
        config=config,
        shards=shards or Shards(config.num_shards),
        env=env,
        policy=policy,
        act=policy.act,
        initial_carry=policy.network.initial_carry,
        storage=obs_storage.make(env.spec.observation, known),
        layout=sequences.make(policy.recurrent, settings.stretch),
        critic=critics.make(settings),
        bonus=intrinsic.make(config, env.spec),
        symmetry=symmetry.make(config, env.spec, policy.distribution),
        start=rollout_start(config, env, policy.network.initial_carry),
        collect=double_buffer.collect if config.env.double_buffer else rollout.collect,
        advantages=(
            advantages.off_policy(policy.distribution)
            if settings.advantage == "vtrace"
            else advantages.on_policy
        ),
        before_epoch=(
            ppo.recompute_advantages if settings.recompute_advantages else ppo.keep_advantages
        ),
        objective=objectives.OBJECTIVES[settings.objective],
    )


def make_env(config: Config) -> Env:
    """The environments of one shard of a run.

    Raises:
        ValueError: a rollout cannot begin with new episodes in this simulator; or see
            `registry.make`.
    """
    env: EnvConfig = config.env
    if config.ppo.rollout_start == "reset" and registry.on_host(env):
        raise ValueError(
            f"ppo.rollout_start = reset is for simulators in JAX, and {env.name} is none: its "
            f"episodes go on from one rollout to the next"
        )
    num_envs = env.num_envs // config.num_shards
    make: Any = registry.make_halves if env.double_buffer else registry.make
    return make(env, num_envs, seed=config.seed, first=processes.index() * num_envs)


def rollout_start(
    config: Config, env: Env, initial_carry: Callable
) -> Callable[[RolloutState, Any, Any], RolloutState]:
    """(state after a rollout, key, progress []) -> state before the next one, by the config."""
    env_at = curriculum.follower(env)

    def go_on(state: RolloutState, key, progress) -> RolloutState:
        del key
        return state.replace(env=env_at(state.env, progress))

    def reset_all(state: RolloutState, key, progress) -> RolloutState:
        del state, progress
        return init_rollout(env, initial_carry, stream(key, NEW_EPISODES))

    return reset_all if config.ppo.rollout_start == "reset" else go_on


def map_over_shards(
    parts: Parts, function: Callable, in_axes: Any, out_axes: Any, members: Any = (0, 0)
) -> Callable:
    """`function`(parts, ...) for all shards and members (`Shards.map`), at the run's precision."""

    @functools.wraps(function)
    def traced(*args):
        with jax.default_matmul_precision(parts.config.matmul_precision):
            return function(parts, *args)

    return parts.shards.map(traced, in_axes, out_axes, members)


def init_program(parts: Parts) -> Callable[[Any, Any], TrainState]:
    """(key, `shard_ids`) -> the state before the first update, of all shards and members."""
    return map_over_shards(parts, learner.init_state, (None, 0), STATE_AXES, ((0, None), 0))


def train_program(parts: Parts) -> Callable[..., tuple[TrainState, Metrics]]:
    """(state, hp, number of updates) -> (state, metrics), of all shards and members."""
    axes = (STATE_AXES, None, None), (STATE_AXES, None)
    return map_over_shards(parts, learner.train_chunk, *axes, ((0, 0, None), 0))


def shard_ids(parts: Parts):
    """The numbers of the shards, int32 [D], an argument of `init_program`'s."""
    return jnp.arange(parts.config.num_shards)
