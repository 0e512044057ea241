"""Asynchronous training: collect the next rollout while learning from the last one.

An actor thread collects rollout k + 1 with the parameters before update k, while update k learns
from rollout k. Then both wait for each other. The acting policy is one update behind the learner,
except in the first rollout, and results do not depend on the speed of either. An iteration takes as
long as the slower of the two.

Probability ratios use the stored log-probabilities of the acting policy, and observations are
normalised with its statistics.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from purejaxppo import learner
from purejaxppo.aliases import Key, Scalar
from purejaxppo.learner import Parts
from purejaxppo.parallel.shards import Shards
from purejaxppo.parts import STATE_AXES, map_over_shards
from purejaxppo.streams import split_keys
from purejaxppo.types import AgentState, Hyperparams, Rollout, RolloutState, Trained, TrainState

LAG = "charts/lag"
"""Number of updates by which the acting policy is behind the learner."""


class Collected(NamedTuple):
    """A rollout that the actor passes to the learner."""

    rollout: Rollout
    key: Key  # key of the state after this rollout's update
    update: int  # updates that the acting policy was trained for


class AsynchronousTraining:
    """A training function, (state, hp, 1) -> (state, metrics), with rollouts in another thread.

    The actor runs on a CPU device, where waiting for a simulator does not block the learner.

    Args:
        parts: functions and objects of a run with one agent.
        state: training state with the shapes to compile for.
        hp: hyperparameters of the agent.
    """

    def __init__(self, parts: Parts, state: TrainState, hp: Hyperparams) -> None:
        """Compile the programs of the actor and the learner."""
        self._sparse = parts.env.spec.absent
        self._learner_device = parts.shards.devices[0]
        self._actor_device = jax.local_devices(backend="cpu")[-1]
        actor = trace_actor(parts, state, self._actor_device)
        self._collect_rollout = actor.lower().compile()
        self._learn = trace_learner(parts, state, actor.out_info[0], hp).lower().compile()
        self._pool = ThreadPoolExecutor(1, "actor")
        self._waiting: Future[Collected] | None = None

    def __call__(self, state: TrainState, hp: Hyperparams, num_updates: Any) -> Trained:
        """Run one update on the last rollout, and start to collect the next one."""
        assert num_updates == 1, "asynchronous training runs one update per call"
        update, total = int(state.update[0]), float(np.max(hp.total_updates))
        waiting = self._waiting
        if waiting is None:
            waiting = self._begin(state.agent, state.rollout, state.key, update, update / total)
        rollout, key, acted = waiting.result()
        if self._sparse or update + 1 < total:
            # If agents may be absent, the progress after this update is not known yet.
            after = update + (not self._sparse)
            self._waiting = self._begin(state.agent, rollout.end, key, update, after / total)
        rollout = jax.device_put(rollout, self._learner_device)
        state, metrics = self._learn(state, rollout, hp)
        lag = {LAG: np.array([update - acted], np.float32)}
        return state, metrics._replace(extras=metrics.extras | lag)

    def _begin(
        self, agent: AgentState, state: RolloutState, key: Key, update: int, progress: float
    ) -> Future[Collected]:
        """Start to collect a rollout; see `learner.collect`."""

        def collect() -> Collected:
            arguments = agent, state, key, np.float32(progress)
            rollout, after = self._collect_rollout(*jax.device_put(arguments, self._actor_device))
            jax.block_until_ready(rollout)
            return Collected(rollout, after, update)

        return self._pool.submit(collect)

    def wait(self) -> None:
        """Wait for the current rollout."""
        if self._waiting is not None:
            self._waiting.result()

    def close(self) -> None:
        """Wait for the current rollout. Its simulator can be closed afterwards."""
        self._pool.shutdown()


def trace_actor(parts: Parts, state: TrainState, device: jax.Device) -> Any:
    """Trace the actor's program for its device, which may differ from the learner's."""

    def collect_one(
        parts: Parts, agent: AgentState, rollout: RolloutState, key: Key, progress: Scalar
    ) -> tuple[Rollout, Key]:
        keys = split_keys(key)
        return learner.collect(parts, agent, rollout, keys.act, progress), keys.next

    shards = Shards(parts.config.num_shards, [device], parts.shards.num_members)
    axes = (STATE_AXES.agent, STATE_AXES.rollout, STATE_AXES.key, None)
    members = ((0, 0, 0, None), 0)
    collect = map_over_shards(parts._replace(shards=shards), collect_one, axes, 0, members)
    arguments = state.agent, state.rollout, state.key, np.float32(0)
    return jax.jit(collect).trace(*jax.device_put(arguments, device))


def trace_learner(parts: Parts, state: TrainState, rollout: Any, hp: Hyperparams) -> Any:
    """Trace the learner's program for rollouts of these shapes."""
    axes = (STATE_AXES, 0, None), (STATE_AXES, None)
    learn = map_over_shards(parts, parts.learner.learn, *axes)
    return jax.jit(learn).trace(state, rollout, hp)
