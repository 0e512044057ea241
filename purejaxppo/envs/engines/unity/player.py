"""One Unity game, or the editor: process, handshake and messages.

This module does not import JAX.
"""

import contextlib
import itertools
import logging
import shlex
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from purejaxppo.config import references
from purejaxppo.config.plain import user_path
from purejaxppo.envs.engines.process import (
    EDITOR,
    EngineError,
    GameHandle,
    GameProcess,
    new_folder,
    runnable,
)
from purejaxppo.envs.engines.unity import channels, messages
from purejaxppo.envs.engines.unity.channels import SideChannel, Statistic
from purejaxppo.envs.engines.unity.messages import Message, ProtocolError
from purejaxppo.envs.engines.unity.parameters import Parameter
from purejaxppo.envs.engines.unity.server import CallCancelled, Server
from purejaxppo.envs.host.workers.errors import MakeError

logger = logging.getLogger("purejaxppo")

TICKS = "ticks"
"""Statistic with the number of game ticks since the last message."""


@dataclass(frozen=True)
class UnityLaunch:
    """Settings to start a game and to send to it."""

    path: str
    """Path of an executable; `editor` waits for Unity's editor."""
    timeout: float = 60.0
    """Seconds to wait until the game starts, and for each step."""
    show: bool = False
    """Show a window."""
    arguments: str = ""
    """More command-line arguments."""
    port: int = 5004
    """Port for the editor. Games that are started get a free port."""
    package_version: str = "1.1.0"
    """Version of ML-Agents to report to the game."""
    engine: tuple[bytes, ...] = ()
    """Engine configuration, as side channel messages."""
    parameters: tuple[tuple[str, Parameter], ...] = ()
    """Environment parameters at the start."""
    custom_channels: str = ""
    """Custom side channels, `file.py:Name`, separated by commas."""

    @property
    def is_editor(self) -> bool:
        """True if the game runs in the editor."""
        return self.path == EDITOR

    def command(self, port: int) -> list[str]:
        """Return the command line of a game."""
        headless = [] if self.show else ["-nographics", "-batchmode"]
        arguments = shlex.split(self.arguments)
        return [
            executable(self.path),
            "--mlagents-port",
            str(port),
            "-logFile",
            "-",
            *headless,
            *arguments,
        ]


def executable(path: str) -> str:
    """Return the program at a path, or at the path with the suffix of builds on this system.

    Raises:
        MakeError: no such file.
    """
    program = user_path(path)
    bundle = program / "Contents" / "MacOS"
    programs = sorted(bundle.iterdir()) if bundle.is_dir() else []
    for file in [program, program.with_name(program.name + ".x86_64"), *programs]:
        if file.is_file():
            return runnable(file)
    raise MakeError(
        f"env.name: {path} not found in {Path.cwd()}. Use the executable of a Unity build "
        f"(unity/PATH), or unity/{EDITOR} for a game in Unity's editor."
    )


