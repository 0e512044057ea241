"""Steps per second of games in the compiled loop, in a Python loop and by other clients.

    GODOT=.godot-engine/bin/godot python benchmarks/engines.py [--rounds 9] [--peer FOLDER]
    python benchmarks/engines.py --unity [--peer FOLDER]
    python benchmarks/engines.py --discount

Godot: the game is tests/games/chase with random actions and 8 ticks per step. Unity: a scripted
game (tests/engines/unity_engine.py) that repeats one message of all its agents, to measure the
trainer alone. Contenders alternate while the games of others are stopped, and the ratios are of
consecutive measurements in each round:

* engine, rows: our client in a Python loop, which sends prepared actions;
* loop: the same games in a compiled `scan`, which samples its actions, with XLA configured as by
  the train command;
* godot_rl, mlagents_envs: the Python client of Godot RL Agents or ML-Agents, if --peer names a
  folder with the package, with one game.

--discount trains 5 seeds in a scripted game with ppo.discount = decision and tick. In episodes of
100 ticks, agents choose between three jobs that take 1 or 5 ticks. The first pays 0.5, the second
2.5 (1 + goal), where the observed goal is from -0.8 to 0.8, and the third nothing.

Rows go to benchmarks/results/engines.jsonl, unity_engine_speed.jsonl and unity_discount.jsonl.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
import ours

TESTS = harness.ROOT / "tests"
SPEEDUP = 8.0
SIZES = ((8, 1), (1, 1), (8, 2), (1, 4))
"""(agents per game, games) of Godot."""
AGENTS = (1, 8)
"""Numbers of agents in the game of Unity."""
DURATIONS = {"1": "1,1,1", "5": "5,5,5", "by agent": "1,1,1/5,5,5", "by action": "1,5,5"}
"""Ticks of the three jobs, the same for all agents or alternating between them."""
Run = Callable[[int], int]
"""A function: number of steps -> number of steps taken."""


class Contender(NamedTuple):
    """A contender, and the process groups of its games, stopped between its measurements."""

    run: Run
    groups: list[int]

    def speed(self, steps: int) -> float:
        """Return steps per second of all games together."""
        self.signal(signal.SIGCONT)
        steps, seconds = harness.timed(self.run, steps)
        self.signal(signal.SIGSTOP)
        return steps / seconds

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the games, to stop or continue them."""
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)


def main() -> None:
    """Measure the contenders of Godot or Unity in alternation."""
    parser = harness.options(__doc__, "engines", rounds=9)
    parser.add_argument("--unity", action="store_true", help="games of Unity instead of Godot")
    parser.add_argument("--steps", type=int, default=1000, help="steps of each round")
    parser.add_argument("--discount", action="store_true", help="train per decision and per tick")
    parser.add_argument("--peer", help="a folder with the package godot_rl or mlagents_envs")
    args = parser.parse_args()
    if args.toy:
        args.rounds, args.steps = 1, 10
    sys.path[:0] = [str(TESTS), *([args.peer] if args.peer else [])]
    ours.start(calls_host=True)
    if args.discount:
        compare_discounts(args)
        return
    cases = [(agents, 1) for agents in AGENTS] if args.unity else list(SIZES)
    rows = []
    for agents, games in cases[:1] if args.toy else cases:
        for name, speeds in measure(args, agents, games).items():
            print(f"{agents} agents, {games} games, {name}: {speeds}", flush=True)
            rows.append({"agents": agents, "games": games, "contender": name, **speeds})
    if args.unity:
        args.results = args.results.with_name("unity_engine_speed.jsonl")
    harness.keep(args, rows, "agents", "games", "contender")


