"""Side channels: settings sent with actions, and messages of a player that are not about agents.

A side channel's bytes are messages one after the other: a 16-byte id (a UUID in `bytes_le`), the
payload's length as a little-endian int32, the payload. Nothing here imports JAX.
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
"""Statistics that a player records."""
RESOLUTION, QUALITY, TIME_SCALE, TARGET_FPS, CAPTURE_FPS = range(5)
"""Kinds of engine configuration."""


class SideChannel(Protocol):
    """A side channel of a user's own; each player has an object of its own."""

    id: str
    """Its UUID, as in the player's code."""

    def receive(self, payload: bytes) -> None:
        """Called for each message of the player to this channel."""
        ...

    def send(self) -> Iterable[bytes]:
        """Payloads to send with the next actions."""
        ...


@dataclass
class Statistic:
    """A statistic that a player has recorded, since it was looked at last."""

    aggregation: int
    """0: an average, 1: the most recent value, 2: a sum, 3: a histogram."""
    count: int = 0
    total: float = 0.0
    last: float = 0.0

    def add(self, value: float) -> None:
        """One more value."""
        self.count, self.total, self.last = self.count + 1, self.total + value, value


def pack(channel: uuid.UUID, payload: bytes) -> bytes:
    """One message of a channel."""
    return channel.bytes_le + struct.pack("<i", len(payload)) + payload


def unpack(data: bytes) -> Iterator[tuple[uuid.UUID, bytes]]:
    """The messages in a side channel's bytes.

    Raises:
        ProtocolError: a message is cut off.
    """
    position = 0
    while position < len(data):
        start = position + 20
        length = struct.unpack_from("<i", data, position + 16)[0] if start <= len(data) else -1
        if not 0 <= length <= len(data) - start:
            raise ProtocolError(
                f"sent truncated side channel data: {len(data)} bytes, cut off at byte {position}"
            )
        yield uuid.UUID(bytes_le=data[position : position + 16]), data[start : start + length]
        position = start + length


def engine(kind: int, *values: float) -> bytes:
    """An engine configuration: int32 kind, then its values, int32 or, of TIME_SCALE, float32."""
    form = "f" if kind == TIME_SCALE else "i" * len(values)
    return pack(ENGINE, struct.pack(f"<i{form}", kind, *values))


def parameter(name: str, value: float) -> bytes:
    """An environment parameter: its name, int32 0 for a number, float32."""
    return pack(PARAMETERS, _text(name) + struct.pack("<if", 0, value))


def sampler(name: str, kind: int, numbers: Sequence[float], seed: int) -> bytes:
    """An environment parameter that Unity draws: its name, int32 1, the seed, the kind, 2 float32.

    Args:
        name: of the parameter.
        kind: 0: uniform, from the least to the largest number; 1: Gaussian, of a mean and a
            standard deviation.
        numbers: two.
        seed: of the draws, int32.
    """
    return pack(PARAMETERS, _text(name) + struct.pack("<iiiff", 1, seed, kind, *numbers))


def stat(payload: bytes) -> tuple[str, float, int]:
    """A statistic's (name, value, aggregation).

    Raises:
        ProtocolError: the payload is none.
    """
    try:
        (length,) = struct.unpack_from("<i", payload)
        value, aggregation = struct.unpack_from("<fi", payload, 4 + length)
        return payload[4 : 4 + length].decode(), value, aggregation
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"sent an invalid statistic of {len(payload)} bytes") from error


def _text(text: str) -> bytes:
    """A string: int32 length, then ASCII."""
    data = text.encode("ascii")
    return struct.pack("<i", len(data)) + data
