"""Policies for the plugin of Godot RL Agents: names of arrays, and the actions that it takes."""

import contextlib
import tempfile
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.godot import GAME

from purejaxppo.__main__ import main
from purejaxppo.agents.policy import Policy
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.export import files, godot, onnx_file, trace
from purejaxppo.runs.agent import Agent

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.toy, pytest.mark.xdist_group("processes")]
ACTIONS = {
    "discrete": {"move": ("discrete", 3)},
    "continuous": {"push": ("continuous", 2)},
    "mixed": {"turn": ("continuous", 2), "jump": ("discrete", 3), "brake": ("continuous", 1)},
    "pair": {"steer": ("discrete", 3), "fire": ("discrete", 2)},
}
"""Actions of the scripted game, in its order."""


@pytest.fixture(autouse=True)
def logs(tmp_path, monkeypatch):
    """The folder for the logs that failed games leave."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def random_agent(arguments, **network):
    """Return an agent of the scripted game with random parameters."""
    env = {"name": f"godot/{GAME}", "num_envs": 2, "options": {"arguments": arguments}}
    config = Config().replace(
        **{f"env.{name}": value for name, value in env.items()},
        **{
            "network.hidden": (8,),
            "ppo.num_minibatches": 1,
            **{f"network.{name}": value for name, value in network.items()},
        },
    )
    with contextlib.closing(registry.make(config.env, 2)) as games:
        policy = Policy(config, games.spec)
    rng = np.random.default_rng(0)
    state = policy.init(jax.random.key(0))
    params = jax.tree.map(lambda x: x + 0.5 * rng.standard_normal(x.shape), state.params)
    return Agent(config, state.replace(params=params))


def actions_of_plugin(output, actions):
    """Return the actions of the plugin's `_extract_action_dict` for the array of a policy.

    Before September 2025, it started the search for the largest logit with 0.
    """
    only_means = all(kind == "continuous" for kind, _ in actions.values())
    result, i = {}, 0
    for name, (kind, size) in actions.items():
        values = output[i : i + size]
        if kind == "discrete":
            result[name] = int(np.argmax(values))
            assert values.max() > 0
            i += size
        else:
            result[name] = np.clip(values, -1, 1)
            i += size if only_means else 2 * size
    assert i == len(output)
    return result


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_plugin_takes_the_agent_s_actions(kind, tmp_path):
    agent = random_agent(f"--actions={kind}")
    files.export(agent, tmp_path / "policy.onnx", engine="godot")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    assert [port.name for port in session.get_inputs()] == ["obs", "state_ins"]
    assert [port.name for port in session.get_outputs()] == ["output", "state_outs"]
    taken = []
    for obs in np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32):
        inputs = {"obs": obs[None], "state_ins": np.ones(1, np.float32)}
        output, state = session.run(["output", "state_outs"], inputs)
        assert state == [1] and output.shape[0] == 1
        action = actions_of_plugin(output[0], ACTIONS[kind])
        expected = agent.act(obs)
        expected = expected if isinstance(expected, dict) else dict.fromkeys(action, expected)
        assert action.keys() == expected.keys()
        for name, value in action.items():
            np.testing.assert_allclose(value, expected[name], atol=1e-5)
        taken.append(np.concatenate([np.ravel(value) for value in action.values()]))
    assert len(np.unique(taken, axis=0)) > 1


def test_the_file_takes_parts_that_only_the_critic_sees_because_the_plugin_passes_all(tmp_path):
    agent = random_agent("--obs=vectors --actions=continuous", actor_keys=("obs",))
    files.export(agent, tmp_path / "policy.onnx", engine="godot")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    ports = {port.name: port.shape for port in session.get_inputs()}
    assert ports == {"goal": [1, 2], "obs": [1, 3], "state_ins": [1]}
    inputs = {name: np.full(shape, 0.3, np.float32) for name, shape in ports.items()}
    (output,) = session.run(["output"], inputs)
    expected = agent.act({"obs": inputs["obs"][0], "goal": inputs["goal"][0]})
    np.testing.assert_allclose(output[0], expected, atol=1e-5)


def program_of(names):
    """Return a program of observations with parts [1, 3], its function, and the agent."""
    weights = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)

    def act(obs, carry, start):
        parts = obs.values() if isinstance(obs, dict) else [obs]
        return sum(jnp.tanh(x @ weights) * (i + 1) for i, x in enumerate(parts)), carry

    zeros = {name: np.zeros((1, 3), np.float32) for name in names}
    obs = zeros if len(names) > 1 else zeros[names[0]]
    agent = SimpleNamespace(parts=[SimpleNamespace(name=name) for name in names])
    return trace.trace(act, obs, (), {}, keep_inputs=True), act, agent


@pytest.mark.parametrize("names", [["v0"], ["c0"], ["_v0"], ["obs", "v1"], ["__c0", "v0"]])
def test_a_game_may_name_its_observations_like_arrays_of_the_policy(names, tmp_path):
    program, act, agent = program_of(names)
    onnx_file.write(godot.with_plugin_names(program, agent), tmp_path / "policy.onnx")
    rng, session = np.random.default_rng(1), onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    obs = {name: rng.standard_normal((1, 3)).astype(np.float32) for name in names}
    (output,) = session.run(["output"], {**obs, "state_ins": np.zeros(1, np.float32)})
    np.testing.assert_allclose(output, act(obs, (), None)[0], rtol=1e-5)


@pytest.mark.parametrize("name", ["output", "state_ins", "state_outs"])
def test_names_of_the_plugin_are_rejected_as_observations(name):
    program, _, agent = program_of(["obs", name])
    with pytest.raises(ValueError, match=f"the key '{name}' of get_obs is the name of another"):
        godot.with_plugin_names(program, agent)


def test_choices_are_certain_when_the_plugin_samples(tmp_path):
    files.export(random_agent("--actions=pair"), tmp_path / "policy.onnx", engine="godot")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    inputs = {"obs": np.ones((1, 3), np.float32), "state_ins": np.zeros(1, np.float32)}
    logits = session.run(["output"], inputs)[0][0, :3]
    assert sorted(np.exp(logits - logits.max()).tolist()) == [0, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "network", "sentence"),
    [
        ("--obs=camera", {}, "'camera_2d' is an image"),
        ("--obs=masked", {}, "'action_mask' is a mask"),
        ("--obs=parts", {}, "'phase' is a mask or an integer"),
        ("--obs=grid", {}, r"'grid' is of shape \[2, 3\]"),
        ("--policies=a,b", {}, "differ in their spaces or policy names"),
        ("", {"rnn": "gru"}, "recurrent policies"),
    ],
)
def test_policies_that_the_plugin_cannot_run_are_rejected(arguments, network, sentence, tmp_path):
    agent = random_agent(arguments, **network)
    with pytest.raises(ValueError, match=sentence):
        files.export(agent, tmp_path / "policy.onnx", engine="godot")
    assert not list(tmp_path.glob("*.onnx"))


def test_the_file_of_a_game_must_be_onnx_for_one_observation(tmp_path):
    with pytest.raises(ValueError, match="loads only"):
        files.check_target(tmp_path / "policy.npz", engine="godot")
    with pytest.raises(ValueError, match="batch = 4: the plugin passes one observation"):
        files.export(random_agent(""), tmp_path / "policy.onnx", engine="godot", batch=4)


def test_an_agent_of_another_simulator_has_no_file_for_godot(tmp_path):
    config = Config().replace(**{"env.name": "gymnax/CartPole-v1", "network.hidden": (8,)})
    with contextlib.closing(registry.make(config.env, 1)) as env:
        policy = Policy(config, env.spec)
    agent = Agent(config, policy.init(jax.random.key(0)))
    with pytest.raises(ValueError, match=r"not trained with godot/\. Export without engine"):
        files.export(agent, tmp_path / "policy.onnx", engine="godot")


def test_a_wrong_engine_names_those_that_exist(capsys):
    words = ["export", "--run", "runs/x", "--to", "x.onnx", "--engine", "unity"]
    assert main(words) == 2
    assert "engine = 'unity': must be one of godot, or empty." in capsys.readouterr().err
