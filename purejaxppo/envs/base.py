"""Interfaces of environments: `Env` (a batch), `Task` (one environment), `MultiTask` (many agents).

The training code only uses `Env`, a batch of N environments with next-step auto-reset. Simulators
in JAX implement `Task`, one environment without auto-reset; `vectorize.VectorEnv` makes it a batch.
Multi-agent tasks implement `MultiTask`; each agent is a row of the batch (`worlds.MultiAgentEnv`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs, Scalar
from purejaxppo.envs.native import NativeSpaces
from purejaxppo.envs.step import EnvStep as EnvStep  # noqa: PLC0414 - re-exported
from purejaxppo.envs.teams import Team
from purejaxppo.spaces import Space


class Starts(NamedTuple):
    """First observations of the episodes between two calls of `Env.begin_rollout`."""

    obs: Obs  # [M, ...] first observations
    place: jax.Array  # [N] int32: index in `obs` of the current episode of each environment


@dataclass(frozen=True)
class EnvSpec:
    """Static metadata of a batch of environments."""

    observation: Space
    action: Space
    num_envs: int
    """Number of rows; each agent is one row."""
    num_agents: int = 1
    """Number of agents A of an environment copy; row = copy * A + agent."""
    agents: tuple[str, ...] = ()
    """Names of the agents of a multi-agent task."""
    max_episode_steps: int = 0
    """Time limit in steps; 0 means no limit."""
    known_starts: bool = False
    """True if `Env.starts` returns the first observations of a rollout's episodes."""
    absent: bool = False
    """True if agents may skip decisions; `EnvStep.absent` marks these steps."""
    restorable: bool = True
    """True if the state can be saved and continued exactly (False for host simulators)."""
    success_above: float | None = None
    """An episode with a greater return is a success, such as a win; None if undefined."""
    native: NativeSpaces | None = None
    """The simulator's observation and action spaces, if they differ from those above."""
    team: Team | None = None
    """The agents of an environment copy, if each agent is a row."""
    metrics: tuple[tuple[str, str], ...] = ()
    """Name and reduction of each of `EnvStep.metrics`; see `metrics.REDUCTIONS`."""


class Env:
    """N environments that step together.

    Next-step auto-reset: the step that ends an episode returns the true last observation. The next
    step ignores the action, returns the first observation of the next episode with reward 0, and is
    not `valid`.

    Same-step reset: agents of Godot games start their next episode in the step that ends the last
    one. Where `at_once` is true, the row is `terminated`, `obs` is the first observation of the
    next episode, and the next row is valid. A terminated row needs no last observation, because it
    does not bootstrap.

    Divergence: a step with a result that is NaN, infinite or beyond ±`spaces.LARGEST` has
    `diverged`. It is not `valid` and ends no episode. The next valid step is in a new episode.

    Absent agents: an agent is `absent` after a step that returns no observation for it. Its `obs`
    is then stale. The next step ignores its action and is not `valid`. Rewards and episode ends may
    come with any step of a running episode, valid or not. At an episode end, `obs` is the true last
    observation and the agent is not absent. Before the first observation of an episode, the agent
    is not absent either; its rows are not valid and have no reward.
    """

    spec: EnvSpec

    @property
    def failure(self) -> Exception | None:
        """The error of a host simulator; None if it did not fail."""
        return None

    @property
    def diverged_value(self) -> str:
        """The last diverged value on the host, such as "reward = nan"; "" if unknown."""
        return ""

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Start an episode in every environment; return (state, obs [N, ...])."""
        raise NotImplementedError

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, EnvStep]:
        """Step all environments with actions [N, ...]; return (state, EnvStep)."""
        raise NotImplementedError

    def begin_rollout(self, state: EnvState, key: Key, progress: Scalar) -> EnvState:
        """Prepare a state for the next training rollout: sample first states, set parameters.

        Args:
            state: state after the last rollout.
            key: random key.
            progress: progress of the run from 0 to 1, scalar; the curriculum follows it.
        """
        del key, progress
        return state

    def continue_at(self, update: int, progress: float) -> None:
        """Prepare for a run that resumes after `update` updates; called before tracing.

        Called only if the environment state cannot be restored. Overrides can start other episodes
        than at the start of the run, with the parameters at `progress`, 0 to 1.
        """

    def starts(self, state: EnvState) -> Starts:
        """Return the first observations of episodes of this rollout, if `EnvSpec.known_starts`."""
        raise NotImplementedError

    def close(self) -> None:
        """Close host simulators. Compiled programs must not step them again."""


class TaskStep(NamedTuple):
    """Result of one step of one environment.

    Built-in adapters may return integers for observations of float or bool spaces and for rewards.
    They are cast after the divergence check and before custom wrappers. Custom tasks and wrappers
    must return the dtypes of their spaces.
    """

    obs: Obs
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    metrics: Mapping[str, jax.Array] | None = None
    """Numbers to log, by the names that the task declares in `metrics`. NaN: no value."""


class Task(Protocol):
    """One environment in JAX, without auto-reset: pure functions of its state.

    Actions of a bounded `Box` arrive within its bounds. `adapted.BaseTask` lists everything else
    that a `Task` or a `MultiTask` may define, such as `success_above`.
    """

    if TYPE_CHECKING:  # properties, so that a class may have attributes of a narrower type

        @property
        def observation(self) -> Space:
            """Observation space."""

        @property
        def action(self) -> Space:
            """Action space."""

        @property
        def max_episode_steps(self) -> int:
            """Time limit in steps; 0 means no limit."""

        @property
        def cheap_reset(self) -> bool:
            """True if a reset costs less than fetching a stored start, as for few numbers."""

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """Start an episode; return (state, obs)."""
        ...

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """Take a step; return (state, TaskStep). If both flags are set, terminated wins."""
        ...


class MultiStep(NamedTuple):
    """Result of one step of an environment with A agents."""

    obs: tuple[Obs, ...]  # A observations, each in its agent's space
    reward: jax.Array  # [A]
    terminated: jax.Array  # [A] bool: agents that have left the episode
    truncated: jax.Array  # [] bool: the time limit, for all agents
    metrics: Mapping[str, jax.Array] | None = None
    """Numbers to log, [A] each, or [] for all agents; see `TaskStep`."""


class MultiTask(Protocol):
    """One environment with A agents in JAX, without auto-reset: pure functions of its state.

    Outputs of an agent that is already done are ignored: its last observation is repeated, its
    reward is 0, and its actions are arbitrary. In a `Dict` observation, the entry `action_mask`
    (uint8 [n], 1 = allowed) marks the allowed actions.

    Optional: `state_space`, a `Box` with one axis, and `global_state(state)`, the input of a
    centralised critic.
    """

    if TYPE_CHECKING:

        @property
        def agents(self) -> tuple[str, ...]:
            """Name of each agent."""

        @property
        def observation(self) -> tuple[Space, ...]:
            """Observation space of each agent."""

        @property
        def action(self) -> tuple[Space, ...]:
            """Action space of each agent; actions of a bounded `Box` arrive within its bounds."""

        @property
        def max_episode_steps(self) -> int:
            """Time limit in steps; 0 means no limit."""

        @property
        def cheap_reset(self) -> bool:
            """See `Task`."""

    def reset(self, key: Key) -> tuple[EnvState, tuple[Obs, ...]]:
        """Start an episode; return (state, A observations)."""
        ...

    def step(
        self, key: Key, state: EnvState, action: tuple[EnvAction, ...]
    ) -> tuple[EnvState, MultiStep]:
        """Take a step with A actions; return (state, MultiStep)."""
        ...
