"""Common and joint spaces of the agents of a multi-agent environment, and their action masks.

A policy needs rows of one space, so different agent spaces are padded to a common one. The joint
spaces of an environment hold the arrays of all agents, [A, ...]; `worlds.MultiAgentEnv` splits them
into rows. Worker processes import this module, so it avoids JAX: `xp` is `numpy` or `jax.numpy`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from purejaxppo.envs.native import NativeSpaces, decoder
from purejaxppo.spaces import MASK, Box, Dict, Discrete, MultiDiscrete, Space, leaves, tree_of

GLOBAL_STATE = "global_state"
"""Name of the option that adds the global state to rows."""
ALIVE, TERMINATED, TRUNCATED = 0, 1, 2
"""Status of an agent after a step, in the entry `end` of a joint observation."""


@dataclass(frozen=True)
class Team:
    """The agents of a multi-agent environment, their spaces, and the common spaces.

    Raises:
        ValueError: the spaces cannot be padded to a common one.
    """

    agents: tuple[str, ...]
    observations: tuple[Space, ...]
    """Observation space of each agent."""
    actions: tuple[Space, ...]
    """Action space of each agent."""
    state: Box | None = None
    """Space of the global state, for a centralised critic; None if it is not observed."""
    masked: bool = False
    """True if the environment returns a mask of allowed actions at every step."""
    native: tuple[NativeSpaces, ...] = ()
    """The simulator's spaces of each agent, including masks."""

    @classmethod
    def of(
        cls,
        agents: Sequence[str],
        observations: Sequence[Space],
        actions: Sequence[Space],
        *,
        masked: bool = False,
        native: Sequence[NativeSpaces] = (),
    ) -> "Team":
        """Return the team of agents whose observations may have an `action_mask`.

        Args:
            agents: names of the agents.
            observations: the agents' observation spaces, including masks.
            actions: their action spaces.
            masked: True if the environment also returns masks outside of its observations.
            native: the simulator's spaces of each agent.

        Raises:
            ValueError: the spaces cannot be padded to a common one, or a mask has a wrong size.
        """
        for agent, space, action in zip(agents, observations, actions, strict=True):
            _check_mask(agent, space, action)
        split = [split_mask_space(space) for space in observations]
        return cls(
            tuple(agents),
            tuple(space for space, _ in split),
            tuple(actions),
            masked=masked or any(has_mask for _, has_mask in split),
            native=tuple(native),
        )

    def __post_init__(self) -> None:
        """Check that common spaces exist."""
        _ = self.observation, self.action
        if self.masked and mask_space(self.action) is None:
            raise ValueError(
                "action_mask: the action space has no discrete part. Remove the mask from the "
                "observations of the environment or its wrappers."
            )

    @property
    def size(self) -> int:
        """The number of agents, A."""
        return len(self.agents)

    @property
    def observation(self) -> Space:
        """Common observation space of the agents."""
        return common(self.observations, self.agents, "observation")

    @property
    def action(self) -> Space:
        """Common action space of the agents."""
        return common(self.actions, self.agents, "action")

    @property
    def mask(self) -> Space | None:
        """Space of the action mask of a row; None if all actions are always allowed."""
        same_kind = all(space == self.actions[0] for space in self.actions)
        return mask_space(self.action) if self.masked or not same_kind else None

    @property
    def row(self) -> Dict:
        """Observation space of a row."""
        parts: dict[str, Space] = {"agent": Discrete(self.size), "obs": self.observation}
        if self.mask is not None:
            parts[MASK] = self.mask
        if self.state is not None:
            parts["state"] = self.state
        return Dict.of(parts)

    @property
    def joint_observation(self) -> Dict:
        """Joint observation space: the rows, and the reward and end of each agent."""
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
        """Joint action space [A, ...], with the bounds of each agent."""
        return repeated(tuple(pad_like(space, self.action) for space in self.actions))

    def join(self, values: Sequence[Any], xp: Any) -> Any:
        """Pad and stack A observations into arrays [A, ...]."""
        return _join(values, self.observations, self.observation, xp)

    def join_masks(self, masks: Sequence[Any], xp: Any) -> Any:
        """Pad and stack A masks into uint8 [A, n]; None allows all actions of an agent."""
        spaces = [mask_space(space) for space in self.actions]
        full = [
            _all_allowed(space) if mask is None else _by_part(mask, space)
            for mask, space in zip(masks, spaces, strict=True)
        ]
        return _join(full, spaces, mask_space(self.action), xp)

    def split(self, action: Any, xp: Any) -> tuple[Any, ...]:
        """Split a joint action into A actions, each in the space of its agent."""
        return tuple(
            _agent_action(action, i, self.size, space, xp) for i, space in enumerate(self.actions)
        )

    def to_agent_action(self, action: Any, i: int) -> Any:
        """Convert the action of a row to the simulator's space of agent i."""
        agent_action = _agent_action(action, 0, 1, self.actions[i], np)
        form = self.native[i].action
        return agent_action if form is None else decoder(form)(agent_action)


