"""The scores of evaluations, and what they do not depend on."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.runs import error_of, setup_of

import purejaxppo.cli.evaluate as evaluate_command
from purejaxppo.envs.base import TaskStep
from purejaxppo.envs.vectorize import VectorEnv, VmapEnv
from purejaxppo.parallel.shards import Shards
from purejaxppo.parts import init_program, make_parts, shard_ids
from purejaxppo.runs import evaluation
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.episodes import Outcome
from purejaxppo.runs.evaluation import Evaluation, Evaluator, evaluate, run_episodes
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.recording import record_states
from purejaxppo.runs.rows import eval_row
from purejaxppo.setup import resolve
from purejaxppo.spaces import Box, Discrete
from purejaxppo.types import PolicyStep


@pytest.fixture(scope="module")
def agent(make_config):
    """Return an untrained agent, on a task whose rewards depend on starts and sampled actions."""
    config = make_config(
        env={"name": "gymnax/Pendulum-v1", "max_episode_steps": 5},
        eval={"stochastic": True},
    )
    return Agent(config, jax.jit(make_parts(config).policy.init)(jax.random.key(1)))


def test_an_evaluation_is_the_same_on_any_number_of_shards_and_devices(agent):
    def returns(shards):
        evaluator = Evaluator(resolve(agent.config), agent.policy, 7, shards=shards)
        return jax.jit(evaluator.evaluate)(agent.state, jax.random.key(3))[0]

    one = returns(Shards(1))
    assert len(np.unique(one)) == 7
    for shards in (Shards(3), Shards(2, jax.devices()[:2])):
        np.testing.assert_allclose(returns(shards), one, rtol=1e-5)


def test_episodes_in_rounds_equal_parallel_episodes(agent, monkeypatch):
    whole = evaluate(agent, 7, seed=4)
    monkeypatch.setattr(evaluation, "MAX_PARALLEL", 4)
    turns = evaluate(agent, 7, seed=4)
    np.testing.assert_allclose(turns.returns, whole.returns, rtol=1e-5)


def test_returns_of_named_policies_are_means_over_their_agents(make_config):
    config = make_config(
        env={"name": "particles/tag", "num_envs": 10},
        network={"policies": {"hunter_*": "hunters", "prey_*": "prey"}},
    )
    agent = Agent(config, jax.jit(make_parts(config).policy.init)(jax.random.key(1)))
    result = evaluate(agent, 13)  # three environments
    means = result.metric_means
    row = np.arange(15) % 5
    assert means == {
        "return_mean/hunters": pytest.approx(result.returns[row < 3].mean(), rel=1e-6),
        "return_mean/prey": pytest.approx(result.returns[row >= 3].mean(), rel=1e-6),
    }
    assert means["return_mean/hunters"] != means["return_mean/prey"]


def test_no_round_of_an_evaluation_has_the_starts_of_training(make_config, monkeypatch):
    config = make_config(env={"name": "dummy/vector", "num_envs": 4})
    parts = make_parts(config)
    state = jax.jit(init_program(parts))(jax.random.key(config.seed), shard_ids(parts))

    def starts(env, begun, *args, **rest):
        count = len(begun[1])
        return Outcome(begun[1][:, 0], jnp.ones(count, int), jnp.zeros(count, bool), {})

    monkeypatch.setattr(evaluation, "run_episodes", starts)
    monkeypatch.setattr(evaluation, "MAX_PARALLEL", 4)
    found = evaluate(Agent(config, state.agent), 12, seed=config.seed).returns
    assert len(np.unique(found)) == 12
    assert not set(found.tolist()) & set(np.ravel(state.rollout.obs).tolist())


class Fragile:
    """The reward of each of 3 steps is -1; the initial state decides if the second one diverges."""

    observation = Box((1,))
    action = Discrete(2)
    max_episode_steps = 3
    cheap_reset = True

    def reset(self, key):
        """Return 0, 1, 0, 1, ... by the number of the key."""
        weak = (jax.random.key_data(key)[-1] % 2).astype(jnp.float32)
        return (jnp.zeros(()), weak), weak[None]

    def step(self, key, state, action):
        """Count steps."""
        time, weak = state[0] + 1, state[1]
        reward = jnp.where((time == 2) & (weak == 1), jnp.nan, -1.0)
        return (time, weak), TaskStep(weak[None], reward, time == 3, jnp.array(False))


def test_an_evaluation_with_a_diverged_episode_has_no_return():
    env = VmapEnv(VectorEnv(Fragile(), 1, fresh_every_step=True), 16)

    def act(keys, carry, obs, start):
        assert keys.shape == (16,)
        return PolicyStep(carry, None, None, jnp.zeros(16, int))

    keys = jax.random.split(jax.random.key(0), 16)
    begun = env.reset(keys)
    weak = np.asarray(begun[1][:, 0]) == 1
    returns, lengths, cut, _ = run_episodes(env, begun, act, lambda batch: (), keys)
    assert 0 < weak.sum() < 16
    np.testing.assert_array_equal(returns, np.where(weak, np.nan, -3.0))
    np.testing.assert_array_equal(lengths, np.where(weak, 1, 3))
    assert not np.asarray(cut).any()
    row = eval_row(np.asarray(returns), np.asarray(lengths))
    assert row["eval/diverged"] == weak.sum()
    assert all(np.isnan(row[f"eval/return_{name}"]) for name in ("mean", "std", "min", "max"))
    assert "diverged" in str(Evaluation(np.asarray(returns), np.asarray(lengths)))
    assert eval_row(np.ones(3), np.ones(3))["eval/diverged"] == 0


def test_an_agent_that_is_not_finite_has_no_score(make_config):
    # Its actions are the first of each kind, and some of these have a reward.
    config = make_config(env={"name": "dummy/choices"})
    policy = make_parts(config).policy
    evaluator = Evaluator(resolve(config), policy, 3)
    run = jax.jit(evaluator.evaluate)
    state = jax.jit(policy.init)(jax.random.key(0))
    assert np.isfinite(run(state, jax.random.key(0))[0]).all()
    broken = state.replace(params=jax.tree.map(lambda x: x * jnp.nan, state.params))
    returns, lengths, cut, _ = run(broken, jax.random.key(0))
    assert np.isnan(returns).all() and (np.asarray(lengths) == 10).all()
    assert not np.asarray(cut).any()


@pytest.mark.toy
def test_a_success_is_a_return_above_that_of_the_task():
    # Of 8 games 5 are won, one is a draw, one is lost and one diverged.
    returns, lengths = np.array([1, 1, 1, 1, 1, 0, -1, np.nan]), np.full(8, 9)
    games = Evaluation(returns, lengths, success_above=0.0)
    assert games.success_rate == 5 / 8
    assert eval_row(returns, lengths, success_above=0.0)["eval/success_rate"] == 5 / 8
    assert str(games.member(slice(7))).endswith(", length 9.0, success 71.4%")
    assert repr(games) == f"<{games}>"
    assert Evaluation(returns, lengths).success_rate is None
    assert "eval/success_rate" not in eval_row(returns, lengths)


def test_success_is_defined_by_the_evaluation_task(make_config):
    """In self-play no game is a success; against an opponent, each win is one."""
    game = {"name": "pgx/tic_tac_toe"}
    config = make_config(env=game, eval={"num_episodes": 40, "options": {"opponent": "random"}})
    programs = Programs(setup_of(config))
    assert (programs.spec.success_above, programs.success_above) == (None, 0.0)
    programs.close()
    agent = Agent(config, jax.jit(make_parts(config).policy.init)(jax.random.key(0)))
    result = evaluate(agent, 40)
    assert result.success_rate == np.mean(result.returns == 1) and 0 < result.success_rate < 1


@pytest.mark.toy
def test_small_returns_are_printed_with_more_digits():
    """A mean of 0.956 over 1,000 games is not printed as 1.0."""
    games = Evaluation(np.repeat([1.0, -1.0], [978, 22]), np.full(1000, 42))
    assert str(games) == "1000 episodes: return 0.956 ± 0.293 (min -1.000, max 1.000), length 42.0"
    walks = Evaluation(np.array([250.0, 251.0]), np.full(2, 10))
    assert str(walks) == "2 episodes: return 250.5 ± 0.5 (min 250.0, max 251.0), length 10.0"


PAID = """
import jax.numpy as jnp
from purejaxppo.envs.base import TaskStep
from purejaxppo.spaces import Box, Discrete


