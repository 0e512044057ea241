"""Random-policy steps/s of simulators in JAX: through our protocol, and by their own auto-reset.

    python benchmarks/jax_world.py [xminigrid/MiniGrid-DoorKey-8x8 ...] [--envs 256] [--repeats 5]

Both take uniform actions, allowed ones where there are masks, for all environments on one device,
in one compiled loop in which every observation, reward and end is read. Ours draws starts once per
rollout of LENGTH steps where a reset costs more than to fetch a start (a start for each
environment, or a quarter of them where starts are dearest), so that several episodes of a rollout
may begin alike; the simulator's own wrapper computes one at every step. Jumanji's is also timed
with the observation in which an episode ends, which ours always gives. In games one player is the
agent, and the other's moves are drawn at random, for all contenders. Rows of ours that only
deliver a new episode's first observation are no steps; of several agents, each takes steps of its
own. Contenders are processes that take turns; rows go to benchmarks/results/jax_world.jsonl.

A further simulator is a function of its task's name, in OWN. Continuous actions are left out.
"""

import argparse
import functools
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
    mask: Callable[[Any], Any] = lambda state: None  # state -> allowed actions, None: all are


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


def jumanji(name: str, *, last: bool = False) -> Own:
    """AutoResetWrapper: as XLand-MiniGrid's, one branch of a condition; `last`: see `LAST`."""
    import jumanji
    from jumanji.wrappers import AutoResetWrapper

    from purejaxppo.envs.jumanji import actions

    env = AutoResetWrapper(jumanji.make(name), next_obs_in_extras=last)
    masks = getattr(env.observation_spec, "action_mask", None)
    to_jumanji = actions(env.action_spec, masks and tuple(masks.shape))[1]

    def step(key, carried, action):
        state, timestep = env.step(carried[0], to_jumanji(action))
        said = timestep.observation, timestep.reward, timestep.last()
        said += (timestep.extras["next_obs"],) if last else ()
        return (state, mask_of(timestep)), said

    def reset(key):
        state, timestep = env.reset(key)
        return state, mask_of(timestep)

    def mask_of(timestep):
        return getattr(timestep.observation, "action_mask", None)

    return Own(reset, step, lambda carried: carried[1])


def pgx(name: str) -> Own:
    """The wrapper `auto_reset`: again a branch of a condition."""
    import jax
    import jax.numpy as jnp
    import pgx
    from pgx.experimental.wrappers import auto_reset

    env = pgx.make(name)
    own_step = auto_reset(env.step, env.init)

    def step(key, state, action):
        if is_game(name):
            key, move_key = jax.random.split(key)
            others = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
            others = jax.random.categorical(move_key, others)
            action = jnp.where(state.current_player == 0, action, others)
        state = own_step(state, action, key)
        return state, (state.observation, state.rewards, state.terminated)

    return Own(env.init, step, lambda state: state.legal_action_mask)


def jaxmarl(name: str) -> Own:
    """`step` of its environments: a reset at every step, and a choice between the two."""
    import jax.numpy as jnp
    from jaxmarl import make
    from jaxmarl.environments.smax import map_name_to_scenario

    if name.startswith("SMAX-"):
        scenario = map_name_to_scenario(name.removeprefix("SMAX-"))
        env = make("HeuristicEnemySMAX", scenario=scenario)
    else:
        env = make(name)
    agents = env.agents
    masks = env.get_avail_actions if name.startswith("SMAX-") else None
    masks = env.get_legal_moves if name == "hanabi" else masks

    def mask(state):
        allowed = masks(state)
        return jnp.stack([allowed[agent] for agent in agents])

    def step(key, state, action):
        actions = dict(zip(agents, action, strict=True))
        obs, state, reward, done, _ = env.step(key, state, actions)
        return state, ([obs[agent] for agent in agents], reward, done)

    return Own(lambda key: env.reset(key)[1], step, *([mask] if masks else []))


OWN: dict[str, Callable[[str], Own]] = {
    "craftax": craftax,
    "jaxmarl": jaxmarl,
    "jumanji": jumanji,
    "pgx": pgx,
    "xminigrid": xminigrid,
}
LAST = {"jumanji": functools.partial(jumanji, last=True)}
"""Simulators whose own auto-reset can also give the observation in which an episode has ended, as
ours does: without it, what a time limit has cut cannot be bootstrapped."""
KINDS = {"own": OWN, "own, last": LAST}
SHORT = {"craftax": 2}
"""Steps of a call of the simulator's own loop, where one takes seconds."""
TASKS = (
    "xminigrid/MiniGrid-DoorKey-8x8",
    "xminigrid/MiniGrid-Empty-8x8",
    "craftax/Craftax-Classic-Symbolic-v1",
    "craftax/Craftax-Symbolic-v1",
    "jumanji/Snake-v1",
    "jumanji/Maze-v0",
    "jumanji/Game2048-v1",
    "jumanji/PacMan-v1",
    "jumanji/LevelBasedForaging-v0",
    "jumanji/RobotWarehouse-v0",
    "pgx/minatar-asterix",
    "pgx/minatar-breakout",
    "pgx/minatar-space_invaders",
    "pgx/2048",
    "pgx/connect_four",
    "jaxmarl/MPE_simple_spread_v3",
    "jaxmarl/SMAX-2s3z",
    "jaxmarl/overcooked",
    "jaxmarl/hanabi",
)
CONTENDERS = {
    "ours": "purejaxppo's protocol",
    "own": "the simulator's own auto-reset",
    "own, last": "the same with last observations",
}


