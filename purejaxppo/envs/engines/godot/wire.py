"""The connection to a Godot game: frames of JSON over a local socket. Nothing here imports JAX.

The game connects to us. A frame is a length, four bytes with the lowest first, and so many bytes of
UTF-8. We send `handshake` (not answered), `env_info`, `reset`, `action` and `close`; the game
answers each of the others with a message of its own.
"""

import array
import contextlib
import fcntl
import json
import socket
import struct
import termios
import time
from typing import Any

from purejaxppo.envs.engines.process import EngineError

LARGEST_FRAME = 1 << 26  # bytes of one message: 64 MiB, eight agents with eight megapixels each
CHUNK = 1 << 16  # of more, Python asks the system for memory at each call
VERSION = {"type": "handshake", "major_version": "0", "minor_version": "7"}
ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
DECODE = json.JSONDecoder().decode
SHOWN = 80  # characters of a message that is quoted


class WireError(EngineError):
    """A game closed its connection, was silent, or sent what is no message."""


class Wire:
    """A connection to a game.

    Args:
        connection: the socket, which `close` closes.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Stores the socket."""
        self._socket = connection
        self._read = bytearray()  # received, and not yet returned
        self._seconds = 0.0
        self._arrived = array.array("i", [0])
        connection.settimeout(None)
        # Godot sends a frame's length and its text apart: wake up for both at once.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 5)

    def send(self, message: dict[str, Any], seconds: float) -> None:
        """Sends a message.

        Raises:
            WireError: the game has closed its end, or does not read within `seconds`.
        """
        data = ENCODE(message).encode()
        self._limit(seconds)
        try:
            self._socket.sendall(struct.pack("<I", len(data)) + data)
        except BlockingIOError:
            raise WireError(f"did not read a message within {seconds:g} s") from None
        except OSError:
            raise WireError("") from None

    def receive(self, seconds: float, eager: float = 0.0) -> dict[str, Any]:
        """The next message, within `seconds`; for `eager` seconds this process does not sleep.

        Raises:
            WireError: the game closed its end (""), was silent, or sent what is no message.
        """
        self._limit(seconds)
        deadline = time.monotonic() + seconds
        read = self._read
        if not read:
            data = self._at_once(eager) or self._some(CHUNK, seconds)
            if int.from_bytes(data[:4], "little") == len(data) - 4:  # all of a message, as mostly
                return _message(data[4:])
            read += data
        while (missing := self._missing()) > 0:
            self._more(min(CHUNK, missing), deadline, seconds)
        return self._next()

    def poll(self) -> dict[str, Any] | None:
        """Returns the next message; None until all of it has arrived.

        Raises:
            WireError: as `receive`.
        """
        if self._missing() > 0:
            with contextlib.suppress(BlockingIOError):
                try:
                    data = self._socket.recv(CHUNK, socket.MSG_DONTWAIT)
                except ConnectionError:
                    data = b""
                if not data:
                    raise WireError("")
                self._read += data
        return None if self._missing() > 0 else self._next()

    def fileno(self) -> int:
        """The socket's file descriptor."""
        return self._socket.fileno()

    def _missing(self) -> int:
        """Number of bytes to read before checking again; 0 once the next message is complete."""
        read = self._read
        if len(read) < 4:
            return CHUNK
        size = int.from_bytes(read[:4], "little")
        if size > LARGEST_FRAME:
            raise WireError(
                f"announced a message of {size:,} bytes, more than {LARGEST_FRAME:,}: "
                f"this is not the protocol of Godot RL Agents"
            )
        return max(0, 4 + size - len(read))

    def _next(self) -> dict[str, Any]:
        """Removes a complete message from the bytes that were read, and returns it."""
        size = int.from_bytes(self._read[:4], "little")
        data = bytes(self._read[4 : 4 + size])
        del self._read[: 4 + size]
        return _message(data)

    def surplus(self) -> bool:
        """True if the game has sent more than it was asked for."""
        if self._read:
            return True
        try:
            fcntl.ioctl(self._socket, termios.FIONREAD, self._arrived)
        except OSError:  # it has closed its end, which the next call finds
            return False
        return self._arrived[0] > 0

    def close(self) -> None:
        """Closes the socket, upon which the game quits."""
        self._socket.close()

    def _limit(self, seconds: float) -> None:
        """Sets the system's own limit for a call: Python's costs two more calls for each."""
        if seconds == self._seconds:
            return
        whole, part = divmod(max(1, round(seconds * 1e6)), 1_000_000)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", whole, part))
        self._seconds = seconds

    def _more(self, most: int, deadline: float, seconds: float) -> None:
        """Appends what has arrived; waits if it is nothing."""
        if time.monotonic() >= deadline:
            raise WireError(f"did not answer within {seconds:g} s")
        self._read += self._some(most, seconds)

    def _at_once(self, eager: float) -> bytes:
        """Reads what arrives within `eager` seconds, if anything does."""
        end = time.perf_counter() + eager
        while time.perf_counter() < end:
            try:
                return self._socket.recv(CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                break
        return b""

    def _some(self, most: int, seconds: float) -> bytes:
        """Reads what has arrived; waits if it is nothing."""
        try:
            data = self._socket.recv(most)
        except BlockingIOError:
            raise WireError(f"did not answer within {seconds:g} s") from None
        except OSError:
            data = b""
        if not data:
            raise WireError("")
        return data


def _message(data: bytes) -> dict[str, Any]:
    try:
        message = DECODE(data.decode())
    except (ValueError, RecursionError):
        raise WireError(f"sent what is no JSON: {quoted(data)}") from None
    if not isinstance(message, dict):
        raise WireError(f"sent what is no message: {quoted(data)}")
    return message


def quoted(data: bytes) -> str:
    """The beginning of a message, printable."""
    text = ascii(data[:SHOWN].decode(errors="replace"))
    return text if len(data) <= SHOWN else f"{text}..."
