"""`particles/`: the multi-agent particle environments `spread` and `tag`.

Agents are discs in the plane, with damped motion and contact forces. The physics are those of Lowe
et al. 2017, https://arxiv.org/abs/1706.02275, without communication.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo.aliases import EnvAction, EnvState, Key, Obs
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import MultiStep
from purejaxppo.envs.families import Family
from purejaxppo.envs.options import Option
from purejaxppo.envs.teams import GLOBAL_STATE
from purejaxppo.envs.worlds import GLOBAL_STATE_OPTION
from purejaxppo.spaces import Box, Discrete, Space

DT, DAMPING = 0.1, 0.25
CONTACT_FORCE, CONTACT_MARGIN = 100.0, 1e-3
DIRECTIONS = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float32)
"""Push directions of the five discrete actions."""
FRAME_RATE = 1 / DT
SPREAD, TAG = ("spread",), ("tag",)
OPTIONS = {
    "num_agents": Option(3, "spread: number of agents, and of landmarks.", low=1, tasks=SPREAD),
    "collision_penalty": Option(
        1.0, "spread: penalty for each pair of agents that touch.", low=0, high=1e9, tasks=SPREAD
    ),
    "num_hunters": Option(3, "tag: number of hunters.", low=1, tasks=TAG),
    "num_prey": Option(2, "tag: number of prey.", low=1, tasks=TAG),
    "num_obstacles": Option(2, "tag: number of fixed obstacles.", low=0, tasks=TAG),
    "continuous": Option(
        False, "Actions are forces, two numbers in [-1, 1], instead of five discrete moves."
    ),
    GLOBAL_STATE: GLOBAL_STATE_OPTION,
}


class ParticleState(NamedTuple):
    """State of A agents and L fixed discs."""

    position: jax.Array  # [A, 2]
    velocity: jax.Array  # [A, 2]
    fixed: jax.Array  # [L, 2] positions of landmarks or obstacles
    alive: jax.Array  # [A] bool


@dataclass(frozen=True)
class Bodies:
    """Physical constants of A agents and of the fixed discs."""

    size: tuple[float, ...]  # radii
    accel: tuple[float, ...]  # force of a full push
    max_speed: tuple[float, ...]  # infinity: no limit
    fixed_size: float = 0.0
    """Radius of the fixed discs; 0: agents pass through them."""

    def move(self, state: ParticleState, push: jax.Array) -> ParticleState:
        """Integrate over DT with pushes [A, 2], each in [-1, 1].

        x' = x + v dt and v' = (1 - damping) v + F dt, limited to `max_speed`.
        """
        size = jnp.asarray(self.size)
        force = push * jnp.asarray(self.accel)[:, None]
        pairs = state.alive[:, None] & state.alive & ~jnp.eye(len(size), dtype=bool)
        force += contact(state.position, state.position, size[:, None] + size, pairs)
        if self.fixed_size:
            all_pairs = jnp.ones((len(size), len(state.fixed)), bool)
            reach = size[:, None] + self.fixed_size
            force += contact(state.position, state.fixed, reach, all_pairs)
        velocity = (1 - DAMPING) * state.velocity + DT * force
        speed = jnp.sqrt(jnp.sum(velocity**2, axis=-1, keepdims=True) + 1e-12)
        velocity = velocity * jnp.minimum(1.0, jnp.asarray(self.max_speed)[:, None] / speed)
        return state._replace(position=state.position + DT * state.velocity, velocity=velocity)

    def touching(self, position: jax.Array) -> jax.Array:
        """Return True for pairs of agents that overlap, bool [A, A]; the diagonal is True."""
        size = jnp.asarray(self.size)
        return distances(position, position) < size[:, None] + size


def distances(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return Euclidean distances, [A, 2] and [B, 2] -> [A, B]."""
    return jnp.sqrt(jnp.sum((a[:, None] - b) ** 2, axis=-1) + 1e-12)


def contact(a: jax.Array, b: jax.Array, reach: jax.Array, active: jax.Array) -> jax.Array:
    """Compute soft contact forces [A, 2] on discs at `a` from discs at `b`.

    Args:
        a: positions, [A, 2].
        b: positions, [B, 2].
        reach: sums of radii, [A, B].
        active: True for pairs that push each other, bool [A, B].
    """
    away = a[:, None] - b
    distance = distances(a, b)
    depth = CONTACT_MARGIN * jnp.logaddexp(0.0, (reach - distance) / CONTACT_MARGIN)
    force = CONTACT_FORCE * away * (depth / distance)[..., None]
    return jnp.sum(jnp.where(active[..., None], force, 0.0), axis=1)


