"""Imitation of a teacher: losses by hand, the observations that are labelled, carries, results."""

from dataclasses import dataclass, fields
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.runs import setup_of

from purejaxppo import learner
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import PretrainConfig
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.base import TaskStep
from purejaxppo.parts import make_parts
from purejaxppo.runs import pretraining
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.pure_training import make_train
from purejaxppo.spaces import Box, Discrete
from purejaxppo.types import TrainState

GRU = {"rnn": "gru", "rnn_size": 6}


@dataclass(frozen=True)
class Line(BaseTask):
    """A position on a line that starts at 0: action 0 moves by -1, action 1 by 1."""

    observation = Box((2,))
    action = Discrete(2)
    max_episode_steps: int = 7
    cheap_reset = True

    def reset(self, key):
        """Return the position 0 with no velocity."""
        del key
        return jnp.zeros(2), jnp.zeros(2)

    def step(self, key, state, action):
        """Return (position, velocity)."""
        del key
        velocity = 2.0 * action - 1.0
        obs = jnp.stack([state[0] + velocity, velocity])
        return obs, TaskStep(obs, velocity, jnp.array(False), jnp.array(False))


def always(agent, action):
    """Return an agent that always takes an action, by the bias of its head."""
    head = agent.params["actor"]
    bias = jnp.zeros_like(head["bias"]).at[action].set(50.0)
    head = {"kernel": jnp.zeros_like(head["kernel"]), "bias": bias}
    return agent.replace(params=agent.params | {"actor": head})


def initial(config, key):
    """Return an agent with initial parameters."""
    return jax.jit(make_parts(config).policy.init)(key)


def imitation_on_line(make_config, key, actor, *, teacher=None, student=None, env=None):
    """Return the parts of imitation on a line, and the teacher, which always moves by 1.

    `env` has settings of the student's environment. An update is one gradient step, so the loss is
    that of the parameters before it.
    """
    task = {"name": Line()}
    config = make_config(env=task, network=teacher or {})
    agent = Agent(config, always(initial(config, key), 1))
    config = make_config(
        env=task | (env or {}),
        network=student or {},
        ppo={"num_epochs": 1, "num_minibatches": 1},
        pretrain=PretrainConfig("somewhere", actor=actor),
    )
    return pretraining.make_imitation(make_parts(config), agent), agent


def collected(imitation, key, count=1, agent=None):
    """Return the state before the last of several rollouts of an agent, and all rollouts."""
    state, out = jax.jit(partial(learner.init_state, imitation))(key, 0), []
    state = state.replace(agent=agent or state.agent)
    collect = jax.jit(partial(learner.collect, imitation))
    for k in jax.random.split(key, count):
        state = state.replace(rollout=out[-1].end) if out else state
        out.append(collect(state.agent, state.rollout, k, 0.0))
    return state, out


def log_probs(policy, agent, obs, rows):
    """Return the log-probabilities of the actions of rows, from the start of the first episode."""
    carry = policy.network.initial_carry((4,))
    out = jax.jit(policy.unroll)(agent, carry, obs, rows.start)
    return out.carry, policy.distribution.log_prob(out.dist_params, rows.action)


def joined(rollouts):
    """Return the transitions of rollouts, one after the other."""
    return jax.tree.map(lambda *x: jnp.concatenate(x), *(x.transitions for x in rollouts))


def loss_of(imitation, state, rollout):
    """Return the imitation loss of a rollout before its gradient step."""
    learn = jax.jit(partial(imitation.learner.learn, imitation))
    after, metrics = learn(state, rollout, make_hyperparams(imitation.config))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    return metrics.losses.policy_loss


@pytest.mark.parametrize(("actor", "direction"), [("teacher", 1), ("student", -1)])
def test_labels_are_the_teachers_actions_for_the_observations_of_the_actor(
    make_config, key, actor, direction
):
    """The student always moves by -1 and observes 0, -1, ...; the teacher would see 0, 1, ..."""
    imitation, _ = imitation_on_line(make_config, key, actor)
    student = always(imitation.policy.init(key), 0)
    _, (rollout,) = collected(imitation, key, agent=student)
    rows = rollout.transitions
    steps = direction * np.arange(7)
    np.testing.assert_array_equal(rows.obs[:7, 0, 0], steps)
    np.testing.assert_array_equal(rows.obs[8:12, 0, 0], steps[:4])  # row 7 resets
    np.testing.assert_array_equal(rows.reward[:7], direction)
    assert np.all(np.asarray(rows.action) == 1)


