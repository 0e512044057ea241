"""`examples/pathwise.py`: its formulas by hand, its update, and a run that it trains."""

import importlib.util
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from support.paths import ROOT

from purejaxppo import load_config, make_train
from purejaxppo.__main__ import main
from purejaxppo.agents.networks import distributions
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.learner import collect, init_state
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
from purejaxppo.runs.rows import read_csv
from purejaxppo.streams import split_keys
from purejaxppo.types import Transition

SMALL = {
    "env.num_envs": 4,
    "ppo.rollout_length": 8,
    "ppo.num_minibatches": 2,
    "ppo.num_epochs": 2,
    "network.hidden": [8, 8],
    "num_shards": 1,
    "total_timesteps": 96,
}
PATH = ROOT / "examples/pathwise.py"


@pytest.fixture(scope="module")
def pathwise():
    spec = importlib.util.spec_from_file_location("pathwise", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pathwise"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["pathwise"]


def config_of(pathwise, **changes):
    return load_config("pendulum.yaml", pathwise.CHANGES | SMALL | changes)


@pytest.fixture(scope="module")
def collected(pathwise):
    """(parts, first state, rollout, hyperparameters)."""
    config = config_of(pathwise)
    parts, hp = make_parts(config), make_hyperparams(config)

    @jax.jit
    def run(key):
        state = init_state(parts, key, jnp.int32(0))
        keys = split_keys(state.key)
        return state, collect(parts, state.agent, state.rollout, keys.act, 0.0)

    return parts, *run(jax.random.key(0)), hp


@pytest.mark.toy
def test_the_histogram_is_the_mass_of_a_normal_distribution_in_each_bin(pathwise):
    bins = np.linspace(-2.0, 2.0, 9)
    edges = np.linspace(-2.25, 2.25, 10)
    for value, centre in [(0.3, 0.3), (-1.99, -1.99), (2.0, 2.0), (7.0, 2.0), (-50.0, -2.0)]:
        mass = np.diff(norm.cdf(edges, centre, 0.75 * 0.5))
        masses = pathwise.histogram(jnp.float32(value), jnp.asarray(bins, jnp.float32))
        np.testing.assert_allclose(masses, mass / mass.sum(), atol=1e-6)
    inside = pathwise.histogram(jnp.array([[0.3]]), jnp.asarray(bins, jnp.float32))
    assert inside.shape == (1, 1, 9)
    np.testing.assert_allclose(inside @ bins, [[0.3]], atol=2e-3)


@pytest.mark.toy
def test_the_kl_is_that_of_squashed_samples_and_0_for_equal_policies(pathwise):
    rng, dist = np.random.default_rng(0), distributions.tanh_gaussian(2)
    old, new = jnp.array([0.5, -1.0, -0.3, 0.2]), jnp.array([0.1, -0.6, 0.1, -0.2])
    u = old[:2] + jnp.exp(old[2:]) * rng.normal(size=(200_000, 2)).astype(np.float32)
    rows = (jnp.broadcast_to(x, (len(u), 4)) for x in (old, new))
    log_old, log_new = (dist.log_prob(x, u) for x in rows)
    kl = pathwise.kl_divergence(old, new)
    np.testing.assert_allclose(kl, jnp.mean(log_old - log_new), atol=0.005)
    # log(s'/s) + (s² + (m - m')²) / 2s'² - 1/2 with m = 0, s = 1, m' = 1, s' = 2
    by_hand = pathwise.kl_divergence(jnp.zeros(2), jnp.array([1.0, np.log(2.0)]))
    np.testing.assert_allclose(by_hand, np.log(2) + 2 / 8 - 0.5, rtol=1e-6)
    np.testing.assert_allclose(pathwise.kl_divergence(old, old), 0.0, atol=1e-7)


@pytest.mark.toy
def test_multipliers_rise_beyond_their_limits_and_fall_within(pathwise):
    log = {"temperature": jnp.log(0.2), "kl_weight": jnp.log(0.5)}
    slope = jax.grad(pathwise.multiplier_loss)(log, -3.0, 0.3, -1.0, 0.1)
    np.testing.assert_allclose(slope["temperature"], 0.2 * (-3.0 + 1.0), rtol=1e-6)  # descent: up
    np.testing.assert_allclose(slope["kl_weight"], 0.5 * (0.1 - 0.3), rtol=1e-6)  # descent: up
    slope = jax.grad(pathwise.multiplier_loss)(log, 2.0, 0.02, -1.0, 0.1)
    assert slope["temperature"] > 0 and slope["kl_weight"] > 0  # descent: down


def test_truncated_steps_bootstrap_soft_values_and_terminated_ones_do_not(pathwise, collected):
    """γ = 0.5, λ = 0.5, α = 0.1, log π = -2: each next action adds -γ α log π = 0.1."""
    parts, state, rollout, hp = collected

    class Known(pathwise.Networks):
        """Q is the first number of the observation."""

        def value(self, params, stats, obs, action):
            return obs[..., 0]

    networks = Known(parts, pathwise.Settings())
    networks.dist = networks.dist._replace(log_prob=lambda params, u: jnp.full(u.shape[:-1], -2.0))
    column = lambda *x: jnp.array(x)[:, None]  # noqa: E731
    no = column(*[False] * 6)
    obs = jnp.tile(column(1.0, 2.0, 4.0, 8.0, 3.0, 6.0)[..., None], (1, 1, 3))
    rows = Transition(
        obs=obs,
        action=jnp.zeros((6, 1, 1)),
        log_prob=jnp.zeros((6, 1)),
        reward=column(1.0, 2.0, 0.0, 1.0, 5.0, 1.0),
        terminated=no.at[4].set(True),
        truncated=no.at[1].set(True),
        valid=~no.at[2].set(True),
        start=no,
    )
    end = rollout.end.replace(obs=jnp.full((1, 3), 10.0), start=jnp.array([True]))
    rollout = rollout._replace(transitions=rows, end=end)
    log = {"temperature": jnp.log(0.1), "kl_weight": jnp.zeros(())}
    own = state.learner._replace(multipliers=log)
    hp = hp._replace(gamma=0.5, gae_lambda=0.5)
    batch = networks.batch(state.agent, own, rollout, rows.reward, hp, jax.random.key(0))
    expected = [
        # r + 0.1 + γ (½ Q' + ½ G'): Q' = 2 and G' = 4.1 of the next row
        1.1 + 0.5 * (0.5 * 2.0 + 0.5 * 4.1),
        2.1 + 0.5 * 4.0,  # truncated: Q of the true last observation, which is stored in row 2
        0.0,  # not valid
        1.1 + 0.5 * (0.5 * 3.0 + 0.5 * 5.0),
        5.0,  # terminated: neither bootstrap nor next action
        1.1 + 0.5 * 10.0,  # end of the rollout
    ]
    valid = np.array([True, True, False, True, True, True])
    np.testing.assert_allclose(batch.target[valid], np.array(expected)[valid], rtol=1e-5)


def test_truncated_rows_train_the_actor_but_not_the_critic(pathwise, collected):
    parts, state, rollout, hp = collected
    rows = rollout.transitions
    learn = jax.jit(
        lambda rows: parts.learner.learn(parts, state, rollout._replace(transitions=rows), hp)
    )
    cut, metrics = learn(rows._replace(truncated=jnp.ones_like(rows.truncated)))
    jax.tree.map(np.testing.assert_array_equal, cut.learner.critic, state.learner.critic)
    assert not np.array_equal(
        cut.agent.params["actor"]["bias"], state.agent.params["actor"]["bias"]
    )
    assert metrics.losses.skipped == 0 and np.isfinite(metrics.losses.policy_loss)
    whole, _ = learn(rows)
    first, after = (jax.tree.leaves(x.learner.critic) for x in (state, whole))
    assert all(not np.array_equal(x, y) for x, y in zip(first, after, strict=True))


def test_the_first_update_starts_at_a_kl_of_0_and_returns_of_0(pathwise, collected):
    parts, state, rollout, hp = collected
    networks = pathwise.Networks(parts, pathwise.Settings())
    key, reward = jax.random.key(0), rollout.transitions.reward
    batch = networks.batch(state.agent, state.learner, rollout, reward, hp, key)
    assert jnp.abs(batch.value).max() < 0.05
    rows = batch._replace(obs=parts.storage.read(rollout.stored, batch.obs))
    _, losses = networks.actor_loss(state.agent, state.learner, key, state.agent.params, rows)
    np.testing.assert_allclose([losses.approx_kl, losses.clipfrac], 0.0, atol=1e-5)


def test_the_share_of_targets_outside_of_the_bins_is_a_metric(pathwise, collected):
    parts, state, rollout, hp = collected
    for limit, share in ((1e-9, 1.0), (1e9, 0.0)):
        learn = pathwise.make(limit=limit).learn
        _, metrics = jax.jit(lambda state, learn=learn: learn(parts, state, rollout, hp))(state)
        assert metrics.extras["losses/clipped_targets"] == share


def test_two_shards_of_environments_learn_the_same_critic(pathwise):
    config = config_of(pathwise, num_shards=2)
    parts = make_parts(config)
    state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
    after, metrics = jax.jit(train_program(parts))(state, make_hyperparams(config), 2)
    assert after.learner.multipliers["temperature"].shape == ()
    assert metrics.extras["losses/temperature"] > 0 and metrics.finite == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network.distribution": "gaussian"}, "updates need network.distribution = tanh_gaussian"),
        ({"env.name": "gymnax/CartPole-v1"}, "need a Box of observations and a Box of actions"),
        ({"network.rnn": "gru"}, "pathwise updates need network.rnn = none"),
        ({"ppo.symmetry": "augment"}, "pathwise updates need ppo.symmetry = none"),
        ({"intrinsic.kind": "rnd"}, "pathwise updates need intrinsic.kind = none"),
        ({"ppo.epoch_fraction": 0.5}, "pathwise updates need ppo.epoch_fraction = 1.0"),
        ({"ppo.learning_rate_schedule": "adaptive"}, "adaptive: pathwise updates need another"),
    ],
)
def test_unsupported_configs_get_a_one_sentence_error(pathwise, changes, message):
    parts = make_parts(config_of(pathwise, **changes))
    with pytest.raises(ValueError, match=message) as caught:
        jax.eval_shape(init_program(parts), jax.random.key(0), shard_ids(parts))
    assert "\n" not in str(caught.value)


