"""Agents and returns that are not finite: best agents, scores, checkpoints and stopped runs."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import runs
from support.own_code import Walk
from support.runs import setup_of
from support.trees import assert_same

import purejaxppo
from purejaxppo import restore
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
from purejaxppo.runs.checkpoint import Checkpoints
from purejaxppo.runs.folder import record_run
from purejaxppo.runs.health import CheckAgents, NotFiniteError
from purejaxppo.runs.hooks import beats
from purejaxppo.runs.population import select
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.progress import Progress
from purejaxppo.runs.rows import metrics_row, read_csv
from purejaxppo.sweep import packing, report
from purejaxppo.sweep.scores import Result, value
from purejaxppo.sweep.search import Optuna
from purejaxppo.sweep.search_space import Uniform

CONFIG = """
env: {name: gymnax/Pendulum-v1, num_envs: 4, max_episode_steps: 20}
network: {hidden: [8]}
ppo: {rollout_length: 20, num_minibatches: 2, num_epochs: 2, learning_rate_schedule: constant}
eval: {num_episodes: 2, interval: 80}
checkpoint: {interval: 80}
total_timesteps: 400
"""


def test_nan_is_never_best_and_the_latest_of_equals_is():
    nan = float("nan")
    assert beats(1.0, None) and beats(2.0, 1.0) and beats(1.0, 1.0)
    assert not beats(nan, None) and not beats(nan, -59.0) and not beats(-60.0, -59.0)


def test_a_nonfinite_or_diverged_agent_has_no_score():
    fine, nan = {"charts/finite": 1.0}, float("nan")
    broke = [fine | {"eval/return_mean": -59.0}, {"charts/finite": 0.0}]
    assert np.isnan(value(broke, "last"))
    assert np.isnan(value(broke, "mean"))
    assert value(broke, "best") == -59.0  # which was saved
    diverged = [{"eval/return_mean": x} for x in (nan, -59.0, nan)]
    assert np.isnan(value(diverged, "last"))
    assert np.isnan(value(diverged, "mean"))
    assert value(diverged, "best") == -59.0
    assert np.isnan(value(diverged[:1], "best"))
    trained = [fine | {"charts/episodic_return": 9.0}, {"charts/finite": 0.0}]
    for objective in ("last", "best", "mean"):
        assert np.isnan(value(trained, objective))


def test_a_sweep_without_scores_has_no_best_config(tmp_path, make_config, capsys):
    place = (("run", 0),)
    results = [Result({"ppo.gamma": x}, make_config(), (float("nan"),), place) for x in (0.9, 0.99)]
    report.report(tmp_path, results, make_config(), "last")
    assert (tmp_path / "results.csv").is_file() and not (tmp_path / "best.yaml").exists()
    assert "no setting has a score" in capsys.readouterr().out


def test_a_population_never_copies_a_member_without_a_score(key):
    score = jnp.array([-5.0, jnp.nan, -1.0, -3.0])
    assert select(key, score, 0.25).tolist() == [0, 2, 2, 3]


@pytest.fixture(scope="module")
def vector(make_config):
    parts = make_parts(make_config(env={"name": "dummy/vector", "max_episode_steps": 7}))
    state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
    return make_hyperparams(parts.config), state, jax.jit(train_program(parts))


def test_metrics_report_whether_the_agent_is_finite(vector):
    hp, state, chunk = vector
    state, metrics = chunk(state, hp, 2)
    assert metrics.finite == metrics.learned == metrics.updates == 2
    assert metrics_row(metrics)["charts/finite"] == 1
    for number in (jnp.nan, 1.01e10):  # larger than any useful parameters
        params = jax.tree.map(lambda x, number=number: jnp.full_like(x, number), state.agent.params)
        broken = state.replace(agent=state.agent.replace(params=params))
        _, metrics = chunk(broken, hp, 2)
        assert metrics_row(metrics)["charts/finite"] == 0
    huge = hp._replace(vf_coef=jnp.float32(1e38))
    _, metrics = chunk(state, huge, 2)  # gradients overflow float32: all steps are skipped
    assert metrics.finite == 2 and metrics.learned == 0


@pytest.fixture
def config_file(config_file):
    config_file.write_text(CONFIG)
    return config_file


def train(config_file, *flags):
    return runs.train(config_file, "--run_dir", "run", *flags)


def test_a_nonfinite_run_stops_with_one_sentence_and_keeps_its_last_finite_checkpoint(
    config_file, capsys
):
    assert train(config_file) == 0
    capsys.readouterr()
    saved, best = restore("run", "last"), restore("run")
    flags = ("--total_timesteps", "8000", "--ppo.learning_rate", "1e30")
    assert train(config_file, *flags) == 2
    error = capsys.readouterr().err
    assert "steps the agent's parameters, outputs or gradients are not finite" in error
    assert f"The checkpoint at {saved.env_steps} steps is finite" in error
    assert "the same command would fail again" in error
    assert "Try a smaller ppo.learning_rate (now 1e+30)" in error and error.count("\n") == 1
    again = restore("run", "last")
    assert again.env_steps == saved.env_steps and restore("run").env_steps == best.env_steps
    jax.tree.map(np.testing.assert_array_equal, again.state, saved.state)
    row = read_csv(Path("run/metrics.csv"))[-1]
    assert row["charts/finite"] == 0 and row["update"] == 6  # the first update with that rate


def test_a_batch_stops_when_no_agent_is_finite_and_reports_each_lost_agent_once(make_config):
    message: list[str] = []
    ones, none = np.ones(2, int), np.zeros(2, int)
    run: Any = SimpleNamespace(
        members=[make_config(seed=5), make_config(seed=6)],
        progress=Progress(1, 0.0, [480, 480]),
        console=SimpleNamespace(warn=message.append),
        chunk=SimpleNamespace(
            learned=ones, updates=ones, env_steps=ones, episodes=SimpleNamespace(diverged=none)
        ),
    )
    check = CheckAgents(make_config(), 2)

    def lost(*finite):
        run.rows = [{"charts/finite": x} for x in finite]
        check.act(run)
        return run.lost

    assert not lost(1, 1)
    assert not lost(1, 0) and not lost(1, 0)
    assert message == [
        "agents without a score after 480 steps: 1 (seed 6). Their parameters or outputs are not "
        "finite, or all their steps diverge."
    ]
    assert lost(0, 0)


def test_a_batch_without_finite_agents_does_not_end_a_sweep(tmp_path, make_config, monkeypatch):
    def execute(run, *columns):
        raise NotFiniteError("gone")

    monkeypatch.setattr(packing, "execute", execute)
    assert packing.train_batch(tmp_path / "run", setup_of(make_config())) == 0


@pytest.fixture
def saves(tmp_path, make_config):
    """Checkpoints of a run folder: (checkpoints, state, reopen)."""
    config = make_config()
    state = Programs(setup_of(config)).init()
    record_run(config, tmp_path, [])
    opened = []

    def reopen():
        while opened:
            opened.pop().close()
        opened.append(Checkpoints(tmp_path))
        return opened[-1]

    yield tmp_path, state, reopen
    while opened:
        opened.pop().close()


def halve(tree):
    return jax.tree.map(lambda x: x / 2, tree)


def test_a_killed_run_resumes_with_the_best_agent_of_its_last_checkpoint(saves):
    folder, state, reopen = saves
    best = halve(state.learned)
    reopen().save(state, Progress(1, 0.5, [20], [1.0], [10]), best)
    checkpoints = reopen()
    restored = restore(folder)
    assert restored.env_steps == 10
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[0]), restored.state, best)
    again, its_best, progress = checkpoints.restore(state)
    assert progress == Progress(1, 0.5, [20], [1.0], [10])
    assert_same(its_best, best)
    assert_same(again.agent, state.agent)
    assert restore(folder, "last").env_steps == restore(folder, 20).env_steps == 20
    by_its_steps = restore(folder, 10)
    assert by_its_steps.env_steps == 10
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[0]), by_its_steps.state, best)
    with pytest.raises(ValueError, match=r"unknown checkpoint 11\. Checkpoints: best, last"):
        restore(folder, 11)


def test_the_last_checkpoint_is_the_best_agent_before_the_first_evaluation(saves, caplog):
    folder, state, reopen = saves
    reopen().save(state, Progress(1, 0.5, [20], [None], [0]))
    _, best, progress = reopen().restore(state)
    assert best is None and progress == Progress(1, 0.5, [20], [None], [0])
    with caplog.at_level(logging.WARNING, "purejaxppo"):
        assert restore(folder, "best").env_steps == 20
    assert "no agent has been evaluated. The last checkpoint is used." in caplog.text


def test_optuna_marks_a_setting_without_a_score_as_failed():
    optuna = pytest.importorskip("optuna")
    search = Optuna({"ppo.gamma": Uniform(0.5, 0.99)}, 4, 2, seed=0)
    tried = search.next([], None)
    search.next([(tried[0], float("nan")), (tried[1], -59.0)], None)
    states = [trial.state for trial in search._study.trials[:2]]
    assert states == [optuna.trial.TrialState.FAIL, optuna.trial.TrialState.COMPLETE]
    assert search._study.best_value == -59.0


class NanStarts(Walk):
    """One of eight episodes starts with NaN, but none of the first ones of the run."""

    def reset(self, key):
        state, obs = super().reset(key)
        bad = jax.random.uniform(jax.random.fold_in(key, 2)) < 1 / 8
        return state, jnp.where(bad, jnp.nan, obs)


@pytest.mark.parametrize("reset", ["every_step", "every_rollout"])
def test_starts_with_nan_do_not_end_a_run_that_resets_each_rollout(tmp_path, reset):
    """In four of ten rollouts, an environment starts with NaN."""
    settings = runs.SMALL_WALK | {"env.name": NanStarts(), "total_timesteps": 2048}
    settings |= {"ppo.reset_each_rollout": True, "env.reset": reset}
    run = purejaxppo.train("cartpole.yaml", run_dir=tmp_path, quiet=True, **settings)
    assert set(run.metrics["charts/finite"]) == {1} and run.last.env_steps > 1500
    assert np.nansum(run.metrics["losses/skipped"]) == 0


def test_starts_with_nan_are_counted_and_do_not_end_a_run(tmp_path):
    settings = runs.SMALL_WALK | {"env.name": NanStarts(), "total_timesteps": 2048}
    run = purejaxppo.train("cartpole.yaml", run_dir=tmp_path, quiet=True, **settings)
    metrics = run.metrics
    assert set(metrics["charts/finite"]) == {1} and run.last.env_steps > 1500
    diverged, episodes = (np.nansum(metrics[f"charts/{x}"]) for x in ("diverged", "episodes"))
    assert diverged / (diverged + episodes) == pytest.approx(1 / 8, abs=0.04)
