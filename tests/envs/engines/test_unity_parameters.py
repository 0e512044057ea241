"""Environment parameters of Unity builds, as a scripted game receives them."""

import os
import struct
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("grpc")
from support.runs import remove_last_checkpoint, train
from support.stepping import KEY, begin
from support.unity import make_player

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.engines.unity import channels
from purejaxppo.envs.engines.unity.parameters import Parameter, parse
from purejaxppo.envs.engines.unity.player import UnityGame, UnityLaunch
from purejaxppo.envs.engines.unity.players import read_layout

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(os.name != "posix", reason="games can only be started on Linux and macOS"),
]
GOAL = "--parameter goal --length 4"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_player(tmp_path_factory.mktemp("unity"))


def received_parameters(record):
    """Return (name, numbers) of each parameter message that the builds received."""
    lines = (line.split() for line in record.with_suffix(".parameters").read_text().splitlines())
    return [(name, [float(word) for word in words]) for name, *words in lines]


def make(path, arguments=GOAL, num_envs=1, evaluation=False, seed=3, options=None, **fields):
    options = {"arguments": arguments, "timeout": 20.0, **(options or {})}
    config = EnvConfig(name=f"unity/{path}", num_envs=num_envs, options=options, **fields)
    return registry.make(config, num_envs, seed=seed, evaluation=evaluation)


def goals(env, episodes=5, progresses=()):
    """Return the goals of episodes. Episode k has the parameters at progresses[k]."""
    step, start = jax.jit(partial(env.step, KEY)), jax.jit(partial(begin, env))
    state, obs = jax.jit(env.reset)(jax.random.key(0))
    found = [np.asarray(obs)[:, 0]]
    for k in range(1, episodes):
        if progresses:
            state = start(state, progresses[k])
        ended = False
        while not ended:
            state, out = step(state, jnp.zeros((env.spec.num_envs, 2)))
            ended = bool(out.terminated.all())
        state, out = step(state, jnp.zeros((env.spec.num_envs, 2)))  # the row with the next start
        found.append(np.asarray(out.obs)[:, 0])
    return np.stack(found)


@pytest.mark.toy
def test_messages_equal_those_of_unitys_parameter_channel():
    name = b"\x07\x00\x00\x00gravity"
    uuid = channels.PARAMETERS.bytes_le
    for parameter, payload in (
        (Parameter("constant", (2.5,)), struct.pack("<if", 0, 2.5)),
        (Parameter("uniform", (1.0, 3.0)), struct.pack("<iiiff", 1, 7, 0, 1.0, 3.0)),
        (Parameter("gaussian", (1.0, 0.5)), struct.pack("<iiiff", 1, 7, 1, 1.0, 0.5)),
        (Parameter("constant", (-4.0,), 0.25), struct.pack("<iiiff", 1, 7, 0, -5.0, -3.0)),
    ):
        body = name + payload
        assert parameter.message("gravity", 7) == uuid + struct.pack("<i", len(body)) + body


@pytest.mark.toy
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "invalid parameter"),
        ("fast", "invalid parameter. Use a number, 'uniform MIN MAX' or"),
        ("uniform 1", "invalid parameter"),
        ("uniform 3 1", "MIN is larger than MAX"),
        ("gaussian 1 -1", "STD is negative"),
        ("gaussian nan 1", "invalid parameter"),
        (1e39, "invalid parameter"),
        ("constant 1", "invalid parameter"),
        ("", "invalid parameter"),
    ],
)
def test_an_invalid_parameter_is_rejected(value, words):
    with pytest.raises(ValueError, match=rf"env\.options\.parameters\.g = .*{words}"):
        parse("env.options.parameters.g", value)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"randomize": {"mass": 0.2}}, r"env.randomize.mass: the parameter has no value"),
        ({"randomize": {"g": 1.5}}, r"env.randomize.g = 1.5: must be at least 0 and below 1"),
        ({"randomize": {"wind": 0.1}}, r"parameters.wind is random already"),
        ({"curriculum": {"g": "1 to 2"}}, r"env.curriculum.g and env.options.parameters.g both"),
        ({"curriculum": {"a": "fast"}}, r"env.curriculum.a = 'fast': must be a ramp"),
    ],
)
def test_an_invalid_config_is_rejected_before_a_build_starts(fields, words):
    options = {"parameters.g": 2.0, "parameters.wind": "gaussian 0 1"}
    with pytest.raises(ValueError, match=words):
        make("no/such/Player", options=options, **fields)


