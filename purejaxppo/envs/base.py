"""The environment protocol: batched, next-step auto-reset, `valid`.

The trainer sees `Env`, a batch of N environments, and nothing of the simulator behind it.
Simulators written in JAX implement the smaller `Task`, one environment without resets;
`vectorize.VectorEnv` lifts it. Tasks of several agents implement `MultiTask`, and each agent is a
row of the batch (`worlds.MultiAgentEnv`).
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs, Scalar
from purejaxppo.envs.native import NativeSpaces
from purejaxppo.envs.step import EnvStep as EnvStep  # noqa: PLC0414 - re-exported
from purejaxppo.envs.teams import Team
from purejaxppo.spaces import Space


class Starts(NamedTuple):
    """First observations of the episodes between two calls of `Env.begin_rollout`."""

    obs: Obs  # [M, ...] first observations
    place: (
        jax.Array
    )  # [N] int32: index of the first observation of each environment's current episode


@dataclass(frozen=True)
class EnvSpec:
    """The static metadata of a batch of environments."""

    observation: Space
    action: Space
    num_envs: int
    """Rows of the batch; each agent is one."""
    num_agents: int = 1
    """Agents per world, A; row = world * A + agent."""
    agents: tuple[str, ...] = ()
    """The agents' names, for a task of several agents."""
    max_episode_steps: int = 0
    """The time limit; 0 means none."""
    known_starts: bool = False
    """True if `Env.starts` returns the first observations of a rollout's episodes."""
    absent: bool = False
    """True if agents may need no action in some steps, given by `EnvStep.absent`."""
    restorable: bool = True
    """True if the state can be saved and continued exactly (False for host simulators)."""
    success_above: float | None = None
    """Episodes with a greater return are a success, such as a game won; None: not defined."""
    native: NativeSpaces | None = None
    """The simulator's own observations and actions, if they differ from the spaces above."""
    team: Team | None = None
    """The agents of a world, if each agent is a row."""


class Env:
    """N environments that step together.

    On the step that ends an episode `obs` is the true last observation. The step after it ignores
    the action, returns the next episode's first observation with reward 0, and is not `valid`.

    Simulators whose agents begin their next episodes by themselves cannot wait for that step: where
    `at_once` is true, on a row that is `terminated`, `obs` is the next episode's first observation
    and the step after it is valid. Nothing is lost, since a terminated row does not bootstrap.

    A step whose result is NaN, infinite or beyond ±`spaces.LARGEST` has `diverged`: it is not
    `valid`, ends nothing, and the next valid step is of a new episode.

    An agent that needs a decision only now and then is `absent` after a step without an observation
    for it: `obs` is stale, and the next step ignores its action and is not `valid`. Rewards
    and ends may come with any step of a running episode, valid or not. With an end `obs` is the
    true last observation, and the agent is not absent; nor is it before an episode's first
    observation, when rows are not valid and have no reward.
    """

    spec: EnvSpec

    @property
    def failure(self) -> Exception | None:
        """The error of a host simulator; None without one."""
        return None

    @property
    def diverged_value(self) -> str:
        """The last value that diverged on the host, as in reward = nan; "" if it is unknown."""
        return ""

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """A key -> (state, obs [N, ...]), every environment at an episode's start."""
        raise NotImplementedError

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, EnvStep]:
        """(key, state, action [N, ...]) -> (state, EnvStep)."""
        raise NotImplementedError

    def begin_rollout(self, state: EnvState, key: Key, progress: Scalar) -> EnvState:
        """Prepare a state for the next rollout of a training: draw starts, set parameters.

        Args:
            state: after the last rollout.
            key: of the draws.
            progress: of the run, [], 0 to 1, which parameters follow.
        """
        del key, progress
        return state

    def continue_at(self, update: int, progress: float) -> None:
        """Prepare, before anything is traced, for a run that continues after so many updates.

        A run calls it where its last state cannot be restored. An override can begin other episodes
        than at the run's start, with the parameters at `progress`, 0 to 1.
        """

    def starts(self, state: EnvState) -> Starts:
        """Return the first observations of this rollout's episodes, if `EnvSpec.known_starts`."""
        raise NotImplementedError

    def close(self) -> None:
        """Close host simulators; compiled programs must not step them again."""


class TaskStep(NamedTuple):
    """Result of one step of one environment.

    Adapters may leave integers, in `reset` and `step` alike, where a space has floats or bools, and
    in rewards: they become those after the check for floats that have diverged, and before a user's
    own wrapper sees them. A user's own tasks and wrappers give the dtypes of their spaces.
    """

    obs: Obs
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


class Task(Protocol):
    """One environment in JAX, without resets: pure functions of its state.

    Actions of a bounded `Box` arrive within the space's own bounds. `adapted.BaseTask` lists
    everything else that a task or a `MultiTask` may define, such as `success_above`.
    """

    observation: Space
    action: Space
    max_episode_steps: int
    cheap_reset: bool
    """True if a reset costs less than fetching a stored start, as for states of few numbers."""

    def reset(self, key: Key) -> tuple[EnvState, Obs]:
        """A key -> (state, obs)."""
        ...

    def step(self, key: Key, state: EnvState, action: EnvAction) -> tuple[EnvState, TaskStep]:
        """(key, state, action) -> (state, TaskStep); may return both flags, terminated wins."""
        ...


class MultiStep(NamedTuple):
    """Result of one step of a world of A agents."""

    obs: tuple[Obs, ...]  # A observations, each in its agent's space
    reward: jax.Array  # [A]
    terminated: jax.Array  # [A] bool: agents that have left the episode
    truncated: jax.Array  # [] bool: a time limit, for all at once


class MultiTask(Protocol):
    """One world of A agents in JAX, without resets: pure functions of its state.

    The outputs of an agent that is done already are ignored: its last observation is repeated, its
    reward is 0, and its actions are arbitrary. In an observation that is a `Dict`, the part
    `action_mask` (uint8 [n], 1 = allowed) gives the allowed actions.

    A world may offer `state_space`, a `Box` with one axis, and `global_state(state)`: the input of
    a centralised critic.
    """

    agents: tuple[str, ...]
    observation: tuple[Space, ...]
    """Observation space of each agent."""
    action: tuple[Space, ...]
    """Action space of each agent; actions of a bounded `Box` arrive within its bounds."""
    max_episode_steps: int
    cheap_reset: bool

    def reset(self, key: Key) -> tuple[EnvState, tuple[Obs, ...]]:
        """A key -> (state, A observations)."""
        ...

    def step(
        self, key: Key, state: EnvState, action: tuple[EnvAction, ...]
    ) -> tuple[EnvState, MultiStep]:
        """(key, state, A actions) -> (state, MultiStep)."""
        ...
