"""A scripted game, without Unity, with Unity's side of the protocol of ML-Agents.

    python unity_engine.py --mlagents-port PORT --scenario NAME [--agents N] [--period N] ...

It is the gRPC client, requests decisions every `period` ticks and ends episodes between them. An
agent keeps its id over episodes, so its end and its next decision may be in one message. Only an
agent that pauses, as if it were disabled and enabled, gets a new id. Actions are matched to agents
by their position. Where Unity would crash, the game ends with an error: if there are fewer or more
actions than requests.
"""

import argparse
import functools
import io
import itertools
import math
import os
import struct
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import numpy as np

from purejaxppo.envs.engines.unity import channels, messages

LENGTH = 6  # decisions in an episode
COLOURS = np.array([[0, 64, 128], [255, 192, 32]], np.uint8)


@dataclass
class Agent:
    """An agent in its current episode."""

    game: "Game"
    behaviour: str
    number: int
    id: int = 0  # 0 while it is disabled
    episode: int = 0
    age: int = 0
    reward: float = 0.0
    action: np.ndarray = field(default_factory=lambda: np.zeros(3))
    goal: float = 0.0
    back: int = 0  # the tick of its next episode
    due: int = 0  # the tick of its next decision, with --durations

    def begin(self) -> None:
        """Start an episode, with a new id if the agent was disabled."""
        self.id = self.id or next(self.game.ids)
        self.episode += 1
        self.age, self.reward, self.due = 0, 0.0, self.game.tick
        self.goal = self.game.random.uniform(-0.8, 0.8)
        if self.game.options.parameter:
            self.goal = self.game.parameters[self.game.options.parameter]()

    def info(self, *, done: bool = False, cut: bool = False) -> messages.Message:
        """Return its message, and reset its reward."""
        info = messages.kind("AgentInfo")(
            reward=self.reward, done=done, max_step_reached=cut, id=self.id
        )
        if self.game.options.group:
            info.group_id, info.group_reward = 1, 0.25
        self.reward = 0.0
        for seen in self.game.sense(self):
            info.observations.append(seen)
        if self.game.options.actions != "continuous":
            allowed = self.best() if self.game.options.masks else -1
            mask = [allowed >= 0 and i % 3 != allowed for i in range(3)]
            info.action_mask.extend(mask + [False] * 2 * (self.game.options.actions == "branches"))
        return info

    def best(self) -> int:
        """Return the discrete action with a reward."""
        return int(self.goal > -0.3) + int(self.goal > 0.3)

    def act(self) -> None:
        """Simulate a tick with its last action: rewards, and the end of an episode."""
        options = self.game.options
        value, choice = float(self.action[0]), int(self.action[2])
        paid = 0.0
        if options.durations:
            pays = 0.5, 2.5 + 2.5 * self.goal, 0.0
            paid = pays[choice] * (self.game.tick + 1 == self.due)
        elif options.actions in ("continuous", "hybrid"):
            paid += 1.0 - abs(value - self.goal)
        if options.actions in ("discrete", "hybrid", "branches") and not options.durations:
            paid += float(choice == self.best())
        if options.nan and (self.number + self.episode) % 5 == 3 and self.age == 2:
            paid = math.nan
        self.reward += paid / options.period
        self.age += 1
        if self.age >= options.length * options.period - (self.number % options.stagger):
            self.game.outbox.append((self, self.info(done=True, cut=options.cut)))
            if options.pause:
                self.back = self.game.tick + options.pause
                self.id = 0
            else:
                self.begin()


class Game:
    """The agents and the time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ids = itertools.count(1)
        self.random = np.random.default_rng(0)
        self.tick = 0
        self.unsent_ticks = 0
        self.outbox: list[tuple[Agent, messages.Message]] = []
        self.agents: list[Agent] = []
        self.parameters: dict[str, Callable[[], float]] = {}

    def reset(self, seed: int) -> None:
        """Start new episodes of all agents."""
        self.random = np.random.default_rng((seed, self.tick))
        self.tick, self.outbox = 0, []
        names = self.options.behaviours.split(",")
        self.agents = [Agent(self, name, i) for name in names for i in range(self.options.agents)]
        for agent in self.agents:
            late = self.options.late if agent.behaviour == names[-1] and len(names) > 1 else 0
            agent.back = late
            if not late:
                agent.begin()

    def sense(self, agent: Agent) -> list[messages.Message]:
        """Return the sensors of an agent."""
        vector = messages.kind("Observation")(name="vector", shape=[2])
        vector.float_data.data.extend([agent.goal, agent.age / 10])
        if self.options.camera == "none":
            return [vector]
        image = messages.kind("Observation")(name="camera", compression_type=messages.PNG)
        shade = round((agent.goal + 1) * 100)
        pixels = np.full((8, 12, 3), shade, np.uint8)
        pixels[0, 0] = COLOURS[0]
        data = png(pixels)
        if self.options.camera == "stacked":  # two grayscale images
            image.shape.extend([2, 8, 12])
            image.compressed_data = data + png(255 - pixels)
            image.compressed_channel_mapping.extend([0, 0, 0, 1, 1, 1])
        else:
            image.shape.extend([3, 8, 12])
            image.compressed_data = data
        return [vector, image]

    def ask(self) -> list[tuple[Agent, messages.Message]]:
        """Request decisions for the agents that need one at this tick."""
        asking = []
        for agent in self.agents:
            if not agent.id and self.tick >= agent.back:
                agent.begin()
            due = (self.tick + agent.number * self.options.offset) % self.options.period == 0
            if self.options.durations:
                due = self.tick >= agent.due
            if agent.id and due:
                asking.append(agent)
        return [(agent, agent.info()) for agent in asking]

    def act(self) -> None:
        """Simulate a tick of all agents."""
        self.unsent_ticks += 1
        for agent in self.agents:
            if agent.id:
                agent.act()
        self.tick += 1


def png(pixels: np.ndarray) -> bytes:
    """Encode an image as PNG."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


