"""A Godot game: its process, and the messages over its connection. Nothing here imports JAX."""

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

SEND_SECONDS = 1.0  # limit for sending the first messages, which fit into the buffer
MAX_WIRES = 64  # connections without an answer; beyond it, the oldest is dropped


@dataclass(frozen=True)
class GodotLaunch:
    """Start of games.

    Args:
        command: the program and its arguments, but for those of one game; (): from outside.
        timeout: seconds to connect, and for an answer.
        restarts: largest number of restarts of games that end, hang or send invalid messages.
        port: to listen on; 0: a free one for each game.
        record: games write an image of each of their frames; needs a display.
    """

    command: tuple[str, ...]
    timeout: float
    restarts: int = 0
    port: int = 0
    record: bool = False


class GodotGame:
    """One game: its process and its connection.

    Args:
        launch: how it is started.
        number: for messages.
        seed: of its generator.
    """

    def __init__(self, launch: GodotLaunch, number: int, seed: int) -> None:
        """Starts the game, and does not wait for it."""
        self.number = number
        self._launch = launch
        self._server = listen(launch.port)
        self._wire: Wire | None = None
        self._frames: Path | None = None
        self.layout: GodotLayout | None = None
        """Its agents; None until it has connected."""
        self.engine: GameHandle
        if launch.command:
            port = self._server.getsockname()[1]
            program, *arguments = launch.command
            folder = new_folder()
            if launch.record:
                self._frames = folder
                arguments = ["--write-movie", str(self._frames / "f.png"), *arguments]
            command = [program, *arguments, f"--port={port}", f"--env_seed={seed}"]
            self.engine = GameProcess(f"game {number}", command, folder)
        else:
            self.engine = GameHandle(f"the game on port {launch.port}")
            logger.warning("Press Play in Godot's editor within %g s.", launch.timeout)

    def connect(self) -> GodotLayout:
        """Waits for the game, and requests its spaces; returns them at once if they are known.

        Other programs may also connect to the port: the first one that answers is the game.

        Raises:
            EngineError: it did not connect, or did not answer.
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
        """Returns the description that a connection has sent; None after `seconds` without one.

        Args:
            wires: connections without an answer yet; new ones are added, and those that close or
                send anything else are removed.
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
        """Drops a connection after a `WireError`, with a warning."""
        try:
            yield
        except WireError as error:
            wires.remove(wire)
            wire.close()
            logger.warning(
                "%s: closed the connection of another program, which %s",
                self.engine.name,
                str(error) or "closed its end",
            )

    def send(self, message: Message) -> None:
        """Sends a message."""
        assert self._wire is not None
        try:
            self._wire.send(message, self._launch.timeout)
        except WireError as error:
            raise self._game_error(error, "read a message") from None

    def send_actions(self, actions: list[Message]) -> None:
        """Sends one action for each agent."""
        assert self._wire is not None
        assert self.layout is not None
        assert len(actions) == self.layout.size  # the game accepts fewer, and goes on
        if self._wire.has_unread():
            raise self.engine.error("sent a message without a request. Send one reply per request")
        self.send({"type": "action", "action": actions})

    def receive_step(self, eager: float = 0.0) -> Message:
        """The result of the actions that were sent; for `eager` seconds it is waited for awake.

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
            raise self.engine.error("sent a step reply without obs, reward and done") from None
        if counts != [size] * 4:
            raise self.engine.error(
                f"has {size} agents, but its step reply has {counts[0]} obs, {counts[1]} reward, "
                f"{counts[2]} done, {counts[3]} info. Send one entry per agent in each list"
            )
        return message

    def finish_reset(self) -> list[Message]:
        """First observations, once `reset` was sent.

        The game reads its first action one window of ticks late, and may say `done` in its answer:
        so one action of zeros is sent, and only the observation of its answer is used.
        """
        assert self.layout is not None
        self._receive("reset", "reset")
        self.send_actions(self.layout.zero_actions)
        obs: list[Message] = self.receive_step()["obs"]
        return obs

    def render_frame(self) -> np.ndarray | None:
        """The frame that was drawn last, uint8 [H, W, 3]; None of a game that is not recorded.

        Frames are files, of which all earlier ones are removed.
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
        """Ends the connection and the game; a second call does nothing."""
        self.request_exit()
        self.engine.close()

    def kill(self) -> None:
        """Ends a game that may hang, at once, and keeps its log."""
        self.request_exit()
        self.engine.kill()

    def request_exit(self) -> None:
        """Asks the game to quit and closes the connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            with contextlib.suppress(WireError):
                wire.send({"type": "close"}, 0.1)
            wire.close()
        self._server.close()
        self.engine.request_exit()

    def _receive(self, kind: str, doing: str, eager: float = 0.0) -> Message:
        """The next message, which is to be of one type."""
        assert self._wire is not None
        try:
            message = self._wire.receive(self._launch.timeout, eager)
        except WireError as error:
            raise self._game_error(error, doing) from None
        if message.get("type") != kind:
            raise self.engine.error(
                f"sent a message of type {str(message.get('type'))[:40]!r}, expected {kind!r}"
            )
        return message

    def _game_error(self, error: WireError, doing: str) -> EngineError:
        """Convert a connection's error to the game's; an empty one means that the game ended."""
        problem = str(error)
        return self.engine.error(problem) if problem else self.engine.exit_error(doing)
