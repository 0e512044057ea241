"""Forms of functions for accelerators and for CPUs give equal results; both run on a CPU."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import flax_cells

from purejaxppo import spaces
from purejaxppo.agents import normalize, obs_storage, recurrences
from purejaxppo.agents.networks import build, cells, encoders, gated_scan
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import Config, EnvConfig, NetworkConfig, PPOConfig
from purejaxppo.parallel import platforms
from purejaxppo.parallel.shards import Shards
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
from purejaxppo.runs.evaluation import Evaluator
from purejaxppo.setup import resolve

OBS, ACTION = spaces.Box((3,)), spaces.Discrete(2)


def run_on(platform, function, *args):
    """Return `function`(*args), traced for a platform."""

    def traced(*args):
        with platforms.tracing_for(platform):
            return function(*args)

    return jax.jit(traced)(*args)


def both(function, *args):
    """Return `function`(*args) in both forms."""
    return run_on("cpu", function, *args), run_on("gpu", function, *args)


def assert_near(one, other, tolerance=2e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, tolerance, tolerance), one, other)


def lowered(platform, function, *args):
    """Return the text of `function`'s program for a platform."""

    def traced(*args):
        with platforms.tracing_for(platform):
            return function(*args)

    return jax.jit(traced).lower(*args).as_text()


@pytest.mark.parametrize("length", [1, 2, 5, 8, 33])
def test_staged_recurrences_equal_sequential_recurrences(length):
    keys = jax.random.split(jax.random.key(length), 3)
    b, a = (jax.random.normal(key, (length, 4)) for key in keys[:2])
    first = jax.random.normal(keys[2], (4,))
    assert_near(*both(recurrences.backwards, b, a))
    assert_near(*both(recurrences.forwards, b, a, first))


def test_discounted_returns_equal_a_loop():
    key = jax.random.split(jax.random.key(0), 4)
    reward, start = jax.random.normal(key[0], (20, 3)), jax.random.normal(key[1], (3,))
    done, valid = (
        jax.random.bernoulli(key[2], 0.2, (20, 3)),
        jax.random.bernoulli(key[3], 0.8, (20, 3)),
    )
    running, expected = np.array(start), []
    for r, d, v in zip(*map(np.asarray, (reward, done, valid)), strict=True):
        running = np.where(v, 0.9 * running + r, running)
        expected.append(running)
        running = np.where(d | ~v, 0.0, running)
    for got in both(normalize.discounted_returns, reward, done, valid, start, 0.9):
        assert_near((np.stack(expected), running), got)


@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("kind", flax_cells.CELLS)
def test_gated_units_have_the_same_outputs_and_gradients_on_both_platforms(kind, length):
    memory, args, start = make_cell(kind, length)

    def loss(params, carry, x):
        after, out = memory.apply(params, carry, x, start)
        return distance(out, after), out

    def gradients(*args):
        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*args)

    assert_near(*both(gradients, *args))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [pytest.param("float32", 1e-4, marks=pytest.mark.full), ("float64", 1e-11)],
)
@pytest.mark.parametrize("kind", flax_cells.CELLS)
def test_gradients_of_gated_units_equal_those_of_flax_cells(kind, dtype, tolerance):
    with jax.enable_x64(dtype == "float64"):
        memory, args, start = make_cell(kind, 12, dtype)
        cell = flax_cells.CELLS[kind](5)

        def ours(params, carry, x):
            after, out = memory.apply(params, carry, x, start)
            return distance(out, after)

        def flaxs(params, carry, x):
            theirs = {"params": flax_cells.params_of(kind, params["params"])}
            outs = []
            for row, fresh in zip(x, start, strict=True):
                carry, out = cell.apply(theirs, gated_scan.reset_where(fresh, carry), row)
                outs.append(out)
            return distance(jnp.stack(outs), carry)

        one = run_on("gpu", jax.grad(ours, (0, 1, 2)), *args)
        other = run_on("cpu", jax.grad(flaxs, (0, 1, 2)), *args)
        assert {leaf.dtype for leaf in jax.tree.leaves(one)} == {jnp.dtype(dtype)}
        assert_near(one, other, tolerance)


