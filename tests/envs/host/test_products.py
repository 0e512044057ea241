"""Tuple spaces, hybrid actions and masks of host environments, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import stepping
from support.paths import EXAMPLE_ENVS

from purejaxppo import load_config, make_train
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.host.bridge import simulator_errors
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.recording import record_states
from purejaxppo.spaces import Box, Dict, Discrete, MultiDiscrete

BYTES = {size: Box((size,), 0.0, 1.0, "uint8") for size in (2, 3, 5)}


def make(name, num_envs=2, *, workers="thread", **options):
    config = EnvConfig(
        name=f"gymnasium/{EXAMPLE_ENVS}:{name}",
        num_envs=num_envs,
        max_episode_steps=50,
        options={"workers": workers, **options},
    )
    return registry.make(config, num_envs)


def play(env, actions, seeds=0):
    """Return first observations and the steps [T, N, ...] of actions [T, N, ...]."""

    def run(key):
        state, obs = env.reset(key)
        return obs, stepping.play(env, state, actions)[1]

    key = jax.random.key(0)
    try:
        with simulator_errors("products", env):
            if seeds:
                return jax.device_get(jax.jit(jax.vmap(run))(jax.random.split(key, seeds)))
            return jax.device_get(jax.jit(run)(key))
    finally:
        env.close()


# Two environments, one step: choices start at 0, and pushes are in units of the bounds.
PICK = jnp.array([[2, 0]])
BY = jnp.array([[[0.5, 0.5], [-9.0, -1.0]]])  # 0.5 and 3.0; -1 and 0
HOW = jnp.array([[[1, 2], [0, 0]]])
PAID = [[7 + 5 + 300 + 2000 + 30000, 5 - 10 + 0 + 1000 + 10000]]


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("tuple", {"0": PICK, "1": BY, "2": HOW}),
        ("dict", {"pick": PICK, "by": BY, "how": HOW}),
        ("nested", {"pick": PICK, "rest": {"0": BY, "1": HOW}}),
    ],
)
@pytest.mark.parametrize("workers", ["thread", pytest.param("process", marks=pytest.mark.full)])
def test_hybrid_actions_are_converted_to_the_environments_space(kind, action, workers):
    _, out = play(make("Hybrid", workers=workers, kind=kind), action)
    np.testing.assert_allclose(out.reward, PAID, rtol=1e-6)


def test_a_tuple_space_is_a_dict_of_positions():
    env = make("Hybrid")
    assert env.spec.observation == Dict((("0", Box((2,), -10.0, 10.0)), ("1", Discrete(3))))
    assert env.spec.action == Dict(
        (("0", Discrete(3)), ("1", Box((2,), -1.0, 1.0)), ("2", MultiDiscrete((2, 3))))
    )
    first, out = play(env, {"0": PICK, "1": BY, "2": HOW})
    np.testing.assert_array_equal(first["1"], [0, 0])
    np.testing.assert_array_equal(out.obs["0"], [[[0.5, 3], [-1, 0]]])
    np.testing.assert_array_equal(out.obs["1"], [[2, 0]])


def test_hybrid_actions_of_vmapped_seeds_share_one_pool():
    env = make("Hybrid")
    _, out = play(env, {"0": PICK, "1": BY, "2": HOW}, seeds=3)
    np.testing.assert_allclose(out.reward, [PAID] * 3, rtol=1e-6)


def test_an_agent_with_hybrid_actions_trains_and_is_recorded():
    overrides = {
        "env.name": f"gymnasium/{EXAMPLE_ENVS}:Hybrid",
        "env.num_envs": 4,
        "network.hidden": (8,),
        "env.max_episode_steps": 50,
        "env.options": {"workers": "thread", "kind": "nested"},
        "ppo.rollout_length": 16,
        "ppo.num_minibatches": 2,
        "total_timesteps": 128,
        "num_shards": 1,
    }
    config = load_config("cartpole.yaml", overrides)
    train = make_train(config)
    result = jax.jit(train)(jax.random.key(0))
    assert np.isfinite(np.asarray(result.curves.losses.policy_loss)).all()
    train.close()
    _, states, rewards = record_states(Agent(config, jax.device_get(result.agent)))
    assert len(states) == 5 and len(rewards) == 4
    assert np.all(rewards > 10_000)


@pytest.mark.parametrize(
    ("kind", "action", "space"),
    [
        ("discrete", 0, BYTES[3]),
        ("several", [0, 0], BYTES[5]),
        ("long", [0, 0], BYTES[5]),
        ("dict", {"a": 0, "b": [0, 0], "c": [0.0, 0.0]}, Dict((("a", BYTES[2]), ("b", BYTES[5])))),
        ("tuple", {"0": [0.0, 0.0], "1": 0}, Dict((("1", BYTES[2]),))),
    ],
)
def test_the_mask_in_the_infos_becomes_part_of_the_observation(kind, action, space):
    env = make("Allows", 1, kind=kind, mask=True)
    time = Box((3,), -1e6, 1e6)
    own = {"time": time} if kind == "several" else {"obs": time}
    assert env.spec.observation == Dict.of({"action_mask": space, **own})
    actions = jax.tree.map(
        lambda x: jnp.broadcast_to(jnp.asarray(x), (4, 1, *np.shape(x))),
        action,
        is_leaf=lambda x: isinstance(x, list),
    )
    first, out = play(env, actions)
    masks = jax.tree.map(
        lambda a, b: np.concatenate([a, b[:, 0]]), first["action_mask"], out.obs["action_mask"]
    )
    # Steps 0, 1, 2, the end, where an empty mask allows everything, and 0 again.
    three = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1], [1, 0, 0]]
    two = [[1, 0], [0, 1], [1, 0], [1, 0], [1, 0]]
    five = [[1, 0, 1, 0, 0], [0, 1, 1, 1, 0], *[[1, 0, 1, 0, 0]] * 3]
    expected = {"discrete": three, "several": five, "long": five}.get(kind)
    if kind == "dict":
        expected = {"a": two, "b": five}
    elif kind == "tuple":
        expected = {"1": two}
    if isinstance(expected, dict):
        assert set(masks) == set(expected)
        for name, rows in expected.items():
            np.testing.assert_array_equal(masks[name], rows)
    else:
        np.testing.assert_array_equal(masks, expected)
        assert masks.dtype == np.uint8


def test_an_action_mask_in_the_observation_is_used_as_the_mask():
    env = make("Allows", 1, kind="own")
    assert env.spec.observation["action_mask"] == BYTES[3]
    first, out = play(env, jnp.zeros((2, 1), jnp.int32))
    np.testing.assert_array_equal(first["action_mask"], [[1, 0, 0]])
    np.testing.assert_array_equal(out.obs["action_mask"], [[[0, 1, 0]], [[0, 0, 1]]])
    assert first["action_mask"].dtype == np.uint8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"wrong": "missing"},
            r"needs an 'action_mask' in every info, but the info from reset has 'other'\. Add it",
        ),
        (
            {"wrong": "short"},
            r"the action_mask from reset has 2 elements, expected 3: one per choice\. Correct it",
        ),
        ({"wrong": "None"}, r"in every info, but the info from reset has no keys\. Add it"),
        ({"kind": "box"}, r"env\.options\.mask = true needs discrete actions\. Use false\.$"),
    ],
)
def test_unusable_masks_get_a_one_sentence_error(options, words):
    with pytest.raises(ValueError, match=words) as error:
        make("Allows", mask=True, **options)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("gymnasium/")


def test_a_mask_that_is_missing_later_is_reported():
    env = make("Allows", 1, mask=True, wrong="later")
    with pytest.raises(
        SimulatorError,
        match=r"but the info from step has .other.\. Add it in the environment or a wrapper, or",
    ):
        play(env, jnp.zeros((3, 1), jnp.int32))


def test_a_diverged_environment_allows_everything():
    # With an empty mask a policy would have no action for the step that resets.
    _, out = play(make("Allows", 1, mask=True, wrong="nan"), jnp.zeros((3, 1), jnp.int32))
    np.testing.assert_array_equal(out.diverged[:, 0], [False, True, False])
    np.testing.assert_array_equal(out.obs["obs"][1], [[0, 0, 0]])
    masks = out.obs["action_mask"][:, 0]
    np.testing.assert_array_equal(masks, [[0, 1, 0], [1, 1, 1], [1, 0, 0]])
