"""One Unity player, or the editor: its process, the handshake, and its messages.

Nothing here imports JAX.
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


@dataclass(frozen=True)
class UnityLaunch:
    """Start of a player, and what it is told."""

    path: str
    """Of an executable; `editor` waits for Unity's editor."""
    timeout: float = 60.0
    """Seconds for a start, and for a step."""
    show: bool = False
    """Draw a window."""
    arguments: str = ""
    """Further arguments of the command line."""
    port: int = 5004
    """Port of the editor; players are told a free one."""
    package_version: str = "1.1.0"
    """Version of the trainer to report to the player."""
    engine: tuple[bytes, ...] = ()
    """Engine configuration, as side channels' messages."""
    parameters: tuple[tuple[str, Parameter], ...] = ()
    """Environment parameters at the start."""
    custom_channels: str = ""
    """Side channels of the user's own, `file.py:Name`, separated by commas."""

    @property
    def is_editor(self) -> bool:
        """True if there is no process to start."""
        return self.path == EDITOR

    def command(self, port: int) -> list[str]:
        """The command line of a player."""
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
    """The program at a path as given, or with the suffix that builds have on this system.

    Raises:
        MakeError: no such file.
    """
    program = Path(path).expanduser()
    bundle = program / "Contents" / "MacOS"
    programs = sorted(bundle.iterdir()) if bundle.is_dir() else []
    for file in [program, program.with_name(program.name + ".x86_64"), *programs]:
        if file.is_file():
            return runnable(file)
    raise MakeError(
        f"env.name: {path} not found in {Path.cwd()}. Use the executable of a Unity build "
        f"(unity/PATH), or unity/{EDITOR}."
    )


class UnityGame:
    """A player that was started; `connect` waits for it.

    Args:
        spec: its description.
        seed: of its generators.
        number: among several players, for messages.

    Raises:
        MakeError: there is no such program.
        EngineError: the port is taken.
    """

    def __init__(self, launch: UnityLaunch, seed: int, number: int = 0) -> None:
        """Starts it."""
        self.launch, self.seed = launch, seed
        self.brains: dict[str, Message] = {}
        """BrainParameters of the behaviours that it has named so far."""
        self.stats: dict[str, Statistic] = {}
        """Statistics that it has recorded, by name."""
        self.first: Message | None = None
        """Its first RLOutput after a reset, if it is not answered yet."""
        self._connected = False
        self._parameters = dict(launch.parameters)
        self._unsent: dict[str, Parameter] = {}  # to be sent with the next message
        self._count = itertools.count()  # of the messages about parameters
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
        """Waits for its first message, and answers; does nothing if that was done before.

        Raises:
            EngineError: no message arrived in time, or it violates the protocol.
        """
        if self._connected:
            return
        output = self._output("connect")
        if not output.HasField("rl_initialization_output"):
            raise self.error("did not send the first message of ML-Agents when it connected")
        description = output.rl_initialization_output
        with self.named():
            messages.check_version(description.communication_version)
        self._store_behaviours(output)
        self._reply(messages.initialization(self.seed, self.launch.package_version))
        self._output("be ready")
        self._connected = True

    def reset(self) -> Message:
        """Begins all episodes anew; its first RLOutput."""
        self._unsent = dict(self._parameters)
        side_channel = b"".join([*self.launch.engine, *self._side_channel_messages()])
        self._reply(messages.command(messages.RESET, side_channel))
        return self.receive("reset")

    def set_parameters(self, parameters: Mapping[str, Parameter]) -> None:
        """Sends parameters that have changed with the next reset or actions."""
        changed = {k: x for k, x in parameters.items() if self._parameters.get(k) != x}
        self.first = None if changed else self.first  # which had begun with others
        self._parameters |= changed
        self._unsent |= changed

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The environment parameters that it has, or will have with the next message."""
        return dict(self._parameters)

    def send(self, reply: Message) -> None:
        """Sends actions, and what own side channels have to say."""
        reply.unity_input.rl_input.side_channel = b"".join(self._side_channel_messages())
        self._reply(reply)

    def receive(self, doing: str = "step") -> Message:
        """Its next RLOutput.

        Raises:
            EngineError: it ended, hangs, or sent something else.
        """
        output = self._output(doing)
        self._store_behaviours(output)
        with self.named():
            for channel, payload in channels.unpack(output.rl_output.side_channel):
                if channel == channels.STATS:
                    name, value, aggregation = channels.stat(payload)
                    self.stats.setdefault(name, Statistic(aggregation)).add(value)
                elif channel in self._channels:
                    self._channels[channel].receive(payload)
        return output.rl_output

    def error(self, problem: str) -> EngineError:
        """An error that names the player and ends with the last lines of its log."""
        return self.engine.error(problem)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Names the player in a ProtocolError from inside."""
        try:
            yield
        except ProtocolError as error:
            raise self.error(str(error)) from error

    def request_exit(self) -> None:
        """Tells the player to quit, and closes the connection."""
        self._reply(messages.command(messages.QUIT, status=messages.QUIT_STATUS))
        self._server.hang_up()
        self.engine.request_exit()

    def close(self) -> None:
        """Ends the player, and removes its log; a second call does nothing."""
        self.request_exit()
        self._server.close()
        self.engine.close()

    def kill(self) -> None:
        """Ends a player that may hang, at once, and keeps its log."""
        self.request_exit()
        self._server.close(wait=False)
        self.engine.kill()

    def _output(self, doing: str) -> Message:
        """The next message's UnityOutput."""
        try:
            with self.named():
                data = self.engine.wait_for(self._server.receive, doing, self.launch.timeout)
                message = messages.parse(data)
        except CallCancelled:
            raise self.engine.exit_error(doing) from None
        if message.header.status != messages.OK:
            raise self.error(f"reported that it quits, with status {message.header.status}")
        return message.unity_output

    def _reply(self, message: Message) -> None:
        self._server.reply(message.SerializeToString())

    def _side_channel_messages(self) -> Iterator[bytes]:
        """Messages about parameters that are new, and of own side channels."""
        for name, parameter in self._unsent.items():
            # Another seed each time: with the same one Unity would draw the same numbers again.
            seed = np.random.SeedSequence((self.seed, next(self._count))).generate_state(1)[0] >> 1
            yield parameter.message(name, int(seed))
        self._unsent = {}
        for channel, side_channel in self._channels.items():
            for payload in side_channel.send():
                yield channels.pack(channel, payload)

    def _store_behaviours(self, output: Message) -> None:
        """Remembers the behaviours that a message introduces."""
        for brain in output.rl_initialization_output.brain_parameters:
            self.brains[brain.brain_name] = brain


def custom_channels(names: str) -> dict[uuid.UUID, SideChannel]:
    """A player's side channels of the user's own, by id.

    Raises:
        LoadError: a name is no class, or one without an id.
    """
    where = "env.options.channels"
    by_id = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        channel = references.load(name, where)()
        try:
            by_id[uuid.UUID(str(channel.id))] = channel
        except (AttributeError, ValueError) as error:
            raise references.LoadError(
                f"{where}: the attribute id of {name} is not a UUID. Copy it from the side channel "
                f"in Unity."
            ) from error
    return by_id
