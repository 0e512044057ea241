"""Exported policies act like their agents, in numpy and in onnxruntime."""

import dataclasses
import re
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import purejaxppo.cli.train as train_command
from purejaxppo import __version__, restore, spaces
from purejaxppo.agents.networks import convolutions
from purejaxppo.agents.networks.encoders import ACTIVATIONS
from purejaxppo.agents.policy import Policy
from purejaxppo.config.installation import install_extra
from purejaxppo.config.schema import NetworkConfig
from purejaxppo.envs.base import EnvSpec
from purejaxppo.export import __main__ as export_command
from purejaxppo.export import files as export
from purejaxppo.export import player, trace
from purejaxppo.export.rewrite import RULES
from purejaxppo.runs.agent import Agent
from purejaxppo.spaces import Box, Dict, Discrete, MultiDiscrete
from purejaxppo.types import AgentState, RunningStats

onnxruntime = pytest.importorskip("onnxruntime")

PENDULUM = """
env: {name: gymnax/Pendulum-v1, num_envs: 8}
network: {hidden: [16]}
ppo: {rollout_length: 16, num_minibatches: 2, num_epochs: 1}
eval: {num_episodes: 2}
logging: {tensorboard: false}
total_timesteps: 256
"""
CARTPOLE = PENDULUM.replace("Pendulum", "CartPole")
IMAGE = Box((36, 36, 3), 0.0, 255.0, "uint8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run of Pendulum, and one of two seeds of CartPole."""
    pytest.importorskip("gymnax")
    folder = tmp_path_factory.mktemp("runs")
    for name, text, flags in (
        ("pendulum", PENDULUM, []),
        ("cartpole", CARTPOLE, ["--num_seeds", "2"]),
    ):
        path = folder / f"{name}.yaml"
        path.write_text(text)
        command = ["--config", str(path), "--run_dir", str(folder / name), *flags]
        assert train_command.main(command) == 0
    return folder


def players(program, folder):
    """Return a function (obs, carry, start) -> (arrays of the action, carry) per kind of file."""
    return [
        export.written_as(program, folder / f"policy{suffix}", suffix)[0]
        for suffix in export.POLICY_SUFFIXES
    ]


def random_state(policy, gain=1.0):
    """Return a state with random nonzero parameters and random statistics."""
    rng = np.random.default_rng(0)

    def parameter(x):
        fan_in = int(np.prod(x.shape[:-1])) if x.ndim > 1 else 10
        return (gain * rng.standard_normal(x.shape) / np.sqrt(fan_in)).astype(np.float32)

    shapes = jax.eval_shape(policy.init, jax.random.key(0))
    mean = jax.tree.map(parameter, shapes.obs_stats.mean)
    m2 = jax.tree.map(lambda x: 50 + 1000 * np.square(x), mean)
    stats = RunningStats(np.float32(100), mean, m2)
    return AgentState(jax.tree.map(parameter, shapes.params), stats)


def assert_same_actions(policy, folder, *, batch=1, count=1000, gain=1.0):
    """Check that the actions of each file equal the policy's, and return (program, actions)."""
    act = export.deterministic(policy, random_state(policy, gain))
    program = export.trace_policy(act, policy, batch)
    obs = export.random_observation(policy, np.random.default_rng(1), count)
    expected, _ = jax.jit(act)(obs, (), jnp.zeros(count, bool))
    expected = jax.tree.leaves(jax.device_get(expected))
    for play in players(program, folder):
        rows = []
        for i in range(0, count, batch):
            part = jax.tree.map(lambda x, i=i: x[i : i + batch], obs)
            rows.append(play(part, (), np.zeros(batch, bool))[0])
        for column, one in zip(zip(*rows, strict=True), expected, strict=True):
            whole = np.concatenate(column)
            assert whole.dtype == one.dtype
            if one.dtype == np.int32:
                assert (whole != one).mean() <= 0.002  # two logits differ only by rounding
            else:
                np.testing.assert_allclose(whole, one, rtol=1e-5, atol=1e-5)
    return program, expected


def make_policy(make_config, observation, action, **network):
    config = make_config(network={"hidden": (16, 16), **network})
    return Policy(config, EnvSpec(observation, action, 1))


ACTIVATED = [("tanh", False), ("relu", False), ("swish", True), ("gelu", False), ("elu", True)]


@pytest.mark.parametrize(("activation", "layer_norm"), ACTIVATED)
def test_exported_policies_with_every_activation_act_like_the_agent(
    activation, layer_norm, make_config, tmp_path
):
    policy = make_policy(
        make_config, Box((5,)), Box((3,)), activation=activation, layer_norm=layer_norm
    )
    _, (action,) = assert_same_actions(policy, tmp_path)
    assert action.std() > 0.1


@pytest.mark.toy
def test_the_activation_cases_are_complete():
    assert set(ACTIVATIONS) == {activation for activation, _ in ACTIVATED}


def test_an_exported_tanh_gaussian_includes_the_tanh(make_config, tmp_path):
    policy = make_policy(make_config, Box((4,)), Box((2,), -1.0, 1.0), distribution="tanh_gaussian")
    program, (action,) = assert_same_actions(policy, tmp_path, gain=2.0)
    assert program.equations[-1].op == "tanh"
    assert 0.9 < np.abs(action).max() <= 1


def test_the_critic_is_not_exported(make_config, tmp_path):
    policy = make_policy(make_config, Box((4,)), Box((2,)), std="dependent")
    program, _ = assert_same_actions(policy, tmp_path, count=10)
    matrices = [x for x in program.constants.values() if x.ndim == 2 and len(x) > 1]
    weights = sum(x.size for x in matrices)
    assert weights == 4 * 16 + 16 * 16 + 16 * 4
    assert [port.name for port in program.inputs] == [
        "obs"
    ]  # without a recurrent cell: no carry, no start


@pytest.mark.parametrize(
    ("observation", "encoder"),
    [
        (IMAGE, "cnn_nature"),
        (dataclasses.replace(IMAGE, shape=(3, 36, 36)), "cnn_nature"),
        (dataclasses.replace(IMAGE, shape=(9, 10, 3)), "cnn_impala"),
        (Box((10, 10, 4)), "cnn_small"),
    ],
    ids=["nature", "channels first", "impala", "small"],
)
def test_exported_image_policies_act_like_the_agent(observation, encoder, make_config, tmp_path):
    # The reference uses the other form of convolution, as training on a CPU does.
    policy = make_policy(make_config, observation, Box((2,)), encoder=encoder, torso="shared")
    program, (action,) = assert_same_actions(policy, tmp_path, batch=50, count=200)
    assert any(e.op == "conv_general_dilated" for e in program.equations)
    assert action.std(axis=0).min() > 1e-3


def test_exported_policies_preprocess_integers_of_every_dtype(make_config, tmp_path):
    parts = {
        "bits": Box((4,), 0, 1, "bool"),
        "bytes": Box((2,), 0, 255, "uint8"),
        "counts": Box((3,), -9, 9, "int8"),
        "ids": Box((2,), 0, 1000, "int32"),
        "plane": Box((2, 2, 1), 0, 1, "uint8"),
        "picture": Box((2, 2, 1), 0, 255, "uint8"),
    }
    policy = make_policy(make_config, Dict.of(parts), Box((2,)))
    program, (action,) = assert_same_actions(policy, tmp_path, batch=50, count=200)
    assert {port.name: port.dtype for port in program.inputs} == {
        f"obs.{name}": box.dtype for name, box in parts.items()
    }
    assert action.std(axis=0).min() > 1e-3


def test_the_convolution_form_for_cpus_can_be_exported(make_config, tmp_path):
    observation = dataclasses.replace(IMAGE, shape=(36, 37, 1))
    policy = make_policy(make_config, observation, Box((2,)), encoder="cnn_nature", torso="shared")
    act = export.deterministic(policy, random_state(policy))
    with convolutions.using(convolutions.BATCH_LAST):
        program = trace.trace(act, np.zeros((2, 36, 37, 1), np.uint8))
        obs = export.random_observation(policy, np.random.default_rng(1), 2)
        expected = jax.jit(act)(obs, (), np.zeros(2, bool))[0]
    assert not any(e.op == "conv_general_dilated" for e in program.equations)
    for play in players(program, tmp_path):
        np.testing.assert_allclose(play(obs, (), None)[0][0], expected, rtol=1e-5, atol=1e-5)


def test_parts_of_observations_and_actions_keep_their_names(make_config, tmp_path):
    observation = Dict.of({"where": Box((3,)), "which": Discrete(4), "what": MultiDiscrete((2, 3))})
    action = Dict.of({"move": Box((2,)), "turn": Discrete(3), "both": MultiDiscrete((2, 3))})
    policy = make_policy(make_config, observation, action)
    program, _ = assert_same_actions(policy, tmp_path, batch=4)
    assert [p.name for p in program.inputs] == ["obs.what", "obs.where", "obs.which"]
    assert [p.name for p in program.outputs] == ["action.both", "action.move", "action.turn"]
    obs = jax.tree.map(lambda x: x[None].repeat(4, 0), spaces.example(observation))
    action, _ = player.load(tmp_path / "policy.npz")(obs)
    assert {name: x.shape for name, x in action.items()} == {
        "both": (4, 2),
        "move": (4, 2),
        "turn": (4,),
    }


def test_two_parts_of_an_observation_with_one_name_are_rejected(make_config, tmp_path):
    observation = Dict.of({"a": Dict.of({"b": Box((3,))}), "a.b": Box((2,))})
    with pytest.raises(ValueError, match=r"two parts with the name a\.b\. Rename one"):
        assert_same_actions(make_policy(make_config, observation, Box((2,))), tmp_path)


@pytest.mark.parametrize(
    ("torso", "memory", "layers"),
    [
        ("separate", "gru", 1),
        ("shared", "lstm", 1),
        ("separate", "mingru", 2),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in [("shared", "gru", 1), ("separate", "lstm", 2), ("shared", "mingru", 1)]
        ),
    ],
)
def test_exported_recurrent_policies_act_like_the_agent(
    memory, torso, layers, make_config, tmp_path
):
    """1,000 steps of two rows with occasional starts."""
    network = {"rnn": memory, "rnn_size": 8, "rnn_layers": layers, "torso": torso}
    policy = make_policy(make_config, Box((5,)), Box((3,), -1.0, 1.0), **network)
    act = export.deterministic(policy, random_state(policy))
    program = export.trace_policy(act, policy, 2)
    obs = export.random_observation(policy, np.random.default_rng(1), 2000).reshape(1000, 2, 5)
    start = np.random.default_rng(2).random((1000, 2)) < 0.05
    reference, seen = jax.jit(act), []
    for play in players(program, tmp_path):
        carry, played_carry = policy.network.initial_carry((2,)), None
        for row, begins in zip(obs, start, strict=True):
            expected, carry = reference(row, carry, begins)
            (played,), played_carry = play(row, played_carry, begins)
            np.testing.assert_allclose(played, expected, rtol=1e-5, atol=1e-5)
            seen.append(played)
    assert np.std(seen) > 0.05
    arrays = layers * (2 if memory == "lstm" else 1)  # the critic's cells are left out
    assert [x.shape for x in program.initial_carry] == [(2, 8)] * arrays