def joined_state_space(observation: Any) -> Box:
    """Return the space of all padded observations, concatenated, as a global state.

    Args:
        observation: observation space of all agents, `Team.joint_observation["obs"]`.

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
    """Return the smallest common space: vectors and Discrete are padded to the largest.

    Args:
        spaces: space of each agent.
        agents: names of the agents, for errors.
        kind: "observation" or "action", for errors.

    Raises:
        ValueError: the spaces differ in more than their size.
    """
    first = spaces[0]
    if all(space == first for space in spaces):
        return first
    if all(isinstance(space, Discrete) for space in spaces):
        return Discrete(max(space.n for space in spaces if isinstance(space, Discrete)))
    boxes = [space for space in spaces if isinstance(space, Box) and len(space.shape) == 1]
    same_kind = len({(box.dtype, box.bounded) for box in boxes}) == 1
    if len(boxes) == len(spaces) and same_kind:
        size = max(box.shape[0] for box in boxes)
        low, high = (-1.0, 1.0) if boxes[0].bounded else (-np.inf, np.inf)
        if kind == "observation" and np.issubdtype(boxes[0].dtype, np.integer):
            low = min(0.0, *(float(np.min(box.low)) for box in boxes))  # the padding is 0
            high = max(0.0, *(float(np.max(box.high)) for box in boxes))
        return Box((size,), low, high, boxes[0].dtype)
    other = next(i for i, space in enumerate(spaces) if not _padable(first, space))
    raise ValueError(
        f"agents {agents[0]} and {agents[other]} have {kind} spaces without a common one: "
        f"{_describe(first)} and {_describe(spaces[other])}. Use vectors of one dtype, or Discrete."
    )


def _padable(a: Space, b: Space) -> bool:
    if a == b or (isinstance(a, Discrete) and isinstance(b, Discrete)):
        return True
    vectors = isinstance(a, Box) and isinstance(b, Box) and len(a.shape) == len(b.shape) == 1
    return vectors and (a.dtype, a.bounded) == (b.dtype, b.bounded)  # type: ignore[union-attr]


def _describe(space: Space) -> str:
    if isinstance(space, Box):
        bounds = "" if space.bounded else " without bounds"
        return f"a Box of shape {space.shape} with dtype {space.dtype}{bounds}"
    return str(space)


def pad_like(agent_space: Space, space: Space) -> Space:
    """Pad the space of an agent to the size of the common one; keep its bounds."""
    if (
        not (isinstance(agent_space, Box) and isinstance(space, Box))
        or agent_space.shape == space.shape
    ):
        return space if isinstance(agent_space, Discrete) else agent_space
    missing = space.shape[0] - agent_space.shape[0]
    edge = 1.0 if agent_space.bounded else np.inf
    low, high = (
        np.concatenate([np.broadcast_to(bound, agent_space.shape), np.full(missing, pad)])
        for bound, pad in ((agent_space.low, -edge), (agent_space.high, edge))
    )
    return Box.between(low, high, space.dtype)


def repeated(spaces: tuple[Space, ...]) -> Space:
    """Stack A spaces of one kind and shape into one space of arrays [A, ...]."""
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
    """Return the space of the mask of an action space: uint8 [n] or [sum nvec], 1 = allowed.

    For a `Dict`, return a `Dict` of the masks of its discrete entries. None without discrete parts.
    """
    if isinstance(action, Dict):
        parts = [(name, mask_space(part)) for name, part in action.spaces]
        masks = tuple((name, mask) for name, mask in parts if mask is not None)
        return Dict(masks) if masks else None
    if isinstance(action, Box):
        return None
    return Box((action.n if isinstance(action, Discrete) else sum(action.nvec),), 0.0, 1.0, "uint8")


def split_mask_space(space: Space) -> tuple[Space, bool]:
    """Return an observation space without its `action_mask`, and True if it has one.

    A single remaining entry is returned without its Dict. PettingZoo's convention is
    {"observation": ..., "action_mask": ...}.
    """
    if not isinstance(space, Dict) or MASK not in dict(space.spaces):
        return space, False
    others = tuple(pair for pair in space.spaces if pair[0] != MASK)
    return (others[0][1] if len(others) == 1 else Dict(others)), True


def _check_mask(agent: str, observation: Space, action: Space) -> None:
    """Raise ValueError if an observation has a mask without one entry per discrete action."""
    mask = dict(observation.spaces).get(MASK) if isinstance(observation, Dict) else None
    expected = mask_space(action)
    if mask is None or expected is None:
        return
    shapes = [{leaf.path: leaf.shape for leaf in leaves(space)} for space in (mask, expected)]
    if isinstance(mask, Dict) and shapes[0] != shapes[1]:
        raise ValueError(
            f"agent {agent}: the parts of the {MASK} differ from those of the action. Return one "
            f"array for each discrete part, with its name and one entry per action."
        )
    size, count = (sum(map(math.prod, parts.values())) for parts in shapes)
    if size != count:
        raise ValueError(
            f"agent {agent}: the {MASK} has {size} entries, but there are {count} discrete "
            f"actions. Return one entry per action."
        )


def split_mask_obs(obs: Any, space: Space) -> tuple[Any, Any]:
    """Return an observation of `space` without its `action_mask`, and the mask or None."""
    if not split_mask_space(space)[1]:
        return obs, None
    others = {name: part for name, part in obs.items() if name != MASK}
    return (next(iter(others.values())) if len(others) == 1 else others), obs[MASK]


def allow_all_if_empty(mask: Any, xp: Any) -> Any:
    """Allow all actions where a mask [..., n] allows none, such as after an episode end.

    Args:
        mask: a mask, a dict of masks, or None without a mask.
        xp: `numpy` or `jax.numpy`.
    """
    if mask is None or isinstance(mask, Mapping):
        return mask and {name: allow_all_if_empty(part, xp) for name, part in mask.items()}
    return xp.where(xp.any(mask > 0, axis=-1, keepdims=True), mask, xp.ones_like(mask))


def _join(values: Sequence[Any], spaces: Sequence[Any], space: Any, xp: Any) -> Any:
    if isinstance(space, Dict):
        return {
            name: _join([v[name] for v in values], [s[name] for s in spaces], part, xp)
            for name, part in space.spaces
        }
    dtype = space.dtype if isinstance(space, Box) else "int32"
    arrays = [xp.asarray(value).astype(dtype) for value in values]
    if isinstance(space, Box) and len(space.shape) == 1:
        arrays = [xp.pad(array, (0, space.shape[0] - array.shape[0])) for array in arrays]
    return xp.stack(arrays)


def _by_part(mask: Any, space: Space | None) -> Any:
    """Return a mask in the form of `space`. A flat one is divided into the parts of a Dict."""
    if isinstance(mask, Mapping):
        return mask
    mask = mask.reshape(-1)
    if not isinstance(space, Dict):
        return mask
    ends = np.cumsum([leaf.shape[0] for leaf in leaves(space)]).tolist()
    parts = [mask[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return tree_of(space, parts)


def _all_allowed(space: Any) -> Any:
    """Return a mask that allows all actions."""
    if isinstance(space, Dict):
        return {name: _all_allowed(part) for name, part in space.spaces}
    return np.ones(space.shape, np.uint8)


def _agent_action(action: Any, i: int, size: int, space: Space, xp: Any) -> Any:
    """Return the action of agent i from a joint action."""
    if isinstance(space, Dict):
        return {name: _agent_action(action[name], i, size, part, xp) for name, part in space.spaces}
    row = action.reshape(size, -1)[i]
    if isinstance(space, Discrete):
        return xp.minimum(row[0], space.n - 1)  # padding actions become the last one
    if isinstance(space, MultiDiscrete):
        return row
    return row[: math.prod(space.shape)].reshape(space.shape)
