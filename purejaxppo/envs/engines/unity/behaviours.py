"""Behaviours of a Unity game: sensors, actions, and the rows of their agents.

A row of the batch is a slot. Every behaviour has a fixed number of consecutive slots. An agent
keeps its slot until its episode ends. This module does not import JAX.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from purejaxppo.envs.engines.unity import images
from purejaxppo.envs.engines.unity.messages import PNG, Message, ProtocolError, agent_action
from purejaxppo.envs.teams import common, mask_space
from purejaxppo.spaces import (
    MASK,
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Space,
    arrays_of,
    diverged_value,
    leaves,
)


@dataclass(frozen=True)
class Sensor:
    """A sensor of an agent: an array of floats, or an image that is sent as PNGs."""

    name: str
    shape: tuple[int, ...]
    png: bool = False

    @property
    def space(self) -> Box:
        """Space of the observation; uint8 [C, H, W] for PNGs."""
        return Box(self.shape, 0.0, 255.0, "uint8") if self.png else Box(self.shape)

    def read(self, observation: Message) -> np.ndarray:
        """Return the observation in its space.

        Raises:
            ProtocolError: the shape or kind differs from the first observation.
        """
        shape, png = tuple(observation.shape), observation.compression_type == PNG
        if shape != self.shape or png != self.png:
            other = Sensor(self.name, shape, png)
            raise ProtocolError(
                f"changed {self} to {other}. Keep the sensors of an agent the same while it runs"
            )
        if png:
            channels = self.shape[0]
            array = images.decode(
                observation.compressed_data, channels, observation.compressed_channel_mapping
            )
        else:
            array = np.array(observation.float_data.data, np.float32)
            if array.size == math.prod(shape):
                return array.reshape(shape)
        if array.shape != shape:
            older = ", channels last. Build it with version 3 or later of com.unity.ml-agents"
            hint = older if png and array.shape[1:] == shape[:2] else ""
            raise ProtocolError(f"sent an array of shape {array.shape} for {self}{hint}")
        return array

    def __str__(self) -> str:
        return f"sensor {self.name!r} of shape {self.shape}{' as PNG' if self.png else ''}"


@dataclass(frozen=True)
class Behaviour:
    """A behaviour with its full name, such as `Crawler?team=0`."""

    name: str
    sensors: tuple[Sensor, ...]
    continuous: int
    """Number of continuous actions."""
    branches: tuple[int, ...]
    """Number of choices of each discrete action."""

    @classmethod
    def of(cls, brain: Message, info: Message) -> "Behaviour":
        """Create a behaviour from a game's BrainParameters and the first AgentInfo.

        Raises:
            ProtocolError: the behaviour has no sensors or no actions.
        """
        spec = brain.action_spec
        continuous, branches = spec.num_continuous_actions, tuple(spec.discrete_branch_sizes)
        if not continuous and not spec.num_discrete_actions:  # older package
            sizes = tuple(brain.vector_action_size_deprecated)
            is_continuous = brain.vector_action_space_type_deprecated == 1
            continuous, branches = (sum(sizes), ()) if is_continuous else (0, sizes)
        names: list[str] = []
        for i, observation in enumerate(info.observations):
            name = observation.name or f"sensor_{i}"
            names.append(name if name not in [MASK, *names] else f"{name}_{i}")
        sensors = tuple(
            Sensor(name, tuple(observation.shape), observation.compression_type == PNG)
            for name, observation in zip(names, info.observations, strict=True)
        )
        name = brain.brain_name
        if not sensors or any(min(sensor.shape, default=0) < 1 for sensor in sensors):
            raise ProtocolError(
                f"has agents of behaviour {name!r} without observations: {[*map(str, sensors)]}. "
                f"Add a sensor or raise Space Size in their Behavior Parameters"
            )
        if not continuous and not branches:
            raise ProtocolError(
                f"has agents of behaviour {name!r} without actions. Add continuous actions or "
                f"discrete branches in their Behavior Parameters"
            )
        if continuous < 0 or min(branches, default=1) < 1:
            raise ProtocolError(
                f"has invalid action sizes in behaviour {name!r}: {continuous} continuous, discrete"
                f" {list(branches)}. Correct them in the Behavior Parameters"
            )
        return cls(name, sensors, continuous, branches)

    @property
    def observation(self) -> Space:
        """Space of the only sensor, or a `Dict` of several sensors by name."""
        if len(self.sensors) == 1:
            return self.sensors[0].space
        return Dict.of({sensor.name: sensor.space for sensor in self.sensors})

    @property
    def action(self) -> Space:
        """A `Box` in [-1, 1], one or several discrete choices, or a `Dict` of both."""
        box = Box((self.continuous,), -1.0, 1.0)
        single = len(self.branches) == 1
        choice = Discrete(self.branches[0]) if single else MultiDiscrete(self.branches)
        if not self.branches:
            return box
        return Dict.of({"continuous": box, "discrete": choice}) if self.continuous else choice

    def read(self, info: Message) -> list[np.ndarray]:
        """Return an agent's observation as arrays in the order of the space's leaves.

        Raises:
            ProtocolError: the shapes differ from the first agent's.
        """
        if len(info.observations) != len(self.sensors):
            raise ProtocolError(
                f"sent {len(info.observations)} observations for an agent of behaviour "
                f"{self.name!r}, expected {len(self.sensors)}. Give all its agents the same sensors"
            )
        arrays = [sensor.read(x) for sensor, x in zip(self.sensors, info.observations, strict=True)]
        if len(arrays) == 1:
            return arrays
        by_name = {sensor.name: x for sensor, x in zip(self.sensors, arrays, strict=True)}
        return [by_name[name] for name in sorted(by_name)]

    def allowed(self, info: Message) -> np.ndarray:
        """Return an agent's mask, 1 = allowed, uint8 [sum of branches]; True forbids in messages.

        Raises:
            ProtocolError: the mask has another length.
        """
        forbidden = np.array(info.action_mask, bool)
        if not forbidden.size:
            return np.ones(sum(self.branches), np.uint8)
        if forbidden.size != sum(self.branches):
            raise ProtocolError(
                f"sent an action mask of {forbidden.size} entries for behaviour {self.name!r}, "
                f"expected {sum(self.branches)}: one per discrete choice"
            )
        return (~forbidden).astype(np.uint8)

    def act(self, action: Any) -> Message:
        """Convert a row's action, padded or not, to an AgentAction, clipped to ±1."""
        if isinstance(action, dict):
            continuous, discrete = action["continuous"], action["discrete"]
        else:
            continuous = discrete = action
        clipped = np.clip(np.ravel(continuous)[: self.continuous], -1.0, 1.0)
        choice = np.ravel(discrete)[: len(self.branches)].astype(int)
        if self.branches:  # padded choices become the last one
            choice = np.clip(choice, 0, np.array(self.branches) - 1)
        return agent_action(clipped, choice)

    def idle(self, info: Message) -> Message:
        """Return an idle action: zeros, and the first allowed choice of each branch.

        A game may be unable to execute choices that the agent's mask forbids.
        """
        branches = np.split(self.allowed(info), np.cumsum(self.branches)[:-1])
        choice = [branch.argmax() for branch in branches if branch.size]
        return agent_action(np.zeros(self.continuous), np.array(choice, int))