@pytest.mark.parametrize("layers", ["plain", "residual"])
def test_exported_policies_with_masks_beta_and_actor_keys_act_like_the_agent(
    layers, make_config, tmp_path
):
    observation = Dict.of(
        {"own": Box((4,)), "far": Box((3,)), "action_mask": Box((3,), 0, 1, "uint8")}
    )
    action = Dict.of({"move": Box((2,), -1.0, 1.0), "turn": Discrete(3)})
    policy = make_policy(
        make_config,
        observation,
        action,
        distribution="beta",
        input_hidden=(8,),
        block=layers,
        actor_keys=("own",),
    )
    program, (move, turn) = assert_same_actions(policy, tmp_path, batch=4)
    assert [port.name for port in program.inputs] == ["obs.action_mask", "obs.own"]
    assert np.all(np.abs(move) <= 1) and move.std() > 0.05
    mask = export.random_observation(policy, np.random.default_rng(1), 1000)["action_mask"]
    some = mask.any(axis=1)
    assert mask[np.arange(1000), turn][some].all() and not mask.all()


def test_an_exported_policy_with_parts_of_a_vector_takes_the_vector(make_config, tmp_path):
    parts = {"far": (0, 1, 3, 5), "near": (1, 3)}
    network = {"hidden": (16,), "input_hidden": (8,), "actor_keys": ("far",)}
    config = make_config(env={"obs_parts": parts}, network=network)
    policy = Policy(config, EnvSpec(Box((5,)), Box((2,), -1.0, 1.0), 1))
    program, _ = assert_same_actions(policy, tmp_path, batch=4)
    assert [(x.name, tuple(x.shape)) for x in program.inputs] == [("obs", (4, 5))]


