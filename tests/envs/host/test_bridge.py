"""Host simulators: vmapped seeds, whole games, containment, determinism, failures."""

import contextlib
import functools
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import stepping
from support.godot import GAME
from support.paths import EXAMPLE_ENVS, EXAMPLE_WORLDS

import purejaxppo.cli.evaluate as evaluate_command
import purejaxppo.cli.train as train_command
from purejaxppo import load_config, make_train, restore
from purejaxppo.agents.policy import Policy
from purejaxppo.config.files import compare
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import families, registry
from purejaxppo.envs.base import Env
from purejaxppo.envs.host import envpool
from purejaxppo.envs.host.bridge import HostEnv
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.envs.step import EnvStep
from purejaxppo.parallel.shards import Shards
from purejaxppo.rollout import collect, init_rollout
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.evaluation import Evaluator, evaluate, run_episodes
from purejaxppo.runs.recording import record_states
from purejaxppo.runs.rows import read_csv
from purejaxppo.setup import resolve
from purejaxppo.spaces import Box, Discrete
from purejaxppo.types import AgentState, PolicyStep

# The dtype of EnvPool's bounds differs from that of its values.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered.*:UserWarning")

STEPS = 60


def actions_for(num_envs, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (STEPS, num_envs)).astype(np.int32)


def play(env, actions):
    """Return a function: key, actions -> first obs and the EnvSteps [T, N, ...]."""

    def run(key, actions):
        state, obs = env.reset(key)
        return obs, stepping.play(env, state, actions)[1]

    return run


@pytest.mark.parametrize("seeds", [pytest.param(1, marks=pytest.mark.full), 3])
def test_vmapped_seeds_step_together_in_one_pool(seeds):
    import envpool

    num_envs = 2
    config = EnvConfig(name="envpool/CartPole-v1", max_episode_steps=20)
    env = registry.make(config, num_envs, seed=0)
    actions = actions_for(seeds * num_envs)
    by_seed = actions.reshape(STEPS, seeds, num_envs).swapaxes(0, 1)
    keys = jax.random.split(jax.random.key(0), seeds)
    first, out = jax.device_get(jax.jit(jax.vmap(play(env, None)))(keys, jnp.asarray(by_seed)))
    assert max(env._pools) == seeds * num_envs
    env.close()

    by_hand = envpool.make(
        "CartPole-v1",
        env_type="gymnasium",
        num_envs=seeds * num_envs,
        env_seed=list(range(seeds * num_envs)),
        max_episode_steps=20,
    )
    obs, _ = by_hand.reset()
    np.testing.assert_array_equal(first.reshape(obs.shape), obs)
    for t in range(STEPS):
        obs, reward, terminated, truncated, _ = by_hand.step(actions[t])
        np.testing.assert_array_equal(out.obs[:, t].reshape(obs.shape), obs)
        np.testing.assert_array_equal(out.reward[:, t].ravel(), reward)
        np.testing.assert_array_equal(out.terminated[:, t].ravel(), terminated & ~truncated)
        np.testing.assert_array_equal(out.truncated[:, t].ravel(), truncated)
    assert out.terminated.any() and out.truncated.any()


def test_nested_vmaps_share_one_pool():
    env = registry.make(EnvConfig(name="envpool/CartPole-v1"), 2, seed=0)
    keys = jax.random.split(jax.random.key(0), (3, 4))
    actions = jnp.zeros((STEPS, 2), jnp.int32)
    nested = jax.vmap(jax.vmap(play(env, None), (0, None)), (0, None))
    first, out = jax.jit(nested)(keys, actions)
    assert out.obs.shape == (3, 4, STEPS, 2, 4)
    assert max(env._pools) == 24
    assert len(np.unique(np.asarray(first).reshape(-1, 4), axis=0)) == 24
    env.close()


