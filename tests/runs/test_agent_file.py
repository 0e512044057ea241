"""Agents as files and pickles: the same actions in another process, and clear errors."""

import copy
import json
import pickle
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from support.children import environment
from support.own_code import Walk
from support.trees import assert_same

from purejaxppo import Agent, TrainResult, evaluate, load_config, make_train
from purejaxppo.types import named_leaves

CONFIG = {
    "env": {"name": "dummy/vector", "num_envs": 4},
    "ppo": {"rollout_length": 8, "num_minibatches": 1, "num_epochs": 1},
    "network": {"hidden": [4], "rnn": "gru", "rnn_size": 3},
    "total_timesteps": 64,
}


@pytest.fixture(scope="module")
def config():
    return load_config("cartpole.yaml", CONFIG)


@pytest.fixture(scope="module")
def result(config) -> TrainResult:
    """Two seeds of a recurrent policy."""
    return jax.jit(jax.vmap(make_train(config)))(jax.random.split(jax.random.key(0), 2))


@pytest.fixture(scope="module")
def agent(config, result):
    return Agent(config, result.seed(1).agent, env_steps=64)


OBS = np.linspace(-1, 1, 51).reshape(3, 17)


def actions(agent):
    """The actions of two steps of an episode, which depend on the recurrent state."""
    agent.reset()
    return np.stack([agent.act(OBS), agent.act(OBS[::-1])])


def test_the_steps_of_several_agents_are_a_range(config, result):
    def text(env_steps, *steps):
        return Agent(
            config, result.seed(1).agent, env_steps, (config,) * len(steps), steps
        ).trained_for

    assert text(1_000) == "1,000"
    assert text(3_000, 3_000, 1_000, 2_000) == "1,000 to 3,000"
    assert text(2_000, 2_000, 2_000) == "2,000"


def test_an_agent_of_make_train_acts_the_same_after_save_and_load(agent, tmp_path):
    agent.save(tmp_path / "one.agent")
    again = Agent.load(tmp_path / "one.agent")
    assert (again.config, again.env_steps, again.members) == (agent.config, 64, ())
    assert_same(again.state, agent.state)
    np.testing.assert_array_equal(actions(again), actions(agent))
    assert [path.name for path in tmp_path.iterdir()] == ["one.agent"]


def test_an_agent_is_loaded_in_another_process(agent, tmp_path):
    agent.save(tmp_path / "one.agent")
    code = (
        "import sys, numpy as np; from purejaxppo import Agent\n"
        "obs = np.linspace(-1, 1, 51).reshape(3, 17)\n"
        "print(Agent.load(sys.argv[1]).act(obs).tolist())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "one.agent")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    agent.reset()
    assert json.loads(done.stdout) == agent.act(OBS).tolist()


def test_a_file_holds_several_agents(config, result, tmp_path):
    members = tuple(config.replace(seed=seed) for seed in (0, 1))
    agents = Agent(config, result.agent, 64, members, (64, 60))
    agents.save(tmp_path / "two.agent")
    again = Agent.load(tmp_path / "two.agent")
    assert again.members == members and again.member_steps == (64, 60)
    for i in range(2):
        np.testing.assert_array_equal(actions(again.member(i)), actions(agents.member(i)))


def test_a_pickle_and_a_copy_act_the_same_before_and_after_act(agent):
    fresh = Agent(agent.config, agent.state, 64)
    expected = actions(fresh)
    for make in (lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy, copy.copy):
        for source in (Agent(agent.config, agent.state, 64), fresh):
            again = make(source)
            np.testing.assert_array_equal(again.act(OBS), expected[0])
            np.testing.assert_array_equal(again.act(OBS[::-1]), expected[1])
            assert repr(again) == repr(source)


def test_an_agent_of_an_object_is_loaded_with_the_object(tmp_path):
    walk = Walk(0.25)
    config = load_config("cartpole.yaml", {**CONFIG, "env": {"name": walk, "num_envs": 4}})
    agent = Agent(config, jax.jit(make_train(config))(jax.random.key(0)).agent)
    assert pickle.loads(pickle.dumps(agent)).act([0.5]) in (0, 1)
    agent.save(tmp_path / "walk.agent")
    again = Agent.load(tmp_path / "walk.agent", env=Walk(0.25))
    assert again.act([0.5]) == Agent(config, agent.state).act([0.5])
    with pytest.raises(ValueError, match=r"an object from Python cannot be loaded\. Pass"):
        Agent.load(tmp_path / "walk.agent")


def test_a_file_does_not_load_with_another_environment_or_network(agent, tmp_path):
    path = tmp_path / "one.agent"
    agent.save(path)
    fits = r"one\.agent: the agent does not fit its config\. (\S+) is (.*), but the config requires"
    with pytest.raises(ValueError, match=fits):
        Agent.load(path, env=Walk())
    with pytest.raises(ValueError, match=fits):
        Agent.load(path, network={"hidden": [5]})
    with pytest.raises(
        ValueError, match=r"network\.hiden: unknown key. Did you mean network\.hidden"
    ):
        Agent.load(path, network={"hiden": [5]})
    assert Agent.load(path, env={"num_envs": 2}).config.env.num_envs == 2


def test_a_batch_of_seeds_without_members_is_not_saved(config, result, tmp_path):
    with pytest.raises(ValueError, match=r"Select a seed with result\.seed\(i\)\.$"):
        Agent(config, result.agent).save(tmp_path / "two.agent")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "function",
    [
        lambda agent: agent.act(OBS),
        lambda agent: agent.controller(),
        lambda agent: evaluate(agent, 2),
        lambda agent: make_train(agent.config, init=agent),
    ],
)
def test_a_batch_of_seeds_is_not_one_agent(function, config, result):
    for state in (result.agent, result.agent.agent):
        with pytest.raises(ValueError, match=r"Select a seed with result\.seed\(i\)\.$"):
            function(Agent(config, state))