# Recurrent functions like those of networks: (params, obs [B, 3], carry, start) -> (y, carry).


def gru(w, x, h, start):
    h = jnp.where(start[:, None], 0.0, h)
    r, z = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h], -1) @ w["gates"]), 2, axis=-1)
    new = jnp.tanh(jnp.concatenate([x, r * h], -1) @ w["new"])
    h = (1 - z) * h + z * new
    return h, h


def lstm(w, x, carry, start):
    c, h = (jnp.where(start[:, None], 0.0, part) for part in (carry["c"], carry["h"]))
    gates = jnp.concatenate([x, h], -1) @ jnp.concatenate([w["gates"], w["gates"][:, ::-1]], -1)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h, {"c": c, "h": h}


def min_gru(w, x, carry, start):
    """Compute minGRU in logarithms by an associative scan of length 1, and add a step count."""
    h, count = carry
    both = jnp.concatenate([x, jnp.zeros((len(x), 4))], -1) @ w["gates"]
    k, v = jnp.split(both, 2, axis=-1)
    log_values = jnp.where(v >= 0, jnp.log(jax.nn.relu(v) + 0.5), -jax.nn.softplus(-v))
    keep = jnp.where(start[:, None], 0.0, jnp.exp(-jax.nn.softplus(k)))
    add = jnp.exp(-jax.nn.softplus(-k) + log_values)

    def combine(one, two):
        return one[0] * two[0], two[0] * one[1] + two[1]

    a, b = lax.associative_scan(combine, (keep[None], add[None]))
    _, h = lax.scan(lambda h, ab: (h, ab[0] * h + ab[1]), h, (a, b))
    count = jnp.where(start, 0, count + 1)
    return h[0] + 0.01 * count[:, None], (h[0], count)


