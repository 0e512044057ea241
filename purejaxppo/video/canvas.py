"""A canvas for smooth drawings with Pillow, and its colours.

It draws at twice the size and scales down.
"""

from typing import Any

import numpy as np

PAPER = (250, 250, 248)
INK = (52, 58, 66)
MUTED = (150, 156, 164)
FAINT = (226, 229, 232)
BLUE = (46, 111, 178)
ORANGE = (222, 125, 44)
GREEN = (70, 150, 92)
RED = (200, 70, 66)
SERIES = (
    BLUE,
    ORANGE,
    GREEN,
    RED,
    (132, 94, 178),
    (33, 160, 170),
    (214, 100, 160),
    (176, 150, 40),
    (120, 86, 70),
    (110, 120, 132),
)


def font(size: int) -> Any:
    """Return Pillow's default font at `size` pixels."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


class Canvas:
    """Draws in pixels of the final frame, or in world units after `view`."""

    def __init__(self, height: int, width: int) -> None:
        """Start with an empty frame."""
        from PIL import Image, ImageDraw

        self.height, self.width = height, width
        self.image = Image.new("RGB", (2 * width, 2 * height), PAPER)
        self.pen = ImageDraw.Draw(self.image)
        self.view((width / 2, height / 2), 1.0, flip=False)

    def view(self, origin: tuple, scale: float, *, flip: bool = True) -> None:
        """Map the world point (0, 0) to pixel `origin` and a unit to `scale` pixels.

        With `flip`, y points up.
        """
        self.scale = 2 * scale
        self.origin = 2 * np.asarray(origin, float)
        self.axes = np.array([1.0, -1.0 if flip else 1.0]) * self.scale

    def _at(self, points) -> list[tuple[float, float]]:
        return [
            tuple(p) for p in self.origin + np.asarray(points, float).reshape(-1, 2) * self.axes
        ]

    def line(self, points, colour: tuple = INK, width: float = 1.5) -> None:
        """Draw a polyline with round joints; `width` in pixels."""
        points = self._at(points)
        self.pen.line(points, fill=colour, width=max(1, round(2 * width)), joint="curve")
        if width >= 4:
            for x, y in points:
                self.pen.ellipse([x - width, y - width, x + width, y + width], fill=colour)

    def polygon(self, points, colour: tuple) -> None:
        """Draw a filled polygon."""
        self.pen.polygon(self._at(points), fill=colour)

    def circle(self, centre, radius: float, colour: tuple) -> None:
        """Draw a filled circle; `radius` in pixels."""
        (x, y), r = self._at([centre])[0], 2 * radius
        self.pen.ellipse([x - r, y - r, x + r, y + r], fill=colour)

    def text(self, position: tuple, text: str, colour: tuple = INK, size: int = 12, anchor="la"):
        """Draw a string at a pixel of the final frame."""
        x, y = position
        self.pen.text((2 * x, 2 * y), text, fill=colour, font=font(2 * size), anchor=anchor)

    def frame(self) -> np.ndarray:
        """Return the frame, uint8 [height, width, 3]."""
        return np.asarray(self.image.reduce(2))


def fit(frame: np.ndarray, height: int, width: int, background: str = "black") -> np.ndarray:
    """Scale a frame, uint8 [H, W, 3], to [height, width, 3], and preserve its proportions."""
    from PIL import Image, ImageOps

    lanczos = Image.Resampling.LANCZOS
    image = ImageOps.pad(Image.fromarray(frame), (width, height), lanczos, background)
    return np.asarray(image)
