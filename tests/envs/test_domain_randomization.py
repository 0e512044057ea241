"""Domain randomisation: drawn factors, their effect, and physics by hand."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.own_code import Pair
from support.stepping import KEY, begin

from purejaxppo import spaces
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.domain_randomization import Randomized, vary
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program

# Brax asks MJX for fields in the old way.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing `.*` directly:DeprecationWarning")

PENDULUM = "gymnax/Pendulum-v1"


def full(value):
    """Return a test parameter that only `make test-all` runs."""
    return pytest.param(value, marks=pytest.mark.full)


def test_factors_are_within_their_range_and_fill_it(key):
    env = registry.make(EnvConfig(PENDULUM, randomize={"m": 0.5, "g": 0.1}), 1000)
    state, _ = jax.jit(env.reset)(key)
    factors, _ = state.task[0]
    for name, x in (("m", 0.5), ("g", 0.1)):
        drawn = np.asarray(factors[name])
        assert drawn.shape == (1000,)
        assert 1 - x <= drawn.min() < 1 - 0.98 * x
        assert 1 + 0.98 * x < drawn.max() <= 1 + x
        assert abs(drawn.mean() - 1) < 0.1 * x
    assert abs(np.corrcoef(factors["m"], factors["g"])[0, 1]) < 0.1


@pytest.mark.parametrize("reset", ["every_step", "every_rollout"])
def test_each_episode_draws_factors_and_keeps_them(key, reset):
    config = EnvConfig(PENDULUM, randomize={"m": 0.5}, max_episode_steps=3, reset=reset)
    env = registry.make(config, 4)
    state, _ = jax.jit(env.reset)(key)
    state = begin(env, state)
    step = jax.jit(partial(env.step, KEY))
    seen, ends = [], []
    for _ in range(8):  # three steps and a reset row, twice
        seen.append(np.asarray(state.task[0][0]["m"]))
        state, out = step(state, jnp.zeros((4, 1)))
        ends.append(bool(out.truncated.all()))
    assert ends == [False, False, True, False] * 2
    for first in (0, 4):
        np.testing.assert_array_equal(seen[first], seen[first + 2])
    assert (seen[0] != seen[4]).all()
    assert len(set(seen[0])) == 4


def test_doubling_the_mass_of_a_pendulum_halves_its_response(key):
    # theta'' = 3 g / (2 l) sin(theta) + 3 u / (m l^2): of Pendulum-v1, with dt = 0.05.
    task = registry.make_task(EnvConfig(PENDULUM, randomize={"m": 0.5})).task.task
    assert isinstance(task, Randomized)
    (_, start), _ = jax.jit(task.reset)(key)
    step = jax.jit(task.step)
    for factor in (0.5, 1.0, 1.5):
        (_, after), _ = step(key, ({"m": jnp.float32(factor)}, start), jnp.ones(1))
        gravity = 3 * 10.0 / 2 * jnp.sin(start.theta)
        expected = start.theta_dot + (gravity + 3.0 / factor) * 0.05
        np.testing.assert_allclose(after.theta_dot, expected, rtol=1e-6)


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("name", [PENDULUM, "gymnax/MemoryChain-bsuite"])
def test_ranges_of_zero_do_not_change_trajectories(key, name):
    parameter = {PENDULUM: "g"}.get(name, "memory_length")
    returns = []
    for randomize in ({}, {parameter: 0.0}):
        env = registry.make(EnvConfig(name, randomize=randomize, max_episode_steps=20), 3)

        @jax.jit
        def run(key, env=env):
            def step(state, _):
                action = jnp.zeros((3, *getattr(env.spec.action, "shape", ())), jnp.int32)
                state, out = env.step(KEY, state, action)
                return state, (out.obs, out.reward)

            return jax.lax.scan(step, env.reset(key)[0], None, 50)[1]

        returns.append(run(key))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *returns)


class TestBrax:
    """The cart of inverted_pendulum, pushed while its pole is upright: a = F / m."""

    @staticmethod
    def speeds(backend, factors):
        """Return the cart's speed after a push without friction, for each factor."""
        config = EnvConfig("brax/inverted_pendulum", backend=backend, randomize={"mass": 0.5})
        task = registry.make_task(config).task.task
        task.values = {"damping": 0.0}

        def push(factors):
            env = task.with_factors(factors)
            key = jax.random.key(0)
            state, _ = env.reset(key)
            still = state.pipeline_state
            init = env.env.env.pipeline_init
            with env.env._replaced():
                still = init(jnp.zeros_like(still.q), jnp.zeros_like(still.qd))
            state = state.replace(pipeline_state=still)
            _, out = env.step(key, state, jnp.full(1, 0.1))
            return out.obs[2]

        return jax.jit(jax.vmap(push))({"mass": jnp.asarray(factors, jnp.float32)})

    # The joints of the spring back end yield, because the springs keep their strength.
    @pytest.mark.parametrize(
        ("backend", "tolerance"),
        [pytest.param("generalized", 5e-3, marks=pytest.mark.full), ("spring", 0.06)],
    )
    def test_double_mass_halves_the_acceleration(self, backend, tolerance):
        one, two, half = self.speeds(backend, [1.0, 2.0, 0.5])
        assert one > 1e-3
        np.testing.assert_allclose([two / one, half / one], [0.5, 2.0], rtol=tolerance)

    @pytest.mark.full
    def test_a_range_of_zero_does_not_change_the_motion_of_a_robot(self, key):
        runs = []
        for randomize in ({}, {"mass": 0.0, "gear": 0.0, "gravity": 0.0}):
            task = registry.make_task(EnvConfig("brax/inverted_pendulum", randomize=randomize))

            def run(key, task=task):
                state, obs = task.reset(key)
                _, out = task.step(key, state, jnp.full(1, 0.3))
                return obs, out.obs

            runs.append(jax.jit(run)(key))
        np.testing.assert_allclose(runs[0][1], runs[1][1], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(runs[0][0], runs[1][0])

    @pytest.mark.parametrize(
        "backend", ["spring", *map(full, ["positional", "generalized", "mjx"])]
    )
    def test_every_parameter_is_traced_by_every_back_end(self, backend, key):
        task = registry.make_task(EnvConfig("brax/inverted_pendulum", backend=backend)).task.task

        def episode(values):
            adjusted = task.adjusted(values)
            return adjusted.step(key, adjusted.reset(key)[0], jnp.zeros(1))[1].obs

        names = dict.fromkeys(task.parameters, jnp.ones(()))
        assert jax.eval_shape(episode, names).shape == (4,)
        assert not isinstance(task.env.sys.body_mass, jax.core.Tracer)


@pytest.mark.full
def test_playground_simulates_the_model_drawn_for_the_episode(key):
    config = EnvConfig("playground/CartpoleBalance", randomize={"gear": 0.5, "mass": 0.5})
    task = registry.make_task(config).task.task

    def gained(gear, mass):
        (_, start), _ = task.reset(key)
        factors = {"gear": gear, "mass": mass}
        (_, after), _ = task.step(key, (factors, start), jnp.ones(1))
        return after.data.qvel[0] - start.data.qvel[0]

    one, strong, heavy = jax.jit(jax.vmap(gained))(jnp.array([1, 1.5, 1]), jnp.array([1, 1, 2.0]))
    np.testing.assert_allclose([strong / one, heavy / one], [1.5, 0.5], rtol=0.05)
    assert not isinstance(task.task.env.mjx_model.body_mass, jax.core.Tracer)


class OwnDraws:
    """A task whose reward is `mass` times the sum of the parameter drawn for the episode."""

    observation, action = spaces.Box((1,)), spaces.Box((1,), -1.0, 1.0)
    max_episode_steps, cheap_reset = 4, False
    parameters: ClassVar = {"mass": 2.0}

    def __init__(self, mass=2.0, wind=0.0):
        self.mass, self.wind = mass, wind

    def draw_parameters(self, key):
        return {"wind": jax.random.uniform(key, (3,), minval=1.0, maxval=2.0)}

    def adjusted(self, values):
        return OwnDraws(values.get("mass", self.mass), values["wind"])

    def reset(self, key):
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, key, state, action):
        none = jnp.zeros((), bool)
        return state, TaskStep(jnp.zeros(1), self.mass * jnp.sum(self.wind), none, none)


