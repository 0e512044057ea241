"""Agents outside of the library act on raw observations as in an evaluation."""

import json
import os

import jax
import numpy as np
import pytest
from gymnasium import spaces
from support import nested_envs

import purejaxppo as ppo
from purejaxppo.envs import registry
from purejaxppo.envs.native import NativeArray
from purejaxppo.export import files as export
from purejaxppo.export import player
from purejaxppo.runs.agent import Agent
from purejaxppo.spaces import Discrete
from purejaxppo.types import AgentState, RunningStats

FILE = os.path.abspath(nested_envs.__file__)


def random_agent(config):
    """Return an agent with random parameters other than 0."""
    agent, rng = Agent(config, AgentState({}, None)), np.random.default_rng(0)
    shapes = jax.eval_shape(agent.policy.init, jax.random.key(0))

    def draw(x):
        return rng.standard_normal(x.shape).astype(np.float32)

    mean = jax.tree.map(draw, shapes.obs_stats.mean)
    m2 = jax.tree.map(lambda x: 50 + 1000 * np.square(x), mean)
    agent.state = AgentState(
        jax.tree.map(draw, shapes.params), RunningStats(np.float32(100), mean, m2)
    )
    return agent


@pytest.fixture
def make_agent(make_config):
    def make(name, **options):
        family = "pettingzoo" if name == "Pair" else "gymnasium"
        settings = {"workers": "thread", "num_workers": 1, **options}
        return random_agent(
            make_config(
                env={
                    "name": f"{family}/{FILE}:{name}",
                    "num_envs": 2 if name == "Pair" else 1,
                    "options": settings,
                },
                network={"hidden": (4,)},
            )
        )

    return make


def export_and_load(agent, path, env):
    """Return a function from an observation of `env` to its action, by an exported file."""
    export.export(agent, path)
    if path.suffix == ".npz":
        policy = player.load(path)
        batched = policy.program.inputs[0].shape[:1]
        assert batched == (1,)
        return lambda obs: first_row(policy(add_batch_axis(env.observation_space, obs))[0])
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path)
    about = session.get_modelmeta().custom_metadata_map
    inputs, outputs = (json.loads(about[what]) for what in ("observation", "action"))
    types = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(uint8)": np.uint8}

    def act(obs):
        arrays = name_tensors(
            "obs", env.observation_space, add_batch_axis(env.observation_space, obs)
        )
        assert sorted(arrays) == sorted(array["name"] for array in inputs)
        feed = {x.name: arrays[x.name].astype(types[x.type]) for x in session.get_inputs()}
        values = {
            array["name"]: x[0].astype(array["dtype"])
            for array, x in zip(outputs, session.run(None, feed), strict=True)
        }
        return nest_tensors("action", env.action_space, values)

    return act


