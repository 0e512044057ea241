"""Videos of episodes: record the states of an episode and draw them."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents.policy import Policy
from purejaxppo.aliases import Array, Key
from purejaxppo.config.hints import format_number, short_path
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.host.bridge import HostEnv, simulator_errors
from purejaxppo.envs.worlds import MultiAgentEnv
from purejaxppo.rollout import begin_episodes, step
from purejaxppo.runs.agent import Agent, act_function
from purejaxppo.runs.conditions import describe, evaluation_env
from purejaxppo.runs.episodes import FirstEpisodes, add_step, max_rows, no_episodes_yet
from purejaxppo.types import AgentState, RolloutState
from purejaxppo.video import video


class Recorded(NamedTuple):
    """The recorded states of one episode, for a video."""

    task: Any
    states: list[Any]
    """States from the first to the last."""
    rewards: np.ndarray  # [steps] summed over agents
    agents: int


def draw(
    agent: Agent, path: str | Path, *, seed: int = 0, deterministic: bool | None = None
) -> str:
    """Write a video of one episode.

    Args:
        agent: one agent.
        path: path of the file. The suffix selects the format.
        seed: seed of the episode.
        deterministic: False to sample actions; None for the setting of the run's evaluations.

    Returns:
        A line that describes the video.

    Raises:
        ValueError: see `video.record`.
    """
    recorder = Recorder(agent.config, agent.policy, seed, deterministic=deterministic)
    try:
        return recorder.write(agent.state, path, conditions=describe(agent.conditions))
    finally:
        recorder.close()


def record_states(agent: Agent) -> tuple[Any, list[Any], np.ndarray]:
    """Record the states of one episode. Actions are those of `evaluate`.

    Returns:
        (task, list of states from the first to the last, rewards [steps] summed over agents).
    """
    recorder = Recorder(agent.config, agent.policy, seed=0)
    try:
        return recorder.record(agent.state)[:3]
    finally:
        recorder.close()


class Recorder:
    """Records episodes of one environment or one multi-agent environment, step by step.

    The rewards are those that an evaluation sums. A step that diverged is left out.
    """

    def __init__(
        self, config: Config, policy: Policy, seed: int, *, deterministic: bool | None = None
    ) -> None:
        """Make the environment.

        Args:
            config: config of the agents.
            policy: their policy.
            seed: seed of each episode.
            deterministic: True for the distribution's mode, False for samples, None for the setting
                of the run's evaluations.
        """
        self._config, self._policy, self._seed = config, policy, seed
        self._act = act_function(config, policy, deterministic)
        env_config = evaluation_env(config)
        with jax.default_matmul_precision(config.matmul_precision):
            env: Any = registry.make(env_config, 1, seed=seed, evaluation=True, render=True)
        self.env = env
        self._reset = jax.jit(env.reset)
        self._one_state = jax.jit(lambda env_state: jax.tree.map(lambda x: x[0], env_state.task))
        self._step = jax.jit(self._one_step)

    @property
    def reusable(self) -> bool:
        """True if it can record several episodes; host simulators record one."""
        return bool(self.env.spec.restorable)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def write(self, state: AgentState, path: str | Path, *, conditions: str = "") -> str:
        """Write a video of one episode of an agent, and return a line that describes it.

        `conditions` is added to the title.
        """
        task, states, rewards, agents = self.record(state)
        title = f"{self._config.env.name} {conditions}".rstrip()
        video.record(task, states, path, title=title, rewards=rewards)
        of_all = f" (sum over {agents} agents)" if agents > 1 else ""
        total = format_number(rewards.sum())
        return f"video: {short_path(Path(path))}, {len(rewards)} steps, return {total}{of_all}"

    def record(self, state: AgentState) -> Recorded:
        """Record one episode of an agent."""
        with (
            jax.default_matmul_precision(self._config.matmul_precision),
            simulator_errors(self._config.env.name, self.env),
        ):
            return self._record(jax.device_get(state))

    def _record(self, state: AgentState) -> Recorded:
        env = self.env
        limit = max_rows(env.spec) or self._config.eval.max_steps
        env_key, key = jax.random.split(jax.random.key(self._seed))
        loop = begin_episodes(env, self._reset(env_key), self._policy.network.initial_carry)
        first = no_episodes_yet(env.spec.num_envs)
        frames, rewards, diverged = [self._frame(loop)], list[float](), False
        while not (np.all(first.finished) or len(rewards) == limit):
            key, step_key = jax.random.split(key)
            loop, first, reward, diverged = self._step(state, loop, first, step_key)
            rewards.append(float(reward))
            frames.append(self._frame(loop))
        shown = len(rewards) - bool(diverged)
        agents = env.spec.num_agents
        return Recorded(env.task, frames[: shown + 1], np.asarray(rewards)[:shown], agents)

    def _frame(self, loop: RolloutState) -> Any:
        """Return the task's state, or the frame that a host simulator renders."""
        if not self.reusable:  # states of host simulators are not arrays
            return cast("HostEnv | MultiAgentEnv", self.env).render_frame(loop.obs)
        return jax.device_get(self._one_state(loop.env))

    def _one_step(
        self, state: AgentState, loop: RolloutState, first: FirstEpisodes, key: Key
    ) -> tuple[RolloutState, FirstEpisodes, Array, Array]:
        loop, row = step(self.env, partial(self._act, state), loop, key)
        reward = jnp.sum(row.out.scores, where=~first.finished)
        return loop, add_step(first, row), reward, row.out.diverged[0]
