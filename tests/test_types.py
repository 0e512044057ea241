"""Every field of a TrainState is sharded, saved and copied, or listed as an exception."""

from dataclasses import fields

import jax
import numpy as np
import pytest
from support.paths import OWN_CODE
from support.trees import assert_same, fill_tree

from purejaxppo.config.schema import IntrinsicConfig
from purejaxppo.parts import STATE_AXES, init_program, make_parts, shard_ids
from purejaxppo.runs.checkpoint import Checkpoints
from purejaxppo.runs.population import PopulationState
from purejaxppo.runs.progress import Progress
from purejaxppo.types import TrainState

NAMES = [field.name for field in fields(TrainState)]


def test_every_field_of_a_state_is_local_to_a_shard_or_shared():
    axes = {name: getattr(STATE_AXES, name) for name in NAMES}
    assert set(axes.values()) == {0, None}
    assert [name for name, axis in axes.items() if axis == 0] == ["bonus_return", "rollout", "key"]


def test_every_field_that_is_not_copied_has_a_reason():
    for kind in ("not_inherited", "not_taught"):
        exempt = {f.name: f.metadata[kind] for f in fields(TrainState) if f.metadata[kind]}
        assert set(exempt) < set(NAMES)
        assert all(" " in reason for reason in exempt.values())
        assert {"update", "rollout", "key"} <= set(exempt)
        assert "agent" not in exempt and "value_stats" not in exempt


def test_every_field_of_a_state_declares_how_it_is_handled():
    for field in fields(PopulationState):
        assert set(field.metadata) >= {"local", "not_inherited", "not_taught"}, field.name


def shapes_of_all_fields(make_config):
    config = make_config(
        env={"name": "dummy/vector", "num_envs": 2},
        network={"rnn": "gru", "rnn_size": 2},
        ppo={
            "learner": f"{OWN_CODE}:counted",
            "critic": "popart",
            "learning_rate_schedule": "adaptive",
        },
        intrinsic=IntrinsicConfig("rnd", hidden=(4,), features=2),
    )
    parts = make_parts(config)
    return jax.eval_shape(init_program(parts), jax.random.key(0), shard_ids(parts))


def test_every_field_of_a_state_is_saved_and_restored(make_config, tmp_path):
    shapes = shapes_of_all_fields(make_config)
    rng = np.random.default_rng(0)
    state = fill_tree(shapes, lambda shape: rng.integers(0, 100, shape))
    empty = fill_tree(shapes, np.zeros)
    saving = Checkpoints(tmp_path)
    saving.save(state, Progress(update=3, member_steps=[5]))
    saving.close()
    reading = Checkpoints(tmp_path)
    restored, _, _ = reading.restore(empty)
    reading.close()
    for name in NAMES:
        assert jax.tree.leaves(getattr(state, name)), name
        assert_same(getattr(restored, name), getattr(state, name))


def test_a_checkpoint_with_another_bonus_scale_gets_a_one_sentence_error(make_config, tmp_path):
    """Version 0.2 divided the bonus by the deviation of errors, and saved no discounted returns."""
    state = fill_tree(shapes_of_all_fields(make_config), np.zeros)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state.replace(bonus_return=()), Progress(update=3, member_steps=[5]))
    checkpoints.wait()
    with pytest.raises(ValueError, match="and scaled intrinsic rewards differently"):
        checkpoints.restore(state)
    checkpoints.close()