def pushes(action: tuple[EnvAction, ...], *, continuous: bool) -> jax.Array:
    """Convert A actions to pushes [A, 2]."""
    stacked = jnp.stack(action)
    return stacked if continuous else jnp.asarray(DIRECTIONS)[stacked]


def start(key: Key, num_agents: int, num_fixed: int, spread: float) -> ParticleState:
    """Place agents at rest in [-1, 1]^2, and fixed discs in [-spread, spread]^2."""
    agent_key, fixed_key = jax.random.split(key)
    return ParticleState(
        position=jax.random.uniform(agent_key, (num_agents, 2), minval=-1.0, maxval=1.0),
        velocity=jnp.zeros((num_agents, 2)),
        fixed=jax.random.uniform(fixed_key, (num_fixed, 2), minval=-spread, maxval=spread),
        alive=jnp.ones(num_agents, bool),
    )


class Particles(BaseTask):
    """Base class of both tasks."""

    cheap_reset = True
    frame_rate = FRAME_RATE
    agents: tuple[str, ...]
    observation: tuple[Space, ...]
    bodies: Bodies
    continuous: bool
    num_fixed: int

    @property
    def action(self) -> tuple[Space, ...]:
        """Five moves per agent, or a force of two numbers in [-1, 1]."""
        space: Space = Box((2,), -1.0, 1.0) if self.continuous else Discrete(len(DIRECTIONS))
        return (space,) * len(self.agents)

    @cached_property
    def state_space(self) -> Box:
        """Space of `global_state`."""
        return Box((5 * len(self.agents) + 2 * self.num_fixed,))

    def global_state(self, state: ParticleState) -> jax.Array:
        """Return positions, velocities, fixed discs and `alive` flags, float [5 A + 2 L].

        A is the number of agents, L the number of landmarks or obstacles.
        """
        parts = (*state[:3], state.alive.astype(jnp.float32))
        return jnp.concatenate([part.ravel() for part in parts])

    def draw(self, states: Sequence[EnvState], *, height: int, width: int) -> Iterator[np.ndarray]:
        """Yield frames: agents in the colour of their role, and landmarks or obstacles."""
        from purejaxppo.video import discs

        return discs.frames("particles", self, states, height=height, width=width)


@dataclass(frozen=True)
class Spread(Particles):
    """A agents cover A landmarks and avoid touching each other. All get the same reward

        r = - sum over landmarks of the distance to the nearest agent
            - collision_penalty * (pairs of agents that touch)

    An agent observes its velocity and position, and the relative positions of landmarks and agents.
    """  # noqa: D415 - the formula ends the sentence

    num_agents: int = 3
    collision_penalty: float = 1.0
    continuous: bool = False
    max_episode_steps: int = 25

    @property
    def agents(self) -> tuple[str, ...]:  # type: ignore[override]
        """The agents' names."""
        return tuple(f"agent_{i}" for i in range(self.num_agents))

    @property
    def num_fixed(self) -> int:  # type: ignore[override]
        """The number of landmarks."""
        return self.num_agents

    @property
    def bodies(self) -> Bodies:  # type: ignore[override]
        """Physical constants: all agents are discs of radius 0.15."""
        count = self.num_agents
        return Bodies((0.15,) * count, (5.0,) * count, (np.inf,) * count)

    @property
    def observation(self) -> tuple[Space, ...]:  # type: ignore[override]
        """The same space for all agents."""
        return (Box((2 + 4 * self.num_agents,)),) * self.num_agents

    def reset(self, key: Key) -> tuple[EnvState, tuple[Obs, ...]]:
        """Place agents and landmarks uniformly in [-1, 1]^2."""
        state = start(key, self.num_agents, self.num_agents, 1.0)
        return state, self._observe(state)

    def step(
        self, key: Key, state: ParticleState, action: tuple[EnvAction, ...]
    ) -> tuple[ParticleState, MultiStep]:
        """Take a step; agents are done only at the time limit."""
        del key
        state = self.bodies.move(state, pushes(action, continuous=self.continuous))
        nearest = jnp.min(distances(state.position, state.fixed), axis=0)
        touching = jnp.sum(self.bodies.touching(state.position)) - self.num_agents
        reward = -jnp.sum(nearest) - self.collision_penalty * touching / 2
        alive = jnp.ones(self.num_agents)
        return state, MultiStep(
            self._observe(state), reward * alive, alive < 0, jnp.zeros((), bool)
        )

    def _observe(self, state: ParticleState) -> tuple[jax.Array, ...]:
        def observe(i: int) -> jax.Array:
            position = state.position[i]
            others = np.delete(np.arange(self.num_agents), i)
            parts = (
                state.velocity[i],
                position,
                state.fixed - position,
                state.position[others] - position,
            )
            return jnp.concatenate([part.ravel() for part in parts])

        return tuple(observe(i) for i in range(self.num_agents))


