"""Auxiliary losses: hand-worked, trained, swept, stored only on request."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import own_code as examples
from support.paths import OWN_CODE as FILE
from support.runs import SMALL_WALK as SMALL

from purejaxppo import learner, load_config, make_train
from purejaxppo.agents.extras import auxiliary_losses
from purejaxppo.agents.extras.auxiliary_losses import AuxiliaryLoss
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
from purejaxppo.runs.pure_training import hyperparams
from purejaxppo.types import Batch, Outputs, RunningStats


def config_of(*own, **overrides):
    return load_config("cartpole.yaml", {**SMALL, "ppo.terms": list(own), **overrides})


def trained(config, updates=1):
    """Return (state, metrics) after some updates."""
    parts = make_parts(config)
    state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
    return state, *jax.jit(train_program(parts))(state, make_hyperparams(config), updates)


@pytest.mark.toy
def test_auxiliary_losses_by_hand():
    names = f"{FILE}:small_features", examples.predict_reward, f"{FILE}:next_position"
    config = config_of(*names, **{"ppo.normalize_obs": True})
    made = make_parts(config).auxiliary_losses
    assert made.rows == ("next_obs", "reward")
    assert made.metric_names == (
        "losses/small_features",
        "losses/reward_error",
        "losses/next_position",
    )
    two = jnp.array([1.0, 2.0])
    batch = Batch(*[two] * len(Batch._fields))._replace(
        obs=two[:, None],
        valid=jnp.ones(2, bool),
        extra={"next_obs": jnp.array([[4.0], [6.0]]), "reward": jnp.array([1.0, -1.0])},
    )
    outputs = Outputs((), two, two, features=jnp.array([[1.0, 3.0], [2.0, 0.0]]))
    params = {"terms": {"reward_error": {"w": jnp.array([1.0, 1.0]), "b": jnp.array(0.5)}}}
    # 16 rows of variance 4 around 0: observations are halved.
    stats = RunningStats(jnp.float32(16), [jnp.zeros(1)], [jnp.full(1, 64.0)])
    found = made.losses(params, outputs, batch, stats)
    np.testing.assert_allclose(found["small_features"], [5.0, 2.0])
    np.testing.assert_allclose(found["reward_error"], [3.5**2, 3.5**2])
    np.testing.assert_allclose(found["next_position"], [(2 - 2) ** 2, (1 - 3) ** 2], atol=1e-5)
    # The next row of the second one is of another episode: only the third loss reads it.
    ends = batch._replace(
        extra=batch.extra | {auxiliary_losses.HAS_NEXT_OBS: jnp.array([True, False])}
    )
    assert made.losses(params, outputs, ends, stats)["next_position"].tolist() == [0, 0]
    ends = batch._replace(
        extra=batch.extra | {auxiliary_losses.HAS_NEXT_OBS: jnp.array([False, True])}
    )
    found = made.losses(params, outputs, ends, stats)
    np.testing.assert_allclose(found["next_position"], [0, (1 - 3) ** 2], atol=1e-5)
    np.testing.assert_allclose(found["small_features"], [5.0, 2.0])
    np.testing.assert_allclose(found["reward_error"], [3.5**2, 3.5**2])


def test_the_total_loss_adds_coefficients_times_auxiliary_losses():
    config = config_of(f"{FILE}:small_features", **{"ppo.term_coefs": [0.25]})
    plain = config_of()

    def loss(config):
        parts = make_parts(config)
        hp = make_hyperparams(config)
        agent = parts.policy.init(jax.random.key(1))
        state = learner.init_state(parts, jax.random.key(0), 0)
        rollout = learner.collect(parts, agent, state.rollout, jax.random.key(2), 0.0)
        rows = rollout.transitions.reward, state.value_stats
        batch = learner.make_batch(parts, agent, rollout, rows[0], hp, rows[1])
        rows = learner.read_minibatch(parts, rollout.stored, batch)
        evaluate = (parts, agent, state.value_stats, hp, agent.params, rows)
        out = parts.policy.apply(agent, (), rows.obs, rows.start)
        return *learner.minibatch_loss(*evaluate), out.features, rows.valid

    total, losses, features, valid = loss(config)
    without, nothing, _, _ = loss(plain)
    mean_squares = np.mean(np.square(features), -1)[np.asarray(valid)].sum()
    assert losses.terms.keys() == {"small_features"}
    assert nothing.terms == {}
    np.testing.assert_allclose(losses.terms["small_features"], mean_squares, rtol=1e-5)
    np.testing.assert_allclose(total, without + 0.25 * mean_squares, rtol=1e-5)


def test_an_auxiliary_loss_may_be_named_terms():
    config = config_of(AuxiliaryLoss(examples.small_features, name="terms"))
    _, _, metrics = trained(config)
    plain = trained(config_of(f"{FILE}:small_features"))[2]
    expected = plain.extras["losses/small_features"]
    np.testing.assert_array_equal(metrics.extras["losses/terms"], expected)


def test_next_obs_is_the_true_last_observation_at_the_end_of_an_episode():
    config = config_of(f"{FILE}:next_position", **{"env.max_episode_steps": 3})
    parts = make_parts(config)
    state = learner.init_state(parts, jax.random.key(0), 0)
    rollout = learner.collect(parts, state.agent, state.rollout, jax.random.key(2), 0.0)
    rows, stored = rollout.transitions, parts.auxiliary_losses.rows_to_store(parts.storage, rollout)
    moved = np.asarray(stored["next_obs"] - rows.obs)[..., 0]
    valid = np.asarray(rows.valid)
    assert (~valid).any()
    np.testing.assert_allclose(moved[valid], (0.5 * (2.0 * rows.action - 1))[valid], atol=1e-6)


@pytest.mark.parametrize("rnn", ["none", pytest.param("gru", marks=pytest.mark.full)])
def test_parameters_of_an_auxiliary_loss_learn_with_the_agent(rnn):
    config = config_of(
        f"{FILE}:predict_reward",
        **{
            "network.rnn": rnn,
            "ppo.learning_rate": 0.01,
            "ppo.num_epochs": 4,
            "total_timesteps": 10_000,
        },
    )
    state, _, first = trained(config)
    assert jax.tree.map(jnp.shape, state.agent.params["terms"]["reward_error"]) == {
        "w": (64,) if rnn == "gru" else (4,),
        "b": (),
    }
    _, after, many = trained(config, 30)
    assert np.abs(after.agent.params["terms"]["reward_error"]["w"]).max() > 0.01
    name = "losses/reward_error"
    late = (float(many.extras[name]) - float(first.extras[name])) / 29
    assert late < 0.7 * float(first.extras[name])


def test_a_zero_coefficient_learns_the_same_as_no_auxiliary_loss():
    _, with_term, _ = trained(config_of(f"{FILE}:next_position", **{"ppo.term_coefs": [0.0]}))
    _, without, _ = trained(config_of())
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6),
        with_term.agent.params,
        without.agent.params,
    )


def test_loss_coefficients_can_vary_within_one_program():
    config = config_of(f"{FILE}:small_features")
    coefs = [0.0, 10.0]
    train = jax.jit(jax.vmap(make_train(config)))
    keys = jnp.stack([jax.random.key(0)] * 2)
    both = train(keys, hyperparams(config, term_coefs=[jnp.array(coefs)]))
    for i, coef in enumerate(coefs):
        alone = jax.jit(make_train(config_of(*config.ppo.terms, **{"ppo.term_coefs": [coef]})))
        jax.tree.map(
            lambda x, y, i=i: np.testing.assert_allclose(x[i], y, atol=1e-5),
            both.agent.params,
            alone(jax.random.key(0)).agent.params,
        )
    errors = both.curves.extras["losses/small_features"]
    assert errors.shape == both.curves.env_steps.shape
    assert errors[1, -1] < errors[0, -1]  # the loss with a coefficient is learned
    with pytest.raises(ValueError, match=r"term_coefs must have 1 arrays, one for each entry of"):
        hyperparams(config, term_coefs=[jnp.zeros(2), jnp.zeros(2)])


def wide(outputs, rows):
    return jnp.zeros(rows.valid.shape) + 0.0 * rows.next_obs.reshape(len(rows.valid), -1)[:, 0]


def test_rows_that_no_auxiliary_loss_uses_are_not_stored():
    def bytes_of(term):
        own = {"env.name": "dummy/vector", "env.reset": "every_rollout", "ppo.rollout_length": 256}
        config = config_of(term, **own)
        parts = make_parts(config)
        state = jax.eval_shape(init_program(parts), jax.random.key(0), shard_ids(parts))
        train = jax.jit(train_program(parts))
        compiled = train.lower(state, make_hyperparams(config), np.int32(1)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    asks = bytes_of(AuxiliaryLoss(wide, rows=("next_obs",), name="wide"))
    one_copy = 256 * 4 * 17 * 4  # T x N x 17 numbers
    assert asks - bytes_of(examples.small_features) > 0.9 * one_copy
    assert bytes_of(examples.small_features) < 1.1 * bytes_of(
        AuxiliaryLoss(lambda o, r: r.value, name="v")
    )


WRONG = [
    ([f"{FILE}:asks_too_late"], r"line \d+ .* rows has no 'reward'. Request it with rows = "),
    ([f"{FILE}:asks_for_the_weather"], "unknown rows 'weather'. Use next_obs, reward"),
    ([f"{FILE}:gives_a_mean"], r"returns float32 \[\]. It must return float32 \[4\]"),
    ([f"{FILE}:plain_gradient"], r"takes \(log_ratio, advantage, hp\). It must take \(outp"),
    ([f"{FILE}:small_features"] * 2, "each with a different name"),
    ([AuxiliaryLoss(examples.small_features, name="entropy")], "each with a different name"),
    (
        [AuxiliaryLoss(examples.small_features, init=examples.zero_weights)],
        r"must take \(params, outputs",
    ),
    (
        [AuxiliaryLoss(examples.predicted_reward, init=lambda key: 0)],
        r"init takes \(key\). It must take",
    ),
]


@pytest.mark.toy
@pytest.mark.parametrize(("own", "message"), WRONG)
def test_an_invalid_auxiliary_loss_gets_a_one_sentence_error(own, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_parts(config_of(*own))
    assert "\n" not in str(caught.value)


@pytest.mark.toy
def test_without_auxiliary_losses_nothing_is_added():
    parts = make_parts(config_of())
    assert parts.auxiliary_losses is auxiliary_losses.NONE
    assert make_hyperparams(parts.config).term_coefs == ()
