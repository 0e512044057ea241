"""What shards say to each other is what the cost model counts."""

import importlib.util
import re
import sys
from dataclasses import replace

import jax
import pytest
from support.paths import ROOT

from purejaxppo import learner
from purejaxppo.agents.optimizers import LANES
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.parallel.shards import Shards
from purejaxppo.parts import STATE_AXES, init_program, make_parts, map_over_shards, shard_ids

FOLDER = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("communication", FOLDER / "communication.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


def cartpole(make_config):
    # Two towers of 4 x 8 + 8 and 8 x 2 + 2 or 8 x 1 + 1: 58 + 49 parameters, in 64 x 2 places.
    return make_config(env={"name": "gymnax/CartPole-v1"})


def test_a_gradient_step_is_one_sum_of_one_flat_vector(script, make_config):
    config = cartpole(make_config)
    sums = script.shard_sums(config)
    gradients = [x for x in sums if x.bytes == 4 * (LANES + 128)]
    steps = config.ppo.num_epochs * config.ppo.num_minibatches
    assert [x.times for x in gradients] == [steps]
    # The others: advantages, statistics, metrics.
    others = [x for x in sums if x not in gradients]
    assert sum(x.times * x.bytes for x in others) < 4 * LANES
    assert sum(x.times for x in others) == 3 + 3 + 6


def test_the_compiled_program_has_no_more_gradient_sums(script, make_config):
    config = replace(cartpole(make_config), num_shards=2)
    parts = make_parts(config, Shards(2, jax.devices()[:2]))
    axes = (STATE_AXES, None)
    update = map_over_shards(parts, learner.train_step, axes, axes)
    state = jax.eval_shape(init_program(parts), jax.random.key(0), shard_ids(parts))
    text = jax.jit(update).lower(state, make_hyperparams(config)).compile().as_text()
    large = re.findall(rf"f32\[{LANES + 128}\][^=\n]* all-reduce(?:-start)?\(", text)
    assert len(large) == 1  # in a loop


@pytest.mark.toy
def test_the_cheaper_of_ring_and_tree_is_taken(script):
    link = script.Network("", 8, 1e-6, 1e9)
    # A tree of 2 x 3 hops; a ring of 14, each of an eighth.
    assert script.all_reduce_seconds(0, link) == pytest.approx(6e-6)
    assert script.all_reduce_seconds(10**6, link) == pytest.approx(14e-6 + 1.75e-3)
