"""Build the parts of a training run from its config: environments, networks, estimators."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from purejaxppo import learner, rollout
from purejaxppo.agents import (
    advantages,
    critics,
    objectives,
    obs_storage,
    optimizers,
    ppo,
    schedules,
    sequences,
)
from purejaxppo.agents.advantages import Advantages
from purejaxppo.agents.extras import intrinsic, symmetry
from purejaxppo.agents.networks.distributions import Distribution, stored_actions
from purejaxppo.agents.policy import Policy, at_matmul_precision
from purejaxppo.agents.schedules import hyperparams_of
from purejaxppo.aliases import Array, Key, OptState, T, Tree
from purejaxppo.config import extensions
from purejaxppo.config.schema import Config, PPOConfig
from purejaxppo.envs import mirrors, registry
from purejaxppo.envs.base import Env, EnvSpec
from purejaxppo.envs.metrics import TICKS
from purejaxppo.learner import Learner, Parts
from purejaxppo.parallel import processes
from purejaxppo.parallel.shards import Axes, Shards
from purejaxppo.spaces import Dict, example
from purejaxppo.streams import LEARNER, stream
from purejaxppo.types import (
    AgentState,
    Estimates,
    Hyperparams,
    Predictions,
    Trained,
    TrainState,
    Transition,
    state_axes,
)

STATE_AXES: Any = state_axes()
"""Axes of a TrainState: 0 for fields with a leading axis of shards, else None."""


def make_parts(
    config: Config,
    shards: Shards | None = None,
    *,
    change: Callable[[Parts], Parts] | None = None,
) -> Parts:
    """Build the parts of a training run, without computing anything.

    Args:
        config: settings of the run; `num_shards` = 0 means 1 here.
        shards: mapping of shards to devices.
        change: function from the parts of the config to the parts to train with.

    Raises:
        ValueError: parts of the config that cannot be combined.
    """
    config = replace(config, num_shards=max(config.num_shards, 1))
    env = make_env(config)
    policy = Policy(config, env.spec)
    check_input_hidden(config, policy)
    check_discount(config, env.spec)
    windows = env.spec.known_starts and not env.spec.absent
    starts = env.starts if windows else None
    settings = config.ppo
    schedules.check(settings)
    parts = Parts(
        config=config,
        shards=shards or Shards(config.num_shards),
        env=env,
        policy=policy,
        act=policy.act,
        initial_carry=policy.network.initial_carry,
        storage=obs_storage.make(env.spec.observation, starts),
        layout=sequences.make(policy.recurrent, settings.sequence_length),
        critic=critics.make(settings),
        bonus=intrinsic.make(config, replace(env.spec, observation=policy.network_input)),
        symmetry=symmetry.make(mirrors.with_lists(config, env.spec), env.spec, policy.distribution),
        auxiliary_losses=policy.auxiliary_losses,
        start=learner.reset_all if settings.reset_each_rollout else learner.continue_episodes,
        collect=rollout.collect,
        advantages=make_advantages(settings, env.spec, policy.distribution),
        before_epoch=ppo.recompute_advantages if settings.recompute_advantages else None,
        epoch_kl=learner.episode_kl if settings.early_stop_unit == "episode" else None,
        objective=objectives.make(settings),
        learner=make_learner(config),
    )
    if change is None:
        return parts
    if not callable(change):
        raise ValueError(f"parts = {change!r}: must be a function from Parts to Parts.")
    if not isinstance(changed := change(parts), Parts):
        raise ValueError(f"parts: the function returns {changed!r}. It must return Parts.")
    return changed


def check_input_hidden(config: Config, policy: Policy) -> None:
    """Raise ValueError for `network.input_hidden` without parts. Version 0.2 ignored it."""
    has_parts = isinstance(policy.observation, Dict) or config.env.obs_parts
    of_0_2 = config.ppo.obs_preprocessing == "by_dtype"
    if config.network.input_hidden and not has_parts and not of_0_2:
        raise ValueError(
            f"network.input_hidden = {list(config.network.input_hidden)} needs an observation with "
            f"parts, but {config.env.name} has {policy.observation}. Divide it with env.obs_parts, "
            f"or use network.hidden."
        )


def check_discount(config: Config, spec: EnvSpec) -> None:
    """Raise ValueError for a discount per tick where every step is one tick."""
    if config.ppo.discount == "tick" and not spec.absent and TICKS not in dict(spec.metrics):
        raise ValueError(
            f"ppo.discount = tick: agents of {config.env.name} decide at every step, and it has no "
            f"metric {TICKS!r} with the game time of a step. Declare this metric, or use "
            f"ppo.discount = decision."
        )


def make_learner(config: Config) -> Learner:
    """Return the update of the config.

    Raises:
        ValueError: a custom one cannot be loaded or created.
    """
    name = config.ppo.learner
    if name == "ppo":
        return learner.PPO
    custom: Learner = extensions.make(extensions.LEARNER, name, config)
    return custom


def make_advantages(config: PPOConfig, spec: EnvSpec, dist: Distribution) -> Advantages:
    """Return the advantage estimator of the config; a custom one is checked by tracing.

    Raises:
        ValueError: the estimator cannot be loaded, or does not map a rollout to advantages and
            targets.
    """
    built_in = {"gae": advantages.of_rollout, "vtrace": advantages.off_policy(dist)}
    if config.advantage in built_in:
        return built_in[config.advantage]

    def as_estimates(result: Any) -> Any:
        return Estimates(*result) if isinstance(result, tuple) and len(result) == 2 else result

    number, flag = (jnp.zeros((3, 2), kind) for kind in (jnp.float32, bool))
    params = jnp.zeros((3, 2, dist.num_params))
    action = stored_actions(dist, (3, 2))
    obs = example(spec.observation, (3, 2))
    ticks = number if config.discount == "tick" else None
    estimator: Advantages = extensions.load_function(
        extensions.ADVANTAGE,
        config.advantage,
        Transition(obs, action, number, number, flag, flag, flag, flag, ticks=ticks),
        number,
        Predictions(number, number, params),
        hyperparams_of(config, 1),
        expected=Estimates(number, number),
        convert=as_estimates,
    )
    return estimator


def with_env(config: Config, env: Any, changes: Mapping[str, Any] | None = None) -> Config:
    """Return the config with another environment and other changes.

    Args:
        config: the config.
        env: an environment or a name, which replaces the config's environment and options; a
            mapping, which changes settings of the section `env`; or None.
        changes: values by dotted name, such as {"env.options.length": 3}, or nested.

    Raises:
        ValueError: a name is unknown, or a value is invalid.
    """
    new_env = {"env": env} if isinstance(env, Mapping) else {"env.name": env, "env.options": {}}
    return config.replace(**{**(new_env if env is not None else {}), **(changes or {})})


def make_env(config: Config) -> Env:
    """Return the environments of one shard of a run.

    Raises:
        ValueError: see `registry.make`.
    """
    num_envs = config.env.num_envs // config.num_shards
    first = processes.index() * num_envs
    return registry.make(config.env, num_envs, seed=config.seed, first=first)


def map_over_shards(
    parts: Parts,
    function: Callable[..., T],
    in_axes: Axes,
    out_axes: Axes,
    members: tuple[Axes, Axes] = (0, 0),
) -> Callable[..., T]:
    """Map `function`(parts, ...) over all shards and agents, at the run's precision.

    Args:
        parts: functions and objects of the run.
        function: function (parts, ...) of one shard.
        in_axes: axes of shards in its arguments.
        out_axes: axes of shards in its result.
        members: axes of agents in its arguments and its result.
    """
    traced = functools.partial(at_matmul_precision(function), parts)
    wrapped = functools.wraps(function)(traced)
    return parts.shards.map(wrapped, in_axes, out_axes, members)


TrainProgram = Callable[[TrainState, Hyperparams, Array | int], Trained]
"""(state, hp, number of updates, int32 scalar) -> (state, metrics)."""


def init_program(parts: Parts) -> Callable[[Key, Array], TrainState]:
    """Return a function, (key, `shard_ids`) -> initial state of all shards and agents."""
    return map_over_shards(parts, learner.init_state, (None, 0), STATE_AXES, ((0, None), 0))


def from_new_agent(parts: Parts, state: TrainState) -> TrainState:
    """Return a state with the initial states of the optimiser and of a custom update.

    Some of them contain the agent's parameters, such as those of a target network.

    Args:
        parts: functions and objects of the run.
        state: state of all shards and agents, with a new agent.
    """

    def init(agent: AgentState, key: Key) -> tuple[OptState, Tree]:
        update = parts.learner.init(parts, agent, stream(key[0], LEARNER))
        return optimizers.init_state(parts.config.ppo, agent.params), update

    mapped = jax.vmap(init) if parts.shards.num_members else init
    sharding = parts.shards.shardings(STATE_AXES.opt_state)
    opt_state, update = jax.jit(mapped, out_shardings=sharding)(state.agent, state.key)
    return state.replace(opt_state=opt_state, learner=update)


def train_program(parts: Parts) -> TrainProgram:
    """Return `learner.train_chunk` over all shards and agents."""
    axes = (STATE_AXES, None, None), (STATE_AXES, None)
    return map_over_shards(parts, learner.train_chunk, *axes, ((0, 0, None), 0))


def shard_ids(parts: Parts) -> Array:
    """Return the indices of the shards, int32 [D], an argument of `init_program`'s function."""
    return jnp.arange(parts.config.num_shards)
