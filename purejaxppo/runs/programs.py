"""The compiled functions of a run."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo import streams
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.aliases import Array, Key
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.base import EnvSpec
from purejaxppo.learner import Parts
from purejaxppo.parallel import lapack, processes
from purejaxppo.parallel.shards import Axes, Shards
from purejaxppo.parts import STATE_AXES, TrainProgram, init_program, make_parts, train_program
from purejaxppo.runs.asynchronous import AsynchronousTraining
from purejaxppo.runs.evaluation import Evaluator, evaluation_env, evaluation_shards
from purejaxppo.setup import Setup
from purejaxppo.types import Hyperparams, TrainState


class TrainFunctions(NamedTuple):
    """Functions of all shards and members that a run compiles."""

    init: Callable[[Key, Array], TrainState]
    """(keys [M], `shard_ids`) -> the state before the first update."""
    train: TrainProgram
    """(state, hyperparameters [M], number of updates) -> (state, metrics summed over them)."""
    axes: Axes
    """Axes of the state."""


MakeTrainFunctions = Callable[[Setup, Parts], TrainFunctions]


def ppo_functions(setup: Setup, parts: Parts) -> TrainFunctions:
    """Return the functions of PPO, with which agents do not affect each other."""
    del setup
    return TrainFunctions(init_program(parts), train_program(parts), STATE_AXES)


class Programs:
    """The functions of a run, each traced in the main thread and compiled once, in another one.

    States, keys, hyperparameters and metrics have a leading axis of members.

    Args:
        setup: of the run, with its devices.
        make_functions: the functions to compile.

    Raises:
        ValueError: parts of the config are incompatible.
    """

    def __init__(self, setup: Setup, make_functions: MakeTrainFunctions = ppo_functions) -> None:
        """Build the parts; nothing is compiled yet."""
        check_editor(setup.config)
        self.setup = setup
        self.shards = setup.shards
        self.parts = make_parts(setup.config, setup.shards, change=setup.change)
        self.make_functions = make_functions
        self.functions = make_functions(setup, self.parts)
        self.hp = member_hyperparams(setup)
        self.key = member_keys(setup)
        self.compile_seconds = 0.0
        self.train_chunk: Any = None
        """(state, hyperparameters, updates) -> (state, metrics), after `compile`."""
        self.evaluator: Evaluator | None = None
        if setup.config.eval.options and setup.config.eval.num_episodes:
            # Made here to reject wrong options before the run has a folder.
            self.evaluator = make_evaluator(setup, self.parts)
        out = self.shards.shardings(self.functions.axes)
        self._init = jax.jit(self.functions.init, out_shardings=out)
        self._ids = np.arange(setup.config.num_shards, dtype=np.int32)
        self._actor: AsynchronousTraining | None = None
        self._jobs: dict[str, Future] = {}
        self._pool = ThreadPoolExecutor(1, "compile")

    @property
    def spec(self) -> EnvSpec:
        """The metadata of the training environments."""
        return self.parts.env.spec

    @property
    def success_above(self) -> float | None:
        """Episodes with a greater return are a success; None: the task does not define success."""
        env = self.evaluator.env if self.evaluator else self.parts.env
        return env.spec.success_above

    @property
    def envs(self) -> list[Any]:
        """The environments of training and, once there are any, of evaluations."""
        return [self.parts.env, *([self.evaluator.env] if self.evaluator else [])]

    @property
    def failure(self) -> Exception | None:
        """The first failure of a simulator on the host; None without one."""
        return next((env.failure for env in self.envs if env.failure), None)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update of all members."""
        return self.setup.config.steps_per_update * len(self.setup.members)

    def init(self) -> TrainState:
        """Return the state before the first update. Training begins to compile meanwhile."""
        init = self.begin()
        return jax.block_until_ready(init.result()(self.key, self._ids))

    def begin(self) -> Future:
        """Begin to compile `init` and then training, whose state `init` returns."""
        init = self._job("init", lambda: self._init.lower(self.key, self._ids))
        if not self.setup.config.asynchronous:  # its actor is lowered for arrays on its own device
            self._job("train", lambda: self._lower_training(self.abstract_state()))
        return init

    def begin_evaluation(self) -> None:
        """Begin to compile evaluation, if a run evaluates and it has not begun yet.

        Call it after the first update: tracing would take a core from the compilation of training.
        """
        if self.setup.config.eval.num_episodes:
            self._job("evaluate", lambda: self._lower_evaluation(self.abstract_state()))

    def compile(self, state: TrainState) -> None:
        """Wait until training is compiled for states of this shape."""
        started = time.perf_counter()
        if self.setup.config.asynchronous:
            self.train_chunk = self._actor = AsynchronousTraining(self.parts, state, self.hp)
        else:
            self.train_chunk = self._job("train", lambda: self._lower_training(state)).result()
        self.compile_seconds = time.perf_counter() - started

    @property
    def evaluate(self) -> Any:
        """(agents, keys) -> `Outcome`, compiled; None if a run does not evaluate."""
        self.begin_evaluation()
        return self._jobs["evaluate"].result() if "evaluate" in self._jobs else None

    def abstract_state(self) -> TrainState:
        """Return the shapes of the state, enough to compile for it."""
        return self._init.eval_shape(self.key, self._ids)

    def close(self) -> None:
        """Close the simulators; the compiled functions must not be called again."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._actor is not None:
            self._actor.close()
        for env in self.envs:
            env.close()

    def _job(self, name: str, lower: Callable[[], Any]) -> Future:
        """Return the program called `name`, traced here and compiled in a thread."""
        if name not in self._jobs:
            lowered = lower()
            lapack.check(lowered, self.shards.devices)
            self._jobs[name] = self._pool.submit(lowered.compile)
        return self._jobs[name]

    def _lower_training(self, state: TrainState) -> Any:
        out = (self.shards.shardings(self.functions.axes), read_by_all(self.shards))
        # A host simulator can fail in the middle of a chunk: then the state before it is saved.
        donate = (0,) if self.spec.restorable else ()
        train = jax.jit(self.functions.train, donate_argnums=donate, out_shardings=out)
        return train.lower(state, self.hp, np.int32(1))

    def _lower_evaluation(self, state: TrainState) -> Any:
        self.evaluator = evaluator = self.evaluator or make_evaluator(self.setup, self.parts)
        out = read_by_all(evaluator.shards)
        key = evaluation_keys(self.key, 0)
        return jax.jit(evaluator.evaluate, out_shardings=out).lower(state.agent, key)


def without_hang(programs: Programs) -> Programs:
    """Return programs on one device of each process where LAPACK could hang on more.

    All processes call it together, after each has built its programs. Otherwise they would wait for
    a process that failed.
    """
    setup = programs.setup
    if not any(processes.maximum(lapack.too_few_threads(programs.shards.devices))):
        return programs
    note = ""
    with processes.raise_together():
        try:
            programs.begin()
        except lapack.TooFewThreadsError as error:
            note = str(error)
    if not any(processes.maximum(bool(note))):
        return programs
    programs.close()
    # Another process may have fewer threads.
    first = {device.process_index: device for device in reversed(setup.devices)}
    devices = tuple(first[index] for index in sorted(first))
    with processes.raise_together():
        return Programs(replace(setup, devices=devices, note=note), programs.make_functions)


def check_editor(config: Config) -> None:
    """Raise ValueError for evaluations in the editor that a run trains in; nothing is started."""
    ports = (config.env.options.get("port"), evaluation_env(config).options.get("port"))
    if config.eval.num_episodes and registry.is_editor(config.env) and ports[0] == ports[1]:
        raise ValueError(
            f"eval.num_episodes = {config.eval.num_episodes}: {config.env.name} is one game, and "
            f"training uses it. Set eval.num_episodes = 0."
        )


def make_evaluator(setup: Setup, parts: Parts) -> Evaluator:
    """Make the evaluations of a run, with their environments, on the devices of training."""
    used = replace(setup, devices=tuple(setup.shards.devices))
    config, episodes = setup.config, setup.config.eval.num_episodes
    shards = evaluation_shards(used, episodes)
    return Evaluator(used, parts.policy, episodes, shards=shards, seed=config.seed)


def read_by_all(shards: Shards) -> Any:
    """The sharding of numbers that each process reads: all devices for several processes."""
    return shards.everywhere() if processes.is_distributed() else shards.shardings(None)


def member_keys(setup: Setup) -> Key:
    """The random key of each member [M], as if it trained alone."""
    seeds = jnp.asarray([member.seed for member in setup.members], jnp.uint32)
    keys: Key = jax.jit(jax.vmap(jax.random.key))(seeds)
    return keys


def member_hyperparams(setup: Setup) -> Hyperparams:
    """The tunable numbers of each member [M]; nothing is compiled."""
    each = [make_hyperparams(member) for member in setup.members]
    hp: Hyperparams = jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *each))
    return hp


def evaluation_key(key: Key, update: Array | int) -> Key:
    """The key of the evaluation after `update` updates of a run with this key."""
    return jax.random.fold_in(streams.stream(key, streams.EVALUATIONS), update)


@jax.jit
def _evaluation_keys(keys: Key, update: Array) -> Key:
    return jax.vmap(evaluation_key, (0, None))(keys, update)


def evaluation_keys(keys: Key, update: int) -> Key:
    """Each member's key [M] of the evaluation after `update` updates."""
    found: Key = _evaluation_keys(keys, np.int32(update))
    return found


def select_better(better: Array, best: Any, new: Any) -> Any:
    """Select `new` where `better` (bool [M]), else `best`; trees of arrays [M, ...]."""

    def choose(old: Array, new: Array) -> Array:
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, best, new)