def compare_discounts(args: argparse.Namespace) -> None:
    """Train with both discounts at each kind of duration, for equal numbers of decisions."""
    from support.unity import make_player

    import purejaxppo

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        player = make_player(Path(folder), "Game.x86_64")
        for name, durations in list(DURATIONS.items())[:: 4 if args.toy else 1]:
            for discount in ("decision", "tick"):
                jobs = f"--durations {durations} --length 100 --cut --ticks"
                options = {"arguments": f"--agents 8 --actions discrete {jobs}", "max_agents": 8}
                run = purejaxppo.train(
                    env={"name": f"unity/{player}", "num_envs": 8, "options": options},
                    network={"hidden": [32]},
                    ppo={"discount": discount, "rollout_length": 64, "learning_rate": 3e-3},
                    eval={"num_episodes": 0},
                    logging={"tensorboard": False},
                    total_timesteps=1_000 if args.toy else 20_000,
                    num_seeds=5,
                    run_dir=Path(folder) / f"{name} {discount}",
                )
                returns = last_returns(run)
                print(f"durations {name}, per {discount}: {returns}", flush=True)
                row = {"durations": name, "discount": discount, "returns": returns}
                rows.append(row | {"mean": np.mean(returns), "std": np.std(returns, ddof=1)})
    args.results = args.results.with_name("unity_discount.jsonl")
    harness.keep(args, rows, "durations", "discount")


def last_returns(run: Any) -> list[float]:
    """Return the mean training return of each seed in the second half of its run."""
    metrics = run.metrics
    returns, steps = metrics["charts/episodic_return"], metrics["global_step"]
    late = steps > steps.max() / 2
    seeds = [returns[late & (metrics["member"] == seed)] for seed in range(5)]
    return [round(float(np.nanmean(x)), 1) for x in seeds]