def make_cell(kind, length, dtype="float32"):
    """Return a recurrent cell of 5 units, nonzero (params, carry, x), and starts [length, 2]."""
    memory = cells.CELLS[kind](5, parent=None)
    keys = jax.random.split(jax.random.key(1), 4)
    zeros = jax.tree.leaves(memory.initial_carry((2,)))
    carry = [jax.random.normal(key, (2, 5), dtype) for key in jax.random.split(keys[0], len(zeros))]
    carry = carry[0] if kind == "gru" else tuple(carry)
    x = jax.random.normal(keys[1], (length, 2, 4), dtype)
    start = jax.random.bernoulli(keys[2], 0.3, (length, 2))
    params = jax.tree.map(lambda x: x.astype(dtype) + 0.1, memory.init(keys[3], carry, x, start))
    return memory, (params, carry, x), start


def distance(out, after):
    """Return a number that depends on all outputs and on the last carry."""
    return jnp.sum(jnp.sin(3 * out)) + sum(jnp.sum(x**2) for x in jax.tree.leaves(after))


CONFIGS = {
    "plain": {"layer_norm": True},
    "residual": {"block": "residual"},
    "gru": {"rnn": "gru", "rnn_size": 6},
    "lstm": {"rnn": "lstm", "rnn_size": 6},
    "mingru": {"rnn": "mingru", "rnn_size": 6},
    "stack": {"rnn": "mingru", "rnn_size": 6, "rnn_layers": 2},
    "other widths": {"critic_hidden": (5,), "rnn": "gru", "rnn_size": 6},
    "one torso": {"torso": "shared", "rnn": "gru", "rnn_size": 6},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] * (name in ("residual", "lstm")))
        for name in CONFIGS
    ],
)
def test_stacked_policy_and_critic_equal_separate_ones(name):
    network = build.make_network(OBS, ACTION, NetworkConfig(hidden=(8, 8), **CONFIGS[name]))
    keys = jax.random.split(jax.random.key(2), 4)
    params = jax.tree.map(lambda x: x + 0.1, network.init(keys[0]))
    obs = jax.random.normal(keys[1], (10, 3, 3))
    start = jax.random.bernoulli(keys[2], 0.2, (10, 3))
    carry = jax.tree.map(lambda x: x + 0.5, network.initial_carry((3,)))

    def loss(params, carry):
        out = network.unroll(params, carry, obs, start)
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(out)), out

    def gradients(*args):
        return jax.value_and_grad(loss, (0, 1), has_aux=True)(*args)

    assert_near(*both(gradients, params, carry), 1e-4)


def test_accelerators_unroll_policy_and_critic_in_one_loop_but_apply_them_separately():
    config = NetworkConfig(hidden=(8,), rnn="gru", rnn_size=6)
    network = build.make_network(OBS, ACTION, config)
    params, carry = network.init(jax.random.key(0)), network.initial_carry((3,))
    rows = jnp.zeros((10, 3, 3)), jnp.zeros((10, 3), bool)
    texts = [lowered(x, network.unroll, params, carry, *rows) for x in ("cpu", "gpu")]
    assert [text.count("stablehlo.while") for text in texts] == [2, 1]
    assert "tensor<2x8xf32>" in texts[1]  # biases of both torsos
    assert "tensor<2x8xf32>" not in lowered(
        "gpu", network.apply, params, carry, rows[0][0], rows[1][0]
    )


def test_many_rows_of_policy_and_critic_are_computed_in_two_batches():
    network = build.make_network(OBS, ACTION, NetworkConfig(hidden=(8,)))
    params = network.init(jax.random.key(0))
    few = build.MANY_ROWS // 2048 // 2

    def in_one_batch(num_rows, shards):
        shards.platform = "gpu"
        agents = (2048,) * (shards.num_members > 0)
        obs = jax.ShapeDtypeStruct((*agents, num_rows, 1, 3), jnp.float32)
        start = jax.ShapeDtypeStruct((*agents, num_rows, 1), bool)
        unroll = shards.map(lambda *rows: network.unroll(params, (), *rows), (None, None), None)
        text = jax.jit(unroll).lower(obs, start).as_text()
        return "tensor<2x8xf32>" in text  # biases of both torsos

    assert in_one_batch(few, Shards(1, num_members=2048))
    assert not in_one_batch(2 * few, Shards(1, num_members=2048))
    assert in_one_batch(2 * few, Shards(1))
    assert not in_one_batch(build.MANY_ROWS, Shards(1))


