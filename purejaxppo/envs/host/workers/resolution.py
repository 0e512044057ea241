"""Warnings about observations with a large offset, where float32 loses the digits that change.

Observations are stored as float32 before they are normalised. Positions in UTM metres and Unix
times are examples: most of their digits are constant. This module does not import JAX, because
worker processes import it.
"""

from collections.abc import Sequence

import numpy as np

from purejaxppo.spaces import element_name

NUM_COMPARED = 16
"""Number of first observations of each environment that are compared."""
SMALLEST_OFFSET = 1000.0
"""Smallest magnitude that gives a warning."""
ENOUGH_STEPS = 8
"""Values that span at least this many float32 steps give no warning."""
NOISE = 100
"""Values that span at most this many float64 steps count as constant."""


class Range:
    """Minimum and maximum of the first values of a part of an observation.

    Args:
        name: name of the part.
    """

    def __init__(self, name: str) -> None:
        """Start without values."""
        self.name = name
        self.count = 0
        self.low = np.array(np.nan)
        self.high = np.array(np.nan)

    @property
    def is_open(self) -> bool:
        """True until `NUM_COMPARED` observations were added."""
        return self.count < NUM_COMPARED

    def add(self, part: np.ndarray) -> None:
        """Add the values of an observation, unless float32 can hold all values of their dtype."""
        self.count += 1
        if part.dtype.kind not in "iuf" or np.can_cast(part.dtype, np.float32):
            return
        wide = part.astype(np.float64)
        self.low, self.high = np.fmin(self.low, wide), np.fmax(self.high, wide)


@np.errstate(all="ignore")
def precision_warning(ranges: Sequence[Sequence[Range]]) -> str:
    """Describe the first part with values that differ by less than float32 can represent.

    Args:
        ranges: ranges of the parts of each environment.

    Returns:
        A warning; "" without such a part.
    """
    for ranges_of_part in zip(*ranges, strict=True):
        low = np.fmin.reduce([part.low for part in ranges_of_part])
        high = np.fmax.reduce([part.high for part in ranges_of_part])
        size, spread = np.fmax(np.abs(low), np.abs(high)), high - low
        step = np.spacing(size.astype(np.float32)).astype(np.float64)
        changes = spread > NOISE * np.spacing(size)
        lost = (size >= SMALLEST_OFFSET) & changes & (spread < ENOUGH_STEPS * step)
        if lost.any():
            index = tuple(np.argwhere(lost)[0].tolist())
            return (
                f"{element_name(ranges_of_part[0].name, index)} is near {high[index]:.8g} and its "
                f"first values differ by only {spread[index]:.3g}, but float32 values there are "
                f"{step[index]:.3g} apart. Subtract a constant in the environment or in a "
                f"wrapper (--env.options wrappers FILE.py:CLASS), such as a subclass of "
                f"gymnasium.wrappers.TransformObservation."
            )
    return ""
