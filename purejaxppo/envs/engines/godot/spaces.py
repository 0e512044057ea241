"""Spaces of a Godot game's agents: observations as arrays, and actions as messages.

This module does not import JAX.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from purejaxppo.envs.engines.godot.wire import Message, WireError
from purejaxppo.envs.host.workers.errors import MakeError
from purejaxppo.envs.teams import Team, split_mask_obs
from purejaxppo.spaces import MASK, Box, Dict, Discrete, Leaf, Space, arrays_of, example, leaves

IMAGE = "2d"
"""Observations with this string in their names are images."""
RGB, RGBA, MAX_AGENTS = 3, 4, 10_000
VALUE_ERRORS = (TypeError, ValueError, OverflowError, LookupError, AttributeError)
"""Errors from reading values of the wrong type."""


@dataclass(frozen=True)
class Part:
    """A named part of an observation.

    Args:
        name: name in the game's messages.
        space: space of its values.
        order: of an action mask: the position of each entry in the game's list. Masks have the
            actions of a `Dict` in the order of their names.
    """

    name: str
    space: Box | Discrete
    order: tuple[int, ...] = ()

    @property
    def is_image(self) -> bool:
        """True if the values are images [H, W, C]."""
        return isinstance(self.space, Box) and self.space.dtype == "uint8" and self.name != MASK

    def read(self, values: list[Any]) -> np.ndarray:
        """Return the values of several agents, [N, ...].

        Raises:
            WireError: a value is not in the space.
        """
        try:
            return self._array(values)
        except VALUE_ERRORS:
            for i, value in enumerate(values):
                try:
                    self._array([value])
                except VALUE_ERRORS as error:
                    raise self._error(i, value, error) from None
            raise WireError(
                f"sent observations {self.name!r} with different shapes. Send the same shape for "
                f"every agent"
            ) from None

    def _array(self, values: list[Any]) -> np.ndarray:
        """Convert values to an array [N, ...]."""
        if self.is_image:
            return np.stack([self._image(value) for value in values])
        if isinstance(self.space, Discrete):
            numbers = np.array(values, np.float64).reshape(len(values))
            fits = (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < self.space.n)
            if not fits.all():
                raise ValueError(f"not an integer from 0 to {self.space.n - 1}")
            return numbers.astype(np.int32)
        numbers = np.array(values, np.float32)  # Godot sends NaN as null, which becomes NaN
        numbers = numbers.reshape(len(values), *self.space.shape)
        if self.name != MASK:
            return numbers
        allowed = numbers == 1
        if not (allowed | (numbers == 0)).all():
            raise ValueError("not 0 or 1")
        allowed = allowed[:, list(self.order)]
        return (allowed | ~allowed.any(axis=1, keepdims=True)).astype(np.uint8)

    def _image(self, value: str) -> np.ndarray:
        """Decode hexadecimal bytes to an image [H, W, C]; drop alpha unless it is declared."""
        height, width, channels = self.space.shape  # type: ignore[union-attr]
        pixels = np.frombuffer(bytes.fromhex(value), np.uint8)
        sent = pixels.size // (height * width)
        if sent * height * width != pixels.size or (sent, channels) not in {
            (channels, channels),
            (RGBA, RGB),
        }:
            raise ValueError(
                f"{pixels.size} bytes are not an image of {height} x {width} pixels with "
                f"{channels} channels"
            )
        return pixels.reshape(height, width, sent)[:, :, :channels]

    def _error(self, agent: int, value: Any, error: Exception) -> WireError:
        """Return the error for a value that is not in the space."""
        source = f"{self.name!r} of agent {agent}"
        if self.is_image and not isinstance(value, str):
            return WireError(
                f"sent no image for {source}: a camera needs a display. Set env.options.show = "
                f"true. Without a display, also run the command with xvfb-run"
            )
        reason = str(error) if self.is_image or isinstance(self.space, Discrete) else ""
        if isinstance(self.space, Box) and isinstance(value, list) and not self.is_image:
            size = math.prod(self.space.shape)
            reason = f"{len(value)} values, expected {size}" if len(value) != size else reason
        return WireError(
            f"sent an observation {source} that does not match get_obs_space: "
            f"{reason or str(value)[:80]}"
        )


@dataclass(frozen=True)
class GodotAgent:
    """Spaces of one agent. Actions are in the game's order."""

    name: str
    parts: tuple[Part, ...]
    actions: tuple[tuple[str, Box | Discrete], ...]

    @property
    def observation(self) -> Space:
        """Space of the observation. A single part is the observation itself."""
        if len(self.parts) == 1:
            return self.parts[0].space
        return Dict.of({part.name: part.space for part in self.parts})

    @property
    def action(self) -> Space:
        """Space of the action. A single part is the action itself."""
        if len(self.actions) == 1:
            return self.actions[0][1]
        return Dict.of(dict(self.actions))


