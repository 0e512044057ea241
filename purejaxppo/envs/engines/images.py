"""Images in observations, for videos of simulators without rendering."""

from typing import Any

import jax
import numpy as np

RGB, RGBA = 3, 4


def first_image(obs: Any, *, channels_first: bool = False) -> np.ndarray | None:
    """Return the first image in one agent's observation, uint8 [H, W, 3]; None without an image.

    Args:
        obs: pytree of arrays. Images are [H, W, C], uint8 or, with 1 or 3 channels, floats from 0
            to 1. More channels are stacked images, of which the last is used.
        channels_first: images are [C, H, W] without alpha; otherwise 4 channels are RGBA.
    """
    for leaf in jax.tree.leaves(obs):
        image = np.asarray(leaf)
        if image.ndim != 3:
            continue
        image = np.moveaxis(image, 0, -1) if channels_first else image
        channels = image.shape[-1]
        if image.dtype == np.float32 and channels in (1, RGB):
            image = np.round(255 * np.clip(image, 0, 1)).astype(np.uint8)
        if image.dtype == np.uint8:
            if channels == RGBA and not channels_first:
                return image[..., :RGB]
            last = image[..., -RGB:] if channels % RGB == 0 else image[..., -1:]
            return np.broadcast_to(last, (*image.shape[:2], RGB))
    return None