class UnityGame:
    """A game that was started; `connect` waits for it.

    Args:
        launch: settings to start it.
        seed: seed of the game's random generators.
        number: index among several games, for messages.

    Raises:
        MakeError: the program does not exist.
        EngineError: the port cannot be opened.
    """

    def __init__(self, launch: UnityLaunch, seed: int, number: int = 0) -> None:
        """Start the game."""
        self.launch, self.seed = launch, seed
        self.brains: dict[str, Message] = {}
        """BrainParameters of the behaviours that the game has described so far."""
        self.stats: dict[str, Statistic] = {}
        """Statistics that the game has recorded, by name."""
        self.ticks = 1.0
        """Game time since the previous message: its statistic `ticks`, or 1 without one."""
        self.first_output: Message | None = None
        """First RLOutput after a reset, until it is answered."""
        self._connected = False
        self._parameters = dict(launch.parameters)
        self._unsent: dict[str, Parameter] = {}  # for the next message
        self._count = itertools.count()  # counts messages about parameters
        self._channels = custom_channels(launch.custom_channels)
        self._server = Server(launch.port if launch.is_editor else 0)
        try:
            self.engine = self._start(number)
        except BaseException:
            self._server.close()
            raise

    def _start(self, number: int) -> GameHandle:
        if self.launch.is_editor:
            logger.warning("Press Play in Unity's editor within %g s.", self.launch.timeout)
            return GameHandle("the editor")
        command = self.launch.command(self._server.port)
        return GameProcess(f"game {number}", command, new_folder())

    def connect(self) -> None:
        """Wait for the first message and reply to it. A second call does nothing.

        Raises:
            EngineError: no message arrived in time, or it violates the protocol.
        """
        if self._connected:
            return
        output = self._output("connect")
        if not output.HasField("rl_initialization_output"):
            raise self.error(
                "connected, but did not send the first message of ML-Agents. Build the game with "
                "the package com.unity.ml-agents"
            )
        description = output.rl_initialization_output
        with self.named():
            messages.check_version(description.communication_version)
        self._store_behaviours(output)
        self._reply(messages.initialization(self.seed, self.launch.package_version))
        self._output("be ready")
        self._connected = True

    def reset(self) -> Message:
        """Start new episodes; return the first RLOutput."""
        self._unsent = dict(self._parameters)
        side_channel = b"".join([*self.launch.engine, *self._side_channel_messages()])
        self._reply(messages.command(messages.RESET, side_channel))
        return self.receive("reset")

    def set_parameters(self, parameters: Mapping[str, Parameter]) -> None:
        """Send changed parameters with the next reset or actions."""
        changed = {k: x for k, x in parameters.items() if self._parameters.get(k) != x}
        self.first_output = None if changed else self.first_output  # of old values
        self._parameters |= changed
        self._unsent |= changed

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Environment parameters, including those sent with the next message."""
        return dict(self._parameters)

    def send(self, reply: Message) -> None:
        """Send actions and the messages of side channels."""
        reply.unity_input.rl_input.side_channel = b"".join(self._side_channel_messages())
        self._reply(reply)

    def receive(self, phase: str = "step") -> Message:
        """Return the next RLOutput.

        Raises:
            EngineError: the game ended, timed out, or sent an invalid message.
        """
        output = self._output(phase)
        self._store_behaviours(output)
        ticks = []
        with self.named():
            for channel, payload in channels.unpack(output.rl_output.side_channel):
                if channel == channels.STATS:
                    name, value, aggregation = channels.stat(payload)
                    self.stats.setdefault(name, Statistic(aggregation)).add(value)
                    ticks += [value] if name == TICKS else []
                elif channel in self._channels:
                    self._channels[channel].receive(payload)
        self.ticks = sum(ticks) if ticks else 1.0
        return output.rl_output

    def error(self, problem: str) -> EngineError:
        """Return an error with the game's name, the problem and the end of its log."""
        return self.engine.error(problem)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Convert a ProtocolError to an error that names the game."""
        try:
            yield
        except ProtocolError as error:
            raise self.error(str(error)) from error

    def request_exit(self) -> None:
        """Send the game a command to quit, and close the connection."""
        self._reply(messages.command(messages.QUIT, status=messages.QUIT_STATUS))
        self._server.hang_up()
        self.engine.request_exit()

    def close(self) -> None:
        """End the game and remove its log. A second call does nothing."""
        self.request_exit()
        self._server.close()
        self.engine.close()

    def kill(self) -> None:
        """Kill a game that may hang, and keep its log."""
        self.request_exit()
        self._server.close(wait=False)
        self.engine.kill()

    def _output(self, phase: str) -> Message:
        """Return the UnityOutput of the next message."""
        try:
            with self.named():
                data = self.engine.wait_for(self._server.receive, phase, self.launch.timeout)
                message = messages.parse(data)
        except CallCancelled:
            raise self.engine.exit_error(phase) from None
        if message.header.status != messages.OK:
            raise self.error(f"reported that it quits, with status {message.header.status}")
        return message.unity_output

    def _reply(self, message: Message) -> None:
        self._server.reply(message.SerializeToString())

    def _side_channel_messages(self) -> Iterator[bytes]:
        """Yield messages about new parameters, and those of custom side channels."""
        for name, parameter in self._unsent.items():
            # A new seed each time: with the same seed Unity would sample the same numbers again.
            seed = np.random.SeedSequence((self.seed, next(self._count))).generate_state(1)[0] >> 1
            yield parameter.message(name, int(seed))
        self._unsent = {}
        for channel, side_channel in self._channels.items():
            for payload in side_channel.send():
                yield channels.pack(channel, payload)

    def _store_behaviours(self, output: Message) -> None:
        """Store the behaviours that a message describes."""
        for brain in output.rl_initialization_output.brain_parameters:
            self.brains[brain.brain_name] = brain


def custom_channels(names: str) -> dict[uuid.UUID, SideChannel]:
    """Create a game's custom side channels, by id.

    Raises:
        LoadError: a name is not a class, or its id is not a UUID.
    """
    field = "env.options.channels"
    by_id = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        channel = references.load(name, field)()
        try:
            by_id[uuid.UUID(str(channel.id))] = channel
        except (AttributeError, ValueError) as error:
            raise references.LoadError(
                f"{field}: the attribute `id` of {name} is not a UUID. Copy the channel id from "
                f"the C# class of the side channel."
            ) from error
    return by_id