def add_batch_axis(space, obs):
    """Return an observation as a batch of one."""
    if isinstance(space, spaces.Dict):
        return {name: add_batch_axis(part, obs[name]) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(add_batch_axis(part, x) for part, x in zip(space, obs, strict=True))
    return np.asarray(obs)[None]


def first_row(tree):
    """Return the first row of a batch, without its axis."""
    if isinstance(tree, dict):
        return {name: first_row(part) for name, part in tree.items()}
    return tuple(map(first_row, tree)) if isinstance(tree, tuple) else tree[0]


def name_tensors(name, space, obs):
    """Return the arrays of an observation by tensor name."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return {name: obs}
    parts = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
    arrays = [name_tensors(f"{name}.{key}", part, obs[key]) for key, part in parts]
    return {key: x for part in arrays for key, x in part.items()}


def nest_tensors(name, space, values):
    """Return the action with the arrays `values`, by tensor name."""
    if isinstance(space, spaces.Dict):
        return {key: nest_tensors(f"{name}.{key}", part, values) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(nest_tensors(f"{name}.{i}", part, values) for i, part in enumerate(space))
    return values[name]


def episode_return(env, seed, act):
    obs, _ = env.reset(seed=seed)
    rewards = []
    for _ in range(nested_envs.STEPS):
        obs, reward, *_ = env.step(act(obs))
        rewards.append(reward)
    return sum(rewards)


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in (*range(2, 9), 14, 20))]
)
def test_a_raw_simulator_gives_the_returns_of_an_evaluation(number, make_agent, tmp_path):
    log = tmp_path / "seeds"
    agent = make_agent("Nested", number=number, log=str(log))
    expected = ppo.evaluate(agent, episodes=3).returns
    seeds = [int(line) for line in log.read_text().split()]
    assert np.ptp(expected) > 1e-3
    env, control = nested_envs.Nested(number), agent.controller()
    for act in (agent.act, lambda obs: control(jax.random.key(0), obs)):
        played = [episode_return(env, seed, act) for seed in seeds]
        np.testing.assert_allclose(played, expected, rtol=1e-3, atol=1e-3)
    for suffix in (".npz", *([".onnx"] if number % 6 == 2 else [])):
        act = export_and_load(agent, tmp_path / f"policy{suffix}", env)
        played = [episode_return(env, seed, act) for seed in seeds]
        np.testing.assert_allclose(played, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("boxes", [False, True])
def test_a_raw_multi_agent_environment_gives_the_returns_of_an_evaluation(
    boxes, make_agent, tmp_path
):
    log = tmp_path / "seeds"
    agent = make_agent("Pair", boxes=boxes, log=str(log))
    expected = ppo.evaluate(agent, episodes=4).returns
    seeds = [int(line) for line in log.read_text().split()]
    env, returns = nested_envs.Pair(boxes), []
    for seed in seeds:
        obs, _ = env.reset(seed)
        agent.reset()
        total = {"a": 0.0, "b": 0.0}
        while env.agents:
            obs, rewards, *_ = env.step(agent.act({name: obs[name] for name in env.agents}))
            total = {name: total[name] + rewards.get(name, 0.0) for name in total}
        returns += [total["a"], total["b"]]
    np.testing.assert_allclose(returns, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.toy
def test_each_row_gets_the_action_of_its_agent(make_agent):
    agent = make_agent("Pair", boxes=True)
    row = {"agent": 1, "obs": {"0": 2, "1": np.zeros(2)}}
    (action,) = agent.act(row)
    assert -7.0 <= action <= 0.0
    both = agent.act({"agent": [0, 1], "obs": {"0": [2, 2], "1": np.zeros((2, 2))}})
    assert [row.shape for row in both] == [(2,), (1,)] and both[0].dtype == np.float64
    assert both[0].min() >= 2.0 and both[1] == pytest.approx(action)
    for obs, message in (
        (
            {"c": (4, np.zeros(2))},
            "Pass a dict by agent, with a, b, or rows: a dict with agent,",
        ),
        ({"a": (3, np.zeros(2))}, "agent a: observation.0 = 3: must be an integer"),
        ([row], "a dict by agent"),
    ):
        with pytest.raises(ValueError, match=message):
            agent.act(obs)


@pytest.mark.toy
def test_agents_act_without_the_global_state_if_only_the_critic_sees_it(make_config):
    def team(**network):
        return random_agent(
            make_config(
                env={"name": "particles/spread", "options": {"global_state": True}},
                network={"hidden": (4,), **network},
            )
        )

    agent = team(actor_keys=("agent", "obs"))
    rows = agent.policy.observation
    obs = np.random.default_rng(0).normal(0, 1, (3, *rows["obs"].shape)).astype(np.float32)
    state = np.random.default_rng(1).normal(0, 1, (3, *rows["state"].shape)).astype(np.float32)
    expected = agent.act({"agent": np.arange(3), "obs": obs, "state": state})
    np.testing.assert_array_equal(agent.act({"agent": np.arange(3), "obs": obs}), expected)
    np.testing.assert_array_equal(agent.act(tuple(obs)), expected)
    with pytest.raises(ValueError, match="the policy reads the state"):
        team().act(tuple(obs))


@pytest.mark.toy
def test_an_exported_file_describes_its_arrays_and_rejects_others(make_agent, tmp_path):
    agent = make_agent("Nested", number=3)
    export.export(agent, tmp_path / "policy.npz")
    policy = player.load(tmp_path / "policy.npz")
    assert policy.metadata["observation"] == [
        {"name": "obs.0.z", "shape": [], "dtype": "int64", "low": 6, "high": 7},
        {"name": "obs.1", "shape": [], "dtype": "int64", "low": 7, "high": 8},
    ]
    bits, choices = policy.metadata["action"]
    assert bits["dtype"] == "int8" and choices["name"] == "action.z.0"
    assert (choices["low"], choices["high"]) == ([1, 1, 7], [2, 2, 8])
    action, _ = policy(({"z": [6]}, [8]))
    assert action["a"].dtype == np.int8 and action["z"][0].tolist()[0][2] in (7, 8)
    by_name, _ = policy({"0": {"z": [6]}, "1": [8]})
    assert first_row(by_name)["z"][0].tolist() == first_row(action)["z"][0].tolist()
    with pytest.raises(ValueError, match=r"obs.1\[0\] = 9: must be from 7 to 8"):
        policy(({"z": [6]}, [9]))


@pytest.mark.toy
def test_choices_beyond_int32_cannot_be_exported():
    array = NativeArray(Discrete(2), (), "int64", 10**12)
    with pytest.raises(ValueError, match="obs has integers from 1000000000000 to 1000000000001"):
        export.describe_array(player.Port("obs", (1,), "int32"), array)


@pytest.mark.toy
@pytest.mark.parametrize("boxes", [False, True])
def test_agents_with_equal_spaces_get_their_own_actions(boxes, make_agent, tmp_path):
    agent = make_agent("Pair", alike=True, boxes=boxes)
    seen = [(6, [0.5, 0.1]), (4, [0.2, 0.9])]
    world = agent.act(dict(zip("ab", seen, strict=True)))
    rows = {"agent": [0, 1], "obs": tuple(map(np.array, zip(*seen, strict=True)))}
    export.export(agent, tmp_path / "policy.npz", batch=2)
    played, _ = player.load(tmp_path / "policy.npz")(rows)
    control = agent.controller()
    key = jax.random.key(0)
    traced = jax.jit(lambda obs: control(key, obs))(jax.tree.map(np.asarray, rows))
    for actions in (agent.act(rows), control(key, rows), played, traced):
        np.testing.assert_allclose(actions, [world["a"], world["b"]], rtol=1e-5)
    low, high = (2.0, 3.0) if boxes else (5, 7)
    assert low <= np.min(played) <= np.max(played) <= high


@pytest.mark.toy
@pytest.mark.filterwarnings("ignore:.*precision lowered.*:UserWarning")
def test_envpool_agents_use_the_choices_and_dtypes_of_envpool(make_config):
    envpool = pytest.importorskip("envpool")
    raw = envpool.make("TSP-v1", env_type="gymnasium", num_envs=2)
    obs, _ = raw.reset()
    raw.close()
    assert obs["position"].tolist() == [-1, -1]  # of Discrete(21, start=-1)
    config = make_config(env={"name": "envpool/TSP-v1"}, network={"hidden": (4,)})
    env = registry.make(config.env, 2)
    _, seen = env.reset(jax.random.key(0))
    env.close()
    assert seen["position"].tolist() == [0, 0]
    assert random_agent(config).act(obs).shape == (2,)
    hopper = random_agent(make_config(env={"name": "envpool/Hopper-v5"}, network={"hidden": (4,)}))
    assert hopper.act(np.zeros((2, 11))).dtype == np.float64
