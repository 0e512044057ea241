"""Compressed frames."""

import zlib
from typing import NamedTuple

import numpy as np


class CompressedFrame(NamedTuple):
    """A compressed frame. Without compression, a long video would fill the memory."""

    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, pixels: np.ndarray) -> "CompressedFrame":
        """Compress pixels, uint8 [H, W, 3]."""
        return cls(pixels.shape, zlib.compress(pixels.tobytes(), 1))

    def pixels(self) -> np.ndarray:
        """Return the pixels, uint8 [H, W, 3]."""
        return np.frombuffer(zlib.decompress(self.data), np.uint8).reshape(self.shape)