@dataclass(frozen=True)
class UnityLayout:
    """The rows of one game: the slots of each behaviour, one behaviour after the other.

    With several behaviours, an observation is a `Dict` with `agent`, the index of the behaviour,
    and `obs`, padded to the largest observation (see `envs.teams`).

    Raises:
        ValueError: behaviours differ in more than the lengths of vectors.
    """

    behaviours: tuple[Behaviour, ...]
    capacities: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that all behaviours have common spaces."""
        _ = self.observation, self.action

    @property
    def size(self) -> int:
        """Number of slots, S."""
        return sum(self.capacities)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the behaviours."""
        return tuple(behaviour.name for behaviour in self.behaviours)

    @functools.cached_property
    def by_name(self) -> dict[str, Behaviour]:
        """Behaviours by name."""
        return dict(zip(self.names, self.behaviours, strict=True))

    def slots(self, name: str) -> range:
        """Return a behaviour's slots."""
        index = self.names.index(name)
        start = sum(self.capacities[:index])
        return range(start, start + self.capacities[index])

    @functools.cached_property
    def parts(self) -> dict[str, Space]:
        """Parts of an agent's observation. A single part is the observation itself."""
        observation = common([b.observation for b in self.behaviours], self.names, "observation")
        parts: dict[str, Space] = {"obs": observation}
        if len(self.behaviours) > 1:
            parts["agent"] = Discrete(len(self.behaviours))
        mask = mask_space(self.action)
        if mask is not None:
            parts[MASK] = mask
        return parts

    @functools.cached_property
    def observation(self) -> Space:
        """Observation space of one agent."""
        return Dict.of(self.parts) if len(self.parts) > 1 else self.parts["obs"]

    @functools.cached_property
    def action(self) -> Space:
        """Action space of one agent."""
        return common([b.action for b in self.behaviours], self.names, "action")


