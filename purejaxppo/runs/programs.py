"""The compiled functions of a run."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo import streams
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.aliases import Key
from purejaxppo.envs.base import EnvSpec
from purejaxppo.envs.host.bridge import named_failures
from purejaxppo.evaluation import Evaluator, evaluation_shards
from purejaxppo.parallel import lapack, processes
from purejaxppo.parallel.shards import Shards
from purejaxppo.parts import STATE_AXES, init_program, make_parts, train_program
from purejaxppo.runs import pretraining
from purejaxppo.runs.divergence import replayed_value
from purejaxppo.runs.members import keep_better, stack
from purejaxppo.runs.rows import SUCCESS
from purejaxppo.setup import Setup
from purejaxppo.types import TrainState

log = logging.getLogger("purejaxppo")


class Programs:
    """The compiled functions of a run: each compiled exactly once, ahead of time.

    All states, keys, hyperparameters and metrics have a leading axis of members. Programs are
    traced in the main thread and compiled in another one, in the order in which they are needed.

    Args:
        setup: of the run, with its devices.

    Raises:
        ValueError: parts of the config do not fit each other.
    """

    def __init__(self, setup: Setup) -> None:
        """Builds the parts; nothing is compiled yet."""
        self.config = config = setup.config
        self.members = list(setup.members)
        self.hp = stack([make_hyperparams(member) for member in self.members])
        seeds = jnp.asarray([member.seed for member in self.members], jnp.uint32)
        self.key: Key = jax.jit(jax.vmap(jax.random.key))(seeds)
        self._ids = np.arange(config.num_shards, dtype=np.int32)
        self.compile_seconds = 0.0
        self._pool = ThreadPoolExecutor(1, "compile")
        self._use(setup)
        if not processes.is_distributed():
            self.avoid_hang()

    def avoid_hang(self) -> None:
        """Uses one device of each process where LAPACK could hang on more.

        The constructor calls it in a run of one process. Several processes call it together, after
        all constructors have succeeded: otherwise they would wait for one that failed.
        """
        if not any(processes.maximum(lapack.too_few_threads(self.shards.devices))):
            return
        note = ""
        with processes.raise_together():
            try:
                self._begin_init()
            except lapack.TooFewThreadsError as error:
                note = str(error)
        if any(processes.maximum(bool(note))):  # another process may have fewer threads
            first = {device.process_index: device for device in reversed(self.setup.devices)}
            devices = tuple(first[index] for index in sorted(first))
            with processes.raise_together():
                self._use(replace(self.setup, devices=devices, note=note))

    def _use(self, setup: Setup) -> None:
        """Creates the attributes that depend on the devices."""
        self.setup = setup
        self.shards = setup.shards
        self.keep_better = jax.jit(keep_better, out_shardings=self.shards.shardings(None))
        self._jobs: dict[str, Future] = {}
        self.parts = make_parts(setup.config, setup.shards, change=setup.change)
        out = self.shards.shardings(STATE_AXES)
        self._init = jax.jit(init_program(self.parts), out_shardings=out)
        self.evaluator: Evaluator | None = None
        self.success_above = self.spec.success_above
        """That of evaluations, whose options may change the task."""
        if self.config.eval.options and self.config.eval.num_episodes:
            # Made here to reject wrong options before the run has a folder.
            self.evaluator = self._make_evaluator()
            self.success_above = self.evaluator.env.spec.success_above

    @property
    def spec(self) -> EnvSpec:
        """The metadata of the training environments."""
        return self.parts.env.spec

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of metrics.csv that not every run has."""
        return (*(() if self.success_above is None else (SUCCESS,)), *self.parts.figures)

    def init(self) -> TrainState:
        """The state before the first update. Others begin to compile."""
        with named_failures(self.config.env.name, self):
            init = self._begin_init()
            return jax.block_until_ready(init.result()(self.key, self._ids))

    def _begin_init(self) -> Future:
        """Starts to compile `init`, then the other programs."""
        init = self._job("init", lambda: self._init.lower(self.key, self._ids))
        self.begin()
        return init

    def pretrain(self, state: TrainState) -> TrainState:
        """Trains the agent of a state on the config's teacher, before the first update."""
        with named_failures(self.config.env.name, self):
            learned = pretraining.pretrain(self.parts, self.key, self.setup.change)
        where = self.shards.shardings({name: getattr(STATE_AXES, name) for name in learned})
        return state.replace(**(jax.device_put(learned, where) if where else learned))

    def abstract_state(self) -> TrainState:
        """The shapes of the state, enough to compile for it."""
        return self._init.eval_shape(self.key, self._ids)

    def begin(self) -> None:
        """Begins to compile training, which takes the state that `init` returns."""
        self._job("train", lambda: self._lower_training(self.abstract_state()))

    def begin_evaluation(self) -> None:
        """Begins to compile evaluation, if a run evaluates and it has not begun yet.

        Call it after the first update: tracing would take a core from the compilation of training.
        """
        if self.config.eval.num_episodes:
            self._job("evaluate", lambda: self._lower_evaluation(self.abstract_state()))

    def compile(self, state: TrainState) -> None:
        """Waits until training is compiled for states like this one."""
        started = time.perf_counter()
        self.compile_training(state)
        self.compile_seconds = time.perf_counter() - started

    def compile_training(self, state: TrainState) -> None:
        """Compiles chunks of updates."""
        self.train_chunk = self._job("train", lambda: self._lower_training(state)).result()

    @property
    def evaluate(self) -> Any:
        """(agent, key) -> `Outcome`, compiled; None if a run does not evaluate."""
        self.begin_evaluation()
        return self._jobs["evaluate"].result() if "evaluate" in self._jobs else None

    def _job(self, name: str, lower: Callable[[], Any]) -> Future:
        """The compiled program of a name, which is traced here and compiled in a thread."""
        if name not in self._jobs:
            lowered = lower()
            lapack.check(lowered, self.shards.devices)
            self._jobs[name] = self._pool.submit(lowered.compile)
        return self._jobs[name]

    def _lower_training(self, state: TrainState) -> Any:
        out = (self.shards.shardings(STATE_AXES), self.read_by_all(self.shards))
        # A host simulator can fail in the middle of a chunk: then the state before it is saved.
        donate = (0,) if self.spec.restorable else ()
        train = jax.jit(train_program(self.parts), donate_argnums=donate, out_shardings=out)
        return train.lower(state, self.hp, np.int32(1))

    def _lower_evaluation(self, state: TrainState) -> Any:
        self.evaluator = evaluator = self.evaluator or self._make_evaluator()
        out = self.read_by_all(evaluator.shards)
        return jax.jit(evaluator.evaluate, out_shardings=out).lower(state.agent, self.eval_key(0))

    def _make_evaluator(self) -> Evaluator:
        """The evaluations of a run, with their environments."""
        used = replace(self.setup, devices=tuple(self.shards.devices))
        config, episodes = self.config, self.config.eval.num_episodes
        shards = evaluation_shards(used, episodes)
        return Evaluator(used, self.parts.policy, episodes, shards=shards, seed=config.seed)

    def read_by_all(self, shards: Shards) -> Any:
        """The sharding of numbers that each process reads: all devices for several processes."""
        return shards.everywhere() if processes.is_distributed() else shards.shardings(None)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update of all members."""
        return self.config.steps_per_update * len(self.members)

    @property
    def _envs(self) -> list[Any]:
        """The environments that were made."""
        return [self.parts.env, *([self.evaluator.env] if self.evaluator else [])]

    @property
    def failure(self) -> Exception | None:
        """The first failure of a simulator on the host, None if there is none."""
        return next((env.failure for env in self._envs if env.failure), None)

    def diverged_value(self, state: TrainState, member: int) -> str:
        """Name a value that diverged in the environments of an agent; "" if it is unknown.

        For simulators in JAX, it is searched in another rollout from the state.
        """
        if not self.spec.restorable:
            return next((env.diverged_value for env in self._envs if env.diverged_value), "")
        if processes.is_distributed():  # each process has only a part of the state
            return ""
        try:
            here = jax.device_get((state.agent, state.update, state.rollout, state.key))
            agent, update, rollout, key = jax.tree.map(lambda x: x[member], here)
            rollout, key = jax.tree.map(lambda x: x[0], (rollout, key))  # the first shard's
            return replayed_value(self.parts, agent, update, rollout, key)
        except Exception:  # training does not depend on it
            log.debug("no value found that diverged", exc_info=True)
            return ""

    def continue_at(self, update: int, progress: float) -> None:
        """Prepares simulators that cannot be restored for a run that goes on."""
        if not self.spec.restorable:
            env: Any = self.parts.env
            env.continue_at(update, min(progress, 1.0))

    def close(self) -> None:
        """Closes the simulators; the compiled functions must not be called again."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for env in self._envs:
            env.close()

    def eval_key(self, update: int) -> Key:
        """Each member's key of the evaluation after `update` updates, as if it trained alone."""
        key: Key = _evaluation_keys(self.key, np.int32(update))
        return key


def evaluation_key(key, update: int):
    """The key of the evaluation after `update` updates of a run with this key."""
    return jax.random.fold_in(streams.stream(key, streams.EVALUATIONS), update)


_evaluation_keys = jax.jit(jax.vmap(evaluation_key, (0, None)))
