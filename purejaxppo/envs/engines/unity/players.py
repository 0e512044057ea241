"""Several Unity players that step together, as one batch of rows.

Row = player x slots of a player + slot. Nothing here imports JAX.
"""

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from purejaxppo.envs.engines.process import EngineError, Fleet
from purejaxppo.envs.engines.unity.behaviours import Behaviour, Rows, UnityLayout
from purejaxppo.envs.engines.unity.messages import STEP, Message, ProtocolError, SlotsError, command
from purejaxppo.envs.engines.unity.player import Player, PlayerSpec
from purejaxppo.envs.engines.unity.world import UnityWorld
from purejaxppo.envs.step import EnvStep, copied, rows_of, zeros
from purejaxppo.spaces import arrays_of, leaves, tree_of

MOST_MESSAGES = 100
"""Number of messages after which `probe` no longer waits for a second request."""


class Players:
    """W players with S slots each, N = W x S.

    Args:
        spec: of a player.
        layout: of its slots.
        count: W.
        seed: of the first player's generators; the next one has seed + 1.
        restarts: how often players that end, hang or send nonsense are started again, in all.
        waiting: a player that was started already, and is taken from this list.

    Raises:
        EngineError: a player does not start.
    """

    def __init__(
        self,
        spec: PlayerSpec,
        layout: UnityLayout,
        count: int,
        *,
        seed: int = 0,
        restarts: int = 0,
        waiting: list[Player] | None = None,
    ) -> None:
        """Starts the players, and waits for them."""
        self.spec, self.layout = spec, layout
        size = layout.size
        parts = tuple(
            np.zeros((count * size, *leaf.shape), leaf.dtype) for leaf in leaves(layout.observation)
        )
        self._out = zeros(parts, count * size)
        rows = [rows_of(self._out, size * i, size * (i + 1)) for i in range(count)]
        self._worlds = [UnityWorld(layout, Rows(layout, out.obs), out) for out in rows]

        def start(number: int, seed: int) -> Player:
            return waiting.pop() if waiting else Player(spec, seed, number)

        self.fleet = Fleet(start, seed, 0 if spec.is_editor else restarts)
        with self.fleet.ended_after_error():
            self.fleet.extend(count)
            for player in self.players:
                player.connect()

    @property
    def players(self) -> list[Player]:
        """The players."""
        return self.fleet.games

    def reset(self, seed: int) -> tuple[Any, np.ndarray]:
        """Begins all episodes anew: -> (obs [N, ...], bool [N]: there is no agent yet).

        The seed is ignored: players take theirs when they are started.
        """
        del seed
        with self.fleet.ended_after_error():
            for player, world in zip(self.players, self._worlds, strict=True):
                world.clear()
                self._begin(player, world)
        return self._obs(), self._absent()

    def step(self, action: Any) -> EnvStep:
        """Actions [N, ...] -> EnvStep.

        Raises:
            EngineError: a player failed, and there are no `restarts` left.
        """
        self.fleet.check()
        arrays = list(arrays_of(self.layout.action, action))
        size = self.layout.size
        waits = []
        for i, world in enumerate(self._worlds):
            mine = tree_of(self.layout.action, [x[size * i : size * (i + 1)] for x in arrays])
            reply = world.act(mine)
            waits.append(reply is None)
            if reply is not None:
                self.players[i].send(reply)
        with self.fleet.ended_after_error():
            for i, world in enumerate(self._worlds):
                if waits[i]:
                    world.deliver()
                    continue
                try:
                    self._advance(self.players[i], world)
                except EngineError as error:
                    self._restart(i, error)
        return copied(self._out, self._obs())._replace(absent=self._absent())

    def tell(self, values: Mapping[str, float]) -> None:
        """Sets constant parameters of all players, with their next messages."""
        self.fleet.check()
        for player in self.players:
            there = player.parameters
            player.tell({name: there[name].moved(value) for name, value in values.items()})

    @property
    def diverged_value(self) -> str:
        """See `bridge.Pool`."""
        return next((w.diverged_value for w in self._worlds if w.diverged_value), "")

    def render_frame(self) -> None:
        """None: players draw in windows of their own."""

    def close(self) -> None:
        """Ends the players; a second call does nothing."""
        self.fleet.close()

    def _advance(self, player: Player, world: UnityWorld) -> None:
        """Completes a row by the next message that contains an agent of this player."""
        output = player.receive()
        while not _read(player, world, output):
            player.send(world.reply())
            output = player.receive()

    def _begin(self, player: Player, world: UnityWorld) -> None:
        """Resets a player, and steps it until an agent asks for a decision."""
        output = player.first or player.reset()
        player.first = None
        deadline = time.monotonic() + self.spec.timeout
        _read(player, world, output)
        while not (world.asked.any() or world.waiting):
            if time.monotonic() > deadline:
                raise player.error(
                    f"had no agent that requested a decision within {self.spec.timeout:g} s. Check "
                    f"that its agents have a Decision Requester"
                )
            player.send(world.reply())
            _read(player, world, player.receive())

    def _restart(self, i: int, error: EngineError) -> None:
        """Starts a player again whose episodes are lost, if that is still allowed."""
        if isinstance(error.__cause__, SlotsError):
            raise error
        self._worlds[i].abandon()
        parameters = self.players[i].parameters
        player = self.fleet.restart(i, error)
        player.tell(parameters)
        player.connect()
        self._begin(player, self._worlds[i])

    def _absent(self) -> np.ndarray:
        return np.concatenate([~world.asked for world in self._worlds])

    def _obs(self) -> Any:
        return tree_of(self.layout.observation, self._out.obs)


