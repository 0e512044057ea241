"""A compressed picture."""

import zlib
from typing import NamedTuple

import numpy as np


class CompressedFrame(NamedTuple):
    """A compressed picture: a long video would fill the memory."""

    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, pixels: np.ndarray) -> "CompressedFrame":
        """From pixels, uint8 [H, W, 3]."""
        return cls(pixels.shape, zlib.compress(pixels.tobytes(), 1))

    def pixels(self) -> np.ndarray:
        """The pixels, uint8 [H, W, 3]."""
        return np.frombuffer(zlib.decompress(self.data), np.uint8).reshape(self.shape)