class GodotLayout:
    """A game's agents as rows of one space.

    Agents with one policy and equal spaces are rows of that space. Otherwise a row contains the
    index `agent`, and spaces are padded to common ones; see `teams.Team`.

    Args:
        agents: agents of the game.
        policies: name of each agent's policy.

    Raises:
        MakeError: spaces that cannot be padded to common ones.
    """

    def __init__(self, agents: tuple[GodotAgent, ...], policies: tuple[str, ...]) -> None:
        """Find the common spaces."""
        self.agents = agents
        self.policies = policies
        first = agents[0]
        alike = all(agent.parts == first.parts for agent in agents)
        same = alike and all(agent.actions == first.actions for agent in agents)
        self.team: Team | None = None
        if same and len(set(policies)) == 1:
            self.observation, self.action = first.observation, first.action
        else:
            self.team = _make_team(agents)
            self.observation, self.action = self.team.row, self.team.action
        self.leaves: tuple[Leaf, ...] = tuple(leaves(self.observation))

    def __eq__(self, other: object) -> bool:
        identity = self.agents, self.policies
        return isinstance(other, GodotLayout) and identity == (other.agents, other.policies)

    __hash__ = None  # type: ignore[assignment]

    @property
    def size(self) -> int:
        """Number of agents, A."""
        return len(self.agents)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the agents if rows contain the index `agent`."""
        return self.team.agents if self.team else ()

    def read(self, obs: list[Message]) -> Iterator[np.ndarray]:
        """Yield observations of whole games as arrays [N, ...], in the order of `leaves`.

        Raises:
            WireError: an observation is not in its space.
        """
        if self.team is None:
            yield from self._read_parts(self.agents[0].parts, obs)
            return
        size = self.size
        games = [self._padded(obs[i : i + size]) for i in range(0, len(obs), size)]
        for parts in zip(*games, strict=True):
            yield np.concatenate(parts)

    def _padded(self, obs: list[Message]) -> list[np.ndarray]:
        """Return one game's observations, padded to common spaces."""
        assert self.team is not None
        team, observations, masks = self.team, [], []
        for agent, message in zip(self.agents, obs, strict=True):
            arrays = [array[0] for array in self._read_parts(agent.parts, [message])]
            names = [part.name for part in agent.parts]
            tree = dict(zip(names, arrays, strict=True)) if len(arrays) > 1 else arrays[0]
            value, mask = split_mask_obs(tree, agent.observation)
            observations.append(value)
            masks.append(mask)
        rows: dict[str, Any] = {"agent": np.arange(self.size), "obs": team.join(observations, np)}
        if team.mask is not None:
            rows[MASK] = team.join_masks(masks, np)
        return list(arrays_of(team.row, rows))

    @staticmethod
    def _read_parts(parts: tuple[Part, ...], obs: list[Message]) -> Iterator[np.ndarray]:
        """Yield observations of agents with equal spaces, part by part."""
        for part in parts:
            try:
                values = [message[part.name] for message in obs]
            except VALUE_ERRORS:
                raise WireError(
                    f"sent an observation without {part.name!r}. Return it from get_obs"
                ) from None
            yield part.read(values)

    def write(self, action: Any) -> list[Message]:
        """Convert actions [N, ...] of whole games to messages, in the game's order of parts."""
        parts = action if isinstance(action, dict) else {"": action}
        lists = {name: part.tolist() for name, part in parts.items()}
        if self.team is None:  # actions need no conversion
            names = [name for name, _ in self.agents[0].actions]
            values = [lists.get(name) or lists[""] for name in names]
            return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
        count = len(next(iter(lists.values())))
        return [
            {
                name: _unpad((lists.get(name) or lists[""])[i], space)
                for name, space in agent.actions
            }
            for i, agent in zip(range(count), itertools.cycle(self.agents), strict=False)
        ]

    @functools.cached_property
    def zero_actions(self) -> list[Message]:
        """Actions of zeros for one game."""
        return self.write(example(self.action, (self.size,)))


def _unpad(value: Any, space: Box | Discrete) -> Any:
    """Return an agent's action without padding."""
    if isinstance(space, Discrete):
        return min(value, space.n - 1)
    return value[: space.shape[0]]


def _make_team(agents: tuple[GodotAgent, ...]) -> Team:
    """Return the agents with spaces padded to common ones."""
    try:
        return Team.of(
            [agent.name for agent in agents],
            [agent.observation for agent in agents],
            [agent.action for agent in agents],
        )
    except ValueError as error:
        raise MakeError(str(error)) from error


