"""One Unity game's agents in fixed slots: messages become rows, and rows of actions become replies.

Each message in which an agent requests a decision, or ends, is a row. An agent with a request acts
on the next row. Other agents are `absent`: they make no decision there, and their reward belongs to
their last decision. An agent keeps its id over episodes, and gets a new id only after it was
disabled. After an episode's end the slot is empty until a row has the first observation of the next
episode. If one message has both, the terminal row has the true last observation, and the game waits
for one more row with the first observation. The other agents act on the terminal row, and are
absent on the row after it.

This module does not import JAX.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.envs.engines.unity import messages
from purejaxppo.envs.engines.unity.behaviours import ObsRows, UnityLayout, rows_of
from purejaxppo.envs.engines.unity.messages import Message, ProtocolError, SlotsError
from purejaxppo.envs.step import EnvStep
from purejaxppo.spaces import LARGEST

EMPTY, PLAYING, DIVERGED = 0, 1, 2
"""Status of a slot: no agent; an agent in an episode; an episode diverged and no new one started.
"""


class DecisionRequest(NamedTuple):
    """An agent's request for a decision in the message that is to be answered."""

    behaviour: str
    id: int
    info: Message


class AgentSlots:
    """The slots of one game.

    Args:
        layout: the game's behaviours and their slots.
        rows: arrays for observations.
        flags: arrays for the other fields of a row [S], except `absent`.
    """

    def __init__(self, layout: UnityLayout, rows: ObsRows, flags: EnvStep) -> None:
        """Start without agents."""
        self.layout, self.rows, self.flags = layout, rows, flags
        self.diverged_value = ""
        self.clear()

    def clear(self) -> None:
        """Remove all agents, as after a reset."""
        size = self.layout.size
        self.slot_by_id: dict[int, int] = {}
        """Slot of each agent that is in an episode, by id."""
        self.owner = np.full(size, -1)
        """Id of the last agent in each slot; -1 before the first one."""
        self.status = np.full(size, EMPTY)
        self.acting = np.zeros(size, bool)
        """True where the agent acts on the next row."""
        self.just_ended = np.zeros(size, bool)
        """True where an episode ended on the last row; another cannot start on the same row."""
        self.requests: list[DecisionRequest] = []
        self.chosen_actions: dict[int, Message] = {}
        self.entering: list[tuple[int, str, Message]] = []
        """Agents that enter on the next row, because an episode ended in their slot on this row."""
        for slot in range(size):
            self.rows.clear(slot)

    def act(self, action: Any) -> Message | None:
        """Take the actions [S, ...] of a row; return the reply, or None while the game waits."""
        row_actions = rows_of(action, self.layout.action, self.layout.size)
        for request in self.requests:
            slot = self.slot_by_id[request.id]
            if self.acting[slot] and request.id not in self.chosen_actions:
                self.chosen_actions[request.id] = self.layout.by_name[request.behaviour].act(
                    row_actions[slot]
                )
        self._begin_row()
        return None if self.entering else self.reply()

    def reply(self) -> Message:
        """Return the reply to the last message: one action for each request, in order."""
        message = messages.command(messages.STEP)
        actions = message.unity_input.rl_input.agent_actions
        for request in self.requests:
            action = self.chosen_actions.get(request.id)
            if action is None:
                action = self.layout.by_name[request.behaviour].idle(request.info)
            actions[request.behaviour].value.append(action)
        self.requests, self.chosen_actions = [], {}
        return message

    def enter_agents(self) -> None:
        """Complete a row on which the game waited, with the first observations of new agents."""
        for slot, behaviour, info in self.entering:
            self._enter(slot, behaviour, info)
        self.entering = []

    def read(self, output: Message) -> bool:
        """Complete a row with a message; return False if it contains no agent of this game.

        Args:
            output: `RLOutput`.

        Raises:
            ProtocolError: the message does not match the behaviours of this game.
            SlotsError: the message has too many agents, or another behaviour.
        """
        infos = [
            (name, info)
            for name in sorted(output.agentInfos)
            for info in self._infos_of(output, name)
        ]
        ends = [(name, info) for name, info in infos if info.done and info.id in self.slot_by_id]
        asking = [(name, info) for name, info in infos if not info.done]
        self.requests = [DecisionRequest(name, info.id, info) for name, info in asking]
        if len(infos) != len({(info.id, info.done) for _, info in infos}):
            raise ProtocolError(
                "sent two episode ends or two decision requests of one agent in one message"
            )
        for name, info in ends:
            self._continue(name, info)
        for name, info in asking:
            if info.id in self.slot_by_id:
                self._continue(name, info)
            else:
                self._assign_slot(name, info)
        return bool(ends) or bool(asking)

    def _infos_of(self, output: Message, name: str) -> Iterator[Message]:
        """Yield a behaviour's agents in a message."""
        if name not in self.layout.names:
            raise SlotsError(
                f"has agents of behaviour {name!r}, which appeared after the first decisions. Set "
                f"their number: --env.options max_agents.{name.partition('?')[0]} N"
            )
        yield from output.agentInfos[name].value

    def _begin_row(self) -> None:
        """Write the flags of a row without events."""
        flags = self.flags
        for array in (flags.reward, flags.terminated, flags.truncated, flags.diverged):
            array[:] = 0
        self.acting[:] = False
        self.just_ended[:] = False

    def _continue(self, name: str, info: Message) -> None:
        """Handle a request or an end of an agent that has a slot."""
        slot, flags = self.slot_by_id[info.id], self.flags
        playing = self.status[slot] == PLAYING
        if not playing and not info.done:
            self._enter(slot, name, info)
            return
        if playing:
            self.rows.write(slot, self.layout.by_name[name], info)
            reward = info.reward + info.group_reward
            if not (abs(reward) <= LARGEST and self.rows.bounded(slot, LARGEST)):
                self.diverged_value = self.rows.diverged_value(slot, reward)
                self._diverge(slot)
                reward = 0.0
            elif info.done:
                flags.truncated[slot] = info.max_step_reached
                flags.terminated[slot] = not info.max_step_reached
            else:
                self.acting[slot] = True
            flags.reward[slot] = reward
        if info.done:
            del self.slot_by_id[info.id]
            self.status[slot] = EMPTY
            self.just_ended[slot] = True

    def _assign_slot(self, name: str, info: Message) -> None:
        """Give an agent an empty slot: prefer one without an end on this row, then its last one."""
        slots = self.layout.slots(name)
        used_slots = set(self.slot_by_id.values())
        free_slots = sorted(
            (bool(self.just_ended[slot]), bool(self.owner[slot] != info.id), slot)
            for slot in slots
            if slot not in used_slots
        )
        if not free_slots:
            raise SlotsError(
                f"has more than {len(slots)} agents of behaviour {name!r} at the same time. Raise "
                f"env.options.max_agents"
            )
        just_ended, _, slot = free_slots[0]
        self.slot_by_id[info.id], self.owner[slot] = slot, info.id
        if just_ended:
            self.entering.append((slot, name, info))
        else:
            self._enter(slot, name, info)

    def _enter(self, slot: int, name: str, info: Message) -> None:
        """Start an agent's episode with its observation, if the observation is finite."""
        self.rows.write(slot, self.layout.by_name[name], info)
        is_bounded = self.rows.bounded(slot, LARGEST)
        self.status[slot] = PLAYING if is_bounded else DIVERGED
        self.acting[slot] = is_bounded
        if not is_bounded:
            self.rows.clear(slot)

    def _diverge(self, slot: int) -> None:
        """End an episode whose reward or observation is not finite."""
        self.rows.clear(slot)
        self.flags.diverged[slot] = self.flags.terminated[slot] = True
        self.acting[slot] = False
        self.status[slot] = DIVERGED

    def end_all(self) -> None:
        """End all episodes as diverged and remove the agents, after the game failed."""
        for slot in np.flatnonzero(self.status == PLAYING).tolist():
            self._diverge(slot)
            self.just_ended[slot] = True
        self.status[:] = EMPTY
        self.acting[:] = False
        self.slot_by_id, self.requests, self.chosen_actions, self.entering = {}, [], {}, []
