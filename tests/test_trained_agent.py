"""Actions of a loaded agent: numpy in and out, batched or not, with its carry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo.envs import registry
from purejaxppo.envs.native import NativeArray, NativeComposite, decoder, form_of, read, within
from purejaxppo.runs.agent import Agent
from purejaxppo.spaces import Box, Discrete, MultiDiscrete
from purejaxppo.types import AgentState

pytestmark = pytest.mark.toy


@pytest.fixture
def make_agent(make_config):
    def make(name, **network):
        agent = Agent(
            make_config(env={"name": name}, network={"hidden": (8,), **network}),
            AgentState({}, None),
        )
        agent.state = jax.jit(agent.policy.init)(jax.random.key(3))
        return agent

    return make


def test_act_returns_the_mode_in_the_simulators_bounds_for_one_observation_or_a_batch(make_agent):
    agent = make_agent("gymnax/Pendulum-v1")
    obs = np.random.default_rng(0).normal(0, 1, (5, 3))  # float64, as from users
    actions = agent.act(obs)
    env = registry.make(agent.config.env, 1)
    _, params, *_ = agent.policy.apply(
        agent.state, (), jnp.asarray(obs, jnp.float32), jnp.zeros(5, bool)
    )
    mode = agent.policy.distribution.mode(params)
    expected = env.to_simulator(agent.policy.distribution.to_env(mode))
    assert isinstance(actions, np.ndarray) and actions.shape == (5, 1)
    np.testing.assert_allclose(actions, expected, rtol=1e-6)
    assert np.abs(actions).max() <= 2.0
    agent.reset()
    one = agent.act(obs[2].tolist())
    assert one.shape == (1,)
    np.testing.assert_allclose(one, actions[2], rtol=1e-5)


def test_samples_differ_from_call_to_call_and_the_mode_does_not(make_agent):
    agent = make_agent("dummy/vector", std="dependent")
    obs = np.zeros(agent.policy.observation.shape)
    assert (agent.act(obs) == agent.act(obs)).all()
    drawn = [agent.act(obs, deterministic=False) for _ in range(4)]
    assert not all((a == drawn[0]).all() for a in drawn)


def test_the_carry_is_kept_between_calls_until_an_episode_starts(make_agent):
    agent = make_agent("gymnax/Pendulum-v1", rnn="gru", rnn_size=4)
    obs = np.random.default_rng(1).normal(0, 1, (3, 2, 3)).astype(np.float32)
    _, params, *_ = agent.policy.unroll(
        agent.state,
        agent.policy.network.initial_carry((2,)),
        jnp.asarray(obs),
        jnp.asarray([[True, True], [False, False], [False, True]]),
    )
    modes = agent.policy.distribution.to_env(agent.policy.distribution.mode(params))
    given = [agent.act(obs[0]), agent.act(obs[1]), agent.act(obs[2], start=np.array([False, True]))]
    np.testing.assert_allclose(np.stack(given), 2.0 * np.asarray(modes), rtol=1e-3, atol=3e-7)
    first = given[0]
    assert np.abs(agent.act(obs[0]) - first).max() > 0.1 * np.abs(first).max()
    agent.reset()
    np.testing.assert_allclose(agent.act(obs[0]), first, atol=3e-7)


def test_observations_that_do_not_fit_get_a_one_sentence_error(make_agent):
    agent = make_agent("gymnax/Pendulum-v1")
    with pytest.raises(ValueError, match=r"observation has shapes .* \(4,\).*a batch of it"):
        agent.act(np.zeros(4))
    with pytest.raises(ValueError, match=r"that are not numbers, .*Pass Box of shape \(3,\), or"):
        agent.act({"obs": np.zeros(3)})
    with pytest.raises(ValueError, match="values that are not numbers"):
        agent.act(np.array(["a", "b", "c"]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_observation_that_is_not_finite_is_an_error(value, make_agent):
    agent = make_agent("gymnax/Pendulum-v1")
    control, message = (
        agent.controller(),
        rf"observation\[1\] = {value}: observations must be finite",
    )
    for act in (agent.act, lambda obs: control(jax.random.key(0), obs)):
        with pytest.raises(ValueError, match=message):
            act([0.0, value, 1.0])


def test_a_batch_of_another_size_needs_a_reset_only_with_a_carry(make_agent):
    agent = make_agent("gymnax/Pendulum-v1")
    obs = np.random.default_rng(0).normal(0, 1, (8, 3))
    one, eight, single = agent.act(obs[:1]), agent.act(obs), agent.act(obs[0])
    assert (one.shape, eight.shape, single.shape) == ((1, 1), (8, 1), (1,))
    np.testing.assert_allclose(eight[0], single, rtol=1e-5)
    agent = make_agent("gymnax/Pendulum-v1", rnn="gru", rnn_size=4)
    agent.act(obs[:1])
    with pytest.raises(
        ValueError, match=r"a batch of 8 observations follows one of 1\. Call agent"
    ):
        agent.act(obs)
    agent.reset()
    assert agent.act(obs).shape == (8, 1)


def test_an_empty_batch_and_a_wrong_start_get_a_one_sentence_error(make_agent):
    agent = make_agent("gymnax/Pendulum-v1", rnn="gru", rnn_size=4)
    with pytest.raises(ValueError, match=r"^obs: the batch is empty\. Pass at least one"):
        agent.act(np.zeros((0, 3)))
    with pytest.raises(ValueError, match=r"^start has shape \[3\]\. It must be \[\] or \[5\]"):
        agent.act(np.zeros((5, 3)), start=np.ones(3))
    assert agent.act(np.zeros((5, 3)), start=np.ones(5)).shape == (5, 1)


@pytest.mark.parametrize("index", [1, -1, 0.5, "1", None])
def test_an_unknown_member_gets_a_one_sentence_error(index, make_agent):
    agent = make_agent("gymnax/Pendulum-v1")
    assert agent.member(0.0) is agent
    with pytest.raises(ValueError, match=r"^member = .*: unknown agent\. Use 0, the only agent"):
        agent.member(index)


FORM = NativeComposite((("b", NativeArray(Discrete(3), (), "int64", 4)), ("a", form_of(Box((2,))))))
PAIR = NativeComposite(
    ((0, NativeArray(MultiDiscrete((2, 3, 2, 2)), (2, 2), "int64", ((1, 0), (0, -5)))), (1, FORM)),
    True,
)


def test_keys_that_only_the_critic_sees_are_not_needed(make_config):
    config = make_config(
        env={"name": "gymnax/Pendulum-v1", "obs_indices": (0, 1), "privileged_obs": True},
        network={"hidden": (8,), "rnn": "gru", "actor_keys": ("obs",), "critic_keys": ("state",)},
    )
    agent = Agent(config, AgentState({}, None))
    agent.state = jax.jit(agent.policy.init)(jax.random.key(3))
    steps = np.random.default_rng(0).normal(0, 1, (3, 4, 3))
    full = [agent.act({"obs": x[:, :2], "state": x}) for x in steps]
    agent.reset()
    short = [agent.act({"obs": x[:, :2]}) for x in steps]
    np.testing.assert_array_equal(short, full)
    agent.reset()
    np.testing.assert_allclose(agent.act({"obs": steps[0, 2, :2]}), full[0][2], rtol=1e-5)
    with pytest.raises(ValueError, match=r"has the keys \['state'\] instead of \['obs'\]"):
        agent.act({"state": steps[0]})


def test_a_controller_needs_only_the_keys_that_the_policy_sees(make_config):
    config = make_config(
        env={"name": "gymnax/Pendulum-v1", "obs_indices": (0, 1), "privileged_obs": True},
        network={"hidden": (8,), "actor_keys": ("obs",)},
    )
    agent = Agent(config, AgentState({}, None))
    agent.state = jax.jit(agent.policy.init)(jax.random.key(3))
    obs = np.random.default_rng(0).normal(0, 1, (4, 3)).astype(np.float32)
    control, key = agent.controller(), jax.random.key(0)
    expected = agent.act({"obs": obs[:, :2], "state": obs})
    part = {"obs": obs[:, :2]}
    np.testing.assert_allclose(control(key, part), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(control)(key, part), expected, rtol=1e-6)


def test_choices_are_read_relative_to_their_start():
    obs = ([[2, 2], [0, -5]], {"a": [0.0, 1.0], "b": 6})
    tree, single = read(PAIR, obs)
    assert single
    assert tree["0"].tolist() == [[1, 2, 0, 0]] and tree["0"].dtype == np.int32
    assert tree["1"]["b"].tolist() == [2] and tree["1"]["a"].tolist() == [[0.0, 1.0]]
    again = decoder(PAIR)(tree)
    assert again[0].tolist() == [obs[0]] and again[0].dtype == np.int64
    assert again[1]["b"].tolist() == [6]


def test_all_parts_of_an_observation_must_have_the_same_batch():
    tree, single = read(FORM, {"a": np.zeros((4, 2)), "b": [4, 5, 6, 4]})
    assert not single and tree["b"].tolist() == [0, 1, 2, 0]
    for b in (5, [4, 5, 6]):
        with pytest.raises(ValueError, match="shapes"):
            read(FORM, {"a": np.zeros((4, 2)), "b": b})


def test_extra_parts_of_an_observation_are_ignored_as_in_training():
    obs = {"a": [0, 1], "b": 4}
    arrays, single = read(FORM, obs | {"more": "text"})
    assert single
    jax.tree.map(np.testing.assert_array_equal, arrays, read(FORM, obs)[0])


BYTES = form_of(Box((2,), 0.0, 1.0, "uint8"))


@pytest.mark.parametrize(
    ("form", "obs", "message"),
    [
        (FORM, {"a": [0, 1], "b": 3}, "observation.b = 3: must be an integer from 4 "),
        (FORM, {"a": [0, 1], "b": 4.5}, "observation.b = 4.5: must be an integer"),
        (
            FORM,
            {"a": [0, np.nan], "b": 4},
            r"observation.a\[1\] = nan: observations must be finite",
        ),
        (FORM, {"a": [0, 1]}, r"observation has the keys \['a'\] instead of \['b', 'a'\]"),
        (PAIR, ([[2, 2], [0, -6]], {"a": [0, 1], "b": 4}), r"observation.0\[1, 1\] = -6: must be"),
        (BYTES, [0, -1], r"observation\[1\] = -1: must be an integer from 0 to 255"),
        (form_of(Box((2,), dtype="bool")), [True, 2], r"observation\[1\] = 2: .* from 0 to 1"),
        (BYTES, [0.5, 0], r"observation\[0\] = 0.5: must be an integer"),
    ],
)
def test_an_observation_outside_of_its_space_is_an_error(form, obs, message):
    with pytest.raises(ValueError, match=message):
        read(form, obs)


def test_actions_lie_within_bounds_that_float32_rounds_outwards():
    high = np.nextafter(1.0, 0.0)
    form = NativeArray(Box((), 0.1, high), (), "float64")
    assert decoder(form)(np.float32([0.0, 1.0])).tolist() == [0.1, high]
    low, most = within(form.space, np.float32)
    assert low >= 0.1 and most <= high and most > 0.9999
