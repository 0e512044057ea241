"""Custom tasks: training, wrappers, limits, and one-sentence errors for invalid ones."""

import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import own_code as examples
from support.paths import ROOT
from support.stepping import KEY, first_env_steps

from purejaxppo import load_config, make_train
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.wrappers import Wrapper
from purejaxppo.spaces import Box, Dict, Discrete, MultiDiscrete, example

FILE = ROOT / "tests/support/own_code.py"


def make(name, num_envs=2, **fields):
    return registry.make(EnvConfig(name=name, num_envs=num_envs, **fields), num_envs)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        (f"jax/{FILE}:Walk", {}, 0.5),
        (f"jax/{FILE}:Walk", {"size": 1.0}, 1.0),
        (f"jax/{FILE}:make_walk", {}, 0.25),
        ("jax/support.own_code:Walk", {}, 0.5),
        (examples.Walk(0.75), {}, 0.75),
        (examples.Walk, {"size": 0.1}, 0.1),
    ],
)
def test_a_custom_task_is_a_reference_or_an_object(name, options, size):
    start, outs = first_env_steps(make(name, options=options), [1, 1, 0])
    np.testing.assert_allclose(outs[:, 0], start + size * np.array([1, 2, 1]), rtol=1e-5)


@pytest.mark.toy
def test_a_custom_task_terminates_and_its_time_limit_truncates():
    start, outs = first_env_steps(make(f"jax/{FILE}:Walk", options={"size": 4.0}), [1, 1, 0])
    assert outs[0].tolist() == pytest.approx([start + 4, 1, 0, 1])
    assert outs[1].tolist() == [0, 0, 0, 0]  # the reset row
    _, outs = first_env_steps(make(f"jax/{FILE}:Walk", max_episode_steps=2), [0, 0, 0])
    assert outs[:, 2].tolist() == [0, 1, 0]


def test_custom_wrappers_are_applied_in_order_from_the_inside():
    wraps = (f"{FILE}:Doubled", examples.Doubled)
    start, outs = first_env_steps(make(f"jax/{FILE}:Walk", wrappers=wraps), [1])
    assert outs[0, 0] == pytest.approx(4 * (start + 0.5))
    start, outs = first_env_steps(make("gymnax/CartPole-v1", wrappers=wraps), [1])
    assert outs[0, 0] == 4


class SeesReward(Wrapper):
    """A wrapper that adds half of the last reward to the observation."""

    def __init__(self, task):
        super().__init__(task)
        self.observation = Dict.of({"seen": task.observation, "paid": Box((1,))})

    def reset(self, key):
        state, obs = self.task.reset(key)
        return (state, jnp.zeros(())), {"seen": obs, "paid": jnp.zeros(1)}

    def step(self, key, state, action):
        state, out = self.task.step(key, state[0], action)
        obs = {"seen": out.obs, "paid": 0.5 * out.reward[None]}
        return (state, out.reward), out._replace(obs=obs, reward=out.reward / 10)


@pytest.mark.parametrize("name", ["pgx/minatar-breakout", "jumanji/PacMan-v1", "jumanji/Tetris-v0"])
def test_custom_wrappers_get_floats_from_integer_simulators(name):
    pytest.importorskip(name.partition("/")[0])
    env = make(name, wrappers=(SeesReward,))
    state, _ = env.reset(jax.random.key(0))
    spaces = {"seen": registry.make_task(EnvConfig(name=name)).observation, "paid": Box((1,))}
    dtypes = jax.tree.map(lambda x: x.dtype, example(Dict.of(spaces)))
    step, most = jax.jit(partial(env.step, KEY)), 0
    for action in range(40):
        state, out = step(state, jnp.full(2, action % 3))
        np.testing.assert_allclose(out.obs["paid"][:, 0], 5 * out.reward, rtol=1e-6)
        assert jax.tree.map(lambda x: x.dtype, out.obs) == dtypes
        most = max(most, float(out.reward.max()))
    assert most > 0 or name != "jumanji/PacMan-v1"


