"""With a constant reward r, time limits alone and V = r / (1 - gamma), every advantage is 0."""

import os
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict
from support import own_code
from support.godot import GAME
from support.paths import EXAMPLE_ENVS
from support.unity import make_player

from purejaxppo import rollout
from purejaxppo.agents import advantages, decisions
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import families, registry
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.wrappers import ActionRepeat
from purejaxppo.spaces import Box, Discrete, example
from purejaxppo.types import PolicyStep

# Brax asks MJX for fields in the old way.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing `.*` directly:DeprecationWarning")
FULL, SLOW = pytest.mark.full, pytest.mark.slow
GAMMA = 0.75

OLD_GYMNAX = '''
import jax, jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

@struct.dataclass
class State:
    x: jax.Array
    time: int

@struct.dataclass
class Clock:
    x: jax.Array
    elapsed: int

@struct.dataclass
class Params:
    max_steps_in_episode: int = 4
    edge: float = 100.0

class Drift(environment.Environment):
    """A number drifts; each step pays 1; it ends beyond `edge`, or at the limit."""

    default_params = Params()
    state = State
    num_actions = 2

    def reset_env(self, key, params):
        state = self.state(jax.random.uniform(key), 0)
        return state.x[None], state

    def step_env(self, key, state, action, params):
        now = getattr(state, "time" if self.state is State else "elapsed") + 1
        state = self.state(state.x + action, now)
        return state.x[None], state, jnp.array(1.0), self.over(state, now, params), {}

    def over(self, state, now, params):
        return self.is_terminal(state, params)

    def is_terminal(self, state, params):
        return (state.x > params.edge) | (state.time >= params.max_steps_in_episode)

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-200, 200, (1,), jnp.float32)

class Inline(Drift):
    """Computes its ends within the step."""

    def over(self, state, now, params):
        return (state.x > params.edge) | (now >= params.max_steps_in_episode)

class OtherClock(Inline):
    """Has its clock under another name."""

    state = Clock

class Early(Inline):
    """Ends one step before the limit."""

    def over(self, state, now, params):
        return (state.x > params.edge) | (now >= params.max_steps_in_episode - 1)

class Plain:
    """Without gymnax's base class."""

    default_params = Params()

    def __init__(self):
        inner = Drift()
        self.reset_env, self.step_env = inner.reset_env, inner.step_env
        self.action_space, self.observation_space = inner.action_space, inner.observation_space

class Ported(Drift):
    """Has the form of gymnax 1.0, and the limit among its ends as before."""

    is_terminal = environment.Environment.is_terminal

    def is_terminated(self, state, params):
        return super().is_terminal(state, params)

class Sized(Drift):
    """Adds up as many numbers as the limit."""

    def step_env(self, key, state, action, params):
        jnp.zeros(4) + jnp.zeros(params.max_steps_in_episode)
        return super().step_env(key, state, action, params)

class SizedByForm(Sized):
    """The same in the form of gymnax 1.0, with its own ends alone."""

    is_terminal = environment.Environment.is_terminal

    def is_terminated(self, state, params):
        return state.x > params.edge
'''


class Still:
    """A task with reward 1 at every step that never terminates."""

    observation = Box((2,))
    action = Discrete(2)

    def __init__(self, limit=0, cheap_reset=True):
        self.max_episode_steps, self.cheap_reset = limit, cheap_reset

    def reset(self, key):
        obs = jax.random.normal(key, (2,))
        return obs, obs

    def step(self, key, state, action):
        false = jnp.array(False)
        return state, TaskStep(state, jnp.float32(1.0), false, false)


class BraxState(NamedTuple):
    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    metrics: Any = FrozenDict()


class StillBrax:
    """A robot that does not move, with the interface of Brax's registry."""

    action_size, dt = 1, 0.1

    def __init__(self, backend):
        del backend
        self.unwrapped = self

    def reset(self, key):
        return BraxState(jax.random.normal(key, (2,)), jnp.zeros(()), jnp.zeros(()))

    def step(self, state, action):
        return state._replace(reward=jnp.ones(()))


class Case(NamedTuple):
    """A task, and the size of the rollout to collect from it."""

    name: Any
    length: int = 14
    """Steps of a rollout."""
    rows: int = 2
    fields: Any = None
    options: Any = None


def case(name, length=14, rows=2, *, options=None, marks=(), label="", **fields):
    made = Case(name, length, rows, fields, options or {})
    return pytest.param(made, id=label or f"{name}-{'-'.join(fields)}".rstrip("-"), marks=marks)


def repeat_actions(task):
    return ActionRepeat(task, 2)


