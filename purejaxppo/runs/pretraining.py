"""Imitation of a teacher before PPO starts.

The teacher is an agent from a checkpoint. In the student's environments, either the student acts
(DAgger, Ross et al. 2011, https://arxiv.org/abs/1011.0686, on the newest rollout only, as in
rsl_rl) or the teacher (behavioural cloning, Pomerleau 1991). The student's loss is the negative
log-likelihood of the teacher's actions for the observations of these rollouts, and its critic
learns their returns. Minibatches, epochs and the optimiser are those of PPO. Teacher and student
may have different networks, memories and distributions, and observe different entries of the same
vector. Both recurrent carries follow the rollout.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo import learner
from purejaxppo.agents.policy import Policy
from purejaxppo.aliases import Array, Carry, Key, Obs
from purejaxppo.config.references import located
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.wrappers import observed_entries
from purejaxppo.learner import Parts
from purejaxppo.parts import (
    STATE_AXES,
    from_new_agent,
    init_program,
    make_env,
    make_parts,
    shard_ids,
    train_program,
)
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.checkpoint import restore
from purejaxppo.runs.console import print_line
from purejaxppo.runs.folder import imports
from purejaxppo.spaces import Space
from purejaxppo.streams import STUDENT, stream
from purejaxppo.types import (
    AgentState,
    Hyperparams,
    Metrics,
    PolicyStep,
    Rollout,
    Trained,
    TrainState,
)

Change = Callable[[Parts], Parts] | None
"""A function from the parts that a config selects to the parts to train with."""


def load_teacher(config: Config, student: Policy) -> Agent:
    """Load the teacher of a config: the best agent of a run.

    Raises:
        ValueError: the run does not exist or has several agents, or its spaces differ from the
            student's.
    """
    folder = located(config.pretrain.teacher)
    if not Path(folder).is_dir():
        raise ValueError(f"pretrain.teacher = {folder}: run folder not found")
    for line in imports(folder):
        print_line(line)
    teacher = restore(folder)
    if teacher.members:
        raise ValueError(
            f"pretrain.teacher = {folder}: the run trained {len(teacher.members)} agents (seeds or "
            f"settings of a sweep). Use a run with one seed."
        )
    actor = teacher.policy
    for name, teacher_space, student_space, may_differ in (
        ("observation", actor.observation, student.observation, share_vector(actor, student)),
        ("action", actor.action, student.action, False),
    ):
        if teacher_space != student_space and not may_differ:
            raise ValueError(
                f"pretrain.teacher = {folder}: the teacher's {name} space is {teacher_space}, but "
                f"the student's is {student_space}. They must be equal. Observations may also be "
                f"entries of the same vector (env.obs_indices)."
            )
    return teacher


def share_vector(teacher: Policy, student: Policy) -> bool:
    """Return True if teacher and student observe different entries of the same vector."""
    chosen = [(x.config.env.obs_indices, x.config.env.privileged_obs) for x in (teacher, student)]
    return chosen[0] != chosen[1] and whole_vector(teacher) == whole_vector(student)


def whole_vector(policy: Policy) -> Space:
    """Return the space of the observation from which a policy's `env.obs_indices` choose."""
    if not policy.config.env.obs_indices:
        return policy.observation
    return registry.make(all_entries(policy.config).env, 1, evaluation=True).spec.observation


def all_entries(config: Config) -> Config:
    """Return the config without `env.obs_indices`."""
    return config.replace(**{"env.obs_indices": (), "env.privileged_obs": False})


IMITATION: dict[str, Any] = {
    "learner": "ppo",
    "objective": "imitate",
    "advantage": "gae",
    "learning_rate_schedule": "constant",
    "learning_rate_warmup": 0.0,
    "early_stop_kl": False,
    "recompute_advantages": False,
}
"""Settings of ppo for imitation. The student learns actions instead of rewards."""


def load_imitation(student: Parts, change: Change = None) -> Parts:
    """Load the teacher of the config and return the parts of its imitation; see `load_teacher`."""
    return make_imitation(student, load_teacher(student.config, student.policy), change)