@pytest.mark.parametrize(
    ("cell", "carry"),
    [
        (gru, np.zeros((2, 4), np.float32)),
        (lstm, {"c": np.zeros((2, 4), np.float32), "h": np.zeros((2, 4), np.float32)}),
        (min_gru, (np.zeros((2, 4), np.float32), np.zeros(2, np.int32))),
    ],
    ids=["gru", "lstm", "minGRU"],
)
def test_the_carry_of_an_exported_cell_is_correct_over_fifty_steps_with_resets(
    cell, carry, tmp_path
):
    rng = np.random.default_rng(0)
    w = {
        "gates": rng.standard_normal((7, 8)).astype(np.float32),
        "new": rng.standard_normal((7, 4)).astype(np.float32),
    }

    def act(obs, carry, start):
        return cell(w, obs, carry, start)

    program = trace.trace(act, np.zeros((2, 3), np.float32), carry)
    reference = jax.jit(act)
    size = len(jax.tree.leaves(carry))
    assert [p.name for p in program.inputs][-1] == "start"
    assert [p.name for p in program.outputs][1:] == [f"next_carry.{i}" for i in range(size)]
    for play in players(program, tmp_path):
        expected_carry, played_carry = carry, tuple(jax.tree.leaves(carry))
        seen = []
        for step in range(50):
            obs = rng.standard_normal((2, 3)).astype(np.float32)
            start = np.array([step % 17 == 0, step % 11 == 5])
            expected, expected_carry = reference(obs, expected_carry, start)
            (played,), played_carry = play(obs, played_carry, start)
            np.testing.assert_allclose(played, expected, rtol=1e-5, atol=1e-5)
            seen.append(played)
        assert np.std(seen) > 0.1
        for one, other in zip(jax.tree.leaves(expected_carry), played_carry, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_inputs_that_do_not_affect_the_action_are_left_out(tmp_path):
    obs = {
        "state": np.ones((1, 2), np.float32),
        "critic": {"mass": np.ones((1, 1), np.float32)},
        "both": {"goal": np.ones((1, 2), np.float32), "force": np.ones((1, 3), np.float32)},
        "pair": (np.ones((1, 2), np.float32), np.ones((1, 1), np.float32)),
    }

    def act(obs, carry, start):
        """Add the goal of two steps before; the third carry is the critic's."""
        last, before, value = carry
        action = obs["state"] + before + obs["pair"][0]
        return action, (obs["both"]["goal"], last, value + obs["critic"]["mass"])

    carry = tuple(np.zeros((1, n), np.float32) for n in (2, 2, 1))
    program = trace.trace(act, obs, carry)
    assert [port.name for port in program.inputs] == [
        *("obs.both.goal", "obs.pair.0", "obs.pair.1", "obs.state"),
        *("carry.0", "carry.1", "start"),
    ]
    assert [x.shape for x in program.initial_carry] == [(1, 2), (1, 2)]
    part = {name: obs[name] for name in ("state", "pair")}
    for play in players(program, tmp_path):
        played = None
        for step, expected in enumerate((2, 2, 2, 3, 4)):
            goal = np.full((1, 2), step, np.float32)
            (action,), played = play(part | {"both": {"goal": goal}}, played, np.zeros(1, bool))
            np.testing.assert_array_equal(action, np.full((1, 2), expected))


def test_a_policy_that_reads_only_the_start_of_an_episode_keeps_it(tmp_path):
    def act(obs, carry, start):
        return obs + jnp.where(start, 1.0, 0.0)[:, None], carry + 1

    program = trace.trace(act, np.zeros((1, 2), np.float32), np.zeros((1, 1), np.float32))
    assert [port.name for port in program.inputs] == ["obs", "start"]
    for play in players(program, tmp_path):
        for start in (True, False):
            (action,), _ = play(np.ones((1, 2), np.float32), None, np.array([start]))
            np.testing.assert_array_equal(action, np.full((1, 2), 1 + start))


def test_a_policy_that_ignores_its_observation_keeps_it(tmp_path):
    obs = {"a": np.ones((1, 2), np.float32), "b": np.ones((1, 1), np.float32)}
    program = trace.trace(lambda obs, carry, start: (jnp.ones((1, 1)), carry), obs)
    assert [port.name for port in program.inputs] == ["obs.a", "obs.b"]
    for play in players(program, tmp_path):
        assert play(obs, None, np.zeros(1, bool))[0][0] == 1


X = np.array([[-1.5, 0.25, 2.5, -0.5], [0.75, -2.0, 1.25, 0.5], [3.0, 0.1, -0.2, 1.0]], "f4")
BATCHED = jnp.arange(24.0, dtype=jnp.float32).reshape(2, 4, 3) / 10
IMAGES = jnp.asarray(np.random.default_rng(0).standard_normal((1, 1, 3, 4)), jnp.float32)


def index(x):
    """Return an integer for each row that depends on x, int32 [3]."""
    return jnp.argmax(x, axis=1).astype(jnp.int32)


CASES = {
    "elementwise": lambda x: [
        jnp.abs(x), jnp.sign(x), jnp.floor(x), jnp.ceil(x), jnp.round(x), -x, x**3, x**-2, x**0,
        jnp.sin(x), jnp.cos(x), jnp.exp(x), jnp.exp2(x), jnp.expm1(x), jnp.log1p(jnp.abs(x)),
        jnp.log(jnp.abs(x)), jnp.sqrt(jnp.abs(x)), lax.rsqrt(jnp.abs(x)), jnp.abs(x) ** x,
        lax.erf(x), lax.erfc(x), lax.rem(x, jnp.float32(0.7)), jnp.square(x), lax.stop_gradient(x),
        lax.clamp(-1.0, x, 1.0), lax.exp2(x), jax.nn.softplus(x), jax.nn.gelu(x, approximate=False),
        jnp.tanh(x), jax.nn.sigmoid(x),
    ],
    "comparisons": lambda x: [
        x > 0.25, x >= 0.25, x < 0.25, x <= 0.25, x == 0.25, x != 0.25, jnp.isfinite(1 / (x - 1)),
        (x > 0) & (x < 1), (x < 0) | (x > 1), (x > 0) ^ (x > 1), ~(x > 0),
    ],
    "selection": lambda x: [
        jnp.where(x > 0, x, 7.0), jnp.where(x > 0, x > 1, x > -1),
        lax.select_n(index(x) % 3, x[:, 0], x[:, 1], x[:, 2]),
        jnp.where(x > 0, (x * 3).astype(jnp.int8), jnp.int8(5)),
        jnp.argmax(jnp.where((x * 3).astype(jnp.int8) != 0, x, -jnp.inf), axis=1),
        jnp.argmax(jnp.where((x > 0.2).astype(jnp.uint8).astype(bool), -x, -jnp.inf), axis=1),
    ],
    "reductions": lambda x: [
        x.sum(), x.max(axis=1), x.min(axis=0), jnp.prod(x, axis=1), (x > 0).all(axis=1),
        (x > 2).any(axis=0), jnp.argmax(x, axis=0), jnp.argmin(x, axis=1),
        jax.nn.log_softmax(x), jax.nn.logsumexp(x, axis=0), x.mean(axis=1), x.std(axis=0),
    ],
    "shapes": lambda x: [
        x[None], x.T, x.reshape(2, 6), x[:, 1:3], x[::2, ::3], x[::-1], jnp.flip(x), x[1],
        jnp.concatenate([x, x * 2], axis=1), jnp.stack([x, -x], axis=1), jnp.split(x, 2, axis=1),
        jnp.pad(x, ((1, 0), (0, 2)), constant_values=3.0), x[:, 0, None] * jnp.ones((3, 5)),
        lax.pad(x, jnp.float32(9), ((-1, 1, 0), (1, -2, 0))), jnp.broadcast_to(x[:, :1], (3, 4)),
        jnp.broadcast_to(x[0], (3, 2, 4)), lax.expand_dims(x, [1]),
    ],
    "products": lambda x: [
        x @ x.T, x @ jnp.arange(4.0), jnp.einsum("bij,cj->bci", BATCHED.swapaxes(1, 2), x),
        jnp.einsum("bij,bjk->bik", BATCHED, x.reshape(2, 3, 2)), jnp.vdot(x, x),
        jnp.einsum("ij,ij->i", x, x), jnp.einsum("ab,cd->abcd", x, x),
        (index(x)[None] @ index(x)[:, None]),
    ],
    "types": lambda x: [
        x.astype(jnp.int32), x.astype(bool), (x > 0).astype(jnp.float32), index(x) // 2,
        index(x) % 2, jnp.abs(x).astype(jnp.uint8) + jnp.uint8(250), lax.div(-index(x), 2),
        jnp.maximum(jnp.abs(x).astype(jnp.uint8), jnp.uint8(1)), jax.nn.one_hot(index(x), 4),
    ],
    "indices": lambda x: [
        x[:, jnp.array([2, 0])], x[jnp.array([2, 0, 1]), jnp.array([0, 1, 3])], x[index(x) % 3],
        jnp.take_along_axis(x, index(x)[:, None], axis=1), x[0, index(x)], x[:, index(x)[0]],
        jnp.take(x, index(x) + 1, axis=1, mode="fill"), jnp.take(x, index(x) - 9, 1, mode="clip"),
        lax.dynamic_slice(x, (index(x)[0], 1), (2, 2)), lax.dynamic_index_in_dim(x, index(x)[1], 1),
        x.at[jnp.array([0, 5]), 1].get(mode="fill"), jnp.take(x > 0, index(x) + 2, 1, mode="fill"),
        jnp.take(index(x), index(x) + 1, mode="fill"),
        jnp.take(x, index(x) + 1, axis=1, mode="fill", fill_value=7.0),
    ],
    "convolutions": lambda x: [
        lax.conv_general_dilated(
            x.reshape(1, 3, 4, 1), IMAGES[0, 0, :2, :, None, None][:, :2], (1, 2), "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        ),
        lax.conv_general_dilated(
            jnp.pad(x, 3).reshape(1, 2, 5, 9), IMAGES.reshape(2, 1, 2, 3), (1, 1),
            [(0, 1), (2, 0)], rhs_dilation=(2, 3), feature_group_count=2,
        ),
        lax.conv_general_dilated(x[None], IMAGES.reshape(2, 3, 2), (2,), "VALID"),
        lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (1, 2), "SAME"),
        lax.reduce_window(x, 0.0, lax.add, (2, 2), (2, 1), "VALID", window_dilation=(1, 2)),
    ],
    "calls": lambda x: [
        jax.jit(jnp.sin)(x), jax.nn.relu(x), jax.checkpoint(jnp.cos)(x),
        lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(4), x),
        lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(4), x, reverse=True),
        lax.optimization_barrier(x),
    ],
}  # fmt: skip