def test_workers_serve_vmapped_seeds_with_one_call_per_step():
    env = registry.make(EnvConfig(name="gymnasium/CartPole-v1", options={"workers": "thread"}), 2)
    keys = jax.random.split(jax.random.key(0), 3)
    actions = jnp.zeros((STEPS, 2), jnp.int32)
    first, out = jax.jit(jax.vmap(play(env, None), (0, None)))(keys, actions)
    assert out.obs.shape == (3, STEPS, 2, 4) and max(env._pools) == 6
    assert len(np.unique(np.asarray(first).reshape(-1, 4), axis=0)) == 6
    env.close()


def test_a_vmap_over_hyperparameters_only_is_rejected():
    env = registry.make(EnvConfig(name="envpool/CartPole-v1"), 2)
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 3))  # a pool of this size exists
    with pytest.raises(ValueError, match="over hyperparams alone does not work"):
        jax.vmap(env.step, (None, None, 0))(stepping.KEY, state, jnp.zeros((3, 2), jnp.int32))
    env.close()


def test_make_train_trains_several_seeds_over_one_pool():
    overrides = {
        "env.name": "envpool/CartPole-v1",
        "env.num_envs": 4,
        "network.hidden": (8,),
        "total_timesteps": 512,
    }
    config = load_config("cartpole.yaml", overrides)
    result = jax.jit(jax.vmap(make_train(config)))(jax.random.split(jax.random.key(0), 3))
    assert result.curves.env_steps.shape[0] == 3
    assert np.isfinite(np.asarray(result.curves.losses.policy_loss)).all()
    weights = [np.asarray(x) for x in jax.tree.leaves(result.agent.params)]
    assert any(not np.allclose(w[0], w[1]) for w in weights)


def breakout(num_envs, **options):
    config = EnvConfig(name="envpool/Breakout-v5", options=options, max_episode_steps=400)
    return registry.make(config, num_envs, seed=5)


def test_returns_cover_whole_games_with_unclipped_rewards():
    import envpool

    num_envs, steps = 3, 700
    env = breakout(num_envs, episodic_life=True, reward_clip=True)
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 4, (steps, num_envs)).astype(np.int32)

    def act(key, carry, obs, start):
        return PolicyStep(carry, None, jnp.zeros(num_envs), None)

    def run(key):
        state = init_rollout(env, lambda batch: (), key)
        scripted = Scripted(env, jnp.asarray(actions))
        state = state.replace(env=(state.env, jnp.zeros((), jnp.int32)))
        return collect(scripted, act, state, key, steps)

    rollout = jax.device_get(jax.jit(run)(jax.random.key(0)))
    env.close()
    rows, episodes = rollout.transitions, rollout.episodes
    done = rows.terminated | rows.truncated
    assert (
        done.sum() > episodes.count > 0
    )  # losing a life ends an episode of training, but not a game
    np.testing.assert_array_equal(rows.valid[1:], ~done[:-1])
    assert np.all(rows.reward[~rows.valid] == 0)

    by_hand = envpool.make(
        "Breakout-v5",
        env_type="gymnasium",
        num_envs=num_envs,
        env_seed=[5 * 1_000_003 + i for i in range(num_envs)],
        episodic_life=True,
        reward_clip=True,
        max_episode_steps=400,
    )
    by_hand.reset()
    running, games = np.zeros(num_envs), []
    for t in range(steps):
        _, _, _, truncated, info = by_hand.step(actions[t])
        running += np.where(rows.valid[t], info["reward"], 0.0)
        over = (info["terminated"] > 0) | truncated
        games += running[over & rows.valid[t]].tolist()
        running[over] = 0.0
    assert len(games) == episodes.count
    np.testing.assert_allclose(sum(games), episodes.return_sum)


class Scripted(Env):
    """An environment that replaces the actions of the policy by recorded ones."""

    def __init__(self, env, actions):
        self.env, self.actions, self.spec = env, actions, env.spec

    def step(self, key, state, action):
        inner, t = state
        inner, out = self.env.step(key, inner, self.actions[t])
        return (inner, t + 1), out


