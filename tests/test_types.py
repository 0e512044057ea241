"""Every field of a TrainState is sharded, saved, copied, or exempted by name."""

from dataclasses import fields

import jax
import numpy as np
from support.trees import assert_same, filled

from purejaxppo import imitation, population
from purejaxppo.checkpoint import Checkpoints, Progress
from purejaxppo.config import IntrinsicConfig
from purejaxppo.learner import STATE_AXES, Learner
from purejaxppo.types import TrainState

NAMES = [field.name for field in fields(TrainState)]


def test_every_field_of_a_state_is_a_shards_or_all_shards():
    axes = {name: getattr(STATE_AXES, name) for name in NAMES}
    assert set(axes.values()) == {0, None}
    assert [name for name, axis in axes.items() if axis == 0] == ["rollout", "key"]


def test_what_is_not_copied_is_a_field_with_a_reason():
    for exempt in (population.OWN, imitation.FRESH):
        assert set(exempt) < set(NAMES)
        assert all(exempt.values())
        assert "agent" not in exempt and "value_stats" not in exempt


def test_every_field_of_a_state_is_saved_and_restored(make_config, tmp_path):
    config = make_config(
        env={"name": "dummy/vector", "num_envs": 2},
        network={"memory": "gru", "memory_size": 2},
        ppo={"critic": "popart", "kl_rate": True},
        intrinsic=IntrinsicConfig("rnd", hidden=(4,), features=2),
    )
    learner = Learner(config)
    shapes = jax.eval_shape(learner.init, jax.random.key(0), learner.shard_ids())
    rng = np.random.default_rng(0)
    state = filled(shapes, lambda shape: rng.integers(0, 100, shape))
    empty = filled(shapes, np.zeros)
    saving = Checkpoints(tmp_path)
    saving.save(state, Progress(update=3, env_steps=5))
    saving.close()
    reading = Checkpoints(tmp_path)
    restored, _ = reading.restore(empty)
    reading.close()
    for name in NAMES:
        assert jax.tree.leaves(getattr(state, name)), name
        assert_same(getattr(restored, name), getattr(state, name))
