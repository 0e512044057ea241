"""`throughput.py --worlds`: simulators in JAX under random actions, by our protocol and by theirs.

Both use uniform actions, allowed ones where there are masks, for all environments on one device, in
one compiled loop that reads every observation, reward and end. Ours draws starts once per rollout
of LENGTH steps where a reset costs more than fetching a start, and several episodes of a rollout
may then have the same start; the auto-reset wrapper of the simulator computes a reset at every
step. Our reset steps, which only return the first observation of an episode, are not counted.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import harness
import ours

LENGTH = 64
NUM_ENVS = 256
TASKS = (
    "xminigrid/MiniGrid-DoorKey-8x8",
    "craftax/Craftax-Classic-Symbolic-v1",
    "craftax/Craftax-Symbolic-v1",
    "jumanji/Snake-v1",
    "jumanji/Maze-v0",
    "jumanji/Game2048-v1",
    "jumanji/PacMan-v1",
    "jumanji/LevelBasedForaging-v0",
    "pgx/minatar-asterix",
    "pgx/minatar-breakout",
)
CONTENDERS = {"ours": "purejaxppo's protocol", "own": "the simulator's own auto-reset"}


class Own(NamedTuple):
    """An environment with the auto-reset wrapper of its simulator."""

    reset: Callable[[Any], Any]  # key -> state
    step: Callable[[Any, Any, Any], tuple[Any, Any]]  # (key, state, action) -> (state, outputs)
    mask: Callable[[Any], Any] = lambda state: None  # state -> allowed actions, None: all


def xminigrid(name: str) -> Own:
    """Use GymAutoResetWrapper: the reset is a branch of a condition, and vmap computes both."""
    import xminigrid
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = xminigrid.make(name)
    env = GymAutoResetWrapper(env)

    def step(key, state, action):
        state = env.step(params, state, action)
        return state, (state.observation, state.reward, state.last())

    return Own(lambda key: env.reset(params, key), step)


def craftax(name: str) -> Own:
    """Use EnvironmentAutoReset: a reset at every step, and a selection."""
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name(name, auto_reset=True)
    params = env.default_params

    def step(key, state, action):
        obs, state, reward, done, _ = env.step(key, state, action, params)
        return state, (obs, reward, done)

    return Own(lambda key: env.reset(key, params)[1], step)


def jumanji(name: str) -> Own:
    """Use AutoResetWrapper: the reset is a branch of a condition, as in XLand-MiniGrid."""
    import jumanji
    from jumanji.wrappers import AutoResetWrapper

    from purejaxppo.envs.adapters.jumanji import actions

    env = AutoResetWrapper(jumanji.make(name))
    masks = getattr(env.observation_spec, "action_mask", None)
    to_jumanji = actions(env.action_spec, masks and tuple(masks.shape))[1]

    def mask_of(timestep):
        return getattr(timestep.observation, "action_mask", None)

    def step(key, carried, action):
        state, timestep = env.step(carried[0], to_jumanji(action))
        outputs = timestep.observation, timestep.reward, timestep.last()
        return (state, mask_of(timestep)), outputs

    def reset(key):
        state, timestep = env.reset(key)
        return state, mask_of(timestep)

    return Own(reset, step, lambda carried: carried[1])


def pgx(name: str) -> Own:
    """Use the wrapper `auto_reset`: the reset is a branch of a condition."""
    import pgx
    from pgx.experimental.wrappers import auto_reset

    env = pgx.make(name)
    own_step = auto_reset(env.step, env.init)

    def step(key, state, action):
        state = own_step(state, action, key)
        return state, (state.observation, state.rewards, state.terminated)

    return Own(env.init, step, lambda state: state.legal_action_mask)


OWN: dict[str, Callable[[str], Own]] = {
    "craftax": craftax,
    "jumanji": jumanji,
    "pgx": pgx,
    "xminigrid": xminigrid,
}
SHORT = {"craftax": 2}
"""Steps per call of the loop of the simulator, where a step takes seconds."""


def compare(args: argparse.Namespace, worker: list[str]) -> None:
    """Measure both contenders of each task in alternation, and store rows in jax_world.jsonl."""
    rows = []
    for task in args.worlds or TASKS:
        if task.partition("/")[0] not in OWN:
            raise SystemExit(f"--worlds {task}: unknown family. Use one of {', '.join(OWN)}.")
        num_envs = 4 if args.toy else NUM_ENVS
        sizes = json.dumps({"world": task, "num_envs": num_envs})
        results = harness.measure({n: [*worker, n, sizes] for n in CONTENDERS}, args.rounds)
        harness.show(task, results, "own")
        rows += [
            result.row(env=task, num_envs=num_envs, contender=name, about=CONTENDERS[name])
            for name, result in results.items()
        ]
    args.results = args.results.with_name("jax_world.jsonl")
    harness.keep(args, rows, "env", "num_envs", "contender", "device")


def work(contender: str, sizes: dict[str, Any], seconds: float) -> None:
    """Compile, warm up, then time one round per line of stdin."""
    ours.start(1)
    import jax
    import jax.numpy as jnp

    from purejaxppo.config.schema import EnvConfig
    from purejaxppo.envs import registry
    from purejaxppo.spaces import MASK, Box

    task, n = sizes["world"], sizes["num_envs"]
    family, _, name = task.partition("/")
    env = registry.make(EnvConfig(task, num_envs=n), n)
    space = env.spec.action
    if isinstance(space, Box):
        raise SystemExit(f"--worlds {task}: continuous actions are not supported.")

    def mask_of(obs):
        return obs.get(MASK) if isinstance(obs, dict) else None

    def our_step(key, carried, action):
        state, out = env.step(key, carried[0], action)
        outputs = out.obs, out.reward, out.terminated, out.truncated
        return (state, mask_of(out.obs)), outputs, jnp.sum(out.valid)

    def our_reset(key):
        state, obs = env.reset(key)
        return state, mask_of(obs)

    if contender == "ours":
        length = LENGTH
        reset, step, mask = our_reset, our_step, lambda carried: carried[1]

        def refresh(carried):
            return env.begin_rollout(carried[0], jax.random.key(0), 0.0), carried[1]

    else:
        own, length = OWN[family](name), SHORT.get(family, LENGTH)
        mask, refresh = jax.vmap(own.mask), lambda state: state

        def step(key, state, action):
            state, outputs = jax.vmap(own.step)(jax.random.split(key, n), state, action)
            return state, outputs, n

        def reset(key):
            return jax.vmap(own.reset)(jax.random.split(key, n))

    def random_action(key, state):
        return ours.draw(space, n, key, mask(state))

    run_rollouts(reset, refresh, step, random_action, length, seconds)


def run_rollouts(reset, refresh, step, random_action, length, seconds) -> None:
    """Run consecutive rollouts of `length` steps."""
    import jax
    import jax.numpy as jnp

    from purejaxppo.envs.vectorize import strong_types

    def one(carried, key):
        state, steps, total = carried
        action_key, step_key = jax.random.split(key)
        state, outputs, count = step(step_key, state, random_action(action_key, state))
        total += sum(jnp.sum(x, dtype=jnp.float32) for x in jax.tree.leaves(outputs))
        return (strong_types(state), steps + count, total), None

    @jax.jit
    def rollout(state, key):
        start = (refresh(state), jnp.int32(0), jnp.float32(0))
        return jax.lax.scan(one, start, jax.random.split(key, length))[0]

    state, key = jax.jit(lambda key: strong_types(reset(key)))(jax.random.key(0)), jax.random.key(1)

    def run(count: int) -> int:
        nonlocal state, key
        taken = 0
        for _ in range(count):
            key, now = jax.random.split(key)
            state, steps, _ = rollout(state, now)
            taken += int(steps)
        return taken

    harness.rounds(run, seconds)
