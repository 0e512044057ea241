"""Videos of episodes: record the states of an episode and draw them."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import Array, Key
from purejaxppo.config.hints import format_number, short_path
from purejaxppo.envs import registry
from purejaxppo.envs.host.bridge import HostEnv, simulator_errors
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.envs.worlds import MultiAgentEnv
from purejaxppo.rollout import begin_episodes, step
from purejaxppo.runs.agent import Agent, act_function
from purejaxppo.runs.episodes import FirstEpisodes, add_step, max_rows, no_episodes_yet
from purejaxppo.runs.evaluation import evaluation_env
from purejaxppo.types import AgentState, RolloutState
from purejaxppo.video import video


class Recorded(NamedTuple):
    """The recorded states of one episode, for a video."""

    task: Any
    states: list[Any]
    """States from the first to the last."""
    rewards: np.ndarray  # [steps] summed over agents
    agents: int


def draw(agent: Agent, path: str | Path, *, seed: int = 0, stochastic: bool | None = None) -> str:
    """Write a video of one episode.

    Args:
        agent: one agent.
        path: path of the file. The suffix selects the format.
        seed: seed of the episode.
        stochastic: True to sample actions; None for the setting of the run's evaluations.

    Returns:
        A line that describes the video.

    Raises:
        ValueError: see `video.record`.
    """
    config = agent.config
    stochastic = config.eval.stochastic if stochastic is None else stochastic
    task, states, rewards, agents = _record(agent, seed=seed, deterministic=not stochastic)
    video.record(task, states, path, title=str(config.env.name), rewards=rewards)
    of_all = f" (sum over {agents} agents)" if agents > 1 else ""
    short = short_path(Path(path))
    return f"video: {short}, {len(rewards)} steps, return {format_number(rewards.sum())}{of_all}"


def record_states(agent: Agent, *, seed: int = 0, deterministic: bool | None = None):
    """Record the states of one episode. Actions are those of `evaluate`.

    Returns:
        (task, list of states from the first to the last, rewards [steps] summed over agents).
    """
    return _record(agent, seed=seed, deterministic=deterministic)[:3]


def _record(agent: Agent, *, seed: int, deterministic: bool | None) -> Recorded:
    """Record one episode."""
    config = agent.config
    with jax.default_matmul_precision(config.matmul_precision):
        env: Any = registry.make(evaluation_env(config), 1, seed=seed, evaluation=True, render=True)
        try:
            with simulator_errors(config.env.name, env):
                return record_episode(env, agent, seed, deterministic)
        finally:
            env.close()


def record_episode(
    env: VectorEnv | MultiAgentEnv | HostEnv, agent: Agent, seed: int, deterministic: bool | None
) -> Recorded:
    """Record an episode of one environment or one multi-agent environment, step by step.

    The rewards are those that an evaluation sums. A step that diverged is left out.
    """
    policy, limit = agent.policy, max_rows(env.spec) or agent.config.eval.max_steps
    act = act_function(agent.config, policy, deterministic)
    one_state = jax.jit(lambda env_state: jax.tree.map(lambda x: x[0], env_state.task))

    def frame(loop: RolloutState) -> Any:
        """Return the task's state, or the frame that a host simulator renders."""
        if not env.spec.restorable:  # states of host simulators are not arrays
            return cast("HostEnv | MultiAgentEnv", env).render_frame(loop.obs)
        return jax.device_get(one_state(loop.env))

    @jax.jit
    def one_step(
        state: AgentState, loop: RolloutState, first: FirstEpisodes, key: Key
    ) -> tuple[RolloutState, FirstEpisodes, Array, Array]:
        loop, row = step(env, partial(act, state), loop, key)
        reward = jnp.sum(row.out.scores, where=~first.finished)
        return loop, add_step(first, row), reward, row.out.diverged[0]

    state = jax.device_get(agent.state)
    env_key, key = jax.random.split(jax.random.key(seed))
    loop = begin_episodes(env, jax.jit(env.reset)(env_key), policy.network.initial_carry)
    first = no_episodes_yet(env.spec.num_envs)
    frames, rewards, diverged = [frame(loop)], list[float](), False
    while not (np.all(first.finished) or len(rewards) == limit):
        key, step_key = jax.random.split(key)
        loop, first, reward, diverged = one_step(state, loop, first, step_key)
        rewards.append(float(reward))
        frames.append(frame(loop))
    shown = len(rewards) - bool(diverged)
    return Recorded(env.task, frames[: shown + 1], np.asarray(rewards)[:shown], env.spec.num_agents)
