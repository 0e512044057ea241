"""Action masks, hand-worked."""

from functools import partial

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo import spaces
from purejaxppo.agents.networks import action_masks

pytestmark = pytest.mark.toy

SPACE = spaces.Dict.of(
    {"a": spaces.MultiDiscrete((2, 3)), "b": spaces.Box((2,)), "c": spaces.Discrete(2)}
)
PARAMS = jnp.arange(11.0)
"""Five logits, two means and log deviations, two logits."""
MASK = jnp.array([1, 0, 1, 1, 0, 0, 1])


class TestForbid(chex.TestCase):
    """Compiled and not, with arrays of JAX and of NumPy."""

    @chex.all_variants(with_pmap=False)
    def test_masks_of_composite_spaces_apply_to_their_discrete_parts(self):
        forbid = self.variant(partial(action_masks.forbid, space=SPACE, impossible=-9.0))
        expected = [0, -9, 2, 3, -9, 5, 6, 7, 8, -9, 10]
        np.testing.assert_array_equal(forbid(PARAMS, MASK), expected)
        np.testing.assert_array_equal(forbid(PARAMS, {"a": MASK[:5], "c": MASK[5:]}), expected)


def test_a_mask_of_another_length_than_the_logits_is_an_error():
    with pytest.raises(ValueError, match="has 6 entries, but there are 7 discrete actions"):
        action_masks.forbid(PARAMS, MASK[:6], SPACE, -9.0)


def test_a_mask_with_another_number_of_rows_is_rejected():
    with pytest.raises(AssertionError):
        action_masks.forbid(PARAMS, jnp.stack([MASK, MASK]), SPACE, -9.0)