def measure(args: argparse.Namespace, agents: int, games: int) -> dict[str, dict[str, Any]]:
    """Return the speeds of each contender, and ratios to the first one."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = {}
        for name, contender in (unity if args.unity else godot)(args, stack, folder, agents, games):
            contender.run(args.steps)
            contender.signal(signal.SIGSTOP)
            # a stopped game cannot quit
            stack.callback(contender.signal, signal.SIGCONT)
            found[name] = contender
        speeds: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(args.rounds):
            for name, contender in found.items():
                speeds[name].append(contender.speed(args.steps))
    first = next(iter(speeds.values()))
    return {name: summary(own, first) for name, own in speeds.items()}


def summary(speeds: list[float], engine: list[float]) -> dict[str, Any]:
    """Return median steps per second, and the median and range of the ratio to the engine."""
    ratios = [mine / its for mine, its in zip(speeds, engine, strict=True)]
    return {
        "steps_per_second": round(statistics.median(speeds)),
        "range": [round(min(speeds)), round(max(speeds))],
        "of_engine": round(statistics.median(ratios), 3),
        "of_engine_range": [round(min(ratios), 3), round(max(ratios), 3)],
    }


Found = Iterator[tuple[str, Contender]]


def godot(
    args: argparse.Namespace, stack: contextlib.ExitStack, folder: Path, agents: int, games: int
) -> Found:
    """Yield the contenders of Godot, each with its games."""
    project = shutil.copytree(TESTS / "games/chase", folder / "chase")
    options = {"arguments": f"--arenas={agents}", "speedup": SPEEDUP}
    name = f"godot/{project}"
    yield "engine", plain(make(stack, name, agents * games, options))
    yield "loop", compiled(make(stack, name, agents * games, options))
    if args.peer and games == 1:
        yield "godot_rl", godot_rl(stack, project, agents)


def unity(
    args: argparse.Namespace, stack: contextlib.ExitStack, folder: Path, agents: int, games: int
) -> Found:
    """Yield the contenders of Unity, each with its game."""
    from support.unity import make_player

    arguments = f"--replay --agents {agents}"
    player = make_player(folder, "Game.x86_64")
    name, options = f"unity/{player}", {"arguments": arguments}
    yield "rows", plain(make(stack, name, agents * games, options))
    yield "loop", compiled(make(stack, name, agents * games, options))
    if args.peer:
        yield "mlagents_envs", mlagents(stack, player, arguments, agents)


def make(stack: contextlib.ExitStack, name: str, num_envs: int, options: dict[str, Any]) -> Any:
    """Return the environment of our adapter."""
    from purejaxppo.config.schema import EnvConfig
    from purejaxppo.envs import registry

    config = EnvConfig(name=name, num_envs=num_envs, options=options)
    env = registry.make(config, num_envs, seed=1)
    stack.callback(env.close)
    return env


def plain(env: Any) -> Contender:
    """Return the games under our own client, without a compiled program."""
    import jax

    pool = env.pool(env.spec.num_envs).envs
    pool.reset(0)
    keys = jax.random.split(jax.random.key(0), 100)
    draws = [ours.draw(env.spec.action, env.spec.num_envs, key) for key in keys]
    actions = jax.device_get(draws)

    def run(steps: int) -> int:
        for step in range(steps):
            pool.step(actions[step % len(actions)])
        return steps

    return Contender(run, getattr(pool, "groups", []))


def compiled(env: Any) -> Contender:
    """Return the games in the compiled loop."""
    import jax
    import jax.numpy as jnp

    n = env.spec.num_envs
    state = jax.jit(env.reset)(jax.random.key(0))[0]

    def step(carried, key):
        state, total = carried
        state, out = env.step(key, state, ours.draw(env.spec.action, n, key))
        return (state, total + out.reward.sum()), None

    @jax.jit
    def scan(state, keys):
        return jax.lax.scan(step, (state, jnp.zeros(())), keys)[0]

    def run(steps: int) -> int:
        nonlocal state
        keys = jax.random.split(jax.random.key(1), steps)
        state, _ = jax.block_until_ready(scan(state, keys))
        return steps

    return Contender(run, getattr(env.pool(n).envs, "groups", []))


def godot_rl(stack: contextlib.ExitStack, project: Path, num_agents: int) -> Contender:
    """Return one game under the Python client of Godot RL Agents, which starts the game."""
    from godot_rl.core.godot_env import GodotEnv
    from support.ports import free_port

    game = project.parent / f"peer{num_agents}.x86_64"  # in place of an exported game
    command = [os.environ.get("GODOT", "godot"), "--path", str(project), "--headless"]
    command += ["--fixed-fps", "60", f"--arenas={num_agents}", f"--speedup={SPEEDUP:g}"]
    game.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@" > /dev/null 2>&1\n')
    game.chmod(0o755)
    with contextlib.redirect_stdout(None):
        env = GodotEnv(env_path=str(game), port=free_port())
    stack.callback(env.close)
    env.reset()
    draws = np.random.default_rng(0)
    actions = [
        (draws.uniform(-1, 1, (num_agents, 2)), draws.integers(0, 2, num_agents))
        for _ in range(100)
    ]

    def run(steps: int) -> int:
        for step in range(steps):
            env.step(actions[step % len(actions)])
        return steps

    return Contender(run, [env.proc.pid])


def mlagents(
    stack: contextlib.ExitStack, player: str, arguments: str, num_agents: int
) -> Contender:
    """Return the game under the environment of the package of ML-Agents."""
    from mlagents_envs.base_env import ActionTuple
    from mlagents_envs.environment import UnityEnvironment
    from mlagents_envs.logging_util import ERROR, set_log_level
    from support.ports import free_port

    set_log_level(ERROR)
    words, port = arguments.split(), free_port()
    env = UnityEnvironment(player, no_graphics=True, base_port=port, additional_args=words)
    stack.callback(env.close)
    env.reset()
    (name,) = env.behavior_specs
    draws = np.random.default_rng(0)
    actions = [draws.uniform(-1, 1, (num_agents, 2)).astype(np.float32) for _ in range(100)]

    def run(steps: int) -> int:
        for step in range(steps):
            env.get_steps(name)
            env.set_actions(name, ActionTuple(continuous=actions[step % len(actions)]))
            env.step()
        return steps

    return Contender(run, [])


if __name__ == "__main__":
    main()
