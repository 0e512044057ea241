"""The environment protocol: batched, next-step auto-reset, `valid`.

The trainer sees `Env`, a batch of N environments, and nothing of the simulator behind it.
Simulators written in JAX implement the smaller `Task`, one environment without resets;
`vectorize.VectorEnv` lifts it. Tasks of several agents implement `MultiTask`, and each agent is a
row of the batch (`worlds.WorldsEnv`).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax

from purejaxppo.spaces import Space


class EnvStep(NamedTuple):
    """What N environments answer to N actions."""

    obs: Any  # [N, ...] after the step: the true last observation where an episode ended
    reward: jax.Array  # [N] float32
    terminated: jax.Array  # [N] bool: the task itself ended; never together with truncated
    truncated: jax.Array  # [N] bool: cut by a time limit
    valid: jax.Array  # [N] bool: False where this step only delivered a new episode's first obs
    diverged: jax.Array  # [N] bool: the simulator's answer was unusable, and its row is not valid
    score: Any = None  # [N] what returns are reported in, if not the reward: a game's true score
    over: Any = None  # [N] bool: the reported episode's end, if not the flags': the whole game's

    @property
    def scores(self) -> jax.Array:
        """What a reported episode's return is the sum of, [N]."""
        return self.reward if self.score is None else self.score

    @property
    def ends(self) -> jax.Array:
        """Where a reported episode ends, bool [N]."""
        return self.terminated | self.truncated if self.over is None else self.over


class Starts(NamedTuple):
    """What episodes begin with between two `refresh`."""

    obs: Any  # [M, ...] first observations
    place: jax.Array  # [N] int32: which of them each environment's present episode began with


@dataclass(frozen=True)
class EnvSpec:
    """The static facts of a batch of environments."""

    observation: Space
    action: Space
    num_envs: int
    """Rows of the batch; each agent is one."""
    num_agents: int = 1
    """Agents per world, A; row = world * A + agent."""
    agents: tuple[str, ...] = ()
    """Their names, of a task of several agents."""
    max_episode_steps: int = 0
    """The time limit; 0 means none."""
    known_starts: bool = False
    """Whether there is `starts(state)`, what episodes begin with until the next `refresh`."""
    restorable: bool = True
    """Whether the state can be saved and continued exactly (False for host simulators)."""


class Env(Protocol):
    """N environments that step together.

    On the step that ends an episode `obs` is the true last observation. The step after it ignores
    the action, returns the next episode's first observation with reward 0, and is not `valid`.

    A step whose answer is NaN, infinite or beyond ±`spaces.LARGEST` has `diverged`: it is not
    `valid`, ends nothing, and the next valid step is of a new episode.
    """

    spec: EnvSpec

    @property
    def failure(self) -> Exception | None:
        """What went wrong on the host, if anything did."""
        ...

    def reset(self, key) -> tuple[Any, Any]:
        """A key -> (state, obs [N, ...]), every environment at an episode's start."""
        ...

    def step(self, state, action) -> tuple[Any, EnvStep]:
        """(state, action [N, ...]) -> (state, EnvStep)."""
        ...

    def refresh(self, state) -> Any:
        """Called once before each rollout: the place to draw fresh starts."""
        ...

    def continue_at(self, update: int) -> None:
        """Prepares, before anything is traced, for a run that goes on after so many updates.

        Where the state cannot be saved, other episodes begin than at the run's start.
        """
        ...

    def close(self) -> None:
        """Ends what runs on the host; compiled programs must not step it again."""
        ...


class TaskStep(NamedTuple):
    """What one environment answers to one action."""

    obs: Any
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


class Task(Protocol):
    """One environment in JAX, without resets: pure functions of its state.

    Actions of a bounded `Box` arrive within the space's own bounds.
    """

    observation: Space
    action: Space
    max_episode_steps: int
    cheap_reset: bool
    """Whether a reset costs about as little as a step."""

    def reset(self, key) -> tuple[Any, Any]:
        """A key -> (state, obs)."""
        ...

    def step(self, key, state, action) -> tuple[Any, TaskStep]:
        """(key, state, action) -> (state, TaskStep); may return both flags, terminated wins."""
        ...


class MultiStep(NamedTuple):
    """What one world of A agents answers to one action of each."""

    obs: tuple  # A observations, each in its agent's space
    reward: jax.Array  # [A]
    terminated: jax.Array  # [A] bool: who has no part in the episode any more
    truncated: jax.Array  # [] bool: a time limit, for all at once


class MultiTask(Protocol):
    """One world of A agents in JAX, without resets: pure functions of its state.

    What it says of an agent that is done already is not looked at: such an agent keeps its last
    observation, is paid nothing, and its actions are arbitrary. An agent whose observation is a
    `Dict` with a part `action_mask` (uint8 [n], 1 = allowed) says what it may do.

    A world may offer `state_space`, a `Box` with one axis, and `global_state(state)`: what a
    centralised critic sees.
    """

    agents: tuple[str, ...]
    observation: tuple[Space, ...]
    """Of each agent."""
    action: tuple[Space, ...]
    """Of each agent; actions of a bounded `Box` arrive within its bounds."""
    max_episode_steps: int
    cheap_reset: bool

    def reset(self, key) -> tuple[Any, tuple]:
        """A key -> (state, A observations)."""
        ...

    def step(self, key, state, action: tuple) -> tuple[Any, MultiStep]:
        """(key, state, A actions) -> (state, MultiStep)."""
        ...
