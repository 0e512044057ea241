"""Common spaces for the agents of one world: spaces padded to the largest, masks, joint spaces.

A policy sees a batch of rows of one space, so agents' different spaces are padded to a common one
here. A world as a whole observes the arrays of all its agents, [A, ...], and acts with all their
actions joined; `worlds.MultiAgentEnv` splits it into rows. Nothing here imports JAX, since worker
processes import it: `xp` is `numpy` or `jax.numpy`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from purejaxppo.envs.native import NativeSpaces, decoder
from purejaxppo.spaces import MASK, Box, Dict, Discrete, MultiDiscrete, Space

GLOBAL_STATE = "global_state"
"""The option that adds the state of the world to rows."""
ALIVE, TERMINATED, TRUNCATED = 0, 1, 2
"""An agent's status after a step, in a world's part `end`."""


@dataclass(frozen=True)
class Team:
    """The agents of a world, with their own spaces and the common ones.

    Raises:
        ValueError: the spaces are of kinds that cannot be padded to one.
    """

    agents: tuple[str, ...]
    observations: tuple[Space, ...]
    """Each agent's own observation space."""
    actions: tuple[Space, ...]
    """Each agent's own action space."""
    state: Box | None = None
    """Space of the world's state, for a centralised critic; None: no state is observed."""
    masked: bool = False
    """True if the world gives a mask of allowed actions at every step."""
    native: tuple[NativeSpaces, ...] = ()
    """Each agent's own observations and actions in the simulator, masks included."""

    def __post_init__(self) -> None:
        """Check that there are common spaces for all agents."""
        _ = self.observation, self.action
        if self.masked and mask_space(self.action) is None:
            raise ValueError("action_mask: the action space has no discrete part. Remove the mask.")

    @property
    def size(self) -> int:
        """The number of agents, A."""
        return len(self.agents)

    @property
    def observation(self) -> Space:
        """One space that every agent's observations fit in."""
        return common(self.observations, self.agents, "observation")

    @property
    def action(self) -> Space:
        """One space that every agent's actions are taken from."""
        return common(self.actions, self.agents, "action")

    @property
    def mask(self) -> Space | None:
        """Space of a row's mask; None if all actions of every row are always allowed."""
        alike = all(space == self.actions[0] for space in self.actions)
        return mask_space(self.action) if self.masked or not alike else None

    @property
    def row(self) -> Dict:
        """Observation space of a row of the batch."""
        parts: dict[str, Space] = {"agent": Discrete(self.size), "obs": self.observation}
        if self.mask is not None:
            parts[MASK] = self.mask
        if self.state is not None:
            parts["state"] = self.state
        return Dict.of(parts)

    @property
    def joint_observation(self) -> Dict:
        """Observation space of the world as a whole: rows, and each agent's reward and end."""
        parts: dict[str, Space] = {
            "obs": repeated((self.observation,) * self.size),
            "reward": Box((self.size,)),
            "end": Box((self.size,), 0.0, 2.0, "uint8"),
        }
        if self.mask is not None:
            parts[MASK] = repeated((self.mask,) * self.size)
        if self.state is not None:
            parts["state"] = self.state
        return Dict.of(parts)

    @property
    def joint_action(self) -> Space:
        """Action space of the world as a whole: [A, ...], with each agent's own bounds."""
        return repeated(tuple(pad_like(own, self.action) for own in self.actions))

    def join(self, values: Sequence[Any], xp: Any) -> Any:
        """A observations, each in its agent's space -> one array (or pytree) [A, ...]."""
        return _join(values, self.observations, self.observation, xp)

    def join_masks(self, masks: Sequence[Any], xp: Any) -> Any:
        """A masks, each as long as its agent has actions (None: all) -> uint8 [A, n]."""
        own = [mask_space(space) for space in self.actions]
        full = [
            _full(space) if mask is None else mask for mask, space in zip(masks, own, strict=True)
        ]
        return _join(full, own, mask_space(self.action), xp)

    def split(self, action: Any, xp: Any) -> tuple[Any, ...]:
        """A joined action -> A actions, each in its agent's space."""
        return tuple(
            _agent_action(action, i, self.size, own, xp) for i, own in enumerate(self.actions)
        )

    def to_agent_action(self, action: Any, i: int) -> Any:
        """Convert a row's action to agent i's own space, in the simulator's form."""
        own = _agent_action(action, 0, 1, self.actions[i], np)
        form = self.native[i].action
        return own if form is None else decoder(form)(own)


def joined_state_space(observation: Any) -> Box:
    """Space of all agents' padded observations, concatenated: for worlds without their own state.

    Args:
        observation: `Team.joint_observation["obs"]`.

    Raises:
        ValueError: the observations are not vectors.
    """
    if not isinstance(observation, Box) or len(observation.shape) != 2:
        raise ValueError(
            f"env.options.{GLOBAL_STATE} = true: the task has no global state, and the agents' "
            f"observations are not vectors. Use false."
        )
    return Box((observation.shape[0] * observation.shape[1],))


def common(spaces: Sequence[Space], agents: Sequence[str], kind: str) -> Space:
    """The smallest space that all fit in: vectors and Discrete ones are padded to the largest.

    Raises:
        ValueError: the spaces differ in more than that.
    """
    first = spaces[0]
    if all(space == first for space in spaces):
        return first
    if all(isinstance(space, Discrete) for space in spaces):
        return Discrete(max(space.n for space in spaces if isinstance(space, Discrete)))
    boxes = [space for space in spaces if isinstance(space, Box) and len(space.shape) == 1]
    alike = len({(box.dtype, box.bounded) for box in boxes}) == 1
    if len(boxes) == len(spaces) and alike:
        size = max(box.shape[0] for box in boxes)
        low, high = (-1.0, 1.0) if boxes[0].bounded else (-np.inf, np.inf)
        if all(box.is_bytes for box in boxes):  # which networks divide by 255
            low, high = 0.0, 255.0
        return Box((size,), low, high, boxes[0].dtype)
    other = next(i for i, space in enumerate(spaces) if not _padable(first, space))
    raise ValueError(
        f"agents {agents[0]} and {agents[other]} have {kind} spaces without a common one: "
        f"{_words(first)} and {_words(spaces[other])}. Use vectors of one dtype, or Discrete."
    )


