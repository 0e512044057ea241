"""Wrappers: time limits, scaling and repetition of actions."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.wrappers import (
    ActionRepeat,
    PartialObservation,
    TimeLimit,
    UnitActions,
)
from purejaxppo.spaces import Box, Dict, Discrete

pytestmark = pytest.mark.toy


@dataclass
class Echo:
    """Returns its action as the observation."""

    action: object
    max_episode_steps: int = 1000
    observation = Box((1,))
    cheap_reset = True

    def reset(self, key):
        """Return no observation."""
        return (), None

    def step(self, key, state, action):
        """Return the action as the observation."""
        return state, TaskStep(action, jnp.float32(0), jnp.array(False), jnp.array(False))


def echoed(task, action):
    """Return the action that the innermost task gets, and check `to_simulator`."""
    given = task.step(None, (), action)[1].obs
    jax.tree.map(np.testing.assert_array_equal, task.to_simulator(action), given)
    return given


def test_actions_are_clipped_then_scaled_to_the_bounds():
    task = UnitActions(Echo(Box((3,), (-2.0, 0.0, 10.0), (2.0, 1.0, 20.0))))
    assert task.action == Box((3,), -1.0, 1.0)
    for unit, expected in [
        ([-1.0, -1.0, -1.0], [-2.0, 0.0, 10.0]),
        ([1.0, 1.0, 1.0], [2.0, 1.0, 20.0]),
        ([0.0, 0.5, -0.5], [0.0, 0.75, 12.5]),
        ([9.0, -9.0, np.inf], [2.0, 0.0, 20.0]),
    ]:
        np.testing.assert_allclose(echoed(task, jnp.array(unit)), expected, rtol=1e-6)


def test_actions_of_a_unit_space_are_only_clipped():
    task = UnitActions(Echo(Box((2,), -1.0, 1.0)))
    np.testing.assert_array_equal(echoed(task, jnp.array([0.3, -7.0])), np.float32([0.3, -1.0]))


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    "space",
    [
        Box((2,)),
        Box((2,), low=0.0),
        Box((2,), -LARGEST, LARGEST),
        Box((2,), -2e38, 2e38),
        Box((2,), -1e300, 1e300),
        Discrete(9),
    ],
)
def test_unbounded_and_discrete_actions_pass_unchanged(space):
    task = UnitActions(Echo(space))
    assert task.action == space
    np.testing.assert_array_equal(echoed(task, jnp.array([5, 3])), [5, 3])


def test_parts_of_a_dict_are_scaled_by_their_own_bounds():
    space = Dict.of({"a": Box((1,), 0.0, 4.0), "b": Discrete(3), "c": Box((1,))})
    task = UnitActions(Echo(space))
    assert task.action["a"] == Box((1,), -1.0, 1.0)
    assert task.action["b"] == Discrete(3)
    out = echoed(task, {"a": jnp.array([0.5]), "b": jnp.array(2), "c": jnp.array([7.0])})
    assert (out["a"], out["b"], out["c"]) == (3.0, 2, 7.0)


def test_actions_without_exactly_one_axis_are_flattened():
    scalar = UnitActions(Echo(Box((), -2.0, 2.0)))
    assert scalar.action.shape == (1,)
    assert echoed(scalar, jnp.array([0.75])).shape == ()
    square = UnitActions(Echo(Box((2, 2), ((0.0, 0.0), (0.0, 0.0)), ((1.0, 2.0), (3.0, 4.0)))))
    np.testing.assert_array_equal(echoed(square, jnp.ones(4)), [[1, 2], [3, 4]])


def test_the_time_limit_counts_from_the_reset_and_keeps_truncation_by_the_task(key):
    task = TimeLimit(Echo(Discrete(2)), 3)
    assert task.max_episode_steps == 3
    state, _ = task.reset(key)
    flags = []
    for _ in range(3):
        state, out = task.step(key, state, jnp.array(0))
        flags.append(bool(out.truncated))
    assert flags == [False, False, True]

    class Short(Echo):
        def step(self, key, state, action):
            state, out = super().step(key, state, action)
            return state, out._replace(truncated=jnp.array(True))

    task = TimeLimit(Short(Discrete(2)), 3)
    _, out = task.step(key, task.reset(key)[0], jnp.array(0))
    assert out.truncated


class Climb:
    """A task whose reward is the step number. It ends at step 5 and changes its state in place."""

    observation, action = Box(()), Discrete(2)
    max_episode_steps, cheap_reset, frame_rate = 10, True, 60.0

    def step(self, key, state, action):
        """Go up by one."""
        state["height"] = state["height"] + 1
        end = state["height"] == 5
        return state, TaskStep(state["height"], state["height"], end, jnp.array(False))


def test_the_rewards_of_a_repeated_action_are_summed_until_the_episode_ends(key):
    task = ActionRepeat(Climb(), 3)
    step = jax.jit(task.step)
    state, out = step(key, {"height": 0.0}, 1)
    assert (state["height"], out.obs, out.reward, bool(out.terminated)) == (3, 3, 1 + 2 + 3, False)
    state, out = step(key, state, 1)
    assert (state["height"], out.obs, out.reward, bool(out.terminated)) == (5, 5, 4 + 5, True)
    assert task.max_episode_steps == 4 and task.frame_rate == 20.0


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Box((3,), 0.0, 1.0, "uint8"), Box((2,), 0.0, 1.0, "uint8")),
        (Box((3,), 0.0, 255.0, "uint8"), Box((2,), 0.0, 255.0, "uint8")),
        (Box((3,), dtype="uint8"), Box((2,), dtype="uint8")),
        (Box((3,), (0.0, 1.0, 2.0), (3.0, 4.0, 5.0)), Box((2,), (2.0, 0.0), (5.0, 3.0))),
        (Box((3,), slide=1), Box((2,))),
    ],
)
def test_chosen_entries_keep_their_bounds(space, expected):
    """The network divides bytes by 255 if their bounds are 0 and 255, or unknown."""
    task = Echo(Discrete(2))
    task.observation = space
    chosen = PartialObservation(task, (2, 0), privileged_obs=False).observation
    assert chosen == expected and chosen.is_bytes == space.is_bytes
