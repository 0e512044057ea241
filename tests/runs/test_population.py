"""Population-based training: selection, perturbation, resumes, and its benefit."""

import contextlib
import csv
import io
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.optimizations import optimization
from support.paths import OWN_CODE
from support.runs import remove_last_checkpoint, setup_of
from support.trees import assert_same, fill_tree

from purejaxppo import hyperparams, load_config, make_train, restore
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import Config, IntrinsicConfig, PPOConfig
from purejaxppo.parallel.shards import Shards
from purejaxppo.parts import init_program, make_parts, shard_ids
from purejaxppo.runs.hooks import ShowProgress
from purejaxppo.runs.population import (
    COPIED,
    Population,
    Rules,
    evolve,
    finite,
    perturb,
    population_functions,
    select,
    short_interval,
    since_last_copy,
)
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.rows import read_csv
from purejaxppo.sweep import __main__ as sweep_command
from purejaxppo.sweep import report, search
from purejaxppo.sweep.scores import value
from purejaxppo.sweep.search_space import Choice, LogUniform, Uniform
from purejaxppo.types import TrainState

RULES = Rules((("learning_rate", 1e-4, 1e-2), ("ent_coef", 0.0, 0.1)), interval=2)


@pytest.mark.toy
def test_the_worst_members_are_replaced_by_copies_of_the_best(key):
    score = jnp.array([5.0, 1.0, 7.0, 2.0, 6.0, 3.0, 8.0, 4.0])
    source = np.asarray(select(key, score, 0.25))
    np.testing.assert_array_equal(source[[0, 2, 4, 5, 6, 7]], [0, 2, 4, 5, 6, 7])
    assert set(source[[1, 3]]) <= {2, 6}


def test_parents_are_drawn_equally_often_from_the_best(key):
    score = jnp.arange(8.0)
    drawn = [int(select(jax.random.fold_in(key, i), score, 0.25)[0]) for i in range(200)]
    assert 60 < drawn.count(6) < 140
    assert drawn.count(6) + drawn.count(7) == 200


@pytest.mark.toy
def test_a_member_without_a_finished_episode_is_replaced(key):
    score = jnp.array([1.0, jnp.nan, 2.0, 3.0])
    np.testing.assert_array_equal(select(key, score, 0.25), [0, 3, 2, 3])


@pytest.mark.toy
@pytest.mark.parametrize(
    "score", [[jnp.nan] * 4, [-jnp.inf, -jnp.inf, jnp.nan, -jnp.inf], [0.0] * 4, [-3.0, jnp.nan]]
)
def test_no_member_is_replaced_by_one_that_is_not_better(score, key):
    score = jnp.array(score)
    expected = jnp.arange(len(score)) if len(score) == 4 else [0, 0]  # NaN is below any number
    np.testing.assert_array_equal(select(key, score, 0.5), expected)


@pytest.mark.toy
def test_a_member_with_an_infinite_score_is_replaced(key):
    score = jnp.array([1.0, jnp.inf, 2.0, 3.0])
    np.testing.assert_array_equal(select(key, score, 0.25), [0, 3, 2, 3])


@pytest.mark.toy
def test_at_least_one_and_at_most_half_are_replaced(key):
    for share, replaced in ((0.0, 1), (0.5, 2), (0.25, 1)):
        source = np.asarray(select(key, jnp.arange(4.0), share))
        assert (source != np.arange(4)).sum() == replaced


