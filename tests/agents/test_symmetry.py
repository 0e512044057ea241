"""Mirrors: gradients of both halves, losses of symmetric policies, observations unnormalised."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from purejaxppo import learner, load_config
from purejaxppo.agents import normalize, optimizers, ppo
from purejaxppo.agents.extras import symmetry
from purejaxppo.agents.networks import distributions
from purejaxppo.agents.obs_storage import FullObs, WindowedObs
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.cli import train
from purejaxppo.parts import make_parts
from purejaxppo.spaces import Box, Dict, Discrete
from purejaxppo.types import RunningStats

CARTPOLE = {
    "name": "gymnax/CartPole-v1",
    "mirror_obs": (-1, -2, -3, -4),
    "mirror_action": (2, 1),
}
# Gradients can be read off a step of these.
PLAIN = {
    "optimizer": "sgd",
    "learning_rate": 1.0,
    "learning_rate_schedule": "constant",
    "max_grad_norm": 0.0,
    "num_epochs": 1,
    "num_minibatches": 1,
    "advantage_normalization": "none",
    "rollout_length": 12,
    "ent_coef": 0.01,
}


def experience_of(parts, key, stats=None):
    """Return an agent, with other observation statistics; a rollout, its batch; hyperparameters."""
    state = jax.jit(partial(learner.init_state, parts))(key, 0)
    agent = state.agent if stats is None else state.agent.replace(obs_stats=stats)
    rollout = jax.jit(partial(learner.collect, parts))(agent, state.rollout, key, 0.0)
    hp, reward = make_hyperparams(parts.config), rollout.transitions.reward
    make_batch = jax.jit(partial(learner.make_batch, parts))
    return agent, rollout, make_batch(agent, rollout, reward, hp, state.value_stats), hp


def asymmetric_stats(size):
    """Return statistics of vectors [size] whose normalisation does not commute with a mirror."""
    return RunningStats(
        jnp.float32(10), [jnp.arange(1.0, 1 + size) / 10], [jnp.arange(2.0, 2 + size)]
    )


def of_minibatch(function, parts, agent, hp):
    """Return (params, rows) -> result of a function of the learner for a minibatch."""
    return partial(function, parts, agent, normalize.init_value_stats(), hp)


def step(parts, agent, rollout, batch, hp, key):
    """Return the change of the flat parameters in one gradient step."""
    params, _, losses = ppo.update_epochs(
        ppo.Update(
            loss=of_minibatch(learner.minibatch_loss, parts, agent, hp),
            psum=lambda x: x,
            prepare=partial(learner.read_minibatch, parts, rollout.stored),
        ),
        agent.params,
        optimizers.init_state(parts.config.ppo, agent.params),
        batch,
        hp,
        key,
        config=parts.config.ppo,
        num_envs=parts.env.spec.num_envs,
    )
    return ravel_pytree(jax.tree.map(jnp.subtract, agent.params, params))[0], losses


def test_an_augmented_step_takes_the_mean_gradient_of_both_halves(make_config, key):
    parts = make_parts(make_config(env=CARTPOLE, ppo={**PLAIN, "symmetry": "augment"}))
    plain = make_parts(make_config(env=CARTPOLE, ppo=PLAIN))
    agent, rollout, batch, hp = experience_of(parts, key, asymmetric_stats(4))
    got, losses = jax.jit(lambda: step(parts, agent, rollout, batch, hp, key))()
    # Before the first step the policy is the one that acted, on the rows that it acted on.
    np.testing.assert_allclose(losses.approx_kl, 0.0, atol=1e-7)
    assert losses.clipfrac == 0

    # By hand, and by an update without mirrors: raw observations are negated, then normalised.
    rows = rollout.transitions

    def loss(params, sign):
        obs, action = sign * rows.obs.reshape(-1, 4), rows.action.reshape(-1)
        half = batch._replace(obs=obs, action=action if sign > 0 else 1 - action)
        total, _ = of_minibatch(learner.minibatch_loss, plain, agent, hp)(params, half)
        return total / half.valid.sum()

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    own, other = (ravel_pytree(gradient(agent.params, sign))[0] for sign in (1.0, -1.0))
    assert float(jnp.abs(own - other).max()) > 1e-3  # an untrained policy is not symmetric
    np.testing.assert_allclose(got, (own + other) / 2, atol=2e-6)
    _, rollout, batch, _ = experience_of(plain, key, asymmetric_stats(4))
    alone, _ = jax.jit(lambda: step(plain, agent, rollout, batch, hp, key))()
    np.testing.assert_allclose(alone, own, atol=2e-6)


def test_the_symmetry_loss_is_added_with_its_coefficient(make_config, key):
    parts = make_parts(make_config(env=CARTPOLE, ppo={**PLAIN, "symmetry": "loss"}))
    agent, rollout, batch, hp = experience_of(parts, key, asymmetric_stats(4))
    rows = rollout.transitions

    def by_hand(params):
        def probabilities(obs):
            seen = parts.policy.normalize_obs(agent.obs_stats, obs)
            out = parts.policy.network.apply(params, (), seen, jnp.ones(len(obs), bool))
            logits = out.dist_params
            return jnp.exp(logits) / jnp.exp(logits).sum(-1, keepdims=True)

        obs = rows.obs.reshape(-1, 4)
        difference = probabilities(-obs)[:, ::-1] - probabilities(obs)
        return jnp.square(difference).sum(-1)

    evaluate = jax.jit(of_minibatch(learner.evaluate_minibatch, parts, agent, hp))
    got = evaluate(agent.params, batch).penalty
    np.testing.assert_allclose(got, jax.jit(by_hand)(agent.params), rtol=1e-4, atol=1e-9)

    def mean(params):
        return jnp.mean(by_hand(params), where=batch.valid)

    @jax.jit
    def gradient(coef):
        return step(parts, agent, rollout, batch, hp._replace(symmetry_coef=coef), key)[0]

    gradients = [gradient(jnp.float32(c)) for c in (0.0, 3.0)]
    expected = 3 * ravel_pytree(jax.jit(jax.grad(mean))(agent.params))[0]
    assert float(jnp.abs(expected).max()) > 1e-4
    np.testing.assert_allclose(gradients[1] - gradients[0], expected, atol=1e-5)


def without_biases(params):
    """Return parameters of a tanh network without biases, an odd function."""
    return jax.tree.map_with_path(
        lambda path, x: jnp.zeros_like(x) if path[-1].key == "bias" else x, params
    )


@pytest.mark.parametrize(
    "distribution",
    [
        *(pytest.param(name, marks=pytest.mark.full) for name in ("gaussian", "tanh_gaussian")),
        "beta",
        "categorical",
    ],
)
def test_a_symmetric_policy_has_no_symmetry_loss(make_config, key, distribution):
    env = {"name": "dummy/vector", "mirror_obs": tuple(-i for i in range(1, 18))}
    env["mirror_action"] = tuple(-i for i in range(1, 7))
    network = {"hidden": (8,)}
    if distribution == "categorical":
        env = CARTPOLE
    else:
        network["distribution"] = distribution
    config = make_config(
        env=env, network=network, ppo={**PLAIN, "symmetry": "loss", "normalize_obs": False}
    )
    parts = make_parts(config)
    agent, _, batch, hp = experience_of(parts, key)
    params = jax.jit(parts.policy.init)(jax.random.key(1)).params
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(key, x.shape), params)
    symmetric = without_biases(params)
    if distribution == "categorical":
        kernel = symmetric["actor"]["kernel"]
        symmetric["actor"]["kernel"] = jnp.stack([kernel[:, 0], -kernel[:, 0]], -1)
    if distribution == "beta":  # swaps its two concentrations with the sign of the action
        kernel = symmetric["actor"]["kernel"]
        symmetric["actor"]["kernel"] = jnp.concatenate([kernel[:, :6], -kernel[:, :6]], -1)
    evaluate = jax.jit(of_minibatch(learner.evaluate_minibatch, parts, agent, hp))
    np.testing.assert_allclose(evaluate(symmetric, batch).penalty, 0.0, atol=1e-11)
    assert float(evaluate(params, batch).penalty.mean()) > 1e-3


def test_mirrored_recurrent_sequences_start_with_an_empty_carry(make_config, key):
    config = make_config(
        env=CARTPOLE,
        network={"hidden": (8,), "rnn": "gru", "rnn_size": 8},
        ppo={**PLAIN, "symmetry": "augment", "bptt_length": 4},
    )
    parts = make_parts(config)
    agent, rollout, batch, hp = experience_of(parts, key, asymmetric_stats(4))
    rows = learner.read_minibatch(parts, rollout.stored, batch)
    assert rows.obs.shape == (24, 4, 4)
    assert rows.log_prob.shape == (24, 4)
    evaluate = jax.jit(of_minibatch(learner.evaluate_minibatch, parts, agent, hp))
    evaluation = evaluate(agent.params, rows)
    unroll = jax.jit(parts.policy.network.unroll)
    for unit in (0, 5, 11):
        obs = parts.policy.normalize_obs(agent.obs_stats, -batch.obs[unit])[:, None]
        start, carry = batch.start[unit][:, None], parts.policy.network.initial_carry((1,))
        logits = unroll(agent.params, carry, obs, start).dist_params[:, 0]
        expected = jax.nn.log_softmax(logits)[jnp.arange(4), 1 - batch.action[unit]]
        np.testing.assert_allclose(evaluation.log_prob[12 + unit], expected, rtol=1e-5)
    np.testing.assert_array_equal(rows.log_prob[12:], batch.log_prob)
    np.testing.assert_array_equal(rows.advantage[12:], batch.advantage)


@pytest.mark.parametrize("kind", ["augment", pytest.param("loss", marks=pytest.mark.full)])
def test_a_symmetric_step_on_stored_series_equals_one_on_full_windows(key, kind):
    small = {
        "env.num_envs": 4,
        "env.options": {"num_neurons": 20, "history": 10, "warmup": 10},
        "env.max_episode_steps": 7,
        "env.mirror_obs": tuple(range(-1, -11, -1)),
        "env.mirror_action": (-1,),
        "ppo.symmetry": kind,
        "ppo.normalize_obs": True,  # without, a policy is symmetric until it has learned
        "ppo.normalize_reward": False,
        **{f"ppo.{name}": value for name, value in PLAIN.items()},
    }
    parts = make_parts(load_config("oscillator.yaml", small))
    whole = parts._replace(storage=FullObs())
    one_sided = parts._replace(symmetry=symmetry.Symmetry(ppo.unchanged, symmetry.no_penalty))
    assert isinstance(parts.storage, WindowedObs)
    agent, rollout, batch, hp = experience_of(parts, key, asymmetric_stats(10))
    hp = hp._replace(symmetry_coef=jnp.float32(1))
    windows = parts.storage.read(rollout.stored, batch.obs)
    in_full = rollout._replace(stored=()), batch._replace(obs=windows)
    changes, seen = [], []
    for given in [(parts, rollout, batch), (whole, *in_full), (one_sided, rollout, batch)]:
        change, _ = jax.jit(lambda given=given: step(given[0], agent, *given[1:], hp, key))()
        changes.append(change)
        seen.append(learner.read_minibatch(given[0], given[1].stored, given[2]).obs)
    np.testing.assert_array_equal(seen[0], seen[1])
    if kind == "augment":
        np.testing.assert_array_equal(seen[0], np.concatenate([seen[2], -seen[2]]))
    np.testing.assert_allclose(changes[0], changes[1], rtol=1e-5, atol=2e-6)
    assert float(jnp.abs(changes[0] - changes[2]).max()) > 1e-3


def mirror_of(make_config, observation, action, obs, act, distribution="gaussian"):
    config = make_config(
        env={"mirror_obs": obs, "mirror_action": act},
        network={"distribution": distribution},
        ppo={"symmetry": "augment"},
    )
    dist = distributions.for_space(action, distribution)
    return symmetry.make_mirror(config, observation, action, dist)


@pytest.mark.toy
def test_mirrors_by_hand(make_config):
    space = Box((4,))
    mirror = mirror_of(make_config, space, Discrete(3), (-1, 2, 4, 3), (2, 1, 3))
    np.testing.assert_array_equal(mirror.obs(jnp.array([1.0, 2, 3, 4])), [-1, 2, 4, 3])
    np.testing.assert_array_equal(mirror.action(jnp.array([0, 1, 2])), [1, 0, 2])
    swapped = mirror.mirrored_choice(jnp.array([0.25, 0.5, 0.75]))
    np.testing.assert_array_equal(swapped, [0.5, 0.25, 0.75])
    mirror = mirror_of(make_config, space, Box((3,), -1.0, 1.0), (1, 2, 3, 4), (2, 1, -3), "beta")
    # A Beta's sample x in (0, 1) is the action 2x - 1, so that -(2x - 1) is 1 - x.
    np.testing.assert_allclose(
        mirror.action(jnp.array([0.1, 0.2, 0.7])), [0.2, 0.1, 0.3], rtol=1e-6
    )


def test_a_dict_observation_is_mirrored_as_the_concatenation_of_its_parts(make_config):
    space = Dict.of({"b": Box((2,)), "a": Box((3,))})  # a comes first
    mirror = mirror_of(make_config, space, Box((1,), -1.0, 1.0), (-4, 3, 2, -1, 5), (-1,))
    image = mirror.obs({"a": jnp.array([[1.0, 2, 3]]), "b": jnp.array([[4.0, 5]])})
    np.testing.assert_array_equal(image["a"], [[-4, 3, 2]])
    np.testing.assert_array_equal(image["b"], [[-1, 5]])


@pytest.mark.parametrize(
    ("obs", "action", "message"),
    [
        ((), (2, 1), "env.mirror_obs = [] has 0 entries, but needs 4"),
        ((1, 2, 3), (2, 1), "has 3 entries, but needs 4"),
        ((1, 2, 3, 3), (2, 1), "is not a permutation of 1 to 4"),
        ((0, 1, 2, 3), (2, 1), "is not a permutation"),
        ((2, 3, 1, 4), (2, 1), "is not its own inverse: entry 1 is 2, so entry 2 must be 1"),
        ((-2, 1, 3, 4), (2, 1), "entry 1 is -2, so entry 2 must be -1"),
        ((1, 2, 3, 4), (-2, -1), "Remove the minus signs"),
    ],
)
def test_an_invalid_mirror_is_rejected(make_config, obs, action, message):
    env = {**CARTPOLE, "mirror_obs": obs, "mirror_action": action}
    with pytest.raises(ValueError, match="mirror_") as error:
        make_parts(make_config(env=env, ppo={"symmetry": "loss"}))
    assert message in str(error.value)


def test_observations_that_cannot_be_mirrored_are_rejected(make_config):
    env = {"name": "dummy/pixels", "mirror_obs": (1,), "mirror_action": (1,)}
    with pytest.raises(
        ValueError, match=r"ppo\.symmetry = \w+ needs observations that are vectors"
    ):
        make_parts(make_config(env=env, ppo={"symmetry": "augment"}))


def test_symmetry_can_be_set_on_the_command_line(tmp_path):
    flags = (
        "--config cartpole.yaml --env.mirror_obs -1 -2 -3 -4 --env.mirror_action 2 1 "
        "--ppo.symmetry loss --ppo.symmetry_coef 0.5 --env.num_envs 4 --ppo.rollout_length 8 "
        "--total_timesteps 64 --eval.num_episodes 0 --logging.no_tensorboard"
    )
    assert train.main([*flags.split(), "--run_dir", str(tmp_path / "run")]) == 0
    assert "symmetry: loss" in (tmp_path / "run" / "config.yaml").read_text()