def test_an_update_moves_the_logits_by_the_gradient_of_the_cross_entropy(make_config, key):
    """The student's initial probabilities are 1/3 each, up to its small initial weights.

    The gradient of -log p[1] with respect to the logits is p - (0, 1, 0). Gradient descent with
    rate 1 thus adds (-1/3, 2/3, -1/3) to the biases.
    """
    env = {"name": "dummy/choices"}
    teacher_config = make_config(env=env)
    teacher = Agent(teacher_config, always(initial(teacher_config, key), 1))
    ppo = {"num_epochs": 1, "num_minibatches": 1, "learning_rate": 1.0, "max_grad_norm": 0.0}
    config = make_config(
        env=env,
        ppo=ppo | {"optimizer": "sgd", "ent_coef": 0.0, "learning_rate_schedule": "linear"},
        pretrain=PretrainConfig("somewhere", updates=1, actor="student"),
    )
    imitation = pretraining.make_imitation(make_parts(config), teacher)
    hp = make_hyperparams(config)
    pretrained = jax.jit(partial(pretraining.pretrain, imitation))(key, hp)
    bias = pretrained.fields["agent"].params["actor"]["bias"]
    np.testing.assert_allclose(bias, [-1 / 3, 2 / 3, -1 / 3], atol=0.02)
    loss = pretrained.metrics.losses.policy_loss
    np.testing.assert_allclose(loss, [0.0, np.log(3)], atol=0.02)  # the teacher's is log 1 = 0


@pytest.mark.parametrize("actor", ["teacher", "student"])
def test_both_carries_follow_the_rollouts_of_the_actor(make_config, key, actor):
    """Episodes continue from rollout to rollout, and so do both memories."""
    imitation, teacher = imitation_on_line(make_config, key, actor, teacher=GRU, student=GRU)
    state, rollouts = collected(imitation, key, 2)
    rows, last = joined(rollouts), rollouts[1]
    of_teacher, labels = log_probs(teacher.policy, teacher.state, rows.obs, rows)
    of_student, chosen = log_probs(imitation.policy, state.agent, rows.obs, rows)
    assert_close((of_student, of_teacher), last.end.carry)
    np.testing.assert_allclose(labels, rows.log_prob, atol=1e-5)
    expected = np.mean((labels - chosen)[12:], where=np.asarray(last.transitions.valid))
    np.testing.assert_allclose(loss_of(imitation, state, last), expected, atol=1e-5)


def assert_close(a, b):
    """Check that the arrays of two trees are equal up to rounding, and not constant."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
        assert np.std(x) > 1e-3


@pytest.mark.parametrize(
    "env",
    [
        {"obs_indices": (0,)},
        {"obs_indices": (1, 0), "privileged_obs": True},
    ],
)
def test_a_teacher_observes_entries_that_its_student_does_not(make_config, key, env):
    """The teacher's logits are those of the whole vector. The student learns from its entries."""
    imitation, teacher = imitation_on_line(make_config, key, "student", student=GRU, env=env)
    head = jax.random.normal(key, teacher.state.params["actor"]["kernel"].shape)
    teacher.state.params["actor"] = {"kernel": head, "bias": jnp.zeros(2)}  # depends on its inputs
    state, (rollout,) = collected(imitation, key)
    rows = rollout.transitions
    assert rows.obs.shape == (12, 4, 2)
    _, labels = log_probs(teacher.policy, teacher.state, rows.obs, rows)
    assert np.std(labels) > 0.1
    np.testing.assert_allclose(rows.log_prob, labels, atol=1e-5)
    entries = rows.obs[..., np.array(env["obs_indices"])]
    entries = {"obs": entries, "state": rows.obs} if "privileged_obs" in env else entries
    _, chosen = log_probs(imitation.policy, state.agent, entries, rows)
    expected = np.mean(labels - chosen, where=np.asarray(rows.valid))
    np.testing.assert_allclose(loss_of(imitation, state, rollout), expected, atol=1e-5)


