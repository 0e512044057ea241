"""The connection to a Godot game: frames of JSON over a local socket. Nothing here imports JAX.

The game connects to us. A frame is a length, four bytes with the lowest first, and so many bytes of
UTF-8. We send `handshake` (not answered), `env_info`, `reset`, `action` and `close`; the game
answers each of the others with a message of its own.
"""

import contextlib
import json
import select
import socket
import struct
import time
from typing import Any

from purejaxppo.envs.engines.process import EngineError

LARGEST_FRAME = 1 << 26  # bytes of one message: 64 MiB, eight agents with eight megapixels each
CHUNK = 1 << 16  # bytes; for more, Python allocates memory at each call
HANDSHAKE = {"type": "handshake", "major_version": "0", "minor_version": "7"}
ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
DECODE = json.JSONDecoder().decode
QUOTED_CHARACTERS = 80  # characters of a message that is quoted

Message = dict[str, Any]


class WireError(EngineError):
    """A game closed its connection, did not answer, or sent an invalid message."""


class Wire:
    """A connection to a game.

    Args:
        connection: the socket, which `close` closes.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Stores the socket."""
        self._socket = connection
        self._received = bytearray()  # and not yet returned
        self._arrival = select.poll()
        self._arrival.register(connection, select.POLLIN)
        connection.setblocking(False)
        # Godot sends a frame's length and its text apart: wake up for both at once.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 5)

    def send(self, message: Message, seconds: float) -> None:
        """Sends a message.

        Raises:
            WireError: the game has closed its end, or does not read within `seconds`.
        """
        data = ENCODE(message).encode()
        frame = struct.pack("<I", len(data)) + data
        try:
            with contextlib.suppress(BlockingIOError):
                frame = frame[self._socket.send(frame) :]
            if frame:
                self._send_slowly(frame, seconds)
        except TimeoutError:
            raise WireError(f"did not read a message within {seconds:g} s") from None
        except OSError:
            raise WireError("") from None

    def receive(self, seconds: float, eager: float = 0.0) -> Message:
        """The next message, within `seconds`; for `eager` seconds this process does not sleep.

        Raises:
            WireError: the game closed its end (""), did not answer, or sent an invalid message.
        """
        began = time.monotonic()
        while (message := self.poll()) is None:
            waited = time.monotonic() - began
            if waited >= seconds:
                raise WireError(f"did not reply within {seconds:g} s (env.options.timeout)")
            if waited >= eager:
                self._arrival.poll(1000 * (seconds - waited))
        return message

    def poll(self) -> Message | None:
        """Returns the next message; None until all of it has arrived.

        Raises:
            WireError: as `receive`.
        """
        message = self._next_message()
        if message is None and self._read_available():
            message = self._next_message()
        return message

    def fileno(self) -> int:
        """The socket's file descriptor."""
        return self._socket.fileno()

    def has_unread(self) -> bool:
        """True if the game has sent more than was requested."""
        try:
            return bool(self._received) or (bool(self._arrival.poll(0)) and self._read_available())
        except WireError:  # it has closed its end, which the next call finds
            return False

    def close(self) -> None:
        """Closes the socket, which makes the game quit."""
        self._socket.close()

    def _send_slowly(self, data: bytes, seconds: float) -> None:
        """Sends what does not fit into the system's buffer."""
        self._socket.settimeout(seconds)  # for each message, two more calls to the system
        try:
            self._socket.sendall(data)
        finally:
            self._socket.setblocking(False)

    def _read_available(self) -> bool:
        """Reads the bytes that have arrived; False without any."""
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            raise WireError("")
        self._received += data
        return True

    def _next_message(self) -> Message | None:
        """Removes the first message from the bytes that were received; None if it is not whole."""
        if len(self._received) < 4:
            return None
        end = 4 + int.from_bytes(self._received[:4], "little")
        if end - 4 > LARGEST_FRAME:
            raise WireError(
                f"announced a message of {end - 4:,} bytes, more than {LARGEST_FRAME:,}. It does "
                f"not use the protocol of Godot RL Agents"
            )
        if len(self._received) < end:
            return None
        data = bytes(self._received[4:end])
        del self._received[:end]
        return _message(data)


def _message(data: bytes) -> Message:
    try:
        message = DECODE(data.decode())
    except (ValueError, RecursionError):
        raise WireError(f"sent invalid JSON: {quoted(data)}") from None
    if not isinstance(message, dict):
        raise WireError(f"sent an invalid message: {quoted(data)}")
    return message


def quoted(data: bytes) -> str:
    """The beginning of a message, printable."""
    text = ascii(data[:QUOTED_CHARACTERS].decode(errors="replace"))
    return text if len(data) <= QUOTED_CHARACTERS else f"{text}..."