def trace_case(name):
    return trace.trace(lambda x, carry, start: (CASES[name](x), carry), X)


@pytest.mark.parametrize("name", CASES)
def test_exported_operations_equal_jax(name, tmp_path):
    program = trace_case(name)
    expected = jax.tree.leaves(jax.device_get(jax.jit(CASES[name])(X)))
    for play in players(program, tmp_path):
        played = play(X, (), None)[0]
        for i, (one, other) in enumerate(zip(expected, played, strict=True)):
            assert (one.dtype, one.shape) == (other.dtype, other.shape), i
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-6, err_msg=str(i))


def test_the_cases_cover_every_operation_and_every_rule(monkeypatch):
    rewrite, primitives = trace.rewrite, set()

    def spy(eqn):
        primitives.add(eqn.primitive.name)
        return rewrite(eqn)

    monkeypatch.setattr(trace, "rewrite", spy)
    operations = {equation.op for name in CASES for equation in trace_case(name).equations}
    assert set(player.OPERATIONS) == operations
    assert set(RULES) - primitives == {"add_any", "expand_dims"}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (jnp.sort, "the operation 'sort', which cannot be exported"),
        (lambda x: x.astype(jnp.bfloat16) + 1, "the policy computes in bfloat16"),
        (lambda x: lax.scan(lambda c, _: (c + x, 0), x, None, 300)[0], "a loop of 300 iterations"),
        (lambda x: index(x) & 1, "bitwise operation 'and'"),
        (lambda x: lax.pad(x, jnp.float32(0), ((0, 0, 1), (0, 0, 0))), "'pad' between elements"),
    ],
)
def test_an_operation_that_cannot_be_exported_is_rejected_by_name(function, message):
    with pytest.raises(ValueError, match=message) as error:
        trace.trace(lambda x, carry, start: (function(x), carry), X)
    assert "\n" not in str(error.value)


