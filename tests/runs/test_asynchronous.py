"""Asynchronous training: the lag of the policy, resumes, failures, signals."""

import re
import shutil
import signal
import threading
import time
from functools import partial

import jax
import numpy as np
import pytest
from support.paths import EXAMPLE_ENVS
from support.runs import setup_of

import purejaxppo.cli.train as train_command
from purejaxppo import learner, load_config, make_train, restore
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.interrupts import Interrupt
from purejaxppo.parts import init_program, make_parts, shard_ids
from purejaxppo.runs.asynchronous import AsynchronousTraining, trace_actor, trace_learner
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.rows import read_csv
from purejaxppo.streams import split_keys

# The dtype of EnvPool's bounds differs from that of its values.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered.*:UserWarning")

VECTOR = {"name": "dummy/vector", "num_envs": 4, "max_episode_steps": 7}
SMALL = """
env: {{name: {name}, num_envs: 4, max_episode_steps: 20, options: {options}}}
network: {{hidden: [16]}}
ppo: {{rollout_length: 16, num_minibatches: 2, num_epochs: 2, normalize_reward: true}}
eval: {{num_episodes: 0}}
logging: {{tensorboard: false}}
total_timesteps: {steps}
asynchronous: true
"""


def write(path, name="envpool/CartPole-v1", steps=640, **options):
    path.write_text(SMALL.format(name=name, steps=steps, options=options))
    return path


def train(config, run_dir, *flags):
    return train_command.main(["--config", str(config), "--run_dir", str(run_dir), *flags])


