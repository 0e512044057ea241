"""Multi-agent environments as a batch of rows, one per agent: row = world * A + agent.

A "world" is one copy of a multi-agent environment. `JointTask` turns it into an ordinary task: its
observation holds the observations, rewards and ends of all agents (`teams.Team.joint_observation`).
Time limits, action scaling, resets and divergence checks then work as for any other task.
`MultiAgentEnv` splits the results into rows.

An agent that is done before the others is `terminated` (or `truncated`) at that step. Its later
rows are not `valid` and have reward 0 and its last observation. When all agents are done, the world
resets: each agent gets one row that is not `valid`, with the first observation of the next episode.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import struct

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs, Scalar
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.base import Env, EnvStep, TaskStep
from purejaxppo.envs.native import NativeSpaces, form_of
from purejaxppo.envs.options import Option
from purejaxppo.envs.teams import (
    ALIVE,
    GLOBAL_STATE,
    TERMINATED,
    TRUNCATED,
    Team,
    joined_state_space,
    never_empty,
    pad_like,
    split_mask,
    split_mask_off,
)
from purejaxppo.envs.vectorize import VectorEnv, select
from purejaxppo.envs.wrappers import ReturnPreservingWrapper, flat_space, from_unit, unit_space
from purejaxppo.spaces import MASK, Discrete, Space, example

if TYPE_CHECKING:
    from purejaxppo.envs.host.bridge import HostEnv

GLOBAL_STATE_OPTION = Option(False, "Also observe the global state, for a centralised critic.")


def count_worlds(
    config: EnvConfig, num_agents: int, num_envs: int, *, evaluation: bool = False
) -> int:
    """The number of worlds that have `num_envs` rows; rounded up in an evaluation.

    Raises:
        ValueError: the rows are not a whole number of worlds.
    """
    if evaluation:
        return -(-num_envs // num_agents)
    if num_envs % num_agents:
        parts = max(config.num_envs // num_envs, 1)
        # The suggestion has the number's powers of 2 up to 8, for minibatches.
        step = math.lcm(parts * num_agents, math.gcd(config.num_envs, 8))
        shards = f" x {parts} shards" if parts > 1 else ""
        raise ValueError(
            f"env.num_envs = {config.num_envs} counts agents. For {config.name} it must be a "
            f"multiple of {parts * num_agents} ({num_agents} agents{shards}). Try env.num_envs = "
            f"{max(step, round(config.num_envs / step) * step)}"
        )
    return num_envs // num_agents


def wants_global_state(config: EnvConfig) -> bool:
    """True if rows are to observe the state of their world.

    Raises:
        ValueError: the option is neither true nor false.
    """
    value = config.options.get(GLOBAL_STATE, False)
    if not isinstance(value, bool):
        raise ValueError(f"env.options.{GLOBAL_STATE} = {value!r} must be true or false")
    return value


class JointTask(ReturnPreservingWrapper):
    """A `MultiTask` as a `Task`: one environment with the observations of all its agents.

    Args:
        task: the world, within its time limit.
        global_state: add the state of the world to the observation.
    """

    team: Team

    class State(NamedTuple):
        """State of one world."""

        task: Any
        alive: jax.Array  # [A] bool
        seen: Any  # the agents' last observations, [A, ...]

    def __init__(self, task: Any, *, global_state: bool = False) -> None:
        """Pad the agents' spaces to common ones; nothing is computed yet."""
        super().__init__(task)
        task = self.task
        split = [split_mask(space) for space in task.observation]
        team = Team(
            agents=tuple(task.agents),
            observations=tuple(space for space, _ in split),
            actions=tuple(task.action),
            masked=any(masked for _, masked in split),
            native=tuple(NativeSpaces(form_of(space), None) for space in task.observation),
        )
        self._task_state_space = self.task.state_space
        if global_state:
            space = self._task_state_space or joined_state_space(team.joint_observation["obs"])
            team = replace(team, state=space)
        self.team = team
        self.observation = team.joint_observation
        self.action = flat_space(team.joint_action)

    def unwrap(self, state: State) -> EnvState:
        """The innermost task's state."""
        return super().unwrap(state.task)

    def reset(self, key: Key) -> tuple[State, Obs]:
        """(key) -> (state, observation)."""
        task, obs = self.task.reset(key)
        state = self.State(task, jnp.ones(self.team.size, bool), self._seen(obs))
        nothing = jnp.zeros(self.team.size)
        return state, self._observation(state, nothing, nothing.astype(jnp.uint8))

    def staggered(self, key: Key, state: State) -> State:
        """The state with a random part of the time limit gone."""
        return state._replace(task=self.task.staggered(key, state.task))

    def step(self, key: Key, state: State, action: EnvAction) -> tuple[State, TaskStep]:
        """Take one step of all agents; the world is done when all agents are."""
        task, out = self.task.step(key, state.task, self.team.split(action, jnp))
        terminated = jnp.asarray(out.terminated, bool)
        end = jnp.where(terminated, TERMINATED, jnp.where(out.truncated, TRUNCATED, ALIVE))
        end = jnp.where(state.alive, end, ALIVE).astype(jnp.uint8)
        reward = jnp.where(state.alive, jnp.asarray(out.reward, jnp.float32), 0.0)
        seen = select(state.alive, self._seen(out.obs), state.seen)
        state = self.State(task, state.alive & (end == ALIVE), seen)
        over = ~jnp.any(state.alive)
        return state, TaskStep(
            self._observation(state, reward, end),
            jnp.zeros(()),
            over & ~out.truncated,
            jnp.asarray(out.truncated, bool),
        )

    def _seen(self, obs: tuple[Obs, ...]) -> dict[str, Any]:
        """The agents' observations [A, ...] and masks."""
        split = [
            split_mask_off(own, space)
            for own, space in zip(obs, self.task.observation, strict=True)
        ]
        seen = {"obs": self.team.join([own for own, _ in split], jnp)}
        if self.team.mask is not None:
            seen[MASK] = self.team.join_masks([mask for _, mask in split], jnp)
        return seen

    def _observation(self, state: State, reward: jax.Array, end: jax.Array) -> dict[str, Any]:
        """The world's observation, in the space `Team.joint_observation`."""
        out = {**state.seen, "reward": reward, "end": end}
        if self.team.state is not None:
            out["state"] = (
                state.seen["obs"].astype(jnp.float32).ravel()
                if self._task_state_space is None
                else jnp.asarray(self.task.global_state(super().unwrap(state.task)), jnp.float32)
            )
        return out


