"""Losses, hand-worked."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.agents import losses

pytestmark = pytest.mark.toy

RATIOS = jnp.array([0.5, 0.5, 1.0, 1.0, 1.5, 1.5])
ADVANTAGES = jnp.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])


class TestLosses(chex.TestCase):
    """Compiled and not, with arrays of JAX and of NumPy."""

    @chex.all_variants(with_pmap=False)
    def test_the_surrogate_takes_the_smaller_objective(self):
        loss = self.variant(losses.clipped_surrogate)(jnp.log(RATIOS), ADVANTAGES, 0.2)
        np.testing.assert_allclose(loss, [-0.5, 0.8, -1.0, 1.0, -1.2, 1.5], rtol=1e-6)

    @chex.all_variants(with_pmap=False)
    def test_the_surrogate_has_no_gradient_where_it_is_clipped(self):
        gradient = self.variant(
            jax.grad(lambda x: losses.clipped_surrogate(x, ADVANTAGES, 0.2).sum())
        )(jnp.log(RATIOS))
        # -advantage * ratio, but 0 for a good action above the range and a bad one below it.
        np.testing.assert_allclose(gradient, [-0.5, 0.0, -1.0, 1.0, 0.0, 1.5], rtol=1e-6)

    @chex.all_variants(with_pmap=False)
    def test_value_loss_is_half_the_squared_error(self):
        np.testing.assert_array_equal(
            self.variant(losses.squared_error)(jnp.array([1.0, 4.0]), jnp.array([3.0, 1.0])),
            [2.0, 4.5],
        )

    @chex.all_variants(with_pmap=False)
    def test_clipped_value_loss_is_the_larger_of_both_losses(self):
        # old 0, range 0.5. Towards the target beyond the range, the clipped value's error is
        # larger; away from the target, the value's own; within the range, they are the same.
        value, old, target = jnp.array([2.0, -2.0, 0.25]), jnp.zeros(3), jnp.array([2.0, 2.0, 1.0])
        np.testing.assert_array_equal(
            self.variant(losses.clipped_squared_error)(value, old, target, 0.5),
            [1.125, 8.0, 0.28125],
        )

    @chex.all_variants(with_pmap=False)
    def test_a_value_that_moved_too_far_towards_its_target_has_no_gradient(self):
        def loss(value):
            return losses.clipped_squared_error(value, jnp.zeros(2), jnp.full(2, 3.0), 0.5).sum()

        gradient = self.variant(jax.grad(loss))(jnp.array([1.0, 0.25]))
        np.testing.assert_array_equal(gradient, [0.0, -2.75])

    @chex.all_variants(with_pmap=False)
    def test_approx_kl_by_hand_and_in_expectation(self):
        np.testing.assert_allclose(
            self.variant(losses.approx_kl)(jnp.log(jnp.array([1.0, 2.0, 0.5]))),
            [0.0, 1 - np.log(2), -0.5 + np.log(2)],
            atol=1e-6,
        )
        old, new = np.array([0.2, 0.3, 0.5]), np.array([0.4, 0.4, 0.2])
        kl = self.variant(losses.approx_kl)(jnp.log(jnp.asarray(new / old)))
        estimate = old @ np.asarray(kl)
        np.testing.assert_allclose(estimate, old @ np.log(old / new), rtol=1e-5)

    @chex.all_variants(with_pmap=False)
    def test_clipfrac_counts_ratios_outside_the_range(self):
        np.testing.assert_array_equal(
            self.variant(losses.clipfrac)(jnp.log(jnp.array([0.7, 0.85, 1.0, 1.15, 1.3])), 0.2),
            [1, 0, 0, 0, 1],
        )


@pytest.mark.parametrize(
    ("loss", "count"),
    [(losses.clipped_surrogate, 2), (losses.squared_error, 2), (losses.clipped_squared_error, 3)],
)
def test_columns_and_integers_are_rejected(loss, count):
    """A column [B, 1] and a row [B] would become [B, B]."""
    rows = [jnp.ones(3)] * (count - 1)
    limit = () if loss is losses.squared_error else (0.2,)
    for wrong in (jnp.ones((3, 1)), jnp.ones(3, int)):
        with pytest.raises(AssertionError):
            loss(*rows, wrong, *limit)


def test_episode_kl_sums_the_log_ratios_of_each_episode_by_hand():
    """Environment 0 ends an episode at step 1, with an invalid step 2; environment 1 does not.

    Environment 2 has no valid step. The sums are 0.1 + 0.2, 0.5 and -0.1 - 0.2 - 0.3.
    """
    log_ratio = jnp.array([[0.1, -0.1, 9.0], [0.2, -0.2, 9.0], [9.0, 9.0, 9.0], [0.5, -0.3, 9.0]])
    start = jnp.array([[1, 0, 0], [0, 0, 0], [0, 0, 0], [1, 0, 1]], bool)
    valid = jnp.array([[1, 1, 0], [1, 1, 0], [0, 0, 0], [1, 1, 0]], bool)
    expected = sum(np.exp(x) - 1 - x for x in (0.3, 0.5, -0.6)) / 3
    out = losses.episode_kl(log_ratio, start, valid, lambda x: x)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    halves = jax.vmap(
        lambda *rows: losses.episode_kl(*rows, lambda x: jax.lax.psum(x, "shard")),
        in_axes=1,
        axis_name="shard",
    )(*(x[:, :, None] for x in (log_ratio, start, valid)))
    np.testing.assert_allclose(halves, np.full(3, expected), rtol=1e-5)