def layout_of(info: Message) -> GodotLayout:
    """Return the agents of a game, from its reply to `env_info`.

    Older plugins describe one agent, whose spaces all agents share.

    Raises:
        MakeError: the reply is invalid, or has unsupported spaces.
    """
    missing = [key for key in ("observation_space", "action_space", "n_agents") if key not in info]
    if missing:
        raise MakeError(
            f"its env_info message has no {missing[0]}. Use the plugin of Godot RL Agents."
        )
    count = info["n_agents"]
    if not _is_integer(count, 1) or count > MAX_AGENTS:
        raise MakeError(
            f"n_agents = {count!r}: the group AGENT must have 1 to {MAX_AGENTS:,} nodes."
        )
    spaces = [
        _repeated(info[key], key, int(count)) for key in ("observation_space", "action_space")
    ]
    policies = info.get("agent_policy_names") or ["shared_policy"] * int(count)
    if not isinstance(policies, list) or len(policies) != count:
        raise MakeError(
            f"agent_policy_names = {policies!r}: it must list one name for each of {count} agents."
        )
    policies = tuple(map(str, policies))
    numbers = [policies[:i].count(name) for i, name in enumerate(policies)]
    agents = tuple(
        _agent(f"{policy}_{number}", obs, action)
        for policy, number, obs, action in zip(policies, numbers, *spaces, strict=True)
    )
    return GodotLayout(agents, policies)


def _repeated(spaces: Any, key: str, count: int) -> Sequence[Mapping[str, Any]]:
    """Return one space per agent."""
    spaces = [spaces] * count if isinstance(spaces, dict) else spaces
    good = isinstance(spaces, list) and all(isinstance(s, dict) and s for s in spaces)
    if not good or len(spaces) != count:
        raise MakeError(
            f"{key} must list a space for each of {count} agents, got: {str(spaces)[:200]}"
        )
    return spaces


def _agent(name: str, obs: Mapping[str, Any], action: Mapping[str, Any]) -> GodotAgent:
    actions = tuple((key, _action(key, space)) for key, space in action.items())
    parts = [Part(key, _observation(key, space)) for key, space in sorted(obs.items())]
    parts = [_mask(part, actions) if part.name == MASK else part for part in parts]
    return GodotAgent(name, tuple(parts), actions)


def _mask(part: Part, actions: tuple[tuple[str, Box | Discrete], ...]) -> Part:
    """Return the part of a mask, which a game sends in the order of its actions."""
    positions: dict[str, list[int]] = {}
    count = 0
    for name, space in actions:
        if isinstance(space, Discrete):
            positions[name] = list(range(count, count + space.n))
            count += space.n
    size = math.prod(part.space.shape) if isinstance(part.space, Box) else 1
    if size != count:
        raise MakeError(
            f"{MASK!r}: its size is {size}, but get_action_space has {count} discrete choices. "
            f"Return one number for each choice."
        )
    order = [i for name in sorted(positions) for i in positions[name]]
    return dataclasses.replace(part, order=tuple(order))


def _observation(name: str, space: Any) -> Box | Discrete:
    """Return the space of one part of an observation."""
    kind = space.get("space") if isinstance(space, dict) else None
    size = space.get("size") if isinstance(space, dict) else None
    sizes = size if isinstance(size, list) else [size]
    if kind not in ("box", "discrete") or not sizes or not all(_is_integer(n, 1) for n in sizes):
        raise MakeError(
            f"observation {name!r}: invalid space {space!r}. Return one from get_obs_space such as "
            f'{{"size": [4], "space": "box"}} or {{"size": 4, "space": "discrete"}}.'
        )
    shape = tuple(map(int, sizes))
    if kind == "discrete":
        return Discrete(shape[0])
    if name == MASK:
        return Box((math.prod(shape),), 0.0, 1.0, "uint8")
    if IMAGE not in name:
        return Box(shape)
    if len(shape) != 3:
        raise MakeError(
            f'observation {name!r}: invalid size {list(shape)}. Images (names with "2d") need '
            f"[channels, height, width]."
        )
    channels, height, width = shape
    return Box((height, width, channels), 0.0, 255.0, "uint8")


def _action(name: str, space: Any) -> Box | Discrete:
    """Return the space of one part of an action."""
    kind, size = (
        space.get(key) if isinstance(space, dict) else None for key in ("action_type", "size")
    )
    if kind not in ("continuous", "discrete") or not _is_integer(size, 1):
        raise MakeError(
            f"action {name!r}: invalid space {space!r}. Return one from get_action_space like "
            f'{{"size": 2, "action_type": "continuous"}}; "discrete" is the other type'
        )
    return Discrete(int(size)) if kind == "discrete" else Box((int(size),), -1.0, 1.0)


def _is_integer(value: Any, low: int) -> TypeGuard[float]:
    """Return True for a whole number; False for a bool."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value == int(value) and value >= low
