"""Two halves in turns: the numbers of one batch, and the time of the slower of policy and step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.paths import EXAMPLE_ENVS

from purejaxppo import learner, make_train
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.parts import make_parts
from purejaxppo.streams import split_keys
from purejaxppo.types import PolicyStep

# EnvPool's bounds are of another type than its numbers.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered.*:UserWarning")

THREADS = {"workers": "thread", "num_workers": 2}
ENVS = {
    "envpool": {"name": "envpool/CartPole-v1", "num_envs": 6, "max_episode_steps": 15},
    "envpool pairs": {"name": "envpool/CartPole-v1", "num_envs": 2, "max_episode_steps": 18},
    "gymnasium": {
        "name": f"gymnasium/{EXAMPLE_ENVS}:Walk",
        "num_envs": 8,
        "max_episode_steps": 7,
        "options": THREADS,
    },
    "rounding": {
        "name": f"gymnasium/{EXAMPLE_ENVS}:Walk",
        "num_envs": 64,
        "max_episode_steps": 7,
        "options": THREADS,
    },
}


def watched(collect, learn, state, hp):
    """One update, and the rollout that it was made from."""
    progress = state.update / hp.total_updates
    key = split_keys(state.key).act
    rollout = collect(state.agent, state.rollout, key, progress)
    state, metrics = learn(state, rollout, hp)
    return state, (rollout.transitions, rollout.episodes, metrics, state.agent)


def updates(config, count, *, whole):
    """What some updates of a fresh agent were made from, and led to.

    As one program if `whole`, as in a run; in two, the second of which simulators do not change
    and is compiled once for all of them.
    """
    parts, hp = make_parts(config), make_hyperparams(config)
    collect, learn = partial(learner.collect, parts), partial(learner.learn, parts)
    if whole:
        step = jax.jit(partial(watched, collect, learn))
    else:
        step = partial(watched, jax.jit(collect), jax.jit(learn))
    state = jax.jit(partial(learner.init_state, parts))(jax.random.key(0), jnp.int32(0))
    out = []
    for _ in range(count):
        state, seen = step(state, hp)
        out.append(jax.device_get(seen))
    parts.env.close()
    return out


@pytest.mark.optimized
@pytest.mark.parametrize(
    "which",
    [
        pytest.param("rounding", marks=pytest.mark.full),
        pytest.param("envpool", marks=pytest.mark.full),
        pytest.param("envpool pairs", marks=pytest.mark.slow),
        pytest.param("gymnasium", marks=pytest.mark.slow),
    ],
)
def test_trajectories_and_updates_are_the_same_bit_for_bit(which, make_config):
    config = {"network": {"hidden": (16, 16)}, "ppo": {"rollout_length": 20}}
    plain, halved = (
        updates(make_config(env=env, **config), 3, whole=which in ("rounding", "envpool"))
        for env in (ENVS[which], ENVS[which] | {"double_buffer": True})
    )
    jax.tree.map(np.testing.assert_array_equal, plain, halved)
    assert_both_ends([row[0] for row in plain])


def assert_both_ends(transitions):
    """Some episodes were truncated, and some terminated."""
    assert any(t.truncated.any() for t in transitions)
    assert any(t.terminated.any() for t in transitions)


@pytest.mark.optimized
def test_a_rollout_is_the_same_bit_for_bit(make_config):
    def rollout(**more):
        ppo = {"rollout_length": 20}
        config = make_config(env=ENVS["rounding"] | more, ppo=ppo, network={"hidden": (16, 16)})
        parts = make_parts(config)
        state = jax.jit(partial(learner.init_state, parts))(jax.random.key(0), jnp.int32(0))
        collect = jax.jit(partial(learner.collect, parts))
        out = collect(state.agent, state.rollout, split_keys(state.key).act, jnp.float32(0))
        end = {**vars(out.end), "env": None}  # two halves have another state
        seen = jax.device_get((out.transitions, out.episodes, end))
        parts.env.close()
        return seen

    plain, halved = rollout(), rollout(double_buffer=True)
    jax.tree.map(np.testing.assert_array_equal, plain, halved)
    assert_both_ends([plain[0]])


@pytest.mark.full
@pytest.mark.optimized
def test_a_rollout_of_one_step_is_the_same(make_config):
    ppo = {"rollout_length": 1}
    plain, halved = (
        updates(make_config(env=env, ppo=ppo), 12, whole=False)
        for env in (ENVS["envpool"], ENVS["envpool"] | {"double_buffer": True})
    )
    jax.tree.map(np.testing.assert_array_equal, plain, halved)


def test_one_half_steps_while_the_policy_acts_for_the_other():
    name = f"gymnasium/{EXAMPLE_ENVS}:Walk"
    calls = []
    env = registry.make_halves(EnvConfig(name=name, max_episode_steps=7, options=THREADS), 4)
    for which, half in enumerate(env.halves):
        envs = half.pool(2).envs
        for what in ("send", "recv"):
            listen(envs, what, which, calls)
    from purejaxppo.double_buffer import collect
    from purejaxppo.rollout import init_rollout

    def act(key, carry, obs, start):
        action = jax.random.normal(key, (4, 1))
        return PolicyStep(carry, action, jnp.zeros(4), action)

    def run(key):
        return collect(env, act, init_rollout(env, lambda n: (), key), key, 3)

    jax.block_until_ready(jax.jit(run)(jax.random.key(0)))
    env.close()
    begin = ["send 0"]
    turn = ["send 1", "recv 0", "send 0", "recv 1"]
    end = ["send 1", "recv 0", "recv 1"]
    assert calls == begin + 2 * turn + end


def listen(envs, what, which, calls):
    original = getattr(envs, what)

    def call(*args):
        calls.append(f"{what} {which}")
        return original(*args)

    setattr(envs, what, call)


def test_both_halves_at_once_are_a_step(make_config):
    env = registry.make_halves(EnvConfig(name="envpool/CartPole-v1"), 4)
    plain = registry.make(EnvConfig(name="envpool/CartPole-v1"), 4)
    outs = []
    for e in (env, plain):
        state, obs = jax.jit(e.reset)(jax.random.key(0))
        _, out = jax.jit(e.step)(state, jnp.array([0, 1, 1, 0]))
        outs.append((obs, out))
        e.close()
    jax.tree.map(np.testing.assert_array_equal, *outs)


@pytest.mark.toy
def test_an_odd_number_of_environments_is_refused(make_config):
    with pytest.raises(ValueError, match=r"two halves.*try env.num_envs = "):
        make_config(env=ENVS["envpool"] | {"num_envs": 5, "double_buffer": True})


@pytest.mark.toy
def test_simulators_in_jax_are_refused(make_config):
    with pytest.raises(ValueError, match=r"dummy/constant is none: leave it off"):
        make_parts(make_config(env={"double_buffer": True}))


def test_seeds_under_vmap_are_refused(make_config):
    config = make_config(env=ENVS["envpool"] | {"double_buffer": True})
    with pytest.raises(ValueError, match="cannot be vmapped"):
        jax.vmap(make_train(config))(jax.random.split(jax.random.key(0), 2))


def test_a_failure_in_the_second_half_is_told_as_such():
    name = f"gymnasium/{EXAMPLE_ENVS}:FailsLater"
    config = EnvConfig(name=name, max_episode_steps=20, options=THREADS)
    env = registry.make_halves(config, 2)
    state, _ = jax.jit(env.reset)(jax.random.key(0))

    @jax.jit
    def run(state):
        def step(state, _):
            return env.recv(env.send(state, 1, jnp.zeros(2, jnp.int32)), 1)[0], None

        return jax.lax.scan(step, state, None, length=600)[0]

    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(run(state))
    assert "in the second half" in str(env.failure) and "the 500th step" in str(env.failure)
    env.close()
