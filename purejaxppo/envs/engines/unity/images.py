"""PNG observations as arrays. This module does not import JAX."""

import io
from collections.abc import Iterator, Sequence

import numpy as np

from purejaxppo.envs.engines.unity.messages import ProtocolError

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def decode(data: bytes, channels: int, mapping: Sequence[int] = ()) -> np.ndarray:
    """Decode one or several concatenated PNGs to uint8 [C, H, W].

    Args:
        data: PNGs of one size with three channels each.
        channels: number of channels, C.
        mapping: channel i of the PNGs belongs to channel mapping[i] of the observation, or to none
            if this is -1. A channel of the observation is the mean of its PNG channels. Without a
            mapping, a single channel is the mean of the first PNG, and several channels are the
            first ones of the PNGs.

    Raises:
        ProtocolError: the data are not PNGs, or have too few channels.
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
    """Yield the PNGs in a string of bytes.

    Raises:
        ProtocolError: the data contain other bytes, or a PNG is truncated.
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
    """Decode one PNG to uint8 [3, H, W]."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def _mapped(pixels: np.ndarray, channels: int, mapping: Sequence[int]) -> np.ndarray:
    """Map the channels of the PNGs to those of the observation; see `decode`."""
    targets = np.asarray(mapping)
    wanted = set(range(channels))
    if len(targets) != len(pixels) or not wanted <= set(mapping) <= wanted | {-1}:
        raise ProtocolError(
            f"sent an image of {len(pixels)} channels with an invalid mapping {list(mapping)} to "
            f"{channels} channels"
        )
    return np.stack([_mean(pixels[targets == i]) for i in range(channels)])


def _mean(pixels: np.ndarray) -> np.ndarray:
    """Return the mean of channels [n, H, W], rounded to the nearest integer."""
    return np.rint(pixels.mean(axis=0)).astype(np.uint8)
