"""Drawings of discs in the plane, from above."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from purejaxppo.pictures.canvas import BLUE, FAINT, GREEN, MUTED, ORANGE, Canvas

COLOURS = {"prey": GREEN, "hunter": ORANGE}


def film(
    states: Sequence[Any],
    roles: Sequence[str],
    sizes: Sequence[float],
    fixed_size: float,
    *,
    height: int,
    width: int,
) -> Iterator[np.ndarray]:
    """Yields one frame per state, uint8 [height, width, 3].

    Args:
        states: with `position` [A, 2], `fixed` [L, 2] and `alive` [A].
        roles: of each agent; hunters, prey and others have colours of their own.
        sizes: radii of agents.
        fixed_size: radius of obstacles; 0 for landmarks.
        height: of a frame, in pixels.
        width: of a frame, in pixels.
    """
    scale = min(height, width) / 2.8
    for state in states:
        canvas = Canvas(height, width)
        canvas.view((width / 2, height / 2), scale)
        corners = [(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)]
        canvas.line(corners, FAINT)
        for place in state.fixed:
            canvas.circle(place, (fixed_size or 0.05) * scale, MUTED)
        for place, role, size, alive in zip(state.position, roles, sizes, state.alive, strict=True):
            canvas.circle(place, size * scale, COLOURS.get(role, BLUE) if alive else FAINT)
        yield canvas.frame()
