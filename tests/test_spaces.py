"""Bounds of spaces, and the preprocessing of observations by them."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo import learner
from purejaxppo.agents.networks.encoders import Encoder
from purejaxppo.agents.normalize import update_stats
from purejaxppo.agents.policy import Policy
from purejaxppo.config.schema import Config, NetworkConfig, PPOConfig
from purejaxppo.envs import teams
from purejaxppo.envs.base import EnvSpec, TaskStep
from purejaxppo.parts import make_parts
from purejaxppo.spaces import MASK, Box, Dict, Discrete, MultiDiscrete, leaves, network_input
from purejaxppo.types import RunningStats

DTYPES = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32")
SHAPES = ((), (3,), (2, 3), (4, 5, 3), (2, 1, 2, 2))
BYTES = Box((2,), 0, 255, "uint8")
LARGEST = float(np.finfo(np.float32).max)


def make_policy(observation, **ppo):
    config = Config(network=NetworkConfig(hidden=(8,)), ppo=PPOConfig(**ppo))
    return Policy(config, EnvSpec(observation, Discrete(3), 1))


def features(space, values, **rule):
    """Return the input of a network without layers."""
    obs = jnp.asarray(values, space.dtype if isinstance(space, Box) else "int32")
    return Encoder(network_input(space, **rule), NetworkConfig(encoder="mlp")).apply({}, obs)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("space", "values", "expected"),
    [
        (Box((2,), 0, 255, "uint8"), [51, 255], [0.2, 1]),
        (Box((2,), dtype="uint8"), [51, 255], [0.2, 1]),
        (Box((2,), 0, 1, "uint8"), [0, 1], [0, 1]),
        (Box((2,), 0, 254, "uint8"), [51, 254], [51, 254]),
        (Box((2,), 0, 255, "int32"), [51, 255], [51, 255]),
        (Box((2,), (0.0, 0.0), (255.0, 10.0), "uint8"), [51, 10], [51, 10]),
        (Box((1, 1, 2), 0, 255, "uint8"), [[[51, 255]]], [0.2, 1]),
        (Box((1, 1, 2), 0, 1, "uint8"), [[[0, 1]]], [0, 1]),
        (Box((1, 1, 2), 0, 1, "bool"), [[[False, True]]], [0, 1]),
        (Box((1, 1, 2), -5, 5, "int8"), [[[-5, 3]]], [-5, 3]),
        (Discrete(3), 1, [0, 1, 0]),
        (MultiDiscrete((2, 3)), [1, 2], [0, 1, 0, 0, 1]),
    ],
)
def test_unnormalised_observations_are_cast_and_only_full_range_bytes_are_divided(
    space, values, expected
):
    read = features(space, values, normalize_obs=False)
    np.testing.assert_allclose(read.ravel(), expected, rtol=1e-6)


@pytest.mark.toy
def test_vectors_of_any_type_are_normalised_and_images_are_not():
    # (8 - 2) / sqrt(9) = 2 and (1 - 2) / sqrt(9) = -1/3; the 8 of the image is only cast.
    parts = {"bytes": BYTES, "bits": Box((2,), 0, 1, "bool"), "image": Box((1, 1, 2), 0, 9, "int8")}
    policy = make_policy(Dict.of({**parts, MASK: Box((3,), 0, 1, "uint8")}))
    stats = RunningStats(
        jnp.float32(10), [jnp.full(2, 2.0), jnp.full(2, 2.0)], [jnp.full(2, 90.0)] * 2
    )
    obs = {
        "bytes": jnp.array([8, 1], jnp.uint8),
        "bits": jnp.array([True, False]),
        "image": jnp.array([[[8, 1]]], jnp.int8),
        MASK: jnp.array([1, 0, 1], jnp.uint8),
    }
    normalized = policy.normalize_obs(stats, obs)
    np.testing.assert_allclose(normalized["bytes"], [2, -1 / 3], rtol=1e-6)
    np.testing.assert_allclose(normalized["bits"], [-1 / 3, -2 / 3], rtol=1e-6)
    for name in ("image", MASK):
        assert normalized[name] is obs[name]


@pytest.mark.toy
@pytest.mark.parametrize(
    ("space", "values", "expected"),
    [
        (Box((2,), 0, 1, "uint8"), [0, 1], [0, 1 / 255]),
        (Box((1, 1, 2), 0, 10, "uint8"), [[[0, 10]]], [0, 10 / 255]),
        (Box((2,), 0, 10, "int32"), [3, 10], [3, 10]),
    ],
)
def test_the_rule_of_version_0_2_divides_all_bytes_and_normalises_no_integers(
    space, values, expected
):
    policy = make_policy(space, obs_preprocessing="by_dtype")
    assert not any(policy.is_normalized())
    np.testing.assert_allclose(features(space, values, by_dtype=True).ravel(), expected, rtol=1e-6)


def random_parts(rng):
    """Yield spaces of every dtype with random bounds and shapes, and rows of each, [4, *shape]."""
    parts, rows = {}, {}
    for dtype in DTYPES:
        for shape in SHAPES:
            lowest, highest = (0, 1) if dtype == "bool" else (-100, 100)
            low, high = sorted(rng.integers(0 if dtype[0] in "ub" else lowest, highest, 2))
            name = f"{dtype}{len(shape)}"
            parts[name] = Box(shape, float(low), float(high + 1), dtype)
            rows[name] = rng.integers(low, high + 1, (4, *shape), endpoint=True)
    return parts, rows


@pytest.mark.toy
@pytest.mark.parametrize("normalize_obs", [True, False])
def test_integers_have_the_outputs_and_statistics_of_float32(normalize_obs, key):
    parts, rows = random_parts(np.random.default_rng(3))
    results = []
    for dtype in (None, "float32"):
        observation = {
            name: Box(box.shape, box.low, box.high, dtype or box.dtype)
            for name, box in parts.items()
        }
        policy = make_policy(Dict.of(observation), normalize_obs=normalize_obs)
        obs = {name: jnp.asarray(x, observation[name].dtype) for name, x in rows.items()}
        agent = jax.jit(policy.init)(key)
        valid = jnp.array([True, True, True, False])
        stats = update_stats(agent.obs_stats, policy.normalizable(obs), valid, lambda x: x)
        agent = agent.replace(obs_stats=stats)
        outputs = jax.jit(policy.apply)(agent, (), obs, jnp.ones(4, bool))
        results.append((agent, outputs))
    jax.tree.map(np.testing.assert_array_equal, *results)
    vectors = sum(len(shape) < 3 for shape in SHAPES) * len(DTYPES)
    assert len(results[0][0].obs_stats.mean) == vectors * normalize_obs


class Bits:
    """Observations are random bits of a given dtype."""

    action = Discrete(3)
    max_episode_steps = 7
    cheap_reset = True

    def __init__(self, dtype):
        """Set the dtype of observations."""
        self.observation = Box((5,), 0, 1, dtype)

    def observe(self, key):
        """Return five random bits."""
        return jax.random.bernoulli(key, 0.3, (5,)).astype(self.observation.dtype)

    def reset(self, key):
        """Return the first observation, without a state."""
        return (), self.observe(key)

    def step(self, key, state, action):
        """Reward the first action."""
        reward = jnp.float32(action == 0)
        return (), TaskStep(self.observe(key), reward, jnp.array(False), jnp.array(False))


@pytest.mark.toy
def test_rollouts_store_the_type_and_have_the_statistics_of_float32(make_config, key):
    results = []
    for dtype in ("uint8", "bool", "float32"):
        parts = make_parts(make_config(env={"name": Bits(dtype), "num_envs": 4}))

        def run(key, parts=parts):
            state = learner.init_state(parts, key, jnp.int32(0))
            rollout = learner.collect(parts, state.agent, state.rollout, key, 0.0)
            return rollout, learner.update_obs_stats(parts, state.agent.obs_stats, rollout)

        rollout, stats = jax.jit(run)(key)
        assert rollout.transitions.obs.dtype == dtype
        results.append((rollout.transitions.action, rollout.transitions.log_prob, stats))
    assert 0 < results[0][2].mean[0][0] < 1
    for other in results[:2]:
        jax.tree.map(np.testing.assert_array_equal, other, results[2])


@pytest.mark.parametrize(
    ("low", "high", "bounded"),
    [
        (-1.0, 1.0, True),
        (-1e38, 1e38, True),
        (-2e38, 2e38, False),  # the range is 4e38, and the largest float32 is 3.4e38
        (-LARGEST, LARGEST, False),
        (0.0, LARGEST, False),
        (-float(np.finfo(np.float64).max), float(np.finfo(np.float64).max), False),
        ((-1.0, -LARGEST), (1.0, LARGEST), False),
        (0.0, np.inf, False),
    ],
)
def test_ranges_beyond_float32_are_unbounded(low, high, bounded):
    assert Box((2,), low, high).bounded == bounded


def test_the_largest_number_of_a_dtype_means_no_bound():
    limit = np.full(2, np.finfo(np.float64).max)
    assert Box.between(-limit, limit, "float32") == Box((2,))
    one_side = Box.between(np.zeros(2), limit, "float32")
    assert (one_side.low, one_side.high) == (0.0, np.inf)


def test_padded_vectors_of_bytes_are_bytes():
    longer = Box((3,), 0, 255, "uint8")
    assert teams.common([BYTES, longer], ("a", "b"), "observation") == longer
    bits = [Box((2,), 0, 1, "uint8"), Box((3,), 0, 1, "uint8")]
    assert not teams.common(bits, ("a", "b"), "observation").is_bytes


@pytest.mark.toy
def test_a_mapping_of_spaces_is_a_dict_space_with_sorted_names():
    inner = {"b": Discrete(3), "a": Box((2,))}
    space = Dict({"z": inner, "c": Dict({"d": MultiDiscrete((2, 2))})})
    pairs = (
        ("c", Dict((("d", MultiDiscrete((2, 2))),))),
        ("z", Dict((("a", Box((2,))), ("b", Discrete(3))))),
    )
    assert space.spaces == pairs and space == Dict(pairs) == Dict.of({"z": inner, "c": space["c"]})
    assert hash(space) == hash(Dict(pairs)) and pickle.loads(pickle.dumps(space)) == space
    assert [leaf.path for leaf in leaves(space)] == [("c", "d"), ("z", "a"), ("z", "b")]
    assert Dict((("z", Box(())), ("a", Box(())))).spaces[0][0] == "z"  # pairs keep their order