CASES = [
    case("dummy/constant"),
    case(Still(), max_episode_steps=4, label="own"),
    case(Still(4), label="own-limit"),
    case(Still(4, cheap_reset=False), label="own-starts-per-rollout"),
    case(Still(4), wrappers=(own_code.Doubled,), label="own-wrapper"),
    case(Still(8), wrappers=(repeat_actions,), label="own-action-repeat"),
    case(own_code.Pair(), label="own-world"),
    case("gymnax/CartPole-v1", options={"max_steps_in_episode": 4}),
    case("gymnax/Pendulum-v1", max_episode_steps=4, randomize={"g": 0.1}, marks=FULL),
    case("gymnax/Pendulum-v1", max_episode_steps=4, curriculum={"g": "1 to 2"}),
    *(
        case(f"gymnax/old.py:{name}", label=f"gymnax-old-{name}", marks=marks)
        for name, marks in (
            ("Drift", ()),
            ("Inline", FULL),
            ("OtherClock", FULL),
            ("Early", FULL),
            ("Plain", FULL),
            ("Ported", FULL),
            ("SizedByForm", FULL),
        )
    ),
    case("brax/still", max_episode_steps=4),
    case("jaxmarl/MPE_simple_v3", 60),
    case("jaxmarl/switch_riddle", 60, rows=3, marks=FULL),
    case("jumanji/LevelBasedForaging-v0", 110),
    case("particles/spread", 110, rows=3),
    case("pgx/minatar-freeway", 2510, marks=FULL),
    case("xminigrid/MiniGrid-Empty-5x5", 310),
    case("oscillator/kuramoto", max_episode_steps=4, marks=FULL),
    case("playground/CartpoleBalance", options={"episode_length": 4}, marks=FULL),
    case("craftax/Craftax-Classic-Symbolic-v1", max_episode_steps=4, marks=SLOW),
    case("envpool/Pendulum-v1", max_episode_steps=4),
    case("gymnasium/Pendulum-v1", max_episode_steps=4, options={"workers": "thread"}),
    case(
        f"gymnasium/{EXAMPLE_ENVS}:OwnLimit", options={"workers": "thread"}, label="gymnasium-own"
    ),
    case(
        "pettingzoo/mpe2.simple_spread_v3",
        rows=3,
        options={"workers": "thread", "max_cycles": 4},
    ),
]


def collected(env, choose, length, rollouts=1):
    """Yield the transitions of consecutive rollouts with the actions `choose(obs)`."""

    def act(key, carry, obs, start):
        action = choose(obs)
        zeros = jnp.zeros(env.spec.num_envs)
        return PolicyStep(carry, action, zeros, action)

    state = jax.jit(partial(rollout.init_rollout, env, lambda batch: ()))(jax.random.key(0))
    step = jax.jit(lambda state: rollout.collect(env, act, state, jax.random.key(0), length))
    for _ in range(rollouts):
        found = jax.device_get(step(state))
        state = found.end
        yield found.transitions


def advantage_of(rows):
    """Compute advantages for rewards of 1 and the correct value everywhere."""
    reward = rows.valid.astype(np.float32)
    value = jnp.full(reward.shape, 1 / (1 - GAMMA))
    after = value
    if rows.absent is not None:
        after = decisions.next_entries(value, value[0], jnp.asarray(rows.absent))
    ends = rows.terminated | rows.truncated
    return advantages.gae(
        *map(jnp.asarray, (reward, value, after, rows.terminated, ends, rows.valid)),
        gamma=GAMMA,
        gae_lambda=0.9,
        absent=rows.absent,
    ).advantage


@pytest.fixture
def still_world(tmp_path, monkeypatch):
    """Provide the files that cases need."""
    (tmp_path / "old.py").write_text(OLD_GYMNAX)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_time_limits_alone_give_zero_advantage(case, still_world, monkeypatch):
    family = str(case.name).partition("/")[0]
    if family in families.ADAPTERS:
        pytest.importorskip(families.load(family).requires)
    if family == "brax":
        from brax import envs

        monkeypatch.setitem(envs._envs, "still", StillBrax)
    config = EnvConfig(name=case.name, num_envs=case.rows, options=case.options, **case.fields)
    env = registry.make(config, case.rows)

    def stay(obs):
        nothing = example(env.spec.action)
        return jax.tree.map(lambda x: jnp.zeros((case.rows, *x.shape), x.dtype), nothing)

    try:
        (rows,) = collected(env, stay, case.length)
    finally:
        env.close()
    assert not rows.terminated.any()
    assert rows.truncated.sum() >= case.rows
    np.testing.assert_array_equal(advantage_of(rows), 0.0)


@pytest.mark.parametrize(
    ("name", "limit", "ends"),
    [
        # (terminated, truncated) of the third step of action 1, which passes the edge.
        ("Drift", 10, (True, False)),
        ("Drift", 3, (True, False)),
        ("Drift", 2, None),
        ("Inline", 3, (True, False)),
        ("Early", 4, (True, False)),
        ("OtherClock", 3, (True, False)),
        ("Plain", 3, (True, False)),
        ("Ported", 3, (True, False)),
        ("SizedByForm", 4, (True, False)),
    ],
)
def test_an_end_of_the_task_at_the_time_limit_is_a_termination(name, limit, ends, still_world):
    options = {"edge": 2.9, "max_steps_in_episode": limit}
    env = registry.make(EnvConfig(name=f"gymnax/old.py:{name}", options=options), 1)
    (rows,) = collected(env, lambda obs: jnp.ones(1, jnp.int32), 4)
    step = 2 if ends else limit - 1
    assert not (rows.terminated | rows.truncated)[:step].any()
    found = bool(rows.terminated[step, 0]), bool(rows.truncated[step, 0])
    assert found == (ends or (False, True))


