"""Side channels: settings sent with actions, and messages of a game that do not concern agents.

A side channel's data are consecutive messages: a 16-byte id (a UUID in `bytes_le`), the length of
the payload as a little-endian int32, and the payload. This module does not import JAX.
"""

import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from purejaxppo.envs.engines.unity.messages import ProtocolError

ENGINE = uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
"""Engine configuration."""
PARAMETERS = uuid.UUID("534c891e-810f-11ea-a9d0-822485860400")
"""Environment parameters."""
STATS = uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
"""Statistics that a game records."""
RESOLUTION, QUALITY, TIME_SCALE, TARGET_FPS, CAPTURE_FPS = range(5)
"""Kinds of engine configuration."""


class SideChannel(Protocol):
    """A custom side channel. Each game has a separate object."""

    id: str
    """UUID of the channel, as in the game's code."""

    def receive(self, payload: bytes) -> None:
        """Handle one message of the game to this channel."""
        ...

    def send(self) -> Iterable[bytes]:
        """Return payloads to send with the next actions."""
        ...


@dataclass
class Statistic:
    """A statistic that a game has recorded since it was last read."""

    aggregation: int
    """0: mean, 1: most recent value, 2: sum, 3: histogram."""
    count: int = 0
    total: float = 0.0
    last: float = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.count, self.total, self.last = self.count + 1, self.total + value, value


def pack(channel: uuid.UUID, payload: bytes) -> bytes:
    """Return one message of a channel."""
    return channel.bytes_le + struct.pack("<i", len(payload)) + payload


def unpack(data: bytes) -> Iterator[tuple[uuid.UUID, bytes]]:
    """Yield the messages in a side channel's data.

    Raises:
        ProtocolError: a message is truncated.
    """
    position = 0
    while position < len(data):
        start = position + 20
        length = struct.unpack_from("<i", data, position + 16)[0] if start <= len(data) else -1
        if not 0 <= length <= len(data) - start:
            raise ProtocolError(
                f"sent truncated side channel data: of {len(data)} bytes, the message at byte "
                f"{position} is incomplete"
            )
        yield uuid.UUID(bytes_le=data[position : position + 16]), data[start : start + length]
        position = start + length


def engine(kind: int, *values: float) -> bytes:
    """Return an engine setting: int32 kind, then its values, int32 or, for TIME_SCALE, float32."""
    form = "f" if kind == TIME_SCALE else "i" * len(values)
    return pack(ENGINE, struct.pack(f"<i{form}", kind, *values))


def parameter(name: str, value: float) -> bytes:
    """Return a constant environment parameter: name, int32 0, float32."""
    return pack(PARAMETERS, _text(name) + struct.pack("<if", 0, value))


def sampler(name: str, kind: int, numbers: Sequence[float], seed: int) -> bytes:
    """Return a random environment parameter: name, int32 1, seed, kind, two float32.

    Args:
        name: name of the parameter.
        kind: 0: uniform between two numbers; 1: Gaussian with mean and standard deviation.
        numbers: the two numbers.
        seed: seed of Unity's sampler, int32.
    """
    return pack(PARAMETERS, _text(name) + struct.pack("<iiiff", 1, seed, kind, *numbers))


def stat(payload: bytes) -> tuple[str, float, int]:
    """Return a statistic's (name, value, aggregation).

    Raises:
        ProtocolError: the payload is invalid.
    """
    try:
        (length,) = struct.unpack_from("<i", payload)
        value, aggregation = struct.unpack_from("<fi", payload, 4 + length)
        return payload[4 : 4 + length].decode(), value, aggregation
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(
            f"sent an invalid message of {len(payload)} bytes for StatsRecorder. Check the version "
            f"of ML-Agents in the game"
        ) from error


def _text(text: str) -> bytes:
    """Encode a string: int32 length, then ASCII."""
    data = text.encode("ascii")
    return struct.pack("<i", len(data)) + data