class FakePool:
    """Two environments that count. The second returns NaN from its third step on and ends at 6."""

    failure = None

    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.zeros((2, 1))

    def step(self, token, action):
        token = token + 1
        obs = jnp.stack([token, token]).astype(jnp.float32)[:, None]
        obs = obs.at[1].set(jnp.where((token >= 3) & (token <= 6), jnp.nan, obs[1]))
        over = jnp.array([False, True]) & (token == 6)
        return token, EnvStep(obs, jnp.ones(2), over, jnp.zeros(2, bool))

    def close(self):
        pass


def test_a_nan_counts_once_and_rows_are_invalid_until_the_next_episode():
    env = HostEnv(
        lambda count, update: FakePool(), Box((1,)), Discrete(2), num_envs=2, max_episode_steps=100
    )
    _, out = jax.jit(play(env, None))(jax.random.key(0), jnp.zeros((10, 2), jnp.int32))
    env.close()
    assert np.isfinite(out.obs).all() and np.isfinite(out.reward).all()
    np.testing.assert_array_equal(out.valid[:, 0], np.ones(10, bool))
    # Steps 1 2 count, 3 diverges, 4 5 6 are skipped, 7 starts the new episode, 8 9 10 count.
    np.testing.assert_array_equal(out.valid[:, 1], [1, 1, 0, 0, 0, 0, 0, 1, 1, 1])
    assert not out.terminated.any() and not out.truncated.any()
    np.testing.assert_array_equal(np.flatnonzero(out.diverged[:, 1]), [2])
    np.testing.assert_array_equal(out.reward[:, 1], [1, 1, 0, 0, 0, 0, 0, 1, 1, 1])


def test_an_evaluation_of_a_task_without_a_time_limit_ends_at_max_steps():
    # Environment 1 diverges at its third step; environment 0 never ends.
    env = HostEnv(
        lambda count, update: FakePool(), Box((1,)), Discrete(2), num_envs=2, max_episode_steps=0
    )

    def act(key, carry, obs, start):
        action = jnp.zeros(2, jnp.int32)
        return PolicyStep(carry, action, jnp.zeros(2), action)

    def run(key):
        return run_episodes(env, env.reset(key), act, lambda batch: (), key[None], max_steps=8)

    returns, lengths, cut, _ = jax.jit(run)(jax.random.key(0))
    env.close()
    assert lengths.tolist() == [8, 2] and returns[0] == 8 and np.isnan(returns[1])
    assert cut.tolist() == [True, False]


def test_a_task_that_terminates_needs_no_time_limit():
    env = registry.make(EnvConfig(name="envpool/CliffWalking-v1"), 2)
    assert env.spec.max_episode_steps == 0
    overrides = {
        "env.name": "gymnasium/Blackjack-v1",
        "env.num_envs": 4,
        "env.options": {"workers": "thread"},
        "network.hidden": (8,),
        "ppo.rollout_length": 8,
        "total_timesteps": 64,
    }
    config = load_config("cartpole.yaml", overrides)
    trainer = make_train(config)
    result = jax.jit(trainer)(jax.random.key(0))
    trainer.close()
    assert np.isfinite(result.curves.episodic_return).all()
    played = evaluate(Agent(config, result.agent), 5)
    assert set(played.returns) <= {-1.0, 0.0, 1.0, 1.5} and (played.lengths < 20).all()


def walker(num_envs, num_seeds=1):
    """Return a config of walks of 1 to 30 steps with stochastic actions, and its policy."""
    overrides = {
        "env.name": f"gymnasium/{EXAMPLE_ENVS}:Walk",
        "env.num_envs": num_envs,
        "env.max_episode_steps": 30,
        "env.options": {"workers": "thread", "num_workers": 1},
        "eval.stochastic": True,
        "network.hidden": (8,),
        "ppo.rollout_length": 8,
        "ppo.num_minibatches": 1,
        "num_seeds": num_seeds,
    }
    config = load_config("cartpole.yaml", overrides)
    return config, Policy(config, registry.make(config.env, num_envs).spec)


