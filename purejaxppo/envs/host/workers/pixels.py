"""A Gymnasium environment that observes its rendered images. Needs Gymnasium."""

import os
import sys
from collections import deque
from typing import Any

import gymnasium
import numpy as np


class Pixels(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observe the latest rendered images, uint8 [size, size, 3 * stack], the newest last.

    Args:
        env: an environment that renders arrays.
        size: height and width of the images.
        stack: number of images. An episode starts with copies of its first image.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], size: int, stack: int = 1) -> None:
        """Set the observation space. Nothing is rendered yet."""
        super().__init__(env)
        self.size = size
        self.frames: deque[np.ndarray] = deque(maxlen=stack)
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size, 3 * stack), np.uint8)

    def reset(self, **options: Any) -> Any:
        """Reset the environment and drop earlier images."""
        self.frames.clear()
        return super().reset(**options)

    def observation(self, observation: Any) -> np.ndarray:
        """Return the images instead of the observation."""
        del observation
        frame = self._picture()
        while len(self.frames) < (self.frames.maxlen or 1) - 1:
            self.frames.append(frame)
        self.frames.append(frame)
        return np.concatenate(self.frames, axis=-1)

    def _picture(self) -> np.ndarray:
        from PIL import Image

        frame = np.array(self.env.render())  # a copy: some environments draw into one buffer
        if frame.shape[:2] == (self.size, self.size):
            return frame
        image = Image.fromarray(frame).resize((self.size, self.size), Image.Resampling.BOX)
        return np.asarray(image)


def without_display() -> None:
    """Make MuJoCo and pygame render off-screen without a display. Call it before importing them."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