def test_a_teacher_of_another_vector_is_rejected_and_one_of_the_same_is_not(
    make_config, monkeypatch, tmp_path, key
):
    def teacher_of(env):
        config = make_config(env=env)
        teacher = Agent(config, initial(config, key))
        monkeypatch.setattr(pretraining, "restore", lambda folder: teacher)
        monkeypatch.setattr(pretraining, "imports", lambda folder: [])

    hidden = {"name": Line(), "obs_indices": (0,)}
    student = make_parts(make_config(env=hidden, pretrain=PretrainConfig(str(tmp_path)))).policy
    teacher_of({"name": "dummy/choices"})
    with pytest.raises(ValueError, match=r"Box\(shape=\(3,\).*entries of the same vector"):
        pretraining.load_teacher(student.config, student)
    teacher_of({"name": Line(), "obs_indices": (1,)})
    pretraining.load_teacher(student.config, student)
    # Same shape, and no common vector: the teacher reads what the student observes.
    teacher_of({"name": "dummy/vector", "obs_indices": (3,)})
    with pytest.raises(ValueError, match="the teacher's action space is"):
        pretraining.load_teacher(student.config, student)


def test_make_train_starts_from_the_pretrained_student(make_config, key, monkeypatch):
    """With a learning rate of 0 in PPO, training returns the parameters after pretraining.

    With a learning rate of 0 as an argument, pretraining changes nothing, either.
    """
    env = {"name": "dummy/choices"}
    config = make_config(
        env=env,
        total_timesteps=48,
        ppo={"learning_rate": 0.01, "learning_rate_schedule": lambda progress: 0.0 * progress},
        pretrain=PretrainConfig("somewhere", updates=3),
    )
    teacher = Agent(config, always(initial(config, key), 1))
    monkeypatch.setattr(pretraining, "load_teacher", lambda config, student: teacher)
    imitation = pretraining.make_imitation(make_parts(config), teacher)
    hp = make_hyperparams(config)
    expected = jax.jit(partial(pretraining.pretrain, imitation))(key, hp).fields["agent"]
    train = make_train(config)
    result = jax.jit(train)(key)
    still = jax.jit(train)(key, hp._replace(learning_rate=jnp.float32(0.0)))
    train.close()
    for x, y in zip(
        jax.tree.leaves(result.agent.params), jax.tree.leaves(expected.params), strict=True
    ):
        np.testing.assert_allclose(x, y, atol=1e-6)
    assert result.agent.params["actor"]["bias"][1] > 0.05
    assert not still.agent.params["actor"]["bias"].any()


def test_each_agent_of_a_sweep_is_pretrained_with_its_own_numbers(make_config, key, monkeypatch):
    rates = (0.0, 0.01)
    config = make_config(
        env={"name": "dummy/choices"}, pretrain=PretrainConfig("somewhere", updates=3)
    )
    members = tuple(config.replace(**{"ppo.learning_rate": rate}) for rate in rates)
    programs = Programs(setup_of(members[0], members=members))
    teacher = Agent(config, always(initial(config, key), 1))
    monkeypatch.setattr(pretraining, "load_teacher", lambda config, student: teacher)
    state, _ = pretraining.teach(programs.parts, programs.key, programs.hp, programs.init())
    still, moved = np.asarray(state.agent.params["actor"]["bias"])
    assert not still.any()
    assert moved[1] > 0.05


