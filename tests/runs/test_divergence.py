"""Diverging simulators: stopped runs, the warning, and scores."""

import re
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.runs import setup_of, train

from purejaxppo import parts as parts_module
from purejaxppo.agents import diagnostics
from purejaxppo.config.schema import CheckpointConfig
from purejaxppo.envs.base import MultiStep, TaskStep
from purejaxppo.envs.curriculum import CurriculumEnv
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.envs.worlds import JointTask, MultiAgentEnv
from purejaxppo.envs.wrappers import UnitActions
from purejaxppo.parts import init_program, make_parts, shard_ids
from purejaxppo.runs import divergence
from purejaxppo.runs.console import Console
from purejaxppo.runs.evaluation import Evaluation
from purejaxppo.runs.health import NotFiniteError
from purejaxppo.runs.hooks import hooks_of
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.rows import eval_row, read_csv
from purejaxppo.runs.training import open_training
from purejaxppo.spaces import Box, Discrete, diverged_value

NO = jnp.array(False)
REMEDY = (
    "Observations and rewards must be finite and within ±1e10. Scale them, or fix the simulator."
)


class NoReward:
    """A task whose reward is always NaN."""

    observation = Box((2,))
    action = Discrete(2)
    max_episode_steps = 20
    cheap_reset = True
    reward = jnp.nan

    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.zeros(2)

    def obs(self, time):
        return jnp.ones(2)

    def step(self, key, state, action):
        time = state + 1
        return time, TaskStep(self.obs(time), jnp.float32(self.reward), NO, NO)


class HugeReward(NoReward):
    """A task whose reward is always 2e10."""

    reward = 2e10


class EveryThird(NoReward):
    """A task whose observation[1] is 1.9e12 at every third step."""

    reward = 1.0

    def obs(self, time):
        return jnp.array([1.0, 1.0]).at[1].set(jnp.where(time % 3 == 0, 1.9e12, 1.0))


class LargeStart(EveryThird):
    """A task whose first observation is beyond the limit."""

    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.array([0.0, -2e11])


class Market(gymnasium.Env):
    """An environment whose observation after a step is infinite."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action):
        return np.array([1.0, -np.inf]), 0.0, False, False, {}


class Pair:
    """Two agents. The second agent's reward is -3e10 at the second step."""

    agents = ("a", "b")
    observation = (Box((1,)), Box((1,)))
    action = (Discrete(2), Discrete(2))
    max_episode_steps = 10
    cheap_reset = True

    def reset(self, key):
        return jnp.zeros((), jnp.int32), (jnp.zeros(1), jnp.zeros(1))

    def step(self, key, state, action):
        time = state + 1
        reward = jnp.array([1.0, jnp.where(time == 2, -3e10, 1.0)])
        obs = (jnp.zeros(1), jnp.zeros(1))
        return time, MultiStep(obs, reward, jnp.zeros(2, bool), NO)


def config_of(name, updates, **sections):
    """Return a config with 2 environments and 6 steps per update."""
    return f"""
env: {{name: "{name}", num_envs: 2, options: {sections.get("options", "{}")}}}
network: {{hidden: [4]}}
ppo: {{rollout_length: 6, num_minibatches: 1, num_epochs: 1}}
eval: {{num_episodes: 0}}
logging: {{tensorboard: false, interval: 12}}
num_shards: 1
total_timesteps: {12 * updates}
"""


def test_a_reward_that_is_nan_in_the_first_step_is_an_error_before_training(config_file, capsys):
    config_file.write_text(config_of(f"jax/{__file__}:NoReward", 40))
    assert train(config_file, "--run_dir", "run") == 2
    out, err = capsys.readouterr()
    assert out == "" and not Path("run").exists()
    assert err == (
        f"error: env.name = jax/{__file__}:NoReward: step (reward) returns values that are not "
        f"finite. The first ones are [nan].\n"
    )