def test_an_environment_whose_shapes_depend_on_its_limit_is_rejected(still_world):
    name = "gymnax/old.py:Sized"
    with pytest.raises(ValueError, match="to separate terminations") as caught:
        registry.make(EnvConfig(name=name), 1)
    assert str(caught.value).startswith(
        f"env.name = {name}: step_env fails when max_steps_in_episode is larger"
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "asks", ["--period 1", "--period 5", "--period 5 --offset 2", "--offset 1 --period 3 --pause 4"]
)
@pytest.mark.xdist_group("processes")
@pytest.mark.skipif(os.name != "posix", reason="games can only be started on Linux and macOS")
def test_time_limits_alone_give_zero_advantage_in_a_unity_build(asks, tmp_path):
    pytest.importorskip("grpc")
    arguments = f"--agents 3 --cut --length 4 --parameter goal {asks}"
    options = {"arguments": arguments, "timeout": 20.0, "max_agents": 3, "parameters.goal": 0.0}
    config = EnvConfig(name=f"unity/{make_player(tmp_path)}", num_envs=3, options=options)
    env = registry.make(config, 3)
    try:
        found = list(collected(env, lambda obs: jnp.zeros((3, 2)), 20, 4))
    finally:
        env.close()
    absent = 0
    for rows in found:
        if "offset" not in asks:  # with an offset, first and last decisions are shorter than others
            np.testing.assert_allclose(rows.reward[rows.valid], 1.0, rtol=1e-6)
        assert not rows.terminated.any()
        np.testing.assert_allclose(advantage_of(rows), 0.0, atol=1e-6)
        absent += rows.absent.sum()
    assert sum(rows.truncated.sum() for rows in found) >= 12
    assert (absent > 0) == ("offset" in asks)


@pytest.mark.xdist_group("processes")
@pytest.mark.skipif(os.name != "posix", reason="games can only be started on Linux and macOS")
def test_time_limits_alone_give_zero_advantage_in_a_godot_game():
    options = {"arguments": "--cut=2", "timeout": 10.0}
    env = registry.make(EnvConfig(name=f"godot/{GAME}", num_envs=4, options=options), 4)
    try:
        found = list(collected(env, lambda obs: jnp.where(obs[:, 0] > 0, 2, 0), 20, 4))
    finally:
        env.close()
    for rows in found:
        np.testing.assert_array_equal(rows.reward[rows.valid], 1.0)
        assert not rows.terminated.any() and not rows.valid.all()
        np.testing.assert_array_equal(advantage_of(rows), 0.0)
    assert sum(rows.truncated.sum() for rows in found) >= 50


REPEAT = '''
import jax
import jax.numpy as jnp
from purejaxppo import Wrapper

class Repeat(Wrapper):
    """Repeats each action once more, unless the episode has ended."""

    def step(self, key, state, action):
        state, first = self.task.step(key, state, action)
        over = jnp.all(jnp.asarray(first.terminated) | first.truncated)
        second = self.task.step(key, state, action)
        return jax.tree.map(lambda a, b: jnp.where(over, a, b), (state, first), second)
'''


@pytest.mark.parametrize(
    ("name", "module", "ends_at"),
    [
        ("jumanji/Maze-v0", "jumanji", 3),
        ("jaxmarl/jaxnav", "jaxmarl", 3),
        ("gymnax/MountainCar-v0", "gymnax", 3),
        ("xminigrid/MiniGrid-Empty-8x8", "xminigrid", 3),
        (f"jax/{own_code.__file__}:Walk", "jax", 6),
    ],
)
def test_the_limit_truncates_under_a_wrapper_that_repeats_actions(name, module, ends_at, tmp_path):
    pytest.importorskip(module)
    (tmp_path / "repeating.py").write_text(REPEAT)
    wrappers = (f"{tmp_path / 'repeating.py'}:Repeat",)
    config = EnvConfig(name=name, max_episode_steps=6, wrappers=wrappers)
    agents = len(registry.make_task(config).agents) or 1
    env = registry.make(config, agents)
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    step, ends = jax.jit(env.step), []
    for _ in range(ends_at):
        actions = jax.tree.map(jnp.asarray, example(env.spec.action, (agents,)))
        state, out = step(jax.random.key(0), state, actions)
        ends.append((bool(out.terminated.any()), bool(out.truncated.all())))
    assert ends == [(False, False)] * (ends_at - 1) + [(False, True)]
