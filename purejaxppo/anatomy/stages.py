"""Programs of one update with pieces switched off one at a time.

Pieces of PPO are measured on recorded steps of the simulator, so a slow simulator does not add its
noise to them. Each program leaves out one more piece than the one before it, and the time of a
piece is the difference. All results of a program are among its outputs, since XLA removes unused
computations.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purejaxppo import learner, rollout
from purejaxppo.agents import diagnostics
from purejaxppo.agents.policy import Policy
from purejaxppo.agents.schedules import scheduled
from purejaxppo.aliases import Array, EnvAction, Key, Scalar
from purejaxppo.anatomy.timing import Work
from purejaxppo.envs.base import Env, EnvStep, Starts
from purejaxppo.learner import Parts
from purejaxppo.parallel.cores import cpu_cores
from purejaxppo.parts import STATE_AXES, map_over_shards
from purejaxppo.spaces import MASK, leaves
from purejaxppo.streams import ENVIRONMENTS, split_keys, stream
from purejaxppo.types import Hyperparams, Rollout, TrainState

Stage = Callable[..., tuple[TrainState, Any]]
"""One update of a shard: (parts, state, hyperparameters, ...) -> (state, results)."""


class RecordedState(NamedTuple):
    """State of `RecordedEnv`."""

    rows: EnvStep  # [T, N]
    at: Array  # [] int32: the next row
    env: Any  # state of the real environments


class RecordedEnv(Env):
    """Environments whose steps return recorded rows, whatever the actions are."""

    def __init__(self, env: Env, length: int) -> None:
        """Take the real environments and the number of recorded steps, T."""
        self.spec = env.spec
        self._env, self._length = env, length

    def step(
        self, key: Key, state: RecordedState, action: EnvAction
    ) -> tuple[RecordedState, EnvStep]:
        """Return the next row; see `Env.step`."""
        del key, action
        row = jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, state.at, keepdims=False), state.rows
        )
        return state._replace(at=(state.at + 1) % self._length), row

    def begin_rollout(self, state: RecordedState, key: Key, progress: Scalar) -> RecordedState:
        """Return to the first row."""
        del key, progress
        return state._replace(at=jnp.zeros((), jnp.int32))

    def starts(self, state: RecordedState) -> Starts:
        """See `Env.starts`."""
        return self._env.starts(state.env)


def has_mask(parts: Parts) -> bool:
    """Return True if observations contain masks of allowed actions."""
    return any(MASK in leaf.path for leaf in leaves(parts.env.spec.observation))


def no_update(parts: Parts, state: TrainState, collected: Rollout, hp: Hyperparams) -> Any:
    """Leave out the gradient steps."""
    hp = scheduled(hp, parts.config.ppo, state.update)
    after, reward = _with_statistics(parts, state, collected, hp)
    batch = learner.make_batch(parts, state.agent, collected, reward, hp, state.value_stats)
    losses = diagnostics.zero_metrics(()).losses
    metrics = diagnostics.summarise(state.agent, collected, batch, losses, parts.shards.psum)
    return after, (batch, metrics)


def no_values(parts: Parts, state: TrainState, collected: Rollout, hp: Hyperparams) -> Any:
    """Also leave out values and advantages."""
    hp = scheduled(hp, parts.config.ppo, state.update)
    after, reward = _with_statistics(parts, state, collected, hp)
    return after, (collected.transitions, collected.episodes, reward)


def no_statistics(parts: Parts, state: TrainState, collected: Rollout, hp: Hyperparams) -> Any:
    """Also leave out the statistics of observations and rewards."""
    del parts, hp
    after = state.replace(rollout=collected.end, key=split_keys(state.key).next)
    return after, (collected.transitions, collected.episodes)


def steps_alone(
    parts: Parts, state: TrainState, hp: Hyperparams, actions: EnvAction
) -> tuple[TrainState, EnvStep]:
    """Only step the environments, with given actions [T, N, ...]."""
    del hp
    keys = split_keys(state.key)

    def body(env_state: Any, row: tuple[EnvAction, Key]) -> tuple[Any, EnvStep]:
        action, key = row
        env_state, out = parts.env.step(stream(key, ENVIRONMENTS), env_state, action)
        return env_state, out

    before = learner.begin_rollout(parts, state.rollout, keys.act, jnp.zeros(()))
    rows = actions, jax.random.split(keys.act, parts.config.ppo.rollout_length)
    env_state, out = jax.lax.scan(body, before.env, rows)
    return state.replace(rollout=before.replace(env=env_state), key=keys.next), out


def steps_with_policy(
    parts: Parts, state: TrainState, hp: Hyperparams
) -> tuple[TrainState, EnvStep]:
    """Step the environments with actions of the policy, for masks of allowed actions."""
    del hp
    parts = without_normalization(parts)
    keys = split_keys(state.key)

    def body(carried: Any, key: Key) -> tuple[Any, EnvStep]:
        after, row = rollout.step(parts.env, partial(parts.act, state.agent), carried, key)
        return after, row.out

    before = learner.begin_rollout(parts, state.rollout, keys.act, jnp.zeros(()))
    step_keys = jax.random.split(keys.act, parts.config.ppo.rollout_length)
    end, out = jax.lax.scan(body, before, step_keys)
    return state.replace(rollout=end, key=keys.next), out


def without_normalization(parts: Parts) -> Parts:
    """Return parts whose policy acts without normalising observations."""
    config = replace(parts.config, ppo=replace(parts.config.ppo, normalize_obs=False))
    return parts._replace(act=Policy(config, parts.env.spec).act)


def sample_actions(parts: Parts, state: TrainState) -> EnvAction:
    """Return actions [T, N, ...] of the policy in the first observations."""
    before = state.rollout

    def act(key: Key) -> EnvAction:
        choice = parts.act(state.agent, key, before.carry, before.obs, before.start)
        return choice.env_action

    return jax.lax.map(act, jax.random.split(state.key, parts.config.ppo.rollout_length))


def _with_statistics(
    parts: Parts, state: TrainState, collected: Rollout, hp: Hyperparams
) -> tuple[TrainState, Array]:
    """Return the state with the statistics of a rollout, and the scaled rewards."""
    scaled = learner.scale_rewards(parts, state, collected, hp)
    stats = learner.update_obs_stats(parts, state.agent.obs_stats, collected)
    after = state.replace(
        agent=state.agent.replace(obs_stats=stats),
        reward_stats=scaled.stats,
        rollout=collected.end.replace(discounted_return=scaled.discounted_return),
        key=split_keys(state.key).next,
    )
    return after, scaled.reward


def _learning(learn: Any, parts: Parts, state: TrainState, hp: Hyperparams) -> Any:
    """Run one update with `learn` in place of `learner.learn`."""
    return learner.train_step(parts._replace(learner=learner.Learner(learn)), state, hp)


Program = Callable[[TrainState, Any], tuple[TrainState, Any]]
"""A compiled stage: (state, number of updates) -> (state, results of the last update)."""


class Repeated(NamedTuple):
    """A stage to compile, repeated for a number of updates, over all shards and agents."""

    parts: Parts
    stage: Stage
    state: TrainState
    hp: Hyperparams
    more: tuple[Any, ...] = ()
    """Further arguments of the stage, with axes of agents and shards."""

    def lower(self) -> Any:
        """Trace the stage."""
        extra = (0,) * len(self.more)
        axes = (STATE_AXES, None, None, *extra), (STATE_AXES, 0), ((0, 0, None, *extra), 0)
        program = map_over_shards(self.parts, partial(_repeated, self.stage), *axes)
        shards = self.parts.shards
        shardings = shards.shardings(STATE_AXES), shards.shardings(0)
        jitted = jax.jit(program, out_shardings=shardings)
        return jitted.lower(self.state, self.hp, np.int32(1), *self.more)

    def program(self, executable: Any) -> Program:
        """Return the compiled stage as a function of state and number of updates."""
        return lambda state, count: executable(state, self.hp, count, *self.more)


def _repeated(
    stage: Stage, parts: Parts, state: TrainState, hp: Hyperparams, count: Array, *more: Any
) -> tuple[TrainState, Any]:
    """Run a stage `count` times."""

    def update(state: TrainState) -> tuple[TrainState, Any]:
        return stage(parts, state, hp, *more)

    shapes = jax.eval_shape(update, state)[1]
    results = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.fori_loop(0, count, lambda _, carried: update(carried[0]), (state, results))


def compile_all(stages: Mapping[str, Repeated]) -> dict[str, Program]:
    """Compile stages in threads."""
    lowered = [stage.lower() for stage in stages.values()]
    with ThreadPoolExecutor(cpu_cores()) as pool:
        executables = list(pool.map(lambda x: x.compile(), lowered))
    pairs = zip(stages.items(), executables, strict=True)
    return {name: stage.program(executable) for (name, stage), executable in pairs}


def work_of(program: Program, state: TrainState) -> Work:
    """Return a function that runs a compiled stage for a number of updates."""
    latest = state

    def work(count: int) -> None:
        nonlocal latest
        latest, results = jax.block_until_ready(program(latest, np.int32(count)))
        del results

    return work


def actions_of(parts: Parts, state: TrainState) -> EnvAction:
    """Return actions [T, N, ...] of all shards and agents, for `steps_alone`."""
    program = map_over_shards(parts, sample_actions, (STATE_AXES,), 0)
    return jax.jit(program, out_shardings=parts.shards.shardings(0))(state)


def recorded(parts: Parts, state: TrainState, rows: EnvStep) -> tuple[Parts, TrainState]:
    """Return parts and state with recorded steps [T, N, ...] instead of the simulator."""
    env = RecordedEnv(parts.env, parts.config.ppo.rollout_length)
    batch = state.rollout.start.shape[:-1]
    at = jnp.zeros(batch, jnp.int32)
    rollout_state = state.rollout.replace(env=RecordedState(rows, at, state.rollout.env))
    replaced = state.replace(rollout=rollout_state)
    if parts.shards.mesh is not None:
        replaced = jax.device_put(replaced, parts.shards.shardings(STATE_AXES))

    return parts._replace(env=env, start=learner.continue_episodes), replaced


PIECES_OF_PPO: Mapping[str, Stage] = {
    "train": learner.train_step,
    "no update": partial(_learning, no_update),
    "no values": partial(_learning, no_values),
    "no statistics": lambda parts, state, hp: _learning(
        no_statistics, without_normalization(parts), state, hp
    ),
}
"""Stages on recorded steps. Each leaves out one more piece than the one before."""
