"""Optional attributes of tasks: defaults of custom tasks, and forwarding by wrappers."""

import copy

import jax.numpy as jnp
import pytest
from support.own_code import Walk

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import INTERFACE, BaseTask, as_base_task
from purejaxppo.envs.adapters import brax
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.domain_randomization import vary
from purejaxppo.envs.wrappers import ActionRepeat, ReturnPreservingWrapper, TimeLimit, Wrapper
from purejaxppo.spaces import Box, Discrete

pytestmark = pytest.mark.toy


class Slope:
    """A plain task with every kind of optional attribute."""

    observation, action = Box((1,)), Discrete(2)
    success_above = 3.0
    fresh_fraction = 0.5
    length = 7

    def __init__(self, slope=2.0):
        self.slope = slope

    @property
    def parameters(self):
        return {"slope": self.slope}

    def adjusted(self, values):
        return Slope(**values)

    def reset(self, key):
        return jnp.zeros(1), jnp.zeros(1)

    def step(self, key, state, action):
        state = state + self.slope
        return state, TaskStep(state, state[0], jnp.array(False), jnp.array(False))


def test_a_plain_task_gets_defaults_for_missing_attributes():
    task = as_base_task(Walk())
    assert isinstance(task, BaseTask) and as_base_task(task) is task
    assert (task.max_episode_steps, task.cheap_reset) == (8, True)
    assert (task.agents, task.state_space, task.success_above) == ((), None, None)
    assert (task.fresh_fraction, task.frame_rate, dict(task.parameters)) == (1.0, 10.0, {})
    assert task.unwrap("state") == "state" and task.to_simulator(3) == 3


def test_attributes_of_a_plain_task_are_kept():
    task = as_base_task(Slope())
    assert (task.success_above, task.fresh_fraction, task.parameters) == (3.0, 0.5, {"slope": 2.0})
    assert task.max_episode_steps == 0
    assert task.length == 7  # beyond the interface, for custom wrappers


@pytest.mark.parametrize("name", [name for name in INTERFACE if name != "success_above"])
def test_wrappers_forward_the_attributes_of_a_task(name):
    offered = {"draw_parameters": lambda key: {}, "agents": ("a",), "frame_rate": 3.0}
    task = as_base_task(Slope())
    for attribute, value in offered.items():
        setattr(task, attribute, value)
    value, outer = getattr(task, name), getattr(Wrapper(task), name)
    if not callable(value) or name == "draw_parameters":
        assert outer == value


def test_only_wrappers_that_keep_returns_keep_success_above():
    assert Wrapper(Slope()).success_above is None
    assert ReturnPreservingWrapper(Slope()).success_above == 3.0
    assert TimeLimit(Slope(), 5).success_above == 3.0


def test_a_wrapper_of_an_adjusted_task_is_the_same_wrapper(key):
    repeated = ActionRepeat(TimeLimit(Slope(), 6), 2)
    steeper = repeated.adjusted({"slope": 5.0})
    assert (repeated.max_episode_steps, steeper.max_episode_steps) == (3, 3)
    for task, paid in ((repeated, 2.0 + 4.0), (steeper, 5.0 + 10.0)):
        state, _ = task.reset(key)
        assert task.step(key, state, jnp.int32(0))[1].reward == paid
    assert copy.copy(repeated).length == copy.copy(as_base_task(Slope())).length == 7


def test_an_adjusted_custom_task_gets_defaults_for_missing_attributes(key):
    steeper = vary(as_base_task(Slope()), {}, {"slope": 5.0})
    assert (steeper.agents, steeper.length) == ((), 7)
    state, _ = steeper.reset(key)
    assert steeper.step(key, state, jnp.int32(0))[1].reward == 5.0
    assert TimeLimit(Slope(), 6).adjusted({"slope": 5.0}).unwrap((state, 0)) is state


def test_action_repeat_divides_the_frame_rate():
    task = as_base_task(Slope())
    task.frame_rate = 30.0
    assert ActionRepeat(TimeLimit(task, 6), 3).frame_rate == 10.0


def test_a_robot_without_physics_has_the_default_frame_rate():
    pytest.importorskip("brax")
    task = TimeLimit(brax.make("fast", EnvConfig("brax/fast")), 5)
    assert (task.frame_rate, dict(task.parameters)) == (10.0, {})
