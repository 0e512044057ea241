"""The asynchronous outer loop: collects the next rollout while it learns from the last one.

An actor thread collects rollout k + 1 while update k is made of rollout k, with the parameters that
this update starts from; then both wait for each other. So a rollout's policy is one update behind
when it is learned from (none behind, for the first one), never more, and the numbers do not depend
on how fast either of them is. An iteration takes as long as the slower one, not as long as both.

The probability ratio is relative to the policy that acted, whose log-probabilities are stored, and
observations are normalised as they were when it acted.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from purejaxppo import learner
from purejaxppo.interrupts import Interrupt
from purejaxppo.parallel.shards import Shards
from purejaxppo.parts import STATE_AXES, map_over_shards
from purejaxppo.runs.loop import TrainingLoop
from purejaxppo.runs.programs import Programs
from purejaxppo.runs.rows import Row
from purejaxppo.setup import Setup
from purejaxppo.streams import split_keys
from purejaxppo.types import Metrics, Rollout, TrainState


class Collected(NamedTuple):
    """A rollout that the actor passes to the learner."""

    rollout: Rollout
    key: jax.Array  # the state's, after this rollout's update
    update: int  # number of updates before the acting policy


class AsynchronousPrograms(Programs):
    """The compiled functions of a run that collects rollouts in parallel with its updates.

    The actor's part runs on a CPU, where waiting for a simulator does not block the learner.
    """

    def __init__(self, setup: Setup) -> None:
        """Builds the parts; nothing is compiled yet."""
        super().__init__(setup)
        self.actor_device = jax.local_devices(backend="cpu")[-1]

    def begin(self) -> None:
        """Does nothing: the actor's part is lowered for arrays on its own device."""

    def compile_training(self, state: TrainState) -> None:
        """Compiles the actor's and the learner's part."""
        actor = self.trace_actor(state)
        self._collect = actor.lower().compile()
        self.learn = self.trace_learner(state, actor.out_info[0]).lower().compile()

    def trace_actor(self, state: TrainState) -> Any:
        """The actor's part in the form of the actor's device, whatever the learner's is."""

        def collect_one(parts, agent, rollout, key, progress):
            keys = split_keys(key)
            return learner.collect(parts, agent, rollout, keys.act, progress), keys.next

        here = Shards(self.config.num_shards, [self.actor_device], len(self.members))
        axes = (STATE_AXES.agent, STATE_AXES.rollout, STATE_AXES.key, None)
        members = ((0, 0, 0, None), 0)
        collect = map_over_shards(self.parts._replace(shards=here), collect_one, axes, 0, members)
        given = state.agent, state.rollout, state.key, np.float32(0)
        return jax.jit(collect).trace(*self.for_actor(given))

    def trace_learner(self, state: TrainState, rollout: Any) -> Any:
        """The learner's part, for rollouts of such shapes."""
        axes = (STATE_AXES, 0, None), (STATE_AXES, None)
        learn = map_over_shards(self.parts, learner.learn, *axes)
        return jax.jit(learn).trace(state, rollout, self.hp)

    def for_actor(self, tree: Any) -> Any:
        """Puts arrays on the actor's device."""
        return jax.device_put(tree, self.actor_device)

    def collect(self, agent, state, key, update: int, progress: float) -> Collected:
        """Collect a rollout for the learner; see `learner.collect`."""
        arguments = agent, state, key, np.float32(progress)
        rollout, key = self._collect(*self.for_actor(arguments))
        jax.block_until_ready(rollout)
        return Collected(rollout, key, update)


class AsynchronousLoop(TrainingLoop):
    """One training run that collects rollouts in parallel with its updates."""

    programs: AsynchronousPrograms

    def train(self, state: TrainState, interrupt: Interrupt) -> TrainState:
        """Trains until the end or an interrupt, and saves."""
        self._lags: list[int] = []
        self.intervals.begin(self.intervals.done(self.progress))
        with ThreadPoolExecutor(1, "actor") as actor:
            state = self._train(state, interrupt, actor)
        self._end(state)
        return state

    def _train(
        self, state: TrainState, interrupt: Interrupt, actor: ThreadPoolExecutor
    ) -> TrainState:
        p, every, programs = self.progress, self.intervals, self.programs
        waiting: Future[Collected] = actor.submit(
            programs.collect, state.agent, state.rollout, state.key, p.update, self._part(0)
        )
        with self._between_chunks(state):
            self._call("on_start", state)
        while not (every.ended(p) or self.stopped):
            started, self._before = time.perf_counter(), every.done(p)
            with self._host_failures(state):
                rollout, key, update = waiting.result()
            if interrupt.signal:
                break
            if every.sparse or p.update + 1 < every.total:
                waiting = actor.submit(
                    programs.collect, state.agent, rollout.end, key, p.update, self._part(1)
                )
            self._lags.append(p.update - update)
            here = jax.device_put(rollout, programs.setup.devices[0])
            state, metrics = programs.learn(state, here, self._hyperparams())
            metrics = jax.device_get(metrics)
            seconds = time.perf_counter() - started
            speed = self._count(metrics) / seconds
            p.update += 1
            p.train_seconds += seconds
            with self._between_chunks(state):
                self._after_chunk(state, metrics, speed)
        return state

    def _part(self, ahead: int) -> float:
        """Return the finished part of the run, plus `ahead` updates unless agents may be absent."""
        every = self.intervals
        return (every.done(self.progress) + ahead * (not every.sparse)) / every.total

    def _rows(self, metrics: Metrics) -> list[Row]:
        self._lags = self._lags[-int(metrics.updates[0]) :]
        lag = {"charts/lag": sum(self._lags) / len(self._lags)}
        return [row | lag for row in super()._rows(metrics)]