def test_pretraining_uses_the_start_of_schedules_and_of_the_curriculum(make_config, key):
    pytest.importorskip("gymnax")

    def pretrained(curriculum, **ppo):
        env = {"name": "gymnax/Pendulum-v1", "curriculum": {"g": curriculum}}
        config = make_config(
            env=env | {"max_episode_steps": 7},
            ppo={"gamma": 0.5, "ent_coef": 0.1, **ppo},
            total_timesteps=96,
            pretrain=PretrainConfig("somewhere", updates=4),
        )
        teacher = Agent(config, initial(config, key))
        imitation = pretraining.make_imitation(make_parts(config), teacher)
        pretrain = jax.jit(partial(pretraining.pretrain, imitation))
        return pretrain(key, make_hyperparams(config)).fields["agent"]

    schedules = {"final_gamma": 0.9, "ent_schedule": "linear"}
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        pretrained("10 to 1", **schedules),
        pretrained("10 to 10"),
    )


def stores_start(config):
    """Return plain gradient descent whose state is the parameters from which it starts."""
    del config
    return optax.GradientTransformation(lambda params: params, lambda g, state, params: (g, state))


def test_an_imitating_agent_keeps_its_statistics_in_ppo(make_config, key, monkeypatch):
    """Values under PopArt and normalised rewards are only valid with their statistics.

    The optimiser starts from the agent's parameters.
    """
    config = make_config(
        env={"name": "dummy/choices", "max_episode_steps": 7},
        network={"hidden": (4,)},
        ppo={
            "critic": "popart",
            "normalize_reward": True,
            "num_epochs": 1,
            "num_minibatches": 1,
            "optimizer": stores_start,
        },
        pretrain=PretrainConfig("somewhere", updates=2),
    )
    programs = Programs(setup_of(config))
    teacher = Agent(config, programs.parts.policy.init(key))
    monkeypatch.setattr(pretraining, "load_teacher", lambda config, student: teacher)
    state = programs.init()
    pretrained, _ = pretraining.teach(programs.parts, programs.key, programs.hp, state)
    jax.tree.map(np.testing.assert_array_equal, pretrained.opt_state, pretrained.agent.params)
    for field in fields(TrainState):
        if field.name == "opt_state":
            continue
        old, new = (jax.tree.leaves(getattr(x, field.name)) for x in (state, pretrained))
        same = all(a is b for a, b in zip(old, new, strict=True))
        assert same == bool(field.metadata["not_taught"]), field.name
    assert pretrained.agent.obs_stats.count == pretrained.value_stats.moments.count > 0
    assert pretrained.reward_stats.count == pretrained.value_stats.moments.count


def test_a_teachers_policy_is_made_before_anything_is_traced(make_config, key):
    """Making the CartPole environment computes its bounds, which would be tracers under a trace."""
    pytest.importorskip("gymnax")
    config = make_config(env={"name": "gymnax/CartPole-v1"})
    teacher = Agent(config, make_parts(config).policy.init(key))
    imitation = pretraining.make_imitation(make_parts(config), teacher)
    hp = make_hyperparams(config)
    pretrained = jax.eval_shape(partial(pretraining.pretrain, imitation), key, hp)
    assert jax.tree.structure(pretrained.fields["agent"]) == jax.tree.structure(teacher.state)


@pytest.mark.parametrize("actor", [pytest.param("teacher", marks=pytest.mark.slow), "student"])
def test_a_student_imitates_its_teacher(make_config, key, actor):
    """The teacher always takes action 1 of a Discrete(3), by its bias; the student has a GRU."""
    env = {"name": "dummy/choices"}
    teacher_config = make_config(env=env)
    teacher = Agent(teacher_config, always(initial(teacher_config, key), 1))
    config = make_config(
        env=env,
        network=GRU,
        ppo={"learning_rate": 1e-2},
        pretrain=PretrainConfig("somewhere", updates=40, actor=actor),
    )
    imitation = pretraining.make_imitation(make_parts(config), teacher)
    hp = make_hyperparams(config)
    agent = jax.jit(partial(pretraining.pretrain, imitation))(key, hp).fields["agent"]
    obs, start = jax.random.normal(key, (50, 3)), jnp.ones(50, bool)
    policy = imitation.policy
    carry = policy.network.initial_carry((50,))
    _, action = jax.jit(policy.mode)(agent, carry, obs, start)
    assert np.mean(np.asarray(action) == 1) > 0.95