def test_evaluation_episodes_do_not_depend_on_the_number_of_simulators():
    played = []
    for num_envs in (2, 3, 8):
        config, policy = walker(num_envs)
        agent = Agent(config, jax.jit(policy.init)(jax.random.key(1)))
        played.append(evaluate(agent, 7, seed=4))
        np.testing.assert_array_equal(played[-1].lengths, played[0].lengths)
        np.testing.assert_allclose(played[-1].returns, played[0].returns, rtol=1e-5)
    assert len(np.unique(played[0].returns)) == 7
    assert played[0].lengths.max() == 30 > played[0].lengths.min()


def test_each_seed_of_a_batch_is_evaluated_as_if_alone():
    config, policy = walker(2, num_seeds=2)
    states = jax.vmap(policy.init)(jax.random.split(jax.random.key(1), 2))
    keys = jax.random.split(jax.random.key(2), 2)

    def play(states, keys, num_members):
        evaluator = Evaluator(resolve(config), policy, 3, shards=Shards(1, num_members=num_members))
        outcome = jax.device_get(jax.jit(evaluator.evaluate)(states, keys))
        evaluator.close()
        return outcome

    both = play(states, keys, 2)
    for i in range(2):
        alone = play(jax.tree.map(lambda x, i=i: x[i], states), keys[i], 0)
        np.testing.assert_array_equal(both.lengths[i], alone.lengths)
        np.testing.assert_allclose(both.returns[i], alone.returns, rtol=1e-5)


@pytest.mark.toy
@pytest.mark.parametrize(
    "name",
    [
        "envpool/CartPole-v1",
        "gymnasium/CartPole-v1",
        f"pettingzoo/{EXAMPLE_WORLDS}:Hand",
        f"godot/{GAME}",
    ],
)
def test_an_evaluation_has_no_more_simulators_than_training(name):
    options = {"workers": "thread"} if name.startswith(("gymnasium", "pettingzoo")) else {}
    config = EnvConfig(name=name, num_envs=6, options=options)
    for episodes in (3, 32):  # an environment has three agents, a game two
        env = registry.make(config, episodes, evaluation=True)
        env.close()
        assert env.spec.num_envs == (4 if "godot" in name and episodes == 3 else min(episodes, 6))


SMALL = """
env: {{name: {name}, num_envs: 4, options: {options}}}
network: {{hidden: [8]}}
ppo: {{rollout_length: 32, num_minibatches: 2, num_epochs: 2}}
eval: {{num_episodes: {episodes}}}
logging: {{tensorboard: false}}
total_timesteps: {steps}
"""


def write(path, name, steps=1024, episodes=0, **options):
    text = SMALL.format(name=name, steps=steps, episodes=episodes, options=options)
    path.write_text(text)
    return path


def train(config, run_dir, *flags):
    return train_command.main(["--config", str(config), "--run_dir", str(run_dir), *flags])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with small.yaml and `run`, of EnvPool's CartPole. Tests must not change it."""
    folder = tmp_path_factory.mktemp("finished")
    config = write(folder / "small.yaml", "envpool/CartPole-v1", episodes=2)
    assert train(config, folder / "run") == 0
    return folder


def curve(run_dir):
    """Return the rows of metrics.csv without the columns that depend on time."""
    drop = ("seconds", "charts/SPS")
    rows = read_csv(run_dir / "metrics.csv")
    return [{k: v for k, v in row.items() if k not in drop} for row in rows]


@pytest.mark.full
def test_the_same_seed_gives_the_same_curve(finished, tmp_path):
    assert train(finished / "small.yaml", tmp_path / "again") == 0
    assert curve(tmp_path / "again") == curve(finished / "run")


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [pytest.param("envpool/Hopper-v5", marks=pytest.mark.slow), "gymnasium/CartPole-v1"],
)
def test_the_same_seed_gives_the_same_curve_with_robots_and_workers(name, tmp_path):
    config = write(tmp_path / "small.yaml", name, episodes=2)
    for run in ("one", "two"):
        assert train(config, tmp_path / run) == 0
    assert curve(tmp_path / "one") == curve(tmp_path / "two")