def probe(player: Player, asked: Mapping[str, int]) -> UnityLayout:
    """The slots that a player needs, from its first messages.

    Agents with different decision steps are not all in the first message. So the player is stepped
    for a whole decision period: until an agent of each behaviour has requested two decisions.

    Args:
        player: started; it is waited for.
        asked: slots of behaviours by name, with or without its team; "" is for all others. The
            player is stepped until those that are named here have agents. 0 or no entry: as many
            as the behaviour has agents.

    Raises:
        EngineError: no agent asked for a decision in time, or there is no such behaviour.
        ValueError: the behaviours' spaces cannot be padded to one.
    """
    deadline = time.monotonic() + player.spec.timeout
    found: dict[str, Census] = {}
    player.connect()
    output = player.first = player.reset()
    for count in itertools.count(1):
        with player.named():
            _find(player, output, found)
        missing = [name for name in asked if name and not any(fits(name, f) for f in found)]
        late = time.monotonic() > deadline
        if any(agents.asks for agents in found.values()) and not missing:
            pending = [
                name for name in found if not _capacity(name, asked) and not found[name].complete
            ]
            if late or not pending or count >= MOST_MESSAGES:
                break
        elif late:
            what = (
                f"agents of behaviour {missing[0]!r}"
                if missing
                else "agents that requested a decision"
            )
            there = f". Its behaviours: {', '.join(found)}" if found else ""
            raise player.error(f"had no {what} within {player.spec.timeout:g} s{there}")
        player.send(_idle(output, found))
        player.first = None  # the next episode begins with a reset
        output = player.receive()
    names = sorted(found)
    return UnityLayout(
        tuple(found[name].behaviour for name in names),
        tuple(_capacity(name, asked) or found[name].slots for name in names),
    )


class Census:
    """The agents of a behaviour in a player's first messages."""

    def __init__(self, behaviour: Behaviour) -> None:
        """Starts without agents."""
        self.behaviour = behaviour
        self.asks: Counter[int] = Counter()
        """Number of decisions that each agent has requested, by id."""
        self._playing: set[int] = set()
        self._most = 0

    def add(self, infos: Iterable[Message]) -> None:
        """Adds the agents of a message, until a decision period is complete.

        Ids that appear later may be of agents that were disabled and enabled again. Slots for them
        would stay empty, and evaluations would count each as an episode with a return of 0.
        """
        if self.complete:
            return
        for info in infos:
            if info.done:
                self._playing.discard(info.id)
            else:
                self._playing.add(info.id)
                self.asks[info.id] += 1
        self._most = max(self._most, len(self._playing))

    @property
    def complete(self) -> bool:
        """True after a whole decision period: an agent has requested two decisions."""
        return max(self.asks.values(), default=0) > 1

    @property
    def slots(self) -> int:
        """The number of agents; if the period is incomplete, the largest number at once."""
        return max(len(self.asks) if self.complete else self._most, 1)


def fits(wanted: str, name: str) -> bool:
    """True if a behaviour is called so, with or without its team."""
    return wanted in (name, name.partition("?")[0])


def _capacity(name: str, asked: Mapping[str, int]) -> int:
    own = [count for wanted, count in asked.items() if wanted and fits(wanted, name)]
    return own[0] if own else asked.get("", 0)


def _find(player: Player, output: Message, found: dict[str, Census]) -> None:
    """Adds the agents of a message to their behaviours."""
    for name in output.agentInfos:
        infos = output.agentInfos[name].value
        if name not in found and infos:
            if name not in player.brains:
                raise ProtocolError(
                    f"sent agents of behaviour {name!r} without a description of the behaviour"
                )
            found[name] = Census(Behaviour.of(player.brains[name], infos[0]))
        if infos:
            found[name].add(infos)


def _idle(output: Message, found: Mapping[str, Census]) -> Message:
    """The answer to a message with an idle action for every agent that asks."""
    message = command(STEP)
    for name, agents in output.agentInfos.items():
        idle = [found[name].behaviour.idle(info) for info in agents.value if not info.done]
        if idle:
            message.unity_input.rl_input.agent_actions[name].value.extend(idle)
    return message


def _read(player: Player, world: UnityWorld, output: Message) -> bool:
    with player.named():
        return world.read(output)
