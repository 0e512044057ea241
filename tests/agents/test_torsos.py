"""Custom torsos in front of the built-in heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import own_code as examples
from support.paths import ROOT

from purejaxppo.agents.networks.build import make_network
from purejaxppo.agents.networks.torsos import Torso
from purejaxppo.config.schema import NetworkConfig
from purejaxppo.spaces import MASK, Box, Dict, Discrete

pytestmark = pytest.mark.toy

FILE = ROOT / "tests/support/own_code.py"
OBS = Box((2,))


def make_with_params(torso, observation=OBS, **fields):
    network = make_network(observation, Discrete(3), NetworkConfig(torso=torso, **fields))
    return network, network.init(jax.random.key(0))


def features(params, name):
    return params[name]["params"]["Dense_0"]["kernel"].shape


@pytest.mark.parametrize(
    ("torso", "widths"),
    [
        (f"{FILE}:Dense", {"actor_torso": 4, "critic_torso": 4}),
        (examples.Dense(6), {"actor_torso": 6, "critic_torso": 6}),
        (f"{FILE}:Sized", {"actor_torso": 7, "critic_torso": 7}),
        (f"{FILE}:shared", {"torso": 7}),
        (f"{FILE}:two_widths", {"actor_torso": 3, "critic_torso": 5}),
        (Torso(examples.Dense(2)), {"torso": 2}),
    ],
)
def test_a_custom_module_is_the_torso_of_policy_and_critic(torso, widths):
    network, params = make_with_params(torso, hidden=(7,))
    assert set(params) == {"actor", "critic", *widths}
    for name, width in widths.items():
        assert features(params, name) == (2, width)
    if len(widths) == 2 and len(set(widths.values())) == 1:
        a, b = (params[name]["params"]["Dense_0"]["kernel"] for name in widths)
        assert not np.array_equal(a, b)
    out = network.apply(params, (), jnp.ones((5, 2)), None)
    assert out.dist_params.shape == (5, 3)
    assert out.critic.shape == (5, 1)


def test_a_torso_in_plain_jax_by_hand():
    network, params = make_with_params(Torso(examples.Linear()))
    params = jax.tree.map(jnp.ones_like, params)
    out = network.apply(params, (), jnp.array([[1.0, 2.0], [0.0, -1.0]]), None)
    # Three features of obs[0] + obs[1] each; the heads add them up, and 1.
    np.testing.assert_allclose(out.critic[:, 0], [3 * 3 + 1, 3 * -1 + 1])
    np.testing.assert_allclose(out.dist_params, [[10] * 3, [-2] * 3])


@pytest.mark.parametrize("torso", [examples.Dense(4), Torso(examples.Dense(4))])
def test_a_recurrent_cell_follows_a_custom_torso(torso):
    network, params = make_with_params(torso, rnn="gru", rnn_size=5)
    carry = network.initial_carry((2,))
    assert len(carry) == (1 if isinstance(torso, Torso) else 2)
    obs = jax.random.normal(jax.random.key(1), (3, 2, 2))
    start = jnp.zeros((3, 2), bool)
    whole = network.unroll(params, carry, obs, start)
    for t in range(3):
        out = network.apply(params, carry, obs[t], start[t])
        carry = out.carry
        np.testing.assert_allclose(out.critic, whole.critic[t], atol=1e-6)


def test_a_torso_gets_the_configured_observation_parts_without_the_mask():
    class Keys:
        def init(self, key, obs):
            assert MASK not in obs
            return {name: jnp.zeros(()) for name in obs}

        def apply(self, params, obs):
            return jnp.concatenate([obs[name] for name in sorted(obs)], -1)

    space = Dict.of({MASK: Box((3,), 0, 1, "uint8"), "far": Box((4,)), "near": OBS})
    _, params = make_with_params(Keys(), space, actor_keys=("near",))
    assert set(params["actor_torso"]) == {"near"}
    assert set(params["critic_torso"]) == {"far", "near"}
    with pytest.raises(ValueError, match="critic_keys is not supported with a torso"):
        make_with_params(Torso(Keys()), space, critic_keys=("near",))


def test_vmapped_custom_torsos_equal_single_ones():
    network, _ = make_with_params(f"{FILE}:Dense")
    keys = jax.random.split(jax.random.key(2), 2)
    together = jax.vmap(network.init)(keys)
    alone = network.init(keys[1])
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[1], y), together, alone)


@pytest.mark.parametrize(
    ("torso", "message"),
    [
        ("none.py:Net", "network.torso: none.py: no such file"),
        (f"{FILE}:two_arguments", "missing a required argument: 'log_ratio'"),
        (Torso(examples.Linear(), 3), "has a int. It must be an object with init, apply or actor"),
        (examples.Flat(), r"returns float32 \[\] for one observation\. Return features, float32"),
        (f"{FILE}:Normed", "has variables 'batch_stats', but only parameters are supported"),
    ],
)
def test_an_invalid_torso_gets_a_one_sentence_error(torso, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_with_params(torso)
    assert "\n" not in str(caught.value)
