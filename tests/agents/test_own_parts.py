"""Custom estimators, bonuses, distributions, optimisers and schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import own_code as examples
from support.paths import OWN_CODE as FILE
from support.runs import SMALL_WALK as SMALL

from purejaxppo import load_config, make_train
from purejaxppo.agents import optimizers, schedules
from purejaxppo.agents.networks import distributions
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import PPOConfig
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
from purejaxppo.spaces import Box, Dict, Discrete
from purejaxppo.types import Estimates


def config_of(**overrides):
    return load_config("cartpole.yaml", SMALL | overrides)


def trained(config, updates=1, **hooks):
    parts = make_parts(config, **hooks)
    state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
    return jax.jit(train_program(parts))(state, make_hyperparams(config), updates)


def params_of(config, **hooks):
    return trained(config, **hooks)[0].agent.params


def assert_same(one, other):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), one, other)


def test_a_custom_one_step_estimator_equals_gae_with_lambda_0():
    own = config_of(**{"ppo.advantage": f"{FILE}:one_step"})
    assert_same(params_of(own), params_of(config_of(**{"ppo.gae_lambda": 0.0})))


def test_parts_can_be_replaced_from_python():
    def one_step(*args):
        return Estimates(*examples.one_step(*args))

    def change(parts):
        return parts._replace(advantages=one_step)

    own = config_of(**{"ppo.advantage": f"{FILE}:one_step"})
    assert_same(params_of(config_of(), change=change), params_of(own))
    result = jax.jit(make_train(config_of(total_timesteps=32), parts=change))(jax.random.key(0))
    assert result.curves.losses.policy_loss.shape == (1,)


def test_a_custom_bonus_has_a_state_and_a_metric():
    config = config_of(**{"intrinsic.kind": f"{FILE}:height_bonus"})
    state, metrics = trained(config, 3)
    assert int(state.intrinsic) == 3
    assert float(metrics.extras["intrinsic/updates"]) == 0 + 1 + 2
    rows = make_parts(config).bonus
    assert rows.metric_names == ("intrinsic/updates",)
    without = params_of(config_of())
    assert not np.allclose(
        params_of(config)["critic"]["bias"], without["critic"]["bias"], atol=1e-9
    )


def test_a_custom_update_has_a_state_and_a_metric():
    state, metrics = trained(config_of(**{"ppo.learner": f"{FILE}:counted"}), 3)
    assert int(state.learner) == 3
    assert float(metrics.extras["mine/updates"]) == 0 + 1 + 2
    plain, _ = trained(config_of(), 3)
    assert plain.learner == ()
    assert_same(state.agent.params, plain.agent.params)


def test_a_metric_that_a_custom_update_does_not_list_gets_a_one_sentence_error():
    with pytest.raises(ValueError, match="mine/updates is a metric of an update, but the "):
        trained(config_of(**{"ppo.learner": f"{FILE}:uncounted"}))


def test_a_custom_optimiser_takes_half_of_sgds_steps():
    whole = config_of(**{"ppo.optimizer": "sgd"})
    half = config_of(**{"ppo.optimizer": f"{FILE}:half_gradient"})
    double = config_of(
        **{
            "ppo.optimizer": f"{FILE}:half_gradient",
            "ppo.learning_rate": whole.ppo.learning_rate * 2,
        }
    )
    assert_same(params_of(whole), params_of(double))
    gradient = jnp.full(64, 2.0)
    optimizer = optimizers.make(half.ppo, {"w": jnp.zeros(64)})
    update, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    np.testing.assert_allclose(update, 1.0)


@pytest.mark.toy
def test_a_custom_distribution_by_hand():
    made = distributions.for_space(Box((2,)), f"{FILE}:unit_normal")
    mean, action = jnp.array([[0.0, 1.0]]), jnp.array([[2.0, 1.0]])
    np.testing.assert_allclose(made.log_prob(mean, action), [-2 - np.log(2 * np.pi)], rtol=1e-6)
    both = Dict.of({"a": Discrete(3), "b": Box((2,))})
    assert distributions.for_space(both, f"{FILE}:unit_normal").num_params == 5
    kinds = distributions.parameter_kinds(both, f"{FILE}:unit_normal").tolist()
    assert kinds == ["logit"] * 3 + ["other"] * 2


def test_a_policy_with_a_custom_distribution_trains():
    config = config_of(
        **{
            "env.name": "dummy/choices",
            "env.options": {"kind": "box"},
            "network.distribution": f"{FILE}:unit_normal",
        }
    )
    params = params_of(config)
    assert params["actor"]["bias"].shape == (2,)
    assert "log_std" not in params


@pytest.mark.toy
def test_a_custom_schedule_starts_learning_halfway():
    config = config_of(**{"ppo.learning_rate_schedule": f"{FILE}:late_start"})
    hp = make_hyperparams(config)
    rates = [schedules.scheduled(hp, config.ppo, update).learning_rate for update in range(3)]
    np.testing.assert_allclose(rates, np.float32(config.ppo.learning_rate) * np.array([0, 0, 1]))


WRONG = [
    (
        {"ppo.advantage": f"{FILE}:advantage_alone"},
        r"ppo.advantage.* returns float32 \[3, 2\]. It must return",
    ),
    (
        {"ppo.advantage": f"{FILE}:plain_gradient"},
        r"It must take \(transitions, reward, pred",
    ),
    ({"ppo.advantage": "gea"}, "must be one of gae, vtrace, or custom code as file.py:Name"),
    ({"intrinsic.kind": f"{FILE}:silent_bonus"}, "returns {0: int32 .*, 1.intrinsic/updates"),
    ({"intrinsic.kind": f"{FILE}:half_gradient"}, r"takes \(config\). It must take"),
    ({"intrinsic.kind": f"{FILE}:two_arguments"}, "intrinsic.kind.*raises TypeError"),
    (
        {"ppo.clip_schedule": f"{FILE}:two_numbers"},
        r"returns float32 \[2\]. It must return float32 \[\]",
    ),
    ({"ppo.clip_schedule": f"{FILE}:Walk"}, "ppo.clip_schedule"),
]


@pytest.mark.toy
@pytest.mark.parametrize(("overrides", "message"), WRONG)
def test_an_invalid_custom_part_gets_a_one_sentence_error(overrides, message):
    with pytest.raises(ValueError, match=message) as caught:
        parts = make_parts(config_of(**overrides))
        jax.eval_shape(init_program(parts), jax.random.key(0), shard_ids(parts))
    assert "\n" not in str(caught.value)


def test_a_distribution_whose_log_prob_is_not_summed_is_rejected():
    wrong = r"network.distribution.*log_prob returns float32 \[4, 2\]. It must return"
    with pytest.raises(ValueError, match=wrong):
        distributions.for_space(Box((2,)), f"{FILE}:unsummed")


@pytest.mark.toy
def test_the_default_optimizer_is_built_in():
    assert optimizers.make(PPOConfig(), {"w": jnp.zeros(3)}).unravel(jnp.zeros(64))["w"].shape == (
        3,
    )