def test_a_resumed_run_equals_an_uninterrupted_one(pathwise, tmp_path, monkeypatch):
    """As a user trains on the command line; the critic and the multipliers are in checkpoints."""
    monkeypatch.chdir(tmp_path)
    words = ["train", "--config", "pendulum.yaml", "--ppo.learner", f"{PATH}:pathwise"]
    words += ["--network.distribution", "tanh_gaussian", "--network.std", "dependent"]
    words += [f"--{name}={x}" for name, x in SMALL.items() if not isinstance(x, list)]
    words += ["--network.hidden", "8", "--eval.num_episodes", "2"]
    words += ["--ppo.learning_rate_schedule", "constant"]
    assert main([*words, "--run_dir", "whole"]) == 0
    for steps in ("64", "96"):
        assert main([*words, "--run_dir", "parts", "--total_timesteps", steps]) == 0
    whole, parts = (read_csv(tmp_path / name / "metrics.csv")[-1] for name in ("whole", "parts"))
    assert whole["update"] == 3
    for name in ("losses/value_loss", "losses/approx_kl", "losses/temperature", "losses/kl_weight"):
        assert whole[name] == parts[name], name


@pytest.mark.full
def test_pathwise_updates_learn_pendulum(pathwise):
    """A random policy has a return of about -1,200."""
    changes = {"network.hidden": [64, 64], "total_timesteps": 150_000}
    config = load_config("pendulum.yaml", pathwise.CHANGES | changes)
    curves = jax.jit(make_train(config, num_points=10))(jax.random.key(1)).curves
    assert np.nanmax(curves.episodic_return) > -500


