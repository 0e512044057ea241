"""Records one episode's states, and draws them."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.agents.decisions import begins, hold
from purejaxppo.config.hints import number, short_path
from purejaxppo.envs import registry
from purejaxppo.envs.host.bridge import HostEnv, named_failures
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.envs.worlds import WorldsEnv
from purejaxppo.evaluation import evaluated
from purejaxppo.pictures import video
from purejaxppo.trained_agent import Agent, how_to_act
from purejaxppo.types import AgentState


class Recorded(NamedTuple):
    """One episode, for drawing."""

    task: Any
    states: list[Any]
    """From the start to the end."""
    rewards: np.ndarray  # [steps] summed over agents
    agents: int


def draw(agent: Agent, path: str | Path, *, seed: int = 0, stochastic: bool | None = None) -> str:
    """Draws one episode into a file; describes what was drawn.

    Args:
        agent: a single one.
        path: of the file; the suffix chooses the format.
        seed: of the episode.
        stochastic: sample actions; None: as the run's evaluations did.

    Raises:
        ValueError: as `video.record`.
    """
    config = agent.config
    stochastic = config.eval.stochastic if stochastic is None else stochastic
    task, states, rewards, agents = _record(agent, seed=seed, deterministic=not stochastic)
    video.record(task, states, path, title=config.env.name, rewards=rewards)
    of_all = f" of all {agents} agents together" if agents > 1 else ""
    place = short_path(Path(path))
    return f"drew {len(rewards)} steps, return {number(rewards.sum())}{of_all}, into {place}"


def record_states(agent: Agent, *, seed: int = 0, deterministic: bool | None = None):
    """Records one episode's states, for drawing; acts as `evaluate` does.

    Returns:
        (task, list of its states from the start to the end, rewards [steps], summed over agents).
    """
    return _record(agent, seed=seed, deterministic=deterministic)[:3]


def _record(agent: Agent, *, seed: int, deterministic: bool | None) -> Recorded:
    """Records one episode."""
    config = agent.config
    with jax.default_matmul_precision(config.matmul_precision):
        env: Any = registry.make(evaluated(config), 1, seed=seed, evaluation=True, film=True)
        if not registry.on_host(config.env):
            return film_in_jax(env, agent, seed, deterministic)
        try:
            with named_failures(config.env.name, env):
                states, rewards = film_on_host(env, agent, seed, deterministic)
        finally:
            env.close()
        return Recorded(env.task, states, rewards, env.spec.num_agents)


def film_in_jax(
    env: VectorEnv | WorldsEnv, agent: Agent, seed: int, deterministic: bool | None
) -> Recorded:
    """Records an episode of a JAX simulator."""
    episode = jax.jit(episode_of(env, agent, deterministic))
    recorded = episode(jax.device_get(agent.state), jax.random.key(seed))
    first, (states, rewards, done, diverged) = jax.device_get(recorded)
    ends = np.where(done.any(axis=0), np.argmax(done, axis=0) + 1, len(done))
    length = int(ends.max())
    if diverged[length - 1, 0]:  # its state is the first one of another episode
        length -= 1
    take = [jax.tree.map(lambda x: x[0], first)]
    take += [jax.tree.map(lambda x, t=t: x[t, 0], states) for t in range(length)]
    return Recorded(env.task, take, rewards[:length].sum(axis=1), env.spec.num_agents)


def episode_of(env: VectorEnv | WorldsEnv, agent: Agent, deterministic: bool | None) -> Any:
    """(agent's state, key) -> (first state, (states, rewards, done, diverged) of all steps)."""
    policy = agent.policy
    act = how_to_act(agent.config, policy, deterministic)
    rows = env.spec.num_envs  # one, or the agents of one world

    def episode(state: AgentState, key):
        env_key, key = jax.random.split(key)
        env_state, obs = env.reset(env_key)

        def step(loop, key):
            env_state, obs, start, carry, absent = loop
            choice = act(state, key, carry, obs, start)
            env_state, out = env.step(env_state, choice.env_action)
            begun = begins(out.valid, out.diverged, absent, out.at_once)
            carry = hold(absent, carry, choice.carry)
            done = out.terminated | out.truncated | out.diverged
            return (env_state, out.obs, begun, carry, out.absent), (
                env_state.task,
                out.reward,
                done,
                out.diverged,
            )

        nobody = jnp.zeros(rows, bool) if env.spec.absent else None
        carry = policy.network.initial_carry((rows,))
        loop = (env_state, obs, jnp.ones(rows, bool), carry, nobody)
        keys = jax.random.split(key, env.spec.max_episode_steps or agent.config.eval.max_steps)
        return env_state.task, jax.lax.scan(step, loop, keys)[1]

    return episode


def film_on_host(env: HostEnv | WorldsEnv, agent: Agent, seed: int, deterministic: bool | None):
    """Records (pictures, rewards) of one episode of a simulator on the host, step by step."""
    policy = agent.policy
    act = how_to_act(agent.config, policy, deterministic)

    @jax.jit
    def step(state: AgentState, key, now):
        env_state, obs, start, carry, absent = now
        choice = act(state, key, carry, obs, start)
        env_state, out = env.step(env_state, choice.env_action)
        begun = begins(out.valid, out.diverged, absent, out.at_once)
        return env_state, out, begun, hold(absent, carry, choice.carry)

    state, key = jax.device_get(agent.state), jax.random.key(seed)
    env_state, obs = jax.jit(env.reset)(key)
    pictures: list[Any] = [env.picture(obs)]
    rewards: list[float] = []
    n = env.spec.num_envs  # one, or the agents of one world
    start, carry, done = jnp.ones(n, bool), policy.network.initial_carry((n,)), np.zeros(n, bool)
    absent = jnp.zeros(n, bool) if env.spec.absent else None
    longest = 2 * env.spec.max_episode_steps or agent.config.eval.max_steps
    while not done.all() and len(rewards) < longest:
        key, step_key = jax.random.split(key)
        now = env_state, obs, start, carry, absent
        env_state, out, start, carry = step(state, step_key, now)
        obs, absent = out.obs, out.absent
        rewards.append(float(np.asarray(out.scores).sum(where=~done)))
        done |= np.asarray(out.ends | out.diverged)
        pictures.append(env.picture(obs))
    return pictures, np.asarray(rewards)
