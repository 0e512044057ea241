"""PNG observations as arrays. Nothing here imports JAX."""

import io
from collections.abc import Iterator, Sequence

import numpy as np

from purejaxppo.envs.engines.unity.messages import ProtocolError

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def decode(data: bytes, channels: int, mapping: Sequence[int] = ()) -> np.ndarray:
    """One or several PNGs, one after the other, as uint8 [C, H, W].

    Args:
        data: PNGs of one size, with three channels each.
        channels: C.
        mapping: the i-th of the PNGs' channels belongs to channel mapping[i] of the observation,
            which is the mean of all that belong to it; to none if that is -1. Without a mapping
            one channel is the mean of the first PNG's, several are the PNGs' first ones.

    Raises:
        ProtocolError: it is no PNG, or has too few channels.
    """
    try:
        pixels = np.concatenate([_pixels(png) for png in split(data)], axis=0)
    except (OSError, SyntaxError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ProtocolError(f"sent an image that cannot be read: {reason}") from error
    if len(mapping):
        return _mapped(pixels, channels, mapping)
    if channels == 1:
        return _mean(pixels[:3])[None]
    if len(pixels) < channels:
        raise ProtocolError(
            f"sent an image of {len(pixels)} channels, but its shape declares {channels} channels"
        )
    return pixels[:channels]


def split(data: bytes) -> Iterator[bytes]:
    """The PNGs in a string of bytes.

    Raises:
        ProtocolError: it has other bytes, or one breaks off.
    """
    start = 0
    while start < len(data) or not data:
        if data[start : start + 8] != SIGNATURE:
            raise ProtocolError(f"sent an image of {len(data)} bytes that is not a PNG")
        position, chunk = start + 8, b""
        while chunk != b"IEND":
            length, chunk = (
                int.from_bytes(data[position : position + 4]),
                data[position + 4 : position + 8],
            )
            position += 12 + length
            if position > len(data):
                raise ProtocolError(f"sent a truncated PNG of {len(data)} bytes")
        yield data[start:position]
        start = position


def _pixels(png: bytes) -> np.ndarray:
    """One PNG, uint8 [3, H, W]."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def _mapped(pixels: np.ndarray, channels: int, mapping: Sequence[int]) -> np.ndarray:
    """The channels that a mapping makes of those of the PNGs."""
    targets = np.asarray(mapping)
    wanted = set(range(channels))
    if len(targets) != len(pixels) or not wanted <= set(mapping) <= wanted | {-1}:
        raise ProtocolError(
            f"sent an image of {len(pixels)} channels with an invalid mapping {list(mapping)} to "
            f"{channels} channels"
        )
    return np.stack([_mean(pixels[targets == i]) for i in range(channels)])


def _mean(pixels: np.ndarray) -> np.ndarray:
    """The mean of channels [n, H, W], rounded to the nearest whole number."""
    return np.rint(pixels.mean(axis=0)).astype(np.uint8)