@pytest.mark.full
def test_a_run_resumes_with_its_agent_and_reports_that_the_simulator_restarts(
    finished, tmp_path, capsys
):
    config = finished / "small.yaml"
    shutil.copytree(finished / "run", tmp_path / "run")
    before = restore(tmp_path / "run", "last")
    assert train(config, tmp_path / "run", "--total_timesteps", "2048") == 0
    assert "The simulator starts new episodes" in capsys.readouterr().out
    after = restore(tmp_path / "run", "last")
    assert after.env_steps > before.env_steps > 900
    result = evaluate(after, 7)
    assert result.returns.shape == (7,) and (result.lengths == result.returns).all()


@pytest.mark.parametrize("name", ["envpool/CartPole-v1", "gymnasium/CartPole-v1"])
def test_a_resumed_run_does_not_see_the_same_starts_again(name):
    options = {"workers": "thread"} if "gymnasium" in name else {}
    config = EnvConfig(name=name, num_envs=4, options=options)
    starts = {}
    for update in (0, 7, 8, 7):
        env = registry.make(config, 4, seed=1)
        env.continue_at(update, update / 10)
        obs = np.asarray(jax.jit(env.reset)(jax.random.key(1))[1])
        env.close()
        assert update not in starts or (starts[update] == obs).all()
        starts[update] = obs
    drawn = np.concatenate(list(starts.values()))
    assert len(np.unique(drawn, axis=0)) == 12


def test_a_failing_environment_is_reported_with_its_traceback_and_the_run_is_saved(
    tmp_path, capsys
):
    name = f"gymnasium/{EXAMPLE_ENVS}:FailsLater"
    config = write(tmp_path / "small.yaml", name, steps=100_000)
    assert train(config, tmp_path / "run", "--env.max_episode_steps", "20") == 2
    error = capsys.readouterr().err
    assert "the 500th step" in error and "in step" in error and "environment" in error
    saved = int(re.search(r"Saved at ([\d,]+) steps", error)[1].replace(",", ""))
    assert 0 < saved < 4 * 500
    assert restore(tmp_path / "run", "last").env_steps == saved


def test_an_observation_outside_its_space_saves_and_ends_the_run_with_one_error(tmp_path, capsys):
    name = f"gymnasium/{EXAMPLE_ENVS}:BeyondLater"
    config = write(tmp_path / "small.yaml", name, steps=100_000)
    assert train(config, tmp_path / "run", "--env.max_episode_steps", "20") == 2
    error, saved = capsys.readouterr().err.splitlines()
    assert error == (
        f"error: {name}: observation.side = 0.5, but its space (Discrete(2)) contains integers "
        f"from 0 to 1. Return integers in this range, or change the space."
    )
    steps = int(re.match(r"Saved at ([\d,]+) steps", saved)[1].replace(",", ""))
    assert 0 < restore(tmp_path / "run", "last").env_steps == steps


@pytest.mark.full
@pytest.mark.xdist_group("processes")
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ctrl_c_in_the_middle_of_a_step_saves_and_leaves_no_process(tmp_path):
    name = f"gymnasium/{EXAMPLE_ENVS}:Sleepy"
    config = write(tmp_path / "small.yaml", name, steps=100_000, num_workers=2)
    command = [sys.executable, "-m", "purejaxppo.train", "--config", str(config)]
    flags = ["--run_dir", str(tmp_path / "run"), "--env.max_episode_steps", "20"]
    process = subprocess.Popen([*command, *flags], start_new_session=True)
    metrics = tmp_path / "run" / "metrics.csv"
    deadline = time.monotonic() + 120
    while not (metrics.is_file() and len(metrics.read_text().splitlines()) > 1):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # like a terminal: workers get it as well
    assert process.wait(60) == 130
    assert restore(tmp_path / "run", "last").env_steps > 0
    groups = [text.rpartition(")")[2].split() for text in stats()]
    assert not [group for group in groups if group[2] == str(process.pid) and group[0] != "Z"]