def test_large_repeated_constants_are_not_stored():
    program = trace.trace(
        lambda x, carry, start: (x[:, :1] + jnp.broadcast_to(jnp.arange(9.0), (3000, 9)), carry),
        np.zeros((3000, 4), np.float32),
    )
    assert sum(x.size for x in program.constants.values()) < 20


# The command.


def run_export(runs, *flags):
    return export_command.main(["--run", str(runs / flags[0]), *map(str, flags[1:])])


@pytest.mark.parametrize("suffix", export.POLICY_SUFFIXES)
def test_an_exported_pendulum_policy_maps_raw_observations_to_raw_actions(
    suffix, runs, tmp_path, capsys
):
    path = tmp_path / f"policy{suffix}"
    assert run_export(runs, "pendulum", "--to", path, "--checkpoint", "last") == 0
    out = capsys.readouterr().out
    assert "gymnax/Pendulum-v1 after 256 steps" in out
    assert "in   obs              float32 [1, 3]" in out
    assert "out  action           float32 [1, 1]" in out
    assert float(out.split()[-1]) < 1e-5
    agent = restore(runs / "pendulum", "last")
    obs = np.random.default_rng(0).uniform(-8, 8, (1000, 3)).astype(np.float32)
    expected = agent.controller()(jax.random.key(0), obs)
    if suffix == ".npz":
        policy = player.load(path)
        actions = np.concatenate([policy(row[None])[0] for row in obs])
    else:
        session = onnxruntime.InferenceSession(path)
        actions = np.concatenate([session.run(["action"], {"obs": row[None]})[0] for row in obs])
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    assert np.abs(actions).max() <= 2
    assert np.std(actions) > 0


