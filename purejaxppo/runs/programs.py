"""The compiled functions of a run."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo import streams
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.aliases import Key
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.base import EnvSpec
from purejaxppo.envs.host.bridge import named_failures
from purejaxppo.evaluation import Evaluator, evaluation_shards
from purejaxppo.learner import Parts
from purejaxppo.parallel import lapack, processes
from purejaxppo.parallel.shards import Shards, largest_divisor
from purejaxppo.parts import STATE_AXES, init_program, make_parts, train_program
from purejaxppo.runs import pretraining
from purejaxppo.runs.divergence import replayed_value
from purejaxppo.runs.members import check_vmappable, keep_better, seeds_of, stack
from purejaxppo.runs.rows import SUCCESS
from purejaxppo.types import TrainState

log = logging.getLogger("purejaxppo")

MIN_ROWS = {"cpu": 64}
"""Smallest number of minibatch rows per shard for which more shards are faster, by platform."""
MIN_ROWS_ACCELERATED = 4096
"""The same of accelerators: below, a gradient step takes as long, and needs one more reduction."""


class Programs:
    """The compiled functions of a run: each compiled exactly once, ahead of time.

    All states, keys, hyperparameters and metrics have a leading axis of members. Programs are
    traced in the main thread and compiled in another one, in the order in which they are needed.

    Args:
        config: of the run, with `num_shards` resolved.
        devices: to run on.
        members: each agent's own config; they differ in seeds and tunable numbers alone. None: the
            config's seeds.
        change: the parts that the config names -> those to train with.

    Raises:
        ValueError: there are several members, and the run is one that cannot be vmapped.
    """

    def __init__(
        self,
        config: Config,
        devices: list[jax.Device],
        members: Sequence[Config] | None = None,
        *,
        change: Callable[[Parts], Parts] | None = None,
    ) -> None:
        """Builds the parts; nothing is compiled yet."""
        self.members = list(members or seeds_of(config))
        if len(self.members) > 1:
            check_vmappable(config)
            if registry.on_host(config.env):
                devices = devices[:1]  # one pool, which one program steps for all
        self.config = config
        self.change = change
        self.hp = stack([make_hyperparams(member) for member in self.members])
        seeds = jnp.asarray([member.seed for member in self.members], jnp.uint32)
        self.key: Key = jax.jit(jax.vmap(jax.random.key))(seeds)
        self._ids = np.arange(config.num_shards, dtype=np.int32)
        self.compile_seconds = 0.0
        self._pool = ThreadPoolExecutor(1, "compile")
        self.note = ""
        """The reason why fewer devices are used than were given, "" if all are used."""
        self._use(devices)
        if not processes.is_distributed():
            self.avoid_hang()

    def avoid_hang(self) -> None:
        """Uses one device of each process where LAPACK could hang on more.

        The constructor calls it in a run of one process. Several processes call it together, after
        all constructors have succeeded: otherwise they would wait for one that failed.
        """
        if not any(processes.maximum(lapack.too_few_threads(self.shards.devices))):
            return
        with processes.raise_together():
            try:
                self._begin_init()
            except lapack.TooFewThreadsError as error:
                self.note = str(error)
        if any(processes.maximum(bool(self.note))):  # another process may have fewer threads
            first = {device.process_index: device for device in reversed(self.devices)}
            with processes.raise_together():
                self._use([first[index] for index in sorted(first)])

    def _use(self, devices: list[jax.Device]) -> None:
        """Creates the attributes that depend on the devices."""
        self.devices = devices
        self.shards = Shards(self.config.num_shards, devices, len(self.members))
        self.keep_better = jax.jit(keep_better, out_shardings=self.shards.shardings(None))
        self._jobs: dict[str, Future] = {}
        self.parts = make_parts(self.config, self.shards, change=self.change)
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
            learned = pretraining.pretrain(self.parts, self.key, self.change)
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
        config, episodes = self.config, self.config.eval.num_episodes
        shards = evaluation_shards(config, episodes, self.shards.devices, self.shards.num_members)
        return Evaluator(config, self.parts.policy, episodes, shards=shards, seed=config.seed)

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


def resolve_shards(config: Config, num_devices: int, platform: str = "cpu") -> Config:
    """Resolves `num_shards` 0: as many as devices if sizes divide and shards are large enough.

    Several seeds are spread over devices first; shards then use the devices that are left.
    `platform` is that of the devices.

    Raises:
        ValueError: other shards of a simulator on the host than one per process, or environments
            that do not divide among the processes.
    """
    count = jax.process_count()
    if config.asynchronous and count > 1:
        raise ValueError(
            f"asynchronous is for one process, and here are {count}: switch it off, or start one"
        )
    if registry.on_host(config.env):
        if config.num_shards not in (0, count):
            raise ValueError(
                f"num_shards = {config.num_shards}: {config.env.name} runs on the host, as one "
                f"shard of each process, and here is {count} of these; start {config.num_shards}, "
                f"or leave num_shards at 0 for a new run"
            )
        if count > 1 and config.num_seeds > 1:
            raise ValueError(
                f"num_seeds = {config.num_seeds}: {config.env.name} runs on the host, and trains "
                f"one seed in {count} processes; train seeds in processes of their own"
            )
        return replace(config, num_shards=count)
    if config.num_shards:
        return config
    if config.num_seeds % num_devices == 0:
        return replace(config, num_shards=1)
    num_devices //= largest_divisor(config.num_seeds, num_devices)
    rows = config.steps_per_update // config.ppo.num_minibatches
    most = min(num_devices, rows // MIN_ROWS.get(platform, MIN_ROWS_ACCELERATED))
    for shards in range(most - most % count, 1, -count):
        try:
            return replace(config, num_shards=shards)
        except ValueError:
            continue
    return replace(config, num_shards=count)