@pytest.mark.toy
def test_other_host_simulators_reject_randomize_and_curriculum():
    with pytest.raises(ValueError, match="needs a simulator in JAX or unity/"):
        registry.make(EnvConfig(name="godot/game", curriculum={"g": "1 to 2"}), 4)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("value", "mean", "spread", "least", "largest"),
    [
        (0.5, 0.5, 0.0, 0.5, 0.5),
        ("uniform 0.25 0.75", 0.5, 0.5 / 12**0.5, 0.25, 0.75),
        ("gaussian 0.5 0.125", 0.5, 0.125, 0.0, 1.0),
    ],
)
def test_each_episode_draws_new_parameters(value, mean, spread, least, largest, path):
    arguments = "--parameter goal --length 1 --agents 16"
    env = make(path, arguments, 16, options={"parameters.goal": value})
    try:
        drawn = goals(env, episodes=12).ravel()
    finally:
        env.close()
    assert len(drawn) == 192 and drawn.min() >= least and drawn.max() <= largest
    np.testing.assert_allclose(drawn.mean(), mean, atol=4 * spread / 192**0.5)
    np.testing.assert_allclose(drawn.std(), spread, rtol=0.25, atol=1e-7)
    assert len(np.unique(drawn)) == (192 if spread else 1)


@pytest.mark.toy
def test_the_range_of_a_randomized_value_is_relative_and_seeds_differ(path, tmp_path):
    record = tmp_path / "heard"
    arguments = f"{GOAL} --record {record}"
    options = {"parameters.goal": 0.4, "max_agents": 1}
    settings = {"options": options, "randomize": {"goal": 0.5}}
    drawn = []
    for seed in (3, 4, 3):
        env = make(path, arguments, 2, seed=seed, **settings)
        try:
            drawn.append(goals(env, episodes=3))
        finally:
            env.close()
        path_of = record.with_suffix(".parameters")
        rows = received_parameters(record)
        path_of.unlink()
        assert {name for name, _ in rows} == {"goal"} and len(rows) == 2  # players
        for _, (_, kind, least, largest) in rows:
            np.testing.assert_allclose((kind, least, largest), (0, 0.2, 0.6), rtol=1e-6)
        assert rows[0][1][0] != rows[1][1][0]  # their draws have different seeds
    np.testing.assert_array_equal(drawn[0], drawn[2])
    assert np.unique(np.stack(drawn[:2])).size == 12


@pytest.mark.toy
def test_a_curriculum_applies_to_episodes_that_start_later(path):
    env = make(path, curriculum={"goal": "0.5 to 0 until 0.8"})
    try:
        found = goals(env, 5, (0.0, 0.0, 0.4, 0.8, 1.0))
    finally:
        env.close()
    np.testing.assert_allclose(found[:, 0], [0.5, 0.5, 0.25, 0.0, 0.0], atol=1e-6)
    env = make(path, curriculum={"goal": "0.5 to 0.25"}, evaluation=True)
    try:  # evaluations use the end of the curriculum
        np.testing.assert_allclose(goals(env, 2), 0.25, atol=1e-6)
    finally:
        env.close()