def test_raw_actions_reach_but_never_exceed_the_bounds(make_config, tmp_path):
    pytest.importorskip("gymnax")
    config = make_config(env={"name": "gymnax/Pendulum-v1"}, network={"hidden": (8,)})
    agent = Agent(config, AgentState({}, None))
    agent = replace(agent, state=random_state(agent.policy, 5.0), env_steps=7)
    written = export.export(agent, tmp_path / "wild.npz")
    assert written.difference < 1e-4
    policy, rng = player.load(tmp_path / "wild.npz"), np.random.default_rng(0)
    actions = np.array([policy(rng.normal(0, 9, (1, 3)))[0] for _ in range(200)])
    assert (actions.min(), actions.max()) == (-2, 2)


@pytest.mark.parametrize("family", ["gymnasium", pytest.param("envpool", marks=pytest.mark.full)])
def test_host_simulators_get_raw_actions_too(family, make_config, tmp_path):
    pytest.importorskip(family)
    config = make_config(env={"name": f"{family}/Pendulum-v1"}, network={"hidden": (8,)})
    agent = Agent(config, AgentState({}, None))
    agent = replace(agent, state=random_state(agent.policy, 5.0))
    export.export(agent, tmp_path / "policy.npz", batch=300)
    obs = np.random.default_rng(0).normal(0, 9, (300, 3)).astype(np.float32)
    action, _ = player.load(tmp_path / "policy.npz")(obs)
    expected = agent.controller()(jax.random.key(0), obs)
    np.testing.assert_allclose(action, expected, atol=1e-5)
    assert (action.min(), action.max()) == (-2, 2)


def test_one_of_several_agents_is_exported_by_its_index(runs, tmp_path, capsys):
    path = tmp_path / "policy.npz"
    assert run_export(runs, "cartpole", "--to", path) == 2
    err = capsys.readouterr().err
    assert "trained 2 agents (seeds or settings of a sweep). Select one with --member i, " in err
    assert run_export(runs, "cartpole", "--to", path, "--member", 1, "--batch", 5) == 0
    agent = restore(runs / "cartpole").member(1)
    obs = np.random.default_rng(0).normal(0, 1, (1000, 4)).astype(np.float32)
    expected = np.asarray(agent.controller()(jax.random.key(0), obs))
    policy = player.load(path)
    actions = np.concatenate([policy(obs[i : i + 5])[0] for i in range(0, 1000, 5)])
    assert actions.dtype == np.int32
    assert (actions != expected).mean() <= 0.002
    assert policy.metadata["training_steps"] == agent.env_steps