def make_imitation(student: Parts, teacher: Agent, change: Change = None) -> Parts:
    """Return the parts with which a student learns a teacher's actions.

    The rollout state contains the carries of both and, if they observe different entries of a
    vector, the whole vector. The update gets the carry and the entries of the student.

    Args:
        student: the parts of the run.
        teacher: the agent whose actions are the labels.
        change: see `make_parts`. It is applied here as well.
    """
    config = student.config
    student_acts = config.pretrain.actor == "student"
    settings, no_bonus = replace(config.ppo, **IMITATION), replace(config.intrinsic, kind="none")
    config = replace(config, ppo=settings, intrinsic=no_bonus)
    parts = make_parts(config, student.shards, change=change)
    expert = teacher.policy  # outside of tracing, because it makes an environment
    shared = share_vector(expert, parts.policy)

    def entries(policy: Policy, obs: Obs) -> Obs:
        if not shared:
            return obs
        env = policy.config.env
        return observed_entries(obs, np.array(env.obs_indices), env.privileged_obs)

    def initial_carry(batch: tuple[int, ...]) -> Carry:
        return parts.initial_carry(batch), expert.network.initial_carry(batch)

    def act(agent: AgentState, key: Key, carry: Carry, obs: Obs, start: Array) -> PolicyStep:
        obs_of_student = entries(parts.policy, obs)
        choice = parts.act(agent, stream(key, STUDENT), carry[0], obs_of_student, start)
        label = expert.act(teacher.state, key, carry[1], entries(expert, obs), start)
        return PolicyStep(
            carry=(choice.carry, label.carry),
            action=parts.policy.distribution.from_env(label.env_action),
            log_prob=label.log_prob,
            env_action=choice.env_action if student_acts else label.env_action,
        )

    def learn(parts: Parts, state: TrainState, rollout: Rollout, hp: Hyperparams) -> Trained:
        rows, end = rollout.transitions, rollout.end
        of_student = rollout._replace(
            transitions=rows._replace(obs=entries(parts.policy, rows.obs)),
            end=end.replace(obs=entries(parts.policy, end.obs)),
            carry=rollout.carry[0],
        )
        after, metrics = learner.learn(parts, state, of_student, hp)
        return after.replace(rollout=after.rollout.replace(obs=end.obs)), metrics

    env = make_env(all_entries(parts.config)) if shared else parts.env
    return parts._replace(
        env=env,
        act=act,
        initial_carry=initial_carry,
        learner=learner.PPO._replace(learn=learn),
    )


class Pretrained(NamedTuple):
    """Result of pretraining."""

    fields: dict[str, Any]
    """The learned fields of a TrainState: all except those marked `not_taught`. They include the
    statistics of targets and rewards, because the critic's values depend on them."""
    metrics: Metrics
    """Sums over the first updates and over the last tenth, [2]."""


def pretrain(parts: Parts, key: Key, hp: Hyperparams) -> Pretrained:
    """Train a student on a teacher; a pure function.

    The learning rate has no schedule or warm-up. Other schedules, `ppo.final_gamma` and curricula
    keep their values of the start of the run.

    Args:
        parts: parts from `make_imitation`.
        key: the run's key, or one key per agent [M].
        hp: hyperparameters, of each agent [M] if there is a key per agent.
    """
    hp = hp._replace(total_updates=jnp.full_like(hp.total_updates, jnp.inf))
    train = train_program(parts)
    updates = parts.config.pretrain.updates
    chunks = jnp.array([updates - last_updates(updates), last_updates(updates)], jnp.int32)
    state = init_program(parts)(key, shard_ids(parts))
    after, metrics = jax.lax.scan(lambda state, n: train(state, hp, n), state, chunks)
    names = [f.name for f in fields(TrainState) if not f.metadata["not_taught"]]
    return Pretrained({name: getattr(after, name) for name in names}, metrics)


def last_updates(updates: int) -> int:
    """Return the number of updates whose mean loss is reported."""
    return -(-updates // 10)


def teach(
    student: Parts, key: Key, hp: Hyperparams, state: TrainState, change: Change = None
) -> tuple[TrainState, str]:
    """Train the agent of a new run on the config's teacher.

    Args:
        student: the parts of the run.
        key: one key per agent [M].
        hp: hyperparameters of each agent [M].
        state: training state before the first update.
        change: see `make_parts`. It is applied here as well.

    Returns:
        (initial state of the run, a line to print).
    """
    config = student.config.pretrain
    imitation = load_imitation(student, change)
    try:
        pretrained = jax.block_until_ready(jax.jit(partial(pretrain, imitation))(key, hp))
    finally:
        imitation.env.close()
    names = {name: getattr(STATE_AXES, name) for name in pretrained.fields}
    sharding = student.shards.shardings(names)
    learned = jax.device_put(pretrained.fields, sharding) if sharding else pretrained.fields
    last = jax.tree.map(lambda x: x[-1], pretrained.metrics)
    loss = jnp.mean(last.losses.policy_loss / jnp.maximum(last.trained, 1))
    line = (
        f"pretrained on the teacher {config.teacher} for {config.updates} updates: imitation loss "
        f"{loss:.3g} at the end"
    )
    return from_new_agent(student, state.replace(**learned)), line