@pytest.mark.toy
def test_vmapped_seeds_share_the_curriculum(path):
    env = make(path, num_envs=2, curriculum={"goal": "0.5 to 0"})

    def played(key, progress):
        state, obs = env.reset(key)
        state = begin(env, state, progress)
        for _ in range(5):  # four decisions, and the next start
            state, out = env.step(KEY, state, jnp.zeros((2, 2)))
        return obs[:, 0], out.obs[:, 0]

    try:
        first, later = jax.jit(jax.vmap(played, (0, None)))(
            jax.random.split(jax.random.key(0)), 0.5
        )
    finally:
        env.close()
    np.testing.assert_allclose(first, np.full((2, 2), 0.5))
    np.testing.assert_allclose(later, np.full((2, 2), 0.25))


@pytest.mark.toy
def test_a_restarted_build_gets_the_current_values(path, tmp_path, caplog):
    record = tmp_path / "heard"
    env = make(
        path,
        f"{GOAL} --fault die --record {record}",
        curriculum={"goal": "0.5 to 0"},
        options={"restarts": 1, "max_agents": 1},
    )
    try:
        step = jax.jit(partial(env.step, KEY))
        state, _ = jax.jit(env.reset)(jax.random.key(0))
        state = jax.jit(partial(begin, env))(state, 0.5)
        for _ in range(24):
            state, out = step(state, jnp.zeros((1, 2)))
            jax.block_until_ready(out)
        assert "Restarting it (1 of 1" in caplog.text
    finally:
        env.close()
    assert received_parameters(record) == [("goal", [0.5]), ("goal", [0.25]), ("goal", [0.25])]


CONFIG = """
env:
  name: unity/{path}
  num_envs: 2
  options: {{arguments: "--parameter goal --agents 2 --length 3 --record {record}", max_agents: 2}}
  curriculum: {{goal: 0.5 to 0}}
network: {{hidden: [8]}}
ppo: {{rollout_length: 8, num_minibatches: 1, num_epochs: 1}}
eval: {{num_episodes: 0}}
checkpoint: {{interval: 32}}
logging: {{tensorboard: false}}
{more}
total_timesteps: 128
"""


def run(path, tmp_path, *flags, name="whole", more=""):
    """Run the command, and return the values of `goal` that the builds received."""
    record = tmp_path / name
    file = tmp_path / f"{name}.yaml"
    file.write_text(CONFIG.format(path=path, record=record, more=more))
    assert train(file, "--run_dir", str(tmp_path / f"run-{name}"), *flags) == 0
    values = [numbers for _, numbers in received_parameters(record)]
    record.with_suffix(".parameters").unlink()
    return np.array(values)[:, 0]


RAMP = 0.5 * (1 - 12 * np.arange(11) / 128)
"""At updates 0 to 10. Each has 12 of 128 decisions, because every fourth row starts an episode."""


def test_a_resumed_run_continues_with_the_values_of_its_updates(path, tmp_path):
    np.testing.assert_allclose(run(path, tmp_path), RAMP, atol=1e-6)
    assert remove_last_checkpoint(tmp_path / "run-whole") == 8 * 12
    # The build starts with the value of the update at which the run resumes.
    np.testing.assert_allclose(run(path, tmp_path), RAMP[8:], atol=1e-6)


@pytest.mark.full
def test_an_asynchronous_run_uses_the_values_of_its_rollouts(path, tmp_path):
    heard = run(path, tmp_path, name="beside", more="asynchronous: true")
    np.testing.assert_allclose(heard, RAMP, atol=1e-6)


def test_parameters_changed_before_the_first_step_restart_the_episodes(path):
    spec = UnityLaunch(path, timeout=20.0, parameters=(("goal", Parameter("constant", (0.5,))),))
    player = UnityGame(spec, 0)
    try:
        player.connect()
        read_layout(player, {"": 1})
        begun = player.first_output
        player.set_parameters({"goal": Parameter("constant", (0.5,))})
        assert player.first_output is begun is not None
        player.set_parameters({"goal": Parameter("constant", (0.25,))})
        assert player.first_output is None
    finally:
        player.kill()
