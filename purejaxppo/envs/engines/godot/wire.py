"""The connection to a Godot game: JSON messages over a local socket.

The game connects to this process. A message is its length in bytes, a little-endian uint32, and
its text in UTF-8. This process sends `handshake` (without a reply), `env_info`, `reset`, `action`
and `close`, and the game replies to each of the others with one message. This module does not
import JAX.
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
CHUNK = 1 << 16  # bytes; larger ones make Python allocate memory in each call
HANDSHAKE = {"type": "handshake", "major_version": "0", "minor_version": "7"}
ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
DECODE = json.JSONDecoder().decode
QUOTED_CHARACTERS = 80  # of a message, in errors

Message = dict[str, Any]


class WireError(EngineError):
    """A game closed its connection, did not reply, or sent an invalid message."""


class Wire:
    """A connection to a game.

    Args:
        connection: the socket, which `close` closes.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Store the socket."""
        self._socket = connection
        self._received = bytearray()  # bytes that were not returned yet
        self._arrival = select.poll()
        self._arrival.register(connection, select.POLLIN)
        connection.setblocking(False)
        self._wake_at = 0
        self._set_wake_at()

    def send(self, message: Message, seconds: float) -> None:
        """Send a message.

        Raises:
            WireError: the game closed its end, or does not read within `seconds`.
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
        """Return the next message; busy-wait for the first `eager` seconds, then sleep.

        Raises:
            WireError: the game closed its end (""), did not reply within `seconds`, or sent an
                invalid message.
        """
        start = time.monotonic()
        while (message := self.poll()) is None:
            waited = time.monotonic() - start
            if waited >= seconds:
                raise WireError(f"did not reply within {seconds:g} s (env.options.timeout)")
            if waited >= eager:
                self._arrival.poll(1000 * (seconds - waited))
        return message

    def poll(self) -> Message | None:
        """Return the next message; None until it has arrived completely.

        Raises:
            WireError: see `receive`.
        """
        message = self._next_message()
        while message is None and self._read_available():
            message = self._next_message()
        self._set_wake_at()
        return message

    def _set_wake_at(self) -> None:
        """Set the number of unread bytes at which a waiting process wakes up.

        Godot sends the length and the text separately: wait for 5 bytes to wake up once for both.
        Inside a message, wake up for any byte, because one may be missing.
        """
        count = 1 if self._received else 5
        if count != self._wake_at:
            self._wake_at = count
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        return self._socket.fileno()

    def has_unread(self) -> bool:
        """Return True if the game has sent more than was requested."""
        try:
            return bool(self._received) or (bool(self._arrival.poll(0)) and self._read_available())
        except WireError:  # the game closed its end, which the next call detects
            return False

    def close(self) -> None:
        """Close the socket, on which the game quits."""
        self._socket.close()

    def _send_slowly(self, data: bytes, seconds: float) -> None:
        """Send data that does not fit into the system's buffer."""
        self._socket.settimeout(seconds)  # two more system calls per message
        try:
            self._socket.sendall(data)
        finally:
            self._socket.setblocking(False)

    def _read_available(self) -> bool:
        """Read the bytes that have arrived; return False without any."""
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
        """Remove the first message from the received bytes; return None if it is incomplete."""
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
    """Return the beginning of a message, with escapes."""
    text = ascii(data[:QUOTED_CHARACTERS].decode(errors="replace"))
    return text if len(data) <= QUOTED_CHARACTERS else f"{text}..."