def agent_of(run_dir):
    return jax.device_get(restore(run_dir, "last").state.agent)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with small.yaml and `run`, a run of 10 updates. Tests must not change it."""
    folder = tmp_path_factory.mktemp("asynchronous")
    config = write(folder / "small.yaml")
    assert train(config, folder / "run", "--eval.num_episodes", "2") == 0
    return folder


def test_a_run_reports_its_lag(finished):
    rows = read_csv(finished / "run" / "metrics.csv")
    assert [row["charts/lag"] for row in rows] == [0] + 9 * [1]
    assert all(np.isfinite(row["losses/policy_loss"]) for row in rows)


@pytest.mark.full
def test_a_run_does_not_depend_on_timing(finished, tmp_path, monkeypatch):
    make = AsynchronousTraining.__init__

    def slowed(training, *args):
        make(training, *args)
        learn, rng = training._learn, np.random.default_rng(0)
        training._learn = lambda *args: (time.sleep(0.05 * rng.random()), learn(*args))[1]

    monkeypatch.setattr(AsynchronousTraining, "__init__", slowed)
    assert train(finished / "small.yaml", tmp_path / "two", "--eval.num_episodes", "2") == 0
    jax.tree.map(
        np.testing.assert_array_equal, agent_of(finished / "run"), agent_of(tmp_path / "two")
    )


def test_rollouts_come_from_a_policy_one_update_older(finished):
    """Write the loop by hand: rollout k + 1 is collected before update k."""
    config = load_config(finished / "small.yaml")
    parts, hp = make_parts(config), make_hyperparams(config)
    collect, learn = (jax.jit(partial(f, parts)) for f in (learner.collect, learner.learn))
    state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
    state = state.replace(
        rollout=jax.tree.map(lambda x: x[0], state.rollout),
        key=state.key[0],
    )
    keys = split_keys(state.key)
    rollout = collect(state.agent, state.rollout, keys.act, 0.0)
    for update in range(10):
        keys = split_keys(keys.next)
        next_rollout = collect(state.agent, rollout.end, keys.act, (update + 1) / 10)
        state, metrics = learn(state, rollout, hp)
        rollout = next_rollout
    jax.block_until_ready((state, rollout))  # a pending rollout still needs its simulator
    parts.env.close()
    assert metrics.losses.approx_kl >= 0
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        jax.device_get(state.agent),
        agent_of(finished / "run"),
    )


def test_actor_and_learner_are_each_lowered_for_their_own_platform(tmp_path):
    """Convolutions are matrix products on a CPU. Here the learner is lowered for a GPU."""
    config = load_config(write(tmp_path / "small.yaml", f"gymnasium/{EXAMPLE_ENVS}:Screen"))
    programs = Programs(setup_of(config))
    programs.shards.platform = "gpu"
    state = programs.init()
    actor = trace_actor(programs.parts, state, jax.devices("cpu")[0])
    learner = trace_learner(programs.parts, state, actor.out_info[0], programs.hp)
    texts = actor.lower().as_text(), learner.lower(lowering_platforms=("cuda",)).as_text()
    programs.close()
    assert ["stablehlo.convolution" in text for text in texts] == [False, True]


def test_a_run_resumes_with_its_agent(finished, tmp_path, capsys):
    shutil.copytree(finished / "run", tmp_path / "run")
    before = restore(tmp_path / "run", "last")
    flags = ("--total_timesteps", "1280")
    assert train(finished / "small.yaml", tmp_path / "run", *flags) == 0
    assert "The simulator starts new episodes" in capsys.readouterr().out
    after = restore(tmp_path / "run", "last")
    assert after.env_steps > before.env_steps > 500
    lags = [row["charts/lag"] for row in read_csv(tmp_path / "run" / "metrics.csv")]
    assert lags == 2 * ([0] + 9 * [1])  # the first rollout after a resume has the newest policy


def test_a_failing_environment_is_named_and_the_run_saved(tmp_path, capsys):
    config = write(tmp_path / "small.yaml", f"gymnasium/{EXAMPLE_ENVS}:FailsLater", 100_000)
    assert train(config, tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert "the 500th step" in error and "in step" in error and "environment" in error
    saved = int(re.search(r"Saved at ([\d,]+) steps", error)[1].replace(",", ""))
    assert 0 < saved < 4 * 500
    assert restore(tmp_path / "run", "last").env_steps == saved


def test_an_interrupt_saves_the_run_and_stops_it(tmp_path, capsys, monkeypatch):
    config = write(tmp_path / "small.yaml", steps=10_000_000)
    interrupts = []
    monkeypatch.setattr(Interrupt, "__init__", lambda self: _start(self, interrupts))
    code = train(config, tmp_path / "run")
    assert code == 128 + signal.SIGTERM
    assert "SIGTERM: saved at" in capsys.readouterr().out
    assert restore(tmp_path / "run", "last").env_steps > 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("actor")]


def _start(interrupt, interrupts):
    interrupt.signal, interrupt._old = None, {}
    interrupts.append(interrupt)
    threading.Timer(1.0, lambda: setattr(interrupt, "signal", "SIGTERM")).start()


@pytest.mark.toy
def test_jax_simulators_are_rejected(tmp_path, capsys):
    config = write(tmp_path / "small.yaml", "dummy/vector")
    assert train(config, tmp_path / "run") == 2
    assert "dummy/vector runs in JAX. Use asynchronous = false." in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.toy
def test_make_train_rejects_asynchronous_training(tmp_path):
    with pytest.raises(ValueError, match="asynchronous = true is not supported by make_train"):
        make_train(load_config(write(tmp_path / "small.yaml")))


def test_vtrace_equals_gae_only_for_the_newest_policy(make_config):
    """The ratios are 1 for the policy's own rollout. With an older policy, advantages differ."""
    configs = [make_config(env=VECTOR, ppo={"advantage": a}) for a in ("gae", "vtrace")]
    both, hp = [make_parts(config) for config in configs], make_hyperparams(configs[0])
    state = jax.jit(partial(learner.init_state, both[0]))(jax.random.key(0), np.int32(0))
    collect = jax.jit(partial(learner.collect, both[0]))
    learn = [jax.jit(partial(learner.learn, parts)) for parts in both]
    rollout = collect(state.agent, state.rollout, split_keys(state.key).act, 0.0)
    one, other = (step(state, rollout, hp)[0] for step in learn)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        one.agent.params,
        other.agent.params,
    )
    rollout = collect(state.agent, one.rollout, split_keys(one.key).act, 0.0)
    old = [step(one, rollout, hp)[1] for step in learn]
    assert abs(old[0].losses.value_loss - old[1].losses.value_loss) > 1e-6
    assert np.isfinite(old[1].losses.value_loss)