class Paid:
    max_episode_steps = 5
    action = Discrete(2)

    def __init__(self, pay=1.0, size=1):
        self.pay, self.observation = pay, Box((size,))

    def reset(self, key):
        return jnp.zeros(self.observation.shape), jnp.zeros(self.observation.shape)

    def step(self, key, state, action):
        return state, TaskStep(state, jnp.float32(self.pay), jnp.array(False), jnp.array(False))
"""
"""A task that pays `pay` in each of 5 steps."""


@pytest.fixture
def paid(make_config, tmp_path):
    """Return an untrained agent of `Paid`, which is evaluated with another reward."""
    (tmp_path / "paid.py").write_text(PAID)
    config = make_config(
        env={"name": f"jax/{tmp_path / 'paid.py'}:Paid", "options": {"pay": 2.0}},
        eval={"options": {"pay": 10.0}},
    )
    return Agent(config, jax.jit(make_parts(config).policy.init)(jax.random.key(1)))


@pytest.mark.parametrize(
    ("env", "changes", "expected", "text"),
    [
        (None, {}, 50, "2 episodes: return 50"),
        ({"max_episode_steps": 3}, {}, 30, "with env.max_episode_steps = 3: 2 episodes: return 30"),
        (None, {"env.options.pay": 4.0}, 20, "with env.options.pay = 4.0: 2 episodes: return 20"),
        (None, {"env.options.pay": 2.0}, 10, "with env.options.pay = 2.0: 2 episodes: return 10"),
        ({"options": {}}, {"env.max_episode_steps": 2}, 20, "with env.max_episode_steps = 2: "),
        (None, {"env.options.pay": 10.0}, 50, "2 episodes: return 50"),
    ],
)
def test_an_agent_is_evaluated_under_other_conditions_which_the_result_names(
    env, changes, expected, text, paid
):
    """Explicit options take precedence over eval.options."""
    result = evaluate(paid, 2, env=env, **changes)
    np.testing.assert_array_equal(result.returns, [expected, expected])
    assert str(result).startswith(text)
    _, _, rewards = record_states(paid.with_env(env, **changes))
    assert rewards.sum() == expected
    assert not paid.conditions and evaluate(paid, 2).returns[0] == 50


def test_a_condition_that_was_undone_is_not_named(paid):
    changed = paid.with_env({"max_episode_steps": 3})
    assert changed.conditions == {"env.max_episode_steps": 3}
    undone = changed.with_env({"max_episode_steps": paid.config.env.max_episode_steps})
    assert not undone.conditions and undone.config == paid.config
    assert str(evaluate(undone, 2)).startswith("2 episodes: return 50")
    copied = pickle.loads(pickle.dumps(changed)).with_env({"max_episode_steps": 2})
    assert copied.conditions == {"env.max_episode_steps": 2}
    made = replace(changed).with_env({"options": {"pay": 3.0}})  # does not know the run's config
    assert made.conditions == {"env.max_episode_steps": 3, "env.options.pay": 3.0}


@pytest.mark.parametrize("source", [None, 3, Agent, {"best": 1}])
def test_only_runs_and_agents_can_be_evaluated(source):
    with pytest.raises(ValueError, match="is neither a Run nor an Agent"):
        evaluate(source, 2)


def test_deterministic_and_start_are_true_or_false(paid):
    obs = np.zeros(paid.policy.observation.shape, np.float32)
    for value in ("no", 1, 0.0):
        with pytest.raises(ValueError, match=r"^deterministic = .*must be True, False or None"):
            evaluate(paid, 2, deterministic=value)
        with pytest.raises(ValueError, match=r"^deterministic = .*must be True, False or None"):
            paid.act(obs, deterministic=value)
    for value in ("x", ["x"]):
        with pytest.raises(ValueError, match=r"^start = .*: must be True, False or an array"):
            paid.act(obs, start=value)
    paid.act(obs, start=np.True_, deterministic=np.True_)


def test_several_agents_are_evaluated_under_the_same_conditions(paid):
    state = jax.tree.map(lambda x: jnp.stack([x, x]), paid.state)
    members = (paid.config, paid.config.replace(seed=1))
    both = Agent(paid.config, state, 7, members, (7, 7)).with_env({"max_episode_steps": 4})
    assert evaluate(both, 2).returns.tolist() == [[40, 40], [40, 40]]
    assert both.member(1).conditions == {"env.max_episode_steps": 4}
    assert both.member(1).config.seed == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env.options.size": 3}, r"^env\.options\.size = 3: the observation space is .*\(3,\)"),
        (
            {"env.name": "gymnax/CartPole-v1"},
            r"env\.name = gymnax/CartPole-v1, .*: the observation",
        ),
        ({"ppo.gamma": 0.5}, r"^ppo\.gamma: only settings of the section env"),
        ({"env.max_episode_stepz": 5}, "max_episode_stepz: unknown"),
    ],
)
def test_conditions_that_do_not_fit_an_agent_are_rejected(changes, message, paid):
    with pytest.raises(ValueError, match=message):
        evaluate(paid, 2, **changes)


def test_the_command_evaluates_under_other_conditions_and_leaves_the_run_unchanged(
    finished_run, capsys
):
    def contents():
        return {p: p.read_bytes() for p in finished_run.rglob("*") if p.is_file()}

    before = contents()
    flags = ["--run", str(finished_run), "--episodes", "3"]
    capsys.readouterr()
    assert evaluate_command.main([*flags, "--env.max_episode_steps", "5"]) == 0
    out = capsys.readouterr().out
    assert "with env.max_episode_steps = 5: 3 episodes: return 5.000 ± 0.0 " in out
    assert contents() == before
    for words, message in (
        (["--env.obs_indices", "0", "1"], "env.obs_indices = [0, 1]: the observation space is"),
        (["--ppo.gamma", "0.5"], "--ppo.gamma: unknown flag"),
        (["--elo", "--env.max_episode_steps", "5"], "--elo does not support settings of"),
    ):
        assert evaluate_command.main([*flags, *words]) == 2
        assert message in error_of(capsys)