@pytest.mark.parametrize(
    ("name", "options", "value"),
    [
        (f"jax/{__file__}:HugeReward", "{}", "reward = 2e10"),
        (f"gymnasium/{__file__}:Market", "{workers: thread}", "observation[1] = -inf"),
    ],
)
def test_a_run_in_which_every_step_diverges_stops_and_names_a_value(
    name, options, value, config_file, capsys
):
    config_file.write_text(config_of(name, 40, options=options))
    assert train(config_file, "--run_dir", "run") == 2
    out, err = capsys.readouterr()
    rows = read_csv(Path("run/metrics.csv"))
    updates = int(rows[-1]["update"])  # the first chunk has one update, later ones more
    assert 5 <= updates < 40
    assert err == (
        f"error: all steps of {updates} updates diverged: {value}. Nothing was saved. {REMEDY}\n"
    )
    assert out.count("episodes diverged: ") == 1
    assert re.search(rf"^warning: \d+ of \d+ episodes diverged: {re.escape(value)}", out, re.M)
    assert [row["charts/finite"] for row in rows] == [1.0] * (len(rows) - 1) + [0.0]
    assert not Path("run/learning_curve.png").exists()


def test_a_run_with_many_diverged_episodes_warns_once_and_continues(config_file, capsys):
    config_file.write_text(config_of(f"jax/{__file__}:EveryThird", 6))
    assert train(config_file, "--run_dir", "run") == 0
    out, err = capsys.readouterr()
    # 6 steps of each of 2 environments: two are good, the third diverges, and the same again.
    warning = f"warning: 4 of 4 episodes diverged: observation[1] = 1.9e12. {REMEDY}"
    assert err == "" and out.splitlines().count(warning) == out.count("episodes diverged") == 1
    rows = read_csv(Path("run/metrics.csv"))
    assert [(row["global_step"], row["charts/diverged"]) for row in rows] == [
        (8 * i, 4) for i in range(1, 7)
    ]
    assert "no learning curve: no episode has ended" in out
    assert not Path("run/learning_curve.png").exists()
    left = [line.split()[-2] for line in out.splitlines() if line.endswith(" left")]
    assert left and all(len(time) == len("0:00") for time in left)


def test_a_first_observation_beyond_the_limit_is_rejected_before_training(config_file, capsys):
    name = f"jax/{__file__}:LargeStart"
    config_file.write_text(config_of(name, 6))
    assert train(config_file, "--run_dir", "run") == 2
    error = f"error: env.name = {name}: reset returned observation[1] = -2e11. {REMEDY}\n"
    assert capsys.readouterr().err == error


@pytest.mark.toy
def test_the_first_value_beyond_the_limit_is_named():
    fine = np.float32(1e10)
    obs = [(("camera",), np.zeros((2, 2), np.uint8)), (("joints", "arm"), np.array([[0.0, 2e10]]))]
    assert diverged_value(fine, obs) == "observation.joints.arm[0, 1] = 2e10"
    assert diverged_value(fine, [((), np.float32([0, np.nan]))]) == "observation[1] = nan"
    assert diverged_value(np.float32(-np.inf), obs) == "reward = -inf"
    assert diverged_value(fine, obs[:1]) == ""


def world(task, num_worlds):
    one = UnitActions(JointTask(task))
    return MultiAgentEnv(VectorEnv(one, num_worlds, fresh_every_step=True), one.team)


def curriculum(task, num_envs):
    def build(values):
        return VectorEnv(task, num_envs, fresh_every_step=False)

    return CurriculumEnv(lambda progress: {"x": jnp.float32(progress)}, build)


@pytest.mark.parametrize(
    ("env", "value"),
    [
        pytest.param(lambda: world(Pair(), 2), "reward[1] = -3e10", id="world"),
        pytest.param(lambda: curriculum(EveryThird(), 4), "observation[1] = 1.9e12", id="obs"),
        pytest.param(lambda: curriculum(NoReward(), 4), "reward = nan", id="reward"),
    ],
)
def test_replaying_a_jax_simulator_finds_the_diverged_value(env, value, make_config, monkeypatch):
    monkeypatch.setattr(parts_module, "make_env", lambda config: env())
    parts = make_parts(make_config(ppo={"rollout_length": 4}))
    state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
    rollout, key = jax.tree.map(lambda x: x[0], (state.rollout, state.key))
    found = divergence.replayed_value(parts, state.agent, state.update, rollout, key)
    assert found == value
    if value.startswith("reward[1]"):  # one step is good
        parts = parts._replace(config=parts.config.replace(**{"ppo.rollout_length": 1}))
        assert divergence.replayed_value(parts, state.agent, state.update, rollout, key) == ""