class MultiAgentState(struct.PyTreeNode):
    """W worlds of A agents."""

    worlds: Any  # the state of the batch of worlds
    alive: jax.Array  # [W, A] bool: agents that are not done in the current episode

    @property
    def task(self) -> EnvState:
        """The states of the tasks, of worlds in JAX."""
        return self.worlds.task


class MultiAgentEnv(Env):
    """A batch of W worlds as W x A rows.

    Args:
        worlds: environments with the spaces `team.joint_observation` and `team.joint_action`.
        team: the agents of a world.
    """

    def __init__(self, worlds: "VectorEnv | HostEnv", team: Team) -> None:
        """Store the worlds, which `close` closes."""
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
            known_starts=False,  # they are known for worlds, and not for rows
        )

    @property
    def failure(self) -> Exception | None:
        """The error on the host, if there was one."""
        return self.worlds.failure

    @property
    def diverged_value(self) -> str:
        """See `Env.diverged_value`."""
        return self.worlds.diverged_value

    def close(self) -> None:
        """Close simulators on the host."""
        self.worlds.close()

    def continue_at(self, update: int, progress: float) -> None:
        """Call `continue_at` of the worlds."""
        self.worlds.continue_at(update, progress)

    def render_frame(self, obs: Obs) -> Any:
        """A picture of world 0, of worlds on the host; see `HostEnv.render_frame`."""
        return cast("HostEnv", self.worlds).render_frame(obs)

    def to_simulator(self, action: EnvAction, obs: Obs) -> EnvAction:
        """Convert the policy's actions [N, ...] to the agents', by the rows' observations.

        They keep the common shape, with the bounds and the choices of each row's agent.
        """
        first, *_ = self.team.actions
        chosen = self._in_bounds(action, first)
        for i, own in enumerate(self.team.actions):
            if own != first:
                chosen = select(obs["agent"] == i, self._in_bounds(action, own), chosen)
        return chosen

    def _in_bounds(self, action: EnvAction, own: Space) -> EnvAction:
        """Return actions [N, ...] with the bounds, or the choices, of an agent's own space."""
        common = self.team.action
        action = from_unit(action, flat_space(pad_like(own, common)))
        if isinstance(own, Discrete) and own != common:
            return jnp.minimum(action, own.n - 1)
        return action

    def reset(self, key: Key) -> tuple[MultiAgentState, Obs]:
        """A key -> (state, obs [N, ...])."""
        return self._begun(*self.worlds.reset(key))

    def begin(self, seeds: Any) -> tuple[MultiAgentState, Any]:
        """Start an episode of each world on the host from its own seed; see `HostEnv.begin`."""
        return self._begun(*cast("HostEnv", self.worlds).begin(seeds))

    def _begun(self, worlds: Any, obs: Any) -> tuple[MultiAgentState, Any]:
        """The state before the first step, and the rows' observations."""
        return MultiAgentState(worlds, jnp.ones(self.shape, bool)), self._rows(obs)

    def begin_rollout(self, state: MultiAgentState, key: Key, progress: Scalar) -> MultiAgentState:
        """Prepare the worlds; see `Env`."""
        return state.replace(worlds=self.worlds.begin_rollout(state.worlds, key, progress))

    def step(
        self, key: Key, state: MultiAgentState, action: EnvAction
    ) -> tuple[MultiAgentState, EnvStep]:
        """(key, state, action [N, ...]) -> (state, EnvStep); see `Env`."""
        worlds, out = self.worlds.step(key, state.worlds, self._joint(action))
        valid = out.valid[:, None] & state.alive
        diverged = out.diverged[:, None] & state.alive  # one agent's NaN ends its world
        end = out.obs["end"].reshape(self.shape)
        terminated = valid & (end == TERMINATED)
        truncated = valid & (end == TRUNCATED) & ~terminated
        reward = out.obs["reward"].reshape(self.shape)
        step = EnvStep(
            obs=self._rows(out.obs),
            reward=jnp.where(valid, reward, 0.0).ravel(),
            terminated=terminated.ravel(),
            truncated=truncated.ravel(),
            valid=valid.ravel(),
            diverged=diverged.ravel(),
        )
        over = out.terminated | out.truncated | out.diverged
        alive = over[:, None] | (state.alive & ~(terminated | truncated))
        return MultiAgentState(worlds, alive), step

    def raw_step(
        self, key: Key, state: MultiAgentState, action: EnvAction
    ) -> tuple[EnvState, TaskStep]:
        """See `VectorEnv.raw_step`; the rows are worlds, [W, ...]."""
        return cast("VectorEnv", self.worlds).raw_step(key, state.worlds, self._joint(action))

    def _joint(self, action: EnvAction) -> EnvAction:
        """Actions [N, ...] of all rows as joint actions of worlds, [W, ...]."""
        return jax.tree.map(lambda x: x.reshape(self.shape[0], -1), action)

    def _rows(self, obs: Obs) -> dict[str, Any]:
        """Observations of W worlds as rows, one for each agent."""
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
            rows[MASK] = jax.tree.map(lambda x: never_empty(x, jnp), rows[MASK])
        if "state" in obs:
            rows["state"] = jnp.repeat(obs["state"], size, axis=0)
        return rows
