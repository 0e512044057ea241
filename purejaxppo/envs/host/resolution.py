"""Observations with a large offset, of which float32 loses the digits that change.

Observations are stored as float32, and normalised only then. A place in UTM metres or a Unix time
has most of its digits before the decimal point. Nothing here imports JAX, since worker processes
import it.
"""

from collections.abc import Sequence

import numpy as np

FIRST = 16
"""Number of first observations of each environment that are compared."""
OFFSET = 1000.0
"""Smallest magnitude to warn about."""
MULTIPLES = 8
"""Number of multiples of float32's resolution that values have to span."""
NOISE = 100
"""Number of multiples of float64's resolution that are rounding errors of a constant."""


class Range:
    """The least and the greatest of the first values of a part of an observation.

    Args:
        name: of the part.
    """

    def __init__(self, name: str) -> None:
        """Starts without values."""
        self.name = name
        self.count = 0
        self.low = np.array(np.nan)
        self.high = np.array(np.nan)

    @property
    def is_open(self) -> bool:
        """True until `FIRST` observations were added."""
        return self.count < FIRST

    def add(self, part: np.ndarray) -> None:
        """Adds the values of an observation, if float32 cannot hold all of their dtype."""
        self.count += 1
        if part.dtype.kind not in "iuf" or np.can_cast(part.dtype, np.float32):
            return
        wide = part.astype(np.float64)
        self.low, self.high = np.fmin(self.low, wide), np.fmax(self.high, wide)


def lost_digits(ranges: Sequence[Sequence[Range]]) -> str:
    """A sentence about the first part with values that differ by less than float32 can tell.

    Args:
        ranges: of the parts of each environment.

    Returns:
        The sentence; "" if there is no such part.
    """
    for same in zip(*ranges, strict=True):
        low = np.fmin.reduce([part.low for part in same])
        high = np.fmax.reduce([part.high for part in same])
        size, spread = np.fmax(np.abs(low), np.abs(high)), high - low
        with np.errstate(over="ignore", invalid="ignore"):
            step = np.spacing(size.astype(np.float32)).astype(np.float64)
            changes = spread > NOISE * np.spacing(size)
            lost = (size >= OFFSET) & changes & (spread < MULTIPLES * step)
        if lost.any():
            where = tuple(np.argwhere(lost)[0].tolist())
            index = f"[{', '.join(map(str, where))}]" if where else ""
            return (
                f"{same[0].name}{index} is near {high[where]:.8g} and its first values differ by "
                f"{spread[where]:.3g}, but float32 has only multiples of {step[where]:.3g} there. "
                f"Subtract an offset, in the environment or in a wrapper such as a subclass of "
                f"gymnasium.wrappers.TransformObservation (--env.options wrappers FILE.py:CLASS)."
            )
    return ""
