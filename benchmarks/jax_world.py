"""Random-policy steps/s of simulators in JAX: through our protocol, and by their own auto-reset.

    python benchmarks/jax_world.py [--worlds doorkey craftax_classic] [--envs 256] [--repeats 5]

Both do the same: uniform actions for all environments on one device, in one compiled loop in which
every observation, reward and end is read. Ours draws fresh starts once per rollout of LENGTH steps
where a reset is dear; the simulator's own wrapper computes one at every step. Rows of ours that
only deliver a new episode's first observation are no steps; of several agents, each takes steps of
its own. Contenders are processes that take turns; rows go to benchmarks/results/jax_world.jsonl.

A further simulator is one line in WORLDS, and a function of its task's name.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import machine
import ours
import turns

LENGTH = 64


class Own(NamedTuple):
    """One environment by its simulator's own auto-reset wrapper."""

    reset: Callable[[Any], Any]  # key -> state
    step: Callable[[Any, Any, Any], tuple[Any, Any]]  # (key, state, action) -> (state, outputs)


def xminigrid(name: str) -> Own:
    """GymAutoResetWrapper: the reset is one branch of a condition, of which vmap computes both."""
    import xminigrid
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = xminigrid.make(name)
    env = GymAutoResetWrapper(env)

    def step(key, state, action):
        state = env.step(params, state, action)
        return state, (state.observation, state.reward, state.last())

    return Own(lambda key: env.reset(params, key), step)


def craftax(name: str) -> Own:
    """EnvironmentAutoReset: a reset at every step, and a choice between the two."""
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name(name, auto_reset=True)
    params = env.default_params

    def step(key, state, action):
        obs, state, reward, done, _ = env.step(key, state, action, params)
        return state, (obs, reward, done)

    return Own(lambda key: env.reset(key, params)[1], step)


def jumanji(name: str) -> Own:
    """AutoResetWrapper: as XLand-MiniGrid's, one branch of a condition."""
    import jumanji
    from jumanji.wrappers import AutoResetWrapper

    env = AutoResetWrapper(jumanji.make(name))

    def step(key, state, action):
        state, timestep = env.step(state, action)
        return state, (timestep.observation, timestep.reward, timestep.last())

    return Own(lambda key: env.reset(key)[0], step)


def pgx(name: str) -> Own:
    """The wrapper `auto_reset`: again a branch of a condition."""
    import pgx
    from pgx.experimental.wrappers import auto_reset

    env = pgx.make(name)
    own_step = auto_reset(env.step, env.init)

    def step(key, state, action):
        state = own_step(state, action, key)
        return state, (state.observation, state.rewards, state.terminated)

    return Own(env.init, step)


def jaxmarl(name: str) -> Own:
    """`step` of its environments: a reset at every step, and a choice between the two."""
    from jaxmarl import make
    from jaxmarl.environments.smax import map_name_to_scenario

    if name.startswith("SMAX-"):
        scenario = map_name_to_scenario(name.removeprefix("SMAX-"))
        env = make("HeuristicEnemySMAX", scenario=scenario)
    else:
        env = make(name)
    agents = env.agents

    def step(key, state, action):
        actions = dict(zip(agents, action, strict=True))
        obs, state, reward, done, _ = env.step(key, state, actions)
        seen = [obs[agent] for agent in agents]
        masks = env.get_avail_actions(state) if name.startswith("SMAX-") else ()
        return state, (seen, masks, reward, done)

    return Own(lambda key: env.reset(key)[1], step)


class World(NamedTuple):
    """An environment's name, and how its simulator resets it."""

    env: str
    own: Callable[[str], Own]
    own_length: int = LENGTH
    """Steps of a call of the simulator's own loop, fewer where one takes seconds."""
    num_agents: int = 1
    """Of several, an environment's actions are one array [agents]."""


WORLDS = {
    "doorkey": World("xminigrid/MiniGrid-DoorKey-8x8", xminigrid),
    "craftax_classic": World("craftax/Craftax-Classic-Symbolic-v1", craftax, 2),
    "craftax": World("craftax/Craftax-Symbolic-v1", craftax, 2),
    "snake": World("jumanji/Snake-v1", jumanji),
    "maze": World("jumanji/Maze-v0", jumanji),
    "breakout": World("pgx/minatar-breakout", pgx),
    "spread": World("jaxmarl/MPE_simple_spread_v3", jaxmarl, num_agents=3),
    "smax": World("jaxmarl/SMAX-2s3z", jaxmarl, num_agents=5),
}
CONTENDERS = {"ours": "purejaxppo's protocol", "own": "the simulator's own auto-reset"}


