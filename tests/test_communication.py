"""The sums over shards in an update are those in the table of docs/scaling.md."""

import re
from dataclasses import replace
from typing import NamedTuple

import jax

from purejaxppo import learner
from purejaxppo.agents.optimizers import LANES
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.parallel.shards import Shards
from purejaxppo.parts import STATE_AXES, init_program, make_parts, map_over_shards, shard_ids


class Sum(NamedTuple):
    """A sum over shards in the program of an update."""

    times: int  # per update
    bytes: int  # of the operand


def find_sums(program, times=1):
    """Yield the sums in a program that runs `times` times, and in its loops."""
    for equation in program.eqns:
        if equation.primitive.name.startswith("psum"):
            yield from (Sum(times, x.aval.size * x.aval.dtype.itemsize) for x in equation.invars)
        inside = times * equation.params.get("length", 1)
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                body = getattr(part, "jaxpr", part)
                if hasattr(body, "eqns"):
                    yield from find_sums(body, inside)


def update_of(config):
    """Return (an update of two shards on two devices, its arguments)."""
    config = replace(config, num_shards=2)
    parts = make_parts(config, Shards(2, jax.devices()[:2]))
    axes = (STATE_AXES, None)
    update = map_over_shards(parts, learner.train_step, axes, axes)
    state = jax.eval_shape(init_program(parts), jax.random.key(0), shard_ids(parts))
    return update, (state, make_hyperparams(config))


def cartpole(make_config):
    # Two towers of 4 x 8 + 8 and 8 x 2 + 2 or 8 x 1 + 1: 58 + 49 parameters, padded to 64 x 2.
    return make_config(env={"name": "gymnax/CartPole-v1"})


def test_a_gradient_step_has_one_sum_over_shards_of_one_flat_vector(make_config):
    config = cartpole(make_config)
    update, arguments = update_of(config)
    sums = list(find_sums(jax.make_jaxpr(update)(*arguments).jaxpr))
    gradients = [x for x in sums if x.bytes == 4 * (LANES + 128)]
    steps = config.ppo.num_epochs * config.ppo.num_minibatches
    assert [x.times for x in gradients] == [steps]
    # The others: advantages, statistics, metrics.
    others = [x for x in sums if x not in gradients]
    assert sum(x.times * x.bytes for x in others) < 4 * LANES
    assert sum(x.times for x in others) == 3 + 3 + 6


def test_the_compiled_program_has_a_single_gradient_sum(make_config):
    update, arguments = update_of(cartpole(make_config))
    text = jax.jit(update).lower(*arguments).compile().as_text()
    large = re.findall(rf"f32\[{LANES + 128}\][^=\n]* all-reduce(?:-start)?\(", text)
    assert len(large) == 1  # in a loop
