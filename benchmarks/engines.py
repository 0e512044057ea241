"""Steps per second of Godot games: what the compiled loop leaves of the engine's own speed.

    GODOT=.godot-engine/bin/godot python benchmarks/engines.py [--rounds 9] [--peer FOLDER]

The game is tests/games/chase with random actions, 8 ticks to a step. Contenders take turns, while
the others' games are stopped, and each round's ratio compares neighbours in time:

* engine: our client in a plain Python loop, which sends ready-made actions;
* loop: the same games stepped in a compiled `scan`, which draws its actions, with XLA set up as
  the train command sets it up;
* godot_rl: the Python client of Godot RL Agents, if --peer names a folder with the package, with
  one game, which it starts itself.

Rows go to benchmarks/results/engines.jsonl.
"""

import argparse
import contextlib
import datetime
import os
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machine
import numpy as np

CHASE = Path(__file__).resolve().parents[1] / "tests/games/chase"
SPEEDUP = 8.0
SIZES = ((8, 1), (1, 1), (8, 2), (1, 4))
"""(agents of a game, games)."""


class Contender:
    """One of those who take turns: `run(steps)`, and the process groups of its games."""

    def __init__(self, steps: int, run: Callable[[int], None], groups: list[int]) -> None:
        """Runs once, to compile and to warm up, and stops the games."""
        self._run, self._groups, self._steps = run, groups, steps
        run(steps)
        self._signal(signal.SIGSTOP)

    def speed(self) -> float:
        """Steps per second, of all games at once."""
        self._signal(signal.SIGCONT)
        began = time.perf_counter()
        self._run(self._steps)
        seconds = time.perf_counter() - began
        self._signal(signal.SIGSTOP)
        return self._steps / seconds

    def end(self) -> None:
        """Lets the games go on, so that they can quit."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=600, help="of each round")
    parser.add_argument("--peer", help="a folder with the package godot_rl")
    args = parser.parse_args()
    if args.peer:
        sys.path.insert(0, args.peer)
    from purejaxppo.parallel.shards import use_cpu_cores

    use_cpu_cores(0, calls_host=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        project = shutil.copytree(CHASE, Path(folder) / "chase")
        for agents, games in SIZES:
            with contenders(project, agents, games, args) as found:
                speeds = {name: [] for name in found}
                for _ in range(args.rounds):
                    for name, contender in found.items():
                        speeds[name].append(contender.speed())
            for name in found:
                row = summary(speeds[name], speeds["engine"])
                rows.append({"agents": agents, "games": games, "contender": name, **row})
                print(rows[-1], flush=True)
    about = {"date": datetime.date.today().isoformat(), **machine.describe()}
    rows = [{**row, **about} for row in rows]
    machine.replace_rows(machine.RESULTS / "engines.jsonl", rows, "agents", "games", "contender")


def summary(speeds: list[float], engine: list[float]) -> dict[str, Any]:
    """Median steps per second, and the ratio to the engine's: its median and range over rounds."""
    ratios = [mine / its for mine, its in zip(speeds, engine, strict=True)]
    return {
        "steps_per_second": round(statistics.median(speeds)),
        "of_engine": round(statistics.median(ratios), 3),
        "of_engine_range": [round(min(ratios), 3), round(max(ratios), 3)],
    }


@contextlib.contextmanager
def contenders(
    project: Path, agents: int, games: int, args: argparse.Namespace
) -> Iterator[dict[str, Contender]]:
    """Those who take part, each with games of its own."""
    from purejaxppo.config.schema import EnvConfig
    from purejaxppo.envs import registry

    options = {"arguments": f"--arenas={agents}", "speedup": SPEEDUP}
    config = EnvConfig(name=f"godot/{project}", num_envs=agents * games, options=options)
    with contextlib.ExitStack() as stack:
        found = {}
        for name, make in (("engine", plain), ("loop", compiled)):
            env = registry.make(config, config.num_envs, seed=1)
            stack.callback(env.close)
            found[name] = Contender(args.steps, *make(env))
            stack.callback(found[name].end)
        if args.peer and games == 1:
            run, client = official(project, agents)
            stack.callback(client.close)
            found["godot_rl"] = Contender(args.steps, run, [client.proc.pid])
            stack.callback(found["godot_rl"].end)
        yield found


def actions(num_agents: int) -> list[dict[str, np.ndarray]]:
    """Ready-made random actions of the chase."""
    draw = np.random.default_rng(0)
    return [
        {
            "steer": draw.uniform(-1, 1, (num_agents, 2)).astype(np.float32),
            "dash": draw.integers(0, 2, num_agents, np.int32),
        }
        for _ in range(100)
    ]


def plain(env: Any) -> tuple[Callable[[int], None], list[int]]:
    """The games under our own client."""
    pool = env.pool(env.spec.num_envs).envs
    pool.reset(0)
    ready = actions(env.spec.num_envs)

    def run(steps: int) -> None:
        for step in range(steps):
            pool.step(ready[step % len(ready)])

    return run, pool.groups


def compiled(env: Any) -> tuple[Callable[[int], None], list[int]]:
    """The games in the compiled loop."""
    import jax
    import jax.numpy as jnp

    n = env.spec.num_envs
    state = [jax.jit(env.reset)(jax.random.key(0))[0]]

    def step(carried, key):
        state, total = carried
        one, other = jax.random.split(key)
        steer = jax.random.uniform(one, (n, 2), minval=-1.0)
        state, out = env.step(
            state, {"steer": steer, "dash": jax.random.randint(other, (n,), 0, 2)}
        )
        return (state, total + out.reward.sum()), None

    @jax.jit
    def scan(state, keys):
        return jax.lax.scan(step, (state, jnp.zeros(())), keys)[0]

    def run(steps: int) -> None:
        keys = jax.random.split(jax.random.key(1), steps)
        state[0], total = scan(state[0], keys)
        jax.block_until_ready(total)

    return run, env.pool(n).envs.groups


def official(project: Path, num_agents: int) -> tuple[Callable[[int], None], Any]:
    """One game under the Python client of Godot RL Agents, which starts it as it does any."""
    from godot_rl.core.godot_env import GodotEnv

    from purejaxppo.envs.host.engine import free_port

    game = project.parent / f"peer{num_agents}.x86_64"  # in place of an exported game
    command = [os.environ.get("GODOT", "godot"), "--path", str(project), "--headless"]
    command += ["--fixed-fps", "60", f"--arenas={num_agents}", f"--speedup={SPEEDUP:g}"]
    game.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@" > /dev/null 2>&1\n')
    game.chmod(0o755)
    with contextlib.redirect_stdout(None):
        env = GodotEnv(env_path=str(game), port=free_port())
    env.reset()
    ready = [(own["steer"], own["dash"]) for own in actions(num_agents)]

    def run(steps: int) -> None:
        for step in range(steps):
            env.step(ready[step % len(ready)])

    return run, env


if __name__ == "__main__":
    main()