@pytest.mark.toy
def test_a_task_without_max_episode_steps_has_no_time_limit():
    class Endless:
        observation, action = examples.Walk.observation, examples.Walk.action
        reset, step = examples.Walk().reset, examples.Walk(0.0).step

    env = make(Endless())
    assert env.spec.max_episode_steps == 0
    assert not first_env_steps(env, [1, 1])[1][:, 2].any()


def test_a_custom_environment_with_the_gymnax_interface_equals_the_built_in_task(write_module):
    write_module("import gymnax\n\ndef make():\n    return gymnax.make('CartPole-v1')\n")
    builtin, own = make("gymnax/CartPole-v1"), make("gymnax/package.py:make")
    assert own.spec == builtin.spec
    np.testing.assert_array_equal(
        first_env_steps(builtin, [0, 1, 1])[1], first_env_steps(own, [0, 1, 1])[1]
    )
    own = make("gymnax/package.py:make", options={"max_steps_in_episode": 2})
    assert first_env_steps(own, [0, 1])[1][:, 2].tolist() == [0, 1]


def test_the_older_interface_of_gymnax_truncates_at_its_limit(write_module):
    write_module(
        "import gymnax\nfrom gymnax.environments.classic_control import cartpole\n\n"
        "class Old:\n"
        "    def __init__(self):\n"
        "        self.inner = cartpole.CartPole()\n"
        "    def __getattr__(self, name):\n"
        "        if name == 'is_truncated':\n"
        "            raise AttributeError(name)\n"
        "        return getattr(self.inner, name)\n"
    )
    env = make("gymnax/package.py:Old", options={"max_steps_in_episode": 3})
    assert first_env_steps(env, [0, 1, 0])[1][:, 1:3].tolist() == [[0, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize("size", [1, 2])
def test_a_gymnax_reward_may_be_an_array_of_exactly_one_value(write_module, size):
    write_module(
        "import gymnax, jax.numpy as jnp\n\n"
        "class Arrays:\n"
        "    def __init__(self):\n"
        "        self.inner, self.default_params = gymnax.make('CartPole-v1')\n"
        "    def __getattr__(self, name):\n"
        "        return getattr(self.inner, name)\n"
        "    def step_env(self, *args):\n"
        "        obs, state, reward, end, info = self.inner.step_env(*args)\n"
        f"        return obs, state, jnp.full({size}, reward), end[None], info\n"
    )
    if size == 1:
        env = make("gymnax/package.py:Arrays")
        assert first_env_steps(env, [0, 1])[1][:, 0].tolist() == [1, 1]
        return
    with pytest.raises(ValueError, match=r"^env.name: step_env returns a reward of shape \(2,\)"):
        make("gymnax/package.py:Arrays")


@pytest.mark.parametrize(
    ("declared", "returned", "message"),
    [
        ("int32", "float32", "is float32, but its space is int32. Return int32, or"),
        ("uint8", "int32", "is int32, but its space is uint8. Return uint8, or"),
        ("int32", "int8", ""),
        ("float32", "int32", ""),
        ("float32", "bool", ""),
    ],
)
def test_a_gymnax_observation_is_not_cast_to_a_dtype_that_cannot_hold_it(
    declared, returned, message, write_module
):
    write_module(
        "import gymnax, jax.numpy as jnp\n"
        "from gymnax.environments import spaces\n\n"
        "class Typed:\n"
        "    def __init__(self):\n"
        "        self.inner, self.default_params = gymnax.make('CartPole-v1')\n"
        "    def __getattr__(self, name):\n"
        "        return getattr(self.inner, name)\n"
        "    def observation_space(self, params):\n"
        f"        return spaces.Box(0, 1, (4,), jnp.{declared})\n"
        "    def reset_env(self, *args):\n"
        "        obs, state = self.inner.reset_env(*args)\n"
        f"        return obs.astype('{returned}'), state\n"
        "    def step_env(self, *args):\n"
        "        obs, *rest = self.inner.step_env(*args)\n"
        f"        return obs.astype('{returned}'), *rest\n"
    )
    if message:
        where = "env.name = gymnax/package.py:Typed"
        with pytest.raises(ValueError, match=f"^{where}: observation {message}"):
            make("gymnax/package.py:Typed")
        return
    env = make("gymnax/package.py:Typed")
    assert str(jax.eval_shape(env.reset, jax.random.key(0))[1].dtype) == declared


@pytest.mark.toy
@pytest.mark.parametrize("limit", [2.0 / 1, np.int64(2), jnp.int32(2), np.array(2.0)], ids=repr)
def test_the_time_limit_of_a_task_may_have_any_numeric_type(limit):
    env = make(examples.Walk(max_episode_steps=limit))
    assert (env.spec.max_episode_steps, type(env.spec.max_episode_steps)) == (2, int)
    assert first_env_steps(env, [0, 0])[1][:, 2].tolist() == [0, 1]


@pytest.mark.toy
@pytest.mark.parametrize("limit", [2.5, -3, "20", True, np.nan])
def test_a_time_limit_of_a_task_that_is_not_a_whole_number_is_rejected(limit):
    with pytest.raises(ValueError) as caught:
        make(examples.Walk(max_episode_steps=limit))
    text = str(caught.value)
    assert text.endswith(
        f"max_episode_steps = {limit!r}: a time limit must be a whole number of steps, at least 1. "
        f"Use 0 for no limit."
    )
    assert "\n" not in text


@pytest.mark.toy
def test_max_episode_steps_of_a_task_may_be_none():
    assert make(examples.Walk(max_episode_steps=None)).spec.max_episode_steps == 0


@pytest.mark.parametrize("limit", ["jnp.int32(2)", "np.float64(2.0)", "np.int64(2)"])
def test_the_time_limit_of_a_gymnax_task_may_have_any_numeric_type(limit, write_module):
    write_module(
        "import gymnax, jax.numpy as jnp, numpy as np\n\n"
        "def make():\n"
        "    env, params = gymnax.make('CartPole-v1')\n"
        f"    return env, params.replace(max_steps_in_episode={limit})\n"
    )
    env = make("gymnax/package.py:make")
    assert (env.spec.max_episode_steps, type(env.spec.max_episode_steps)) == (2, int)
    assert first_env_steps(env, [0, 1])[1][:, 1:3].tolist() == [[0, 0], [0, 1]]


def test_a_time_limit_of_gymnax_that_is_not_a_whole_number_is_rejected():
    with pytest.raises(ValueError, match=r"max_steps_in_episode = 20.5: a time limit must be a"):
        make("gymnax/CartPole-v1", options={"max_steps_in_episode": 20.5})


@pytest.mark.toy
@pytest.mark.parametrize("above", [np.float32(2.5), np.array(2.5), jnp.float32(2.5)], ids=repr)
def test_success_above_may_have_any_numeric_type(above, monkeypatch):
    monkeypatch.setattr(examples.Walk, "success_above", above, raising=False)
    assert (make(examples.Walk).spec.success_above, float) == (2.5, float)
    monkeypatch.setattr(examples.Walk, "success_above", np.nan)
    with pytest.raises(ValueError, match="success_above = nan: must be a number or None"):
        make(examples.Walk())


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """A function that writes package.py into an empty current folder."""
    monkeypatch.chdir(tmp_path)
    return (tmp_path / "package.py").write_text


WRONG = [
    ("jax/none.py:Walk", {}, "env.name: none.py: no such file in"),
    ("jax/Walk", {}, "env.name: unknown task 'jax/Walk'"),
    (f"jax/{FILE}:Wlak", {}, "has no 'Wlak'. Did you mean 'Walk'?"),
    (f"jax/{FILE}:Walk", {"sise": 1}, "got an unexpected keyword argument 'sise'"),
    (examples.Walk(), {"size": 1}, "an object takes no options. Remove size, or refer"),
    (examples.broken("shape"), {}, r"reset returns an observation float32 \[3\], but its space is"),
    (
        examples.broken("dtype"),
        {},
        r"observation int32 \[1\], but its space is float32 \[1\]\. Both",
    ),
    (examples.broken("nan"), {}, r"not finite. The first ones are \[nan\]"),
    (examples.broken("random"), {}, "two calls differ"),
    (
        examples.broken("one"),
        {},
        r"reset returns a ShapeDtypeStruct instead of a pair\. Return \(state, observation\) from",
    ),
    (examples.broken("if"), {}, r"step: line \d+ of .*own_code.py needs the value of an array"),
    (examples.broken("reward"), {}, r"step: reward is float32 \[1\] instead of a number \[\]"),
    (examples.broken("flags"), {}, r"step: terminated is float32 \[\] instead of bool \[\]"),
    (examples.broken("tuple"), {}, r"step returns \(state, tuple\) instead of \(state, TaskStep\)"),
    (examples.broken("state"), {}, r"a state float32 \[\], but reset returns float32 \[1\]"),
    (examples.broken("raises"), {}, r"step: line \d+ of .*own_code.py raises KeyError: 'lost'"),
    (
        examples.broken_pair("", action=(Discrete(2), Box((1,), -2, 2, "int32"))),
        {},
        "action is a Box with dtype int32, which is not supported. Use a Box with a float",
    ),
    (examples.broken_pair("", action=Discrete(2)), {}, "action must be a tuple of 2 spaces"),
    (
        examples.broken_pair("", observation=(Box((2,)), 1)),
        {},
        "observation is a int instead of a s",
    ),
    (
        examples.broken_pair("shape"),
        {},
        r"reset returns an observation {0: float32 \[2\], 1: float32",
    ),
    (examples.broken_pair("reward"), {}, r"reward is float32 \[\] instead of a number \[2\]"),
    (examples.broken_pair("flags"), {}, r"terminated is bool \[1\] instead of bool \[2\]"),
    (examples.broken_pair("tuple"), {}, r"\(state, tuple\) instead of \(state, MultiStep\)"),
    (examples.broken_pair("global"), {}, r"global_state returns an observation float32 \[\], but"),
]


@pytest.mark.toy
@pytest.mark.parametrize(("name", "options", "message"), WRONG)
def test_an_invalid_custom_task_gets_a_one_sentence_error(
    name, options, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        make(name, options=options)
    assert "\n" not in str(caught.value)


def test_a_custom_multi_agent_task_by_reference():
    """The reward of `up` is its action. `down` has one action less and the negative reward."""
    env = registry.make(EnvConfig(name=f"jax/{FILE}:Pair"), 4)
    state, obs = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(obs["obs"][::2, 1], -obs["obs"][::2, 0])
    np.testing.assert_array_equal(obs["action_mask"], [[1, 1, 1], [1, 1, 0]] * 2)
    action = jnp.array([2, 1, 0, 1])
    _, out = env.step(KEY, state, action)
    np.testing.assert_array_equal(out.reward, [2, -1, 0, -1])


@pytest.mark.parametrize("name", [f"jax/{FILE}:Pair", examples.Pair()])
def test_rows_of_a_custom_multi_agent_task_observe_its_global_state(name):
    """The state of `Pair` is the first entry of `up`."""
    env = registry.make(EnvConfig(name=name, options={"global_state": True}), 4)
    _, obs = env.reset(jax.random.key(0))
    state = np.repeat(obs["obs"][::2, :1], 2, axis=0)
    np.testing.assert_array_equal(obs["state"], state)
    assert "state" not in registry.make(EnvConfig(name=name), 4).reset(KEY)[1]


@pytest.mark.toy
def test_a_task_with_one_agent_has_no_global_state():
    with pytest.raises(ValueError, match=r"global_state = true: .* has only one agent\. Use false"):
        make(f"jax/{FILE}:Walk", options={"global_state": True})


@pytest.mark.toy
def test_a_custom_wrapper_must_define_success_above_itself(monkeypatch):
    """A wrapper may change rewards, and the value of the task may not apply."""
    monkeypatch.setattr(examples.Walk, "success_above", 2.5, raising=False)
    assert make(examples.Walk).spec.success_above == 2.5
    assert make(examples.Walk, wrappers=(examples.Doubled,)).spec.success_above is None
    monkeypatch.setattr(examples.Doubled, "success_above", 5.0, raising=False)
    assert make(examples.Walk, wrappers=(examples.Doubled,)).spec.success_above == 5.0


@dataclass(frozen=True)
class Frozen(BaseTask):
    """A wrapper that is a frozen dataclass and sets the attributes of a task."""

    task: Any
    max_episode_steps: int = 3
    cheap_reset: bool = False
    metrics: Any = field(default_factory=lambda: {"unused": "sum"})

    @property
    def observation(self):
        return self.task.observation

    @property
    def action(self):
        return self.task.action

    def reset(self, key):
        return self.task.reset(key)

    def step(self, key, state, action):
        return self.task.step(key, state, action)


@pytest.mark.toy
def test_a_custom_wrapper_sets_the_time_limit_and_the_cost_of_resets():
    name = "gymnax/CartPole-v1"
    assert make(name).fresh_every_step
    env = make(name, wrappers=(Frozen,), stagger=True)
    assert env.spec.max_episode_steps == 3 and env.spec.metrics == ()
    assert not env.fresh_every_step
    cheap = partial(Frozen, cheap_reset=True)  # the reset of a costly task stays costly
    assert not make(name, wrappers=(Frozen, cheap)).fresh_every_step
    with pytest.raises(ValueError, match=r"env\.stagger = true needs a time limit"):
        make(name, wrappers=(partial(Frozen, max_episode_steps=0),), stagger=True)


@pytest.mark.toy
def test_a_success_above_that_is_not_a_number_is_rejected(monkeypatch):
    class Wordy(examples.Walk):
        success_above = "ten"

    with pytest.raises(ValueError, match="success_above = 'ten': must be a number or None"):
        make(Wordy)


class Counts:
    """A task that observes its number of steps, and two choices from 0 to 2."""

    action = Discrete(2)
    max_episode_steps = 8
    cheap_reset = True

    def __init__(self, count, ends=False):
        self.observation = Dict.of({"last": MultiDiscrete((3, 3)), "time": Discrete(count)})
        self.ends = ends

    def see(self, time):
        return {"last": jnp.stack([jnp.minimum(time, 2), 0]), "time": time}

    def reset(self, key):
        return jnp.int32(0), self.see(jnp.int32(0))

    def step(self, key, state, action):
        over = jnp.array(self.ends) & (state == 1)
        return state + 1, TaskStep(self.see(state + 1), 1.0, over, jnp.array(False))


@pytest.mark.toy
def test_discrete_observations_out_of_range_in_the_first_steps_are_rejected():
    with pytest.raises(ValueError, match="Counts: part time: observation = 3: must be an ") as e:
        make(Counts(3))
    assert str(e.value).endswith("an integer from 0 to 2.")
    assert make(Counts(5)).spec.num_envs == 2
    make(Counts(2, ends=True))  # steps after an end are not checked


@pytest.mark.toy
def test_wrappers_of_host_simulators_are_rejected():
    with pytest.raises(ValueError, match=r"env.wrappers needs a simulator in JAX"):
        make("gymnasium/CartPole-v1", wrappers=(f"{FILE}:Doubled",))


def test_a_custom_walk_learns_to_go_up():
    config = load_config(
        "cartpole.yaml",
        {
            "env.num_envs": 8,
            "total_timesteps": 8192,
            "network.hidden": [8],
            "ppo.rollout_length": 32,
        },
    )
    result = jax.jit(make_train(config, env=examples.Walk))(jax.random.key(0))
    returns = result.curves.episodic_return
    # Going up from 0 gives 0.5 + 1 + ... until 3 ends the episode or after 8 steps.
    assert np.nanmean(returns[:2]) < 4
    assert returns[-1] > 6


class Compound(BaseTask):
    """Observations and actions in nested mappings; no limit, and actions without bounds."""

    observation = Dict({"place": {"x": Box((2,)), "on": Discrete(2)}, "t": Box((1,))})
    action = Dict({"push": {"left": Box((1,), -1, 1), "right": Box((1,))}, "jump": Discrete(2)})

    def reset(self, key):
        obs = example(self.observation)
        return obs, obs

    def step(self, key, state, action):
        reward = action["push"]["right"][0] + action["jump"]
        return state, TaskStep(state, reward, jnp.array(False), jnp.array(False))


class UsesArrayMethods(BaseTask):
    """Calls a method that JAX arrays have and NumPy arrays do not, as MJX does with controls."""

    observation, action = Box((2,)), Box((2,), -1.0, 1.0)
    max_episode_steps = 5

    def reset(self, key):
        return jnp.zeros(2), jnp.zeros(2)

    def step(self, key, state, action):
        obs = action.at[0].set(1.0)
        return state, TaskStep(obs, obs.sum(), jnp.bool_(False), jnp.bool_(False))


def test_actions_in_checks_are_within_their_bounds():
    @dataclass(frozen=True)
    class Positive(examples.Walk):
        action = Box((1,), 0.5, 2.0)

        def step(self, key, state, action):
            state, out = super().step(key, state, jnp.int32(1))
            return state, out._replace(reward=-(jnp.log(action[0]) ** 2))

    assert registry.make(EnvConfig(name=Positive()), 1).spec.action == Box((1,), -1.0, 1.0)


def test_actions_in_checks_are_jax_arrays():
    config = load_config("cartpole.yaml", env={"name": UsesArrayMethods(), "options": {}})
    registry.make(config.env, 2).close()


def test_spaces_in_nested_mappings_are_accepted_for_observations_and_actions():
    env = registry.make(EnvConfig(name=Compound()), 3)
    state, _ = env.reset(KEY)
    action = {"jump": np.ones(3, int), "push": {"left": np.ones((3, 1)), "right": np.ones((3, 1))}}
    _, out = env.step(KEY, state, action)
    np.testing.assert_array_equal(out.reward, 2.0)
    assert out.obs["place"]["x"].shape == (3, 2)


def test_a_value_in_a_mapping_that_is_no_space_is_named():
    task = Compound()
    task.observation = Dict({"place": {"x": gymnasium.spaces.Discrete(2)}})
    sentence = (
        "observation['place']['x'] is a gymnasium.spaces.discrete.Discrete instead of a space of "
        "purejaxppo.spaces"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        registry.make(EnvConfig(name=task), 3)


def test_a_task_without_a_limit_or_bounds_of_actions_gets_one_warning_each():
    config = EnvConfig(name=Compound())
    limit, bounds = registry.warnings_of(config, registry.make(config, 2).spec)
    assert limit.endswith(
        "has no time limit. If an episode may last forever, set env.max_episode_steps."
    )
    assert "has actions without bounds. They are neither clipped nor scaled" in bounds
    config = EnvConfig(name=Compound(), max_episode_steps=9)
    assert registry.warnings_of(config, registry.make(config, 2).spec) == [bounds]
    for name in ("dummy/vector", "gymnasium/CartPole-v1", f"jax/{FILE}:Walk", "pgx/tic_tac_toe"):
        config = EnvConfig(name=name)
        assert registry.warnings_of(config, registry.make(config, 4).spec) == []