def main() -> None:
    """Parent: lets the contenders of each world run in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "tasks", nargs="*", default=TASKS, help="family/task, of the families " + ", ".join(OWN)
    )
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one timed round")
    parser.add_argument("--envs", type=int, default=256, help="environments")
    parser.add_argument("--results", type=Path, default=machine.RESULTS / "jax_world.jsonl")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker, args.envs, args.seconds)
        return
    for task in args.tasks:
        if task.partition("/")[0] not in OWN:
            parser.error(f"{task!r} is of none of the families {', '.join(OWN)}")
    sizes = ["--envs", str(args.envs), "--seconds", str(args.seconds)]
    for task in args.tasks:
        worker = [sys.executable, __file__, *sizes, "--worker", task]
        family = task.partition("/")[0]
        names = ["ours", *(name for name, kind in KINDS.items() if family in kind)]
        results = turns.measure({name: [*worker, name] for name in names}, args.repeats)
        show(task, results)
        rows = [
            result.row(env=task, num_envs=args.envs, contender=name, about=CONTENDERS[name])
            for name, result in results.items()
        ]
        machine.replace_rows(args.results, rows, "env", "num_envs", "contender", "device")


def show(task: str, results: dict[str, turns.Result]) -> None:
    """A table of medians and ranges, and the ratio."""
    print(f"\n{task:36} {'steps/s':>11} {'min':>11} {'max':>11}")
    for contender, (speeds, _) in results.items():
        median = statistics.median(speeds)
        print(f"{contender:36} {median:11,.0f} {min(speeds):11,.0f} {max(speeds):11,.0f}")
    for name in [name for name in results if name != "ours"]:
        ratio = results["ours"].median() / results[name].median()
        print(f"ours / {name}: {ratio:.2f}", flush=True)


def work(task: str, contender: str, num_envs: int, seconds: float) -> None:
    """Worker: compile, warm up, then one timed round per line of stdin."""
    ours.start(1)
    import jax
    import jax.numpy as jnp

    from purejaxppo.config.schema import EnvConfig
    from purejaxppo.envs import registry
    from purejaxppo.spaces import MASK, Box

    family, _, name = task.partition("/")
    # A game against a random player is one environment, of which each move is a step, as its own.
    options = {"opponent": "random"} if family == "pgx" and is_game(name) else {}
    agents = getattr(registry.make_task(EnvConfig(task, options=options)), "agents", (None,))
    num_rows = num_envs * len(agents)
    env = registry.make(EnvConfig(task, num_envs=num_rows, options=options), num_rows)
    space = env.spec.action
    if isinstance(space, Box):
        raise SystemExit(f"{task} has continuous actions, which this does not compare")

    def our_step(key, carried, action):
        state, out = env.step(env.with_key(carried[0], key), action)
        said = out.obs, out.reward, out.terminated, out.truncated
        return (state, mask_of(out.obs)), said, jnp.sum(out.valid)

    def mask_of(obs):
        return obs.get(MASK) if isinstance(obs, dict) else None

    def our_reset(key):
        state, obs = env.reset(key)
        return state, mask_of(obs)

    if contender == "ours":
        length = LENGTH
        reset, step, mask = our_reset, our_step, lambda carried: carried[1]
        refresh = lambda carried: (env.refresh(carried[0]), carried[1])  # noqa: E731
    else:
        own, length = KINDS[contender][family](name), SHORT.get(family, LENGTH)

        def step(key, state, action):
            if len(agents) > 1:
                action = action.reshape(num_envs, len(agents), *action.shape[1:])
            state, said = jax.vmap(own.step)(jax.random.split(key, num_envs), state, action)
            return state, said, num_rows

        def reset(key):
            return jax.vmap(own.reset)(jax.random.split(key, num_envs))

        def refresh(state):
            return state

        mask = jax.vmap(own.mask)

    def random_action(key, state):
        return uniform(key, space, num_rows, mask(state))

    run_rollouts(reset, refresh, step, random_action, length, seconds)


def is_game(name: str) -> bool:
    """True for Pgx's games of several players."""
    from purejaxppo.envs.pgx import LONGEST

    return name in LONGEST


def uniform(key, space, num_rows: int, mask):
    """Uniform actions for all rows, of those that masks of any shape allow."""
    import jax
    import jax.numpy as jnp

    from purejaxppo.spaces import Discrete

    choices = (space.n,) if isinstance(space, Discrete) else space.nvec
    shape = (num_rows,) if isinstance(space, Discrete) else (num_rows, len(choices))
    if mask is None:
        return jax.random.randint(key, shape, 0, space.n if len(shape) == 1 else jnp.array(choices))
    allowed = mask.reshape(*shape, choices[0]) > 0
    return jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf))


def run_rollouts(reset, refresh, step, random_action, length, seconds) -> None:
    """Rollouts of `length` steps, by turns."""
    import jax
    import jax.numpy as jnp

    from purejaxppo.envs.vectorize import strong_types

    def one(carried, key):
        state, steps, total = carried
        action_key, step_key = jax.random.split(key)
        state, said, count = step(step_key, state, random_action(action_key, state))
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