class Client:
    """The communicator of Unity."""

    def __init__(self, port: int) -> None:
        channel = grpc.insecure_channel(f"localhost:{port}")
        self.call = channel.unary_unary("/communicator_objects.UnityToExternalProto/Exchange")
        self.known: set[str] = set()

    def raw(self, data: bytes) -> messages.Message:
        """Send bytes, and return the answer."""
        return messages.parse(self.call(data, wait_for_ready=True, timeout=600))

    def exchange(self, message: messages.Message) -> messages.Message:
        """Exchange messages; a command to quit ends the game."""
        message.header.status = messages.OK
        answer = self.raw(message.SerializeToString())
        if answer.header.status == messages.QUIT_STATUS:
            print("asked to quit", flush=True)
            sys.exit(0)
        return answer.unity_input

    def begin(self, version: str) -> messages.Message:
        """Do the first two exchanges: the settings and the first command."""
        first = messages.UnityMessage()
        there = first.unity_output.rl_initialization_output
        there.name, there.communication_version = "scripted", version
        there.package_version = "3.0.0"
        for known in there.capabilities.DESCRIPTOR.fields:
            setattr(there.capabilities, known.name, True)
        return self.exchange(first).rl_initialization_input, self.exchange(messages.UnityMessage())


def describe(output: messages.Message, name: str, actions: str) -> None:
    """Return the BrainParameters of a behaviour."""
    brain = output.rl_initialization_output.brain_parameters.add(brain_name=name, is_training=True)
    if actions in ("continuous", "hybrid"):
        brain.action_spec.num_continuous_actions = 2
    if actions in ("discrete", "hybrid", "branches"):
        sizes = [3, 2] if actions == "branches" else [3]
        brain.action_spec.num_discrete_actions = len(sizes)
        brain.action_spec.discrete_branch_sizes.extend(sizes)


def play(options: argparse.Namespace) -> None:
    """Exchange messages until the trainer ends."""
    if options.fault == "silent":
        time.sleep(600)
    client, game = Client(options.mlagents_port), Game(options)
    if options.fault == "garbage":
        client.raw(b"\xff\xff\xff\xffno message")
    settings, answer = client.begin("9.0.0" if options.fault == "version" else "1.5.0")
    heard: dict[str, object] = {"seed": settings.seed}
    resets = 0
    for count in itertools.count():
        command = answer.rl_input.command
        record_side_channels(heard, answer.rl_input.side_channel, options.record)
        game.parameters |= parameters_of(answer.rl_input.side_channel, options.record)
        if command == messages.RESET:
            resets += 1
            if options.fault == "reset" and resets == 3:
                os._exit(7)
            game.reset(settings.seed)
        sent = wait_for_agents(game)
        apply_fault(options.fault, count)
        message = messages.UnityMessage()
        output = message.unity_output.rl_output
        for agent, info in sent:
            if agent.behaviour not in client.known:
                client.known.add(agent.behaviour)
                describe(message.unity_output, agent.behaviour, options.actions)
            output.agentInfos[agent.behaviour].value.append(info)
        output.side_channel = side_channels(count)
        if options.ticks:
            output.side_channel += statistic("ticks", game.unsent_ticks, 2)
            game.unsent_ticks = 0
        if options.replay and count:
            replay(client, message)
        answer = client.exchange(message)
        if answer.rl_input.command == messages.STEP:
            durations = options.durations.split("/") if options.durations else []
            ticks = [[int(x) for x in actions.split(",")] for actions in durations]
            apply_actions(sent, answer.rl_input.agent_actions, ticks)
            game.act()