@pytest.mark.parametrize("spread", [{}, {"mass": 0.5}])
def test_parameters_drawn_by_the_simulator_combine_with_the_factors(key, spread):
    task = vary(OwnDraws(), spread, {})
    assert isinstance(task, Randomized)
    (drawn, start), _ = jax.jit(task.reset)(key)
    assert set(drawn) == {"wind", *spread}
    mass = 2.0 * drawn.get("mass", 1.0)
    _, out = task.step(key, (drawn, start), jnp.ones(1))
    np.testing.assert_allclose(out.reward, mass * drawn["wind"].sum(), rtol=1e-6)
    (other, _), _ = task.reset(jax.random.key(1))
    assert (other["wind"] != drawn["wind"]).all()


class Weighed(Pair):
    """A task of two agents that observe their common mass; so does the global state."""

    parameters: ClassVar = {"mass": 2.0}

    def __init__(self, mass=2.0):
        self.mass = mass

    def adjusted(self, values):
        return Weighed(values["mass"])

    def observe(self, state):
        return jnp.full(2, self.mass), jnp.full(1, self.mass)

    def global_state(self, state):
        return jnp.full(1, self.mass)


def test_the_global_state_uses_the_randomized_parameters_of_the_episode(key):
    config = EnvConfig(name=Weighed, options={"global_state": True}, randomize={"mass": 0.5})
    env = registry.make(config, 6)
    state, obs = env.reset(key)
    _, out = env.step(key, state, jnp.zeros(6, jnp.int32))
    for seen in (obs, out.obs):
        np.testing.assert_array_equal(seen["state"][:, 0], seen["obs"][:, 0])
    assert len(np.unique(obs["state"])) == 3