class ObsRows:
    """Arrays of the observations of S slots, [S, ...] each.

    Args:
        layout: layout of the slots.
        parts: arrays of an agent's observation space, in the order of its leaves.
    """

    def __init__(self, layout: UnityLayout, parts: Sequence[np.ndarray]) -> None:
        """Find the arrays of each part, and write the constant ones."""
        self.layout = layout
        self.parts = parts
        space = layout.observation
        paths = [leaf.path for leaf in leaves(space)]
        composed = len(layout.parts) > 1
        arrays = dict(zip(paths, parts, strict=True))
        self._obs = [arrays[path] for path in paths if not composed or path[0] == "obs"]
        self._masks = [arrays[path] for path in paths if composed and path[0] == MASK]
        for mask in self._masks:
            mask[:] = 1
        if "agent" in layout.parts:
            for number, name in enumerate(layout.names):
                arrays["agent",][list(layout.slots(name))] = number

    def write(self, slot: int, behaviour: Behaviour, info: Message) -> None:
        """Write an agent's observation and action mask."""
        for target, values in zip(self._obs, behaviour.read(info), strict=True):
            if target.shape[1:] == values.shape:
                target[slot] = values
            else:  # a vector: pad it to the longest
                target[slot] = 0
                target[slot, : len(values)] = values
        for target in self._masks:
            allowed = behaviour.allowed(info)
            target[slot] = 0
            target[slot, : len(allowed)] = allowed

    def clear(self, slot: int) -> None:
        """Write zeros and a mask that allows everything."""
        for target in self._obs:
            target[slot] = 0
        for target in self._masks:
            target[slot] = 1

    def diverged_value(self, slot: int, reward: float) -> str:
        """Return the first value of a slot that diverged; see `spaces.diverged_value`."""
        obs = [((), part[slot]) for part in self._obs]
        return diverged_value(np.asarray(reward), obs)

    def bounded(self, slot: int, largest: float) -> bool:
        """Return True if a slot's floats are not NaN and within ±largest."""
        floats = [part[slot] for part in self._obs if part.dtype == np.float32]
        return all(bool((np.abs(part) <= largest).all()) for part in floats)


def rows_of(action: Any, space: Space, count: int) -> list[Any]:
    """Split a batch of actions [count, ...] into one action per row."""
    if isinstance(space, Dict):
        parts = list(arrays_of(space, action))
        names = [name for name, _ in space.spaces]
        return [{n: part[i] for n, part in zip(names, parts, strict=True)} for i in range(count)]
    array = np.asarray(action)
    return [array[i] for i in range(count)]