def test_the_metadata_has_the_environment_and_the_steps(runs, tmp_path):
    path = tmp_path / "policy.onnx"
    assert run_export(runs, "pendulum", "--to", path, "--checkpoint", "last") == 0
    about = onnxruntime.InferenceSession(path).get_modelmeta()
    assert about.custom_metadata_map == {
        "env": "gymnax/Pendulum-v1",
        "training_steps": "256",
        "version": __version__,
        "observation": '[{"name": "obs", "shape": [3], "dtype": "float32"}]',
        "action": '[{"name": "action", "shape": [1], "dtype": "float32"}]',
    }
    assert about.producer_name == "purejaxppo"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--run", "nowhere", "--to", "a.npz"], "nowhere: not a run folder"),
        (["--to", "a.npz"], "--run is missing. Give a run folder"),
        (["--run", "pendulum"], "--to is missing. Give the file"),
        (["--run", "pendulum", "--to", "a.txt"], "a.txt: the file name must end in .onnx or .npz"),
        (["--run", "pendulum", "--to", "no/a.npz"], "the folder no does not exist"),
        (
            ["--run", "pendulum", "--to", "there.npz"],
            "there.npz exists. Use --force to overwrite it",
        ),
        (["--run", "pendulum", "--to", "folder.npz"], "folder.npz is a folder"),
        (
            ["--run", "pendulum", "--to", "a.npz", "--batch", "0"],
            "--batch = 0: must be at least 1",
        ),
        (
            ["--run", "pendulum", "--to", "a.npz", "--member", "3"],
            "member = 3: unknown agent. Use 0",
        ),
        (["--run", "pendulum", "--to", "a.npz", "--checkpoint", "9"], "unknown checkpoint '9'"),
    ],
)
def test_a_wrong_command_gets_a_one_sentence_error(
    flags, message, runs, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("pendulum").symlink_to(runs / "pendulum")
    Path("there.npz").write_text("mine")
    Path("folder.npz").mkdir()
    assert export_command.main(flags) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert Path("there.npz").read_text() == "mine"


@pytest.mark.toy
@pytest.mark.parametrize("batch", [0, 2.5, "1"])
def test_a_wrong_batch_size_gets_a_one_sentence_error(batch, tmp_path):
    with pytest.raises(ValueError, match=r"^batch = .*: must be a whole number of at least 1\.$"):
        export.export(None, tmp_path / "a.npz", batch=batch)


def test_force_replaces_an_existing_file(runs, tmp_path):
    path = tmp_path / "policy.npz"
    path.write_text("old")
    assert run_export(runs, "pendulum", "--to", path, "--force") == 0
    assert player.load(path).metadata["env"] == "gymnax/Pendulum-v1"


@pytest.mark.toy
def test_an_unavailable_cpu_is_reported_with_its_variable(monkeypatch):
    def hidden(kind):
        raise RuntimeError(f"Unknown backend {kind}")

    monkeypatch.setattr(export.jax, "devices", hidden)
    with pytest.raises(ValueError, match="JAX_PLATFORMS"), export.on_cpu():
        pass


@pytest.mark.toy
def test_without_onnx_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    export.check_target(tmp_path / "policy.npz")
    with pytest.raises(ValueError, match=re.escape(install_extra("export"))):
        export.check_target(tmp_path / "policy.onnx")


def test_without_onnxruntime_the_file_is_checked_by_onnx_itself(monkeypatch, tmp_path, runs):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    written = export.export(restore(runs / "pendulum"), tmp_path / "policy.onnx")
    assert written.player == "onnx's reference evaluator"
    assert written.difference < 1e-5


@pytest.mark.parametrize("suffix", export.POLICY_SUFFIXES)
def test_a_file_whose_actions_differ_is_not_written(suffix, runs, tmp_path, monkeypatch):
    trace_policy = export.trace_policy

    def wrong(*args, **kwargs):
        program = trace_policy(*args, **kwargs)
        constants = {name: x * np.asarray(1.01, x.dtype) for name, x in program.constants.items()}
        return program._replace(constants=constants)

    monkeypatch.setattr(export, "trace_policy", wrong)
    agent = restore(runs / "pendulum")
    noisy = jax.tree.map(lambda x: x + 0.3, agent.state.params)
    agent = replace(agent, state=agent.state.replace(params=noisy))
    with pytest.raises(
        ValueError, match=r"was not written, because .* of its actions differ from the agent's"
    ):
        export.export(agent, tmp_path / f"policy{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_a_network_trained_in_bfloat16_is_exported_in_float32(make_config, tmp_path):
    config = make_config(network={"hidden": (8,), "compute_dtype": "bfloat16"})
    assert isinstance(config.network, NetworkConfig)
    agent = Agent(config, AgentState({}, None))
    agent = replace(agent, state=random_state(agent.policy))
    written = export.export(agent, tmp_path / "policy.npz")
    assert written.difference < 1e-5
