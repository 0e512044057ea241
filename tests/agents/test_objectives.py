"""Policy losses, hand-worked, and custom ones; errors for invalid ones."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import own_code as examples
from support.paths import ROOT

from purejaxppo import make_train
from purejaxppo.agents import objectives
from purejaxppo.agents.schedules import hyperparams_of
from purejaxppo.config.schema import PPOConfig

FILE = ROOT / "tests/support/own_code.py"
RATIOS = jnp.array([0.5, 2.0, 2.0, 4.0])
ADVANTAGES = jnp.array([1.0, 1.0, -1.0, -1.0])
KL = RATIOS - 1 - np.log(RATIOS)
EXPECTED = {
    "clip": [-0.5, -1.2, 2.0, 4.0],
    "dual_clip": [-0.5, -1.2, 2.0, 3.0],  # at most 3 where the advantage is -1
    "spo": [0.125, 0.5, 4.5, 26.5],  # -r A + |A| (r - 1)² / 0.4
    "kl": np.array([-0.5, -2.0, 2.0, 4.0]) + 0.5 * KL,
    "clip_kl": np.array([-0.5, -1.2, 2.0, 4.0]) + 0.5 * KL,
    "imitate": -np.log(RATIOS),
}
"""Losses of `RATIOS` and `ADVANTAGES`, with a clip range of 0.2."""


@pytest.mark.toy
class TestBuiltIn(chex.TestCase):
    """Compiled and not, with arrays of JAX and of NumPy."""

    @chex.all_variants(with_pmap=False)
    def test_each_objective_by_hand(self):
        assert EXPECTED.keys() == objectives.OBJECTIVES.keys()
        settings = PPOConfig(clip_eps=0.2, dual_clip=3.0, kl_coef=0.5)
        hp = hyperparams_of(settings, 1)
        for name, expected in EXPECTED.items():
            loss = self.variant(objectives.OBJECTIVES[name])(jnp.log(RATIOS), ADVANTAGES, hp)
            np.testing.assert_allclose(loss, expected, rtol=1e-5, err_msg=name)


@pytest.mark.toy
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_losses_and_gradients_are_finite_at_the_end_of_a_clip_schedule(name):
    """A schedule multiplies the clip range by 0 at the end. At the ratio 1, the loss is -A or 0."""
    hp = hyperparams_of(PPOConfig(clip_eps=0.0), 1)
    loss, gradient = jax.value_and_grad(objectives.OBJECTIVES[name])(
        jnp.zeros(()), jnp.array(2.0), hp
    )
    assert loss == (0.0 if name == "imitate" else -2.0)
    assert np.isfinite(gradient)
    assert name != "spo" or gradient == -2.0


@pytest.mark.toy
@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - {"imitate"}))
def test_a_column_of_advantages_is_rejected(name):
    """A column [B, 1] and a row [B] would become [B, B]."""
    with pytest.raises(AssertionError):
        objectives.OBJECTIVES[name](
            jnp.log(RATIOS), ADVANTAGES[:, None], hyperparams_of(PPOConfig(), 1)
        )


@pytest.mark.toy
def test_a_custom_objective_by_hand():
    objective = objectives.make(PPOConfig(objective=f"{FILE}:plain_gradient"))
    loss = objective(jnp.log(jnp.array([1.0, 2.0, 0.5])), jnp.array([3.0, -1.0, 4.0]), None)
    np.testing.assert_allclose(loss, [-3.0, 2.0, -2.0], rtol=1e-6)


def test_a_custom_copy_of_the_clip_objective_learns_the_same(make_config):
    def clip(log_ratio, advantage, hp):
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1 - hp.clip_eps, 1 + hp.clip_eps)
        return -jnp.minimum(ratio * advantage, clipped * advantage)

    results = [
        jax.jit(make_train(make_config(ppo={"objective": objective}, total_timesteps=96)))(
            jax.random.key(0)
        )
        for objective in ("clip", clip)
    ]
    jax.tree.map(np.testing.assert_array_equal, results[0].agent.params, results[1].agent.params)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            f"{FILE}:two_arguments",
            r"takes \(log_ratio, advantage\). It must take \(log_ratio",
        ),
        (f"{FILE}:gives_a_number", r"returns float32 \[\]. It must return float32 \[4\]"),
        (f"{FILE}:gives_integers", r"returns int32 \[4\]. It must return float32 \[4\]"),
        (f"{FILE}:has_an_if", r"line \d+ of .*own_code.py needs the value of an array that JAX"),
        (f"{FILE}:gives_nan", r"not finite. The first ones are \[nan nan nan\]"),
        (f"{FILE}:draws", "two calls differ"),
        (f"{FILE}:draws_an_array", "two calls differ"),
        (f"{FILE}:divides", r"line \d+ of .*own_code.py raises ZeroDivisionError"),
        (f"{FILE}:NOTHING", "is a NoneType. It must be a function"),
        (examples.Walk(), "is a Walk. It must be a function"),
    ],
)
def test_an_invalid_objective_gets_a_one_sentence_error(objective, message):
    with pytest.raises(ValueError, match=f"ppo.objective.*{message}") as caught:
        objectives.make(PPOConfig(objective=objective))
    assert "\n" not in str(caught.value)
