"""PettingZoo's parallel environments that are passed from Python."""

import jax
import numpy as np
import pytest

pytest.importorskip("pettingzoo")

from mpe2 import simple_spread_v3
from pettingzoo.utils.wrappers import BaseParallelWrapper
from support.example_worlds import Constant

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.host.workers.errors import SimulatorError

make_spread = simple_spread_v3.parallel_env


FORMS = [
    (make_spread(max_cycles=5), {}, 5, None),
    (make_spread, {"max_cycles": 3}, 3, None),
    (Constant(make_spread(max_cycles=4)), {}, 4, -1.0),
    (lambda max_cycles: Constant(make_spread(max_cycles=max_cycles)), {"max_cycles": 2}, 2, -1.0),
]


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize(("env", "options", "limit", "reward"), FORMS)
def test_every_form_of_a_parallel_environment_steps_in_workers(
    env, options, limit, reward, workers
):
    options = {**options, "workers": workers, "num_workers": 1}
    batch = registry.make(EnvConfig(name=env, num_envs=6, options=options), 6)
    assert (batch.spec.num_agents, batch.spec.max_episode_steps) == (3, limit)
    state, _ = batch.reset(jax.random.key(0))
    _, out = batch.step(jax.random.key(0), state, np.zeros(6, np.int32))
    assert out.valid.all() and (out.reward < 0).all()
    if reward is not None:
        np.testing.assert_array_equal(out.reward, reward)
    batch.close()


def test_an_environment_takes_no_arguments():
    config = EnvConfig(name=make_spread(), num_envs=6, options={"max_cycles": 3})
    with pytest.raises(ValueError, match=r"which takes no arguments\. Remove max_cycles, or pass"):
        registry.make(config, 6)


class BrokenState(BaseParallelWrapper):
    def state(self):
        return self.unwrapped.no_such_attribute


class WithoutAgents(BaseParallelWrapper):
    possible_agents = ()


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (BrokenState, "AttributeError .*no_such_attribute"),
        (WithoutAgents, r"possible_agents is empty\. List every agent\.$"),
    ],
)
def test_errors_of_an_environment_are_reported(wrapper, message):
    options = {"workers": "thread", "num_workers": 1, "global_state": True}
    with pytest.raises((ValueError, SimulatorError), match=message):
        registry.make(EnvConfig(name=wrapper(make_spread()), options=options), 6)
