"""The compiled functions of a run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo import streams
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.config.schema import Config
from purejaxppo.envs import registry
from purejaxppo.envs.host.bridge import named_failures
from purejaxppo.evaluation import Evaluator, evaluation_shards
from purejaxppo.learner import Parts
from purejaxppo.parallel import processes
from purejaxppo.parallel.shards import Shards, largest_divisor
from purejaxppo.parts import STATE_AXES, init_program, make_parts, shard_ids, train_program
from purejaxppo.runs import pretraining
from purejaxppo.runs.members import check_vmappable, keep_better, seeds_of, stack
from purejaxppo.types import TrainState

MIN_ROWS = {"cpu": 64}
"""Smallest number of minibatch rows per shard for which more shards are faster, by platform."""
MIN_ROWS_ACCELERATED = 4096
"""The same of accelerators: below, a gradient step takes as long, and needs one more reduction."""


class Programs:
    """The compiled functions of a run: each compiled exactly once, ahead of time.

    All states, keys, hyperparameters and metrics have a leading axis of members.

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
        self.devices = devices
        self.shards = Shards(config.num_shards, devices, len(self.members))
        self.change = change
        self.parts = make_parts(config, self.shards, change=change)
        self.hp = stack([make_hyperparams(member) for member in self.members])
        seeds = [member.seed for member in self.members]
        self.key = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
        self.keep_better = jax.jit(keep_better, out_shardings=self.shards.shardings(None))
        self.compile_seconds = 0.0
        self.evaluate: Any = None
        # Before there is a folder, since the task may refuse them.
        checked = config.eval.options and config.eval.num_episodes
        self.evaluator: Evaluator | None = self._make_evaluator() if checked else None

    def init(self) -> TrainState:
        """The state before the first update."""
        with named_failures(self.config.env.name, self):
            return jax.block_until_ready(self._init()(self.key, shard_ids(self.parts)))

    def pretrain(self, state: TrainState) -> TrainState:
        """Trains the agent of a state on the config's teacher, before the first update."""
        with named_failures(self.config.env.name, self):
            learned = pretraining.pretrain(self.parts, self.key, self.change)
        where = self.shards.shardings({name: getattr(STATE_AXES, name) for name in learned})
        return state.replace(**(jax.device_put(learned, where) if where else learned))

    def abstract_state(self) -> TrainState:
        """The shapes of the state, enough to compile for it."""
        return self._init().eval_shape(self.key, shard_ids(self.parts))

    def _init(self) -> Any:
        return jax.jit(init_program(self.parts), out_shardings=self.shards.shardings(STATE_AXES))

    def compile(self, state: TrainState) -> None:
        """Compiles training and evaluation for states like this one."""
        started = time.perf_counter()
        self.compile_training(state)
        if self.config.eval.num_episodes:
            self.evaluator = evaluator = self.evaluator or self._make_evaluator()
            out = self.read_by_all(evaluator.shards)
            evaluate = jax.jit(evaluator.evaluate, out_shardings=out)
            self.evaluate = evaluate.lower(state.agent, self.eval_key(0)).compile()
        self.compile_seconds = time.perf_counter() - started

    def _make_evaluator(self) -> Evaluator:
        """The evaluations of a run, with their environments."""
        config, episodes = self.config, self.config.eval.num_episodes
        shards = evaluation_shards(config, episodes, self.shards.devices, self.shards.num_members)
        return Evaluator(config, self.parts.policy, episodes, shards=shards, seed=config.seed)

    def compile_training(self, state: TrainState) -> None:
        """Compiles chunks of updates."""
        out = (self.shards.shardings(STATE_AXES), self.read_by_all(self.shards))
        # A host simulator can fail in the middle of a chunk: then the state before it is saved.
        donate = (0,) if self.parts.env.spec.restorable else ()
        train = jax.jit(train_program(self.parts), donate_argnums=donate, out_shardings=out)
        self.train_chunk = train.lower(state, self.hp, np.int32(1)).compile()

    def read_by_all(self, shards: Shards) -> Any:
        """The sharding of numbers that each process reads: all devices for several processes."""
        return shards.everywhere() if processes.is_distributed() else shards.shardings(None)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update of all members."""
        return self.config.steps_per_update * len(self.members)

    @property
    def failure(self) -> Exception | None:
        """The first failure of a simulator on the host, None if there is none."""
        envs = [self.parts.env] + ([self.evaluator.env] if self.evaluator else [])
        return next((env.failure for env in envs if env.failure), None)

    def close(self) -> None:
        """Closes the simulators; the compiled functions must not be called again."""
        self.parts.env.close()
        if self.evaluator is not None:
            self.evaluator.close()

    def eval_key(self, update: int):
        """Each member's key of the evaluation after `update` updates, as if it trained alone."""
        return jax.vmap(lambda key: evaluation_key(key, update))(self.key)


def evaluation_key(key, update: int):
    """The key of the evaluation after `update` updates of a run with this key."""
    return jax.random.fold_in(streams.stream(key, streams.EVALUATIONS), update)


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