@pytest.mark.full
def test_the_pathwise_comparison_prints_a_table_and_resumes(
    pathwise, tmp_path, monkeypatch, capsys
):
    rows = tmp_path / "rows.jsonl"
    small = [f"{name}={json.dumps(x)}" for name, x in SMALL.items() if name.startswith("ppo")]
    words = ["--config", "pendulum.yaml", "--seeds", "2", "--steps", "40000", "--rows", str(rows)]
    monkeypatch.setattr(sys, "argv", ["pathwise.py", *words, "--set", *small, "num_bins=11"])
    pathwise.main()
    first = rows.read_text()
    assert len(first.splitlines()) == 2
    table = capsys.readouterr().out
    assert "| pendulum.yaml | ppo | 40,000 |" in table and "| pathwise | 40,000 |" in table
    pathwise.main()
    assert rows.read_text() == first and capsys.readouterr().out == table


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--set", "num_bns=11"], "num_bns: unknown setting. Settings: num_bins, limit,"),
        (["--set", "network.activation=relu"], "--set network.activation=relu: must be NAME=JSON"),
        (["--set", "ppo.foo=1"], "ppo.foo: unknown key"),
        (["--config", "none.yaml"], "none.yaml"),
    ],
)
def test_invalid_flags_of_the_comparison_get_a_one_sentence_error(
    pathwise, monkeypatch, tmp_path, capsys, flags, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pathwise.py", *flags])
    with pytest.raises(SystemExit) as caught:
        pathwise.main()
    assert caught.value.code == 2 and message in capsys.readouterr().err
