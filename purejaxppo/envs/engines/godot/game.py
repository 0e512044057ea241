"""A Godot game: its process and its messages. This module does not import JAX."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from purejaxppo.envs.engines.godot.spaces import VALUE_ERRORS, GodotLayout, layout_of
from purejaxppo.envs.engines.godot.wire import (
    HANDSHAKE,
    QUOTED_CHARACTERS,
    Message,
    Wire,
    WireError,
)
from purejaxppo.envs.engines.process import (
    EngineError,
    GameHandle,
    GameProcess,
    accept,
    listen,
    new_folder,
)
from purejaxppo.envs.host.workers.errors import MakeError

logger = logging.getLogger("purejaxppo")

SEND_SECONDS = 1.0  # for the first messages, which fit into the buffer
MAX_WIRES = 64  # connections without a reply; more close the oldest


@dataclass(frozen=True)
class GodotLaunch:
    """Settings to start games.

    Args:
        command: program and arguments shared by all games; (): the user starts the game.
        timeout: time limit in seconds to connect, and of each reply.
        restarts: maximum number of restarts of games that end, time out or send invalid messages.
        port: port to listen on; 0: a free port for each game.
        record: games write each of their frames to a file; needs a display.
    """

    command: tuple[str, ...]
    timeout: float
    restarts: int = 0
    port: int = 0
    record: bool = False


class GodotGame:
    """One game: its process and its connection.

    Args:
        launch: settings to start it.
        number: index of the game, for messages.
        seed: seed of the game's random generator.
    """

    def __init__(self, launch: GodotLaunch, number: int, seed: int) -> None:
        """Start the game without waiting for it."""
        self.number = number
        self._launch = launch
        self._server = listen(launch.port)
        self._wire: Wire | None = None
        self._frames: Path | None = None
        self.layout: GodotLayout | None = None
        """The game's agents; None until it has connected."""
        self.engine: GameHandle
        if launch.command:
            port = self._server.getsockname()[1]
            program, *arguments = launch.command
            folder = new_folder()
            if launch.record:
                self._frames = folder
                arguments = ["--write-movie", str(self._frames / "f.png"), *arguments]
            # First, because arguments after `--` are not visible to the plugin.
            command = [program, f"--port={port}", f"--env_seed={seed}", *arguments]
            self.engine = GameProcess(f"game {number}", command, folder)
        else:
            self.engine = GameHandle(f"the game on port {launch.port}")
            logger.warning("Press Play in Godot's editor within %g s.", launch.timeout)

    def connect(self) -> GodotLayout:
        """Wait for the game and request its spaces; return them immediately if known.

        Other programs may also connect to the port. The first one that replies is the game.

        Raises:
            EngineError: the game did not connect or reply.
            MakeError: its spaces are not supported.
        """
        if self.layout is not None:
            return self.layout
        seconds = self._launch.timeout
        wires: list[Wire] = []

        def attempt(wait_seconds: float) -> Message | None:
            return self._description(wires, wait_seconds)

        try:
            info = self.engine.wait_for(attempt, "connect", seconds)
        except EngineError:
            if not wires or not self.engine.alive():
                raise
            info = self.engine.wait_for(attempt, "describe itself", seconds)
        finally:
            for wire in wires:
                wire.close()
        try:
            self.layout = layout_of(info)
        except MakeError as error:
            raise MakeError(f"{self.engine.name}: {error}") from error
        return self.layout

    def _description(self, wires: list[Wire], seconds: float) -> Message | None:
        """Return the description that a connection has sent; None after `seconds` without one.

        Args:
            wires: connections without a reply yet. New ones are added. Those that close or send
                anything else are removed.
            seconds: time limit.
        """
        sources: list[Any] = [self._server, *wires]
        ready: list[Any] = wait(sources, seconds)
        for wire in [wire for wire in wires if wire in ready]:
            with self._dropped_after_error(wires, wire):
                message = wire.poll()
                if message is not None and message.get("type") != "env_info":
                    raise WireError(f"sent {str(message)[:QUOTED_CHARACTERS]}")
                if message is not None:
                    wires.remove(wire)
                    self._wire = wire
                    return message
        connection = accept(self._server, 0.0) if self._server in ready else None
        if connection is not None:
            wire = Wire(connection)
            wires.append(wire)
            with self._dropped_after_error(wires, wire):
                wire.send(HANDSHAKE, SEND_SECONDS)
                wire.send({"type": "env_info"}, SEND_SECONDS)
        if len(wires) > MAX_WIRES:
            with self._dropped_after_error(wires, wires[0]):
                raise WireError("did not reply")
        return None

    @contextlib.contextmanager
    def _dropped_after_error(self, wires: list[Wire], wire: Wire) -> Iterator[None]:
        """Close a connection after a `WireError`, with a warning."""
        try:
            yield
        except WireError as error:
            wires.remove(wire)
            wire.close()
            logger.warning(
                "%s: disconnected another program from the game's port, because it %s",
                self.engine.name,
                str(error) or "closed its end",
            )

    def send(self, message: Message) -> None:
        """Send a message."""
        assert self._wire is not None
        try:
            self._wire.send(message, self._launch.timeout)
        except WireError as error:
            raise self._game_error(error, "read a message") from None

    def send_actions(self, actions: list[Message]) -> None:
        """Send one action for each agent."""
        assert self._wire is not None
        assert self.layout is not None
        assert len(actions) == self.layout.size  # the game would accept fewer without an error
        if self._wire.has_unread():
            raise self.engine.error("sent a message without a request. Send one reply per request")
        self.send({"type": "action", "action": actions})

    def receive_step(self, eager: float = 0.0) -> Message:
        """Return the result of the actions that were sent; busy-wait for `eager` seconds.

        Returns:
            A message whose `obs`, `reward`, `done` and `info` are lists with an entry per agent.
        """
        message = self._receive("step", "step", eager)
        assert self.layout is not None
        size = self.layout.size
        try:
            message["info"] = message.get("info") or [{}] * size
            lists = [message[key] for key in ("obs", "reward", "done", "info")]
            counts = [len(x) if isinstance(x, list) else -1 for x in lists]
        except VALUE_ERRORS:
            raise self.engine.error("sent a step reply without obs, reward or done") from None
        if counts != [size] * 4:
            raise self.engine.error(
                f"has {size} agents, but its step reply has {counts[0]} obs, {counts[1]} reward, "
                f"{counts[2]} done, {counts[3]} info. Send one entry per agent in each list"
            )
        return message

    def finish_reset(self) -> list[Message]:
        """Return the first observations after `reset` was sent.

        After a reset the game ignores actions for one period, and its first reply can still report
        the old episode's `done`. This method therefore sends one action of zeros, and uses only the
        observations of the reply.
        """
        assert self.layout is not None
        self._receive("reset", "reset")
        self.send_actions(self.layout.zero_actions)
        obs: list[Message] = self.receive_step()["obs"]
        return obs

    def render_frame(self) -> np.ndarray | None:
        """Return the latest frame, uint8 [H, W, 3]; None if the game is not recorded.

        Frames are files. All earlier ones are removed.
        """
        files = sorted(self._frames.glob("f*.png")) if self._frames else []
        for file in files[:-1]:
            file.unlink()
        if not files:
            return None
        from PIL import Image

        with Image.open(files[-1]) as image:
            return np.asarray(image.convert("RGB"))

    def close(self) -> None:
        """End the connection and the game. A second call does nothing."""
        self.request_exit()
        self.engine.close()

    def kill(self) -> None:
        """Kill a game that may hang, and keep its log."""
        self.request_exit()
        self.engine.kill()

    def request_exit(self) -> None:
        """Ask the game to exit, and close the connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            with contextlib.suppress(WireError):
                wire.send({"type": "close"}, 0.1)
            wire.close()
        self._server.close()
        self.engine.request_exit()

    def _receive(self, kind: str, phase: str, eager: float = 0.0) -> Message:
        """Return the next message, which must have the type `kind`."""
        assert self._wire is not None
        try:
            message = self._wire.receive(self._launch.timeout, eager)
        except WireError as error:
            raise self._game_error(error, phase) from None
        if message.get("type") != kind:
            raise self.engine.error(
                f"sent a message of type {str(message.get('type'))[:40]!r}, expected {kind!r}"
            )
        return message

    def _game_error(self, error: WireError, phase: str) -> EngineError:
        """Convert an error of the connection to an `EngineError`.

        An empty error means that the game closed the connection: it has ended.
        """
        problem = str(error)
        return self.engine.error(problem) if problem else self.engine.exit_error(phase)