@pytest.mark.toy
def test_copied_hyperparameters_are_perturbed_within_their_bounds(key):
    size = 3000
    config = Config(ppo=PPOConfig(learning_rate=1e-3, ent_coef=0.09, gamma=0.9))
    hp = make_hyperparams(config)
    hp = jax.tree.map(lambda x: jnp.full(size, x), hp)
    copied = jnp.arange(size) < size // 2
    new = perturb(key, hp, copied, RULES)
    np.testing.assert_array_equal(new.gamma, hp.gamma)
    np.testing.assert_array_equal(new.learning_rate[size // 2 :], hp.learning_rate[size // 2 :])
    rates, counts = np.unique(np.asarray(new.learning_rate[: size // 2]), return_counts=True)
    np.testing.assert_allclose(rates, [1e-3 / 1.25, 1e-3, 1e-3 * 1.25], rtol=1e-6)
    np.testing.assert_allclose(counts, [500] * 3, atol=80)
    coefs = np.unique(np.asarray(new.ent_coef[: size // 2]))
    np.testing.assert_allclose(coefs, [0.072, 0.09, 0.1], rtol=1e-6)  # 0.1125 is out of bounds


@pytest.mark.toy
def test_one_coefficient_of_several_auxiliary_losses_is_perturbed(key):
    hp = make_hyperparams(Config())._replace(term_coefs=(jnp.full(300, 2.0), jnp.full(300, 4.0)))
    rules = Rules((("term_coefs.1", 0.1, 4.5),), interval=2)
    first, second = perturb(key, hp, jnp.ones(300, bool), rules).term_coefs
    np.testing.assert_array_equal(first, 2.0)
    np.testing.assert_allclose(np.unique(np.asarray(second)), [3.2, 4.0, 4.5], rtol=1e-6)


@pytest.mark.toy
def test_gamma_and_lambda_are_perturbed_in_their_distance_to_one(key):
    """0.99 x 1.25 would be above 1 and always clipped to the bound."""
    hp = make_hyperparams(Config(ppo=PPOConfig(gamma=0.99, gae_lambda=0.9)))
    hp = jax.tree.map(lambda x: jnp.full(300, x), hp)
    rules = Rules((("gamma", 0.5, 0.9999), ("gae_lambda", 0.89, 0.99)), interval=2)
    new = perturb(key, hp, jnp.ones(300, bool), rules)
    for values, expected in [
        (new.gamma, [1 - 0.0125, 0.99, 1 - 0.008]),
        (new.gae_lambda, [0.89, 0.9, 0.92]),
    ]:
        np.testing.assert_allclose(np.unique(np.asarray(values)), expected, rtol=1e-5)


@pytest.mark.toy
@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"ppo.num_epochs": Uniform(1, 4, whole=True)}, "supports only tunable numbers"),
        ({"ppo.gamma": Choice((0.9, 0.99))}, "requires a uniform or log_uniform range"),
    ],
)
def test_only_ranges_of_tunable_fields_evolve(ranges, message):
    with pytest.raises(ValueError, match=message):
        search.rules_of(ranges, 1, 0.25, 1.25)
    assert search.rules_of({"ppo.gamma": LogUniform(0.9, 0.99)}, 1, 0.25, 1.25).bounds == (
        ("gamma", 0.9, 0.99),
    )


def population(make_config, rates, devices):
    config = make_config(
        env={"name": "gymnax/CartPole-v1", "num_envs": 8},
        ppo={"rollout_length": 64},
        eval={"num_episodes": 0},
        total_timesteps=100_000,
    )
    members = [
        replace(config, seed=i, ppo=replace(config.ppo, learning_rate=rate))
        for i, rate in enumerate(rates)
    ]
    return Programs(setup_of(config, devices, members), population_functions(RULES))


SIZE, NUM_ENVS = 4, 2


@pytest.fixture(scope="module")
def numbered_members(make_config):
    """State of four members with an LSTM, curiosity and PopArt. All arrays of member i hold i."""
    config = make_config(
        env={"name": "dummy/vector", "num_envs": NUM_ENVS},
        network={"rnn": "lstm", "rnn_size": 2},
        ppo={"learner": f"{OWN_CODE}:counted", "critic": "popart", "normalize_reward": True},
        intrinsic=IntrinsicConfig("rnd", hidden=(4,), features=2),
    )
    parts = make_parts(config, Shards(1, None, SIZE))
    keys = jax.vmap(jax.random.key)(jnp.arange(SIZE))
    state = jax.eval_shape(init_program(parts), keys, shard_ids(parts))
    state = fill_tree(state, lambda shape: np.indices(shape)[0])
    return state, parts.initial_carry((NUM_ENVS,))


@jax.jit
def selected_from(key, state, known, carry):
    return evolve(key, state, known, RULES, carry)[:2]


def make_population(scores, episodes):
    hp = make_hyperparams(Config(ppo=PPOConfig(learning_rate=1e-3)))
    hp = jax.tree.map(lambda x: jnp.full(SIZE, x), hp)
    episodes = jnp.array(episodes, jnp.int32)
    parents = jnp.arange(SIZE, dtype=jnp.int32)
    none = jnp.zeros(SIZE, jnp.int32)
    return Population(hp, jnp.array(scores) * jnp.maximum(episodes, 1), episodes, none, parents)


def test_every_field_of_a_state_is_copied_or_kept_by_name(numbered_members, key):
    state, carry = numbered_members
    after, known = selected_from(
        key, state, make_population([5.0, 1.0, 2.0, 3.0], [1, 2, 3, 4]), carry
    )
    np.testing.assert_array_equal(known.parent, [0, 0, 2, 3])
    own = {f.name for f in fields(TrainState) if f.metadata["not_inherited"]}
    assert "rollout" in own and "agent" not in own
    for field in fields(TrainState):
        old, new = getattr(state, field.name), getattr(after, field.name)
        assert jax.tree.leaves(old), field.name
        if field.name not in own:
            old = jax.tree.map(lambda x: x[jnp.array([0, 0, 2, 3])], old)
        elif field.name == "rollout":
            for x in jax.tree.leaves(new.carry):
                np.testing.assert_array_equal(
                    x[1], 0.0
                )  # the carry belongs to the replaced network
                assert (x[0] == 0).all() and (x[2] == 2).all() and (x[3] == 3).all()
            old, new = old.replace(carry=()), new.replace(carry=())
        assert_same(old, new)


def test_a_selection_waits_until_every_member_has_finished_an_episode(numbered_members, key):
    state, carry = numbered_members
    known = make_population([5.0, 0.0, 2.0, 3.0], [4, 0, 2, 1])
    after, same = selected_from(key, state, known, carry)
    assert_same(after, state)
    assert_same(same, known)
    later = same._replace(episodes=same.episodes.at[1].add(1))
    _, selected = selected_from(key, state, later, carry)
    np.testing.assert_array_equal(selected.parent, [0, 0, 2, 3])
    np.testing.assert_array_equal(selected.episodes, 0)
    np.testing.assert_array_equal(selected.return_sum, 0.0)


def test_a_member_that_is_not_finite_is_replaced_and_not_waited_for(numbered_members, key):
    """Member 0 has the best return and a NaN parameter, with and without finished episodes."""
    state, carry = numbered_members
    params = state.agent.params
    bias = params["critic"]["bias"].at[0].set(jnp.nan)
    params = params | {"critic": params["critic"] | {"bias": bias}}
    broken = state.replace(agent=state.agent.replace(params=params))
    for episodes in ([9, 1, 1, 1], [0, 1, 1, 1]):
        known = make_population([100.0, 1.0, 2.0, 3.0], episodes)
        after, selected = selected_from(key, broken, known, carry)
        np.testing.assert_array_equal(selected.parent, [3, 1, 2, 3])
        assert finite(after.agent.params).all()
    # The parameters may be finite while the updates are not. Then the returns are NaN.
    known = make_population([np.nan, 1.0, 2.0, 3.0], [0, 1, 1, 1])
    _, selected = selected_from(key, state, known, carry)
    np.testing.assert_array_equal(selected.parent, [3, 1, 2, 3])
    assert np.isfinite(selected.return_sum).all()


@pytest.mark.parametrize("finished", [10, 0])
def test_a_member_that_diverges_is_replaced_and_not_waited_for(finished, numbered_members, key):
    """Member 0's long, expensive episodes diverge, and its other episodes have the best mean."""
    state, carry = numbered_members
    known = make_population([-5.0, -59.0, -60.0, -61.0], [finished, 100, 100, 100])
    known = known._replace(diverged=jnp.array([90, 0, 1, 0], jnp.int32))
    _, selected = selected_from(key, state, known, carry)
    np.testing.assert_array_equal(selected.parent, [1, 1, 2, 3])
    np.testing.assert_array_equal(selected.diverged, 0)


@pytest.mark.toy
def test_no_member_copies_one_without_a_score_if_another_has_one(key):
    score = jnp.array([jnp.nan, jnp.nan, jnp.nan, 5.0])
    for i in range(20):
        source = np.asarray(select(jax.random.fold_in(key, i), score, 0.5))
        assert (source == 3).sum() == 3


def test_an_interval_shorter_than_an_episode_is_reported():
    message = short_interval(RULES, rollout_length=100, limit=1000)
    assert "an episode can last 1000 steps" in message and "every 200 steps" in message
    assert "Use a --population_interval that is 5 times as large." in message
    assert not short_interval(RULES, rollout_length=500, limit=1000)
    assert not short_interval(RULES, rollout_length=1, limit=0)


def test_a_selection_copies_agents_inside_the_program(make_config):
    rates = (1e-4, 1e-3, 1e-3, 1e-2)
    programs = population(make_config, rates, 2)
    state = programs.init()
    programs.compile(state)
    # The earlier episodes determine the best member: two updates do not outweigh them.
    known = state.population._replace(
        return_sum=jnp.array([9e9, 0.0, 5e8, 6e8]), episodes=jnp.full(4, 10**6, jnp.int32)
    )
    known = jax.device_put(known, programs.shards.shardings(None))
    state, metrics = programs.train_chunk(state.replace(population=known), programs.hp, np.int32(2))
    state = jax.device_get(state.replace(key=jax.random.key_data(state.key)))
    kernels = state.agent.params["actor"]["kernel"]
    np.testing.assert_array_equal(kernels[1], kernels[0])
    assert np.abs(kernels[2] - kernels[0]).max() > 1e-4
    np.testing.assert_array_equal(state.opt_state.mu[1], state.opt_state.mu[0])
    assert not np.array_equal(state.key[1], state.key[0])
    assert not np.array_equal(state.rollout.obs[1], state.rollout.obs[0])
    np.testing.assert_array_equal(state.population.parent, [0, 0, 2, 3])
    np.testing.assert_array_equal(state.population.episodes, 0)
    rate = state.population.hp.learning_rate
    np.testing.assert_allclose(rate[[0, 2, 3]], np.array(rates)[[0, 2, 3]], rtol=1e-6)
    assert min(abs(np.log(rate[1] / rates[0]) / np.log(1.25) - k) for k in (0, 1)) < 1e-5
    assert metrics.updates.tolist() == [2] * 4
    assert metrics.extras[COPIED].tolist() == [0, 1, 0, 0]


def test_the_best_of_a_population_is_scored_since_its_last_copy(
    make_config, tmp_path, monkeypatch, capsys
):
    """Agent 0 had the best evaluation and became a copy with another rate after update 2."""
    config = make_config()
    (tmp_path / "population").mkdir()
    (tmp_path / "population" / "metrics.csv").write_text(
        "global_step,update,member,eval/return_mean,population/learning_rate,population/copied\n"
        "10,1,0,100,0.1,0\n10,1,1,7,0.01,0\n"
        "20,2,0,3,0.02,0.5\n20,2,1,8,0.01,0\n"
        "30,3,0,5,0.02,0\n30,3,1,6,0.01,0\n"
    )
    rules = Rules((("learning_rate", 1e-3, 1.0),), interval=2)
    highlighted = []
    monkeypatch.setattr(report, "plot_population", lambda *args: highlighted.append(args[2]))
    for objective, score in (("best", 8.0), ("mean", 7.0), ("last", 6.0)):
        report.report_population(tmp_path, [config, config], rules, objective)
        assert highlighted.pop() == 1
        assert capsys.readouterr().out.rstrip().endswith("--member 1 --checkpoint last")
        assert load_config(tmp_path / "best.yaml").ppo.learning_rate == 0.01
        with (tmp_path / "results.csv").open() as file:
            first, second = csv.DictReader(file)
        others = {"best": 5.0, "mean": 4.0, "last": 5.0}
        assert float(first["return_mean"]) == score
        assert float(second["return_mean"]) == others[objective]


@pytest.mark.toy
def test_training_returns_count_from_the_row_after_the_copy():
    rows = [
        {"charts/episodic_return": 50.0},
        {"charts/episodic_return": 40.0, COPIED: 0.25},
        {"charts/episodic_return": 2.0, COPIED: 0.0},
    ]
    assert value(since_last_copy(rows), "mean") == 2.0
    assert np.isnan(value(since_last_copy(rows[:2]), "mean"))
    assert value(since_last_copy(rows[:1]), "mean") == 50.0


def test_donated_state_of_a_population_does_not_share_buffers_with_the_programs(make_config):
    programs = population(make_config, (1e-3, 1e-2), 1)
    state, read = programs.init().population.hp, programs.hp
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(read), strict=True):
        assert one.unsafe_buffer_pointer() != other.unsafe_buffer_pointer()


@pytest.mark.full
def test_between_selections_members_train_as_if_alone(make_config):
    rates = (1e-3, 1e-2)
    programs = population(make_config, rates, 1)
    state = programs.init()
    programs.compile(state)
    state, _ = programs.train_chunk(state, programs.hp, np.int32(1))
    for i, member in enumerate(programs.setup.members):
        train = make_train(replace(member, total_timesteps=8 * 64, num_shards=1))
        hp = make_hyperparams(programs.setup.config)._replace(learning_rate=jnp.float32(rates[i]))
        alone = jax.jit(train)(jax.random.key(i), hp).agent.params
        ours = jax.tree.map(lambda x, i=i: x[i], state.agent.params)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5), ours, alone
        )


def test_hyperparameters_can_be_vmapped_in_python(make_config, key):
    config = make_config(total_timesteps=48)
    train = jax.jit(jax.vmap(make_train(config)))
    keys = jnp.stack([key, key])
    hp = hyperparams(config, learning_rate=[0.0, 1e-2], gamma=[0.9, 0.9])
    result = train(keys, hp)
    first = jax.jit(
        make_train(replace(config, ppo=replace(config.ppo, learning_rate=1e-2, gamma=0.9)))
    )
    alone = first(key).agent.params
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x[1], y, rtol=1e-4, atol=1e-6),
        result.agent.params,
        alone,
    )
    assert not np.allclose(result.agent.params["actor"]["kernel"][0], alone["actor"]["kernel"])
    with pytest.raises(ValueError, match=r"num_epochs is not a tunable number\. Tunable: clip"):
        hyperparams(config, num_epochs=[1, 2])
    with pytest.raises(ValueError, match="must have the same shape"):
        hyperparams(config, gamma=[0.9], ent_coef=[0.0, 0.1])