@dataclass(frozen=True)
class Tag(Particles):
    """Hunters catch faster prey among obstacles. A prey touched by a hunter terminates.

    Each catch gives 10 to every hunter and -10 to the prey. Prey also pay a cost outside
    [-0.9, 0.9]^2, as in Lowe et al. 2017. Hunters terminate when the last prey is caught. Hunters
    observe themselves, obstacles, other hunters, and for each prey its relative position, velocity
    and a flag that it is free (all 0 after its catch). Prey observe themselves, obstacles and
    hunters.
    """

    num_hunters: int = 3
    num_prey: int = 2
    num_obstacles: int = 2
    continuous: bool = False
    max_episode_steps: int = 50

    @property
    def agents(self) -> tuple[str, ...]:  # type: ignore[override]
        """The agents' names, hunters first."""
        hunters = (f"hunter_{i}" for i in range(self.num_hunters))
        return (*hunters, *(f"prey_{i}" for i in range(self.num_prey)))

    @property
    def num_fixed(self) -> int:  # type: ignore[override]
        """The number of obstacles."""
        return self.num_obstacles

    @property
    def bodies(self) -> Bodies:  # type: ignore[override]
        """Discs of hunters and of prey, which are smaller and faster."""

        def per_agent(hunter: float, prey: float) -> tuple[float, ...]:
            return (hunter,) * self.num_hunters + (prey,) * self.num_prey

        return Bodies(
            per_agent(0.075, 0.05), per_agent(3.0, 4.0), per_agent(1.0, 1.3), fixed_size=0.2
        )

    @property
    def observation(self) -> tuple[Space, ...]:  # type: ignore[override]
        """One space for hunters and a smaller one for prey."""
        common = 4 + 2 * self.num_obstacles
        hunter = Box((common + 2 * (self.num_hunters - 1) + 5 * self.num_prey,))
        prey = Box((common + 2 * self.num_hunters,))
        return (hunter,) * self.num_hunters + (prey,) * self.num_prey

    def reset(self, key: Key) -> tuple[EnvState, tuple[Obs, ...]]:
        """Place agents uniformly in [-1, 1]^2, and obstacles in [-0.9, 0.9]^2."""
        state = start(key, len(self.agents), self.num_obstacles, 0.9)
        return state, self._observe(state)

    def step(
        self, key: Key, state: ParticleState, action: tuple[EnvAction, ...]
    ) -> tuple[ParticleState, MultiStep]:
        """Take a step; caught prey are terminated."""
        del key
        before = state.alive
        state = self.bodies.move(state, pushes(action, continuous=self.continuous))
        hunters = jnp.arange(len(self.agents)) < self.num_hunters
        touched = jnp.any(self.bodies.touching(state.position) & hunters, axis=1)
        caught = before & touched & ~hunters
        state = state._replace(alive=before & ~caught)
        outside = jnp.sum(edge_cost(jnp.abs(state.position)), axis=-1)
        reward = jnp.where(hunters, 10.0 * jnp.sum(caught), -10.0 * caught - outside)
        over = ~jnp.any(state.alive & ~hunters)
        terminated = ~state.alive | over
        return state, MultiStep(self._observe(state), reward, terminated, jnp.zeros((), bool))

    def _observe(self, state: ParticleState) -> tuple[jax.Array, ...]:
        count = self.num_hunters
        free = state.alive[count:, None].astype(jnp.float32)

        def observe(i: int) -> jax.Array:
            position = state.position[i]
            hunters = state.position[np.delete(np.arange(count), i) if i < count else slice(count)]
            parts = [state.velocity[i], position, state.fixed - position, hunters - position]
            if i < count:
                prey = (
                    state.position[count:] - position,
                    state.velocity[count:],
                    jnp.ones_like(free),
                )
                parts.append(free * jnp.concatenate(prey, axis=1))
            return jnp.concatenate([part.ravel() for part in parts])

        return tuple(observe(i) for i in range(len(self.agents)))


def edge_cost(x: jax.Array) -> jax.Array:
    """Return the cost of a distance from the centre along an axis: 0 up to 0.9, then increasing."""
    beyond = jnp.minimum(jnp.exp(2 * x - 2), 10.0)
    return jnp.where(x < 0.9, 0.0, jnp.where(x < 1, 10 * (x - 0.9), beyond))


TASKS: dict[str, Any] = {"spread": Spread, "tag": Tag}


def make(name: str, config: EnvConfig) -> Spread | Tag:
    """Create the task `name`; `config.options` are arguments of its class."""
    return TASKS[name](**config.options)


FAMILY = Family(
    about="multi-agent particle environments",
    tasks=lambda: list(TASKS),
    make_task=make,
    options=OPTIONS,
)
