"""A start from a teacher: an agent first learns to do as a checkpoint does, then PPO goes on.

The teacher acts in the student's environments. The student's loss there is the negative
log-likelihood of the teacher's actions (behaviour cloning, Pomerleau 1991), and its critic learns
the returns that they bring; minibatches, epochs and the optimiser are PPO's. Teacher and student
may have different networks, memories and distributions, if they see the same and do the same.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from purejaxppo.agents.policy import Policy
from purejaxppo.checkpoint import restore
from purejaxppo.config import Config
from purejaxppo.evaluation import Agent
from purejaxppo.learner import Learner
from purejaxppo.runfolder import imports
from purejaxppo.sharding import Shards
from purejaxppo.types import AgentState, Experience, RolloutState, TrainState

FRESH = {
    "opt_state": "its moments are of another loss, and of another optimiser under kl_rate",
    "intrinsic": "an apprentice is not curious",
    "update": "the run begins",
    "rollout": "its carry is the teacher's",
    "key": "the run's own",
}
"""Fields of a TrainState that do not come from the time with a teacher, and why."""


def load_teacher(config: Config, student: Policy) -> Agent:
    """The teacher that a config names: the best agent of a run.

    Raises:
        ValueError: there is none, it is one of many, or it sees or does something else than the
            student.
    """
    folder = config.imitate.teacher
    if not Path(folder).is_dir():
        raise ValueError(f"imitate.teacher = {folder}: there is no such run folder")
    for line in imports(folder):
        print(line, flush=True)
    teacher = restore(folder)
    if teacher.members:
        raise ValueError(
            f"imitate.teacher = {folder} holds {len(teacher.members)} agents; a teacher is one"
        )
    for name in ("observation", "action"):
        theirs, ours = getattr(teacher.policy, name), getattr(student, name)
        if theirs != ours:
            raise ValueError(
                f"imitate.teacher = {folder}: its {name} space is {theirs}, and the student's is "
                f"{ours}"
            )
    return teacher


class Apprentice(Learner):
    """A learner whose rollouts are a teacher's.

    The carry between rollouts is the teacher's; the student's begins each rollout at zeros.

    Args:
        config: of the student's run.
        teacher: who acts.
        shards: where shards live.
    """

    def __init__(self, config: Config, teacher: Agent, shards: Shards) -> None:
        """Builds the student's learner with another objective."""
        ppo = replace(
            config.ppo,
            objective="imitate",
            advantage="gae",
            learning_rate_schedule="constant",
            learning_rate_warmup=0.0,
            kl_stop=False,
            kl_rate=False,
            recompute_advantages=False,
        )
        config = replace(config, ppo=ppo, intrinsic=replace(config.intrinsic, kind="none"))
        super().__init__(config, shards)
        self.teacher = teacher
        self.actor = teacher.policy

    def act(self, agent: AgentState, *args):
        """What the teacher does."""
        del agent
        return self.actor.act(self.teacher.state, *args)

    def collect(self, agent: AgentState, start: RolloutState, key) -> Experience:
        """A rollout of the teacher; its actions as the student stores them."""
        experience = super().collect(agent, start, key)
        transitions = experience.transitions
        given = self.actor.distribution.to_env(transitions.action)
        transitions = transitions._replace(
            action=self.policy.distribution.from_env(given),
            carry=self.policy.network.initial_carry((self.num_envs,)),
        )
        return experience._replace(transitions=transitions)


def taught(learner: Learner, key) -> dict[str, Any]:
    """What has been learned from the teacher of a learner's config, by fields of a TrainState.

    These are all but `FRESH`: a critic's values go with the statistics of targets and rewards that
    they were learned under.

    Args:
        learner: whose agent it will be.
        key: the run's; of many members, one for each.
    """
    config, shards = learner.config, learner.shards
    apprentice = Apprentice(config, load_teacher(config, learner.policy), shards)
    try:
        begun = jax.jit(apprentice.init)(key, apprentice.shard_ids())
        hp = apprentice.hyperparams()
        if shards.num_members:
            hp = jax.tree.map(lambda x: jnp.broadcast_to(x, (shards.num_members,)), hp)
        updates = jnp.int32(config.imitate.updates)
        after, _ = jax.jit(apprentice.train_chunk)(begun, hp, updates)
        names = [f.name for f in fields(TrainState) if f.name not in FRESH]
        return jax.block_until_ready({name: getattr(after, name) for name in names})
    finally:
        apprentice.env.close()