CARTPOLE = """
env: {name: gymnax/CartPole-v1, num_envs: 8}
network: {hidden: [16]}
ppo: {rollout_length: 64, num_minibatches: 4, learning_rate_schedule: constant}
eval: {num_episodes: 0}
logging: {tensorboard: false}
total_timesteps: 30000
checkpoint: {interval: 5000}
"""


@pytest.fixture(scope="module")
def finished_population(tmp_path_factory):
    """A folder with `whole`, a finished population, and its output in `out`."""
    folder = tmp_path_factory.mktemp("population")
    (folder / "small.yaml").write_text(CARTPOLE)
    (folder / "ranges.yaml").write_text("ppo.learning_rate: {log_uniform: [1e-6, 1e-2]}\n")
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), optimization():
        patch.chdir(folder)
        assert sweep("--run_dir", "whole") == 0
    (folder / "out").write_text(out.getvalue())
    return folder


@pytest.fixture
def folder(finished_population, tmp_path, monkeypatch):
    shutil.copytree(finished_population, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FLAGS = [
    "--config",
    "small.yaml",
    "--search",
    "population",
    "--num_trials",
    "8",
    "--search_space",
    "ranges.yaml",
]


def sweep(*flags):
    return sweep_command.main([*FLAGS, *flags])


def assert_resumed_exactly():
    whole, parts = (restore(f"{run}/population", "last").state.params for run in ("whole", "parts"))
    jax.tree.map(np.testing.assert_array_equal, whole, parts)


@pytest.mark.full
def test_a_population_abandons_useless_learning_rates(folder):
    assert "compared every" in Path("out").read_text()
    rows = read_csv(Path("whole/population/metrics.csv"))
    rates = [
        np.median([r["population/learning_rate"] for r in rows if r["update"] == update])
        for update in (1, max(r["update"] for r in rows))
    ]
    assert rates[1] > 3 * rates[0]
    assert {r["member"] for r in rows if r["population/parent"] != r["member"]}
    assert Path("whole/sweep.png").stat().st_size > 10_000
    assert "ppo.learning_rate" in Path("whole/results.csv").read_text()


@pytest.mark.full
@pytest.mark.usefixtures("optimized")
def test_a_population_resumes_exactly(folder):
    shutil.copytree("whole", "parts")
    remove_last_checkpoint("parts/population")
    assert sweep("--run_dir", "parts") == 0
    assert_resumed_exactly()


@pytest.mark.full
@pytest.mark.usefixtures("optimized")
def test_a_population_repeats_the_rows_of_hooks_that_failed(folder, monkeypatch):
    shutil.copytree("whole", "parts")
    remove_last_checkpoint("parts/population")

    def fails(hook, run):
        if run.intervals.ended(run.progress):
            raise RuntimeError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(ShowProgress, "act", fails)
        assert sweep("--run_dir", "parts") == 2
    assert sweep("--run_dir", "parts") == 0
    whole, parts = (read_csv(Path(f"{run}/population/metrics.csv")) for run in ("whole", "parts"))
    assert len(whole) == len(parts) and COPIED in whole[-1]
    for row, again in zip(whole[-8:], parts[-8:], strict=True):
        for name in row.keys() - {"seconds", "charts/SPS"}:
            assert again[name] == pytest.approx(row[name], rel=1e-5), name


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
@pytest.mark.xdist_group("processes")
def test_a_population_stopped_by_sigterm_resumes_exactly(folder):
    command = [sys.executable, "-u", "-m", "purejaxppo.sweep", *FLAGS, "--run_dir", "parts"]
    command += ["--checkpoint.interval", "5000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if "steps/s" in line:
            process.terminate()
            break
    process.communicate(timeout=120)
    assert process.returncode == 143
    assert sweep("--run_dir", "parts") == 0
    assert_resumed_exactly()
