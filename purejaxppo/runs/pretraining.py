"""Behaviour cloning of a teacher before PPO starts.

The teacher, an agent from a checkpoint, acts in the student's environments. The student's loss is
the negative log-likelihood of the teacher's actions (behaviour cloning, Pomerleau 1991), and its
critic learns the returns of the teacher. Minibatches, epochs and the optimiser are those of PPO.
Teacher and student may have different networks, memories and distributions, but the same spaces.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from purejaxppo.agents.policy import Policy
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.aliases import Key
from purejaxppo.config.references import located
from purejaxppo.config.schema import Config
from purejaxppo.learner import Parts
from purejaxppo.parallel.shards import Shards
from purejaxppo.parts import (
    STATE_AXES,
    init_program,
    make_parts,
    shard_ids,
    start_rollout,
    train_program,
    with_new_optimizer,
)
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.checkpoint import restore
from purejaxppo.runs.console import print_line
from purejaxppo.runs.folder import imports
from purejaxppo.types import AgentState, PolicyStep, Rollout, TrainState

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
    for name in ("observation", "action"):
        teacher_space, student_space = getattr(actor, name), getattr(student, name)
        if teacher_space != student_space:
            raise ValueError(
                f"pretrain.teacher = {folder}: the teacher's {name} space is {teacher_space}, but "
                f"the student's is {student_space}. They must be equal."
            )
    return teacher


CLONING: dict[str, Any] = {
    "objective": "imitate",
    "advantage": "gae",
    "learning_rate_schedule": "constant",
    "learning_rate_warmup": 0.0,
    "early_stop_kl": False,
    "recompute_advantages": False,
}
"""Settings of ppo for behaviour cloning. The student learns actions instead of rewards."""


def cloning_parts(
    config: Config,
    teacher: Agent,
    shards: Shards,
    change: Change = None,
) -> Parts:
    """Build the parts with which a student learns a teacher's actions.

    The recurrent state between rollouts is the teacher's. The student's recurrent state is zero at
    the start of each rollout.

    Args:
        config: config of the student's run.
        teacher: the agent that acts.
        shards: shards of the student's run.
        change: see `make_parts`.
    """
    settings = replace(config.ppo, **CLONING)
    config = replace(config, ppo=settings, intrinsic=replace(config.intrinsic, kind="none"))
    parts = make_parts(config, shards, change=change)
    actor = teacher.policy  # outside of tracing, because it makes an environment
    initial_carry = actor.network.initial_carry

    def act(agent: AgentState, *args) -> PolicyStep:
        del agent
        return actor.act(teacher.state, *args)

    def collect(env, *args, **kwargs) -> Rollout:
        """Collect a rollout of the teacher, with its actions in the student's form."""
        rollout = parts.collect(env, *args, **kwargs)
        env_action = actor.distribution.to_env(rollout.transitions.action)
        action = parts.policy.distribution.from_env(env_action)
        return rollout._replace(
            transitions=rollout.transitions._replace(action=action),
            carry=parts.policy.network.initial_carry((env.spec.num_envs,)),
        )

    return parts._replace(
        act=act,
        collect=collect,
        initial_carry=initial_carry,
        start=start_rollout(config, parts.env, initial_carry),
    )


def teach(student: Parts, key: Key, state: TrainState, change: Change) -> TrainState:
    """Return the initial state of a run, with its agent trained on the config's teacher.

    Args:
        student: the parts of the run.
        key: one key per agent [M].
        state: training state before the first update.
        change: see `make_parts`.
    """
    learned = pretrain(student, key, change)
    sharding = student.shards.shardings({name: getattr(STATE_AXES, name) for name in learned})
    state = state.replace(**(jax.device_put(learned, sharding) if sharding else learned))
    return with_new_optimizer(student, state)


def pretrain(student: Parts, key: Key, change: Change = None) -> dict[str, Any]:
    """Train a student on the teacher of its config.

    Args:
        student: the parts of the run.
        key: the run's key, or one key per agent [M].
        change: see `make_parts`. It is applied here as well.

    Returns:
        The learned fields of a TrainState: all fields except those marked `not_taught`. They
        include the statistics of targets and rewards, because the critic's values depend on them.
    """
    config, shards = student.config, student.shards
    parts = cloning_parts(config, load_teacher(config, student.policy), shards, change)
    try:
        initial = jax.jit(init_program(parts))(key, shard_ids(parts))
        hp = make_hyperparams(parts.config)
        if shards.num_members:
            hp = jax.tree.map(lambda x: jnp.broadcast_to(x, (shards.num_members,)), hp)
        updates = jnp.int32(config.pretrain.updates)
        after, _ = jax.jit(train_program(parts))(initial, hp, updates)
        names = [f.name for f in fields(TrainState) if not f.metadata["not_taught"]]
        return jax.block_until_ready({name: getattr(after, name) for name in names})
    finally:
        parts.env.close()
