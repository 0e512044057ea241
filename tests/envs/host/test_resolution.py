"""Warnings about observations whose offset makes float32 lose the digits that change."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.paths import EXAMPLE_ENVS, EXAMPLE_WORLDS
from support.spec import make_spec
from support.stepping import KEY

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.host.workers.pool import WorkerPool
from purejaxppo.envs.host.workers.resolution import NUM_COMPARED, Range, precision_warning

SECONDS = np.int64(1_700_000_000)


def warning_for(*observations):
    """Return the warning about one environment with these first observations."""
    values = Range("observation.x")
    for obs in observations:
        values.add(np.asarray(obs))
    return precision_warning([[values]])


def test_values_that_differ_by_less_than_eight_float32_multiples_get_a_warning():
    # From 2**18 to 2**19 float32 has the multiples of 1/32, and 1/4 is eight of these.
    assert warning_for([0.0, 300_000.0], [1.0, 300_000.25]) == ""
    assert warning_for([0.0, 300_000.0], [1.0, 300_000.125]) == (
        "observation.x[1] is near 300000.12 and its first values differ by only 0.125, but float32 "
        "values there are 0.0312 apart. Subtract a constant in the environment or in a wrapper "
        "(--env.options wrappers FILE.py:CLASS), such as a subclass of "
        "gymnasium.wrappers.TransformObservation."
    )
    assert "near -300000 and its first values differ by only 0.125" in warning_for(
        -300_000.0, -300_000.125
    )
    # From 2**30 to 2**31 the multiples of 128: int64 loses digits as float64 does.
    message = warning_for(SECONDS, SECONDS + 9)
    assert "x is near 1.7e+09 and its first values differ by only 9, but float32 values" in message
    assert "values there are 128 apart" in message
    assert warning_for(SECONDS, SECONDS + 1024) == ""


@pytest.mark.parametrize(
    "observations",
    [
        [5e6, 5e6, 5e6],  # a constant
        [5e6, 5e6 + 1e-9],  # a constant and a rounding error
        [1.0, 1.0 - 1e-8],  # no large offset, as the real part of a quaternion
        [0.0, 1e10],
        [np.float32(5e6), np.float32(5e6 + 0.5)],  # nothing more to lose
        [np.nan, np.inf, -np.inf],
        [True, False],
        [],
    ],
)
def test_constants_small_numbers_and_float32_values_get_no_warning(observations):
    assert warning_for(*observations) == ""


def test_observations_of_all_environments_are_compared():
    first, second = Range("a"), Range("a")
    first.add(np.array(300_000.0))
    assert precision_warning([[first], [second]]) == ""
    second.add(np.array(300_000.1))
    assert precision_warning([[first], [second]]).startswith(
        "a is near 300000.1 and its first values"
    )
    second.add(np.array(300_001.0))
    assert precision_warning([[first], [second]]) == ""


def warnings_of(spec, action, caplog):
    with WorkerPool(spec, 3, kind="thread", num_workers=2, warns_as="task") as pool:
        pool.reset(0)
        for step in range(2 * NUM_COMPARED):
            assert len(caplog.messages) == 0 or step >= NUM_COMPARED
            pool.step(action)
    return caplog.messages


@pytest.mark.parametrize(
    ("kind", "part"), [("utm", "observation.place[1]"), ("clock", "observation.time")]
)
def test_positions_in_metres_and_times_in_seconds_get_one_warning(kind, part, caplog):
    spec = make_spec(f"{EXAMPLE_ENVS}:Offset", (), {"kind": kind})
    (message,) = warnings_of(spec, np.zeros(3, int), caplog)
    assert message.startswith(f"task: {part} is near ")


def test_a_wrapper_that_subtracts_an_offset_removes_the_warning(caplog):
    wrappers = (f"{EXAMPLE_ENVS}:WithoutOffset",)
    spec = make_spec(f"{EXAMPLE_ENVS}:Offset", wrappers, {"kind": "utm"})
    assert warnings_of(spec, np.zeros(3, int), caplog) == []


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *[(name, ()) for name in ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-v1")],
        *[(name, (1,)) for name in ("Pendulum-v1", "MountainCarContinuous-v0")],
        *[("Hopper-v5", (3,)), ("Ant-v5", (8,)), ("Humanoid-v5", (17,)), ("Reacher-v5", (2,))],
    ],
)
def test_ordinary_environments_get_no_warning(name, shape, caplog):
    action = np.zeros((3, *shape), np.float32 if shape else int)
    assert warnings_of(make_spec(name), action, caplog) == []


@pytest.mark.toy
@pytest.mark.parametrize(
    ("name", "part"),
    [
        (f"gymnasium/{EXAMPLE_ENVS}:Offset", "observation.place[1]"),
        (f"pettingzoo/{EXAMPLE_WORLDS}:Clocks", "a: observation"),
    ],
)
def test_training_warns_and_its_evaluations_do_not(name, part, caplog):
    config = EnvConfig(name=name, options={"workers": "thread"}, max_episode_steps=20)
    for evaluation in (True, False):
        assert caplog.messages == []
        env = registry.make(config, 3, evaluation=evaluation)
        state, _ = jax.jit(env.reset)(jax.random.key(0))
        step = jax.jit(partial(env.step, KEY))
        for _ in range(NUM_COMPARED):
            state, out = step(state, jnp.zeros(3, jnp.int32))
        jax.block_until_ready(out)
        env.close()
    (message,) = caplog.messages
    assert message.startswith(f"{name}: {part}")