def replay(client: Client, message: messages.Message) -> None:
    """Repeat one message, to measure the trainer alone."""
    message.header.status = messages.OK
    data = message.SerializeToString()
    while True:
        client.call(data, timeout=120)


def wait_for_agents(game: Game) -> list[tuple[Agent, messages.Message]]:
    """Simulate until an agent needs a decision or ends, and return the message."""
    while True:
        sent, game.outbox = game.outbox + game.ask(), []
        if sent:
            return sent
        game.act()


def apply_actions(
    sent: list[tuple[Agent, messages.Message]], actions: dict, durations: list[list[int]]
) -> None:
    """Give actions to the agents with a request, by position."""
    for name in {agent.behaviour for agent, _ in sent}:
        asked = [agent for agent, info in sent if agent.behaviour == name and not info.done]
        given = list(actions[name].value) if name in actions else []
        if len(given) != len(asked):
            print(f"{len(given)} actions of {name} for {len(asked)} agents", flush=True)
            os._exit(3)
        for agent, action in zip(asked, given, strict=True):
            agent.action = np.zeros(3)
            agent.action[: len(action.continuous_actions)] = action.continuous_actions
            agent.action[2] = [*action.discrete_actions, 0][0]
            if durations:
                ticks = durations[agent.number % len(durations)]
                agent.due = agent.game.tick + ticks[int(agent.action[2])]


def side_channels(count: int) -> bytes:
    """Return messages of side channels: a statistic, and an unknown channel."""
    return statistic("Game/Exchanges", count, 1) + channels.pack(uuid.UUID(int=7), b"hello")


def statistic(name: str, value: float, aggregation: int) -> bytes:
    """Return a message of StatsRecorder."""
    text = struct.pack("<i", len(name)) + name.encode()
    return channels.pack(channels.STATS, text + struct.pack("<fi", float(value), aggregation))


def record_side_channels(heard: dict, data: bytes, record: str) -> None:
    """Record the messages of the trainer on side channels."""
    if not data or not record:
        return
    for channel, payload in channels.unpack(data):
        heard[f"{channel}:{payload[:4].hex()}"] = payload.hex()
    with open(record, "w") as file:
        file.writelines(f"{key} {value}\n" for key, value in heard.items())


def parameters_of(data: bytes, record: str) -> dict[str, Callable[[], float]]:
    """Return the environment parameters of a message, as functions without arguments.

    `RECORD.parameters` gets a line for each: its name, and the value or settings of the sampler.
    """
    found: dict[str, Callable[[], float]] = {}
    for channel, payload in channels.unpack(data):
        if channel != channels.PARAMETERS:
            continue
        (length,) = struct.unpack_from("<i", payload)
        name, rest = payload[4 : 4 + length].decode(), payload[4 + length :]
        if struct.unpack_from("<i", rest)[0] == 0:
            told = struct.unpack("<if", rest)[1:]
            found[name] = functools.partial(float, told[0])
        else:
            told = seed, kind, first, second = struct.unpack("<iiff", rest[4:])
            draw = np.random.default_rng(seed)  # new, since Unity makes a new sampler, too
            found[name] = functools.partial((draw.uniform, draw.normal)[kind], first, second)
        if record:
            with open(f"{record}.parameters", "a") as file:
                file.write(f"{name} {' '.join(map(str, told))}\n")
    return found


def apply_fault(fault: str, count: int) -> None:
    """Apply the fault, if any, at exchange 20."""
    if count != 20:
        return
    if fault == "die":
        print("NullReferenceException: a bug of the game", flush=True)
        os._exit(7)
    if fault == "hang":
        print("thinking", flush=True)
        time.sleep(600)


def main() -> None:
    """Parse the command line and run; unknown arguments are ignored, as by Unity builds."""
    parser = argparse.ArgumentParser(prefix_chars="-", allow_abbrev=False)
    parser.add_argument("--mlagents-port", type=int, default=5004)
    parser.add_argument("--behaviours", default="Walker?team=0")
    parser.add_argument("--actions", default="continuous")
    parser.add_argument("--camera", default="none")
    parser.add_argument("--fault", default="")
    parser.add_argument("--record", default="")
    parser.add_argument("--parameter", default="")  # the goal of each episode
    parser.add_argument("--durations", default="")  # ticks of actions, by agent: 1,1,1/5,5,5
    for name, value in (
        ("agents", 1),
        ("period", 1),
        ("offset", 0),
        ("length", LENGTH),
        ("stagger", 1),
        ("pause", 0),
        ("late", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name in ("cut", "masks", "group", "nan", "replay", "ticks"):
        parser.add_argument(f"--{name}", action="store_true")
    options, _ = parser.parse_known_args()
    try:
        play(options)
    except grpc.RpcError:
        print("the connection was closed", flush=True)


if __name__ == "__main__":
    main()