def _padable(a: Space, b: Space) -> bool:
    if a == b or (isinstance(a, Discrete) and isinstance(b, Discrete)):
        return True
    vectors = isinstance(a, Box) and isinstance(b, Box) and len(a.shape) == len(b.shape) == 1
    return vectors and (a.dtype, a.bounded) == (b.dtype, b.bounded)  # type: ignore[union-attr]


def _words(space: Space) -> str:
    if isinstance(space, Box):
        bounds = "" if space.bounded else " without bounds"
        return f"a Box of shape {space.shape} in {space.dtype}{bounds}"
    return str(space)


def pad_like(own: Space, space: Space) -> Space:
    """An agent's own space, made as large as the common one, with its own bounds."""
    if not (isinstance(own, Box) and isinstance(space, Box)) or own.shape == space.shape:
        return space if isinstance(own, Discrete) else own
    more = space.shape[0] - own.shape[0]
    edge = 1.0 if own.bounded else np.inf
    low, high = (
        np.concatenate([np.broadcast_to(bound, own.shape), np.full(more, pad)])
        for bound, pad in ((own.low, -edge), (own.high, edge))
    )
    return Box.between(low, high, space.dtype)


def repeated(spaces: tuple[Space, ...]) -> Space:
    """A spaces of one kind and shape, one per agent, as one space of arrays [A, ...]."""
    first = spaces[0]
    if isinstance(first, Dict):
        return Dict(
            tuple(
                (name, repeated(tuple(space[name] for space in spaces)))  # type: ignore[index]
                for name, _ in first.spaces
            )
        )
    if isinstance(first, Discrete):
        return MultiDiscrete((first.n,) * len(spaces))
    if isinstance(first, MultiDiscrete):
        return MultiDiscrete(first.nvec * len(spaces))
    boxes = [space for space in spaces if isinstance(space, Box)]
    low = np.stack([np.broadcast_to(box.low, first.shape) for box in boxes])
    high = np.stack([np.broadcast_to(box.high, first.shape) for box in boxes])
    return Box.between(low, high, first.dtype)


def mask_space(action: Space) -> Space | None:
    """Space of the mask of an action space: uint8 [n] or [sum nvec], 1 = allowed.

    Of a `Dict` of actions a `Dict` of the masks of its discrete parts; None if there are none.
    """
    if isinstance(action, Dict):
        parts = [(name, mask_space(part)) for name, part in action.spaces]
        there = tuple((name, mask) for name, mask in parts if mask is not None)
        return Dict(there) if there else None
    if isinstance(action, Box):
        return None
    return Box((action.n if isinstance(action, Discrete) else sum(action.nvec),), 0.0, 1.0, "uint8")


def split_mask(space: Space) -> tuple[Space, bool]:
    """(an observation space without its `action_mask`, True if it has one).

    If one part is left, it is returned without its Dict: PettingZoo's convention is
    {"observation": ..., "action_mask": ...}.
    """
    if not isinstance(space, Dict) or MASK not in dict(space.spaces):
        return space, False
    rest = tuple(pair for pair in space.spaces if pair[0] != MASK)
    return (rest[0][1] if len(rest) == 1 else Dict(rest)), True


def split_mask_off(obs: Any, space: Space) -> tuple[Any, Any]:
    """(observation without its `action_mask`, the mask or None), for what `split_mask` split."""
    if not split_mask(space)[1]:
        return obs, None
    rest = {name: part for name, part in obs.items() if name != MASK}
    return (next(iter(rest.values())) if len(rest) == 1 else rest), obs[MASK]


def never_empty(mask: Any, xp: Any) -> Any:
    """Allow everything if a mask [..., n] allows nothing, as of an ended or diverged world."""
    return xp.where(xp.any(mask > 0, axis=-1, keepdims=True), mask, xp.ones_like(mask))


def _join(values: Sequence[Any], own: Sequence[Any], space: Any, xp: Any) -> Any:
    if isinstance(space, Dict):
        return {
            name: _join([v[name] for v in values], [s[name] for s in own], part, xp)
            for name, part in space.spaces
        }
    dtype = space.dtype if isinstance(space, Box) else "int32"
    arrays = [xp.asarray(value).astype(dtype) for value in values]
    if isinstance(space, Box) and len(space.shape) == 1:
        arrays = [xp.pad(array, (0, space.shape[0] - array.shape[0])) for array in arrays]
    return xp.stack(arrays)


def _full(space: Any) -> Any:
    """A mask that allows everything."""
    if isinstance(space, Dict):
        return {name: _full(part) for name, part in space.spaces}
    return np.ones(space.shape, np.uint8)


def _agent_action(action: Any, i: int, size: int, own: Space, xp: Any) -> Any:
    """Agent i's part of a joined action."""
    if isinstance(own, Dict):
        return {name: _agent_action(action[name], i, size, part, xp) for name, part in own.spaces}
    mine = action.reshape(size, -1)[i]
    if isinstance(own, Discrete):
        return xp.minimum(mine[0], own.n - 1)  # beyond its own actions: the last
    if isinstance(own, MultiDiscrete):
        return mine
    return mine[: math.prod(own.shape)].reshape(own.shape)