CHAIN = "gymnax/MemoryChain-bsuite"


@pytest.mark.parametrize(
    "name",
    [PENDULUM, CHAIN, *map(full, sorted({*registry.task_names("gymnax")} - {PENDULUM, CHAIN}))],
)
def test_every_parameter_of_gymnax_is_traced(name, key):
    task = registry.make_task(EnvConfig(name)).task.task

    def episode(values):
        adjusted = task.adjusted(values)
        action = jnp.asarray(spaces.example(task.action))
        return adjusted.step(key, adjusted.reset(key)[0], action)[1].reward

    values = {name: jnp.float32(value) for name, value in task.parameters.items()}
    assert jax.eval_shape(episode, values).shape == ()


BAD = [
    ({"randomize": {"friktion": 0.1}}, PENDULUM, "It has max_speed, max_torque, dt, g, m, l"),
    ({"randomize": {"mass": 0.1}}, "dummy/vector", "dummy/vector has no parameters"),
    ({"randomize": {"m": 1.0}}, PENDULUM, "env.randomize.m = 1.0: must be at least 0 and below 1"),
    ({"randomize": {"m": -0.1}}, PENDULUM, "at least 0"),
    ({"randomize": {"mass": 0.1}}, "gymnasium/CartPole-v1", "runs on the host"),
    ({"randomize": {"max_steps_in_episode": 0.1}}, PENDULUM, "no such parameter"),
]


@pytest.mark.parametrize(("fields", "name", "message"), BAD)
def test_invalid_randomization_gets_a_one_sentence_error(fields, name, message):
    with pytest.raises(ValueError, match=r"env\.randomize") as error:
        registry.make(EnvConfig(name, **fields), 2)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.full
def test_a_run_with_domain_randomization_resumes_exactly(make_config):
    config = make_config(
        env={"name": PENDULUM, "randomize": {"m": 0.3, "l": 0.2}, "max_episode_steps": 7}
    )
    parts, hp = make_parts(config), make_hyperparams(config)
    chunk = jax.jit(train_program(parts))
    state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
    whole, _ = chunk(state, hp, jnp.int32(4))
    saved = jax.device_get(chunk(state, hp, jnp.int32(2))[0])
    resumed, _ = chunk(saved, hp, jnp.int32(2))
    jax.tree.map(np.testing.assert_array_equal, whole.agent, resumed.agent)
