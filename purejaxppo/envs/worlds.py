"""Multi-agent environments as a batch of rows, one per agent: row = copy * A + agent.

`JointTask` turns a multi-agent task into an ordinary task: its observation holds the observations,
rewards and ends of all agents (`teams.Team.joint_observation`). Time limits, action scaling, resets
and divergence checks then work as for any other task. `MultiAgentEnv` splits the results into rows.

An agent that is done before the others is `terminated` (or `truncated`) at that step. Its later
rows are not `valid` and have reward 0 and its last observation. When all agents are done, the
environment resets: each agent gets one row that is not `valid`, with the first observation of the
next episode.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import struct

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs, Scalar
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import metrics
from purejaxppo.envs.base import Env, EnvStep, TaskStep
from purejaxppo.envs.native import NativeSpaces, form_of
from purejaxppo.envs.options import Option
from purejaxppo.envs.teams import (
    ALIVE,
    TERMINATED,
    TRUNCATED,
    Team,
    allow_all_if_empty,
    joined_state_space,
    pad_like,
    split_mask_obs,
)
from purejaxppo.envs.vectorize import VectorEnv, select
from purejaxppo.envs.wrappers import ReturnPreservingWrapper, flat_space, from_unit, unit_space
from purejaxppo.spaces import MASK, Discrete, Space, example

if TYPE_CHECKING:
    from purejaxppo.envs.host.bridge import HostEnv

GLOBAL_STATE_OPTION = Option(
    False, "Add the global state to the observation, for a centralised critic."
)


def count_worlds(
    config: EnvConfig, num_agents: int, num_envs: int, *, evaluation: bool = False
) -> int:
    """Return the number of environment copies for `num_envs` rows; rounded up for evaluations.

    Raises:
        ValueError: `num_envs` is not a multiple of the number of agents.
    """
    if evaluation:
        return -(-num_envs // num_agents)
    if num_envs % num_agents:
        parts = max(config.num_envs // num_envs, 1)
        # The suggestion keeps powers of 2 up to 8 as divisors, for minibatches.
        step = math.lcm(parts * num_agents, math.gcd(config.num_envs, 8))
        shards = f" x {parts} shards" if parts > 1 else ""
        raise ValueError(
            f"env.num_envs = {config.num_envs} counts agents. For {config.name} it must be a "
            f"multiple of {parts * num_agents} ({num_agents} agents{shards}). Try env.num_envs = "
            f"{max(step, round(config.num_envs / step) * step)}"
        )
    return num_envs // num_agents


class JointTask(ReturnPreservingWrapper):
    """A `MultiTask` as a `Task`: one environment that observes and acts for all agents.

    Args:
        task: the multi-agent task, inside its time limit.
        global_state: add the global state to the observation.
    """

    team: Team

    class State(NamedTuple):
        """State of one environment copy: of its task, and of the agents in the current episode."""

        task: Any
        alive: jax.Array  # [A] bool
        seen: Any  # last observations of the agents, [A, ...]

    def __init__(self, task: Any, *, global_state: bool = False) -> None:
        """Pad the spaces of the agents to a common one."""
        super().__init__(task)
        task = self.task
        native = [NativeSpaces(form_of(space), None) for space in task.observation]
        team = Team.of(task.agents, task.observation, task.action, native=native)
        self._task_state_space = self.task.state_space
        if global_state:
            space = self._task_state_space or joined_state_space(team.joint_observation["obs"])
            team = replace(team, state=space)
        self.team = team
        self.observation = team.joint_observation
        self.action = flat_space(team.joint_action)

    def unwrap(self, state: State) -> EnvState:
        """Return the innermost task's state."""
        return super().unwrap(state.task)

    def reset(self, key: Key) -> tuple[State, Obs]:
        """Start an episode; return (state, joint observation)."""
        task, obs = self.task.reset(key)
        state = self.State(task, jnp.ones(self.team.size, bool), self._observations(obs))
        zeros = jnp.zeros(self.team.size)
        return state, self._observation(state, zeros, zeros.astype(jnp.uint8))

    def staggered(self, key: Key, state: State) -> State:
        """Return the state with a random number of steps of the time limit elapsed."""
        return state._replace(task=self.task.staggered(key, state.task))

    def step(self, key: Key, state: State, action: EnvAction) -> tuple[State, TaskStep]:
        """Take one step of all agents. The episode ends when all agents are done."""
        task, out = self.task.step(key, state.task, self.team.split(action, jnp))
        terminated = jnp.asarray(out.terminated, bool)
        end = jnp.where(terminated, TERMINATED, jnp.where(out.truncated, TRUNCATED, ALIVE))
        end = jnp.where(state.alive, end, ALIVE).astype(jnp.uint8)
        reward = jnp.where(state.alive, jnp.asarray(out.reward, jnp.float32), 0.0)
        seen = select(state.alive, self._observations(out.obs), state.seen)
        state = self.State(task, state.alive & (end == ALIVE), seen)
        over = ~jnp.any(state.alive)
        return state, TaskStep(
            self._observation(state, reward, end),
            jnp.zeros(()),
            over & ~out.truncated,
            jnp.asarray(out.truncated, bool),
            out.metrics and {name: self._per_agent(x) for name, x in out.metrics.items()},
        )

    def _per_agent(self, value: Any) -> jax.Array:
        """Return a metric of each agent, [A]."""
        return jnp.broadcast_to(jnp.asarray(value, jnp.float32), (self.team.size,))

    def _observations(self, obs: tuple[Obs, ...]) -> dict[str, Any]:
        """Return the observations [A, ...] and masks of the agents."""
        split = [
            split_mask_obs(agent_obs, space)
            for agent_obs, space in zip(obs, self.task.observation, strict=True)
        ]
        arrays = {"obs": self.team.join([agent_obs for agent_obs, _ in split], jnp)}
        if self.team.mask is not None:
            masks = [allow_all_if_empty(mask, jnp) for _, mask in split]
            arrays[MASK] = self.team.join_masks(masks, jnp)
        return arrays

    def _observation(self, state: State, reward: jax.Array, end: jax.Array) -> dict[str, Any]:
        """Return the joint observation, in the space `Team.joint_observation`."""
        out = {**state.seen, "reward": reward, "end": end}
        if self.team.state is not None:
            out["state"] = (
                state.seen["obs"].astype(jnp.float32).ravel()
                if self._task_state_space is None
                else jnp.asarray(self.task.global_state(state.task), jnp.float32)
            )
        return out


