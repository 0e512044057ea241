"""`make_train`: sums of more steps than int32 can represent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo import AuxiliaryLoss, make_train
from purejaxppo.agents.diagnostics import zero_metrics
from purejaxppo.runs import pure_training
from purejaxppo.runs.pure_training import curves, merged, split
from purejaxppo.types import Episodes


@pytest.mark.toy
def test_steps_of_a_chunk_fit_into_int32():
    """Points of 7, 8 and 0 updates, of which 3 fit: three chunks each."""
    assert split(np.array([7, 8, 0]), 3).tolist() == [[2, 2, 3], [2, 3, 3], [0, 0, 0]]
    assert split(np.array([7, 8]), 8).tolist() == [[7], [8]]
    most = 2**31 - 1
    assert split(np.array([most]), 1024).sum() == most
    assert split(np.array([most]), 1024).max() == 1024


@pytest.mark.toy
def test_steps_and_lengths_beyond_int32_are_summed():
    """Two points of three chunks of 2^30 steps each, and of half as many episodes of two steps."""
    steps = jnp.full(6, 2**30, jnp.int32)
    episodes = Episodes(steps // 2, jnp.full(6, 2.0**29), steps, jnp.zeros(6, jnp.int32))
    chunks = jax.tree.map(lambda x: jnp.ones(6, x.dtype), zero_metrics(()))
    chunks = chunks._replace(env_steps=steps, episodes=episodes)
    found = curves(merged(chunks, 2))
    assert found.env_steps.tolist() == [3 * 2**30, 6 * 2**30]
    assert found.episodic_length.tolist() == [2, 2]
    assert found.episodic_return.tolist() == [1, 1]
    assert found.losses.epochs.tolist() == [1, 1]
    one = curves(merged(chunks, 6))
    assert one.env_steps.tolist() == [(i + 1) * 2**30 for i in range(6)]


@pytest.mark.full
def test_a_point_of_several_chunks_equals_a_point_of_one(make_config, monkeypatch, key):
    config = make_config(total_timesteps=5 * 48, ppo={"num_epochs": 1})
    one = jax.jit(make_train(config, num_points=2))(key)
    assert repr(one) == "<TrainResult: curves [2]>"
    monkeypatch.setattr(pure_training, "MOST_STEPS", 48)
    several = jax.jit(make_train(config, num_points=2))(key)
    jax.tree.map(np.testing.assert_array_equal, several.agent, one.agent)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), several, one)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_points": 0}, r"^num_points = 0: must be a whole number of at least 1\.$"),
        ({"num_points": 2.5}, r"^num_points = 2\.5: must be a whole number"),
        ({"config": "cartpole.yaml"}, r"^config = 'cartpole\.yaml': must be a Config\. Use load"),
        (
            {"parts": lambda parts: None},
            r"^parts: the function returns None\. It must return P",
        ),
    ],
)
def test_invalid_arguments_get_a_one_sentence_error(arguments, message, make_config):
    with pytest.raises(ValueError, match=message):
        make_train(**{"config": make_config(), **arguments})


def test_two_metrics_of_one_name_are_an_error(make_config):
    loss = AuxiliaryLoss(lambda outputs, rows: rows.value, name="clipped_targets")
    config = make_config(ppo={"critic": "hl_gauss", "terms": (loss,)})
    with pytest.raises(ValueError, match=r"^two metrics are named losses/clipped_targets\. Rename"):
        make_train(config)
