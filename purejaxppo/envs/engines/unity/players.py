"""Several Unity games that step together, as one batch of rows.

Row = index of the game x slots of a game + slot. This module does not import JAX.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from purejaxppo.envs.engines.process import EngineError, GameGroup
from purejaxppo.envs.engines.unity.behaviours import Behaviour, ObsRows, UnityLayout
from purejaxppo.envs.engines.unity.messages import STEP, Message, ProtocolError, SlotsError, command
from purejaxppo.envs.engines.unity.player import UnityGame, UnityLaunch
from purejaxppo.envs.engines.unity.world import AgentSlots
from purejaxppo.envs.step import EnvStep, copied, rows_of, zeros
from purejaxppo.spaces import arrays_of, leaves, tree_of

MOST_MESSAGES = 100
"""Number of messages after which `read_layout` stops waiting for a second request."""


class UnityGames:
    """W games with S slots each, N = W x S.

    Args:
        launch: settings to start each game.
        layout: layout of its slots.
        count: number of games, W.
        seed: seed of the first game's random generators; the next game has seed + 1.
        restarts: maximum number of restarts of games that end, time out or send invalid messages.
        started: a list with a game that is already running, which this object takes over.

    Raises:
        EngineError: a game does not start.
    """

    def __init__(
        self,
        launch: UnityLaunch,
        layout: UnityLayout,
        count: int,
        *,
        seed: int = 0,
        restarts: int = 0,
        started: list[UnityGame] | None = None,
    ) -> None:
        """Start the games and wait for them."""
        self.launch, self.layout = launch, layout
        size = layout.size
        parts = tuple(
            np.zeros((count * size, *leaf.shape), leaf.dtype) for leaf in leaves(layout.observation)
        )
        self._out = zeros(parts, count * size)._replace(ticks=np.ones(count * size, np.float32))
        rows = [rows_of(self._out, size * i, size * (i + 1)) for i in range(count)]
        self._slots = [AgentSlots(layout, ObsRows(layout, out.obs), out) for out in rows]

        def start(number: int, seed: int) -> UnityGame:
            return started.pop() if started else UnityGame(launch, seed, number)

        self.group = GameGroup(start, seed, 0 if launch.is_editor else restarts)
        with self.group.killed_after_error():
            self.group.extend(count)
            for game in self.games:
                game.connect()

    @property
    def games(self) -> list[UnityGame]:
        """The games."""
        return self.group.games

    def reset(self, seed: int) -> tuple[Any, np.ndarray]:
        """Start new episodes: -> (obs [N, ...], bool [N]: no agent yet).

        The seed is ignored, because games read theirs when they start.
        """
        del seed
        with self.group.killed_after_error():
            for i, slots in enumerate(self._slots):
                slots.clear()
                try:
                    self._begin(self.games[i], slots)
                except EngineError as error:
                    self._restart(i, error, slots.clear)
        return self._obs(), self._absent()

    def step(self, action: Any) -> EnvStep:
        """Step all games: actions [N, ...] -> EnvStep.

        Raises:
            EngineError: a game failed, and no restarts are left.
        """
        self.group.check()
        arrays = list(arrays_of(self.layout.action, action))
        size = self.layout.size
        is_waiting = []
        for i, slots in enumerate(self._slots):
            own_actions = tree_of(
                self.layout.action, [x[size * i : size * (i + 1)] for x in arrays]
            )
            reply = slots.act(own_actions)
            is_waiting.append(reply is None)
            if reply is not None:
                self.games[i].send(reply)
        with self.group.killed_after_error():
            for i, slots in enumerate(self._slots):
                if is_waiting[i]:
                    slots.enter_agents()
                    slots.flags.ticks[:] = 0
                    continue
                try:
                    self._advance(self.games[i], slots)
                except EngineError as error:
                    self._restart(i, error, slots.end_all)
        return copied(self._out, self._obs())._replace(absent=self._absent())

    def set_parameters(self, values: Mapping[str, float]) -> None:
        """Set constant parameters of all games, with their next messages."""
        self.group.check()
        for game in self.games:
            current = game.parameters
            game.set_parameters(
                {name: current[name].with_value(value) for name, value in values.items()}
            )

    @property
    def diverged_value(self) -> str:
        """See `bridge.Pool`."""
        return next((w.diverged_value for w in self._slots if w.diverged_value), "")

    def render_frame(self) -> None:
        """Return None: games draw in their own windows."""

    def close(self) -> None:
        """End the games. A second call does nothing."""
        self.group.close()

    def _advance(self, game: UnityGame, slots: AgentSlots) -> None:
        """Complete a row with the next message that contains an agent of this game."""
        output, ticks = game.receive(), game.ticks
        while not _read(game, slots, output):
            game.send(slots.reply())
            output = game.receive()
            ticks += game.ticks
        slots.flags.ticks[:] = ticks

    def _begin(self, game: UnityGame, slots: AgentSlots) -> None:
        """Reset a game, and step it until an agent requests a decision."""
        output = game.first_output or game.reset()
        game.first_output = None
        deadline = time.monotonic() + self.launch.timeout
        _read(game, slots, output)
        while not (slots.acting.any() or slots.entering):
            if time.monotonic() > deadline:
                raise game.error(
                    f"had no agent that requested a decision within {self.launch.timeout:g} s. "
                    f"Check that its agents have a Decision Requester component"
                )
            game.send(slots.reply())
            _read(game, slots, game.receive())

    def _restart(self, i: int, error: EngineError, remove_agents: Callable[[], None]) -> None:
        """Restart a game, whose episodes are lost, until it starts or no restarts are left."""
        parameters = self.games[i].parameters
        while True:
            if isinstance(error.__cause__, SlotsError):
                raise error
            remove_agents()
            game = self.group.restart(i, error)
            game.set_parameters(parameters)
            try:
                game.connect()
                self._begin(game, self._slots[i])
                return
            except EngineError as failure:
                error = failure

    def _absent(self) -> np.ndarray:
        return np.concatenate([~slots.acting for slots in self._slots])

    def _obs(self) -> Any:
        return tree_of(self.layout.observation, self._out.obs)


def read_layout(game: UnityGame, slot_counts: Mapping[str, int]) -> UnityLayout:
    """Find the slots that a game needs from its first messages.

    Agents with different decision intervals are not all in the first message. The game is
    therefore stepped for a whole decision period: until an agent of each behaviour has requested
    two decisions.

    Args:
        game: a game that was started; this function waits for it.
        slot_counts: slots per behaviour, by name with or without team; "" is for all others. The
            game is stepped until each behaviour named here has agents. 0 or no entry: as many as
            the behaviour has agents.

    Raises:
        EngineError: no agent requested a decision in time, or a behaviour is unknown.
        ValueError: the behaviours' spaces cannot be padded to a common one.
    """
    deadline = time.monotonic() + game.launch.timeout
    counters: dict[str, AgentCounter] = {}
    game.connect()
    output = game.first_output = game.reset()
    for count in itertools.count(1):
        with game.named():
            _find(game, output, counters)
        missing = [
            name
            for name in slot_counts
            if name and not any(matches_name(name, f) for f in counters)
        ]
        timed_out = time.monotonic() > deadline
        if any(agents.requests for agents in counters.values()) and not missing:
            pending = [
                name
                for name in counters
                if not _capacity(name, slot_counts) and not counters[name].complete
            ]
            if timed_out or not pending or count >= MOST_MESSAGES:
                break
        elif timed_out:
            missing_agents = (
                f"agents of behaviour {missing[0]!r}"
                if missing
                else "agents that requested a decision"
            )
            hint = f". Its behaviours: {', '.join(counters)}" if counters else ""
            raise game.error(f"had no {missing_agents} within {game.launch.timeout:g} s{hint}")
        game.send(_idle(output, counters))
        game.first_output = None  # the next episode starts with a reset
        output = game.receive()
    names = sorted(counters)
    return UnityLayout(
        tuple(counters[name].behaviour for name in names),
        tuple(_capacity(name, slot_counts) or counters[name].slots for name in names),
    )


class AgentCounter:
    """Counts the agents of a behaviour in a game's first messages."""

    def __init__(self, behaviour: Behaviour) -> None:
        """Start without agents."""
        self.behaviour = behaviour
        self.requests: Counter[int] = Counter()
        """Number of decisions that each agent has requested, by id."""
        self._present: set[int] = set()
        self._largest = 0

    def add(self, infos: Iterable[Message]) -> None:
        """Add the agents of a message, until a decision period is complete.

        Later ids may belong to agents that were disabled and enabled again. Their slots would stay
        empty, and evaluations would count each as an episode with return 0.
        """
        if self.complete:
            return
        for info in infos:
            if info.done:
                self._present.discard(info.id)
            else:
                self._present.add(info.id)
                self.requests[info.id] += 1
        self._largest = max(self._largest, len(self._present))

    @property
    def complete(self) -> bool:
        """True after a whole decision period: an agent has requested two decisions."""
        return max(self.requests.values(), default=0) > 1

    @property
    def slots(self) -> int:
        """Number of agents; in an incomplete period, the largest number at the same time."""
        return max(len(self.requests) if self.complete else self._largest, 1)


