"""Precision of matrix products by the config; parameters, heads and losses stay float32."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejaxppo import spaces
from purejaxppo.agents.networks import build
from purejaxppo.agents.policy import Policy
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.files import compare
from purejaxppo.config.schema import NetworkConfig
from purejaxppo.envs.base import EnvSpec
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
from purejaxppo.runs.evaluation import Evaluator
from purejaxppo.runs.pure_training import make_train
from purejaxppo.setup import resolve

IMAGE = spaces.Box((10, 10, 3), 0, 255, "uint8")
PRODUCT = re.compile(r"stablehlo\.(?:dot_general|convolution)[^\n]*")


def matrix_products(lowered):
    """Return the matrix products of a lowered program, one line of text each."""
    return PRODUCT.findall(lowered.as_text())


def chunk_products(config):
    parts = make_parts(config)
    state = jax.eval_shape(init_program(parts), jax.random.key(0), shard_ids(parts))
    return matrix_products(jax.jit(train_program(parts)).lower(state, make_hyperparams(config), 1))


CARTPOLE = "gymnax/CartPole-v1"


@pytest.mark.parametrize(
    ("name", "precision", "written"),
    [
        (CARTPOLE, "highest", "HIGHEST"),
        (CARTPOLE, "high", "HIGH"),
        (CARTPOLE, "default", "DEFAULT"),
        pytest.param("brax/inverted_pendulum", "high", "HIGH", marks=pytest.mark.full),
    ],
)
def test_every_product_of_training_has_the_precision_of_the_config(
    make_config, name, precision, written
):
    config = make_config(env={"name": name}, matmul_precision=precision)
    found = chunk_products(config)
    # Two layers of two towers: acting, values, the loss, its gradient.
    assert len(found) >= 4 * 4
    assert all(f"precision = [{written}, {written}]" in line for line in found)


@pytest.mark.toy
def test_float32_products_are_the_default(make_config):
    assert make_config().matmul_precision == "highest"


def test_pure_training_evaluation_and_acting_follow_the_config_too(make_config, key):
    config = make_config(env={"name": "gymnax/CartPole-v1"})
    policy = make_parts(config).policy
    agent = jax.eval_shape(policy.init, key)
    evaluator = Evaluator(resolve(config), policy, 2)
    obs, start = jnp.zeros((2, 4)), jnp.zeros(2, bool)
    for lowered in (
        jax.jit(make_train(config)).lower(key),
        jax.jit(evaluator.evaluate).lower(agent, key),
        jax.jit(policy.act).lower(agent, key, (), obs, start),
        jax.jit(policy.act_deterministically).lower(agent, key, (), obs, start),
    ):
        found = matrix_products(lowered)
        assert found
        assert all("precision = [HIGHEST, HIGHEST]" in line for line in found)


def test_the_default_precision_of_the_process_has_no_effect(make_config):
    config = make_config(env={"name": "gymnax/CartPole-v1"})
    with jax.default_matmul_precision("bfloat16"):
        found = chunk_products(config)
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in found)


@pytest.mark.gpu
def test_an_accelerator_rounds_products_only_if_configured(make_config, key):
    obs = jax.random.normal(key, (256, 64))
    start, errors = jnp.zeros(256, bool), {}
    for precision in ("highest", "default"):
        config = make_config(
            network={"hidden": (256, 256)},
            ppo={"normalize_obs": False},
            matmul_precision=precision,
        )
        policy = Policy(config, EnvSpec(spaces.Box((64,)), spaces.Box((4,)), 256))
        agent = policy.init(key)
        x = np.asarray(obs, np.float64)
        for name in ("dense_0", "dense_1"):
            layer = jax.tree.map(np.float64, agent.params["actor_torso"][name])
            x = np.tanh(x @ layer["kernel"] + layer["bias"])
        layer = jax.tree.map(np.float64, agent.params["actor"])
        exact = x @ layer["kernel"] + layer["bias"]
        found = policy.act_deterministically(agent, key, (), obs, start).action
        errors[precision] = np.abs(found - exact).max() / np.abs(exact).max()
    assert errors["highest"] < 1e-5 < errors["default"]


@pytest.mark.parametrize("observation", [spaces.Box((5,)), IMAGE], ids=["vector", "image"])
@pytest.mark.parametrize("options", [{}, {"layer_norm": True, "torso": "shared"}])
def test_bfloat16_computes_in_bfloat16_with_float32_parameters_and_heads(observation, options, key):
    outputs, action = {}, spaces.Box((2,), -1, 1)
    for dtype in ("float32", "bfloat16"):
        config = NetworkConfig(hidden=(32, 32), compute_dtype=dtype, **options)
        network = build.make_network(observation, action, config)
        params = jax.jit(network.init)(key)
        assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
        obs = jax.random.randint(key, (7, *observation.shape), 0, 256)
        obs = obs.astype(observation.dtype) / (1 if observation is IMAGE else 256)
        obs = obs.astype(observation.dtype)
        apply = jax.jit(network.apply)
        out = apply(params, (), obs, jnp.zeros(7, bool))
        outputs[dtype] = (out.dist_params, out.critic)
        assert {x.dtype for x in outputs[dtype]} == {jnp.dtype("float32")}
        lines = matrix_products(apply.lower(params, (), obs, jnp.zeros(7, bool)))
        narrow = ["xbf16>, tensor" in line for line in lines]
        assert sum(not yes for yes in narrow) == (2 if dtype == "bfloat16" else len(lines))
    for exact, rounded in zip(outputs["float32"], outputs["bfloat16"], strict=True):
        # bfloat16 has 8 bits of precision, and each layer rounds.
        np.testing.assert_allclose(rounded, exact, atol=0.03 * np.abs(exact).max())
        assert np.abs(rounded - exact).max() > 0


def test_all_state_of_a_bfloat16_run_is_float32(make_config, key):
    config = make_config(env={"name": "gymnax/CartPole-v1"}, network={"compute_dtype": "bfloat16"})
    parts = make_parts(config)
    state = jax.jit(init_program(parts))(key, shard_ids(parts))
    after, metrics = jax.jit(train_program(parts))(state, make_hyperparams(config), 2)
    types = {x.dtype for x in jax.tree.leaves((after.agent, after.opt_state, metrics))}
    assert types <= {jnp.dtype("float32"), jnp.dtype("int32")}
    assert np.isfinite(metrics.losses.value_loss)


@pytest.mark.full
@pytest.mark.usefixtures("optimized")
def test_cartpole_is_learned_in_bfloat16(make_config):
    config = make_config(
        env={"name": "gymnax/CartPole-v1", "num_envs": 16},
        network={"hidden": (32, 32), "compute_dtype": "bfloat16"},
        ppo={"learning_rate": 3e-3, "rollout_length": 64, "num_minibatches": 4, "num_epochs": 4},
        total_timesteps=60_000,
    )
    result = jax.jit(make_train(config, num_points=10))(jax.random.key(0))
    returns = np.asarray(result.curves.episodic_return)
    assert returns[-1] > 3 * returns[0]
    assert returns[-1] > 100


@pytest.mark.toy
def test_precision_and_compute_dtype_are_structural_fields(make_config):
    old = make_config()
    assert compare(old, make_config(network={"compute_dtype": "bfloat16"})) == (
        ["network.compute_dtype"],
        [],
    )
    assert compare(old, make_config(matmul_precision="default")) == (["matmul_precision"], [])
