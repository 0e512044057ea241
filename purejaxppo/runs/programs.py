"""The compiled functions of a run."""

import logging
import math
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
from purejaxppo.config import tracing
from purejaxppo.config.checks import settings
from purejaxppo.config.references import is_reference
from purejaxppo.config.schema import Config, is_list
from purejaxppo.envs import registry
from purejaxppo.envs.base import EnvSpec
from purejaxppo.learner import Parts
from purejaxppo.parallel import lapack, processes
from purejaxppo.parallel.shards import Axes, Shards
from purejaxppo.parts import STATE_AXES, TrainProgram, init_program, make_parts, train_program
from purejaxppo.runs.asynchronous import AsynchronousTraining
from purejaxppo.runs.conditions import evaluation_env
from purejaxppo.runs.evaluation import Evaluator, evaluation_shards
from purejaxppo.setup import Setup
from purejaxppo.types import Hyperparams, TrainState

log = logging.getLogger("purejaxppo")


class TrainFunctions(NamedTuple):
    """The functions that a run compiles. They map over all shards and agents."""

    init: Callable[[Key, Array], TrainState]
    """(keys [M], `shard_ids`) -> state before the first update."""
    train: TrainProgram
    """(state, hyperparameters [M], number of updates) -> (state, metrics summed over updates)."""
    axes: Axes
    """Axes of the state's arrays."""


MakeTrainFunctions = Callable[[Setup, Parts], TrainFunctions]


def ppo_functions(setup: Setup, parts: Parts) -> TrainFunctions:
    """Return the functions of plain PPO, where agents do not affect each other."""
    del setup
    return TrainFunctions(init_program(parts), train_program(parts), STATE_AXES)


class Programs:
    """The functions of a run. Each is traced in the main thread and compiled in another thread.

    States, keys, hyperparameters and metrics have a leading axis of agents.

    Args:
        setup: setup of the run, with its devices.
        make_functions: the functions to compile.

    Raises:
        ValueError: parts of the config are incompatible.
    """

    def __init__(self, setup: Setup, make_functions: MakeTrainFunctions = ppo_functions) -> None:
        """Build the parts. Nothing is compiled yet."""
        check_editor(setup.config)
        self.setup = setup
        self.shards = setup.shards
        self.parts = make_parts(setup.config, setup.shards, change=setup.change)
        self.make_functions = make_functions
        self.functions = make_functions(setup, self.parts)
        self.hp = member_hyperparams(setup)
        self.key = member_keys(setup)
        self.compile_seconds = 0.0
        """Seconds from the start of tracing until training was compiled."""
        self.init_seconds = 0.0
        """Seconds in which the initial state was computed."""
        self._begun = math.nan
        self._ready: dict[str, float] = {}
        self.train_chunk: Any = None
        """(state, hyperparameters, updates) -> (state, metrics), after `compile`."""
        self.evaluator: Evaluator | None = None
        if setup.config.eval.options and setup.config.eval.num_episodes:
            # Made here to reject invalid options before the run folder is created.
            self.evaluator = make_evaluator(setup, self.parts)
        out = self.shards.shardings(self.functions.axes)
        self._init = jax.jit(self.functions.init, out_shardings=out)
        self._ids = np.arange(setup.config.num_shards, dtype=np.int32)
        self._actor: AsynchronousTraining | None = None
        self._jobs: dict[str, Future] = {}
        self._pool = ThreadPoolExecutor(1, "compile")

    @property
    def spec(self) -> EnvSpec:
        """Metadata of the training environments."""
        return self.parts.env.spec

    @property
    def success_above(self) -> float | None:
        """Return above which an episode is a success; None if the task defines no success."""
        env = self.evaluator.env if self.evaluator else self.parts.env
        return env.spec.success_above

    @property
    def envs(self) -> list[Any]:
        """The environments of training and, if they exist, of evaluations."""
        return [self.parts.env, *([self.evaluator.env] if self.evaluator else [])]

    @property
    def failure(self) -> Exception | None:
        """The first failure of a host simulator; None without a failure."""
        return next((env.failure for env in self.envs if env.failure), None)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update of all agents."""
        return self.setup.config.steps_per_update * len(self.setup.members)

    def init(self) -> TrainState:
        """Return the state before the first update, while training compiles in another thread."""
        init = self.begin().result()
        started = time.perf_counter()
        state: TrainState = jax.block_until_ready(init(self.key, self._ids))
        self.init_seconds = time.perf_counter() - started
        return state

    def begin(self) -> Future:
        """Start to compile `init` and then training, and return the future of `init`."""
        init = self._job("init", lambda: self._init.lower(self.key, self._ids))
        if not self.setup.config.asynchronous:  # the actor is lowered for arrays on another device
            self._job("train", lambda: self._lower_training(self.abstract_state()))
        return init

    def begin_evaluation(self) -> None:
        """Start compiling the evaluation in the background, once, if the run evaluates.

        Call it after the first update. Earlier, it would slow the compilation of training.
        """
        if self.setup.config.eval.num_episodes:
            self._job("evaluate", lambda: self._lower_evaluation(self.abstract_state()))

    def compile(self, state: TrainState) -> None:
        """Wait until training is compiled for states of this shape."""
        if self.setup.config.asynchronous:
            self.train_chunk = self._actor = AsynchronousTraining(self.parts, state, self.hp)
            self._ready["train"] = time.perf_counter()
        else:
            self.train_chunk = self._job("train", lambda: self._lower_training(state)).result()
        self.compile_seconds = self._ready["train"] - self._begun

    @property
    def evaluate(self) -> Any:
        """The compiled function (agents, keys) -> `Outcome`; None if the run does not evaluate."""
        self.begin_evaluation()
        return self._jobs["evaluate"].result() if "evaluate" in self._jobs else None

    def abstract_state(self) -> TrainState:
        """Return the shapes of the state, which are enough to compile."""
        return self._init.eval_shape(self.key, self._ids)

    def check_custom_code(self) -> None:
        """Trace the training program if the config names custom code of its update.

        Raises:
            ValueError: the code raises an error; the message has the line.
        """
        config = self.setup.config
        code = [
            f"{name} = {ref}"
            for name, metadata, value in settings(config)
            if metadata.get("code") and name.startswith(("network.", "ppo.", "intrinsic."))
            for ref in (value if is_list(value) else (value,))
            if is_reference(ref)
        ]
        if not code:
            return
        try:
            state = self.abstract_state()
            if not config.asynchronous:
                jax.eval_shape(self.functions.train, state, self.hp, np.int32(1))
        except Exception as error:
            raise ValueError(f"{', '.join(code)}: {tracing.reason(error)}.") from error

    def wait(self) -> None:
        """Wait for the rollout that an asynchronous run collects in the background."""
        if self._actor is not None:
            self._actor.wait()

    def close(self) -> None:
        """Close the simulators. Do not call the compiled functions afterwards."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._actor is not None:
            self._actor.close()
        for env in self.envs:
            env.close()

    def _job(self, name: str, lower: Callable[[], Any]) -> Future:
        """Return the future of a program, which is traced here and compiled in a thread."""
        if name not in self._jobs:
            started = time.perf_counter()
            self._begun = started if math.isnan(self._begun) else self._begun
            lowered = lower()
            lapack.check(lowered, self.shards.devices)
            traced = time.perf_counter() - started
            self._jobs[name] = self._pool.submit(self._compile, name, lowered, traced)
        return self._jobs[name]

    def _compile(self, name: str, lowered: Any, traced: float) -> Any:
        """Compile a program, which was traced in `traced` seconds."""
        started = time.perf_counter()
        compiled = lowered.compile()
        self._ready[name] = time.perf_counter()
        seconds = self._ready[name] - started
        log.debug("compile: %s traced in %.1f s, compiled in %.1f s", name, traced, seconds)
        return compiled

    def _lower_training(self, state: TrainState) -> Any:
        out = (self.shards.shardings(self.functions.axes), read_by_all(self.shards))
        # A host simulator can fail during a chunk. The state before the chunk is then saved.
        donate = (0,) if self.spec.restorable else ()
        train = jax.jit(self.functions.train, donate_argnums=donate, out_shardings=out)
        return train.lower(state, self.hp, np.int32(1))

    def _lower_evaluation(self, state: TrainState) -> Any:
        self.evaluator = evaluator = self.evaluator or make_evaluator(self.setup, self.parts)
        out = read_by_all(evaluator.shards)
        key = evaluation_keys(self.key, 0)
        return jax.jit(evaluator.evaluate, out_shardings=out).lower(state.agent, key)


