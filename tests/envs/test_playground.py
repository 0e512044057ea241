"""What Playground's own options mean for its tasks."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import struct

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry

playground = pytest.importorskip("mujoco_playground")


class State(struct.PyTreeNode):
    """As Playground's."""

    obs: Any
    reward: Any
    done: Any
    info: dict


class Rail:
    """Moves by its action at every control step, pays where it is, and ends beyond 5."""

    observation_size, action_size, dt = 1, 1, 0.1

    def reset(self, key):
        """At 0."""
        return State(jnp.zeros(1), jnp.zeros(()), jnp.zeros(()), {"steps": jnp.zeros(())})

    def step(self, state, action):
        """Writes into the state it is given, as Playground's tasks do."""
        state.info["steps"] += 1
        obs = state.obs + action
        return state.replace(obs=obs, reward=obs[0], done=(obs[0] > 5).astype(float))


@pytest.fixture
def make(monkeypatch):
    """The task on a rail with Playground's options for CartpoleBalance."""
    monkeypatch.setattr(playground.registry, "load", lambda *args, **kwargs: Rail())

    def make(**options):
        return registry.make_task(EnvConfig("playground/CartpoleBalance", options=options))

    return make


def test_action_repeat_takes_the_action_so_often_in_one_step(make, key):
    task = make(action_repeat=3)
    step = jax.jit(task.step)
    (state, _), out = step(key, task.reset(key)[0], jnp.ones(1))
    assert (state.info["steps"], out.obs[0], out.reward) == (3, 3, 1 + 2 + 3)
    assert not out.terminated
    (state, steps), out = step(key, (state, jnp.int32(1)), jnp.ones(1))
    assert (state.info["steps"], out.obs[0], out.reward) == (6, 6, 4 + 5 + 6)
    assert out.terminated and steps == 2
    # Beyond the end nothing is paid.
    state = state.replace(obs=jnp.array([4.5]), done=jnp.zeros(()))
    (state, _), out = step(key, (state, jnp.int32(1)), jnp.ones(1))
    assert (state.info["steps"], out.obs[0], out.reward) == (7, 5.5, 5.5)


def test_the_episode_length_counts_the_steps_that_repeats_take(make):
    # As Playground's wrapper: over when so many have been taken, at the end of a step.
    assert make(action_repeat=1, episode_length=10).max_episode_steps == 10
    assert make(action_repeat=4, episode_length=10).max_episode_steps == 3
    assert make(action_repeat=4).frame_rate == make().frame_rate / 4


@pytest.mark.parametrize("repeats", [0, -1, 1.5, True])
def test_an_action_is_repeated_a_whole_number_of_times(make, repeats):
    with pytest.raises(ValueError, match=r"env\.options\.action_repeat = .* at least 1"):
        make(action_repeat=repeats)
