"""Bounds of spaces."""

import numpy as np
import pytest

from purejaxppo.spaces import Box

LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("low", "high", "bounded"),
    [
        (-1.0, 1.0, True),
        (-1e38, 1e38, True),
        (-2e38, 2e38, False),  # a range of 4e38, and float32 ends at 3.4e38
        (-LARGEST, LARGEST, False),
        (0.0, LARGEST, False),
        (-float(np.finfo(np.float64).max), float(np.finfo(np.float64).max), False),
        ((-1.0, -LARGEST), (1.0, LARGEST), False),
        (0.0, np.inf, False),
    ],
)
def test_ranges_that_float32_cannot_hold_are_unbounded(low, high, bounded):
    assert Box((2,), low, high).bounded == bounded


def test_the_largest_number_of_a_type_is_no_bound():
    limit = np.full(2, np.finfo(np.float64).max)
    assert Box.between(-limit, limit, "float32") == Box((2,))
    one_side = Box.between(np.zeros(2), limit, "float32")
    assert (one_side.low, one_side.high) == (0.0, np.inf)