def test_an_agent_that_only_diverges_has_no_score_and_the_others_continue(
    tmp_path, make_config, capsys
):
    rare = {"eval": {"num_episodes": 0}, "checkpoint": CheckpointConfig(interval=48 * 20)}
    config = make_config(num_seeds=2, total_timesteps=48 * 20, **rare)
    programs = Programs(setup_of(config))
    run = open_training(programs, tmp_path, Console(1000, lines=True))
    run.state = programs.init()
    hooks = hooks_of(run)
    zero = jax.tree.map(lambda x: np.stack([x, x]), diagnostics.zero_metrics(()))
    good = zero._replace(**dict.fromkeys(("updates", "finite", "learned"), np.array([1, 1])))

    def after(steps, diverged, finite=(1, 1)):
        episodes = good.episodes._replace(diverged=np.array(diverged))
        changed = {"env_steps": np.array(steps), "finite": np.array(finite)}
        metrics = good._replace(**changed, episodes=episodes)
        run.progress.add(1, np.zeros(2, int), 0.1)
        run.add(metrics)
        for hook in hooks:
            if hook.due(run):
                hook.act(run)
        return capsys.readouterr().out.count("agents without a score after")

    quiet = [after([48, 0], [0, 48]) for _ in range(4)]
    quiet.append(after([48, 1], [0, 47]))  # a step that does not diverge: counted from 0 on
    quiet += [after([48, 0], [0, 0])]  # absent
    quiet += [after([48, 0], [0, 48]) for _ in range(4)]
    assert not any(quiet)
    assert after([48, 0], [0, 48]) == 1
    with pytest.raises(NotFiniteError, match="all steps of 5 updates diverged"):
        for _ in range(5):
            after([0, 0], [48, 48])
    after([48, 48], [0, 0])
    with pytest.raises(NotFiniteError, match="outputs or gradients are not finite"):
        after([0, 0], [48, 48], finite=[0, 0])  # NaN in the actions: not the simulator's fault
    run.programs.close()


@pytest.mark.toy
def test_an_evaluation_excludes_few_diverged_episodes_and_has_no_score_with_more():
    returns = np.arange(32.0)
    returns[0] = np.nan
    lengths = np.full(32, 9)
    lengths[0] = 1  # where it diverged
    row = eval_row(returns, lengths)
    assert row["eval/diverged"] == 1 and row["eval/length_mean"] == 9.0
    assert row["eval/return_mean"] == 16.0  # 1 + ... + 31 = 496 over 31
    assert (row["eval/return_min"], row["eval/return_max"]) == (1.0, 31.0)
    one = Evaluation(returns, lengths, success_above=15.0)
    assert one.score == 16.0 and one.success_rate == 16 / 32
    message = "32 episodes (1 diverged): return 16.0 ± 8.9 (min 1.0, max 31.0), length 9.0"
    assert str(one).startswith(message)
    returns[:3] = np.nan
    assert eval_row(returns, np.full(32, 9))["eval/return_mean"] == 17.0  # 493 over 29
    returns[3] = np.nan  # 4 of 32 are more than a tenth
    row = eval_row(returns, lengths)
    assert row["eval/diverged"] == 4 and np.isnan(row["eval/length_mean"])
    assert all(np.isnan(row[f"eval/return_{name}"]) for name in ("mean", "std", "min", "max"))
    four = Evaluation(returns, np.full(32, 9))
    assert np.isnan(four.score)
    assert str(four) == "32 episodes: 4 diverged, too many for a mean return (more than 10%)"
    both = Evaluation(np.stack([returns, np.ones(32)]), np.full((2, 32), 9))
    np.testing.assert_array_equal(both.score, [np.nan, 1.0])
    assert "64 episodes of 2 agents: 4 diverged" in str(both)
    two = Evaluation(np.stack([np.full(4, 10.0), np.full(4, 20.0)]), np.full((2, 4), 9))
    assert str(two).startswith("2 agents, 4 episodes each: mean return 15.0 ± 7.1 over agents")