def stats():
    """Yield the state of every process on Linux."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield path.read_text()


@pytest.mark.parametrize(("fault", "words"), [("init", "no such asset"), ("reset", "is empty")])
def test_an_environment_that_cannot_start_is_reported_with_its_own_message(
    fault, words, tmp_path, capsys
):
    name = f"gymnasium/{EXAMPLE_ENVS}:Faulty"
    config = write(tmp_path / "small.yaml", name, fault=fault, culprit=-1)
    if fault == "reset":
        config = write(tmp_path / "small.yaml", f"gymnasium/{EXAMPLE_ENVS}:NoScene")
    assert train(config, tmp_path / "run", "--env.max_episode_steps", "20") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: gymnasium/") and words in error
    assert "JaxRuntimeError" not in error


@pytest.mark.full
def test_an_environment_that_fails_in_evaluation_is_reported(tmp_path, capsys):
    config = write(tmp_path / "small.yaml", f"gymnasium/{EXAMPLE_ENVS}:FailsLater", steps=128)
    flags = ("--env.max_episode_steps", "20", "--eval.num_episodes", "0")
    assert train(config, tmp_path / "run", *flags) == 0
    file = tmp_path / "run" / "config.yaml"
    file.write_text(file.read_text().replace("FailsLater", "NoScene"))
    assert evaluate_command.main(["--run", str(tmp_path / "run"), "--episodes", "2"]) == 2
    error = capsys.readouterr().err
    assert "the scene is empty" in error and "JaxRuntimeError" not in error


def test_a_game_with_lives_is_evaluated_to_its_end(key):
    config = load_config(
        "breakout.yaml",
        {"network.hidden": (8,), "env.options": {"episodic_life": True, "reward_clip": True}},
    )
    spec = registry.make(config.env, 1).spec
    policy = Policy(config, spec)
    evaluator = Evaluator(resolve(config), policy, 2)

    def act(agent, key, carry, obs, start):  # moves and never serves
        action = 2 + jax.random.randint(key[0], start.shape, 0, 2)
        return PolicyStep(carry, action, jnp.zeros(start.shape), action)

    evaluator.act = act
    lengths = jax.jit(evaluator.evaluate)(jax.jit(policy.init)(key), key).lengths
    evaluator.close()
    assert np.all(lengths > 100) and np.all(lengths < 2000)  # five lives; the limit is 27,000


def test_flags_are_added_to_the_options_of_a_config():
    def options(*words):
        return train_command.parse(["--config", "pong.yaml", *words]).config.env.options

    lives = {"episodic_life": True, "reward_clip": True}
    assert options("--env.options", "num_threads", "2") == {**lives, "num_threads": 2}
    assert options("--env.options", "reward_clip", "False") == {**lives, "reward_clip": False}
    assert options("--env.options") == {}


@pytest.mark.toy
def test_speed_options_may_change_on_resume():
    old = load_config("pong.yaml")
    new = load_config("pong.yaml", {"env.options": {**old.env.options, "num_threads": 2}})
    assert compare(old, new, registry.free_options(new.env)) == ([], [])
    other = load_config("pong.yaml", {"env.options": {**old.env.options, "noop_max": 1}})
    assert compare(old, other, registry.free_options(new.env)) == (["env.options"], [])


@pytest.mark.toy
@pytest.mark.parametrize("name", [name for name in families.declared() if name != "envpool"])
def test_free_options_are_options_of_their_family(name):
    family = families.load(name)
    assert set(family.free_options) <= set(family.options)


@pytest.mark.toy
@pytest.mark.parametrize("name", ["jax/walk.py:Walk", "dummy/vector"])
def test_an_option_of_a_task_is_not_free(name):
    assert not registry.free_options(EnvConfig(name=name, options={"timeout": 4.0}))


REFUSED = {
    "envpool/Hoper-v5": "Did you mean 'envpool/Hopper-v5'",
    "envpool/Go9x9-v1": "the task has 2 players",
    "gymnasium/Hoper-v5": "Did you mean 'Hopper-v5'",
    "gymnasium/no_such_package:Env-v0": "no_such_package",
    "gymnasium/no_such_file.py:Env": "no_such_file.py",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unknown_environment_gets_a_one_sentence_error(name, tmp_path, capsys):
    config = write(tmp_path / "small.yaml", name)
    assert train(config, tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert REFUSED[name] in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


OPTIONS = [
    ("envpool/Pong-v5", {"frame_skp": 2}, "Did you mean 'frame_skip'"),
    ("envpool/Pong-v5", {"episodic_life": 3}, "wrong type. The default of envpool"),
    ("envpool/Pong-v5", {"episodic_life": "yes"}, "episodic_life = 'yes': wrong type"),
    ("envpool/Pong-v5", {"frame_skip": 2.5}, "frame_skip = 2.5: wrong type"),
    ("envpool/Pong-v5", {"frame_skip": [4]}, "wrong type"),
    ("envpool/CartPole-v1", {"num_threads": -1}, "must be at least 0"),
    (
        "gymnasium/CartPole-v1",
        {"workers": "fibre"},
        "must be one of process, thread",
    ),
    (
        "gymnasium/CartPole-v1",
        {"wrappers": "FrameStackObservation"},
        "FrameStackObservation failed with no arguments: ",
    ),
    ("gymnasium/CartPole-v1", {"timeout": -1.0}, "must be above 0"),
    ("gymnasium/CartPole-v1", {"colour": 1}, "colour"),
]


@pytest.mark.parametrize(("name", "options", "words"), OPTIONS)
def test_unknown_or_wrong_options_are_rejected(name, options, words):
    with pytest.raises(ValueError, match=words):
        registry.make(EnvConfig(name=name, options=options), 2)


def test_options_reach_the_simulator():
    pong = registry.make(EnvConfig(name="envpool/Pong-v5", options={"stack_num": 2}), 2)
    assert pong.spec.observation.shape == (2, 84, 84)
    full = EnvConfig(name="envpool/Pong-v5", options={"full_action_space": True})
    assert registry.make(full, 2).spec.action == Discrete(18)
    wrapped = {"wrappers": "FlattenObservation", "workers": "thread"}
    grid = EnvConfig(name="gymnasium/FrozenLake-v1", options={**wrapped, "map_name": "8x8"})
    assert registry.make(grid, 2).spec.observation.shape == (64,)


PIXELS = {
    "envpool/Hopper-v5": {
        "from_pixels": True,
        "render_width": 64,
        "render_height": 64,
        "frame_stack": 2,
    },
    "gymnasium/Hopper-v5": {"pixels": 64, "frame_stack": 2},
}


LOOK = """
import sys, json, jax, jax.numpy as jnp, numpy as np
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
env = registry.make(EnvConfig(name=sys.argv[1], options=json.loads(sys.argv[2])), 2)
state, first = jax.jit(env.reset)(jax.random.key(0))
step = lambda state, action: env.step(jax.random.key(0), state, action)
_, out = jax.jit(lambda state: jax.lax.scan(step, state, jnp.zeros((4, 2, 3))))(state)
np.savez(sys.argv[3], obs=np.concatenate([first[None], out.obs]), shape=env.spec.observation.shape)
env.close()
"""


def test_a_pool_that_renders_keeps_the_size_of_image_observations(monkeypatch):
    pools = []
    monkeypatch.setattr(envpool, "_check_opengl", list)
    monkeypatch.setattr(envpool, "EnvPool", lambda name, options, *rest: pools.append(options))
    for pixels in (PIXELS["envpool/Hopper-v5"], {}):
        env = registry.make(EnvConfig(name="envpool/Hopper-v5", options=pixels), 1, render=True)
        env.pool(1)
    assert [(x["render_mode"], x["render_width"]) for x in pools] == [
        ("rgb_array", 64),
        ("rgb_array", 640),
    ]


@pytest.mark.full
@pytest.mark.parametrize("name", PIXELS)
def test_mujoco_gives_stacked_images_without_a_display(name, tmp_path):
    # In a separate process, because the drivers of several libraries conflict.
    environ = {key: value for key, value in os.environ.items() if key != "DISPLAY"}
    file = tmp_path / "seen.npz"
    arguments = [name, json.dumps(PIXELS[name]), str(file)]
    subprocess.run([sys.executable, "-c", LOOK, *arguments], check=True, env=environ, timeout=120)
    seen = np.load(file)
    assert seen["obs"].dtype == np.uint8 and sorted(seen["shape"]) == [6, 64, 64]
    pictures = np.moveaxis(seen["obs"], list(seen["shape"]).index(6) + 2, -1)
    np.testing.assert_array_equal(pictures[0, ..., :3], pictures[0, ..., 3:])
    np.testing.assert_array_equal(pictures[1:, ..., :3], pictures[:-1, ..., 3:])
    assert pictures.std() > 5 and np.any(pictures[1:] != pictures[:-1])


def test_shards_of_a_host_simulator_are_rejected(tmp_path, capsys):
    config = write(tmp_path / "small.yaml", "envpool/CartPole-v1")
    assert train(config, tmp_path / "run", "--num_shards", "2") == 2
    assert "or use num_shards = 0 in a new run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["envpool/Pong-v5", pytest.param("gymnasium/Hopper-v5", marks=pytest.mark.full)]
)
def test_an_episode_can_be_recorded_without_a_display(name, make_config, key, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    agent = Agent(make_config(env={"name": name, "max_episode_steps": 12}), AgentState({}, None))
    agent = replace(agent, state=jax.jit(agent.policy.init)(key))
    task, pictures, rewards = record_states(agent)
    assert len(pictures) == len(rewards) + 1 <= 13
    frames = list(task.draw(pictures, height=120, width=160))
    assert frames[0].shape == (120, 160, 3)
    assert frames[0].std() > 5 and np.any(frames[0] != frames[-1])


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("rgb", [[0, 0], [1, 2], [2, 4], [3, 6]]),
        ("rgba", [[0, 0], [1, 2], [2, 4], [3, 6]]),
        ("grey", [[0, 0], [1, 1], [2, 2], [3, 3]]),
        ("sometimes", [[1, 2], [1, 2], [2, 4], [2, 4]]),  # nothing at the start and at the end
        ("float", r"render returned float64 of shape \[4, 6, 3\]\. Return uint8 \[height, width"),
        ("fails", r"render: line \d+ of .* raises RuntimeError: no camera"),
    ],
)
def test_frames_of_any_form_are_recorded_as_rgb_or_rejected(form, expected, make_config, key):
    env = {"name": f"gymnasium/{EXAMPLE_ENVS}:Rendered", "options": {"form": form}}
    agent = Agent(make_config(env=env), AgentState({}, None))
    agent = replace(agent, state=jax.jit(agent.policy.init)(key))
    if isinstance(expected, str):
        with pytest.raises(SimulatorError, match=expected) as caught:
            record_states(agent)
        assert "\n" not in str(caught.value)
        return
    task, states, _ = record_states(agent)
    frames = [frame[2, 3].tolist() for frame in task.draw(states, height=4, width=6)]
    assert [[red, green] for red, green, _ in frames] == expected
    assert all(green == blue for _, green, blue in frames)


def rewards_of(env, key):
    """Return the rewards [T, N] of 50 steps to the left."""

    def step(state, _):
        state, out = env.step(key, state, jnp.zeros(env.spec.num_envs, jnp.int32))
        return state, out.reward

    return jax.lax.scan(step, env.reset(key)[0], None, 50)[1]


@pytest.mark.parametrize("name", ["gymnasium/CartPole-v1", "envpool/CartPole-v1"])
def test_a_compiled_program_keeps_the_simulators_of_a_deleted_environment(name):
    pytest.importorskip(name.partition("/")[0])
    options = {} if name.startswith("envpool") else {"workers": "thread", "num_workers": 1}
    env = registry.make(EnvConfig(name=name, num_envs=4, options=options), 4)
    compiled = jax.jit(functools.partial(rewards_of, env)).lower(jax.random.key(0)).compile()
    pool = weakref.ref(env.pool(4))
    del env
    jax.clear_caches()
    gc.collect()
    assert pool() is not None
    rewards = np.asarray(compiled(jax.random.key(0)))
    assert set(np.unique(rewards)) == {0.0, 1.0}  # 0 at the start of an episode
    del compiled
    gc.collect()
    assert pool() is None