@pytest.mark.parametrize("index", [2, -1, 0.5, "0"])
def test_an_unknown_seed_of_a_result_is_an_error(index, result):
    with pytest.raises(ValueError, match=r"^seed\(.*\): unknown index\. Use 0 to 1\.$"):
        result.seed(index)
    with pytest.raises(ValueError, match=r"^seed\(0\): the result has only one seed"):
        result.seed(1).seed(0)


def test_a_folder_is_not_a_file(agent, tmp_path):
    with pytest.raises(ValueError, match=r"is a folder\. Give a file\.$"):
        agent.save(tmp_path)
    with pytest.raises(ValueError, match=r"is a folder\. Give a file\.$"):
        Agent.load(tmp_path)


def test_an_unreadable_file_gets_a_one_sentence_error(agent, tmp_path):
    path = tmp_path / "one.agent"
    with pytest.raises(ValueError, match=r"one\.agent: no such file\.$"):
        Agent.load(path)
    agent.save(path)
    whole = path.read_bytes()
    np.savez(tmp_path / "other.npz", header=np.zeros(3))
    for text in (b"", whole[: len(whole) // 2], (tmp_path / "other.npz").read_bytes()):
        path.write_bytes(text)
        with pytest.raises(
            ValueError, match=r"one\.agent: corrupt, or not written by Agent\.save\."
        ):
            Agent.load(path)
    with pytest.raises(ValueError, match=r"the folder .*/none does not exist"):
        agent.save(tmp_path / "none/one.agent")


def test_a_file_of_another_format_names_its_version(agent, tmp_path):
    path = tmp_path / "one.agent"
    agent.save(path)
    arrays = dict(np.load(path))
    header = json.loads(arrays["agent"].tobytes())
    header |= {"format": 7, "version": "9.9"}
    arrays["agent"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(
        ValueError, match=r"format 7, but this version reads .* Use purejaxppo 9\.9"
    ):
        Agent.load(path)


def test_a_file_has_plain_arrays_by_name(agent, tmp_path):
    agent.save(tmp_path / "one.agent")
    arrays = dict(np.load(tmp_path / "one.agent", allow_pickle=False))
    for name, x in named_leaves(agent.state).items():
        np.testing.assert_array_equal(arrays[name], x)


def test_an_agent_with_other_settings_keeps_no_compiled_functions(agent):
    actions(agent)
    other = replace(agent, config=agent.config.replace(seed=5))
    assert other._acting is None