def matches_name(wanted: str, name: str) -> bool:
    """Return True if a behaviour has this name, with or without its team."""
    return wanted in (name, name.partition("?")[0])


def _capacity(name: str, slot_counts: Mapping[str, int]) -> int:
    """Return the number of slots for a behaviour: with its team, without it, or for all others."""
    names = (name, name.partition("?")[0], "")
    return next((slot_counts[key] for key in names if key in slot_counts), 0)


def _find(game: UnityGame, output: Message, counters: dict[str, AgentCounter]) -> None:
    """Add the agents of a message to their behaviours."""
    for name in output.agentInfos:
        infos = output.agentInfos[name].value
        if name not in counters and infos:
            if name not in game.brains:
                raise ProtocolError(
                    f"sent agents of behaviour {name!r} without a description of the behaviour"
                )
            counters[name] = AgentCounter(Behaviour.of(game.brains[name], infos[0]))
        if infos:
            counters[name].add(infos)


def _idle(output: Message, counters: Mapping[str, AgentCounter]) -> Message:
    """Reply to a message with an idle action for every agent that requests a decision."""
    message = command(STEP)
    for name, agents in output.agentInfos.items():
        idle = [counters[name].behaviour.idle(info) for info in agents.value if not info.done]
        if idle:
            message.unity_input.rl_input.agent_actions[name].value.extend(idle)
    return message


def _read(game: UnityGame, slots: AgentSlots, output: Message) -> bool:
    with game.named():
        return slots.read(output)