def main() -> None:
    """Parent: lets the contenders of each world run in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one timed round")
    parser.add_argument("--envs", type=int, default=256, help="environments")
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "jax_world.jsonl")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker, args.envs, args.seconds)
        return
    sizes, found = ["--envs", str(args.envs), "--seconds", str(args.seconds)], {}
    for world in args.worlds:
        worker = [sys.executable, __file__, *sizes, "--worker", world]
        commands = {contender: [*worker, contender] for contender in CONTENDERS}
        found[world] = turns.measure(commands, args.repeats)
        show(world, found[world])
    rows = [
        result.row(
            world=world,
            env=WORLDS[world].env,
            num_envs=args.envs,
            num_agents=WORLDS[world].num_agents,
            contender=contender,
            about=CONTENDERS[contender],
        )
        for world, results in found.items()
        for contender, result in results.items()
    ]
    machine.replace_rows(args.results, rows, "world", "num_envs", "contender", "device")


def show(world: str, results: dict[str, turns.Result]) -> None:
    """A table of medians and ranges, and the ratio."""
    print(f"\n{world:16} {'steps/s':>11} {'min':>11} {'max':>11}")
    for contender, (speeds, _) in results.items():
        median = statistics.median(speeds)
        print(f"{contender:16} {median:11,.0f} {min(speeds):11,.0f} {max(speeds):11,.0f}")
    print(f"ours / own: {results['ours'].median() / results['own'].median():.2f}", flush=True)


def work(world: str, contender: str, num_envs: int, seconds: float) -> None:
    """Worker: compile, warm up, then one timed round per line of stdin."""
    ours.start(1)
    import jax
    import jax.numpy as jnp

    from purejaxppo.config.schema import EnvConfig
    from purejaxppo.envs import registry
    from purejaxppo.spaces import MultiDiscrete

    name, make_own, length, num_agents = WORLDS[world]
    num_rows = num_envs * num_agents
    env = registry.make(EnvConfig(name, num_envs=num_rows), num_rows)
    space = env.spec.action

    def random_action(key):
        if hasattr(space, "n") or isinstance(space, MultiDiscrete):
            shape, high = ((), space.n) if hasattr(space, "n") else ((len(space.nvec),), space.nvec)
            return jax.random.randint(key, (num_rows, *shape), 0, jnp.asarray(high))
        return jax.random.uniform(key, (num_rows, *space.shape), minval=-1.0, maxval=1.0)

    def our_step(key, state, action):
        state, out = env.step(state, action)
        return state, (out.obs, out.reward, out.terminated, out.truncated), jnp.sum(out.valid)

    if contender == "ours":
        length = LENGTH
        reset, refresh, step = lambda key: env.reset(key)[0], env.refresh, our_step
    else:
        own = make_own(name.partition("/")[2])

        def step(key, state, action):
            if num_agents > 1:
                action = action.reshape(num_envs, num_agents, *action.shape[1:])
            state, said = jax.vmap(own.step)(jax.random.split(key, num_envs), state, action)
            return state, said, num_rows

        def reset(key):
            return jax.vmap(own.reset)(jax.random.split(key, num_envs))

        def refresh(state):
            return state

    run_rollouts(reset, refresh, step, random_action, length, seconds)


def run_rollouts(reset, refresh, step, random_action, length, seconds) -> None:
    """Rollouts of `length` steps, by turns."""
    import jax
    import jax.numpy as jnp

    from purejaxppo.envs.vectorize import strong_types

    def one(carried, key):
        state, steps, total = carried
        action_key, step_key = jax.random.split(key)
        state, said, count = step(step_key, state, random_action(action_key))
        total += sum(jnp.sum(x, dtype=jnp.float32) for x in jax.tree.leaves(said))
        return (strong_types(state), steps + count, total), None

    @jax.jit
    def rollout(state, key):
        begun = (refresh(state), jnp.int32(0), jnp.float32(0))
        return jax.lax.scan(one, begun, jax.random.split(key, length))[0]

    state, key = jax.jit(lambda key: strong_types(reset(key)))(jax.random.key(0)), jax.random.key(1)

    def run(count: int) -> int:
        nonlocal state, key
        taken = 0
        for _ in range(count):
            key, now = jax.random.split(key)
            state, steps, _ = rollout(state, now)
            taken += int(steps)
        return taken

    turns.rounds(run, seconds)


if __name__ == "__main__":
    main()