class MultiAgentState(struct.PyTreeNode):
    """State of W environment copies of A agents."""

    worlds: Any  # state of the batch of copies
    alive: jax.Array  # [W, A] bool: agents that are not done in the current episode

    @property
    def task(self) -> EnvState:
        """The states of the tasks, for tasks in JAX."""
        return self.worlds.task


class MultiAgentEnv(Env):
    """W copies of a multi-agent environment as W x A rows, one per agent.

    Args:
        worlds: environments with the spaces `team.joint_observation` and `team.joint_action`.
        team: the agents.
    """

    def __init__(self, worlds: "VectorEnv | HostEnv", team: Team) -> None:
        """Store the environments; `close` closes them."""
        assert not worlds.spec.absent, (
            "absent agents are not supported here: make each agent a separate row"
        )
        self.worlds = worlds
        self.team = team
        self.task: Any = worlds.task
        self.shape = worlds.spec.num_envs, team.size
        self.spec = replace(
            worlds.spec,
            observation=team.row,
            action=unit_space(flat_space(team.action)),
            num_envs=worlds.spec.num_envs * team.size,
            num_agents=team.size,
            agents=team.agents,
            team=team,
            known_starts=False,  # known for the copies, not for rows
        )

    @property
    def failure(self) -> Exception | None:
        """See `Env.failure`."""
        return self.worlds.failure

    @property
    def diverged_value(self) -> str:
        """See `Env.diverged_value`."""
        return self.worlds.diverged_value

    def close(self) -> None:
        """Close host simulators."""
        self.worlds.close()

    def continue_at(self, update: int, progress: float) -> None:
        """See `Env.continue_at`."""
        self.worlds.continue_at(update, progress)

    def render_frame(self, obs: Obs) -> Any:
        """Return a frame of the first host simulator; see `HostEnv.render_frame`."""
        return cast("HostEnv", self.worlds).render_frame(obs)

    def to_simulator(self, action: EnvAction, obs: Obs) -> EnvAction:
        """Convert the policy's actions [N, ...] to the bounds and choices of each row's agent.

        The agents follow from the observations of the rows. The padded shape stays.
        """
        first, *_ = self.team.actions
        chosen = self._in_bounds(action, first)
        for i, space in enumerate(self.team.actions):
            if space != first:
                chosen = select(obs["agent"] == i, self._in_bounds(action, space), chosen)
        return chosen

    def _in_bounds(self, action: EnvAction, space: Space) -> EnvAction:
        """Return actions [N, ...] within the bounds or choices of the space of one agent."""
        common = self.team.action
        action = from_unit(action, flat_space(pad_like(space, common)))
        if isinstance(space, Discrete) and space != common:
            return jnp.minimum(action, space.n - 1)
        return action

    def reset(self, key: Key) -> tuple[MultiAgentState, Obs]:
        """Start an episode in every environment; return (state, obs [N, ...])."""
        return self._initial(*self.worlds.reset(key))

    def begin(self, seeds: Any) -> tuple[MultiAgentState, Any]:
        """Start an episode of each host simulator from its seed; see `HostEnv.begin`."""
        return self._initial(*cast("HostEnv", self.worlds).begin(seeds))

    def _initial(self, worlds: Any, obs: Any) -> tuple[MultiAgentState, Any]:
        """Return the state before the first step, and the observations of the rows."""
        return MultiAgentState(worlds, jnp.ones(self.shape, bool)), self._rows(obs)

    def begin_rollout(self, state: MultiAgentState, key: Key, progress: Scalar) -> MultiAgentState:
        """See `Env.begin_rollout`."""
        return state.replace(worlds=self.worlds.begin_rollout(state.worlds, key, progress))

    def step(
        self, key: Key, state: MultiAgentState, action: EnvAction
    ) -> tuple[MultiAgentState, EnvStep]:
        """Step all environments with actions [N, ...]; see `Env`."""
        worlds, out = self.worlds.step(key, state.worlds, self._joint(action))
        valid = out.valid[:, None] & state.alive
        diverged = out.diverged[:, None] & state.alive  # NaN of one agent ends its episode for all
        end = out.obs["end"].reshape(self.shape)
        terminated = valid & (end == TERMINATED)
        truncated = valid & (end == TRUNCATED) & ~terminated
        reward = out.obs["reward"].reshape(self.shape)
        values = None if out.metrics is None else out.metrics.reshape(valid.size, -1)
        step = EnvStep(
            obs=self._rows(out.obs),
            reward=jnp.where(valid, reward, 0.0).ravel(),
            terminated=terminated.ravel(),
            truncated=truncated.ravel(),
            valid=valid.ravel(),
            diverged=diverged.ravel(),
            metrics=metrics.masked(values, valid.ravel()),
        )
        over = out.terminated | out.truncated | out.diverged
        alive = over[:, None] | (state.alive & ~(terminated | truncated))
        return MultiAgentState(worlds, alive), step

    def raw_step(
        self, key: Key, state: MultiAgentState, action: EnvAction
    ) -> tuple[EnvState, TaskStep]:
        """See `VectorEnv.raw_step`; rows are environment copies, [W, ...]."""
        return cast("VectorEnv", self.worlds).raw_step(key, state.worlds, self._joint(action))

    def _joint(self, action: EnvAction) -> EnvAction:
        """Join the actions [N, ...] of the rows into joint actions [W, ...]."""
        return jax.tree.map(lambda x: x.reshape(self.shape[0], -1), action)

    def _rows(self, obs: Obs) -> dict[str, Any]:
        """Split joint observations [W, ...] into rows [N, ...], one per agent."""
        num_worlds, size = self.shape
        rows = {"agent": jnp.tile(jnp.arange(size, dtype=jnp.int32), num_worlds)}
        for name, space in self.team.row.spaces:
            if name in ("obs", MASK):
                rows[name] = jax.tree.map(
                    lambda x, like: x.reshape(num_worlds * size, *like.shape),
                    obs[name],
                    example(space),
                )
        if MASK in rows:
            rows[MASK] = allow_all_if_empty(rows[MASK], jnp)
        if "state" in obs:
            rows["state"] = jnp.repeat(obs["state"], size, axis=0)
        return rows