def test_policy_and_critic_convolve_images_separately():
    image = spaces.Box((10, 10, 4))
    network = build.make_network(image, ACTION, NetworkConfig(hidden=(8,)))
    params = jax.eval_shape(network.init, jax.random.key(0))
    params = jax.tree.map(lambda x: jnp.zeros(x.shape), params)
    obs, start = jnp.zeros((5, 2, 10, 10, 4)), jnp.zeros((5, 2), bool)
    counts = [
        lowered(x, network.unroll, params, (), obs, start).count("stablehlo.convolution")
        for x in ("cpu", "gpu")
    ]
    assert counts == [0, 2]


@pytest.mark.parametrize("rnn", [pytest.param("none", marks=pytest.mark.full), "gru"])
def test_an_update_is_the_same_on_both_platforms(rnn):
    config = Config(
        env=EnvConfig("dummy/vector", num_envs=4, max_episode_steps=7),
        ppo=PPOConfig(
            rollout_length=12, num_minibatches=2, num_epochs=2, normalize_reward=True, bptt_length=6
        ),
        network=NetworkConfig(hidden=(8,), rnn=rnn, rnn_size=6),
    )
    ends = []
    for platform in ("cpu", "gpu"):
        shards = Shards(1, jax.devices("cpu"))
        shards.platform = platform
        parts = make_parts(replace(config, num_shards=1), shards)
        state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
        hp = make_hyperparams(parts.config)
        ends.append(jax.jit(train_program(parts))(state, hp, jnp.int32(3)))
    (one, metrics), (other, others) = ends
    assert_near(one.agent.params, other.agent.params, 1e-4)
    assert_near(metrics.losses, others.losses, 1e-3)
    assert float(jnp.abs(one.opt_state[1]).max()) > 0


def test_accelerators_check_for_the_end_of_an_evaluation_less_often_with_the_same_result(
    make_config,
):
    config = make_config(
        env={"name": "gymnax/Pendulum-v1", "max_episode_steps": 21}, eval={"stochastic": True}
    )
    agent = jax.jit(make_parts(config).policy.init)(jax.random.key(1))
    found = []
    for platform in ("cpu", "gpu"):
        shards = Shards(1)
        shards.platform = platform
        evaluator = Evaluator(resolve(config), make_parts(config).policy, 3, shards=shards)
        run = jax.jit(evaluator.evaluate)
        found.append(run(agent, jax.random.key(3)))
        loops = run.lower(agent, jax.random.key(3)).as_text().count("stablehlo.while")
        found.append(loops)
    one, loops, other, more = found
    assert more == loops + 1
    assert_near(one, other)
    assert np.all(np.asarray(other.lengths) == 21)  # though 32 steps were made


def test_accelerators_process_images_and_windows_in_larger_parts():
    rows = jnp.zeros((64, 64, 9, 9, 1))
    storage, start = obs_storage.FullObs(), jnp.zeros((64, 64), bool)

    def sizes(platform):
        seen = []
        run_on(
            platform,
            lambda rows: storage.map_rows(lambda x, s: seen.append(x.shape) or s, (), rows, start),
            rows,
        )
        return seen[0][0] * seen[0][1]

    assert (sizes("cpu"), sizes("gpu")) == (512, 4096)


def test_accelerators_initialise_all_seeds_in_one_batch():
    init = encoders.orthogonal(1.0)

    def weights(keys):
        return jax.vmap(lambda key: init(key, (4, 3)))(keys)

    keys = jax.random.split(jax.random.key(0), 5)
    apart, at_once = (lowered(x, weights, keys).count("stablehlo.while") for x in ("cpu", "gpu"))
    assert apart > at_once
    one = run_on("gpu", weights, keys)
    assert_near(jnp.einsum("sij,sik->sjk", one, one), jnp.broadcast_to(jnp.eye(3), (5, 3, 3)))


def test_a_program_is_traced_for_its_devices_or_the_default_device():
    assert Shards(1, jax.devices("cpu")).platform == "cpu"
    seen = []
    shards = Shards(1)
    shards.map(lambda x: seen.append(platforms.platform()) or x, (None,), None)(1.0)
    shards.platform = "gpu"
    shards.map(lambda x: seen.append(platforms.platform()) or x, (None,), None)(1.0)
    assert seen == [jax.default_backend(), "gpu"]
    with jax.default_device("cpu"):
        assert platforms.platform() == "cpu"
