"""Run the first episode of each of N environments in one loop."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import Array, EnvState, InitialCarry, Key, MetricDict, Obs
from purejaxppo.config.schema import EvalConfig
from purejaxppo.envs.base import Env, EnvSpec
from purejaxppo.envs.metrics import unpacked
from purejaxppo.parallel import platforms
from purejaxppo.rollout import StepRow, begin_episodes, step
from purejaxppo.types import Act, RolloutState

MOST_DIVERGED = 0.1
"""Largest share of diverged episodes with which an agent has a score.

Mean returns exclude diverged episodes. Without this limit, an agent that breaks its simulator when
it is about to lose would have the best score.
"""
STEPS_PER_CHECK = 16
"""Steps of an evaluation on a GPU or TPU between two checks for the end of all episodes."""


class Outcome(NamedTuple):
    """Results of episodes on the device. With several agents, with a leading axis of agents.

    An episode diverges if an observation or reward is NaN, infinite or beyond ±`spaces.LARGEST`.
    """

    returns: Array  # [episodes] NaN if the episode diverged, or the slot never had an agent
    lengths: Array  # [episodes] int32
    cut: Array  # [episodes] bool: stopped before the end; with a NaN return: no agent
    metrics: MetricDict
    """[episodes] each: the environment's metrics by name; NaN if an episode has no value."""


def has_agent(returns: np.ndarray, cut: np.ndarray | np.bool) -> np.ndarray:
    """Return True for the slots that had an agent, bool [episodes]; see `Outcome`."""
    return ~(np.isnan(returns) & cut)


def num_cut(returns: np.ndarray, cut: np.ndarray | np.bool) -> int:
    """Count the episodes that were stopped before their end; see `Outcome.cut`."""
    return int((cut & has_agent(returns, cut)).sum())


def success_rate(returns: np.ndarray, cut: np.ndarray | np.bool, above: float) -> float:
    """Return the share of the episodes with a return above a number; NaN without episodes."""
    won = returns[has_agent(returns, cut)] > above  # False if the episode diverged
    return float(won.mean()) if won.size else np.nan


def of_undiverged(values: np.ndarray, returns: np.ndarray, cut: np.ndarray | np.bool) -> np.ndarray:
    """Return the values of the episodes that did not diverge.

    Args:
        values: [episodes], such as the returns or the lengths.
        returns: float [episodes]; see `Outcome`.
        cut: bool [episodes]; see `Outcome`.

    Returns:
        [episodes that did not diverge]; a single NaN without episodes, or if more than
        `MOST_DIVERGED` of them diverged. Slots that never had an agent are not episodes.
    """
    diverged = np.isnan(returns)
    diverged_episodes = diverged[has_agent(returns, cut)]
    if diverged_episodes.all() or diverged_episodes.mean() > MOST_DIVERGED:
        return np.full(1, np.nan)
    return values[~diverged]


class FirstEpisodes(NamedTuple):
    """The first episode of each of N environments so far."""

    finished: Array  # [N] bool
    returns: Array  # [N] NaN if the episode diverged
    lengths: Array  # [N] int32
    metrics: Array | None = None  # [N, K] of the environment; None if they are not recorded


class Running(NamedTuple):
    """State of an evaluation: N environments, each playing one episode."""

    time: Array  # [] int32
    loop: RolloutState
    first: FirstEpisodes


def no_episodes_yet(num_envs: int, num_metrics: int = 0) -> FirstEpisodes:
    """Return the first episodes before their first step."""
    n = num_envs
    metrics = jnp.zeros((n, num_metrics)) if num_metrics else None
    return FirstEpisodes(jnp.zeros(n, bool), jnp.zeros(n), jnp.zeros(n, jnp.int32), metrics)


def add_step(first: FirstEpisodes, row: StepRow) -> FirstEpisodes:
    """Add a step to the first episodes that are not finished.

    Args:
        first: first episodes before the step.
        row: result of the step.
    """
    returns = jnp.where(row.out.diverged, jnp.nan, row.episode_return)
    metrics = None
    if first.metrics is not None and row.episode_metrics is not None:
        reduced = row.episode_metrics.reduced
        metrics = jnp.where(first.finished[:, None], first.metrics, reduced)
    return FirstEpisodes(
        finished=first.finished | row.finished,
        returns=jnp.where(first.finished, first.returns, returns),
        lengths=jnp.where(first.finished, first.lengths, row.episode_length),
        metrics=metrics,
    )


def run_episodes(
    env: Env,
    reset_result: tuple[EnvState, Obs],
    act: Act,
    initial_carry: InitialCarry,
    keys: Key,
    any_member: Callable[[Array], Array] = lambda running: running,
    *,
    max_steps: int = EvalConfig.max_steps,
) -> Outcome:
    """Run the first episode of each of N environments.

    Args:
        env: a `VmapEnv` of G groups of rows, or a host simulator. Its time limit, if any, bounds
            the loop.
        reset_result: (state, obs [N, ...]), the result of `reset`.
        act: function (keys [G], carry, obs, start) -> PolicyStep.
        initial_carry: function from a batch shape to the carry at an episode's start.
        keys: key of each group, [G]; must not be reused by the caller.
        any_member: function that reduces a scalar bool over the agents of a vmap with "any". Host
            simulators need it, because all agents must leave the loop together.
        max_steps: largest number of steps without a time limit. Longer episodes are stopped.

    Returns:
        The outcome of [N] episodes.
    """
    bound = max_rows(env.spec) or max_steps

    def running(now: Running) -> Array:
        return any_member((now.time < bound) & ~jnp.all(now.first.finished))

    def one_step(_: int | Array, now: Running) -> Running:
        now_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, now.time)
        loop, row = step(env, act, now.loop, now_keys)
        counted = now.time < bound  # the last of several steps per check may exceed it
        first = jax.tree.map(partial(jnp.where, counted), add_step(now.first, row), now.first)
        return Running(now.time + 1, loop, first)

    begin = begin_episodes(env, reset_result, initial_carry)
    none_yet = no_episodes_yet(env.spec.num_envs, len(env.spec.metrics))
    start = Running(jnp.zeros((), jnp.int32), begin, none_yet)
    end = jax.lax.while_loop(running, repeat_step(env.spec, one_step), start).first
    cut = ~end.finished
    empty = cut & (end.lengths == 0)  # the slot never had an agent
    returns = jnp.where(empty, jnp.nan, end.returns)
    metrics = {} if end.metrics is None else unpacked(end.metrics, env.spec.metrics)
    return Outcome(returns, end.lengths, cut, metrics)


def max_rows(spec: EnvSpec) -> int:
    """Return the largest number of rows of an episode; 0 if there is no limit."""
    if spec.absent:  # rows without a decision are not steps, and their number is not limited
        return 0
    # Rows after lost lives are not steps, and an episode may contain many of them.
    return spec.max_episode_steps * (1 if spec.restorable else 2)


def repeat_step(
    spec: EnvSpec, step: Callable[[int | Array, Running], Running]
) -> Callable[[Running], Running]:
    """Return a function of one step, or of several steps on GPUs and TPUs.

    There, the host reads the condition of the loop, which is slow.
    """
    if platforms.is_accelerated() and spec.restorable:
        return partial(jax.lax.fori_loop, 0, STEPS_PER_CHECK, step)
    return partial(step, 0)