def without_hang(programs: Programs) -> Programs:
    """Return programs on one device per process if LAPACK could hang on several.

    All processes call it together, after each has built its programs. Otherwise they would wait
    for a failed process.
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
    """Raise ValueError if evaluations would use the game editor that the run trains in."""
    ports = (config.env.options.get("port"), evaluation_env(config).options.get("port"))
    if config.eval.num_episodes and registry.is_editor(config.env) and ports[0] == ports[1]:
        raise ValueError(
            f"eval.num_episodes = {config.eval.num_episodes}: {config.env.name} is one game, and "
            f"training uses it. Set eval.num_episodes = 0."
        )


def make_evaluator(setup: Setup, parts: Parts) -> Evaluator:
    """Make the evaluator of a run, with its environments, on the devices of training."""
    used = replace(setup, devices=tuple(setup.shards.devices))
    config, episodes = setup.config, setup.config.eval.num_episodes
    shards = evaluation_shards(used, episodes)
    return Evaluator(used, parts.policy, episodes, shards=shards, seed=config.seed)


def read_by_all(shards: Shards) -> Any:
    """Return the sharding of results that each process reads."""
    return shards.everywhere() if processes.is_distributed() else shards.shardings(None)


def member_keys(setup: Setup) -> Key:
    """Return the random key of each agent [M], which is the same as if it trained alone."""
    seeds = jnp.asarray([member.seed for member in setup.members], jnp.uint32)
    keys: Key = jax.jit(jax.vmap(jax.random.key))(seeds)
    return keys


def member_hyperparams(setup: Setup) -> Hyperparams:
    """Return the tunable numbers of each agent [M], without compiling."""
    separate = [make_hyperparams(member) for member in setup.members]
    hp: Hyperparams = jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *separate))
    return hp


@jax.jit
def evaluation_keys(keys: Key, update: int) -> Key:
    """Return each agent's key [M] of the evaluation after `update` updates."""

    def of_run(key: Key) -> Key:
        return jax.random.fold_in(streams.stream(key, streams.EVALUATIONS), update)

    return jax.vmap(of_run)(keys)


def select_better(better: Array, best: Any, new: Any) -> Any:
    """Select `new` where `better`, bool [M], is True, else `best`; trees of arrays [M, ...]."""

    def choose(old: Array, new: Array) -> Array:
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, best, new)
